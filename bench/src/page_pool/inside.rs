//! What the process in the group does: it fills the group with dirty memory, and then mounts, launches and measures,
//! round by round, everything in turn.

use std::io::{Read, Write, copy, sink, stdin, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use ferrofs_image::{MemoryPool, SyncDecompress};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use crate::deadline::TimeLimit;
use crate::launches::Directory;
use crate::launches::daemon::{Daemon, Threads, Wish, listeners};
use crate::launches::launcher::Launcher;
use crate::launches::programs::PROGRAMS;
use crate::pages::limit::Cache;
use crate::statistics::Samples;

/// The file whose pages fill the group is written over so far when a mount has come or gone, which takes its pages
/// along...
const FILL_BYTES: u64 = 128 << 20;
/// ... and so far before each launch, so that the group is full again.
const REFILL_BYTES: u64 = 4 << 20;

/// Rounds, no matter how long they take.
const LEAST_ROUNDS: u16 = 3;

/// What the process in the group is told.
#[derive(Debug, Clone, Args)]
pub(crate) struct InsideArguments {
    images: Vec<PathBuf>,
    #[arg(long)]
    folder: PathBuf,
    #[arg(long, value_delimiter = ',')]
    reserves: Vec<u32>,
    #[arg(long)]
    rounds: u16,
    /// Of the mount, in MiB
    #[arg(long)]
    memory: u32,
    /// Dirty memory that nobody can take away, in MiB
    #[arg(long)]
    ballast: u32,
    #[command(flatten)]
    time: TimeLimit,
}

/// What one image with one reserve showed, a value a round.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Column {
    pub(super) image: String,
    pub(super) reserve: u32,
    /// In mapping and faulting in of memory to decode into during the last launch, frames of windows included, in ns.
    pub(super) getting: Samples,
    /// Pieces of such memory in the last launch: from the reserve, and from the system.
    pub(super) from_reserve: Samples,
    pub(super) from_system: Samples,
    /// Frames of windows in the last launch: from the reserve, and from the system.
    pub(super) frames_from_reserve: Samples,
    pub(super) frames_from_system: Samples,
    /// From fork to exit of the last program, in ns.
    pub(super) launch: Samples,
}

/// Runs in the group, and keeps its memory until its input ends, so that the group can be looked at.
///
/// # Errors
/// When there is no FUSE, an image lacks a program, or the file cannot be written.
pub(crate) fn measure(arguments: &InsideArguments) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("tying a process to its parent")?;
    let mut word = [0];
    stdin().read_exact(&mut word).context("waiting for the group")?;
    let ballast = vec![1_u8; usize::try_from(u64::from(arguments.ballast) << 20)?];
    let scrap = arguments.folder.join(format!("ferrofs-bench-{}.scrap", std::process::id()));
    let mut cache = Cache::create(&scrap)?;
    let directory = Directory::make()?;
    let mut columns = columns(arguments);
    let deadline = arguments.time.deadline();
    for round in 0..arguments.rounds {
        if round >= LEAST_ROUNDS && deadline.is_over() {
            break;
        }
        // Whoever is first in a round differs from round to round.
        let first = usize::from(round) % columns.len().max(1);
        let (late, early) = columns.split_at_mut(first);
        for (image, column) in early.iter_mut().chain(late) {
            column.measure(image, arguments.memory, &directory.0, &mut cache)?;
        }
    }
    cache.write(FILL_BYTES)?;
    let found: Vec<_> = columns.into_iter().map(|(_, column)| column).collect();
    writeln!(stdout(), "{}", serde_json::to_string(&found)?)?;
    match stdin().read(&mut word) {
        Ok(0) => {}
        other => bail!("unexpected input: {other:?}"),
    }
    std::hint::black_box(&ballast);
    Ok(())
}

fn columns(arguments: &InsideArguments) -> Vec<(PathBuf, Column)> {
    let of_image = |image: &PathBuf| {
        let name = image.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let column = |reserve: &u32| {
            let column = Column { image: name.clone(), reserve: *reserve, ..Column::default() };
            (image.clone(), column)
        };
        arguments.reserves.iter().map(column).collect::<Vec<_>>()
    };
    arguments.images.iter().flat_map(of_image).collect()
}

impl Column {
    /// One round on a fresh mount.
    fn measure(
        &mut self,
        image: &Path,
        memory_mib: u32,
        directory: &Path,
        cache: &mut Cache,
    ) -> Result<()> {
        let what = || format!("reading {}", image.display());
        copy(&mut std::fs::File::open(image).with_context(what)?, &mut sink())
            .with_context(what)?;
        let memory =
            MemoryPool::with_reserve(u64::from(memory_mib) << 20, self.reserve, listeners())
                .with_context(|| format!("a reserve of {} pages", self.reserve))?;
        let wish =
            Wish { threads: Threads::Raised, mode: SyncDecompress::Auto, readahead_kib: None };
        let daemon = Daemon::start(image, directory, wish, &memory)?;
        let mut launcher = Launcher::start(directory)?;
        cache.write(FILL_BYTES)?;
        for _ in 1..PROGRAMS.len() {
            cache.write(REFILL_BYTES)?;
            launcher.launch()?;
        }
        cache.write(REFILL_BYTES)?;
        let (before, frames_before) = (memory.buffer_stats(), memory.frame_stats());
        let last = launcher.launch()?;
        let (after, frames_after) = (memory.buffer_stats(), memory.frame_stats());
        let mapping = after.mapping_nanos - before.mapping_nanos;
        let faulting = frames_after.faulting_nanos - frames_before.faulting_nanos;
        self.getting.push((mapping + faulting) as f64);
        self.from_reserve.push((after.from_idle - before.from_idle) as f64);
        self.from_system.push((after.mapped - before.mapped) as f64);
        let listed = frames_after.from_list - frames_before.from_list;
        let reserved = frames_after.from_reserve - frames_before.from_reserve;
        self.frames_from_reserve.push((listed + reserved) as f64);
        self.frames_from_system.push((frames_after.from_system - frames_before.from_system) as f64);
        self.launch.push(last.as_nanos() as f64);
        drop(launcher);
        daemon.end()
    }
}
