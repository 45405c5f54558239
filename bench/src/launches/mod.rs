//! The launches experiment: real programs started from a mount beside CPU hogs, with the daemon's threads bound to no
//! CPU, bound, and bound and raised. In each round each kind of mount is made anew, so that nothing of it is in the page
//! cache (the image is); 16 programs are started, and the last one is measured. As in the seed's table, a sample of the
//! scheduling latency is the sum over one launch.

mod daemon;
mod launcher;
mod peer;
mod programs;
mod run_delay;

use std::io::{Write, copy, sink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use ferrofs_image::SyncDecompress;
use ferrofs_workers::cpus::Granted;
use serde::Serialize;

use crate::arguments::LaunchesArguments;
use crate::hogs::Hogs;
use crate::report::{Report, Series, held};
use crate::statistics::{Samples, Summary, difference_percent};
use crate::table::Table;
use daemon::{Daemon, Threads};
use launcher::Launcher;
pub(crate) use launcher::{LauncherArguments, launch_all};
use peer::Peer;
use programs::PROGRAMS;
use run_delay::RunDelays;

/// Rounds of a quick run.
const QUICK_ITERATIONS: u16 = 2;
/// What the seeds say of the average and of the deviation beside hogs, in per cent.
const AVERAGE_MARK: f64 = -80.0;
const DEVIATION_MARK: f64 = -95.0;
/// Threads of a daemon of ours that somebody may wait for, by how their names begin.
const AWAITED: [&str; 2] = ["fuse-", "erofs_worker"];
/// Threads that get ready what nobody has asked for yet.
const AHEAD: [&str; 1] = ["erofs_push"];

/// Who decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Decoding {
    /// Workers, always: the seed's subject
    Workers,
    /// As a mount has it: whoever answers the kernel, with the help of workers
    Default,
}

impl Decoding {
    pub(crate) const ALL: [Self; 2] = [Self::Workers, Self::Default];

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

/// What is mounted.
#[derive(Debug, Clone)]
enum System {
    Ours(Threads, Decoding),
    Kernel,
    Erofsfuse(PathBuf),
}

/// What a mount showed, a value a round.
#[derive(Debug)]
struct Column {
    system: System,
    /// From fork to exit of the last program.
    launches: Samples,
    /// The same of all of them, added up.
    all_launches: Samples,
    /// How long threads that somebody may wait for were ready and did not run, in the last launch.
    delays: Samples,
    /// The same of those that nobody waits for.
    delays_ahead: Samples,
    /// From submission to start of decode work, in the last launch.
    queued: Samples,
    items: u64,
    unbound_items: u64,
    rungs: Vec<String>,
}

/// Runs the experiment.
///
/// # Errors
/// Without root or FUSE, or when the image lacks a program.
pub(crate) fn run(
    arguments: &LaunchesArguments,
    is_quick: bool,
    out: &mut dyn Write,
) -> Result<Report> {
    ensure!(rustix::process::geteuid().is_root(), "to make a mount the root of others needs root");
    let mut report = Report::new("launches", arguments)?;
    let most = if is_quick { QUICK_ITERATIONS } else { u16::MAX };
    let mut columns = columns(arguments);
    let directory = Directory::make()?;
    let _hogs = Hogs::start(Granted::read().cpus(), arguments.hogs.into())?;
    let rounds = arguments.iterations.min(most);
    writeln!(out, "beside {} hogs a CPU, {rounds} rounds", arguments.hogs)?;
    for round in 0..rounds {
        // Whoever is first in a round differs from round to round.
        let count = columns.len();
        columns.rotate_left(usize::from(round > 0) % count);
        for column in &mut columns {
            read_into_page_cache(&arguments.image)?;
            column.measure(&arguments.image, &directory.0)?;
        }
    }
    columns.sort_by_key(|column| column.system.place());
    for decoding in &arguments.decoding {
        add_tables(&mut report, *decoding, &columns)?;
    }
    columns.iter().for_each(|column| column.add_series(&mut report));
    Ok(report)
}

fn columns(arguments: &LaunchesArguments) -> Vec<Column> {
    let ours = arguments.decoding.iter().flat_map(|decoding| {
        Threads::ALL.into_iter().map(|threads| System::Ours(threads, *decoding))
    });
    let peers = arguments.peers.iter();
    let peers = peers.flat_map(|folder| [System::Kernel, System::Erofsfuse(folder.join("erofsfuse"))]);
    ours.chain(peers).map(Column::new).collect()
}

fn read_into_page_cache(image: &Path) -> Result<()> {
    let what = || format!("reading {}", image.display());
    let mut file = std::fs::File::open(image).with_context(what)?;
    copy(&mut file, &mut sink()).with_context(what)?;
    Ok(())
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// A directory to mount on, which goes at the end.
#[derive(Debug)]
struct Directory(PathBuf);

impl Directory {
    fn make() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("ferrofs-launches-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir(&self.0) {
            writeln!(std::io::stderr(), "{} is left: {error}", self.0.display()).unwrap_or_default();
        }
    }
}

impl System {
    fn name(&self) -> &'static str {
        match self {
            Self::Ours(threads, _) => threads.name(),
            Self::Kernel => "kernel",
            Self::Erofsfuse(_) => "erofsfuse",
        }
    }

