//! The per-CPU workers: one pinned, named thread for each available CPU, at raised priority where the system
//! allows, started at first use. Work runs on the CPU on which it was submitted. A CPU may go offline and come
//! back at any time, and nothing is lost.
//!
//! This file is the pool as its users see it. docs/workers.md, protocol P. Nothing here knows what the work does.

mod hotplug;
mod inbox;
#[cfg(all(test, not(loom)))]
mod tests;

use std::time::Instant;

use crate::counters::{CachePadded, Counter, HistogramSnapshot};
use crate::cpus::{self, AvailableCpus, CpuSet};
use crate::error::CallOutcome;
use crate::priority::PriorityRequest;
use crate::sync::{
    Arc, AtomicBool, AtomicU32, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, lock,
};
use crate::thread::ThreadSpawner;
use crate::unbound::{
    SubmitOutcome, UnboundPool, UnboundSettings, UnboundStats, WorkItem, WorkerStats,
    current_counters, run_nested,
};

use hotplug::{StartState, WaitMode, WorkerRegistry};
use inbox::{CpuQueue, PushError};

/// How a pool of per-CPU workers is made.
#[derive(Debug, Clone)]
#[must_use]
pub struct PerCpuSettings {
    name: String,
    priority: PriorityRequest,
    cpus: Option<CpuSet>,
    available: Option<AvailableCpus>,
    spawner: ThreadSpawner,
}

impl PerCpuSettings {
    /// A worker on every CPU that is available, at raised priority. The worker of CPU 3 is called `name/3`; the
    /// kernel keeps 15 bytes, so a long `name` is cut, never the number.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            priority: PriorityRequest::Raised,
            cpus: None,
            available: None,
            spawner: ThreadSpawner::default(),
        }
    }

    /// Sets the priority of the workers. [`PriorityRequest::Normal`] leaves them at the priority that they inherit.
    pub fn priority(mut self, priority: PriorityRequest) -> Self {
        self.priority = priority;
        self
    }

    /// Limits the workers to these CPUs, as far as they are available. The quota of CPU time does not reduce
    /// their number then: the caller has chosen.
    pub fn cpus(mut self, cpus: CpuSet) -> Self {
        self.cpus = Some(cpus);
        self
    }

    /// The available CPUs, for a caller who has just read them: making the pool then opens some ten files less. Later
    /// changes are followed all the same.
    pub fn available(mut self, available: AvailableCpus) -> Self {
        self.available = Some(available);
        self
    }

    /// The CPUs that were given to [`available`](Self::available), else those that are available now.
    #[must_use]
    pub fn available_cpus(&self) -> AvailableCpus {
        self.available.clone().unwrap_or_else(hotplug::available_cpus)
    }
}

/// Where submitted work went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DispatchTarget {
    /// To the worker of this CPU.
    Cpu(usize),
    /// To a thread that is bound to no CPU, because the submitter's CPU has no worker.
    Fallback,
    /// Nowhere: it has run on the submitter, before `submit` returned. The submitter is a worker itself, or too many
    /// items wait already, or the system gives no thread.
    Inline,
}

/// One worker for every available CPU, and a fallback.
///
/// No thread exists before the first use. Work runs on the CPU on which it was submitted, and exactly once,
/// whatever happens to that CPU: it owns all that it touches, and a panic in it ends with it. If the system gives
/// no worker, that is no error: the CPU's work goes to the fallback.
///
/// Dropping the pool runs everything that was submitted and ends its threads. If an item that runs on one of
/// those threads drops the pool, it does not wait for that: the threads end by themselves.
///
/// ```
/// use std::sync::mpsc;
/// use ferrofs_workers::percpu::{PerCpuPool, PerCpuSettings};
///
/// let pool = PerCpuPool::new(PerCpuSettings::new("sum"));
/// let (sender, receiver) = mpsc::channel();
/// pool.submit(move || sender.send((1..=10).sum::<u64>()).unwrap_or_default());
/// assert_eq!(receiver.recv(), Ok(55));
/// ```
#[derive(Debug)]
pub struct PerCpuPool {
    shared: Arc<PerCpuShared>,
}

