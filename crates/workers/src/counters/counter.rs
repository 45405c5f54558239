//! One number that goes up. Whoever owns it keeps it on a line of its local if its writer is busy.

use crate::sync::{Ordering, PlainAtomicU64};

/// A number that goes up. It orders nothing: a reader sees some recent value.
#[derive(Debug, Default)]
pub(crate) struct Counter(PlainAtomicU64);

impl Counter {
    /// Adds for the only thread that ever adds: no locked instruction.
    pub(crate) fn add(&self, amount: u64) {
        let sum = self.0.load(Ordering::Relaxed).wrapping_add(amount);
        self.0.store(sum, Ordering::Relaxed);
    }

    /// Adds while others may add, too.
    pub(crate) fn add_shared(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