    fn case(&self) -> &'static str {
        match self {
            Self::Ours(_, decoding) => decoding.title(),
            Self::Kernel | Self::Erofsfuse(_) => "peer",
        }
    }

    /// The order of the tables.
    fn place(&self) -> (u8, &'static str, Option<usize>) {
        match self {
            Self::Ours(threads, decoding) => {
                (0, decoding.title(), Threads::ALL.iter().position(|one| one == threads))
            }
            Self::Kernel => (1, "", None),
            Self::Erofsfuse(_) => (2, "", None),
        }
    }
}

impl Column {
    fn new(system: System) -> Self {
        Self {
            system,
            launches: Samples::default(),
            all_launches: Samples::default(),
            delays: Samples::default(),
            delays_ahead: Samples::default(),
            queued: Samples::default(),
            items: 0,
            unbound_items: 0,
            rungs: Vec::new(),
        }
    }

    /// One round on a fresh mount.
    fn measure(&mut self, image: &Path, directory: &Path) -> Result<()> {
        match self.system.clone() {
            System::Ours(threads, decoding) => {
                let daemon = Daemon::start(image, directory, threads, decoding.mode())?;
                let mut before = 0.0;
                self.launch(directory, "self", (&AWAITED, &AHEAD), || before = daemon.queued_micros())?;
                self.queued.push(daemon.queued_micros() - before);
                let (items, unbound) = daemon.items();
                self.items += items;
                self.unbound_items += unbound;
                self.rungs.extend(daemon.rungs());
                self.rungs.sort();
                self.rungs.dedup();
                daemon.end()
            }
            System::Kernel => {
                let peer = Peer::kernel(image, directory)?;
                let threads: [&str; 0] = [];
                self.launch(directory, "self", (&threads, &threads), || ())?;
                peer.end()
            }
            System::Erofsfuse(program) => {
                let peer = Peer::erofsfuse(&program, image, directory)?;
                let process = peer.process().context("erofsfuse without a process")?.to_string();
                self.launch(directory, &process, (&[""], &[]), || ())?;
                peer.end()
            }
        }
    }

    /// Starts all programs; `begins` is called before the last one. `names` are those of threads that are waited for,
    /// and of the others.
    fn launch(
        &mut self,
        directory: &Path,
        process: &str,
        (awaited, ahead): (&[&str], &[&str]),
        begins: impl FnOnce(),
    ) -> Result<()> {
        let mut launcher = Launcher::start(directory)?;
        let mut all = Duration::ZERO;
        for _ in 1..PROGRAMS.len() {
            all += launcher.launch()?;
        }
        begins();
        let before = RunDelays::of(process)?;
        let last = launcher.launch()?;
        let after = RunDelays::of(process)?;
        self.launches.push(micros(last));
        self.all_launches.push(micros(all + last));
        self.delays.push(after.since(&before, awaited));
        self.delays_ahead.push(after.since(&before, ahead));
        Ok(())
    }

    fn add_series(&self, report: &mut Report) {
        let kinds = [
            ("last launch", &self.launches),
            ("all launches", &self.all_launches),
            ("run delay", &self.delays),
            ("run delay of what reads ahead", &self.delays_ahead),
            ("from submission to start", &self.queued),
        ];
        for (kind, samples) in kinds {
            report.add_series(Series {
                row: self.system.name().to_owned(),
                case: format!("{}, {kind}", self.system.case()),
                unit: "us",
                samples: samples.clone(),
            });
        }
    }
}

