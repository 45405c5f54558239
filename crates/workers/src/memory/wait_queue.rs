//! The wait queue of a budget: requests that must succeed wait here until memory comes back. It
//! owns their order and their sleep, never what they wait for, which is an attempt of the caller's.
//! `Budget` and `PagePool` share one queue, since what either gives back may serve both.
//!
//! docs/workers.md, protocol B, steps B1 to B9.

use std::time::{Duration, Instant};

use crate::sync::{AtomicU32, AtomicU64, Futex, Ordering};

/// Nobody has the turn.
const NOBODY: u64 = u64::MAX;
/// The first sleep of the waiter that has the turn. Returned memory wakes it; the clock is for
/// refusals by the system, which tells nobody when it has memory again.
const BACKOFF_MIN: Duration = Duration::from_millis(1);
/// The longest sleep of the waiter that has the turn.
const BACKOFF_MAX: Duration = Duration::from_millis(50);
/// How long nothing must come back before a holder may pass the waiter that has the turn.
const QUIET_PERIOD: Duration = Duration::from_millis(10);
/// A wait lasts at most this many stall times, even while memory comes back to others all the time.
const STALLS_MAX: u32 = 6;

/// Whether a waiter holds what others may be waiting for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitPriority {
    /// It holds nothing and passes nobody. Otherwise requests that come back again and again would
    /// keep the oldest waiting for ever, in whatever order they passed.
    Normal,
    /// It holds memory and needs more to finish and give it back. It may pass while nothing comes
    /// back, since it may hold what the oldest waits for.
    Holder,
}

/// Waiters by age: the oldest has the turn.
#[derive(Debug)]
pub(super) struct WaitQueue {
    /// How many wait. Everybody outside looks whether this is zero.
    waiters: AtomicU32,
    /// The smallest number that was entered for the turn, or `NOBODY`.
    turn: AtomicU64,
    /// The next waiter's number.
    numbers: AtomicU64,
    /// Counts returns while somebody waits; the waiter that has the turn sleeps on it.
    returns: Futex,
    /// Counts ends of turns; the others sleep on it.
    turns: Futex,
}

impl WaitQueue {
    pub(super) fn new() -> Self {
        Self {
            waiters: AtomicU32::new(0),
            turn: AtomicU64::new(NOBODY),
            numbers: AtomicU64::new(0),
            returns: Futex::new(0),
            turns: Futex::new(0),
        }
    }

