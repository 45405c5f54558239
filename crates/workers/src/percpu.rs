//! The pool of per-CPU workers as its users see it: submit, look at it, end it.

use std::time::Instant;

use super::cpu_assignment;
use super::cpu_queue::CpuQueue;
use super::hotplug::{self, WaitMode};
use super::inbox::PushError;
use super::registry::WorkerRegistry;
use super::settings::PerCpuSettings;
use super::stats::PerCpuStats;
use crate::cache_padded::CachePadded;
use crate::catch_panic::CallOutcome;
use crate::counters::Counter;
use crate::cpus::{self, CpuSet};
use crate::priority::PriorityRequest;
use crate::sync::{
    Arc, AtomicBool, AtomicU32, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, lock,
};
use crate::unbound::{self, SubmitOutcome, ThreadSpawner, UnboundPool, WorkItem};

/// Where submitted work went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DispatchTarget {
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
/// No thread exists before the first use. WorkItem runs on the CPU on which it was submitted, and exactly
/// once, whatever happens to that CPU: it owns all that it touches, and a panic in it ends with it.
/// A worker that cannot be had is no error: its CPU's work goes to the fallback.
///
/// Dropping the pool runs everything that was submitted and ends its threads. Dropped by an item that
/// runs on one of those threads, the pool does not wait for that: they end by themselves.
#[derive(Debug)]
pub struct PerCpuPool {
    shared: Arc<PerCpuShared>,
}

/// What workers, submitters and the fallback share. It lives until the last of them lets go.
#[derive(Debug)]
pub(super) struct PerCpuShared {
    pub(super) name: String,
    pub(super) priority: PriorityRequest,
    pub(super) cpus: Option<CpuSet>,
    pub(super) spawner: ThreadSpawner,
    /// Indexed by CPU.
    pub(super) cpu_queues: Box<[CpuQueue]>,
    /// Indexed by CPU: whose worker takes its work.
    pub(super) routes: Box<[AtomicU32]>,
    pub(super) is_started: AtomicBool,
    pub(super) epoch: Instant,
    pub(super) fallback: UnboundPool,
    /// Milliseconds from `epoch` to the last look at the system.
    pub(super) polled_ms: AtomicU64,
    /// Whether the workers are not what is wanted.
    pub(super) wants_refresh: AtomicBool,
    pub(super) registry: Mutex<WorkerRegistry>,
    /// A worker has come or gone.
    pub(super) moved: Condvar,
    pub(super) counters: CachePadded<PerCpuCounters>,
}

