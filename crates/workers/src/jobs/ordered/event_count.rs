//! Where helpers sleep while there is nothing to claim. Many may wait, one thread lets them go, and
//! that costs it a system call only when somebody is there. It guards nothing itself: who waits says
//! what for.
//!
//! docs/workers.md, protocol O, steps O6 and O7.

use crate::cache_padded::CachePadded;
use crate::sync::{AtomicU32, Futex, Ordering, fence};

/// A count of epoch that one can sleep on, and the number of those who may sleep.
#[derive(Debug)]
pub(super) struct EventCount {
    /// Changed by every opening, so that who looked before it does not fall asleep after it.
    epoch: CachePadded<Futex>,
    waiting: CachePadded<AtomicU32>,
}

impl EventCount {
    pub(super) fn new() -> Self {
        Self { epoch: CachePadded(Futex::new(0)), waiting: CachePadded(AtomicU32::new(0)) }
    }

    /// O6. Sleeps unless `has_cause` is true already. May return without cause: callers look again.
    pub(super) fn wait(&self, has_cause: impl Fn() -> bool) {
        // Acquire: pairs with the release in `open`; who reads the new count sees the cause, too.
        let seen = self.epoch.word.load(Ordering::Acquire);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // The look comes after the entry in `waiting`: pairs with the fence in `open`. Either the
        // opener sees that somebody waits, or the cause is seen here.
        fence(Ordering::SeqCst);
        if !has_cause() {
            self.epoch.wait(seen);
        }
        // Relaxed: too high a number for a moment costs the opener a call, no more.
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// O7. Lets one of those who wait look again, after the cause was made visible.
    pub(super) fn notify_one(&self) {
        if self.open() {
            self.epoch.wake_one();
        }
    }

    /// O7. Lets all of them look again.
    pub(super) fn notify_all(&self) {
        if self.open() {
            self.epoch.wake_all();
        }
    }

    /// Whether anybody is there to be woken.
    fn open(&self) -> bool {
        // Pairs with the fence in `wait`.
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return false;
        }
        // Release: pairs with the acquire in `wait`.
        self.epoch.word.fetch_add(1, Ordering::Release);
        true
    }
}