/// The tables of one way of decoding, and whether the marks were met.
fn add_tables(report: &mut Report, decoding: Decoding, columns: &[Column]) -> Result<()> {
    let is_ours = |column: &&Column| matches!(column.system, System::Ours(_, of) if of == decoding);
    let ours: Vec<&Column> = columns.iter().filter(is_ours).collect();
    let is_peer = |column: &&Column| !matches!(column.system, System::Ours(..));
    let peers: Vec<&Column> = columns.iter().filter(is_peer).collect();
    let title = decoding.title();
    let with_peers = [ours.clone(), peers.clone()].concat();
    let with_erofsfuse: Vec<&Column> = with_peers
        .iter()
        .copied()
        .filter(|column| !matches!(column.system, System::Kernel))
        .collect();
    let tables: [(&str, &[&Column], fn(&Column) -> &Samples); 4] = [
        ("Scheduling latency of the daemon's threads", &with_erofsfuse, |column| &column.delays),
        ("From submission to start of decode work", &ours, |column| &column.queued),
        ("The last launch", &with_peers, |column| &column.launches),
        ("All 16 launches", &with_peers, |column| &column.all_launches),
    ];
    for (what, columns, samples) in tables {
        let columns: Vec<_> =
            columns.iter().map(|column| (column.system.name(), samples(column).summary())).collect();
        report.add_table(table(format!("{what}, {title}"), &columns)?);
        if let [(_, unbound), _, (_, raised), ..] = columns.as_slice() {
            report.add_remark(format!("{what}, {title}: {}", judged(unbound, raised)));
        }
    }
    for column in ours {
        report.add_remark(format!(
            "{}, {title}: workers reached {}; they ran {} items, {} of them on no CPU of their own",
            column.system.name(),
            column.rungs.join(", "),
            column.items,
            column.unbound_items
        ));
    }
    Ok(())
}

/// The seed's table: the first three columns are ours.
fn table(title: String, columns: &[(&'static str, Summary)]) -> Result<Table> {
    let names = columns.iter().map(|(name, _)| *name);
    let (ours, peers): (Vec<_>, Vec<_>) = names.enumerate().partition(|(place, _)| *place < 3);
    let header = [""].into_iter().chain(ours.iter().map(|(_, name)| *name)).chain(["diff"]);
    let mut table = Table::new(title, header.chain(peers.iter().map(|(_, name)| *name)));
    let lines: Vec<_> = columns.iter().map(|(_, summary)| summary.lines()).collect();
    for (line, (name, _)) in Samples::default().summary().lines().iter().enumerate() {
        let values: Vec<f64> =
            lines.iter().filter_map(|lines| Some(lines.get(line)?.1)).collect();
        let [unbound, _, raised, ..] = values.as_slice() else { continue };
        let shown = |value: &f64| format!("{value:.0}");
        let mut cells = vec![(*name).to_owned()];
        cells.extend(values.iter().take(3).map(shown));
        cells.push(format!("{:+.2} %", difference_percent(*unbound, *raised)));
        cells.extend(values.iter().skip(3).map(shown));
        table.add(cells);
    }
    Ok(table)
}

/// Which marks the difference meets.
fn judged(unbound: &Summary, raised: &Summary) -> String {
    let average = difference_percent(unbound.average, raised.average);
    let deviation = difference_percent(unbound.deviation, raised.deviation);
    format!(
        "average {average:+.2} % (mark {AVERAGE_MARK} %: {}), standard deviation {deviation:+.2} % \
         (mark {DEVIATION_MARK} %: {})",
        held(average <= AVERAGE_MARK),
        held(deviation <= DEVIATION_MARK)
    )
}

#[cfg(test)]
mod tests {
    use super::{judged, table};
    use crate::statistics::Samples;

    #[test]
    fn the_table_has_the_shape_of_the_seed_and_peers_stand_behind_it() {
        let of = |values: [f64; 2]| Samples::from_iter(values).summary();
        let columns = [
            ("unbound", of([90.0, 110.0])),
            ("per-CPU", of([40.0, 60.0])),
            ("per-CPU raised", of([9.0, 11.0])),
            ("kernel", of([3.0, 5.0])),
        ];
        let text = table("t".to_owned(), &columns).unwrap().to_string();
        assert!(text.contains("| per-CPU raised |     diff | kernel |"), "{text}");
        assert!(text.contains("-90.00 % |      4 |"), "{text}");
    }

    #[test]
    fn a_mark_is_judged_by_average_and_deviation() {
        let of = |values: [f64; 2]| Samples::from_iter(values).summary();
        let text = judged(&of([90.0, 110.0]), &of([9.0, 11.0]));
        assert!(text.contains("average -90.00 % (mark -80 %: held)"), "{text}");
        assert!(text.contains("deviation -90.00 % (mark -95 %: NOT held)"), "{text}");
    }
}
