//! Readers of a mount: this program again, as processes of their own, so that their CPU time is known apart and a mount that
//! hangs does not hang the experiment. They go to a directory, read, and print what they saw as one line of JSON.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read, Write, stdout};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use rustix::fs::{Advice, fadvise, lgetxattr};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::chdir;
use serde::{Deserialize, Serialize};

use crate::child::{self, Role};
use crate::process::{self, Cost};
use crate::statistics::Samples;
use crate::trees::{Walk, walk};

/// Bytes of one read of a tree, as cat(1) has it, and of one of a large file.
const TREE_BLOCK: usize = 128 << 10;
const LARGE_BLOCK: usize = 1 << 20;
pub(crate) const RANDOM_BLOCK: usize = 4096;
/// Files of a batch.
const BATCH: usize = 64;
/// A packet is at most PIPE_BUF long, which no path of Linux exceeds.
const PACKET_BYTES: usize = 4096;
/// The random order is the same in every run.
const RANDOM_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Pattern {
    /// All files in the order of the listing, as `find -type f | xargs -n 64 -P JOBS cat` reads them.
    Tree,
    /// Files that a reader of a tree names.
    Batches,
    /// A file front to back.
    Large,
    /// Every block of 4 KiB of the front of a file once, in random order.
    Random,
    /// All names, as `find` lists them.
    Find,
    /// All names with attributes, as `ls -lR` lists them.
    List,
}

/// A reader, and the settings of its process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Reader {
    pub(crate) pattern: Pattern,
    /// Where it goes first.
    pub(crate) directory: PathBuf,
    /// Processes, or threads of random reads.
    pub(crate) jobs: u16,
    /// Files of a tree at most.
    pub(crate) files: u64,
    /// Below the directory.
    pub(crate) file: Option<PathBuf>,
    /// At the front of the file at most.
    pub(crate) bytes: u64,
    /// Whether contents are summed.
    pub(crate) sums: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// Files that were read, or names that were listed.
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// What this user may not read.
    pub(crate) refused: u64,
    /// Of the contents of all files, in any order.
    pub(crate) sum: u64,
    pub(crate) latencies: Option<Latencies>,
}

/// Of all reads together, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Latencies {
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
}

impl Reader {
    pub(crate) fn new(pattern: Pattern) -> Self {
        let (directory, jobs, file, sums) = (PathBuf::from("."), 1, None, false);
        Self { pattern, directory, jobs, files: u64::MAX, file, bytes: u64::MAX, sums }
    }

    /// Runs it in the directory.
    pub(crate) fn run(&self, directory: &Path) -> Result<(Cost, Seen)> {
        let settings = Self { directory: directory.to_path_buf(), ..self.clone() };
        let (cost, text) = process::run(&mut child::command(Role::Reader, &settings)?, None)?;
        Ok((cost, serde_json::from_str(&text).context("the output of a reader")?))
    }
}

/// The role of a reader.
pub(crate) fn read(reader: &Reader) -> Result<()> {
    let directory = reader.directory.display();
    chdir(&reader.directory).with_context(|| format!("chdir to {directory}"))?;
    let file = || reader.file.as_deref().context("no file");
    let seen = match reader.pattern {
        Pattern::Tree => read_tree(reader)?,
        Pattern::Batches => read_batches(reader.sums)?,
        Pattern::Find => list()?,
        Pattern::List => list_attributes()?,
        Pattern::Large => {
            let mut seen = Seen::default();
            read_front(file()?, reader.bytes, &mut vec![0; LARGE_BLOCK], false, &mut seen)?;
            seen
        }
        Pattern::Random => read_random(file()?, reader.jobs, reader.bytes)?,
    };
    Ok(writeln!(stdout(), "{}", serde_json::to_string(&seen)?)?)
}

