//! The unbound pool: threads at normal priority that the system places where it likes, and one queue. Threads
//! are started one by one as work waits, and never more than the system runs at once. The per-CPU workers fall
//! back on this pool, and the benchmark of latency compares them with it.
//!
//! The second half of this file is what the workers of both pools have in common: the work that they run, their
//! counters, and which pool a thread belongs to.
//!
//! docs/workers.md, protocol U.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

#[cfg(not(loom))]
use crate::counters::Histogram as WaitHistogram;
use crate::counters::{CachePadded, Counter, HistogramSnapshot};
use crate::cpus::{AvailableCpus, CPUS_MAX, CpuSet};
use crate::error::{CallOutcome, catch_panic};
use crate::priority::{PriorityLevel, PriorityRequest};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, lock, thread_local};
use crate::thread::{
    OwnedThread, ThreadInfo, ThreadOptions, ThreadPlacement, ThreadSpawner, thread_name,
};

/// The most items that wait for each thread, as in the inbox of a CPU and for the same reason: more of them keep
/// no thread busier. A submitter that meets the limit runs the work itself.
pub(super) const MAX_ITEMS_PER_THREAD: usize = 256;

/// How an unbound pool is made.
#[derive(Debug, Clone)]
#[must_use]
pub struct UnboundSettings {
    name: String,
    max_threads: Option<usize>,
    pub(crate) spawner: ThreadSpawner,
}

impl UnboundSettings {
    /// As many threads as the system runs at once, with names that begin with `name`.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), max_threads: None, spawner: ThreadSpawner::default() }
    }

    /// Sets the largest number of threads, from 1 to [`CPUS_MAX`]; a number outside counts as the nearer bound.
    pub fn max_threads(mut self, threads: usize) -> Self {
        self.max_threads = Some(threads.clamp(1, CPUS_MAX));
        self
    }
}

/// Who runs submitted work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubmitOutcome {
    /// A thread of the pool.
    Queued,
    /// The submitter has run it: it is one of the pool's threads itself, or the queue is full, or the system gives
    /// no thread.
    Inline,
}

/// Threads bound to no CPU, and a queue. No thread exists before work waits for it.
///
/// Dropping the pool runs all work that was submitted and ends the threads. On one of its own threads, dropping
/// does not wait for that.
#[derive(Debug)]
pub struct UnboundPool {
    shared: Arc<UnboundShared>,
}

#[derive(Debug)]
struct UnboundShared {
    name: String,
    max_threads: usize,
    spawner: ThreadSpawner,
    state: Mutex<UnboundState>,
    work_available: Condvar,
    inline: Counter,
    inline_panics: Counter,
    refused_threads: Counter,
}

#[derive(Debug, Default)]
struct UnboundState {
    queue: VecDeque<WorkItem>,
    /// Threads that exist or are about to; they only end when the pool is closing.
    threads: usize,
    /// Those of them that have not looked at the queue yet.
    starting: usize,
    /// Those of them that sleep.
    idle: usize,
    is_closing: bool,
    owned: Vec<OwnedThread>,
    workers: Vec<UnboundWorker>,
}

/// A thread that runs work.
#[derive(Debug, Clone)]
struct UnboundWorker {
    counters: Arc<WorkerCounters>,
    thread: ThreadInfo,
}

impl UnboundState {
    /// U2. Whether more items wait than threads are free for. A sleeper that is being woken still counts as idle,
    /// and the item that it was woken for still counts as waiting.
    fn is_short_of_threads(&self, max_threads: usize) -> bool {
        self.queue.len() > self.idle + self.starting && self.threads < max_threads
    }
}