/// What submitters and the registry count. None of it happens when work goes to its CPU.
#[derive(Debug, Default)]
pub(super) struct PerCpuCounters {
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
    pub fn new(settings: PerCpuSettings) -> Self {
        let PerCpuSettings { name, priority, cpus, spawner } = settings;
        let granted = hotplug::granted();
        let mut unbound = unbound::UnboundSettings::new(&name).threads_max(granted.parallelism());
        unbound.spawner = spawner.clone();
        let numbers = cpu_assignment::cpu_numbers(&granted);
        let itself = |cpu| AtomicU32::new(u32::try_from(cpu).unwrap_or(u32::MAX));
        let shared = PerCpuShared {
            name,
            priority,
            cpus,
            spawner,
            cpu_queues: (0..numbers).map(|_| CpuQueue::new()).collect(),
            routes: (0..numbers).map(itself).collect(),
            is_started: AtomicBool::new(false),
            epoch: Instant::now(),
            fallback: UnboundPool::new(unbound),
            polled_ms: AtomicU64::new(0),
            wants_refresh: AtomicBool::new(false),
            registry: Mutex::new(WorkerRegistry::default()),
            moved: Condvar::new(),
            counters: CachePadded::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Has `work` run by the worker of the CPU on which the caller is. It never fails, and waits for
    /// nothing but the start of the workers at first use; but the work may run on the caller before
    /// this returns, so hold no lock that it takes. What [`DispatchTarget`] says is where it went.
    ///
    /// From an item of this pool it runs inside of that item.
    pub fn submit(&self, work: impl FnOnce() + Send + 'static) -> DispatchTarget {
        self.submit_to(cpus::current(), work)
    }

    /// The same for the worker of `cpu`, for callers who know where the data is. A CPU that does not
    /// exist is one without a worker.
    pub fn submit_to(&self, cpu: usize, work: impl FnOnce() + Send + 'static) -> DispatchTarget {
        if let Some(counters) = unbound::current_counters(self.shared.id()) {
            unbound::run_nested(&counters, work);
            return DispatchTarget::Inline;
        }
        let now = Instant::now();
        PerCpuShared::ensure_started(&self.shared);
        PerCpuShared::poll_cpu_mask(&self.shared, now);
        self.shared.dispatch(cpu, WorkItem::new(work, now))
    }

    /// Starts the workers and waits until each is on its CPU. Harmless when they are started.
    pub fn start(&self) {
        PerCpuShared::ensure_started(&self.shared);
    }

    /// Asks the system which CPUs there are, at once, and follows it: workers of CPUs that went are
    /// gone and those of CPUs that came are there when this returns. So it waits for the items that
    /// run on the CPUs that go; called by an item of this pool it waits for nothing.
    ///
    /// Submitters look by themselves, four times a second at most; only a change of the quota of CPU
    /// time is seen by this alone. A pool that has not been used is left alone.
    pub fn refresh(&self) {
        if lock(&self.shared.registry).start_state != super::registry::StartState::NotStarted {
            PerCpuShared::refresh(&self.shared, WaitMode::Block);
        }
    }

    /// Treats a CPU as gone, whatever the system says, until [`PerCpuPool::bring_online`]: its queue goes to
    /// the fallback and its worker ends. Waits as [`PerCpuPool::refresh`] does.
    pub fn take_offline(&self, cpu: usize) {
        lock(&self.shared.registry).set_offline(cpu, true);
        self.refresh();
    }

    /// Takes [`PerCpuPool::take_offline`] back: the CPU is used again if the system grants it.
    pub fn bring_online(&self, cpu: usize) {
        lock(&self.shared.registry).set_offline(cpu, false);
        self.refresh();
    }

    /// What the pool did, until about now. It stops nobody.
    #[must_use]
    pub fn snapshot(&self) -> PerCpuStats {
        PerCpuStats::of(&self.shared)
    }
}

impl Drop for PerCpuPool {
    fn drop(&mut self) {
        lock(&self.shared.registry).close();
        PerCpuShared::reconcile(&self.shared, WaitMode::Block);
        self.shared.fallback.shut_down();
    }
}

impl PerCpuShared {
    /// Who the pool is: its workers and its fallback are one pool to a submitter.
    pub(super) fn id(&self) -> usize {
        self.fallback.id()
    }

    /// P9 to P11. The worker, else the fallback, else here.
    fn dispatch(&self, cpu: usize, work: WorkItem) -> DispatchTarget {
        // Relaxed: a route is a hint; the inbox decides.
        let server = self.routes.get(cpu).map(|route| route.load(Ordering::Relaxed));
        let server = server.and_then(|server| usize::try_from(server).ok()).unwrap_or(cpu);
        let refused = match self.cpu_queues.get(server) {
            Some(slot) => slot.submit(work),
            None => Err(PushError::Closed(work)),
        };
        match refused {
            Ok(()) => DispatchTarget::Cpu(server),
            Err(PushError::Closed(work)) => self.fall_back(work),
            Err(PushError::Full(work)) => {
                self.counters.full.add_shared(1);
                if work.run_inline() == CallOutcome::Panicked {
                    self.counters.inline_panics.add_shared(1);
                }
                DispatchTarget::Inline
            }
        }
    }

    #[cold]
    fn fall_back(&self, work: WorkItem) -> DispatchTarget {
        match self.fallback.enqueue(work) {
            SubmitOutcome::Queued => {
                self.counters.fallback.add_shared(1);
                DispatchTarget::Fallback
            }
            SubmitOutcome::Inline => DispatchTarget::Inline,
        }
    }

    /// The next submitter that looks has the workers brought to what is wanted.
    pub(super) fn request_refresh(&self) {
        // Relaxed: a hint.
        self.wants_refresh.store(true, Ordering::Relaxed);
    }

    /// Waits until a worker has come or gone.
    pub(super) fn wait<'a>(
        &self,
        registry: MutexGuard<'a, WorkerRegistry>,
    ) -> MutexGuard<'a, WorkerRegistry> {
        self.moved.wait(registry).unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
