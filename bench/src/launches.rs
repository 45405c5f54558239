//! The launches experiment: programs started from a mount beside load generators, with the daemon's threads unbound, bound,
//! and bound and raised. In each round each kind of mount is made anew, so that nothing of it is in the page cache (the
//! image is); 16 programs are started, and the last one is measured. As in the original mail's table, a sample of the
//! scheduling latency is the sum over one launch.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use ferrofs_image::{MemoryPool, SyncDecompress};
use ferrofs_workers::cpus::AvailableCpus;
use serde::Serialize;

use crate::child::LoadGenerators;
use crate::daemon::{Daemon, DaemonOptions, Launcher, PROGRAMS, ThreadPolicy};
use crate::experiment::{Context, Experiment};
use crate::machine::Requirement;
use crate::mounted::{Mounted, Mounter, System};
use crate::plot::Plot;
use crate::programs::ProgramArguments;
use crate::report::{Report, Table};
use crate::rounds::{Steal, StealDelta, StealFilter, TimeLimit, rotated};
use crate::statistics::{Samples, Summary, difference_percent};
use crate::trees::read_file;

const QUICK_ITERATIONS: u16 = 2;
/// Columns of ours in a table; peers follow.
const OURS: usize = 3;
/// Threads of our daemon that somebody may wait for, by how their names begin.
const AWAITED: [&str; 2] = ["fuse-", "erofs_worker"];
/// Threads that prefetch.
const PREFETCHING: [&str; 1] = ["prefetch"];
/// The samples of a round, with their units.
const FIGURES: [(&str, &str); 6] = [
    ("run delay", "us"),
    ("from submission to start", "us"),
    ("last launch", "us"),
    ("all launches", "us"),
    ("run delay of what reads ahead", "us"),
    ("steal time in the last launch", "%"),
];
/// The tables of the first figures. The first two have thresholds.
const TABLES: [&str; 4] = [
    "Scheduling latency of the daemon's threads",
    "From submission to start of decode work",
    "The last launch",
    "All launches",
];
const RUN_DELAY: usize = 0;
const QUEUED: usize = 1;

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
    /// Rounds: a fresh mount of each kind, 16 programs on each; 2 at most with --quick
    #[arg(short, long, value_name = "N", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u16).range(2..=10_000))]
    iterations: u16,
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
    limit: TimeLimit,
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
        let mut columns = self.columns()?;
        let directory = tempfile::Builder::new().prefix("ferrofs-launches-").tempdir()?;
        let _load = LoadGenerators::start(AvailableCpus::read().cpus(), self.load.into())?;
        let rounds = context.rounds(self.iterations, QUICK_ITERATIONS);
        context.say(format!("beside {} load generators a CPU, {rounds} rounds", self.load))?;
        let mut filter = StealFilter::default();
        let kinds = rotated(rounds.into(), columns.len());
        let found = filter.sample_by(kinds, self.limit.deadline(), |kind| {
            let round = columns[kind].round(self, directory.path())?;
            let steal = round.steal;
            Ok((round, steal))
        })?;
        found.into_iter().for_each(|(kind, round)| columns[kind].add(round));
        for decoding in &self.decoding {
            add_tables(&mut context.report, *decoding, &columns)?;
        }
        columns.iter().for_each(|column| column.add_series(&mut context.report));
        context.report.remark(format!("last launches: {filter}"));
        Ok(())
    }
}

impl LaunchesArguments {
    fn columns(&self) -> Result<Vec<Column>> {
        let mut columns = Vec::new();
        for decoding in &self.decoding {
            columns.extend(
                ThreadPolicy::ALL.map(|threads| Column::new(Source::Ours(threads, *decoding))),
            );
        }
        if self.peers.is_some() {
            let programs = ProgramArguments { ferrofs: None, peers: self.peers.clone() };
            for system in [System::Kernel, System::Erofsfuse] {
                let mounter = system.find(&programs).map_err(anyhow::Error::msg)?;
                columns.push(Column::new(Source::Peer(mounter.with_devices())));
            }
        }
        Ok(columns)
    }
}

/// What is mounted.
#[derive(Debug)]
enum Source {
    Ours(ThreadPolicy, Decoding),
    Peer(Mounter),
}

impl Source {
    fn name(&self) -> &'static str {
        match self {
            Self::Ours(threads, _) => threads.name(),
            Self::Peer(mounter) => mounter.system.name(),
        }
    }

    fn is_ours(&self) -> bool {
        matches!(self, Self::Ours(..))
    }

    /// Whether it is a peer, or one of ours that decodes so.
    fn belongs_to(&self, decoding: Decoding) -> bool {
        !matches!(self, Self::Ours(_, other) if *other != decoding)
    }

    /// Whether a table shows it: the kernel has no daemon, and only our work is queued.
    fn is_shown(&self, table: usize) -> bool {
        match table {
            RUN_DELAY => self.name() != System::Kernel.name(),
            QUEUED => self.is_ours(),
            _ => true,
        }
    }
}