/// What workers, submitters and the fallback share. It lives until the last of them lets go.
#[derive(Debug)]
struct PerCpuShared {
    name: String,
    priority: PriorityRequest,
    cpus: Option<CpuSet>,
    spawner: ThreadSpawner,
    /// Indexed by CPU.
    cpu_queues: Box<[CpuQueue]>,
    /// Indexed by CPU: whose worker takes its work.
    routes: Box<[AtomicU32]>,
    is_started: AtomicBool,
    epoch: Instant,
    fallback: UnboundPool,
    /// Milliseconds from `epoch` to the last look at the system.
    polled_ms: AtomicU64,
    /// Whether the workers are not what is wanted.
    wants_refresh: AtomicBool,
    registry: Mutex<WorkerRegistry>,
    /// A worker has started, stopped or exited.
    phase_changed: Condvar,
    counters: CachePadded<PerCpuCounters>,
}

/// What submitters and the registry count. None of it happens when work goes to its CPU.
#[derive(Debug, Default)]
struct PerCpuCounters {
    fallback: Counter,
    full: Counter,
    inline_panics: Counter,
    requeued: Counter,
    refreshes: Counter,
    rebound: Counter,
    refused_threads: Counter,
}

impl PerCpuPool {
    /// A pool without threads.
    #[must_use]
    pub fn new(settings: PerCpuSettings) -> Self {
        let available = settings.available_cpus();
        let PerCpuSettings { name, priority, cpus, available: _, spawner } = settings;
        // Chosen CPUs may all go; the fallback then has as many threads as they had workers.
        let chosen = cpus.as_ref().map_or(usize::MAX, CpuSet::len);
        let threads = available.parallelism().min(chosen).max(1);
        let mut fallback = UnboundSettings::new(&name).max_threads(threads);
        fallback.spawner = spawner.clone();
        let numbers = hotplug::cpu_numbers(&available);
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
            fallback: UnboundPool::new(fallback),
            polled_ms: AtomicU64::new(0),
            wants_refresh: AtomicBool::new(false),
            registry: Mutex::new(WorkerRegistry::default()),
            phase_changed: Condvar::new(),
            counters: CachePadded::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Runs `work` on the worker of the CPU on which the caller is. This never fails, and waits for nothing but the
    /// start of the workers at first use. The work may run on the caller before this returns, and so may work that
    /// others have submitted, if the system gives no thread: hold no lock that any of it takes. The result says
    /// where the work went.
    ///
    /// From an item of this pool it runs inside of that item.
    pub fn submit(&self, work: impl FnOnce() + Send + 'static) -> DispatchTarget {
        self.submit_to(cpus::current(), work)
    }

    /// The same for the worker of `cpu`, for callers who know where the data is. A CPU that does not exist is one
    /// without a worker.
    pub fn submit_to(&self, cpu: usize, work: impl FnOnce() + Send + 'static) -> DispatchTarget {
        if let Some(counters) = current_counters(self.shared.id()) {
            run_nested(&counters, work);
            return DispatchTarget::Inline;
        }
        let now = Instant::now();
        PerCpuShared::ensure_started(&self.shared);
        PerCpuShared::poll_cpu_mask(&self.shared, now);
        self.shared.dispatch(cpu, WorkItem::new(work, now))
    }

    /// Starts the workers and waits until each is on its CPU. Does nothing if they are started.
    pub fn start(&self) {
        PerCpuShared::ensure_started(&self.shared);
    }

    /// Asks the system at once which CPUs there are, and follows it: when this returns, workers of CPUs that went
    /// offline have ended and those of CPUs that came online run. So it waits for the items that run on the CPUs
    /// that go; called by an item of this pool it waits for nothing.
    ///
    /// Submitters do so by themselves, four times a second at most; only a change of the quota of CPU time is seen
    /// by this call alone. A pool that has not been used is left alone.
    pub fn refresh(&self) {
        if lock(&self.shared.registry).start_state != StartState::NotStarted {
            PerCpuShared::refresh(&self.shared, WaitMode::Block);
        }
    }

    /// Treats a CPU as offline, whatever the system says, until [`PerCpuPool::bring_online`]: its queue goes to the
    /// fallback and its worker ends. Waits as [`PerCpuPool::refresh`] does.
    pub fn take_offline(&self, cpu: usize) {
        lock(&self.shared.registry).set_offline(cpu, true);
        self.refresh();
    }

    /// Undoes [`PerCpuPool::take_offline`]: the CPU is used again if it is available.
    pub fn bring_online(&self, cpu: usize) {
        lock(&self.shared.registry).set_offline(cpu, false);
        self.refresh();
    }

    /// What the pool has counted. It counts without a lock, so the numbers need not add up while work goes on.
    #[must_use]
    pub fn stats(&self) -> PerCpuStats {
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
    /// The identity of the pool: to a submitter its workers and its fallback are one pool.
    fn id(&self) -> usize {
        self.fallback.id()
    }

    /// P9 to P11. The worker, else the fallback, else here.
    fn dispatch(&self, cpu: usize, work: WorkItem) -> DispatchTarget {
        // Relaxed: a route is a hint; the inbox decides.
        let server = self.routes.get(cpu).map(|route| route.load(Ordering::Relaxed));
        let server = server.and_then(|server| usize::try_from(server).ok()).unwrap_or(cpu);
        let refused = match self.cpu_queues.get(server) {
            Some(queue) => queue.submit(work),
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

    /// P31. Work that lost its CPU goes to the fallback; if that has no thread, it runs here.
    fn requeue(&self, work: WorkItem) {
        self.counters.requeued.add_shared(1);
        let _: SubmitOutcome = self.fallback.enqueue(work);
    }

    /// Makes the next submitter that polls start a refresh.
    fn request_refresh(&self) {
        // Relaxed: a hint.
        self.wants_refresh.store(true, Ordering::Relaxed);
    }

    /// Waits until the phase of a worker changes.
    fn wait<'a>(&self, registry: MutexGuard<'a, WorkerRegistry>) -> MutexGuard<'a, WorkerRegistry> {
        self.phase_changed.wait(registry).unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// What a pool of per-CPU workers has counted.
#[derive(Debug, Clone)]
pub struct PerCpuStats {
    /// One for every CPU that ever had a worker, ascending.
    pub workers: Vec<WorkerStats>,
    /// The CPUs whose worker takes work.
    pub serving: CpuSet,
    /// The threads of the fallback, and what ran on submitters because there was none.
    pub unbound: UnboundStats,
    /// Items that were submitted to a CPU without a worker and went to the fallback.
    pub fallback: u64,
    /// Items that ran on the submitter because too many waited for the CPU's worker.
    pub full: u64,
    /// Those of them that panicked.
    pub full_panics: u64,
    /// Items that had been queued for a CPU and went to the fallback when it went offline.
    pub requeued: u64,
    /// Times that a worker was found off its CPU and bound again, by a refresh or by itself.
    pub rebound: u64,
    /// Looks at the system that may have changed the workers.
    pub refreshes: u64,
    /// Workers that the system refused a thread.
    pub refused_threads: u64,
}

impl PerCpuStats {
    fn of(shared: &PerCpuShared) -> Self {
        let (rows, serving) = {
            let registry = lock(&shared.registry);
            (registry.rows(), registry.serving())
        };
        let workers = rows.into_iter().map(|row| {
            let mut worker = row.counters.stats(Some(row.cpu), row.thread);
            worker.wake_ups = shared.cpu_queues.get(row.cpu).map_or(0, CpuQueue::wake_ups);
            worker
        });
        let counters = &shared.counters;
        let workers: Vec<_> = workers.collect();
        let rebound: u64 = workers.iter().map(|worker| worker.rebound).sum();
        Self {
            rebound: counters.rebound.value() + rebound,
            workers,
            serving,
            unbound: shared.fallback.stats(),
            fallback: counters.fallback.value(),
            full: counters.full.value(),
            full_panics: counters.inline_panics.value(),
            requeued: counters.requeued.value(),
            refreshes: counters.refreshes.value(),
            refused_threads: counters.refused_threads.value(),
        }
    }

    /// Items that ran out of a queue, on workers and on the fallback.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.workers.iter().map(|worker| worker.items).sum::<u64>() + self.unbound.items()
    }

    /// Items that ran on their submitter.
    #[must_use]
    pub fn inline(&self) -> u64 {
        let nested = |workers: &[WorkerStats]| workers.iter().map(|one| one.inline).sum::<u64>();
        nested(&self.workers) + nested(&self.unbound.threads) + self.unbound.inline + self.full
    }

    /// Items that panicked.
    #[must_use]
    pub fn panics(&self) -> u64 {
        let queued = |workers: &[WorkerStats]| workers.iter().map(|one| one.panics).sum::<u64>();
        queued(&self.workers)
            + queued(&self.unbound.threads)
            + self.unbound.inline_panics
            + self.full_panics
    }

    /// From submission to start of all items that ran on a CPU's worker.
    #[must_use]
    pub fn waits(&self) -> HistogramSnapshot {
        let mut times = HistogramSnapshot::default();
        self.workers.iter().for_each(|worker| times.merge(&worker.waits));
        times
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    //! Models of the whole pool with one CPU: work that is submitted while the CPU goes and comes, and
    //! first uses at the same time.

    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicUsize, Ordering};

    use super::{DispatchTarget, PerCpuPool, PerCpuSettings};
    use crate::cpus::CpuSet;
    use crate::flags::WakeEvent;

    fn cpu() -> usize {
        CpuSet::of_process().iter().next().unwrap_or(0)
    }

    fn pool() -> PerCpuPool {
        PerCpuPool::new(PerCpuSettings::new("model").cpus(CpuSet::from_iter([cpu()])))
    }

    fn submit(pool: &PerCpuPool, ran: &Arc<AtomicUsize>) -> DispatchTarget {
        let ran = Arc::clone(ran);
        pool.submit_to(cpu(), move || {
            ran.fetch_add(1, Ordering::Relaxed);
        })
    }

    fn model(check: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(2));
        builder.max_branches = 10_000;
        builder.check(check);
    }

    #[test]
    fn dropping_the_pool_runs_what_was_submitted() {
        model(|| {
            let pool = pool();
            let ran = Arc::new(AtomicUsize::new(0));
            assert_eq!(submit(&pool, &ran), DispatchTarget::Cpu(cpu()));
            drop(pool);
            assert_eq!(ran.load(Ordering::Relaxed), 1);
        });
    }

    #[test]
    fn a_sleeping_worker_is_woken_for_every_item() {
        model(|| {
            let pool = pool();
            for _ in 0..2 {
                let done = Arc::new(WakeEvent::new());
                let signal = Arc::clone(&done);
                let went = pool.submit_to(cpu(), move || {
                    let _: bool = signal.set();
                });
                assert_eq!(went, DispatchTarget::Cpu(cpu()));
                let _: bool = done.wait();
            }
        });
    }

    #[test]
    fn work_submitted_while_its_cpu_goes_runs_once() {
        model(|| {
            let pool = Arc::new(pool());
            let ran = Arc::new(AtomicUsize::new(0));
            pool.start();
            let other = {
                let (pool, ran) = (Arc::clone(&pool), Arc::clone(&ran));
                loom::thread::spawn(move || {
                    let went = submit(&pool, &ran);
                    assert!(matches!(went, DispatchTarget::Cpu(_) | DispatchTarget::Fallback));
                })
            };
            pool.take_offline(cpu());
            assert!(pool.stats().serving.is_empty());
            other.join().unwrap();
            drop(pool);
            assert_eq!(ran.load(Ordering::Relaxed), 1);
        });
    }

    #[test]
    fn a_cpu_that_goes_and_comes_at_once_is_settled_by_the_last_word() {
        model(|| {
            let pool = Arc::new(pool());
            pool.start();
            let other = {
                let pool = Arc::clone(&pool);
                loom::thread::spawn(move || pool.take_offline(cpu()))
            };
            pool.bring_online(cpu());
            other.join().unwrap();
            pool.bring_online(cpu());
            assert_eq!(pool.stats().serving, CpuSet::from_iter([cpu()]));
        });
    }
}
