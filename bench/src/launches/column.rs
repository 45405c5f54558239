//! One column of the tables: what is mounted, and what it showed, a value a round.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use ferrofs_image::MemoryPool;

use super::daemon::{Daemon, Threads, Wish};
use super::launcher::Launcher;
use super::peer::Peer;
use super::programs::PROGRAMS;
use super::run_delay::RunDelays;
use super::{Decoding, read_into_page_cache};
use crate::arguments::LaunchesArguments;
use crate::report::{Report, Series};
use crate::statistics::Samples;
use crate::steal::{Loss, Steal};

/// Threads of a daemon of ours that somebody may wait for, by how their names begin.
const AWAITED: [&str; 2] = ["fuse-", "erofs_worker"];
/// Threads that get ready what nobody has asked for yet.
const AHEAD: [&str; 1] = ["prefetch"];

/// What is mounted.
#[derive(Debug)]
pub(super) enum System {
    Ours(Threads, Decoding),
    Kernel,
    Erofsfuse(PathBuf),
}

impl System {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Ours(threads, _) => threads.name(),
            Self::Kernel => "kernel",
            Self::Erofsfuse(_) => "erofsfuse",
        }
    }

    /// Whether it is a peer, or one of ours that decodes so.
    pub(super) fn belongs_to(&self, decoding: Decoding) -> bool {
        !matches!(self, Self::Ours(_, other) if *other != decoding)
    }

    fn case(&self) -> &'static str {
        match self {
            Self::Ours(_, decoding) => decoding.title(),
            Self::Kernel | Self::Erofsfuse(_) => "peer",
        }
    }

    fn mount<'a>(&self, arguments: &LaunchesArguments, directory: &'a Path) -> Result<Mount<'a>> {
        let image = &arguments.image;
        Ok(match self {
            Self::Ours(threads, decoding) => {
                let (mode, readahead_kib) = (decoding.mode(), arguments.readahead);
                let wish = Wish { threads: *threads, mode, readahead_kib };
                Mount::Ours(Box::new(Daemon::start(
                    image,
                    directory,
                    wish,
                    &MemoryPool::with_default_limit()?,
                )?))
            }
            Self::Kernel => Mount::Peer(Peer::kernel(image, directory)?),
            Self::Erofsfuse(program) => Mount::Peer(Peer::erofsfuse(program, image, directory)?),
        })
    }
}

/// A mount while it is measured.
enum Mount<'a> {
    Ours(Box<Daemon>),
    Peer(Peer<'a>),
}

impl Mount<'_> {
    /// What its threads have waited so far.
    fn moment(&self) -> Result<Moment> {
        let steal = Steal::now();
        Ok(match self {
            Self::Ours(daemon) => {
                let queued = daemon.queued_micros();
                Moment { delays: RunDelays::of("self")?, queued: Some(queued), steal }
            }
            Self::Peer(peer) => {
                let delays = peer.process().map(|process| RunDelays::of(&process.to_string()));
                Moment { delays: delays.transpose()?.unwrap_or_default(), queued: None, steal }
            }
        })
    }

    /// How names of threads begin: of those that are waited for, and of the others.
    fn names(&self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            Self::Ours(_) => (&AWAITED, &AHEAD),
            Self::Peer(_) => (&[""], &[]),
        }
    }
}

/// A look at a mount.
struct Moment {
    delays: RunDelays,
    queued: Option<f64>,
    steal: Steal,
}

/// What one round showed, in us.
pub(super) struct Round {
    last_launch: f64,
    all_launches: f64,
    delays: f64,
    delays_ahead: f64,
    queued: Option<f64>,
    /// What the host took in the last launch.
    pub(super) stolen: Loss,
    /// Items that workers ran, how many of them on no CPU of their own, and what priorities they reached.
    items: (u64, u64),
    rungs: Vec<String>,
}