enum MountInUse {
    Ours(Box<Daemon>),
    Peer(Mounted),
}

impl MountInUse {
    fn look(&self) -> Result<Snapshot> {
        let steal = Steal::now();
        let (delays, queued) = match self {
            Self::Ours(daemon) => (RunDelays::of("self")?, daemon.queued_micros()),
            Self::Peer(mounted) => match mounted.process() {
                Some(process) => (RunDelays::of(&process.to_string())?, f64::NAN),
                None => (RunDelays::default(), f64::NAN),
            },
        };
        Ok(Snapshot { delays, queued, steal })
    }
}

struct Snapshot {
    delays: RunDelays,
    queued: f64,
    steal: Steal,
}

/// One round on a fresh mount.
struct Round {
    figures: [f64; FIGURES.len()],
    steal: StealDelta,
    /// Items that workers ran, and how many of them on no CPU of their own.
    items: [u64; 2],
    priority_levels: Vec<String>,
}

/// All rounds of one kind of mount.
#[derive(Debug)]
struct Column {
    source: Source,
    figures: [Samples; FIGURES.len()],
    items: [u64; 2],
    priority_levels: BTreeSet<String>,
}

impl Column {
    fn new(source: Source) -> Self {
        let figures = std::array::from_fn(|_| Samples::default());
        Self { source, figures, items: [0; 2], priority_levels: BTreeSet::new() }
    }

    fn add(&mut self, round: Round) {
        for (samples, value) in self.figures.iter_mut().zip(round.figures) {
            if !value.is_nan() {
                samples.push(value);
            }
        }
        self.items.iter_mut().zip(round.items).for_each(|(sum, items)| *sum += items);
        self.priority_levels.extend(round.priority_levels);
    }

    fn round(&self, arguments: &LaunchesArguments, directory: &Path) -> Result<Round> {
        let image = &arguments.image;
        read_file(image)?;
        match &self.source {
            Source::Ours(threads, decoding) => {
                let (threads, mode, readahead_kib) =
                    (*threads, decoding.mode(), arguments.readahead);
                let options = DaemonOptions { threads, mode, readahead_kib };
                let memory = MemoryPool::with_default_limit()?;
                let daemon = Box::new(Daemon::start(image, directory, options, &memory)?);
                let mount = MountInUse::Ours(daemon);
                let mut round = launch(&mount, directory)?;
                if let MountInUse::Ours(daemon) = mount {
                    (round.items, round.priority_levels) =
                        (daemon.items(), daemon.priority_levels());
                    daemon.end()?;
                }
                Ok(round)
            }
            Source::Peer(mounter) => {
                let log = tempfile::NamedTempFile::new()?;
                let mount = MountInUse::Peer(mounter.mount(image, directory, log.path())?);
                let round = launch(&mount, directory)?;
                if let MountInUse::Peer(mounted) = mount {
                    mounted.end()?;
                }
                Ok(round)
            }
        }
    }

    /// How the workers ran.
    fn workers(&self) -> String {
        let [items, unbound] = self.items;
        if items == 0 {
            return "nothing was left to workers: whoever answers the kernel decodes".to_owned();
        }
        let levels = self.priority_levels.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        format!(
            "workers reached {levels}; they ran {items} items, {unbound} of them on no CPU of their own"
        )
    }

    fn add_series(&self, report: &mut Report) {
        let case = match &self.source {
            Source::Ours(_, decoding) => decoding.title(),
            Source::Peer(mounter) => {
                let words = mounter.words(Path::new("IMAGE"), Path::new("DIR"));
                report.peer_command(self.source.name(), words);
                "peer"
            }
        };
        for ((figure, unit), samples) in FIGURES.iter().zip(&self.figures) {
            report.series(self.source.name(), format!("{case}, {figure}"), unit, samples);
        }
    }
}

