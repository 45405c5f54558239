//! One who waits for a value that somebody else computes. It owns its place among those who wait and
//! gives it back when it ends. Readers hold it between a claim and the value.

use std::hash::Hash;

use super::claim::{Shared, Value};
use super::register::Boarding;
use super::ticket::Ticket;
use crate::sync::{PlainArc, lock};

/// Waits for one flight. Dropping it leaves.
#[must_use = "dropping a waiter leaves"]
pub struct Waiter<K: Copy + Eq + Hash, V: Value> {
    shared: PlainArc<Shared<K, V>>,
    key: K,
    boarding: Boarding<V>,
    /// A prefetch is not counted: it leaves, and nothing is to be published for its sake.
    is_counted: bool,
}

impl<K: Copy + Eq + Hash, V: Value> Waiter<K, V> {
    /// One that is counted already.
    pub(super) fn counted(shared: PlainArc<Shared<K, V>>, key: K, boarding: Boarding<V>) -> Self {
        Self { shared, key, boarding, is_counted: true }
    }

    /// One that nobody computes for.
    pub(super) fn uncounted(shared: PlainArc<Shared<K, V>>, key: K, boarding: Boarding<V>) -> Self {
        Self { shared, key, boarding, is_counted: false }
    }

    /// Sleeps until the flight is over. None when there is no value, or one too short for this claim:
    /// then claim again.
    #[must_use = "none says to claim again"]
    pub fn wait(self) -> Option<V> {
        let value = self.boarding.flight.wait();
        self.long_enough(value)
    }

    /// The same without sleeping: the waiter comes back while the flight is not over.
    ///
    /// # Errors
    ///
    /// The waiter itself, while there is nothing yet.
    pub fn try_now(self) -> Result<Option<V>, Self> {
        match self.boarding.flight.outcome() {
            Some(value) => Ok(self.long_enough(value)),
            None => Err(self),
        }
    }

    /// Takes the flight out of a queue where nobody has begun it, to compute here rather than sleep. By
    /// value: who computes must not wait for himself.
    ///
    /// # Errors
    ///
    /// The waiter itself, when it lies in no queue, or is over.
    pub fn take_over(self) -> Result<Ticket<K, V>, Self> {
        let Boarding { number, length, .. } = self.boarding;
        let taken = lock(&self.shared.register).take_over(self.key, number, length);
        match taken {
            Some(right) => Ok(Ticket::new(PlainArc::clone(&self.shared), self.key, right)),
            None => Err(self),
        }
    }

    fn long_enough(&self, value: Option<V>) -> Option<V> {
        value.filter(|value| value.length() >= self.boarding.length)
    }
}

impl<K: Copy + Eq + Hash, V: Value> Drop for Waiter<K, V> {
    fn drop(&mut self) {
        if self.is_counted {
            self.boarding.flight.remove_waiter();
        }
    }
}

impl<K: Copy + Eq + Hash, V: Value> std::fmt::Debug for Waiter<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiter").field("number", &self.boarding.number).finish_non_exhaustive()
    }
}
