//! The launches experiment: programs started from a mount beside load generators, with the daemon's threads unbound, bound,
//! and bound and raised. In each round each kind of mount is made anew, so that nothing of it is in the page cache (the
//! image is); 16 programs are started, and the last one is measured. As in the original mail's table, a sample of the
//! scheduling latency is the sum over one launch.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use ferrofs_image::{MemoryPool, SyncDecompress};
use ferrofs_workers::cpus::AvailableCpus;
use procfs::process::{Process, Task};

use crate::child::start_load;
use crate::daemon::{Daemon, Launcher, ThreadPolicy, mount_folder};
use crate::experiment::{Candidate, Context, Experiment, RoundOptions};
use crate::machine::Requirement;
use crate::mounted::{Mounter, System};
use crate::programs::ProgramArguments;
use crate::statistics::{Figures, Measured, Statistic};
use crate::trees::read_in;

/// Threads of our daemon that somebody may wait for, by how their names begin.
const AWAITED: [&str; 2] = ["fuse-", "erofs_worker"];
/// The figures of a round.
const RUN_DELAY: &str = "run delay";
const QUEUED: &str = "from submission to start";
const LAST: &str = "last launch";
const ALL: &str = "all launches";
/// The tables of the case, and what they are of.
const TABLES: [(&str, &str); 4] =
    [("delay", RUN_DELAY), ("queued", QUEUED), ("last", LAST), ("all", ALL)];

const POLICIES: [(ThreadPolicy, &str); 3] = [
    (ThreadPolicy::Unbound, "unbound"),
    (ThreadPolicy::PerCpu, "per-CPU"),
    (ThreadPolicy::Raised, "per-CPU raised"),
];
/// The threads that decode: workers, always, the subject of the original mail; and whoever answers the kernel, with the help
/// of workers.
const DECODING: [(SyncDecompress, &str); 2] =
    [(SyncDecompress::ForceOff, "workers decode"), (SyncDecompress::Auto, "the default")];

#[derive(Debug, Clone, Args)]
pub(crate) struct LaunchesArguments {
    /// An image of a Debian system with perl, git, gcc and python3
    image: PathBuf,
    /// Load generators on each CPU, at nice 0
    #[arg(long, value_name = "N", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=64))]
    load: u16,
    /// Folder with erofsfuse: launches from it, and from the kernel's EROFS, stand beside ours
    #[arg(long, value_name = "DIR")]
    peers: Option<PathBuf>,
    #[command(flatten)]
    rounds: RoundOptions,
}

impl Experiment for LaunchesArguments {
    fn requirements(&self) -> Vec<Requirement<'_>> {
        let mut all = vec![Requirement::Root, Requirement::Fuse, Requirement::File(&self.image)];
        all.extend(self.peers.iter().map(|_| Requirement::KernelErofs));
        all
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let mounts = self.mounts()?;
        let directory = mount_folder()?;
        let _load = start_load(AvailableCpus::read().cpus(), self.load.into())?;
        context.plan(self.rounds, 1);
        let candidates = mounts.iter().map(|mount| {
            let round = || mount.round(&self.image, directory.path());
            match mount.source {
                Source::Ours(..) => Candidate::ours(mount.name(), round),
                Source::Peer(_) => Candidate::peer(mount.name(), round),
            }
        });
        let case = format!("beside {} load generators a CPU", self.load);
        let all = context.measure(&case, candidates.collect())?;
        for (_, decoding) in DECODING {
            add_tables(context, decoding, &mounts, &all)?;
        }
        for mount in &mounts {
            match &mount.source {
                Source::Ours(..) => {
                    let seen = mount.workers.borrow().text();
                    context.report.remark(format!("{}: {seen}", mount.name()));
                }
                Source::Peer(mounter) => {
                    let words = mounter.words(Path::new("IMAGE"), Path::new("DIR"));
                    context.report.peer_command(mount.name(), words);
                }
            }
        }
        Ok(())
    }
}

impl LaunchesArguments {
    fn mounts(&self) -> Result<Vec<LaunchMount>> {
        let mount = |name, decoding, source| LaunchMount {
            name,
            decoding,
            source,
            workers: RefCell::default(),
        };
        let ways = DECODING.into_iter().flat_map(|(mode, decoding)| {
            POLICIES.map(|(threads, name)| mount(name, decoding, Source::Ours(threads, mode)))
        });
        let mut mounts: Vec<_> = ways.collect();
        if self.peers.is_some() {
            let programs = ProgramArguments { ferrofs: None, peers: self.peers.clone() };
            for system in [System::Kernel, System::Erofsfuse] {
                // Git needs a /dev/null that works.
                let options = ["-o", "dev"].map(str::to_owned).into();
                let mounter = Mounter { options, ..system.find(&programs)? };
                mounts.push(mount(system.name(), "", Source::Peer(mounter)));
            }
        }
        Ok(mounts)
    }
}

/// What is mounted.
#[derive(Debug)]
enum Source {
    Ours(ThreadPolicy, SyncDecompress),
    Peer(Mounter),
}

/// What the workers of a mount did in all rounds.
#[derive(Debug, Default)]
struct WorkersSeen {
    /// Items that they ran, and how many of them on no CPU of their own.
    items: [u64; 2],
    priority_levels: BTreeSet<String>,
}

