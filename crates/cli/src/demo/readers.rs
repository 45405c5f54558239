//! Readers: threads that read what is planned from a mount, and how long each piece took. What is measured is opening,
//! reading and closing a file, or reading one block of a file that is open; nothing is done with the bytes.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use rustix::fs::Advice;

use super::reading_plan::{BLOCK_BYTES, ReadingPlan};
use super::record::below;
use crate::signals::StopRequest;

/// Files are read in pieces of this size, as `cat` does.
const READ_BYTES: usize = 128 << 10;

/// What is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadPattern {
    Files,
    Blocks,
}

/// Threads that read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Readers<'a> {
    /// At least one.
    pub(super) count: usize,
    pub(super) plan: &'a ReadingPlan,
    pub(super) stop: &'a StopRequest,
}

/// What reading took.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadSample {
    /// Of each piece, in nanoseconds, in no order.
    pub(super) times: Vec<u64>,
    pub(super) bytes: u64,
    /// From the start of the first reader to the end of the last.
    pub(super) wall: Duration,
    /// Files that the caller may not read.
    pub(super) denied: u64,
    /// What else failed: the first of it, and how often.
    pub(super) failure: Option<String>,
    pub(super) failures: u64,
}

impl Readers<'_> {
    /// Reads everything that is planned below `root`, each piece by whoever is free.
    ///
    /// # Errors
    /// A thread cannot be started, or somebody wants an end.
    pub(super) fn read(&self, subject: ReadPattern, root: &Path) -> anyhow::Result<ReadSample> {
        let next = AtomicUsize::new(0);
        let mut whole = ReadSample::default();
        let started = Instant::now();
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for number in 1..self.count {
                let next = &next;
                let named = std::thread::Builder::new().name(format!("reader-{number}"));
                let begun = named.spawn_scoped(scope, move || self.take_turns(subject, root, next));
                threads.push(begun.context("a thread cannot be started")?);
            }
            whole.add(self.take_turns(subject, root, &next));
            for thread in threads {
                whole.add(thread.join().map_err(|_| anyhow!("a reader panicked"))?);
            }
            anyhow::Ok(())
        })?;
        whole.wall = started.elapsed();
        self.stop.check()?;
        Ok(whole)
    }

    fn take_turns(&self, subject: ReadPattern, root: &Path, next: &AtomicUsize) -> ReadSample {
        let mut sample = ReadSample::default();
        let mut buffer = vec![0; READ_BYTES];
        while !self.stop.is_requested() {
            let number = next.fetch_add(1, Ordering::SeqCst);
            let read = match subject {
                ReadPattern::Files => self.read_file(number, root, &mut buffer),
                ReadPattern::Blocks => self.read_block(number, root, &mut buffer),
            };
            match read {
                Ok(Some((time, bytes))) => {
                    sample.times.push(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
                    sample.bytes += bytes;
                }
                Ok(None) => break,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => sample.denied += 1,
                Err(error) => sample.fail(&error),
            }
        }
        sample
    }

    /// `None` once there are no more.
    fn read_file(
        &self,
        number: usize,
        root: &Path,
        buffer: &mut [u8],
    ) -> io::Result<Option<(Duration, u64)>> {
        let Some(planned) = self.plan.files.get(number) else { return Ok(None) };
        let place = below(root, &planned.path);
        let started = Instant::now();
        let mut file = File::open(place)?.take(planned.bytes);
        let mut bytes = 0;
        loop {
            self.stop.check_io()?;
            match file.read(buffer)? {
                0 => break,
                count => bytes += count as u64,
            }
        }
        drop(file);
        Ok(Some((started.elapsed(), bytes)))
    }

    /// `None` once there are no more.
    fn read_block(
        &self,
        number: usize,
        root: &Path,
        buffer: &mut [u8],
    ) -> io::Result<Option<(Duration, u64)>> {
        let planned = self.plan.blocks.get(number);
        let Some((block, file)) =
            planned.and_then(|block| Some((block, self.plan.files.get(block.file)?)))
        else {
            return Ok(None);
        };
        let file = File::open(below(root, &file.path))?;
        rustix::fs::fadvise(&file, 0, None, Advice::Random)?;
        let length = usize::try_from(BLOCK_BYTES).unwrap_or(buffer.len()).min(buffer.len());
        let started = Instant::now();
        let count = file.read_at(&mut buffer[..length], block.offset)?;
        Ok(Some((started.elapsed(), count as u64)))
    }
}

impl ReadSample {
    /// Adds what somebody else, or the same reader before, has read.
    pub(super) fn add(&mut self, other: Self) {
        self.times.extend(other.times);
        self.bytes += other.bytes;
        self.wall += other.wall;
        self.denied += other.denied;
        self.failures += other.failures;
        self.failure = self.failure.take().or(other.failure);
    }

    fn fail(&mut self, error: &io::Error) {
        self.failures += 1;
        self.failure.get_or_insert_with(|| error.to_string());
    }
}