impl UnboundPool {
    /// A pool without threads.
    #[must_use]
    pub fn new(settings: UnboundSettings) -> Self {
        let max_threads =
            settings.max_threads.unwrap_or_else(|| AvailableCpus::read().parallelism());
        let shared = UnboundShared {
            name: settings.name,
            max_threads,
            spawner: settings.spawner,
            state: Mutex::new(UnboundState::default()),
            work_available: Condvar::new(),
            inline: Counter::default(),
            inline_panics: Counter::default(),
            refused_threads: Counter::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Runs `work` on one of the pool's threads. This never fails and never waits for a thread, but the work may
    /// run on the caller before this returns, and so may work that others have submitted, if the system gives no
    /// thread: hold no lock that any of it takes. A panic of the work ends with the
    /// work.
    pub fn submit(&self, work: impl FnOnce() + Send + 'static) -> SubmitOutcome {
        if let Some(counters) = current_counters(self.id()) {
            run_nested(&counters, work);
            return SubmitOutcome::Inline;
        }
        self.enqueue(WorkItem::new(work, Instant::now()))
    }

    /// What its threads have counted. They count without a lock, so the numbers need not add up while work goes on.
    #[must_use]
    pub fn stats(&self) -> UnboundStats {
        let shared = &self.shared;
        let workers = lock(&shared.state).workers.clone();
        let stats = |worker: &UnboundWorker| worker.counters.stats(None, Some(worker.thread));
        UnboundStats {
            threads: workers.iter().map(stats).collect(),
            inline: shared.inline.value(),
            inline_panics: shared.inline_panics.value(),
            refused_threads: shared.refused_threads.value(),
        }
    }

    /// How many of its threads sleep.
    #[cfg(all(test, not(loom)))]
    fn idle_threads(&self) -> usize {
        lock(&self.shared.state).idle
    }

    /// The identity of the pool, for [`is_pool_thread`]. Unique as long as any of its threads lives.
    pub(crate) fn id(&self) -> usize {
        std::ptr::from_ref(&*self.shared).addr()
    }

    /// U1. Queues work, or runs it on the caller. Unlike [`UnboundPool::submit`] this may be called on the pool's
    /// own threads, to have the work run by another one.
    pub(crate) fn enqueue(&self, work: WorkItem) -> SubmitOutcome {
        let shared = &self.shared;
        let mut state = lock(&shared.state);
        let can_enqueue =
            state.queue.len() < shared.max_threads.saturating_mul(MAX_ITEMS_PER_THREAD);
        if state.is_closing || !can_enqueue || state.queue.try_reserve(1).is_err() {
            drop(state);
            shared.run_inline(work);
            return SubmitOutcome::Inline;
        }
        state.queue.push_back(work);
        let is_short = state.is_short_of_threads(shared.max_threads);
        if is_short {
            state.threads += 1;
            state.starting += 1;
        }
        let (index, has_sleepers) = (state.threads, state.idle > 0);
        drop(state);
        if has_sleepers {
            shared.work_available.notify_one();
        }
        if is_short { UnboundShared::spawn_thread(shared, index) } else { SubmitOutcome::Queued }
    }

    /// Lets its threads run on these CPUs: a thread that was started under another mask would keep that.
    pub(crate) fn bind_to(&self, cpus: &CpuSet) {
        let state = lock(&self.shared.state);
        // Before the pool is closing no thread ends, so no number belongs to another thread.
        if !state.is_closing {
            state.workers.iter().for_each(|worker| {
                let _is_bound: bool = worker.thread.bind_to(cpus);
            });
        }
    }

    /// U6. Refuses new work, runs what waits, and ends the threads. Waits for that, except on a thread of the
    /// pool, which lets them end by themselves.
    pub(crate) fn shut_down(&self) {
        lock(&self.shared.state).is_closing = true;
        self.shared.work_available.notify_all();
        if is_pool_thread(self.id()) {
            return;
        }
        // A thread that runs an item may be starting another one, which it adds before it ends itself. No thread adds
        // one after the round that finds none.
        loop {
            let owned = std::mem::take(&mut lock(&self.shared.state).owned);
            if owned.is_empty() {
                return;
            }
            owned.into_iter().for_each(OwnedThread::join);
        }
    }
}

impl Drop for UnboundPool {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// Runs work inside of the item that submits it.
pub(crate) fn run_nested(counters: &WorkerCounters, work: impl FnOnce()) {
    counters.ran_inline();
    if catch_panic(work) == CallOutcome::Panicked {
        counters.panicked();
    }
}

impl UnboundShared {
    /// U3. Starts one thread, outside of the lock. If the system gives none and there is no other, everything that
    /// waits runs here, because nobody else would run it.
    fn spawn_thread(this: &Arc<Self>, index: usize) -> SubmitOutcome {
        let name = thread_name(&this.name, &format!("/u{}", index - 1));
        let options = ThreadOptions { name, cpu: None, priority: PriorityRequest::Normal };
        let shared = Arc::clone(this);
        match this.spawner.start(options, move |placement| Self::serve(&shared, placement)) {
            Ok(owned) => {
                lock(&this.state).owned.push(owned);
                SubmitOutcome::Queued
            }
            Err(_) => this.thread_refused(),
        }
    }

    #[cold]
    fn thread_refused(&self) -> SubmitOutcome {
        self.refused_threads.add_shared(1);
        let mut state = lock(&self.state);
        state.threads -= 1;
        state.starting -= 1;
        if state.threads > 0 {
            return SubmitOutcome::Queued;
        }
        let orphans = std::mem::take(&mut state.queue);
        drop(state);
        orphans.into_iter().for_each(|work| self.run_inline(work));
        SubmitOutcome::Inline
    }

    fn run_inline(&self, work: WorkItem) {
        self.inline.add_shared(1);
        if work.run_inline() == CallOutcome::Panicked {
            self.inline_panics.add_shared(1);
        }
    }

    /// U4. The life of a thread.
    fn serve(this: &Arc<Self>, placement: ThreadPlacement) {
        let counters = Arc::new(WorkerCounters::new());
        let id = std::ptr::from_ref(&**this).addr();
        let _pool = CurrentPoolGuard::new(id, Arc::clone(&counters));
        let thread = ThreadInfo::of_current_thread(placement.priority_level);
        let mut state = lock(&this.state);
        state.workers.push(UnboundWorker { counters: Arc::clone(&counters), thread });
        state.starting -= 1;
        loop {
            if let Some(work) = state.queue.pop_front() {
                drop(state);
                work.run(&counters);
                state = lock(&this.state);
            } else if state.is_closing {
                return;
            } else {
                state = this.sleep(state);
                counters.slept();
            }
        }
    }

    /// U5. The lock is held between the look at the queue and falling asleep, so no item is missed.
    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, UnboundState>,
    ) -> MutexGuard<'a, UnboundState> {
        state.idle += 1;
        let woken = self.work_available.wait(state);
        let mut state = woken.unwrap_or_else(std::sync::PoisonError::into_inner);
        state.idle -= 1;
        state
    }
}

/// What an unbound pool has counted.
#[derive(Debug, Clone)]
pub struct UnboundStats {
    /// One for every thread that was ever started.
    pub threads: Vec<WorkerStats>,
    /// Items that ran on a submitter that is none of the pool's threads.
    pub inline: u64,
    /// Those of them that panicked.
    pub inline_panics: u64,
    /// Threads that the system refused.
    pub refused_threads: u64,
}

impl UnboundStats {
    /// Items that ran on the pool's threads out of the queue.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.threads.iter().map(|thread| thread.items).sum()
    }
}

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
    fn ran_inline(&self) {
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

#[cfg(all(test, loom))]
mod loom_tests {
    //! Models of protocol U: an item that is queued while a thread falls asleep, while the pool closes,
    //! and while another submitter starts the thread.

    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicUsize, Ordering};

    use std::time::Instant;

    use super::{SubmitOutcome, UnboundPool, UnboundSettings, WorkItem};
    use crate::cpus::CpuSet;
    use crate::flags::WakeEvent;

    fn pool(threads: usize) -> UnboundPool {
        UnboundPool::new(UnboundSettings::new("model").max_threads(threads))
    }

    fn submit(pool: &UnboundPool, ran: &Arc<AtomicUsize>) {
        let ran = Arc::clone(ran);
        let placed = pool.submit(move || {
            ran.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(placed, SubmitOutcome::Queued);
    }

    fn model(check: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(2));
        builder.check(check);
    }

    #[test]
    fn every_item_runs_before_the_pool_is_gone() {
        model(|| {
            let pool = pool(1);
            let ran = Arc::new(AtomicUsize::new(0));
            submit(&pool, &ran);
            submit(&pool, &ran);
            drop(pool);
            assert_eq!(ran.load(Ordering::Relaxed), 2);
        });
    }

    #[test]
    fn a_sleeping_thread_is_woken_for_every_item() {
        model(|| {
            let pool = pool(1);
            for _ in 0..2 {
                let done = Arc::new(WakeEvent::new());
                let signal = Arc::clone(&done);
                let placed = pool.submit(move || {
                    let _: bool = signal.set();
                });
                assert_eq!(placed, SubmitOutcome::Queued);
                let _: bool = done.wait();
            }
        });
    }

    #[test]
    fn two_submitters_share_the_threads() {
        model(|| {
            let pool = Arc::new(pool(2));
            let ran = Arc::new(AtomicUsize::new(0));
            let other = {
                let (pool, ran) = (Arc::clone(&pool), Arc::clone(&ran));
                loom::thread::spawn(move || submit(&pool, &ran))
            };
            submit(&pool, &ran);
            other.join().unwrap();
            drop(pool);
            assert_eq!(ran.load(Ordering::Relaxed), 2);
        });
    }

    /// U3: the last submitter that fails runs what all of them have queued.
    #[test]
    fn items_of_submitters_that_get_no_thread_run_once() {
        model(|| {
            let settings = UnboundSettings::new("model").max_threads(2);
            settings.spawner.faults.set(CpuSet::new(), true);
            let pool = Arc::new(UnboundPool::new(settings));
            let ran = Arc::new(AtomicUsize::new(0));
            let submit = |pool: &UnboundPool, ran: &Arc<AtomicUsize>| {
                let ran = Arc::clone(ran);
                pool.submit(move || {
                    ran.fetch_add(1, Ordering::Relaxed);
                });
            };
            let other = {
                let (pool, ran) = (Arc::clone(&pool), Arc::clone(&ran));
                loom::thread::spawn(move || submit(&pool, &ran))
            };
            submit(&pool, &ran);
            other.join().unwrap();
            // Before the pool ends, which would run what is left.
            assert_eq!(ran.load(Ordering::Relaxed), 2);
        });
    }

    #[test]
    fn a_thread_that_is_started_while_the_pool_is_shut_down_has_ended_when_it_is_gone() {
        model(|| {
            let pool = Arc::new(pool(2));
            let ran = Arc::new(AtomicUsize::new(0));
            let [outer_begun, inner_begun] = [(), ()].map(|()| Arc::new(WakeEvent::new()));
            let signal = Arc::clone(&outer_begun);
            let (inner, counted) = (Arc::clone(&pool), Arc::clone(&ran));
            // As a thread of the fallback requeues what waited for a CPU that goes.
            pool.submit(move || {
                let _: bool = signal.set();
                let signal = Arc::clone(&inner_begun);
                let work = move || {
                    let _: bool = signal.set();
                    counted.fetch_add(1, Ordering::Relaxed);
                };
                let _: SubmitOutcome = inner.enqueue(WorkItem::new(work, Instant::now()));
                // So that another thread has the item.
                let _: bool = inner_begun.wait();
            });
            let _: bool = outer_begun.wait();
            // As the owner of the per-CPU workers does: it waits for all threads, wherever the last handle is dropped.
            pool.shut_down();
            assert_eq!(ran.load(Ordering::Relaxed), 1);
        });
    }

    #[test]
    fn an_item_may_drop_the_last_handle_of_its_pool() {
        model(|| {
            let pool = Arc::new(pool(1));
            let ran = Arc::new(AtomicUsize::new(0));
            let (inner, counted) = (Arc::clone(&pool), Arc::clone(&ran));
            pool.submit(move || {
                counted.fetch_add(1, Ordering::Relaxed);
                drop(inner);
            });
            submit(&pool, &ran);
            drop(pool);
            // The last drop may be the item's: then nothing here waits for the item. Loom ends the
            // model when every thread has, and reports what leaked.
            assert!(ran.load(Ordering::Relaxed) <= 2);
        });
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Barrier, Mutex, mpsc};

    use super::{SubmitOutcome, UnboundPool, UnboundSettings, thread_name};
    use crate::cpus::CpuSet;

    fn pool(threads: usize) -> UnboundPool {
        UnboundPool::new(UnboundSettings::new("spare").max_threads(threads))
    }

    /// Keeps a pool's only thread busy until the returned sender is dropped.
    fn block(pool: &UnboundPool) -> mpsc::Sender<()> {
        let (release, released) = mpsc::channel::<()>();
        let (begin, begun) = mpsc::channel();
        let placed = pool.submit(move || {
            begin.send(()).unwrap();
            assert!(released.recv().is_err());
        });
        assert_eq!(placed, SubmitOutcome::Queued);
        begun.recv().unwrap();
        release
    }

    #[test]
    fn an_unused_pool_has_no_thread_and_ends_at_once() {
        let pool = pool(4);
        assert!(pool.stats().threads.is_empty());
    }

    #[test]
    fn one_item_starts_one_thread_and_the_next_one_uses_it() {
        let pool = pool(4);
        for round in 1..=20 {
            let (done, is_done) = mpsc::channel();
            assert_eq!(pool.submit(move || done.send(()).unwrap()), SubmitOutcome::Queued);
            is_done.recv().unwrap();
            // The thread is idle only when it sleeps; until then another one may be started.
            while pool.idle_threads() == 0 {
                std::thread::yield_now();
            }
            assert_eq!(pool.stats().threads.len(), 1, "round {round}");
        }
        assert_eq!(pool.stats().items(), 20);
    }

    #[test]
    fn as_many_threads_run_at_once_as_are_allowed_and_no_more() {
        const THREADS: usize = 3;
        let pool = pool(THREADS);
        let together = Arc::new(Barrier::new(THREADS));
        let (running, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        for _ in 0..THREADS * 10 {
            let (together, running, peak) = (together.clone(), running.clone(), peak.clone());
            pool.submit(move || {
                peak.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                together.wait();
                running.fetch_sub(1, Ordering::SeqCst);
            });
        }
        drop(pool);
        assert_eq!(peak.load(Ordering::SeqCst), THREADS);
    }

    #[test]
    fn dropping_the_pool_runs_all_that_was_submitted() {
        for _ in 0..50 {
            let ran = Arc::new(AtomicUsize::new(0));
            let pool = pool(2);
            for _ in 0..100 {
                let ran = Arc::clone(&ran);
                pool.submit(move || {
                    ran.fetch_add(1, Ordering::Relaxed);
                });
            }
            drop(pool);
            assert_eq!(ran.load(Ordering::Relaxed), 100);
        }
    }

    #[test]
    fn what_an_item_submits_runs_inside_of_it() {
        let pool = Arc::new(pool(1));
        let (send, receive) = mpsc::channel();
        let inner = Arc::clone(&pool);
        pool.submit(move || {
            let outer = std::thread::current().id();
            let (sender, receiver) = mpsc::channel();
            let placed = inner.submit(move || sender.send(std::thread::current().id()).unwrap());
            // It has run already: nothing is waited for, on the only thread.
            send.send((placed, receiver.try_recv() == Ok(outer))).unwrap();
        });
        assert_eq!(receive.recv().unwrap(), (SubmitOutcome::Inline, true));
        assert_eq!(pool.stats().threads[0].inline, 1);
    }

    #[test]
    fn a_full_queue_makes_the_submitter_run_the_work() {
        let pool = pool(1);
        let release = block(&pool);
        let ran_on = Arc::new(Mutex::new(HashSet::new()));
        let mut queued = 0;
        loop {
            let ran_on = Arc::clone(&ran_on);
            let work = move || {
                ran_on.lock().unwrap().insert(std::thread::current().id());
            };
            if pool.submit(work) == SubmitOutcome::Inline {
                break;
            }
            queued += 1;
        }
        assert_eq!(queued, super::MAX_ITEMS_PER_THREAD);
        assert_eq!(*ran_on.lock().unwrap(), HashSet::from([std::thread::current().id()]));
        assert_eq!(pool.stats().inline, 1);
        drop(release);
    }

    #[test]
    fn a_panic_ends_with_its_item_even_if_the_payload_panics_too() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("a payload that panics");
            }
        }
        let pool = pool(1);
        pool.submit(|| panic!("an item"));
        pool.submit(|| std::panic::panic_any(Bomb));
        let (done, is_done) = mpsc::channel();
        pool.submit(move || done.send(()).unwrap());
        is_done.recv().unwrap();
        let snapshot = pool.stats();
        assert_eq!((snapshot.threads.len(), snapshot.threads[0].panics), (1, 2));
    }

    #[test]
    fn without_any_thread_the_submitter_runs_the_work() {
        let settings = UnboundSettings::new("spare").max_threads(2);
        settings.spawner.faults.set(CpuSet::new(), true);
        let faults = Arc::clone(&settings.spawner.faults);
        let pool = UnboundPool::new(settings);
        let ran = Arc::new(AtomicUsize::new(0));
        for _ in 0..10 {
            let ran = Arc::clone(&ran);
            assert_eq!(
                pool.submit(move || {
                    ran.fetch_add(1, Ordering::Relaxed);
                }),
                SubmitOutcome::Inline
            );
        }
        assert_eq!(ran.load(Ordering::Relaxed), 10);
        let snapshot = pool.stats();
        assert_eq!((snapshot.inline, snapshot.refused_threads, faults.count()), (10, 10, 10));
        // When threads can be had again they are.
        faults.set(CpuSet::new(), false);
        assert_eq!(pool.submit(|| ()), SubmitOutcome::Queued);
    }

    #[test]
    fn an_item_may_drop_the_last_handle_of_its_pool() {
        for _ in 0..50 {
            let pool = Arc::new(pool(2));
            let ran = Arc::new(AtomicUsize::new(0));
            let (inner, counted) = (Arc::clone(&pool), Arc::clone(&ran));
            let (go, may_go) = mpsc::channel::<()>();
            let (done, is_done) = mpsc::channel();
            pool.submit(move || {
                may_go.recv().unwrap();
                for _ in 0..5 {
                    let (counted, done) = (Arc::clone(&counted), done.clone());
                    inner.enqueue(super::WorkItem::new(
                        move || {
                            counted.fetch_add(1, Ordering::Relaxed);
                            done.send(()).unwrap();
                        },
                        std::time::Instant::now(),
                    ));
                }
                drop(inner);
            });
            drop(pool);
            go.send(()).unwrap();
            // Ends when every item has run: the last sender is gone then.
            assert_eq!(is_done.iter().count(), 5);
            assert_eq!(ran.load(Ordering::Relaxed), 5);
        }
    }

    #[test]
    fn a_long_name_is_cut_and_its_number_is_not() {
        assert_eq!(thread_name("worker", "/3"), "worker/3");
        assert_eq!(thread_name("erofs_worker", "/127"), "erofs_worke/127");
        assert_eq!(thread_name("ärger-mit-namen", "/12"), "ärger-mit-n/12");
        assert_eq!(thread_name("äääääääää", "/1"), "ääääää/1");
    }
}
