//! Experiments that start programs from a mount. In each round each kind of mount is made anew, so that nothing of it is in the
//! page cache (the image is); 16 programs are started, and the last one is measured.
//!
//! `launches` does so beside load generators, with the daemon's threads unbound, bound, and bound and raised; as in the
//! original mail's table, a sample of the scheduling latency is the sum over one launch. `page-pool` does so in a memory
//! cgroup at its limit, with larger and smaller reserves for decoding; a sample is the time that the last launch spent in
//! getting memory from the system, as in the original mail's table.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use ferrofs_image::{MemoryPool, SyncDecompress};
use ferrofs_workers::cpus::AvailableCpus;
use procfs::process::{Process, Task};

use crate::cgroup::FullGroup;
use crate::child::{name_of, start_load};
use crate::daemon::{Daemon, Launcher, ThreadPolicy, listeners, mount_folder};
use crate::experiment::{Candidate, Context, Experiment, OURS, RoundOptions};
use crate::machine::{Requirement, files};
use crate::mounted::{Mounter, System};
use crate::programs::ProgramArguments;
use crate::statistics::{Figures, Measured, Statistic, find, only};
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

#[derive(Debug, Clone, Args)]
pub(crate) struct LaunchesArguments {
    /// An image of a Debian system with perl, git, gcc and python3
    image: PathBuf,
    /// Number of load generators on each CPU, with nice value 0
    #[arg(long, value_name = "N", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=64))]
    load: u16,
    /// Also measure launches from mounts of erofsfuse and of the kernel's EROFS; DIR must contain
    /// erofsfuse
    #[arg(long, value_name = "DIR")]
    peers: Option<PathBuf>,
    #[command(flatten)]
    rounds: RoundOptions,
}