fn launch(mount: &MountInUse, directory: &Path) -> Result<Round> {
    let mut launcher = Launcher::start(directory)?;
    let mut all = Duration::ZERO;
    for _ in 1..PROGRAMS.len() {
        all += launcher.launch()?;
    }
    let before = mount.look()?;
    let last = launcher.launch()?;
    let after = mount.look()?;
    let (awaited, prefetching): (&[&str], &[&str]) = match mount {
        MountInUse::Ours(_) => (&AWAITED, &PREFETCHING),
        MountInUse::Peer(_) => (&[""], &[]),
    };
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let steal = after.steal.since(before.steal);
    let figures = [
        after.delays.since(&before.delays, awaited),
        after.queued - before.queued,
        micros(last),
        micros(all + last),
        after.delays.since(&before.delays, prefetching),
        steal.percent(),
    ];
    Ok(Round { figures, steal, items: [0; 2], priority_levels: Vec::new() })
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

/// The tables, plots and remarks of one way of decoding.
fn add_tables(report: &mut Report, decoding: Decoding, columns: &[Column]) -> Result<()> {
    let columns: Vec<_> =
        columns.iter().filter(|column| column.source.belongs_to(decoding)).collect();
    for (place, what) in TABLES.into_iter().enumerate() {
        let shown = columns.iter().filter(|column| column.source.is_shown(place));
        let summary = |column: &&&Column| (column.source.name(), column.figures[place].summary());
        let summaries: Vec<_> = shown.clone().map(|column| summary(&column)).collect();
        let title = format!("{what}, {}", decoding.title());
        if place == QUEUED && summaries.iter().all(|(_, summary)| summary.maximum <= 0.0) {
            // LZ4 is left to the thread that reads.
            report.remark(format!("{title}: nothing was submitted"));
            continue;
        }
        if let [(_, unbound), _, (_, raised), ..] = summaries.as_slice() {
            // The subject of the mail is work that workers do.
            let is_claimed = place == RUN_DELAY && decoding == Decoding::Workers;
            judge(report, &title, [unbound, raised], [place < 2, is_claimed])?;
        }
        if place != QUEUED {
            let mut plot = Plot::cdf(title.clone(), "us").log_x();
            shown.for_each(|column| plot.samples(column.source.name(), &column.figures[place]));
            report.plot(plot);
        }
        report.table(table(&title, &summaries));
    }
    for column in columns.iter().filter(|column| column.source.is_ours()) {
        let (name, title) = (column.source.name(), decoding.title());
        report.remark(format!("{name}, {title}: {}", column.workers()));
    }
    Ok(())
}

fn table(title: &str, columns: &[(&'static str, Summary)]) -> Table {
    let mut header: Vec<_> = columns.iter().map(|(name, _)| *name).collect();
    header.insert(OURS.min(header.len()), "diff");
    let mut table = Table::new(title, &format!(" | {}", header.join(" | ")));
    let rows: Vec<_> = columns.iter().map(|(_, summary)| summary.rows()).collect();
    for (line, (name, _)) in Samples::default().summary().rows().iter().enumerate() {
        let values: Vec<f64> = rows.iter().map(|rows| rows[line].1).collect();
        let mut cells: Vec<_> = values.iter().map(|value| format!("{value:.0}")).collect();
        let difference = match values.as_slice() {
            [unbound, _, raised, ..] => difference_percent(*unbound, *raised),
            _ => f64::NAN,
        };
        cells.insert(OURS.min(cells.len()), format!("{difference:+.2} %"));
        cells.insert(0, (*name).to_owned());
        table.add(cells);
    }
    table
}

/// Remarks on the difference between unbound and raised, judged if the thresholds are for it, and claims.
fn judge(
    report: &mut Report,
    title: &str,
    [unbound, raised]: [&Summary; 2],
    [is_judged, is_claimed]: [bool; 2],
) -> Result<()> {
    let average = difference_percent(unbound.average, raised.average);
    let deviation = difference_percent(unbound.deviation, raised.deviation);
    let differences = [("average", average), ("deviation", deviation)];
    for (threshold, difference) in differences {
        let name = if threshold == "average" { "average" } else { "standard deviation" };
        let text = format!("{title}: {name} {difference:+.2} %");
        match is_judged {
            true => report.judged_remark(&text, threshold, &[difference])?,
            false => report.remark(text),
        }
        if is_claimed {
            let why = "see above which priority the workers reached";
            report.claim("000", threshold, &[difference], why)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{RunDelays, ThreadDelay, judge, table};
    use crate::report::Report;
    use crate::statistics::{Samples, Summary};

    fn of(values: [f64; 2]) -> Summary {
        Samples::from_iter(values).summary()
    }

    #[test]
    fn the_table_has_the_shape_of_the_mail_and_peers_follow() {
        let columns = [
            ("unbound", of([90.0, 110.0])),
            ("per-CPU", of([40.0, 60.0])),
            ("per-CPU raised", of([9.0, 11.0])),
            ("kernel", of([3.0, 5.0])),
        ];
        let text = table("t", &columns).to_string();
        assert!(text.contains("| per-CPU raised |     diff | kernel |"), "{text}");
        assert!(text.contains("|             10 | -90.00 % |      4 |"), "{text}");
    }

    #[test]
    fn thresholds_are_for_average_and_deviation() {
        let (unbound, raised) = (of([90.0, 110.0]), of([9.0, 11.0]));
        let said = |is_judged| {
            let mut report = Report::new("launches", &()).unwrap();
            judge(&mut report, "t", [&unbound, &raised], [is_judged, false]).unwrap();
            let mut text = Vec::new();
            report.print(&mut text).unwrap();
            String::from_utf8(text).unwrap()
        };
        let text = said(true);
        assert!(text.contains("average -90.00 % (threshold -80 %: met)"), "{text}");
        assert!(text.contains("deviation -90.00 % (threshold -95 %: NOT met)"), "{text}");
        assert!(!said(false).contains("threshold"));
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
