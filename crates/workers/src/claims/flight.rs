//! One computation on its way, as those see it who wait for it. It owns the outcome and their sleep;
//! who may compute is the register's to say. Tickets and waiters share it.

use crate::sync::{AtomicBool, AtomicUsize, Condvar, Mutex, Ordering, lock};

/// What came of it.
#[derive(Debug)]
enum Outcome<V> {
    /// Nothing yet.
    Flying,
    /// No value, and no reason: whoever still wants one claims again.
    Gone,
    Value(V),
}

/// The part of a flight that is outside of the register's lock.
#[derive(Debug)]
pub(super) struct Flight<V> {
    outcome: Mutex<Outcome<V>>,
    /// Each flight has its own: nobody wakes for another's end.
    over: Condvar,
    /// Whether somebody's demand is behind it. Only ever set.
    is_demanded: AtomicBool,
    /// Demands that wait or are about to. More come under the register's lock only.
    waiters: AtomicUsize,
}

impl<V: Clone> Flight<V> {
    pub(super) fn new(is_demanded: bool) -> Self {
        Self {
            outcome: Mutex::new(Outcome::Flying),
            over: Condvar::new(),
            is_demanded: AtomicBool::new(is_demanded),
            waiters: AtomicUsize::new(0),
        }
    }

    /// One that nobody is at any more.
    pub(super) fn over() -> Self {
        let flight = Self::new(false);
        *lock(&flight.outcome) = Outcome::Gone;
        flight
    }

    /// K4. Says that a demand is behind it; whether that was new.
    pub(super) fn demand(&self) -> bool {
        // Relaxed: it guards no data, and a worker that looked a moment too early is K9's case.
        !self.is_demanded.swap(true, Ordering::Relaxed)
    }

    pub(super) fn is_demanded(&self) -> bool {
        self.is_demanded.load(Ordering::Relaxed)
    }

    /// Counts one more that waits.
    pub(super) fn add_waiter(&self) {
        // Relaxed: the register's lock orders it before the look of K8.
        self.waiters.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn remove_waiter(&self) {
        // Relaxed: seen late, it costs one copy that nobody takes.
        self.waiters.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn is_waited_for(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) != 0
    }

    /// K7, the second half. Sets the outcome and wakes everybody.
    pub(super) fn end(&self, value: Option<V>) {
        let mut outcome = lock(&self.outcome);
        *outcome = value.map_or(Outcome::Gone, Outcome::Value);
        drop(outcome);
        self.over.notify_all();
    }

    /// The outcome, when there is one: the value, or none when it is gone.
    pub(super) fn outcome(&self) -> Option<Option<V>> {
        match &*lock(&self.outcome) {
            Outcome::Flying => None,
            Outcome::Gone => Some(None),
            Outcome::Value(value) => Some(Some(value.clone())),
        }
    }

    /// K6. Sleeps until there is an outcome.
    pub(super) fn wait(&self) -> Option<V> {
        let mut outcome = lock(&self.outcome);
        loop {
            match &*outcome {
                Outcome::Flying => {}
                Outcome::Gone => return None,
                Outcome::Value(value) => return Some(value.clone()),
            }
            outcome = self.over.wait(outcome).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}
