//! One who waits for a value that somebody else computes. It owns its place among those who wait and
//! gives it back when it ends. Readers hold it between a lookup and the value.

use std::hash::Hash;

use super::{CacheValue, SingleFlightInner};
use super::permit::FillPermit;
use super::table::WaitHandle;
use crate::sync::{PlainArc, lock};

/// Waits for one in_flight. Dropping it leaves.
#[must_use = "dropping a waiter leaves"]
pub struct Waiter<K: Copy + Eq + Hash, V: CacheValue> {
    inner: PlainArc<SingleFlightInner<K, V>>,
    key: K,
    wait_handle: WaitHandle<V>,
    /// A prefetch is not counted: it leaves, and nothing is to be published for its sake.
    is_counted: bool,
}

impl<K: Copy + Eq + Hash, V: CacheValue> Waiter<K, V> {
    /// One that is counted already.
    pub(super) fn counted(
        inner: PlainArc<SingleFlightInner<K, V>>,
        key: K,
        wait_handle: WaitHandle<V>,
    ) -> Self {
        Self { inner, key, wait_handle, is_counted: true }
    }

    /// One that nobody computes for.
    pub(super) fn uncounted(
        inner: PlainArc<SingleFlightInner<K, V>>,
        key: K,
        wait_handle: WaitHandle<V>,
    ) -> Self {
        Self { inner, key, wait_handle, is_counted: false }
    }

    /// Sleeps until the in_flight is over. None when there is no value, or one too short for this lookup:
    /// then lookup again.
    #[must_use = "none says to lookup again"]
    pub fn wait(self) -> Option<V> {
        let value = self.wait_handle.in_flight.wait();
        self.long_enough(value)
    }

    /// The same without sleeping: the waiter comes back while the in_flight is not over.
    ///
    /// # Errors
    ///
    /// The waiter itself, while there is nothing yet.
    pub fn try_wait(self) -> Result<Option<V>, Self> {
        match self.wait_handle.in_flight.outcome() {
            Some(value) => Ok(self.long_enough(value)),
            None => Err(self),
        }
    }

    /// Takes the in_flight out of a queue where nobody has begun it, to compute here rather than sleep. By
    /// value: who computes must not wait for himself.
    ///
    /// # Errors
    ///
    /// The waiter itself, when it lies in no queue, or is over.
    pub fn take_over(self) -> Result<FillPermit<K, V>, Self> {
        let WaitHandle { number, length, .. } = self.wait_handle;
        let taken = lock(&self.inner.table).take_over(self.key, number, length);
        match taken {
            Some(right) => Ok(FillPermit::new(PlainArc::clone(&self.inner), self.key, right)),
            None => Err(self),
        }
    }

    fn long_enough(&self, value: Option<V>) -> Option<V> {
        value.filter(|value| value.length() >= self.wait_handle.length)
    }
}

impl<K: Copy + Eq + Hash, V: CacheValue> Drop for Waiter<K, V> {
    fn drop(&mut self) {
        if self.is_counted {
            self.wait_handle.in_flight.remove_waiter();
        }
    }
}

impl<K: Copy + Eq + Hash, V: CacheValue> std::fmt::Debug for Waiter<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiter").field("number", &self.wait_handle.number).finish_non_exhaustive()
    }
}
