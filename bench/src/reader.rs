//! Readers of a mount: this program again, as a process of its own, so that its CPU time is known apart and a mount that
//! hangs does not hang the experiment. It goes to a directory, reads, and prints what it saw as one line of JSON.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::{Read, Write, stdout};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::RwLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use crossbeam_channel::bounded;
use fastrand::Rng;
use rustix::fs::{Advice, fadvise, lgetxattr};
use rustix::process::chdir;
use serde::{Deserialize, Serialize};
use walkdir::WalkDir;

use crate::child::{self, Role};
use crate::machine::Usage;
use crate::process::{self, Cost};
use crate::statistics::Samples;
use crate::trees::{entries, is_denied};

/// Bytes of one read of a tree, as cat(1) has it, and of one of a large file.
const TREE_BLOCK: usize = 128 << 10;
const LARGE_BLOCK: usize = 1 << 20;
pub(crate) const RANDOM_BLOCK: usize = 4096;
/// Files of a batch, and batches that wait for a reader: xargs(1) runs ahead of its commands by one.
const BATCH: usize = 64;
const BATCHES: usize = 1;
/// Files that count as small, and how many of them are read.
const SMALL_BYTES: u64 = 16 << 10;
const SMALL_FILES: u64 = 3000;
const PANICKED: &str = "a reader panicked";
/// The random order is the same in every run.
const RANDOM_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// Below the root of an image.
pub(crate) const PYTHON: &str = "/usr/bin/python3";
const IMPORTS: &str = "import json, re, asyncio, email, http.client, urllib.request, xml.etree.ElementTree, logging, unittest, \
    argparse, subprocess, tempfile, multiprocessing, concurrent.futures, decimal, difflib, csv, zipfile, tarfile, ast";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Pattern {
    /// The largest file, front to back
    Large,
    /// All names, as `find` lists them
    Find,
    /// All names with attributes, as `ls -lR` lists them
    List,
    /// All names with sizes, as `du` adds them up
    Sizes,
    /// The first 3,000 files of at most 16 KiB, one after the other
    Small,
    /// 20 modules that python3 of the image imports (needs root)
    Imports,
    /// What `git status` reads in a git repository of 1,600 files; the experiment builds an image
    /// of it
    Status,
    /// All files in the order in which `find` lists them, as `find -type f | xargs -n 64 -P N cat`
    /// reads them; N is each number of --readers in turn
    Tree,
    /// Blocks in random order, none twice
    #[value(skip)]
    Random,
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
    pub(crate) file: PathBuf,
    /// At the front of the file at most.
    pub(crate) bytes: u64,
    /// Bytes of a block that is read at random, and how many of them each thread reads at most.
    pub(crate) block: usize,
    pub(crate) blocks: u64,
    /// Whether contents are summed.
    pub(crate) sums: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Observation {
    /// Files that were read, or names that were listed.
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// What this user may not read.
    refused: u64,
    /// Of the contents of all files; of a mount in any order.
    pub(crate) sum: u64,
    /// Of all random reads together, in microseconds: mean, and percentiles 50, 99 and 99.9.
    pub(crate) latencies: Option<[f64; 4]>,
}

impl Observation {
    fn add(&mut self, other: Self) {
        self.files += other.files;
        self.bytes += other.bytes;
        self.refused += other.refused;
        self.sum = self.sum.wrapping_add(other.sum);
    }

    /// Reads a file to its end; one that this user may not read is counted.
    fn read(&mut self, path: &Path, block: &mut [u8], sums: bool) -> Result<()> {
        match read_front(path, u64::MAX, block, sums) {
            Ok(other) => self.add(other),
            Err(error) if error.downcast_ref().is_some_and(is_denied) => self.refused += 1,
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl Reader {
    pub(crate) fn new(pattern: Pattern) -> Self {
        let [directory, file] = [".", ""].map(PathBuf::from);
        let [files, bytes, blocks] = [u64::MAX; 3];
        let (jobs, block) = (1, RANDOM_BLOCK);
        Self { pattern, directory, jobs, files, file, bytes, block, blocks, sums: false }
    }

    pub(crate) fn run(&self, directory: &Path) -> Result<(Cost, Observation)> {
        let settings = Self { directory: directory.to_path_buf(), ..self.clone() };
        let (cost, text) = process::run(&mut child::command(Role::Reader, &settings)?)?;
        Ok((cost, serde_json::from_str(&text).context("the output of a reader")?))
    }
}

pub(crate) fn read(reader: &Reader) -> Result<()> {
    let directory = reader.directory.display();
    chdir(&reader.directory).with_context(|| format!("chdir to {directory}"))?;
    let observation = match reader.pattern {
        Pattern::Tree => read_tree(Path::new("."), reader)?,
        Pattern::Find => list(WalkDir::new("."), |_| Ok(()))?,
        Pattern::List => list(WalkDir::new(".").sort_by_file_name(), look_at)?,
        Pattern::Sizes => list(WalkDir::new("."), |entry| Ok(entry.metadata().map(drop)?))?,
        Pattern::Small => read_small(Path::new("."), reader.files.min(SMALL_FILES))?,
        Pattern::Large => read_front(&reader.file, reader.bytes, &mut vec![0; LARGE_BLOCK], false)?,
        Pattern::Imports => run_program(&["chroot", ".", PYTHON, "-B", "-c", IMPORTS])?,
        Pattern::Status => run_program(&["git", "-c", "safe.directory=*", "status", "--short"])?,
        Pattern::Random => read_random(reader)?,
    };
    Ok(writeln!(stdout(), "{}", serde_json::to_string(&observation)?)?)
}

pub(crate) fn read_front(
    path: &Path,
    most: u64,
    block: &mut [u8],
    sums: bool,
) -> Result<Observation> {
    let what = || path.display().to_string();
    let mut file = File::open(path).with_context(what)?.take(most);
    let (mut hasher, mut bytes) = (DefaultHasher::new(), 0);
    while let count @ 1.. = file.read(block).with_context(what)? {
        bytes += count as u64;
        if sums {
            hasher.write(block.get(..count).unwrap_or_default());
        }
    }
    let sum = if sums { hasher.finish() } else { 0 };
    Ok(Observation { files: 1, bytes, sum, ..Observation::default() })
}

/// Reads all files of a tree: this thread lists, and others read batches of up to 64 files.
fn read_tree(tree: &Path, reader: &Reader) -> Result<Observation> {
    thread::scope(|scope| {
        let (outbox, inbox) = bounded::<Vec<PathBuf>>(BATCHES);
        let start = |_| {
            let inbox = inbox.clone();
            scope.spawn(move || {
                let (mut block, mut observation) = (vec![0; TREE_BLOCK], Observation::default());
                for path in inbox.into_iter().flatten() {
                    observation.read(&path, &mut block, reader.sums)?;
                }
                anyhow::Ok(observation)
            })
        };
        let readers: Vec<_> = (0..reader.jobs).map(start).collect();
        drop(inbox);
        let (mut batch, mut left) = (Vec::new(), reader.files);
        let mut observation = Observation::default();
        for entry in entries(WalkDir::new(tree)) {
            match entry? {
                None => observation.refused += 1,
                Some(entry) if entry.file_type().is_file() => {
                    batch.push(entry.into_path());
                    left -= 1;
                }
                Some(_) => {}
            }
            // If all readers have failed, their errors say more.
            let is_gone = batch.len() == BATCH && outbox.send(std::mem::take(&mut batch)).is_err();
            if is_gone || left == 0 {
                break;
            }
        }
        outbox.send(batch).unwrap_or_default();
        drop(outbox);
        for reader in readers {
            observation.add(reader.join().unwrap_or_else(|_| bail!(PANICKED))?);
        }
        Ok(observation)
    })
}

/// Runs a program that reads: its output is what was read.
fn run_program(words: &[&str]) -> Result<Observation> {
    let (_, output) = process::run(Command::new(words[0]).args(&words[1..]))?;
    Ok(Observation { files: 1, bytes: output.len() as u64, ..Observation::default() })
}

fn list(walk: WalkDir, look_at: fn(&walkdir::DirEntry) -> Result<()>) -> Result<Observation> {
    let mut observation = Observation::default();
    for entry in entries(walk.min_depth(1)) {
        let Some(entry) = entry? else {
            observation.refused += 1;
            continue;
        };
        look_at(&entry).with_context(|| entry.path().display().to_string())?;
        observation.files += 1;
    }
    Ok(observation)
}

/// Reads the first small files of a tree where the walk finds them.
fn read_small(tree: &Path, files: u64) -> Result<Observation> {
    let (mut block, mut observation) = (vec![0; TREE_BLOCK], Observation::default());
    for entry in entries(WalkDir::new(tree)).filter_map(Result::transpose) {
        let entry = entry?;
        if entry.file_type().is_file() && entry.metadata()?.len() <= SMALL_BYTES {
            observation.read(entry.path(), &mut block, false)?;
        }
        if observation.files == files {
            break;
        }
    }
    Ok(observation)
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

/// Has as many threads read from the same moment on, each by its number: what they got, and the wall and CPU time of this
/// process until the last one was done.
pub(crate) fn read_together<T: Send>(
    readers: u16,
    read: impl Fn(u16) -> Result<T> + Sync,
) -> Result<(Vec<T>, [Duration; 2])> {
    // Readers wait for the write lock. Should one of them not start, the others find it free.
    let start = RwLock::new(());
    thread::scope(|scope| {
        let held = start.write();
        let (start, read) = (&start, &read);
        let begin = |number: u16| {
            let name = thread::Builder::new().name(format!("reader/{number}"));
            name.spawn_scoped(scope, move || {
                drop(start.read());
                read(number)
            })
        };
        let running: Vec<_> = (0..readers).map(begin).collect::<Result<_, _>>()?;
        let (usage, clock) = (Usage::now(), Instant::now());
        drop(held);
        let got =
            running.into_iter().map(|reader| reader.join().unwrap_or_else(|_| bail!(PANICKED)));
        let got = got.collect::<Result<_>>()?;
        Ok((got, [clock.elapsed(), Usage::now().since(usage).cpu]))
    })
}

/// As fio's psync engine: pread, blocks of each job's own part, none twice, with the kernel's readahead off.
fn read_random(reader: &Reader) -> Result<Observation> {
    let (path, jobs, bytes) = (reader.file.as_path(), reader.jobs, reader.block as u64);
    let length = fs::metadata(path).with_context(|| path.display().to_string())?.len();
    let blocks = length.min(reader.bytes) / bytes / u64::from(jobs);
    ensure!(blocks > 0, "{} is shorter than {jobs} blocks of {bytes} bytes", path.display());
    let most = usize::try_from(reader.blocks).unwrap_or(usize::MAX);
    let (parts, _) = read_together(jobs, |job| {
        let first = u64::from(job) * blocks;
        let file = File::open(path).with_context(|| path.display().to_string())?;
        fadvise(&file, 0, None, Advice::Random).context("fadvise")?;
        let (mut block, mut latencies) = (vec![0; reader.block], Vec::new());
        let mut order: Vec<u64> = (0..blocks).collect();
        Rng::with_seed(RANDOM_SEED ^ first).shuffle(&mut order);
        order.truncate(most);
        latencies.reserve_exact(order.len());
        for index in order {
            let offset = (first + index) * bytes;
            let begin = Instant::now();
            let read = file.read_exact_at(&mut block, offset);
            read.with_context(|| format!("{} at {offset}", path.display()))?;
            latencies.push(begin.elapsed().as_secs_f64() * 1e6);
        }
        Ok(latencies)
    })?;
    let all: Samples = parts.into_iter().flatten().collect();
    let latencies = [all.mean(), all.median(), all.percentile(990), all.percentile(999)];
    let bytes = all.0.len() as u64 * bytes;
    Ok(Observation { files: 1, bytes, latencies: Some(latencies), ..Observation::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_to_its_end_or_to_a_limit_and_jobs_share_its_front() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(10 * RANDOM_BLOCK as u64 + 17).unwrap();
        for (most, bytes) in [(u64::MAX, 10 * RANDOM_BLOCK as u64 + 17), (5, 5)] {
            let got = read_front(file.path(), most, &mut [0; 4096], true).unwrap();
            assert_eq!((got.files, got.bytes, got.sum == 0), (1, bytes, false));
        }
        read_front(Path::new("/no such file"), 1, &mut [0], false).unwrap_err();
        let random = |jobs, bytes, blocks| {
            let file = file.path().to_path_buf();
            read_random(&Reader { jobs, bytes, blocks, file, ..Reader::new(Pattern::Random) })
        };
        let observation = random(2, 9 * RANDOM_BLOCK as u64, u64::MAX).unwrap();
        let [mean, p50, p99, p999] = observation.latencies.unwrap();
        assert!(p50 > 0.0 && p50 <= p99 && p99 <= p999 && mean > 0.0);
        assert_eq!(observation.bytes, 8 * RANDOM_BLOCK as u64);
        assert_eq!(random(2, u64::MAX, 3).unwrap().bytes, 6 * RANDOM_BLOCK as u64);
        random(11, u64::MAX, u64::MAX).unwrap_err();
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
        let large = File::create(folder.path().join("large")).unwrap();
        large.set_len(SMALL_BYTES + 1).unwrap();
        assert_eq!(read_small(folder.path(), u64::MAX).unwrap(), Observation { sum: 0, ..one });
        assert_eq!(read_small(folder.path(), 9).unwrap().files, 9);
    }
}