/// What a mount showed, a value a round, in us.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) system: System,
    /// From fork to exit of the last program.
    pub(super) last_launches: Samples,
    /// The same of all of them, added up.
    pub(super) all_launches: Samples,
    /// How long threads that somebody may wait for were ready and did not run, in the last launch.
    pub(super) delays: Samples,
    /// The same of those that nobody waits for.
    delays_ahead: Samples,
    /// From submission to start of decode work, in the last launch.
    pub(super) queued: Samples,
    /// The part of the CPUs' time that the host took in the last launch, in percent.
    stolen: Samples,
    items: u64,
    unbound_items: u64,
    rungs: Vec<String>,
    /// How a peer was started.
    words: Vec<String>,
}

impl Column {
    pub(super) fn new(system: System) -> Self {
        Self {
            system,
            last_launches: Samples::default(),
            all_launches: Samples::default(),
            delays: Samples::default(),
            delays_ahead: Samples::default(),
            queued: Samples::default(),
            stolen: Samples::default(),
            items: 0,
            unbound_items: 0,
            rungs: Vec::new(),
            words: Vec::new(),
        }
    }

    /// A value of each kind.
    pub(super) fn add(&mut self, round: &Round) {
        self.last_launches.push(round.last_launch);
        self.all_launches.push(round.all_launches);
        self.delays.push(round.delays);
        self.delays_ahead.push(round.delays_ahead);
        self.stolen.push(round.stolen.percent());
        self.items += round.items.0;
        self.unbound_items += round.items.1;
        self.rungs.extend_from_slice(&round.rungs);
        self.rungs.sort();
        self.rungs.dedup();
        if let Some(queued) = round.queued {
            self.queued.push(queued);
        }
    }

    /// One round on a fresh mount.
    pub(super) fn round(
        &mut self,
        arguments: &LaunchesArguments,
        directory: &Path,
    ) -> Result<Round> {
        read_into_page_cache(&arguments.image)?;
        let mount = self.system.mount(arguments, directory)?;
        let mut round = launch(&mount, directory)?;
        match mount {
            Mount::Ours(daemon) => {
                (round.items, round.rungs) = (daemon.items(), daemon.rungs());
                daemon.end()?;
            }
            Mount::Peer(peer) => {
                self.words = peer.words().to_vec();
                peer.end()?;
            }
        }
        Ok(round)
    }

    /// That the workers were what the column says.
    pub(super) fn workers(&self) -> String {
        if self.items == 0 {
            return "nothing was left to workers: whoever answers the kernel decodes".to_owned();
        }
        format!(
            "workers reached {}; they ran {} items, {} of them on no CPU of their own",
            self.rungs.join(", "),
            self.items,
            self.unbound_items
        )
    }

    pub(super) fn add_series(&self, report: &mut Report) {
        if !self.words.is_empty() {
            report.add_peer_command(self.system.name(), self.words.clone());
        }
        let kinds = [
            ("last launch", "us", &self.last_launches),
            ("all launches", "us", &self.all_launches),
            ("run delay", "us", &self.delays),
            ("run delay of what reads ahead", "us", &self.delays_ahead),
            ("from submission to start", "us", &self.queued),
            ("taken by the host in the last launch", "%", &self.stolen),
        ];
        for (kind, unit, samples) in kinds {
            report.add_series(Series {
                row: self.system.name().to_owned(),
                case: format!("{}, {kind}", self.system.case()),
                unit,
                samples: samples.clone(),
            });
        }
    }
}

fn launch(mount: &Mount<'_>, directory: &Path) -> Result<Round> {
    let mut launcher = Launcher::start(directory)?;
    let mut all = Duration::ZERO;
    for _ in 1..PROGRAMS.len() {
        all += launcher.launch()?;
    }
    let before = mount.moment()?;
    let last = launcher.launch()?;
    let after = mount.moment()?;
    let (awaited, ahead) = mount.names();
    Ok(Round {
        last_launch: micros(last),
        all_launches: micros(all + last),
        delays: after.delays.since(&before.delays, awaited),
        delays_ahead: after.delays.since(&before.delays, ahead),
        queued: after.queued.zip(before.queued).map(|(after, before)| after - before),
        stolen: after.steal.since(before.steal),
        items: (0, 0),
        rungs: Vec::new(),
    })
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
