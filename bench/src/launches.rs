//! The launches experiment: programs started from a mount beside load generators, with the daemon's threads unbound, bound,
//! and bound and raised. In each round each kind of mount is made anew, so that nothing of it is in the page cache (the
//! image is); 16 programs are started, and the last one is measured. As in the original mail's table, a sample of the
//! scheduling latency is the sum over one launch.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, fs};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use ferrofs_image::{MemoryPool, SyncDecompress};
use ferrofs_workers::cpus::AvailableCpus;
use serde::Serialize;

use crate::child::LoadGenerators;
use crate::daemon::{Daemon, DaemonOptions, Launcher, PROGRAMS, ThreadPolicy};
use crate::experiment::{Context, Experiment};
use crate::machine::Requirement;
use crate::mounted::{Mounter, System};
use crate::plot::Plot;
use crate::programs::ProgramArguments;
use crate::report::Report;
use crate::rounds::{Candidate, Measured, RoundOptions, Steal};
use crate::statistics::{Figure, Figures, difference_percent};
use crate::table::statistics_table;
use crate::trees::read_file;

/// The column of raised threads, by which the unbound ones are compared.
const RAISED: usize = 2;
/// Threads of our daemon that somebody may wait for, by how their names begin.
const AWAITED: [&str; 2] = ["fuse-", "erofs_worker"];
/// Threads that prefetch.
const PREFETCHING: [&str; 1] = ["prefetch"];
/// The figures of a round.
const RUN_DELAY: Figure = Figure::new("run delay", "us", 0);
const QUEUED: Figure = Figure::new("from submission to start", "us", 0);
const LAST: Figure = Figure::new("last launch", "us", 0);
const ALL: Figure = Figure::new("all launches", "us", 0);
const PREFETCH_DELAY: Figure = Figure::new("run delay of what reads ahead", "us", 0);
const STEAL: Figure = Figure::new("steal time in the last launch", "%", 1);
const TABLES: [(&str, Figure); 4] = [
    ("Scheduling latency of the daemon's threads", RUN_DELAY),
    ("From submission to start of decode work", QUEUED),
    ("The last launch", LAST),
    ("All launches", ALL),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Decoding {
    /// Workers, always: the subject of the original mail
    Workers,
    /// As by default: whoever answers the kernel, with the help of workers
    Default,
}

impl Decoding {
    const ALL: [Self; 2] = [Self::Workers, Self::Default];

    fn mode(self) -> SyncDecompress {
        match self {
            Self::Workers => SyncDecompress::ForceOff,
            Self::Default => SyncDecompress::Auto,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Workers => "workers decode",
            Self::Default => "the default",
        }
    }
}

#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct LaunchesArguments {
    /// An image of a Debian system with perl, git, gcc and python3
    image: PathBuf,
    /// Load generators on each CPU, at nice 0
    #[arg(long, value_name = "N", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=64))]
    load: u16,
    /// The threads that decode
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    #[arg(default_values_t = Decoding::ALL)]
    decoding: Vec<Decoding>,
    /// The kernel's readahead in mounts of ours, instead of the default
    #[arg(long, value_name = "KIB")]
    #[arg(value_parser = clap::value_parser!(u32).range(4..=1 << 20))]
    readahead: Option<u32>,
    /// Folder with erofsfuse: launches from it, and from the kernel's EROFS, stand beside ours
    #[arg(long, value_name = "DIR")]
    peers: Option<PathBuf>,
    #[command(flatten)]
    rounds: RoundOptions,
}

impl Experiment for LaunchesArguments {
    fn requirements(&self) -> Vec<Requirement> {
        let mut all = vec![Requirement::Root, Requirement::Fuse];
        all.push(Requirement::File(self.image.clone()));
        if let Some(peers) = &self.peers {
            let program = peers.join("erofsfuse");
            all.extend([Requirement::KernelErofs, Requirement::Program(program)]);
        }
        all
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let mounts = self.mounts()?;
        let directory = tempfile::Builder::new().prefix("ferrofs-launches-").tempdir()?;
        let _load = LoadGenerators::start(AvailableCpus::read().cpus(), self.load.into())?;
        context.plan(&self.rounds, 1);
        let candidates = mounts
            .iter()
            .map(|mount| Candidate::ours(mount.name(), || mount.round(self, directory.path())));
        let case = format!("beside {} load generators a CPU", self.load);
        let all = context.measure(&case, candidates.collect())?;
        for decoding in &self.decoding {
            add_tables(&mut context.report, *decoding, &mounts, &all);
        }
        for mount in &mounts {
            match &mount.source {
                Source::Ours(..) => {
                    context.report.remark(format!("{}: {}", mount.name(), mount.workers.borrow()));
                }
                Source::Peer(mounter) => {
                    let words = mounter.words(Path::new("IMAGE"), Path::new("DIR"));
                    context.report.peer_command(mount.name(), words);
                }
            }
        }
        context.report.samples("", &all);
        Ok(())
    }
}

