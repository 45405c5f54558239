//! Readers of a mount: this program again, as a process of its own, so that its CPU time is known apart and a mount that
//! hangs does not hang the experiment. It goes to a directory, reads, and prints what it saw as one line of JSON.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read, Write, stdout};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use crossbeam_channel::{Receiver, bounded};
use rustix::fs::{Advice, fadvise, lgetxattr};
use rustix::process::chdir;
use serde::{Deserialize, Serialize};
use walkdir::WalkDir;

use crate::child::{self, Role};
use crate::process::{self, Cost};
use crate::statistics::Samples;
use crate::trees::entries;

/// Bytes of one read of a tree, as cat(1) has it, and of one of a large file.
const TREE_BLOCK: usize = 128 << 10;
const LARGE_BLOCK: usize = 1 << 20;
pub(crate) const RANDOM_BLOCK: usize = 4096;
/// Files of a batch, and batches that wait for a reader: xargs(1) runs ahead of its commands by one.
const BATCH: usize = 64;
const BATCHES: usize = 1;
/// The random order is the same in every run.
const RANDOM_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Pattern {
    /// All files in the order of the listing, as `find -type f | xargs -n 64 -P JOBS cat` reads them.
    Tree,
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
    /// Threads that read a tree, or at random.
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
        Pattern::Tree => read_tree(Path::new("."), reader)?,
        Pattern::Find => list(WalkDir::new("."), |_| Ok(()))?,
        Pattern::List => list(WalkDir::new(".").sort_by_file_name(), look_at)?,
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

/// Reads all files of a tree: this thread lists, and others read batches of up to 64 files.
fn read_tree(tree: &Path, reader: &Reader) -> Result<Seen> {
    thread::scope(|scope| {
        let (outbox, inbox) = bounded(BATCHES);
        let start = |_| {
            let inbox = inbox.clone();
            scope.spawn(move || read_batches(&inbox, reader.sums))
        };
        let readers: Vec<_> = (0..reader.jobs).map(start).collect();
        drop(inbox);
        let (mut batch, mut left, mut seen) = (Vec::new(), reader.files, Seen::default());
        for entry in entries(WalkDir::new(tree)) {
            match entry? {
                None => seen.refused += 1,
                Some(entry) if entry.file_type().is_file() => {
                    batch.push(entry.into_path());
                    left -= 1;
                }
                Some(_) => {}
            }
            // If all readers have failed, their errors say more.
            if batch.len() == BATCH && outbox.send(std::mem::take(&mut batch)).is_err() || left == 0
            {
                break;
            }
        }
        outbox.send(batch).unwrap_or_default();
        drop(outbox);
        for reader in readers {
            let other = reader.join().map_err(|_| anyhow!("a reader panicked"))??;
            seen.files += other.files;
            seen.bytes += other.bytes;
            seen.refused += other.refused;
            seen.sum = seen.sum.wrapping_add(other.sum);
        }
        Ok(seen)
    })
}

fn read_batches(inbox: &Receiver<Vec<PathBuf>>, sums: bool) -> Result<Seen> {
    let (mut block, mut seen) = (vec![0; TREE_BLOCK], Seen::default());
    for path in inbox.iter().flatten() {
        if let Err(error) = read_front(&path, u64::MAX, &mut block, sums, &mut seen) {
            let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
            if kind != Some(io::ErrorKind::PermissionDenied) {
                return Err(error);
            }
            seen.refused += 1;
        }
    }
    Ok(seen)
}

fn list(walk: WalkDir, look_at: fn(&walkdir::DirEntry) -> Result<()>) -> Result<Seen> {
    let mut seen = Seen::default();
    for entry in entries(walk) {
        match entry? {
            None => seen.refused += 1,
            Some(entry) => {
                look_at(&entry).with_context(|| entry.path().display().to_string())?;
                seen.files += 1;
            }
        }
    }
    Ok(seen)
}

/// Asks for attributes, the target of a link, and an access control list, as `ls -l` does.
fn look_at(entry: &walkdir::DirEntry) -> Result<()> {
    if entry.metadata()?.is_symlink() {
        fs::read_link(entry.path())?;
    } else {
        // That there is no list is an answer as well.
        let mut list = [0_u8; 1024];
        lgetxattr(entry.path(), "system.posix_acl_access", &mut list).unwrap_or_default();
    }
    Ok(())
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
    fn all_files_of_a_tree_are_read_once_whoever_reads_them() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        for number in 0..3 * BATCH {
            fs::write(folder.path().join("a").join(number.to_string()), [7; 10]).unwrap();
        }
        std::os::unix::fs::symlink("nowhere", folder.path().join("link")).unwrap();
        let reader = |jobs| Reader { jobs, sums: true, ..Reader::new(Pattern::Tree) };
        let one = read_tree(folder.path(), &reader(1)).unwrap();
        assert_eq!((one.files, one.bytes), (3 * BATCH as u64, 30 * BATCH as u64));
        assert_eq!(read_tree(folder.path(), &reader(5)).unwrap(), one);
        let some = Reader { files: 70, ..reader(2) };
        assert_eq!(read_tree(folder.path(), &some).unwrap().files, 70);
        let listed = list(WalkDir::new(folder.path()).sort_by_file_name(), look_at).unwrap();
        assert_eq!(listed.files, one.files + 2);
    }
}
