//! The state to compute one value. It owns that state and gives it back whatever happens: published,
//! finished, dropped, or lost in a panic. It travels into the closure that computes.

use std::hash::Hash;

use super::{CacheValue, SingleFlightInner};
use super::table::{CompletedFill, FilledValue, FinishResult, PermitState};
use super::waiter::Waiter;
use crate::sync::{PlainArc, lock};

/// The state to compute the value of one key. Dropped without a value it wakes everybody who waits,
/// and nothing is remembered.
#[must_use = "dropping a permit makes everybody who waits lookup again"]
pub struct FillPermit<K: Copy + Eq + Hash, V: CacheValue> {
    inner: PlainArc<SingleFlightInner<K, V>>,
    key: K,
    state: PermitState<V>,
    /// It has lain where demands may take it over.
    was_enqueued: bool,
    is_over: bool,
}

impl<K: Copy + Eq + Hash, V: CacheValue> FillPermit<K, V> {
    pub(super) fn new(
        inner: PlainArc<SingleFlightInner<K, V>>,
        key: K,
        state: PermitState<V>,
    ) -> Self {
        Self { inner, key, state, was_enqueued: false, is_over: false }
    }

    /// Says that the computation begins now: from here on nobody takes it over. False when somebody has
    /// while it lay in a queue; then the permit is void and there is nothing to compute. A permit that
    /// was never [handed out](Self::enqueue) is never void.
    #[must_use = "a permit that is void must not compute"]
    pub fn begin(&mut self) -> bool {
        // K5. Nobody takes over what was never in a queue.
        !self.was_enqueued || lock(&self.inner.table).begin(self.key, self.state.permit)
    }

    /// What the value is for.
    #[must_use]
    pub fn key(&self) -> K {
        self.key
    }

    /// How long the value shall be: what was claimed, or more where a longer prefetch was taken over.
    #[must_use]
    pub fn length(&self) -> usize {
        self.state.length
    }

    /// Whether somebody demands the value. For who allocates: then it must succeed, otherwise it may
    /// fail. Asked state before, since a demand may join at any time; once true it stays so.
    #[must_use]
    pub fn is_demanded(&self) -> bool {
        // One that nobody else has known of is a demand's.
        self.state.in_flight.as_ref().is_none_or(|in_flight| in_flight.is_demanded())
    }

    /// Whether somebody waits for the value beside who computes it. A hint: one may come.
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        lock(&self.inner.table).is_waited_for(self.key, self.state.permit)
    }

    /// Says that the permit goes into a queue now, where demands may take it over until it begins, and
    /// gives one who waits for the value, whoever computes it. Who claimed for a prefetch drops that one.
    ///
    /// Without this nobody can help: a worker that waits for what lies behind it in its own queue waits
    /// for ever. And so does who waits while holding the permit.
    pub fn enqueue(&mut self) -> Waiter<K, V> {
        self.was_enqueued = true;
        let wait_handle = lock(&self.inner.table).enqueue(self.key, &self.state);
        Waiter::counted(PlainArc::clone(&self.inner), self.key, wait_handle)
    }

    /// Hands the value to everybody who waits, and keeps it while there is room. A void permit's value
    /// is dropped.
    pub fn publish(mut self, value: V) {
        let (weight, length) = (value.weight_bytes(), value.length());
        let copy = value.clone();
        self.end(Some(FilledValue { value, weight, length }), Some(copy));
    }

    /// For one who computed straight into where it is wanted: ends the in_flight without a value if nobody
    /// else waits. Otherwise the permit comes back, and a copy is to be published.
    #[must_use = "somebody waits for the permit that comes back"]
    pub fn finish_unless_waited(mut self) -> Option<Self> {
        // The guard ends with this statement.
        let finish = lock(&self.inner.table).finish_unless_waited(self.key, self.state.permit);
        if matches!(finish, FinishResult::Waited) {
            return Some(self);
        }
        self.is_over = true;
        if let FinishResult::Over(Some(in_flight)) = finish {
            // A prefetch that waits, though it need not, is not counted: it single_flight again.
            in_flight.end(None);
        }
        None
    }

    fn end(&mut self, filled: Option<FilledValue<V>>, value: Option<V>) {
        self.is_over = true;
        let ended = lock(&self.inner.table).end(self.key, self.state.permit, filled);
        let Some(CompletedFill { in_flight, left, is_above_capacity }) = ended else { return };
        if let Some(in_flight) = in_flight {
            in_flight.end(value);
        }
        // Outside of the lock: the end of a value is somebody else's code.
        drop(left);
        if is_above_capacity {
            self.inner.evict_excess();
        }
    }
}

impl<K: Copy + Eq + Hash, V: CacheValue> Drop for FillPermit<K, V> {
    fn drop(&mut self) {
        if !self.is_over {
            self.end(None, None);
        }
    }
}

impl<K: Copy + Eq + Hash, V: CacheValue> std::fmt::Debug for FillPermit<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FillPermit").field("number", &self.state.permit).finish_non_exhaustive()
    }
}