impl LaunchesArguments {
    fn mounts(&self) -> Result<Vec<LaunchMount>> {
        let mount = |source| LaunchMount { source, workers: RefCell::default() };
        let ways = self.decoding.iter().flat_map(|&decoding| {
            ThreadPolicy::ALL.map(|threads| mount(Source::Ours(threads, decoding)))
        });
        let mut mounts: Vec<_> = ways.collect();
        if self.peers.is_some() {
            let programs = ProgramArguments { ferrofs: None, peers: self.peers.clone() };
            for system in [System::Kernel, System::Erofsfuse] {
                let mounter = system.find(&programs).map_err(anyhow::Error::msg)?;
                mounts.push(mount(Source::Peer(mounter.with_devices())));
            }
        }
        Ok(mounts)
    }
}

/// What is mounted.
#[derive(Debug)]
enum Source {
    Ours(ThreadPolicy, Decoding),
    Peer(Mounter),
}

/// What the workers of a mount did in all rounds.
#[derive(Debug, Default)]
struct WorkersSeen {
    /// Items that they ran, and how many of them on no CPU of their own.
    items: [u64; 2],
    priority_levels: BTreeSet<String>,
}

impl fmt::Display for WorkersSeen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [items, unbound] = self.items;
        if items == 0 {
            return write!(f, "nothing was left to workers: whoever answers the kernel decodes");
        }
        let levels = self.priority_levels.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        write!(
            f,
            "workers reached {levels}; they ran {items} items, {unbound} of them on no CPU of their own"
        )
    }
}

/// A kind of mount, made anew in each round.
#[derive(Debug)]
struct LaunchMount {
    source: Source,
    workers: RefCell<WorkersSeen>,
}

impl LaunchMount {
    fn name(&self) -> String {
        match &self.source {
            Source::Ours(threads, decoding) => format!("{}, {}", threads.name(), decoding.title()),
            Source::Peer(mounter) => mounter.system.name().to_owned(),
        }
    }

    /// The name of its column in the tables of a way of decoding, where it has one.
    fn column(&self, decoding: Decoding) -> Option<&'static str> {
        match &self.source {
            Source::Ours(threads, own) => (*own == decoding).then(|| threads.name()),
            Source::Peer(mounter) => Some(mounter.system.name()),
        }
    }

    fn round(&self, arguments: &LaunchesArguments, directory: &Path) -> Result<Figures> {
        let image = &arguments.image;
        read_file(image)?;
        match &self.source {
            Source::Ours(threads, decoding) => {
                let readahead_kib = arguments.readahead;
                let options =
                    DaemonOptions { threads: *threads, mode: decoding.mode(), readahead_kib };
                let memory = MemoryPool::with_default_limit()?;
                let daemon = Daemon::start(image, directory, options, &memory)?;
                let look = || Ok((RunDelays::of("self")?, Some(daemon.queued_micros())));
                let figures = launch(directory, &look, &AWAITED, &PREFETCHING)?;
                let mut seen = self.workers.borrow_mut();
                let items = daemon.items();
                seen.items.iter_mut().zip(items).for_each(|(sum, items)| *sum += items);
                seen.priority_levels.extend(daemon.priority_levels());
                daemon.end()?;
                Ok(figures)
            }
            Source::Peer(mounter) => {
                let log = tempfile::NamedTempFile::new()?;
                let mounted = mounter.mount(image, directory, log.path())?;
                let process = mounted.process();
                let look = || {
                    let delays = process.map(|process| RunDelays::of(&process.to_string()));
                    Ok((delays.transpose()?.unwrap_or_default(), None))
                };
                let mut figures = launch(directory, &look, &[""], &[])?;
                // The kernel has no daemon.
                figures.retain(|(figure, _)| process.is_some() || *figure != RUN_DELAY);
                mounted.end()?;
                Ok(figures)
            }
        }
    }
}

/// The run delays of a daemon, and how long all of its work was queued, in us.
type Look<'a> = &'a dyn Fn() -> Result<(RunDelays, Option<f64>)>;

/// Starts all programs; the daemon is looked at before and after the last one.
fn launch(
    directory: &Path,
    look: Look<'_>,
    awaited: &[&str],
    prefetching: &[&str],
) -> Result<Figures> {
    let mut launcher = Launcher::start(directory)?;
    let mut all = Duration::ZERO;
    for _ in 1..PROGRAMS.len() {
        all += launcher.launch()?;
    }
    let (steal, (before, queued_before)) = (Steal::now(), look()?);
    let last = launcher.launch()?;
    let (steal, (after, queued)) = (Steal::now().since(steal), look()?);
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let mut figures = vec![
        (RUN_DELAY, after.since(&before, awaited)),
        (LAST, micros(last)),
        (ALL, micros(all + last)),
        (STEAL, steal.percent()),
    ];
    let queued = queued.zip(queued_before).map(|(after, before)| (QUEUED, after - before));
    figures.extend(queued);
    let prefetch = (PREFETCH_DELAY, after.since(&before, prefetching));
    figures.extend((!prefetching.is_empty()).then_some(prefetch));
    Ok(figures)
}