/// Reads a file to its end, or so many bytes.
fn read_front(path: &Path, most: u64, block: &mut [u8], sums: bool, seen: &mut Seen) -> Result<()> {
    let what = || path.display().to_string();
    let mut file = File::open(path).with_context(what)?.take(most);
    let mut hasher = DefaultHasher::new();
    loop {
        match file.read(block) {
            Ok(0) => break,
            Ok(count) => {
                seen.bytes += count as u64;
                if sums {
                    hasher.write(block.get(..count).unwrap_or_default());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).with_context(what),
        }
    }
    seen.files += 1;
    seen.sum = seen.sum.wrapping_add(if sums { hasher.finish() } else { 0 });
    Ok(())
}

/// Reads all files below the working directory by several processes: one lists, and sends batches of up to 64 files, as
/// `find | xargs -n 64 -P JOBS cat` does, but readers are not started anew for each batch. A batch is a packet of a pipe:
/// whoever reads it has all of it, so readers need no turn.
fn read_tree(reader: &Reader) -> Result<Seen> {
    let (packets, ours) = pipe_with(PipeFlags::DIRECT | PipeFlags::CLOEXEC).context("a pipe")?;
    let start = |_| -> Result<Child> {
        let settings = Reader { sums: reader.sums, ..Reader::new(Pattern::Batches) };
        let mut command = child::command(Role::Reader, &settings)?;
        command.stdin(packets.try_clone().context("a pipe for a reader")?).stdout(Stdio::piped());
        command.spawn().context("starting a reader of batches")
    };
    let readers = (0..reader.jobs).map(start).collect::<Result<Vec<_>>>()?;
    // Without this end, a batch that nobody can read any more is an error.
    drop(packets);
    let mut batch = Batch { pipe: &ours, bytes: Vec::with_capacity(PACKET_BYTES), files: 0 };
    let mut left = reader.files;
    let refused = walk(Path::new("."), &mut |_, kind, path| {
        if kind.is_file() {
            batch.add(path)?;
            left = left.saturating_sub(1);
        }
        Ok(if left == 0 { Walk::Stop } else { Walk::Continue })
    })?;
    batch.send()?;
    drop(ours);
    let mut seen = Seen { refused, ..Seen::default() };
    for reader in readers {
        let output = reader.wait_with_output().context("waiting for a reader")?;
        ensure!(output.status.success(), "a reader of batches ended with {}", output.status);
        let other: Seen = serde_json::from_slice(&output.stdout).context("a reader's output")?;
        seen.files += other.files;
        seen.bytes += other.bytes;
        seen.refused += other.refused;
        seen.sum = seen.sum.wrapping_add(other.sum);
    }
    Ok(seen)
}

/// Files that are sent together: their paths, each with a 0 behind it.
struct Batch<'a> {
    pipe: &'a OwnedFd,
    bytes: Vec<u8>,
    files: usize,
}

impl Batch<'_> {
    fn add(&mut self, path: &Path) -> Result<()> {
        let path = path.as_os_str().as_bytes();
        if self.files == BATCH || self.bytes.len() + path.len() + 1 > PACKET_BYTES {
            self.send()?;
        }
        self.bytes.extend_from_slice(path);
        self.bytes.push(0);
        self.files += 1;
        Ok(())
    }

    fn send(&mut self) -> Result<()> {
        if self.files > 0 {
            ensure!(self.bytes.len() <= PACKET_BYTES, "a path is longer than {PACKET_BYTES} bytes");
            let count = rustix::io::write(self.pipe, &self.bytes).context("sending a batch")?;
            ensure!(count == self.bytes.len(), "a packet was cut");
            self.bytes.clear();
            self.files = 0;
        }
        Ok(())
    }
}

/// Reads the files that come as packets on stdin.
fn read_batches(sums: bool) -> Result<Seen> {
    let mut packet = [0; PACKET_BYTES];
    let (mut block, mut seen) = (vec![0; TREE_BLOCK], Seen::default());
    loop {
        let count = rustix::io::read(io::stdin(), &mut packet).context("receiving a batch")?;
        if count == 0 {
            return Ok(seen);
        }
        let names = packet.get(..count).unwrap_or_default().split(|byte| *byte == 0);
        for name in names.filter(|name| !name.is_empty()) {
            let path = Path::new(OsStr::from_bytes(name));
            if let Err(error) = read_front(path, u64::MAX, &mut block, sums, &mut seen) {
                let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
                if kind != Some(io::ErrorKind::PermissionDenied) {
                    return Err(error);
                }
                seen.refused += 1;
            }
        }
    }
}

fn list() -> Result<Seen> {
    let mut files = 0;
    let refused = walk(Path::new("."), &mut |_, _, _| {
        files += 1;
        Ok(Walk::Continue)
    })?;
    Ok(Seen { files: files - refused, refused, ..Seen::default() })
}

/// One directory after another, each sorted and looked at as a whole before those in it.
fn list_attributes() -> Result<Seen> {
    let mut seen = Seen::default();
    let mut due = VecDeque::from([PathBuf::from(".")]);
    while let Some(folder) = due.pop_front() {
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                seen.refused += 1;
                continue;
            }
            entries => entries.with_context(|| folder.display().to_string())?,
        };
        let names = entries.map(|entry| Ok(entry?.file_name()));
        let mut names = names.collect::<io::Result<Vec<_>>>()?;
        names.sort_unstable();
        let mut below = Vec::new();
        for path in names.iter().map(|name| folder.join(name)) {
            if is_directory(&path).with_context(|| path.display().to_string())? {
                below.push(path);
            }
            seen.files += 1;
        }
        // The entries of a directory follow right behind it.
        below.into_iter().rev().for_each(|path| due.push_front(path));
    }
    Ok(seen)
}

/// Asks for attributes, the target of a link, and an access control list, as `ls -l` does.
fn is_directory(path: &Path) -> Result<bool> {
    let found = fs::symlink_metadata(path)?;
    if found.is_symlink() {
        fs::read_link(path)?;
    } else {
        // That there is no list is an answer as well.
        let mut list = [0_u8; 1024];
        lgetxattr(path, "system.posix_acl_access", &mut list).unwrap_or_default();
    }
    Ok(found.is_dir())
}

