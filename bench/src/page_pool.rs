//! The page-pool experiment: programs started from a mount, all of it in a memory cgroup at its limit, with larger and
//! smaller reserves for decoding. A sample is the time that the last launch spent in getting memory from the system, as in
//! the original mail's table.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use ferrofs_image::MemoryPool;
use serde::{Deserialize, Serialize};

use crate::cgroup::Group;
use crate::child::{Role, command, run_in};
use crate::daemon::{Daemon, DaemonOptions, Launcher, PROGRAMS, listeners};
use crate::experiment::{Context, Experiment};
use crate::frames::{DirtyPages, GroupMemory};
use crate::machine::Requirement;
use crate::plot::Plot;
use crate::report::Report;
use crate::rounds::TimeLimit;
use crate::statistics::{Samples, difference_percent};
use crate::table::Table;
use crate::trees::read_file;

const QUICK_ROUNDS: u16 = 2;
/// Rounds, however long they take.
const LEAST_ROUNDS: u16 = 3;
/// Pages of a file fill the group: this much when a mount has come or gone, which takes pages along, and this much before
/// each launch.
const FILL_BYTES: u64 = 128 << 20;
const REFILL_BYTES: u64 = 4 << 20;
/// The known cause where a threshold is missed.
const BEYOND: &str = "the rest came from the system: in other lengths than lay idle, or more at a time than the reserve has";
/// The mail says that this reserve is enough nearly always.
const COVERING_PAGES: u32 = 64;

#[derive(Debug, Clone, Args, Serialize, Deserialize)]
pub(crate) struct PagePoolArguments {
    /// Images of a Debian system with perl, git, gcc and python3, such as one with an LZ4 window of 64 KiB and one with
    /// 16 KiB
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<PathBuf>,
    /// Pages of 4 KiB that stay resident for decoding, a row for each number
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "0,64,256")]
    reserves: Vec<u32>,
    /// Rounds: a fresh mount for each image and reserve, 16 programs on each; 2 at most with --quick
    #[arg(short, long, value_name = "N", default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(u16).range(2..=10_000))]
    iterations: u16,
    /// Memory that the group may use, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 128)]
    #[arg(value_parser = clap::value_parser!(u32).range(96..=1 << 20))]
    limit: u32,
    /// Memory of the mount in MiB, as `ferrofs mount --memory`
    #[arg(long, value_name = "MIB", default_value_t = 32)]
    #[arg(value_parser = clap::value_parser!(u32).range(20..=1 << 20))]
    memory: u32,
    /// Folder on a disk for a file of 128 MiB, whose pages fill the group; the system's temporary folder if none is named
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    #[command(flatten)]
    time: TimeLimit,
}

impl Experiment for PagePoolArguments {
    fn requirements(&self) -> Vec<Requirement> {
        let all = [Requirement::Root, Requirement::Fuse, Requirement::Cgroup("memory")];
        all.into_iter().chain(self.images.iter().cloned().map(Requirement::File)).collect()
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let iterations = context.rounds(self.iterations, QUICK_ROUNDS);
        let (limit, memory) = (self.limit, self.memory);
        context.say(format!(
            "{iterations} rounds in a group of {limit} MiB, a mount with {memory} MiB of its own"
        ))?;
        let group = Group::of_memory(u64::from(limit) << 20)?;
        let command = command(Role::PoolLaunches, &Self { iterations, ..self.clone() })?;
        let (columns, charged): (Vec<Column>, _) = run_in(&group, command)?;
        add(&mut context.report, &columns);
        let taken = columns.first().map_or(0, |column| column.launch.len());
        if taken < usize::from(iterations) {
            context.report.remark(format!("{taken} of {iterations} rounds: the time was over"));
        }
        context.report.remark(format!("the limit was reached {} times", charged.limit_hits));
        Ok(())
    }
}

/// One image with one reserve, a sample a round.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Column {
    image: PathBuf,
    reserve: u32,
    /// Mapping and faulting in memory to decode into in the last launch, window frames included, in ns.
    getting: Samples,
    /// Such buffers in the last launch.
    from_reserve: Samples,
    from_system: Samples,
    /// Window frames in the last launch.
    frames_from_reserve: Samples,
    frames_from_system: Samples,
    /// From fork to exit of the last program, in ns.
    launch: Samples,
}

/// The role of the process in the group: fills the group with dirty memory; then mounts, launches and measures in turn.
pub(crate) fn measure(arguments: &PagePoolArguments) -> Result<(Vec<Column>, GroupMemory)> {
    // Dirty memory that nobody can take away.
    let ballast = vec![1_u8; usize::try_from(u64::from(arguments.limit / 4) << 20)?];
    let mut dirty = DirtyPages::create(arguments.folder.as_deref())?;
    let directory = tempfile::Builder::new().prefix("ferrofs-launches-").tempdir()?;
    let of_image = |image: &PathBuf| {
        let column =
            |reserve: &u32| Column { image: image.clone(), reserve: *reserve, ..Column::default() };
        arguments.reserves.iter().map(column).collect::<Vec<_>>()
    };
    let mut columns: Vec<Column> = arguments.images.iter().flat_map(of_image).collect();
    let deadline = arguments.time.deadline();
    for round in 0..arguments.iterations {
        if round >= LEAST_ROUNDS && deadline.is_over() {
            break;
        }
        // The first of a round rotates.
        let first = usize::from(round) % columns.len().max(1);
        let (late, early) = columns.split_at_mut(first);
        for column in early.iter_mut().chain(late) {
            column.measure(arguments.memory, directory.path(), &mut dirty)?;
        }
    }
    dirty.write(FILL_BYTES)?;
    Ok((columns, (ballast, dirty)))
}