    /// Whether nobody waits, so that a new request takes nothing away from an older one. It is a
    /// guess: a request that looks a moment too early passes once.
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) == 0
    }

    /// Wakes waiters after something came back. The caller has returned it by a SeqCst operation
    /// before. Without waiters this is one load.
    pub(super) fn notify(&self) {
        // B1. A waiter that enters unseen sees what the caller returned by a SeqCst operation:
        // pairs with B4.
        sequential();
        if self.waiters.load(Ordering::SeqCst) != 0 {
            self.wake_waiters();
        }
    }

    #[cold]
    fn wake_waiters(&self) {
        // B2. Release: a waiter that reads the new count (B5) sees what came back.
        self.returns.word.fetch_add(1, Ordering::Release);
        // All, not one: the turn may be changing hands, and both waiters may sleep on this word.
        self.returns.wake_all();
    }

    /// Tries until `attempt` returns something, or gives up. Only the oldest waiter tries, and
    /// holders when nothing has come back for [`QUIET_PERIOD`].
    #[cold]
    pub(super) fn wait<T>(
        &self,
        stall: Duration,
        priority: WaitPriority,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let entry = self.enter();
        let mut deadline = WaitDeadline::new(stall, self.returns.word.load(Ordering::Relaxed));
        let mut backoff = BACKOFF_MIN;
        let mut may_pass = false;
        loop {
            // B5. Both counts are read before anything else, so that whatever happens from here on
            // ends the sleep at B7. Acquire: pairs with B2 and B9.
            let returns = self.returns.word.load(Ordering::Acquire);
            let turns = self.turns.word.load(Ordering::Acquire);
            // B6. The oldest has the turn. AcqRel: pairs with the end of a turn (B8), so that the
            // last waiter is counted there.
            let has_turn = self.turn.fetch_min(entry.number, Ordering::AcqRel) >= entry.number;
            if (has_turn || may_pass)
                && let Some(taken) = attempt()
            {
                return Some(taken);
            }
            if deadline.is_over(returns, has_turn) {
                return None;
            }
            // B7. Sleep until something comes back, or until the turn ends.
            if has_turn {
                self.returns.wait_for(returns, backoff);
                backoff = BACKOFF_MAX.min(backoff.saturating_mul(2));
                may_pass = false;
            } else {
                let is_quiet = self.sleep_for_turn(turns, returns);
                may_pass = is_quiet && priority == WaitPriority::Holder;
            }
        }
    }

    /// Sleeps until a turn ends. True if the clock ended the sleep and nothing came back.
    fn sleep_for_turn(&self, turns: u32, returns: u32) -> bool {
        let started_at = Instant::now();
        self.turns.wait_for(turns, QUIET_PERIOD);
        // The load comes first, so that a model takes the same steps whatever the clock says.
        let is_quiet = self.returns.word.load(Ordering::Acquire) == returns;
        is_quiet && started_at.elapsed() >= QUIET_PERIOD
    }

    fn enter(&self) -> QueueEntry<'_> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        // B3. Counted before the first attempt.
        self.waiters.fetch_add(1, Ordering::SeqCst);
        // B4. Either the attempt, which begins with a SeqCst load, sees what came back, or `notify`
        // sees the waiter: pairs with B1.
        sequential();
        QueueEntry { queue: self, number }
    }

    /// How many wait now, for tests.
    #[cfg(all(test, not(loom)))]
    pub(super) fn waiters(&self) -> u32 {
        self.waiters.load(Ordering::SeqCst)
    }
}

/// One waiter in the queue. It leaves on drop, so that a panic in an attempt leaves, too.
#[derive(Debug)]
struct QueueEntry<'queue> {
    queue: &'queue WaitQueue,
    number: u64,
}

impl Drop for QueueEntry<'_> {
    fn drop(&mut self) {
        let queue = self.queue;
        // B8. AcqRel: a waiter that entered for the turn before (B6) is among those counted below.
        let ends_turn = queue
            .turn
            .compare_exchange(self.number, NOBODY, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        let others = queue.waiters.fetch_sub(1, Ordering::Relaxed) > 1;
        if ends_turn && others {
            // B9. Release: pairs with B5. All wake; the oldest takes the turn, the others sleep
            // again.
            queue.turns.word.fetch_add(1, Ordering::Release);
            queue.turns.wake_all();
        }
    }
}

/// When one wait gives up.
#[derive(Debug)]
struct WaitDeadline {
    stall: Duration,
    started_at: Instant,
    quiet_since: Instant,
    returns: u32,
}

impl WaitDeadline {
    /// Starts both clocks; `returns` is the queue's count of returns now.
    fn new(stall: Duration, returns: u32) -> Self {
        let started_at = Instant::now();
        Self { stall, started_at, quiet_since: started_at, returns }
    }

    /// Whether to give up: nothing came back for the stall time while this waiter had the turn, or
    /// the wait as a whole took too long.
    ///
    /// The quiet clock restarts while the waiter does not have the turn. So of many waiters that
    /// are stuck together one gives up at a time, and what its failure gives back saves the others.
    fn is_over(&mut self, returns: u32, has_turn: bool) -> bool {
        let now = Instant::now();
        if returns != self.returns || !has_turn {
            self.returns = returns;
            self.quiet_since = now;
        }
        now.duration_since(self.quiet_since) >= self.stall
            || now.duration_since(self.started_at) >= self.stall.saturating_mul(STALLS_MAX)
    }
}

/// Orders two SeqCst accesses of different words. They are in one order as they are, and on x86-64
/// a fence after an atomic addition would pay for it twice.
#[cfg(not(loom))]
fn sequential() {}

