//! The waiting wait_queue: where those who must succeed wait until something is given back. It owns the
//! order among them and their sleep, never what they wait for: that is an attempt of the caller's.
//! `Budget` and `PagePool` wait here, in one wait_queue, since what either gives back may help both.
//!
//! docs/memory.md, protocol B, steps B1 to B9.

use std::time::{Duration, Instant};

use super::wait_deadline::WaitDeadline;
use crate::sync::{AtomicU32, AtomicU64, Futex, Ordering};

/// Nobody has the turn.
const NOBODY: u64 = u64::MAX;
/// The first sleep of the one who has the turn. Returns wake it; the clock is for refusals by the
/// system, which nobody announces the end of.
const BACKOFF_MIN: Duration = Duration::from_millis(1);
/// The longest sleep of the one who has the turn.
const BACKOFF_MAX: Duration = Duration::from_millis(50);
/// How long nothing may come back before one who holds something may pass the turn.
const QUIET_PERIOD: Duration = Duration::from_millis(10);

/// Whether a waiter holds what others may be waiting for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitPriority {
    /// It holds nothing and never passes: if newcomers passed, those who come back for another round
    /// would keep the oldest waiting for ever, in whatever order they passed.
    Normal,
    /// It holds something and needs more to finish and give it back. It may pass when nothing comes
    /// back, since it may be what the oldest waits for.
    Holder,
}

/// Visitors by age: the oldest has the turn.
#[derive(Debug)]
pub(super) struct WaitQueue {
    /// How many are inside. Zero is what everybody outside looks at.
    waiters: AtomicU32,
    /// The smallest number that was entered for the turn, or `NOBODY`.
    turn: AtomicU64,
    /// The next waiter's number.
    numbers: AtomicU64,
    /// Counts returns while somebody is inside; the one with the turn sleeps on it.
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

    /// Whether nobody waits, so that a newcomer takes nothing away from somebody older. A guess: a
    /// newcomer that enters a moment too late merely passes once.
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) == 0
    }

    /// Says that something was given back. Called after it can be taken, by an operation that is
    /// SeqCst. Without waiters this is one load.
    pub(super) fn notify_waiters(&self) {
        // B1. What was given back, by a SeqCst operation of the caller's, is seen by whoever enters
        // unseen: pairs with B4.
        sequential();
        if self.waiters.load(Ordering::SeqCst) != 0 {
            self.wake_all();
        }
    }

    #[cold]
    fn wake_all(&self) {
        // B2. Release: whoever reads the new count (B5) sees what was given back.
        self.returns.word.fetch_add(1, Ordering::Release);
        // All, not one: the turn may just be changing hands, and both may sleep on this word.
        self.returns.wake_all();
    }

    /// Tries until `attempt` gives something, or gives up. Only the oldest waiter tries; holders do, too,
    /// when nothing came back for [`QUIET_PERIOD`].
    #[cold]
    pub(super) fn wait<T>(
        &self,
        stall: Duration,
        priority: WaitPriority,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let queued = self.enter();
        let mut deadline = WaitDeadline::new(stall, self.returns.word.load(Ordering::Relaxed));
        let mut backoff = BACKOFF_MIN;
        let mut may_pass = false;
        loop {
            // B5. Both counts are read before anything else, so that whatever happens from here on
            // ends the sleep at B7. Acquire: pairs with B2 and B9.
            let returns = self.returns.word.load(Ordering::Acquire);
            let turns = self.turns.word.load(Ordering::Acquire);
            // B6. The oldest has the turn. AcqRel: pairs with the end of a turn (B8), so that the
            // last one inside is counted there.
            let has_turn = self.turn.fetch_min(queued.number, Ordering::AcqRel) >= queued.number;
            if (has_turn || may_pass)
                && let Some(taken) = attempt()
            {
                return Some(taken);
            }
            if deadline.is_over(returns, has_turn) {
                return None;
            }
            // B7. Sleep until a return, or until the turn ends.
            if has_turn {
                self.returns.wait_for(returns, backoff);
                backoff = BACKOFF_MAX.min(backoff.saturating_mul(2));
                may_pass = false;
            } else {
                let is_quiet = self.sleeps_through_quiet(turns, returns);
                may_pass = is_quiet && priority == WaitPriority::Holder;
            }
        }
    }

    /// Sleeps until a turn ends; true when it was the clock that ended it and nothing came back.
    fn sleeps_through_quiet(&self, turns: u32, returns: u32) -> bool {
        let began = Instant::now();
        self.turns.wait_for(turns, QUIET_PERIOD);
        began.elapsed() >= QUIET_PERIOD && self.returns.word.load(Ordering::Acquire) == returns
    }

    fn enter(&self) -> QueuedWaiter<'_> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        // B3. Counted before the first attempt.
        self.waiters.fetch_add(1, Ordering::SeqCst);
        // B4. Either the attempt, which begins with a SeqCst load, sees what was given back, or
        // `notify_waiters` sees the waiter: pairs with B1.
        sequential();
        QueuedWaiter { wait_queue: self, number }
    }

    /// How many wait now, for tests that wait until somebody waits.
    #[cfg(all(test, not(loom)))]
    pub(super) fn waiters(&self) -> u32 {
        self.waiters.load(Ordering::SeqCst)
    }
}

/// One queued; leaving is its drop, so that a panic in an attempt leaves, too.
#[derive(Debug)]
struct QueuedWaiter<'wait_queue> {
    wait_queue: &'wait_queue WaitQueue,
    number: u64,
}

impl Drop for QueuedWaiter<'_> {
    fn drop(&mut self) {
        let wait_queue = self.wait_queue;
        // B8. AcqRel: whoever entered for the turn before (B6) is among the waiters counted below.
        let ends_turn = wait_queue
            .turn
            .compare_exchange(self.number, NOBODY, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        let others = wait_queue.waiters.fetch_sub(1, Ordering::Relaxed) > 1;
        if ends_turn && others {
            // B9. Release: pairs with B5. All wake, the oldest takes the turn, the rest sleep on.
            wait_queue.turns.word.fetch_add(1, Ordering::Release);
            wait_queue.turns.wake_all();
        }
    }
}

/// Between two SeqCst accesses of different words. They are in one order as they are, and on x86-64 a
/// fence after an atomic addition would be paid for twice.
#[cfg(not(loom))]
fn sequential() {}

/// Loom takes a SeqCst access for an acquire or a release, and knows only the fence as more.
#[cfg(loom)]
fn sequential() {
    crate::sync::fence(Ordering::SeqCst);
}

#[cfg(all(test, loom))]
mod loom_tests;
