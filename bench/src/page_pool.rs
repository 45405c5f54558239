//! The page-pool experiment: programs started from a mount, all of it in a memory cgroup at its limit, with larger and
//! smaller reserves for decoding. A sample is the time that the last launch spent in getting memory from the system, as in
//! the original mail's table.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use ferrofs_image::{MemoryPool, SyncDecompress};
use serde::{Deserialize, Serialize};

use crate::cgroup::Group;
use crate::child::{Role, run_in};
use crate::daemon::{Daemon, Launcher, ThreadPolicy, listeners, mount_folder};
use crate::experiment::{Candidate, Context, Experiment, RoundOptions, Schedule, StealFilter};
use crate::machine::{Requirement, files};
use crate::pages::{DirtyPages, FILE_BYTES, GroupMemory, REFILL_BYTES};
use crate::statistics::{Figures, Measured};
use crate::trees::read_in;

/// Memory that the group may use, and that of the mount as by `ferrofs mount --memory`.
const LIMIT_BYTES: u64 = 128 << 20;
const MOUNT_BYTES: u64 = 32 << 20;
/// Of the group, dirty memory that nobody can take away.
const BALLAST_BYTES: usize = 32 << 20;
/// Pages of 4 KiB that stay resident for decoding, a row for each number.
const RESERVES: [u32; 3] = [0, 64, 256];
const FROM_RESERVE: &str = "buffers from the reserve";
const FROM_SYSTEM: &str = "buffers from the system";
const FRAMES_FROM_RESERVE: &str = "frames from the reserve";
const FRAMES_FROM_SYSTEM: &str = "frames from the system";
const LAUNCH: &str = "last launch";

#[derive(Debug, Clone, Args)]
pub(crate) struct PagePoolArguments {
    /// Images of a Debian system with perl, git, gcc and python3, such as one with an LZ4 window of 64 KiB and one with
    /// 16 KiB
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<PathBuf>,
    #[command(flatten)]
    rounds: RoundOptions,
}

/// The settings of the process in the group.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PoolTask {
    images: Vec<PathBuf>,
    rounds: u16,
    least_rounds: u16,
    limit: Option<Duration>,
}

impl Experiment for PagePoolArguments {
    fn requirements(&self) -> Vec<Requirement<'_>> {
        let all = [Requirement::Root, Requirement::Fuse, Requirement::Cgroup("memory")];
        all.into_iter().chain(files(&self.images)).collect()
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        context.plan(self.rounds, 1);
        let rounds = context.schedule.rounds;
        context.say(format!(
            "{rounds} rounds in a group of {} MiB, a mount with {} MiB of its own",
            LIMIT_BYTES >> 20,
            MOUNT_BYTES >> 20
        ))?;
        let group = Group::of_memory(LIMIT_BYTES)?;
        let (images, least_rounds) = (self.images.clone(), context.schedule.least_rounds);
        let task =
            PoolTask { images, rounds, least_rounds, limit: context.schedule.deadline.left() };
        let (mut all, charged): (Vec<Measured>, _) = run_in(&group, Role::PoolLaunches, &task)?;
        for one in &mut all {
            let sum = |figure| one.samples(figure).0.iter().sum::<f64>();
            let shares = [
                ("covered", FROM_RESERVE, FROM_SYSTEM),
                ("frames covered", FRAMES_FROM_RESERVE, FRAMES_FROM_SYSTEM),
            ]
            .map(|(share, reserve, system)| {
                (share, sum(reserve) / (sum(reserve) + sum(system)) * 100.0)
            });
            // A decoder that takes no frames has no share of them.
            one.add(shares.into_iter().filter(|(_, share)| !share.is_nan()).collect());
        }
        context.report.add("page-pool", "", "", &all)?;
        // Of the first image; its rows bear the names of the thresholds.
        let mut first: Vec<Measured> = all.iter().take(RESERVES.len()).cloned().collect();
        for (one, reserve) in first.iter_mut().zip(RESERVES) {
            one.name = format!("{reserve} pages");
        }
        context.report.judge_all("", &[], &first);
        let taken = all.first().map_or(0, |one| one.samples(LAUNCH).0.len());
        if taken < usize::from(rounds) {
            context.report.remark(format!("{taken} of {rounds} rounds: the time was over"));
        }
        context.report.remark(format!("the limit was reached {} times", charged.limit_hits));
        Ok(())
    }
}

/// The role of the process in the group: fills the group with dirty memory; then mounts, launches and measures in turn.
pub(crate) fn measure(task: &PoolTask) -> Result<(Vec<Measured>, GroupMemory)> {
    let ballast = vec![1_u8; BALLAST_BYTES];
    let (pages, folder) = (RefCell::new(DirtyPages::create()?), mount_folder()?);
    let (dirty, directory) = (&pages, folder.path());
    let of_image = |image| RESERVES.iter().map(move |reserve| (image, *reserve));
    let ways = task.images.iter().flat_map(of_image);
    let candidates = ways.map(|(image, reserve): (&PathBuf, u32)| {
        let name = image.file_stem().unwrap_or_default().to_string_lossy();
        let run = move || launch(image, reserve, directory, &mut dirty.borrow_mut());
        Candidate::ours(format!("{name}, {reserve} pages"), run)
    });
    let schedule = Schedule::within(task.rounds, task.least_rounds, task.limit);
    let (all, _) = schedule.measure(candidates.collect(), &mut StealFilter::default())?;
    let mut dirty = pages.into_inner();
    dirty.write(FILE_BYTES)?;
    Ok((all, (ballast, dirty)))
}

/// One round on a fresh mount.
fn launch(image: &Path, reserve: u32, directory: &Path, dirty: &mut DirtyPages) -> Result<Figures> {
    read_in(image)?;
    let memory = MemoryPool::with_reserve(MOUNT_BYTES, reserve, listeners())
        .with_context(|| format!("a reserve of {reserve} pages"))?;
    let (threads, mode) = (ThreadPolicy::Raised, SyncDecompress::Auto);
    let daemon = Daemon::start(image, directory, threads, mode, &memory)?;
    let mut launcher = Launcher::start(directory)?;
    // A mount that has come takes pages along.
    dirty.write(FILE_BYTES)?;
    launcher.launch_most(|| dirty.write(REFILL_BYTES))?;
    dirty.write(REFILL_BYTES)?;
    let (before, frames_before) = (memory.buffer_stats(), memory.frame_stats());
    let last = launcher.launch()?;
    let (after, frames) = (memory.buffer_stats(), memory.frame_stats());
    drop(launcher);
    daemon.end()?;
    // Mapping and faulting in memory to decode into, frames of windows included.
    let mapping = after.mapping_nanos - before.mapping_nanos;
    let faulting = frames.faulting_nanos - frames_before.faulting_nanos;
    let listed = frames.from_list - frames_before.from_list;
    let reserved = frames.from_reserve - frames_before.from_reserve;
    Ok(vec![
        ("getting memory in the last launch", (mapping + faulting) as f64 / 1e6),
        (FROM_RESERVE, (after.from_idle - before.from_idle) as f64),
        (FROM_SYSTEM, (after.mapped - before.mapped) as f64),
        (FRAMES_FROM_RESERVE, (listed + reserved) as f64),
        (FRAMES_FROM_SYSTEM, (frames.from_system - frames_before.from_system) as f64),
        (LAUNCH, last.as_secs_f64() * 1e3),
    ])
}