/// As fio's psync engine: pread of 4 KiB, every block of each job's own part once, with the kernel's readahead off.
fn read_random(path: &Path, jobs: u16, most_bytes: u64) -> Result<Seen> {
    let length = fs::metadata(path).with_context(|| path.display().to_string())?.len();
    let blocks = length.min(most_bytes) / RANDOM_BLOCK as u64 / u64::from(jobs);
    ensure!(blocks > 0, "{} is shorter than {jobs} blocks of {RANDOM_BLOCK} bytes", path.display());
    let parts = thread::scope(|scope| {
        let jobs = (0..u64::from(jobs))
            .map(|job| scope.spawn(move || read_random_part(path, job * blocks, blocks)));
        let jobs: Vec<_> = jobs.collect();
        let parts = jobs.into_iter();
        let parts = parts.map(|job| job.join().map_err(|_| anyhow!("a reader panicked"))?);
        parts.collect::<Result<Vec<_>>>()
    })?;
    let all: Samples = parts.into_iter().flatten().collect();
    let summary = all.summary();
    let (mean, p50) = (summary.average, summary.median);
    let latencies = Latencies { mean, p50, p99: all.percentile(990), p999: all.percentile(999) };
    let bytes = (summary.count * RANDOM_BLOCK) as u64;
    Ok(Seen { files: 1, bytes, latencies: Some(latencies), ..Seen::default() })
}

fn read_random_part(path: &Path, first: u64, blocks: u64) -> Result<Vec<f64>> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    fadvise(&file, 0, None, Advice::Random).context("fadvise")?;
    let mut block = [0; RANDOM_BLOCK];
    let mut latencies = Vec::with_capacity(usize::try_from(blocks)?);
    for index in shuffled(blocks, RANDOM_SEED ^ first) {
        let offset = (first + index) * RANDOM_BLOCK as u64;
        let begin = Instant::now();
        let read = file.read_exact_at(&mut block, offset);
        read.with_context(|| format!("{} at {offset}", path.display()))?;
        latencies.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    Ok(latencies)
}

/// The numbers below `count`, each once (Fisher and Yates), by xorshift64.
fn shuffled(count: u64, seed: u64) -> Vec<u64> {
    let mut state = seed.max(1);
    let mut order: Vec<u64> = (0..count).collect();
    for last in (1..order.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(last, usize::try_from(state % (last as u64 + 1)).unwrap_or_default());
    }
    order
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn a_large_file_is_read_to_its_end_or_to_a_limit() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len((1 << 20) + 17).unwrap();
        for (most, bytes) in [(u64::MAX, (1 << 20) + 17), (5, 5)] {
            let mut seen = Seen::default();
            read_front(file.path(), most, &mut [0; 4096], true, &mut seen).unwrap();
            assert_eq!((seen.files, seen.bytes), (1, bytes));
            assert_ne!(seen.sum, 0);
        }
        let gone = Path::new("/no such file");
        read_front(gone, 1, &mut [0], false, &mut Seen::default()).unwrap_err();
    }

    #[test]
    fn every_block_comes_once_and_not_in_order() {
        let mut order = shuffled(1000, 7);
        assert_eq!(order, shuffled(1000, 7));
        assert!(!order.is_sorted());
        order.sort_unstable();
        assert!(order.into_iter().eq(0..1000));
        assert_eq!(shuffled(1, 0), [0]);
    }

    #[test]
    fn jobs_share_the_front_of_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(10 * RANDOM_BLOCK as u64 + 1).unwrap();
        let seen = read_random(file.path(), 2, 9 * RANDOM_BLOCK as u64).unwrap();
        assert_eq!(seen.bytes, 8 * RANDOM_BLOCK as u64);
        let Latencies { mean, p50, p99, p999 } = seen.latencies.unwrap();
        assert!(p50 > 0.0 && p50 <= p99 && p99 <= p999 && mean > 0.0);
        read_random(file.path(), 11, u64::MAX).unwrap_err();
    }

    #[test]
    fn directories_are_told_from_links() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        symlink("nowhere", folder.path().join("link")).unwrap();
        assert!(is_directory(&folder.path().join("a")).unwrap());
        assert!(!is_directory(&folder.path().join("link")).unwrap());
        is_directory(&folder.path().join("gone")).unwrap_err();
    }

    #[test]
    fn a_batch_is_one_packet_of_at_most_64_files() {
        let (ours, theirs) = pipe_with(PipeFlags::DIRECT).unwrap();
        let mut batch = Batch { pipe: &theirs, bytes: Vec::new(), files: 0 };
        for number in 0..=BATCH {
            batch.add(Path::new(&number.to_string())).unwrap();
        }
        batch.add(Path::new(&"x".repeat(4094))).unwrap();
        batch.send().unwrap();
        let mut packet = vec![0; 8192];
        let mut sizes = || {
            let count = rustix::io::read(&ours, &mut packet).unwrap();
            packet[..count].iter().filter(|byte| **byte == 0).count()
        };
        assert_eq!([sizes(), sizes(), sizes()], [BATCH, 1, 1]);
    }
}
