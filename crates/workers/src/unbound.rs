//! The unbound pool itself: the queue, who waits for it, and when another thread is started.

use std::collections::VecDeque;
use std::time::Instant;

use super::current_pool::{self, CurrentPoolGuard};
use super::spawner::{ThreadSpawner, thread_name};
use super::thread_info::ThreadInfo;
use super::work_item::WorkItem;
use super::worker_counters::{WorkerCounters, WorkerStats};
use crate::catch_panic::{CallOutcome, catch_panic};
use crate::counters::Counter;
use crate::cpus::{AvailableCpus, CPUS_MAX, CpuSet};
use crate::priority::PriorityRequest;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, lock};
use crate::thread::{OwnedThread, ThreadOptions, ThreadPlacement};

/// Items that may wait for each thread, as in an inbox of a CPU and for the same reason: more of them
/// keep no thread busier. Who meets the limit runs the work itself.
pub(super) const ITEMS_MAX_PER_THREAD: usize = 256;

/// How an unbound pool is to be.
#[derive(Debug, Clone)]
pub struct UnboundSettings {
    name: String,
    threads_max: Option<usize>,
    pub(crate) spawner: ThreadSpawner,
}

impl UnboundSettings {
    /// As many threads as the system runs at once, with names that begin with `name`.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), threads_max: None, spawner: ThreadSpawner::default() }
    }

    /// At most this many threads: from 1 to [`CPUS_MAX`], the nearest of them otherwise.
    #[must_use]
    pub fn threads_max(mut self, threads: usize) -> Self {
        self.threads_max = Some(threads.clamp(1, CPUS_MAX));
        self
    }
}

/// What became of submitted work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubmitOutcome {
    /// A thread of the pool runs it.
    Queued,
    /// The submitter has run it: it is one of the pool's threads itself, or the queue is full, or no
    /// thread is to be had.
    Inline,
}

/// Threads bound to no CPU, and a queue. No thread exists before work waits for it.
///
/// Dropping the pool runs all work that was submitted and ends the threads. On one of its own threads
/// dropping does not wait for that.
#[derive(Debug)]
pub struct UnboundPool {
    shared: Arc<UnboundShared>,
}

#[derive(Debug)]
struct UnboundShared {
    name: String,
    threads_max: usize,
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
    /// Threads that exist or are about to; they only go when the pool is closing.
    threads: usize,
    /// Those of them that have not looked at the queue yet.
    starting: usize,
    /// Those of them that sleep.
    idle: usize,
    is_closing: bool,
    owned: Vec<OwnedThread>,
    workers: Vec<(Arc<WorkerCounters>, ThreadInfo)>,
}

impl UnboundState {
    /// U2. Whether more waits than threads are free for; a sleeper which is being woken still counts
    /// as idle, and the item that it was woken for still counts as waiting.
    fn is_short_of_threads(&self, threads_max: usize) -> bool {
        self.queue.len() > self.idle + self.starting && self.threads < threads_max
    }
}

impl UnboundPool {
    /// A pool without threads.
    #[must_use]
    pub fn new(settings: UnboundSettings) -> Self {
        let threads_max =
            settings.threads_max.unwrap_or_else(|| AvailableCpus::read().parallelism());
        let shared = UnboundShared {
            name: settings.name,
            threads_max,
            spawner: settings.spawner,
            state: Mutex::new(UnboundState::default()),
            work_available: Condvar::new(),
            inline: Counter::default(),
            inline_panics: Counter::default(),
            refused_threads: Counter::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Has `work` run on one of the pool's threads. It never fails and never waits for a thread, but
    /// the work may run on the caller before this returns: so hold no lock that it takes. A panic of
    /// the work ends with the work.
    pub fn submit(&self, work: impl FnOnce() + Send + 'static) -> SubmitOutcome {
        if let Some(counters) = current_pool::current_counters(self.id()) {
            run_nested(&counters, work);
            return SubmitOutcome::Inline;
        }
        self.enqueue(WorkItem::new(work, Instant::now()))
    }

    /// What its threads did, until about now.
    #[must_use]
    pub fn snapshot(&self) -> UnboundStats {
        let shared = &self.shared;
        let workers = lock(&shared.state).workers.clone();
        UnboundStats {
            threads: workers
                .iter()
                .map(|(counters, thread_info)| counters.snapshot(None, Some(*thread_info)))
                .collect(),
            inline: shared.inline.value(),
            inline_panics: shared.inline_panics.value(),
            refused_threads: shared.refused_threads.value(),
        }
    }

    /// How many of its threads sleep.
    #[cfg(all(test, not(loom)))]
    pub(super) fn idle_threads(&self) -> usize {
        lock(&self.shared.state).idle
    }

    /// Who the pool is, for [`super::is_pool_thread`]. Unique as long as any of its threads lives.
    pub(crate) fn id(&self) -> usize {
        std::ptr::from_ref(&*self.shared).addr()
    }

    /// U1. Queues work, or runs it on the caller. Unlike [`UnboundPool::submit`] this may be called
    /// on the pool's own threads to have the work run by another one.
    pub(crate) fn enqueue(&self, work: WorkItem) -> SubmitOutcome {
        let shared = &self.shared;
        let mut state = lock(&shared.state);
        let has_room = state.queue.len() < shared.threads_max.saturating_mul(ITEMS_MAX_PER_THREAD);
        if state.is_closing || !has_room || state.queue.try_reserve(1).is_err() {
            drop(state);
            shared.run_inline(work);
            return SubmitOutcome::Inline;
        }
        state.queue.push_back(work);
        let is_short = state.is_short_of_threads(shared.threads_max);
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

    /// Lets its threads run on these CPUs: a thread that was started under another mask would keep
    /// that.
    pub(crate) fn bind_to(&self, cpus: &CpuSet) {
        let state = lock(&self.shared.state);
        // Before the pool is closing no thread ends, so that a number is not another thread's.
        if !state.is_closing {
            state.workers.iter().for_each(|(_, thread_info)| {
                let _is_bound: bool = thread_info.bind_to(cpus);
            });
        }
    }

    /// U6. No new work; what waits is run; the threads end. WaitHistogram for that, except on a thread of
    /// the pool, which lets them end by themselves.
    pub(crate) fn shut_down(&self) {
        let mut state = lock(&self.shared.state);
        state.is_closing = true;
        let owned = if current_pool::is_pool_thread(self.id()) {
            Vec::new()
        } else {
            std::mem::take(&mut state.owned)
        };
        drop(state);
        self.shared.work_available.notify_all();
        owned.into_iter().for_each(OwnedThread::join);
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
    /// U3. Starts one thread, outside of the lock. Where none is to be had and there is no other, all
    /// that waits is run here: nobody else would.
    fn spawn_thread(this: &Arc<Self>, index: usize) -> SubmitOutcome {
        let name = thread_name(&this.name, &format!("/u{}", index - 1));
        let start = ThreadOptions { name, cpu: None, priority: PriorityRequest::Normal };
        let shared = Arc::clone(this);
        match this.spawner.start(start, move |placement| Self::serve(&shared, placement)) {
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
        let _membership =
            CurrentPoolGuard::new(std::ptr::from_ref(&**this).addr(), Arc::clone(&counters));
        let mut state = lock(&this.state);
        state
            .workers
            .push((Arc::clone(&counters), ThreadInfo::of_current_thread(placement.priority_level)));
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

    /// U5. Between the look at the queue and falling asleep the lock is held, so no item is missed.
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

/// What an unbound pool did, until about now.
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