impl Column {
    /// One round on a fresh mount.
    fn measure(&mut self, memory_mib: u32, directory: &Path, dirty: &mut DirtyPages) -> Result<()> {
        read_file(&self.image)?;
        let limit = u64::from(memory_mib) << 20;
        let memory = MemoryPool::with_reserve(limit, self.reserve, listeners())
            .with_context(|| format!("a reserve of {} pages", self.reserve))?;
        let daemon = Daemon::start(&self.image, directory, DaemonOptions::default(), &memory)?;
        let mut launcher = Launcher::start(directory)?;
        dirty.write(FILL_BYTES)?;
        for _ in 1..PROGRAMS.len() {
            dirty.write(REFILL_BYTES)?;
            launcher.launch()?;
        }
        dirty.write(REFILL_BYTES)?;
        let (before, frames_before) = (memory.buffer_stats(), memory.frame_stats());
        let last = launcher.launch()?;
        let (after, frames) = (memory.buffer_stats(), memory.frame_stats());
        let mapping = after.mapping_nanos - before.mapping_nanos;
        let faulting = frames.faulting_nanos - frames_before.faulting_nanos;
        let listed = frames.from_list - frames_before.from_list;
        let reserved = frames.from_reserve - frames_before.from_reserve;
        for (samples, value) in [
            (&mut self.getting, mapping + faulting),
            (&mut self.from_reserve, after.from_idle - before.from_idle),
            (&mut self.from_system, after.mapped - before.mapped),
            (&mut self.frames_from_reserve, listed + reserved),
            (&mut self.frames_from_system, frames.from_system - frames_before.from_system),
            (&mut self.launch, u64::try_from(last.as_nanos())?),
        ] {
            samples.push(value as f64);
        }
        drop(launcher);
        daemon.end()
    }

    fn name(&self) -> String {
        let image = self.image.file_stem().unwrap_or_default().to_string_lossy();
        format!("{image}, {} pages", self.reserve)
    }
}

/// What the first are of both together, in per cent.
fn share(reserve: &Samples, system: &Samples) -> f64 {
    reserve.sum() / (reserve.sum() + system.sum()) * 100.0
}

fn add(report: &mut Report, columns: &[Column]) {
    let Some(first) = columns.first() else { return };
    let baseline = first.getting.summary();
    let title =
        "Getting memory to decode into, in the last of 16 launches at the limit of a memory cgroup";
    let header = "image, reserve | mean ms | diff | median ms | max ms | covered | frames covered | launch ms";
    let mut table = Table::new(title, header);
    let mut plot = Plot::cdf(title, "ms in the last launch");
    for column in columns {
        let millis = column.getting.scaled(1e-6);
        let getting = millis.summary();
        let frames = share(&column.frames_from_reserve, &column.frames_from_system);
        let covered = share(&column.from_reserve, &column.from_system);
        table.add([
            column.name(),
            format!("{:.3}", getting.average),
            format!("{:+.2} %", difference_percent(baseline.average, getting.average * 1e6)),
            format!("{:.3}", getting.median),
            format!("{:.3}", getting.maximum),
            format!("{covered:.1} %"),
            if frames.is_nan() { "none taken".to_owned() } else { format!("{frames:.1} %") },
            format!("{:.1}", column.launch.median() / 1e6),
        ]);
        plot.samples(column.name(), &millis);
        for (case, samples, unit) in [
            ("getting memory in the last launch", &column.getting, "ns"),
            ("buffers from the reserve", &column.from_reserve, "buffers"),
            ("buffers from the system", &column.from_system, "buffers"),
            ("frames from the reserve", &column.frames_from_reserve, "frames"),
            ("frames from the system", &column.frames_from_system, "frames"),
            ("last launch", &column.launch, "ns"),
        ] {
            report.series(column.name(), case, unit, samples);
        }
    }
    report.table(table);
    report.plot(plot);
    let of_first = || columns.iter().filter(|column| column.image == first.image);
    let average = |column: &Column| column.getting.summary().average;
    let without = of_first().find(|column| column.reserve == 0).map(average);
    let with = of_first().max_by_key(|column| column.reserve).map(average);
    let saved = without.zip(with).map(|(without, with)| difference_percent(without, with));
    let covering = of_first().find(|column| column.reserve == COVERING_PAGES);
    let covered = covering.map(|column| share(&column.from_reserve, &column.from_system));
    for (threshold, figure) in [("reserve", saved), ("demand", covered)] {
        let why = if figure.is_some() { BEYOND } else { "no row for it" };
        report.judge(threshold, "", figure);
        report.explain(threshold, why);
    }
}
