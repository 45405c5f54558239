//! The pool of per-CPU workers as its users see it: submit, look at it, end it.

use std::time::Instant;

use super::hotplug::{self, Patience};
use super::inbox::Refused;
use super::plan;
use super::roster::Roster;
use super::settings::Settings;
use super::slot::Slot;
use super::snapshot::Snapshot;
use crate::contained::Outcome;
use crate::counters::Counter;
use crate::cpus::{self, CpuSet};
use crate::line::Line;
use crate::priority::Wanted;
use crate::sync::{
    Arc, AtomicBool, AtomicU32, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, lock,
};
use crate::unbound::{self, Placed, Starter, UnboundPool, Work};

/// Where submitted work went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Went {
    /// To the worker of this CPU.
    Cpu(usize),
    /// To a thread that is bound to no CPU, because the submitter's has no worker.
    Fallback,
    /// Nowhere: it has run on the submitter, before `submit` returned. The submitter is a worker
    /// itself, or too much waits already, or there is no thread to be had.
    Inline,
}

/// One worker for every granted CPU, and a fallback.
///
/// No thread exists before the first use. Work runs on the CPU on which it was submitted, and exactly
/// once, whatever happens to that CPU: it owns all that it touches, and a panic in it ends with it.
/// A worker that cannot be had is no error: its CPU's work goes to the fallback.
///
/// Dropping the pool runs everything that was submitted and ends its threads. Dropped by an item that
/// runs on one of those threads, the pool does not wait for that: they end by themselves.
#[derive(Debug)]
pub struct PerCpuPool {
    shared: Arc<Shared>,
}

/// What workers, submitters and the fallback share. It lives until the last of them lets go.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) name: String,
    pub(super) priority: Wanted,
    pub(super) cpus: Option<CpuSet>,
    pub(super) starter: Starter,
    /// Indexed by CPU.
    pub(super) slots: Box<[Slot]>,
    /// Indexed by CPU: whose worker takes its work.
    pub(super) routes: Box<[AtomicU32]>,
    pub(super) is_begun: AtomicBool,
    pub(super) epoch: Instant,
    pub(super) fallback: UnboundPool,
    /// Milliseconds from `epoch` to the last look at the system.
    pub(super) looked_ms: AtomicU64,
    /// Whether the workers are not what is wanted.
    pub(super) wants_refresh: AtomicBool,
    pub(super) roster: Mutex<Roster>,
    /// A worker has come or gone.
    pub(super) moved: Condvar,
    pub(super) counts: Line<Counts>,
}

/// What submitters and the roster count. None of it happens when work goes to its CPU.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) fallback: Counter,
    pub(super) full: Counter,
    pub(super) inline_panics: Counter,
    pub(super) handed_over: Counter,
    pub(super) refreshes: Counter,
    pub(super) rebound: Counter,
    pub(super) refused_threads: Counter,
}

