//! The cache of claimed values, as its users see it. It owns the one lock; what happens under it is the
//! register's. Readers claim, reclaimers shed.
//!
//! One lock and not several: the order by last use is then exact, which counts where a cache holds a few
//! values of megabytes, and the section is a look-up, a relinking and the clone of a handle, each in
//! constant time. Whoever claims copies or decodes kilobytes next, which takes longer.

use std::hash::Hash;

use super::counts::ClaimCounts;
use super::register::{Answer, Register};
use super::ticket::Ticket;
use super::waiter::Waiter;
use crate::sync::{Mutex, PlainArc, lock};

/// What is computed once: a handle, whose clones share one content. A clone is made under the lock and
/// must be cheap; the other two and the drop run outside of it.
pub trait Value: Clone + Send + Sync + 'static {
    /// How far it reaches from its start: a longer one serves shorter claims.
    fn length(&self) -> usize;

    /// What it takes of the cache's capacity, in bytes; the same whenever it is asked.
    fn weight_bytes(&self) -> u64;
}

/// Who wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Urgency {
    /// Somebody waits for it.
    Demand,
    /// Somebody may want it soon; who finds it ready or on its way has nothing to do.
    Prefetch,
}

/// The answer to a claim.
#[derive(Debug)]
pub enum Claim<K: Copy + Eq + Hash, V: Value> {
    /// Here it is.
    Ready(V),
    /// The claimer computes it, or hands the ticket to somebody who does.
    Mine(Ticket<K, V>),
    /// Somebody else computes it.
    Pending(Waiter<K, V>),
}

/// A bounded cache in which each value is computed by one of those who want it. Clones are handles of
/// one cache.
pub struct Claims<K: Copy + Eq + Hash, V: Value> {
    shared: PlainArc<Shared<K, V>>,
}

/// What handles, tickets and waiters share.
pub(super) struct Shared<K, V> {
    pub(super) register: Mutex<Register<K, V>>,
}

impl<K: Copy + Eq + Hash, V: Value> Shared<K, V> {
    /// Drops what is above the capacity, each outside of the lock.
    pub(super) fn evict(&self) {
        loop {
            let mut register = lock(&self.register);
            let capacity = register.capacity();
            let evicted = register.evict_above(capacity);
            drop(register);
            if evicted.is_none() {
                return;
            }
        }
    }

    fn shed(&self, bytes: u64, evict: impl Fn(&mut Register<K, V>) -> Option<(V, u64)>) -> u64 {
        let mut gone = 0_u64;
        while gone < bytes {
            // The guard ends with this statement; the value does not.
            let evicted = evict(&mut *lock(&self.register));
            let Some((value, weight)) = evicted else { break };
            drop(value);
            gone = gone.saturating_add(weight);
        }
        gone
    }
}

impl<K: Copy + Eq + Hash, V: Value> Claims<K, V> {
    /// An empty cache that keeps values of `capacity_bytes` together, by weight and 128 bytes each.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> Self {
        let register = Mutex::new(Register::new(capacity_bytes));
        Self { shared: PlainArc::new(Shared { register }) }
    }

    /// Claims the value of `key`, of at least `length`.
    ///
    /// A demand takes over what lies in a queue, and joins what somebody is at: a prefetch that runs is
    /// demanded from then on. A prefetch leaves both alone. Who claims more than a running flight will
    /// have waits for it too, and claims again.
    pub fn claim(&self, key: K, length: usize, urgency: Urgency) -> Claim<K, V> {
        // The guard ends with this statement.
        let answer = lock(&self.shared.register).claim(key, length, urgency);
        let shared = || PlainArc::clone(&self.shared);
        match answer {
            Answer::Ready(value) => Claim::Ready(value),
            Answer::Mine(right) => Claim::Mine(Ticket::new(shared(), key, right)),
            Answer::Pending(boarding) => Claim::Pending(match urgency {
                Urgency::Demand => Waiter::counted(shared(), key, boarding),
                Urgency::Prefetch => Waiter::uncounted(shared(), key, boarding),
            }),
        }
    }

    /// The value of `key` if one of at least `length` is kept: a demand that computes nothing and joins
    /// nobody.
    #[must_use]
    pub fn get(&self, key: K, length: usize) -> Option<V> {
        lock(&self.shared.register).serve(key, length, Urgency::Demand)
    }

    /// Keeps the value of `key` no longer; those who hold it still have it, and one that is on its way comes all
    /// the same.
    pub fn forget(&self, key: K) {
        // The guard ends with this statement; the value is dropped after it.
        let forgotten = lock(&self.shared.register).forget(key);
        drop(forgotten);
    }

    /// Drops values, those first that were used longest ago, until `bytes` of weight went or none is
    /// left; says how much went. A value that somebody still holds goes with its last holder. It waits
    /// for nobody.
    pub fn shed(&self, bytes: u64) -> u64 {
        self.shared.shed(bytes, |register| register.evict_above(0))
    }

    /// The same for best effort: what was prefetched and not used yet goes only while more than `unused` bytes of
    /// weight are kept, so that who decodes ahead does not push out what was decoded ahead.
    pub fn shed_used(&self, bytes: u64, unused: u64) -> u64 {
        self.shared.shed(bytes, |register| register.evict_used(unused))
    }

    /// What [`Budget::register_reclaimer`](crate::memory::Budget::register_reclaimer) takes: sheds while
    /// this cache exists, and does not keep it.
    pub fn reclaimer(&self) -> impl Fn(u64) -> u64 + Send + Sync + 'static + use<K, V>
    where
        K: Send + 'static,
    {
        let weak = PlainArc::downgrade(&self.shared);
        move |bytes| {
            weak.upgrade()
                .map_or(0, |shared| shared.shed(bytes, |register| register.evict_above(0)))
        }
    }

    /// Changes the capacity; what is above goes.
    pub fn set_capacity(&self, capacity_bytes: u64) {
        lock(&self.shared.register).set_capacity(capacity_bytes);
        self.shared.evict();
    }

    /// The weight of what is kept, 128 bytes a value included.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        lock(&self.shared.register).weight()
    }

    /// What was counted so far.
    #[must_use]
    pub fn counts(&self) -> ClaimCounts {
        lock(&self.shared.register).counts()
    }

    /// Keys that are known, kept or on their way.
    #[cfg(all(test, not(loom)))]
    pub(super) fn keys(&self) -> usize {
        lock(&self.shared.register).keys()
    }
}

impl<K: Copy + Eq + Hash, V: Value> Clone for Claims<K, V> {
    fn clone(&self) -> Self {
        Self { shared: PlainArc::clone(&self.shared) }
    }
}

impl<K: Copy + Eq + Hash, V: Value> std::fmt::Debug for Claims<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Claims").field("counts", &self.counts()).finish_non_exhaustive()
    }
}
