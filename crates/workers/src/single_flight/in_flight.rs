//! One computation on its way, as those see it who wait for it. It owns the outcome and their sleep;
//! who may compute is the table's to say. Tickets and waiters share it.

use crate::sync::{AtomicBool, AtomicUsize, Condvar, Mutex, Ordering, lock};

/// What came of it.
#[derive(Debug)]
enum FillOutcome<V> {
    /// Nothing yet.
    Pending,
    /// No value, and no reason: whoever still wants one single_flight again.
    Abandoned,
    CacheValue(V),
}

/// The part of a entry that is outside of the table's lock.
#[derive(Debug)]
pub(super) struct InFlightEntry<V> {
    outcome: Mutex<FillOutcome<V>>,
    /// Each entry has its own: nobody wakes for another's end.
    over: Condvar,
    /// Whether somebody's demand is behind it. Only ever set.
    is_demanded: AtomicBool,
    /// Demands that wait or are about to. More come under the table's lock only.
    waiters: AtomicUsize,
}

impl<V: Clone> InFlightEntry<V> {
    pub(super) fn new(is_demanded: bool) -> Self {
        Self {
            outcome: Mutex::new(FillOutcome::Pending),
            over: Condvar::new(),
            is_demanded: AtomicBool::new(is_demanded),
            waiters: AtomicUsize::new(0),
        }
    }

    /// One that nobody is at any more.
    pub(super) fn over() -> Self {
        let entry = Self::new(false);
        *lock(&entry.outcome) = FillOutcome::Abandoned;
        entry
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
        // Relaxed: the table's lock orders it before the look of K8.
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
        *outcome = value.map_or(FillOutcome::Abandoned, FillOutcome::CacheValue);
        drop(outcome);
        self.over.notify_all();
    }

    /// The outcome, when there is one: the value, or none when it is gone.
    pub(super) fn outcome(&self) -> Option<Option<V>> {
        match &*lock(&self.outcome) {
            FillOutcome::Pending => None,
            FillOutcome::Abandoned => Some(None),
            FillOutcome::CacheValue(value) => Some(Some(value.clone())),
        }
    }

    /// K6. Sleeps until there is an outcome.
    pub(super) fn wait(&self) -> Option<V> {
        let mut outcome = lock(&self.outcome);
        loop {
            match &*outcome {
                FillOutcome::Pending => {}
                FillOutcome::Abandoned => return None,
                FillOutcome::CacheValue(value) => return Some(value.clone()),
            }
            outcome = self.over.wait(outcome).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}
