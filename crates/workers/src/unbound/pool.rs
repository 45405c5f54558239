//! The unbound pool itself: the queue, who waits for it, and when another thread is started.

use std::collections::VecDeque;
use std::time::Instant;

use super::member::{self, Membership};
use super::seat::Seat;
use super::starter::{Starter, thread_name};
use super::tally::{Tally, WorkerSnapshot};
use super::work::Work;
use crate::contained::{Outcome, contained};
use crate::counters::Counter;
use crate::cpus::{CPUS_MAX, CpuSet, Granted};
use crate::priority::Wanted;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, lock};
use crate::thread::{Owned, Placement, Start};

/// Items that may wait for each thread, as in an inbox of a CPU and for the same reason: more of them
/// keep no thread busier. Who meets the limit runs the work itself.
pub(super) const ITEMS_MAX_PER_THREAD: usize = 256;

/// How an unbound pool is to be.
#[derive(Debug, Clone)]
pub struct Settings {
    name: String,
    threads_max: Option<usize>,
    pub(crate) starter: Starter,
}

impl Settings {
    /// As many threads as the system runs at once, with names that begin with `name`.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), threads_max: None, starter: Starter::default() }
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
pub enum Placed {
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
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    name: String,
    threads_max: usize,
    starter: Starter,
    state: Mutex<State>,
    work_came: Condvar,
    inline: Counter,
    inline_panics: Counter,
    refused_threads: Counter,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Work>,
    /// Threads that exist or are about to; they only go when the pool is closing.
    threads: usize,
    /// Those of them that have not looked at the queue yet.
    arriving: usize,
    /// Those of them that sleep.
    idle: usize,
    is_closing: bool,
    owned: Vec<Owned>,
    crew: Vec<(Arc<Tally>, Seat)>,
}

impl State {
    /// U2. Whether more waits than threads are free for; a sleeper which is being woken still counts
    /// as idle, and the item that it was woken for still counts as waiting.
    fn is_short_of_threads(&self, threads_max: usize) -> bool {
        self.queue.len() > self.idle + self.arriving && self.threads < threads_max
    }
}

impl UnboundPool {
    /// A pool without threads.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let threads_max = settings.threads_max.unwrap_or_else(|| Granted::read().parallelism());
        let shared = Shared {
            name: settings.name,
            threads_max,
            starter: settings.starter,
            state: Mutex::new(State::default()),
            work_came: Condvar::new(),
            inline: Counter::default(),
            inline_panics: Counter::default(),
            refused_threads: Counter::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Has `work` run on one of the pool's threads. It never fails and never waits for a thread, but
    /// the work may run on the caller before this returns: so hold no lock that it takes. A panic of
    /// the work ends with the work.
    pub fn submit(&self, work: impl FnOnce() + Send + 'static) -> Placed {
        if let Some(tally) = member::own_tally(self.id()) {
            run_nested(&tally, work);
            return Placed::Inline;
        }
        self.place(Work::new(work, Instant::now()))
    }

    /// What its threads did, until about now.
    #[must_use]
    pub fn snapshot(&self) -> UnboundSnapshot {
        let shared = &self.shared;
        let crew = lock(&shared.state).crew.clone();
        UnboundSnapshot {
            threads: crew.iter().map(|(tally, seat)| tally.snapshot(None, Some(*seat))).collect(),
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

    /// Who the pool is, for [`super::is_member`]. Unique as long as any of its threads lives.
    pub(crate) fn id(&self) -> usize {
        std::ptr::from_ref(&*self.shared).addr()
    }

    /// U1. Queues work, or runs it on the caller. Unlike [`UnboundPool::submit`] this may be called
    /// on the pool's own threads to have the work run by another one.
    pub(crate) fn place(&self, work: Work) -> Placed {
        let shared = &self.shared;
        let mut state = lock(&shared.state);
        let has_room = state.queue.len() < shared.threads_max.saturating_mul(ITEMS_MAX_PER_THREAD);
        if state.is_closing || !has_room || state.queue.try_reserve(1).is_err() {
            drop(state);
            shared.run_here(work);
            return Placed::Inline;
        }
        state.queue.push_back(work);
        let is_short = state.is_short_of_threads(shared.threads_max);
        if is_short {
            state.threads += 1;
            state.arriving += 1;
        }
        let (index, has_sleepers) = (state.threads, state.idle > 0);
        drop(state);
        if has_sleepers {
            shared.work_came.notify_one();
        }
        if is_short { Shared::grow(shared, index) } else { Placed::Queued }
    }

    /// Lets its threads run on these CPUs: a thread that was started under another mask would keep
    /// that.
    pub(crate) fn bind_to(&self, cpus: &CpuSet) {
        let state = lock(&self.shared.state);
        // Before the pool is closing no thread ends, so that a number is not another thread's.
        if !state.is_closing {
            state.crew.iter().for_each(|(_, seat)| {
                let _is_bound: bool = seat.bind_to(cpus);
            });
        }
    }

    /// U6. No new work; what waits is run; the threads end. Waits for that, except on a thread of
    /// the pool, which lets them end by themselves.
    pub(crate) fn shut_down(&self) {
        let mut state = lock(&self.shared.state);
        state.is_closing = true;
        let owned = if member::is_member(self.id()) {
            Vec::new()
        } else {
            std::mem::take(&mut state.owned)
        };
        drop(state);
        self.shared.work_came.notify_all();
        owned.into_iter().for_each(Owned::join);
    }
}

impl Drop for UnboundPool {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// Runs work inside of the item that submits it.
pub(crate) fn run_nested(tally: &Tally, work: impl FnOnce()) {
    tally.ran_inline();
    if contained(work) == Outcome::Panicked {
        tally.panicked();
    }
}

impl Shared {
    /// U3. Starts one thread, outside of the lock. Where none is to be had and there is no other, all
    /// that waits is run here: nobody else would.
    fn grow(this: &Arc<Self>, index: usize) -> Placed {
        let name = thread_name(&this.name, &format!("/u{}", index - 1));
        let start = Start { name, cpu: None, priority: Wanted::Normal };
        let shared = Arc::clone(this);
        match this.starter.start(start, move |placement| Self::serve(&shared, placement)) {
            Ok(owned) => {
                lock(&this.state).owned.push(owned);
                Placed::Queued
            }
            Err(_) => this.do_without(),
        }
    }

    #[cold]
    fn do_without(&self) -> Placed {
        self.refused_threads.add_shared(1);
        let mut state = lock(&self.state);
        state.threads -= 1;
        state.arriving -= 1;
        if state.threads > 0 {
            return Placed::Queued;
        }
        let orphans = std::mem::take(&mut state.queue);
        drop(state);
        orphans.into_iter().for_each(|work| self.run_here(work));
        Placed::Inline
    }

    fn run_here(&self, work: Work) {
        self.inline.add_shared(1);
        if work.run_here() == Outcome::Panicked {
            self.inline_panics.add_shared(1);
        }
    }

    /// U4. The life of a thread.
    fn serve(this: &Arc<Self>, placement: Placement) {
        let tally = Arc::new(Tally::new());
        let _membership = Membership::new(std::ptr::from_ref(&**this).addr(), Arc::clone(&tally));
        let mut state = lock(&this.state);
        state.crew.push((Arc::clone(&tally), Seat::of_current_thread(placement.rung)));
        state.arriving -= 1;
        loop {
            if let Some(work) = state.queue.pop_front() {
                drop(state);
                work.run(&tally);
                state = lock(&this.state);
            } else if state.is_closing {
                return;
            } else {
                state = this.sleep(state);
                tally.slept();
            }
        }
    }

    /// U5. Between the look at the queue and falling asleep the lock is held, so no item is missed.
    fn sleep<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.idle += 1;
        let woken = self.work_came.wait(state);
        let mut state = woken.unwrap_or_else(std::sync::PoisonError::into_inner);
        state.idle -= 1;
        state
    }
}

/// What an unbound pool did, until about now.
#[derive(Debug, Clone)]
pub struct UnboundSnapshot {
    /// One for every thread that was ever started.
    pub threads: Vec<WorkerSnapshot>,
    /// Items that ran on a submitter that is none of the pool's threads.
    pub inline: u64,
    /// Those of them that panicked.
    pub inline_panics: u64,
    /// Threads that the system refused.
    pub refused_threads: u64,
}

impl UnboundSnapshot {
    /// Items that ran on the pool's threads out of the queue.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.threads.iter().map(|thread| thread.items).sum()
    }
}