impl WorkersSeen {
    fn text(&self) -> String {
        let [items, unbound] = self.items;
        if items == 0 {
            return "nothing was left to workers: whoever answers the kernel decodes".to_owned();
        }
        let levels = self.priority_levels.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        format!(
            "workers reached {levels}; they ran {items} items, {unbound} of them on no CPU of their own"
        )
    }
}

/// A kind of mount, made anew in each round.
#[derive(Debug)]
struct LaunchMount {
    /// Of its column.
    name: &'static str,
    /// The way of decoding, in whose tables it has a column; empty: in all.
    decoding: &'static str,
    source: Source,
    workers: RefCell<WorkersSeen>,
}

impl LaunchMount {
    fn name(&self) -> String {
        format!("{}, {}", self.name, self.decoding).trim_end_matches(", ").to_owned()
    }

    fn round(&self, image: &Path, directory: &Path) -> Result<Figures> {
        read_in(image)?;
        match &self.source {
            Source::Ours(threads, mode) => {
                let memory = MemoryPool::with_default_limit()?;
                let daemon = Daemon::start(image, directory, *threads, *mode, &memory)?;
                let own = Process::myself()?;
                let look = || Ok((RunDelays::of(&own)?, Some(daemon.queued_micros())));
                let figures = launch(directory, &look, &AWAITED)?;
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
                let process = mounted.daemon()?;
                let look = || {
                    let delays = process.as_ref().map(RunDelays::of).transpose()?;
                    Ok((delays.unwrap_or_default(), None))
                };
                let mut figures = launch(directory, &look, &[""])?;
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
fn launch(directory: &Path, look: Look<'_>, awaited: &[&str]) -> Result<Figures> {
    let mut launcher = Launcher::start(directory)?;
    let all = launcher.launch_most(|| Ok(()))?;
    let (before, queued_before) = look()?;
    let last = launcher.launch()?;
    let (after, queued) = look()?;
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let figures = [
        (RUN_DELAY, after.since(&before, awaited)),
        (LAST, micros(last)),
        (ALL, micros(all + last)),
    ];
    let queued = queued.zip(queued_before).map(|(after, before)| (QUEUED, after - before));
    Ok(figures.into_iter().chain(queued).collect())
}

/// How long the threads of a process were ready to run and did not, by thread, in nanoseconds and with the thread's name. The
/// mail calls it scheduling latency.
#[derive(Debug, Default)]
struct RunDelays(HashMap<i32, (String, u64)>);

impl RunDelays {
    fn of(process: &Process) -> Result<Self> {
        // A thread may end meanwhile.
        let of = |task: Task| {
            Some((task.tid, (task.stat().ok()?.comm, task.schedstat().ok()?.run_delay)))
        };
        Ok(Self(process.tasks()?.filter_map(|task| of(task.ok()?)).collect()))
    }

    /// The delay since `before` of threads whose names begin so, in us.
    fn since(&self, before: &Self, prefixes: &[&str]) -> f64 {
        let is_meant = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix));
        let meant = self.0.iter().filter(|(_, (name, _))| is_meant(name));
        let delays = meant.map(|(id, (_, now))| {
            now.saturating_sub(before.0.get(id).map_or(0, |(_, earlier)| *earlier))
        });
        delays.sum::<u64>() as f64 / 1000.0
    }
}

/// The tables, plots and claims of one way of decoding.
fn add_tables(
    context: &mut Context<'_>,
    decoding: &'static str,
    mounts: &[LaunchMount],
    all: &[Measured],
) -> Result<()> {
    // A peer that failed was left out.
    let columns = mounts.iter().filter(|mount| [decoding, ""].contains(&mount.decoding));
    let columns = columns.filter_map(|mount| {
        let one = all.iter().find(|one| one.name == mount.name())?;
        Some(Measured { name: mount.name.to_owned(), ..one.clone() })
    });
    let columns: Vec<Measured> = columns.collect();
    // The subject of the mail is work that workers do.
    context.report.judge_all(decoding, &[decoding], &columns);
    for (table, figure) in TABLES {
        let only = columns.iter().map(|one| {
            let (name, mut figures) = (one.name.clone(), one.figures.clone());
            figures.retain(|(name, _)| name == figure);
            Measured { name, figures }
        });
        let mut only: Vec<Measured> = only.collect();
        only.retain(|one| !one.figures.is_empty());
        let is_nothing = |one: &Measured| one.samples(figure).number(Statistic::Most) <= 0.0;
        if figure == QUEUED && only.iter().all(is_nothing) {
            // LZ4 is left to the thread that reads.
            context.report.remark(format!("{figure}, {decoding}: nothing was submitted"));
            continue;
        }
        context.report.add(table, decoding, decoding, &only)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use procfs::process::Process;

    use super::RunDelays;

    #[test]
    fn threads_are_told_by_their_names_and_new_ones_count_from_their_start() {
        let delays = |threads: &[(i32, &str, u64)]| {
            let of = threads.iter().map(|&(id, name, ns)| (id, (name.to_owned(), ns)));
            RunDelays(of.collect())
        };
        let before = delays(&[(1, "fuse-0", 5_000), (2, "bench", 1_000)]);
        let after = delays(&[(1, "fuse-0", 7_000), (2, "bench", 90_000), (3, "fuse-1", 500)]);
        for (prefix, micros) in [("fuse-", 2.5), ("", 91.5), ("erofs_", 0.0)] {
            assert_eq!(after.since(&before, &[prefix]), micros, "{prefix}");
        }
        assert!(!RunDelays::of(&Process::myself().unwrap()).unwrap().0.is_empty());
    }
}
