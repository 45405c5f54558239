//! The right to compute one value. It owns that right and gives it back whatever happens: published,
//! finished, dropped, or lost in a panic. It travels into the closure that computes.

use std::hash::Hash;

use super::claim::{Shared, Value};
use super::register::{Arrival, Ended, Finish, Right};
use super::waiter::Waiter;
use crate::sync::{PlainArc, lock};

/// The right to compute the value of one key. Dropped without a value it wakes everybody who waits,
/// and nothing is remembered.
#[must_use = "dropping a ticket makes everybody who waits claim again"]
pub struct Ticket<K: Copy + Eq + Hash, V: Value> {
    shared: PlainArc<Shared<K, V>>,
    key: K,
    right: Right<V>,
    /// It has lain where demands may take it over.
    was_handed_out: bool,
    is_over: bool,
}

impl<K: Copy + Eq + Hash, V: Value> Ticket<K, V> {
    pub(super) fn new(shared: PlainArc<Shared<K, V>>, key: K, right: Right<V>) -> Self {
        Self { shared, key, right, was_handed_out: false, is_over: false }
    }

    /// Says that the computation begins now: from here on nobody takes it over. False when somebody has
    /// while it lay in a queue; then the ticket is void and there is nothing to compute. A ticket that
    /// was never [handed out](Self::hand_out) is never void.
    #[must_use = "a ticket that is void must not compute"]
    pub fn begin(&mut self) -> bool {
        // K5. Nobody takes over what was never in a queue.
        !self.was_handed_out || lock(&self.shared.register).begin(self.key, self.right.ticket)
    }

    /// What the value is for.
    #[must_use]
    pub fn key(&self) -> K {
        self.key
    }

    /// How long the value shall be: what was claimed, or more where a longer prefetch was taken over.
    #[must_use]
    pub fn length(&self) -> usize {
        self.right.length
    }

    /// Whether somebody demands the value. For who allocates: then it must succeed, otherwise it may
    /// fail. Asked right before, since a demand may join at any time; once true it stays so.
    #[must_use]
    pub fn is_demanded(&self) -> bool {
        // One that nobody else has known of is a demand's.
        self.right.flight.as_ref().is_none_or(|flight| flight.is_demanded())
    }

    /// Whether somebody waits for the value beside who computes it. A hint: one may come.
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        lock(&self.shared.register).is_waited_for(self.key, self.right.ticket)
    }

    /// Says that the ticket goes into a queue now, where demands may take it over until it begins, and
    /// gives one who waits for the value, whoever computes it. Who claimed for a prefetch drops that one.
    ///
    /// Without this nobody can help: a worker that waits for what lies behind it in its own queue waits
    /// for ever. And so does who waits while holding the ticket.
    pub fn hand_out(&mut self) -> Waiter<K, V> {
        self.was_handed_out = true;
        let boarding = lock(&self.shared.register).hand_out(self.key, &self.right);
        Waiter::counted(PlainArc::clone(&self.shared), self.key, boarding)
    }

    /// Hands the value to everybody who waits, and keeps it while there is room. A void ticket's value
    /// is dropped.
    pub fn publish(mut self, value: V) {
        let (weight, length) = (value.weight_bytes(), value.length());
        let copy = value.clone();
        self.end(Some(Arrival { value, weight, length }), Some(copy));
    }

    /// For one who computed straight into where it is wanted: ends the flight without a value if nobody
    /// else waits. Otherwise the ticket comes back, and a copy is to be published.
    #[must_use = "somebody waits for the ticket that comes back"]
    pub fn finish_unless_waited(mut self) -> Option<Self> {
        // The guard ends with this statement.
        let finish = lock(&self.shared.register).finish_unless_waited(self.key, self.right.ticket);
        if matches!(finish, Finish::Waited) {
            return Some(self);
        }
        self.is_over = true;
        if let Finish::Over(Some(flight)) = finish {
            // A prefetch that waits, though it need not, is not counted: it claims again.
            flight.end(None);
        }
        None
    }

    fn end(&mut self, arrival: Option<Arrival<V>>, value: Option<V>) {
        self.is_over = true;
        let ended = lock(&self.shared.register).end(self.key, self.right.ticket, arrival);
        let Some(Ended { flight, left, is_above_capacity }) = ended else { return };
        if let Some(flight) = flight {
            flight.end(value);
        }
        // Outside of the lock: the end of a value is somebody else's code.
        drop(left);
        if is_above_capacity {
            self.shared.evict();
        }
    }
}

impl<K: Copy + Eq + Hash, V: Value> Drop for Ticket<K, V> {
    fn drop(&mut self) {
        if !self.is_over {
            self.end(None, None);
        }
    }
}

impl<K: Copy + Eq + Hash, V: Value> std::fmt::Debug for Ticket<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").field("number", &self.right.ticket).finish_non_exhaustive()
    }
}