impl PerCpuPool {
    /// A pool without threads.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let Settings { name, priority, cpus, starter } = settings;
        let granted = hotplug::granted();
        let mut unbound = unbound::Settings::new(&name).threads_max(granted.parallelism());
        unbound.starter = starter.clone();
        let numbers = plan::cpu_numbers(&granted);
        let itself = |cpu| AtomicU32::new(u32::try_from(cpu).unwrap_or(u32::MAX));
        let shared = Shared {
            name,
            priority,
            cpus,
            starter,
            slots: (0..numbers).map(|_| Slot::new()).collect(),
            routes: (0..numbers).map(itself).collect(),
            is_begun: AtomicBool::new(false),
            epoch: Instant::now(),
            fallback: UnboundPool::new(unbound),
            looked_ms: AtomicU64::new(0),
            wants_refresh: AtomicBool::new(false),
            roster: Mutex::new(Roster::default()),
            moved: Condvar::new(),
            counts: Line::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Has `work` run by the worker of the CPU on which the caller is. It never fails, and waits for
    /// nothing but the start of the workers at first use; but the work may run on the caller before
    /// this returns, so hold no lock that it takes. What [`Went`] says is where it went.
    ///
    /// From an item of this pool it runs inside of that item.
    pub fn submit(&self, work: impl FnOnce() + Send + 'static) -> Went {
        self.submit_to(cpus::current(), work)
    }

    /// The same for the worker of `cpu`, for callers who know where the data is. A CPU that does not
    /// exist is one without a worker.
    pub fn submit_to(&self, cpu: usize, work: impl FnOnce() + Send + 'static) -> Went {
        if let Some(tally) = unbound::own_tally(self.shared.id()) {
            unbound::run_nested(&tally, work);
            return Went::Inline;
        }
        let now = Instant::now();
        Shared::begin(&self.shared);
        Shared::look(&self.shared, now);
        self.shared.place(cpu, Work::new(work, now))
    }

    /// Starts the workers and waits until each is on its CPU. Harmless when they are started.
    pub fn start(&self) {
        Shared::begin(&self.shared);
    }

    /// Asks the system which CPUs there are, at once, and follows it: workers of CPUs that went are
    /// gone and those of CPUs that came are there when this returns. So it waits for the items that
    /// run on the CPUs that go; called by an item of this pool it waits for nothing.
    ///
    /// Submitters look by themselves, four times a second at most; only a change of the quota of CPU
    /// time is seen by this alone. A pool that has not been used is left alone.
    pub fn refresh(&self) {
        if lock(&self.shared.roster).begun != super::roster::Begun::No {
            Shared::refresh(&self.shared, Patience::Wait);
        }
    }

    /// Treats a CPU as gone, whatever the system says, until [`PerCpuPool::restore`]: its queue goes to
    /// the fallback and its worker ends. Waits as [`PerCpuPool::refresh`] does.
    pub fn withdraw(&self, cpu: usize) {
        lock(&self.shared.roster).set_withdrawn(cpu, true);
        self.refresh();
    }

    /// Takes [`PerCpuPool::withdraw`] back: the CPU is used again if the system grants it.
    pub fn restore(&self, cpu: usize) {
        lock(&self.shared.roster).set_withdrawn(cpu, false);
        self.refresh();
    }

    /// What the pool did, until about now. It stops nobody.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.shared)
    }
}

impl Drop for PerCpuPool {
    fn drop(&mut self) {
        lock(&self.shared.roster).close();
        Shared::settle(&self.shared, Patience::Wait);
        self.shared.fallback.shut_down();
    }
}

impl Shared {
    /// Who the pool is: its workers and its fallback are one pool to a submitter.
    pub(super) fn id(&self) -> usize {
        self.fallback.id()
    }

    /// P9 to P11. The worker, else the fallback, else here.
    fn place(&self, cpu: usize, work: Work) -> Went {
        // Relaxed: a route is a hint; the inbox decides.
        let server = self.routes.get(cpu).map(|route| route.load(Ordering::Relaxed));
        let server = server.and_then(|server| usize::try_from(server).ok()).unwrap_or(cpu);
        let refused = match self.slots.get(server) {
            Some(slot) => slot.submit(work),
            None => Err(Refused::Closed(work)),
        };
        match refused {
            Ok(()) => Went::Cpu(server),
            Err(Refused::Closed(work)) => self.fall_back(work),
            Err(Refused::Full(work)) => {
                self.counts.full.add_shared(1);
                if work.run_here() == Outcome::Panicked {
                    self.counts.inline_panics.add_shared(1);
                }
                Went::Inline
            }
        }
    }

    #[cold]
    fn fall_back(&self, work: Work) -> Went {
        match self.fallback.place(work) {
            Placed::Queued => {
                self.counts.fallback.add_shared(1);
                Went::Fallback
            }
            Placed::Inline => Went::Inline,
        }
    }

    /// The next submitter that looks has the workers brought to what is wanted.
    pub(super) fn ask_for_refresh(&self) {
        // Relaxed: a hint.
        self.wants_refresh.store(true, Ordering::Relaxed);
    }

    /// Waits until a worker has come or gone.
    pub(super) fn wait<'a>(&self, roster: MutexGuard<'a, Roster>) -> MutexGuard<'a, Roster> {
        self.moved.wait(roster).unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