/// Loom treats a SeqCst access as an acquire or a release, and only a fence as more.
#[cfg(loom)]
fn sequential() {
    crate::sync::fence(Ordering::SeqCst);
}

/// Every interleaving of waiters and returns. Sleep has no clock here: a wake-up
/// that is lost is a deadlock, and loom says so.
#[cfg(all(test, loom))]
mod loom_tests {
    #![allow(
        clippy::unwrap_used,
        clippy::assertions_on_result_states,
        reason = "a test may fail where it stands"
    )]

    use super::*;
    use crate::sync::{Arc, thread};

    const STALL: Duration = Duration::from_secs(3600);

    /// A count and its waiters: the smallest budget.
    struct BudgetInner {
        wait_queue: WaitQueue,
        left: AtomicU32,
    }

    impl BudgetInner {
        fn with(left: u32) -> Arc<Self> {
            Arc::new(Self { wait_queue: WaitQueue::new(), left: AtomicU32::new(left) })
        }

        fn try_charge_bytes(&self, count: u32) -> Option<()> {
            let mut left = self.left.load(Ordering::SeqCst);
            loop {
                let less = left.checked_sub(count)?;
                match self.left.compare_exchange(left, less, Ordering::SeqCst, Ordering::Acquire) {
                    Ok(_) => return Some(()),
                    Err(now) => left = now,
                }
            }
        }

        fn take(&self, count: u32) {
            if self.wait_queue.is_empty() && self.try_charge_bytes(count).is_some() {
                return;
            }
            self.wait_queue
                .wait(STALL, WaitPriority::Normal, || self.try_charge_bytes(count))
                .unwrap();
        }

        fn release(&self, count: u32) {
            self.left.fetch_add(count, Ordering::SeqCst);
            self.wait_queue.notify();
        }
    }

    #[test]
    fn a_return_just_before_the_sleep_is_not_lost() {
        loom::model(|| {
            let shared = BudgetInner::with(0);
            let waiter = Arc::clone(&shared);
            let thread = thread::spawn(move || waiter.take(1));
            shared.release(1);
            thread.join().unwrap();
            assert_eq!(shared.left.load(Ordering::SeqCst), 0);
            assert!(shared.wait_queue.is_empty());
        });
    }

    #[test]
    fn two_returns_are_enough_for_one_that_wants_both() {
        loom::model(|| {
            let shared = BudgetInner::with(0);
            let waiter = Arc::clone(&shared);
            let thread = thread::spawn(move || waiter.take(2));
            shared.release(1);
            shared.release(1);
            thread.join().unwrap();
            assert_eq!(shared.left.load(Ordering::SeqCst), 0);
        });
    }

    #[test]
    fn of_two_that_wait_both_come_to_their_turn() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let shared = BudgetInner::with(0);
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let waiter = Arc::clone(&shared);
                    thread::spawn(move || {
                        waiter.take(1);
                        waiter.release(1);
                    })
                })
                .collect();
            shared.release(1);
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!(shared.left.load(Ordering::SeqCst), 1);
            assert!(shared.wait_queue.is_empty());
        });
    }

    #[test]
    fn one_return_for_two_ends_both_waits() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let shared = BudgetInner::with(0);
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let waiter = Arc::clone(&shared);
                    thread::spawn(move || waiter.take(1))
                })
                .collect();
            shared.release(2);
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!(shared.left.load(Ordering::SeqCst), 0);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_without_the_turn_does_not_count_the_quiet() {
        let mut deadline = WaitDeadline::new(Duration::ZERO, 0);
        assert!(deadline.is_over(0, true), "no time at all is soon over");
        let mut deadline = WaitDeadline::new(Duration::from_secs(3600), 0);
        assert!(!deadline.is_over(0, true), "an hour is not");
        deadline.stall = Duration::from_millis(1);
        deadline.started_at = Instant::now() + Duration::from_secs(3600);
        assert!(!deadline.is_over(1, false), "the clock starts again without the turn");
        assert!(!deadline.is_over(2, true), "and when something comes back");
    }
}
