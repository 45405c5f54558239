//! What the workers of both pools have in common: the work that they run, their counters, and which pool a
//! thread belongs to.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use crate::cache_padded::CachePadded;
use crate::catch_panic::{CallOutcome, catch_panic};
#[cfg(not(loom))]
use crate::counters::Histogram as WaitHistogram;
use crate::counters::{Counter, HistogramSnapshot};
use crate::priority::PriorityLevel;
use crate::sync::{Arc, thread_local};
use crate::thread::ThreadInfo;

/// A job that waits for a thread, and the moment of its submission. It owns all that it touches, and a panic in
/// it ends here.
pub(crate) struct WorkItem {
    job: Box<dyn FnOnce() + Send>,
    submitted: Instant,
}

impl WorkItem {
    pub(crate) fn new(job: impl FnOnce() + Send + 'static, submitted: Instant) -> Self {
        Self { job: Box::new(job), submitted }
    }

    /// Runs the job on one of a pool's own threads and counts it there. Returns when it started.
    pub(crate) fn run(self, counters: &WorkerCounters) -> Instant {
        let started = Instant::now();
        counters.started(started.saturating_duration_since(self.submitted));
        if catch_panic(self.job) == CallOutcome::Panicked {
            counters.panicked();
        }
        started
    }

    /// Runs the job on a thread that is not the pool's.
    pub(crate) fn run_inline(self) -> CallOutcome {
        catch_panic(self.job)
    }
}

impl std::fmt::Debug for WorkItem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let age: Duration = self.submitted.elapsed();
        f.debug_struct("WorkItem").field("age", &age).finish_non_exhaustive()
    }
}

/// The pool that a thread works for.
struct CurrentPool {
    id: usize,
    counters: Arc<WorkerCounters>,
}

thread_local! {
    #[allow(clippy::missing_const_for_thread_local, reason = "loom's macro knows no const")]
    static CURRENT_POOL: RefCell<Option<CurrentPool>> = RefCell::new(None);
}

/// Held by a worker while it works, so that what it submits to its own pool runs inside of the item that submits
/// it. Dropping it leaves nothing of the pool in the thread.
#[derive(Debug)]
pub(crate) struct CurrentPoolGuard(());

impl CurrentPoolGuard {
    /// Makes the current thread a worker of the pool with this identity.
    pub(crate) fn new(id: usize, counters: Arc<WorkerCounters>) -> Self {
        CURRENT_POOL.with(|pool| pool.replace(Some(CurrentPool { id, counters })));
        Self(())
    }
}

impl Drop for CurrentPoolGuard {
    fn drop(&mut self) {
        CURRENT_POOL.with(|pool| pool.replace(None));
    }
}

/// Whether the current thread works for the pool with this identity.
pub(crate) fn is_pool_thread(id: usize) -> bool {
    current_counters(id).is_some()
}

/// The current thread's counters if it works for the pool with this identity.
pub(crate) fn current_counters(id: usize) -> Option<Arc<WorkerCounters>> {
    // A thread whose local variables are gone already works for no pool.
    let counters = CURRENT_POOL.try_with(|pool| {
        pool.borrow().as_ref().filter(|pool| pool.id == id).map(|pool| Arc::clone(&pool.counters))
    });
    counters.ok().flatten()
}

/// What one worker counts. Only its own thread adds, so nothing is contended; anyone may read. The counters
/// outlive the thread and continue with the next one on the same CPU.
#[derive(Debug)]
pub(crate) struct WorkerCounters {
    counts: CachePadded<WorkerCounts>,
    waits: WaitHistogram,
}

#[derive(Debug, Default)]
struct WorkerCounts {
    items: Counter,
    inline: Counter,
    panics: Counter,
    sleeps: Counter,
    requeued: Counter,
    rebound: Counter,
}

impl WorkerCounters {
    pub(crate) fn new() -> Self {
        Self { counts: CachePadded::default(), waits: WaitHistogram::new() }
    }

    /// A queued item starts that waited this long.
    fn started(&self, waited: Duration) {
        self.counts.items.add(1);
        self.waits.record(waited);
    }

    /// An item of this worker submitted another one, which ran inside of it.
    pub(crate) fn ran_inline(&self) {
        self.counts.inline.add(1);
    }

    pub(crate) fn panicked(&self) {
        self.counts.panics.add(1);
    }

    pub(crate) fn slept(&self) {
        self.counts.sleeps.add(1);
    }

    /// Items that it had taken went to the fallback, because its CPU goes offline.
    pub(crate) fn requeued(&self, items: u64) {
        self.counts.requeued.add(items);
    }

    /// It found itself off its CPU and bound itself again.
    pub(crate) fn rebound(&self) {
        self.counts.rebound.add(1);
    }

    /// The counts as plain numbers, for the worker of this CPU on this thread.
    pub(crate) fn stats(&self, cpu: Option<usize>, thread: Option<ThreadInfo>) -> WorkerStats {
        let counts = &self.counts;
        WorkerStats {
            cpu,
            thread_id: thread.map(|thread| thread.thread_id),
            priority_level: thread.map(|thread| thread.priority_level),
            items: counts.items.value(),
            inline: counts.inline.value(),
            panics: counts.panics.value(),
            sleeps: counts.sleeps.value(),
            wake_ups: 0,
            requeued: counts.requeued.value(),
            rebound: counts.rebound.value(),
            waits: self.waits.snapshot(),
        }
    }
}

/// What one worker has counted.
#[derive(Debug, Clone)]
pub struct WorkerStats {
    /// The CPU that it is bound to; None for a worker that is bound to none.
    pub cpu: Option<usize>,
    /// The system's number of its thread; None if it has no thread at the moment.
    pub thread_id: Option<i32>,
    /// The priority level that its thread reached, as the system said; None as above.
    pub priority_level: Option<PriorityLevel>,
    /// Queued items that it ran.
    pub items: u64,
    /// Items that its own items submitted and that ran inside of them.
    pub inline: u64,
    /// Items of both kinds that panicked.
    pub panics: u64,
    /// Times that it went to sleep.
    pub sleeps: u64,
    /// Times that a submitter woke it by a system call. Always 0 for a worker bound to no CPU.
    pub wake_ups: u64,
    /// Items that it had taken and gave to the fallback when its CPU went offline.
    pub requeued: u64,
    /// Times that it found itself off its CPU and bound itself again.
    pub rebound: u64,
    /// From submission to start of every queued item.
    pub waits: HistogramSnapshot,
}

/// A model has no clock, and hundreds of modelled atomics would only slow it down.
#[cfg(loom)]
#[derive(Debug)]
struct WaitHistogram;

#[cfg(loom)]
impl WaitHistogram {
    fn new() -> Self {
        Self
    }

    fn record(&self, _waited: Duration) {}

    fn snapshot(&self) -> HistogramSnapshot {
        HistogramSnapshot::default()
    }
}