/// How long the threads of a process were ready to run and did not: the kernel's count, the second number of
/// `/proc/PID/task/TID/schedstat`, by thread. The mail calls it scheduling latency.
#[derive(Debug, Default)]
struct RunDelays(HashMap<String, ThreadDelay>);

#[derive(Debug)]
struct ThreadDelay {
    name: String,
    nanoseconds: u64,
}

impl RunDelays {
    /// Of a process by number, or `self`.
    fn of(process: &str) -> Result<Self> {
        let folder = format!("/proc/{process}/task");
        let mut threads = HashMap::new();
        for entry in fs::read_dir(&folder).with_context(|| folder.clone())? {
            let id = entry?.file_name().to_string_lossy().into_owned();
            let read = |file: &str| fs::read_to_string(format!("{folder}/{id}/{file}"));
            // A thread may end meanwhile.
            let (Ok(name), Ok(times)) = (read("comm"), read("schedstat")) else { continue };
            let delay = times.split_whitespace().nth(1).and_then(|word| word.parse().ok());
            let nanoseconds = delay.with_context(|| format!("schedstat of a thread: {times}"))?;
            threads.insert(id, ThreadDelay { name: name.trim_end().to_owned(), nanoseconds });
        }
        Ok(Self(threads))
    }

    /// The delay since `before` of threads whose names begin so, in us.
    fn since(&self, before: &Self, prefixes: &[&str]) -> f64 {
        let is_meant = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix));
        let meant = self.0.iter().filter(|(_, thread)| is_meant(&thread.name));
        let delays = meant.map(|(id, thread)| {
            let earlier = before.0.get(id).map_or(0, |thread| thread.nanoseconds);
            thread.nanoseconds.saturating_sub(earlier)
        });
        delays.sum::<u64>() as f64 / 1000.0
    }
}

/// The tables, plots and claims of one way of decoding.
fn add_tables(report: &mut Report, decoding: Decoding, mounts: &[LaunchMount], all: &[Measured]) {
    for (what, figure) in TABLES {
        let title = format!("{what}, {}", decoding.title());
        let columns = mounts.iter().zip(all).filter_map(|(mount, one)| {
            let samples = one.get(figure)?.clone();
            let name = mount.column(decoding)?.to_owned();
            Some(Measured { name, figures: vec![(figure, samples)] })
        });
        let columns: Vec<Measured> = columns.collect();
        if figure == QUEUED
            && columns.iter().all(|one| one.samples(figure).summary().maximum <= 0.0)
        {
            // LZ4 is left to the thread that reads.
            report.remark(format!("{title}: nothing was submitted"));
            continue;
        }
        // The subject of the mail is work that workers do.
        if figure == RUN_DELAY && decoding == Decoding::Workers {
            judge(report, &columns);
        }
        report.table(statistics_table(&title, figure, &columns, RAISED));
        if figure != QUEUED {
            let mut plot = Plot::cdf(title, figure.unit).log_x();
            columns.iter().for_each(|one| plot.samples(&one.name, &one.samples(figure)));
            report.plot(plot);
        }
    }
}

/// Claims on the difference between unbound and raised.
fn judge(report: &mut Report, columns: &[Measured]) {
    let summary = |place: usize| columns.get(place).map(|one| one.samples(RUN_DELAY).summary());
    let Some((unbound, raised)) = summary(0).zip(summary(RAISED)) else { return };
    for (threshold, before, after) in [
        ("average", unbound.average, raised.average),
        ("deviation", unbound.deviation, raised.deviation),
    ] {
        report.judge(threshold, "", difference_percent(before, after));
        report.explain(threshold, "see above which priority the workers reached");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_for_average_and_deviation() {
        let measured =
            |values: [f64; 2]| Measured::new("", values.map(|value| (RUN_DELAY, value)).into());
        let columns = [[90.0, 110.0], [40.0, 60.0], [9.0, 11.0]].map(measured);
        let mut report = Report::new("launches", &()).unwrap();
        judge(&mut report, &columns);
        report.finish().unwrap();
        let said = report.claims.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(said[0].ends_with("-90.0 % here, met"), "{said:?}");
        assert!(said[1].contains("-90.0 % here, NOT met (see above"), "{said:?}");
    }

    #[test]
    fn threads_are_told_by_their_names_and_new_ones_count_from_their_start() {
        let delays = |threads: &[(&str, &str, u64)]| {
            let of = |&(id, name, nanoseconds): &(&str, &str, u64)| {
                (id.to_owned(), ThreadDelay { name: name.to_owned(), nanoseconds })
            };
            RunDelays(threads.iter().map(of).collect())
        };
        let before = delays(&[("1", "fuse-0", 5_000), ("2", "bench", 1_000)]);
        let after = delays(&[("1", "fuse-0", 7_000), ("2", "bench", 90_000), ("3", "fuse-1", 500)]);
        assert_eq!(after.since(&before, &["fuse-"]), 2.5);
        assert_eq!(after.since(&before, &[""]), 91.5);
        assert_eq!(after.since(&before, &["erofs_"]), 0.0);
        assert!(!RunDelays::of("self").unwrap().0.is_empty());
    }
}