impl Experiment for LaunchesArguments {
    fn requirements(&self) -> Vec<Requirement> {
        vec![Requirement::File(self.image.clone())]
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let mounts = self.mounts()?;
        let directory = mount_folder()?;
        let _load = start_load(AvailableCpus::read().cpus(), self.load.into())?;
        context.plan(self.rounds, 1);
        let candidates = mounts.iter().map(|mount| {
            let round = || mount.round(&self.image, directory.path());
            let program = if mount.decoding.is_empty() { &mount.name } else { OURS };
            Candidate::of(program, mount.name(), round)
        });
        let case = format!("beside {} load generators a CPU", self.load);
        let all = context.measure(&case, candidates.collect())?;
        for (_, decoding) in DECODING {
            // A peer that failed was left out.
            let columns = mounts.iter().filter(|mount| [decoding, ""].contains(&mount.decoding));
            let columns = columns.filter_map(|mount| {
                let one = find(&all, &mount.name())?;
                Some(Measured { name: mount.name.clone(), ..one.clone() })
            });
            let columns: Vec<Measured> = columns.collect();
            // The subject of the mail is work that workers do.
            context.report.evaluate_all(decoding, &[decoding], &columns);
            for (table, figure) in TABLES {
                let only = only(&columns, figure);
                let is_zero = |one: &Measured| one.samples(figure).number(Statistic::Most) <= 0.0;
                if figure == QUEUED && only.iter().all(is_zero) {
                    // LZ4 is left to the thread that reads.
                    context.report.remark(format!("{figure}, {decoding}: nothing was submitted"));
                } else {
                    context.report.add(table, decoding, decoding, &only)?;
                }
            }
        }
        for mount in &mounts {
            match &mount.source {
                Source::Ours(..) => {
                    let ([items, unbound], levels) = mount.workers.take();
                    let levels = levels.into_iter().collect::<Vec<_>>().join(", ");
                    let seen = match items {
                        0 => "nothing was left to workers: whoever answers the kernel decodes"
                            .to_owned(),
                        _ => format!(
                            "workers reached {levels}; they ran {items} items, {unbound} of them on no CPU of their own"
                        ),
                    };
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
        let mount = |name: &str, decoding, source| {
            let (name, workers) = (name.to_owned(), RefCell::default());
            LaunchMount { name, decoding, source, workers }
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
                mounts.push(mount(&name_of(&system), "", Source::Peer(mounter)));
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

/// A kind of mount, made anew in each round.
#[derive(Debug)]
struct LaunchMount {
    /// Of its column.
    name: String,
    /// The way of decoding, in whose tables it has a column; empty: in all.
    decoding: &'static str,
    source: Source,
    /// Of all rounds: items that its workers ran, how many of them on no CPU of their own, and their priority levels.
    workers: RefCell<([u64; 2], BTreeSet<String>)>,
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
                let observe = || Ok((RunDelays::of(&own)?, Some(daemon.queued_micros())));
                let figures = launch(directory, &observe, &AWAITED)?;
                let (sums, levels) = &mut *self.workers.borrow_mut();
                sums.iter_mut().zip(daemon.items()).for_each(|(sum, items)| *sum += items);
                levels.extend(daemon.priority_levels());
                daemon.end()?;
                Ok(figures)
            }
            Source::Peer(mounter) => {
                let log = tempfile::NamedTempFile::new()?;
                let mounted = mounter.mount(image, directory, log.path())?;
                let process = mounted.daemon()?;
                let observe = || {
                    let delays = process.as_ref().map(RunDelays::of).transpose()?;
                    Ok((delays.unwrap_or_default(), None))
                };
                let mut figures = launch(directory, &observe, &[""])?;
                // The kernel has no daemon.
                figures.retain(|(figure, _)| process.is_some() || *figure != RUN_DELAY);
                mounted.end()?;
                Ok(figures)
            }
        }
    }
}

/// The run delays of a daemon, and how long all of its work was queued, in us.
type Observer<'a> = &'a dyn Fn() -> Result<(RunDelays, Option<f64>)>;

/// Starts all programs; the daemon is looked at before and after the last one.
fn launch(directory: &Path, observe: Observer<'_>, awaited: &[&str]) -> Result<Figures> {
    let mut launcher = Launcher::start(directory)?;
    let all = launcher.launch_most(|| Ok(()))?;
    let (before, queued_before) = observe()?;
    let last = launcher.launch()?;
    let (after, queued) = observe()?;
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

#[derive(Debug, Clone, Args)]
pub(crate) struct PagePoolArguments {
    /// Images of a Debian system with perl, git, gcc and python3, such as one with an LZ4 window
    /// (--max-distance of `ferrofs build`) of 64 KiB and one with 16 KiB
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<PathBuf>,
    #[command(flatten)]
    rounds: RoundOptions,
}

impl Experiment for PagePoolArguments {
    fn requirements(&self) -> Vec<Requirement> {
        files(&self.images)
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        context.plan(self.rounds, 1);
        let rounds = context.schedule.rounds;
        context.say(format!(
            "{rounds} rounds in a group of {} MiB, a mount with {} MiB of its own",
            LIMIT_BYTES >> 20,
            MOUNT_BYTES >> 20
        ))?;
        let group = FullGroup::enter(LIMIT_BYTES, BALLAST_BYTES)?;
        let folder = mount_folder()?;
        let (full, directory) = (&group, folder.path());
        let candidates = self.images.iter().flat_map(|image| {
            let name = image.file_stem().unwrap_or_default().to_string_lossy();
            RESERVES.map(|reserve| {
                let run = move || launch_in(full, image, reserve, directory);
                Candidate::ours(format!("{name}, {reserve} pages"), run)
            })
        });
        let mut all = context.measure("launches in the group", candidates.collect())?;
        group.fill()?;
        let [_, limit_hits] = group.end()?;
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
        context.report.evaluate_all("", &[], &first);
        context.report.remark(format!("the limit was reached {limit_hits} times"));
        Ok(())
    }
}

fn launch_in(group: &FullGroup, image: &Path, reserve: u32, directory: &Path) -> Result<Figures> {
    read_in(image)?;
    let memory = MemoryPool::with_reserve(MOUNT_BYTES, reserve, listeners())
        .with_context(|| format!("a reserve of {reserve} pages"))?;
    let (threads, mode) = (ThreadPolicy::Raised, SyncDecompress::Auto);
    let daemon = Daemon::start(image, directory, threads, mode, &memory)?;
    let mut launcher = Launcher::start(directory)?;
    // A mount that has come takes pages along.
    group.fill()?;
    launcher.launch_most(|| group.refill())?;
    group.refill()?;
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
        (LAST, last.as_secs_f64() * 1e3),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

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
