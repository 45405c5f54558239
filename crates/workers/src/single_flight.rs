//! Values that many threads want are computed by one of them. It owns the kept values, their order and
//! who computes what; it computes nothing, never sees a failure, and knows nothing of what a value is. A
//! reader of clusters single_flight here before it decodes.
//!
//! A lookup is answered by [`Lookup::Hit`], [`Lookup::Miss`] or [`Lookup::Pending`]. What lies in a
//! queue may be taken over, what runs may be upgraded from prefetch to demand, and what ends without a value
//! is forgotten: whoever waited single_flight again.
//!
//! docs/workers.md, protocol K.

mod in_flight;
mod lru;
mod permit;
mod stats;
mod table;
mod waiter;

pub use permit::FillPermit;
pub use stats::SingleFlightStats;
pub use waiter::Waiter;

use std::hash::Hash;

use table::{CacheTable, TableLookup};
use crate::sync::{Mutex, PlainArc, lock};

/// What is computed once: a handle, whose clones share one content. A clone is made under the lock and
/// must be cheap; the other two and the drop run outside of it.
pub trait CacheValue: Clone + Send + Sync + 'static {
    /// How far it reaches from its start: a longer one serves shorter single_flight.
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

/// The answer to a lookup.
#[derive(Debug)]
pub enum Lookup<K: Copy + Eq + Hash, V: CacheValue> {
    /// Here it is.
    Hit(V),
    /// The claimer computes it, or hands the permit to somebody who does.
    Miss(FillPermit<K, V>),
    /// Somebody else computes it.
    Pending(Waiter<K, V>),
}

/// A bounded cache in which each value is computed by one of those who want it. Clones are handles of
/// one cache.
pub struct SingleFlight<K: Copy + Eq + Hash, V: CacheValue> {
    inner: PlainArc<SingleFlightInner<K, V>>,
}

/// What handles, permits and waiters share.
struct SingleFlightInner<K, V> {
    table: Mutex<CacheTable<K, V>>,
}

impl<K: Copy + Eq + Hash, V: CacheValue> SingleFlightInner<K, V> {
    /// Drops what is above the capacity, each outside of the lock.
    fn evict_excess(&self) {
        loop {
            let mut table = lock(&self.table);
            let capacity = table.capacity();
            let evicted = table.evict_above(capacity);
            drop(table);
            if evicted.is_none() {
                return;
            }
        }
    }

    fn evict(&self, bytes: u64, evict: impl Fn(&mut CacheTable<K, V>) -> Option<(V, u64)>) -> u64 {
        let mut gone = 0_u64;
        while gone < bytes {
            // The guard ends with this statement; the value does not.
            let evicted = evict(&mut *lock(&self.table));
            let Some((value, weight)) = evicted else { break };
            drop(value);
            gone = gone.saturating_add(weight);
        }
        gone
    }
}

impl<K: Copy + Eq + Hash, V: CacheValue> SingleFlight<K, V> {
    /// An empty cache that keeps values of `capacity_bytes` together, by weight and 128 bytes each.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> Self {
        let table = Mutex::new(CacheTable::new(capacity_bytes));
        Self { inner: PlainArc::new(SingleFlightInner { table }) }
    }

    /// SingleFlight the value of `key`, of at least `length`.
    ///
    /// A demand takes over what lies in a queue, and joins what somebody is at: a prefetch that runs is
    /// demanded from then on. A prefetch leaves both alone. Who single_flight more than a running in_flight will
    /// have waits for it too, and single_flight again.
    pub fn lookup(&self, key: K, length: usize, urgency: Urgency) -> Lookup<K, V> {
        // The guard ends with this statement.
        let answer = lock(&self.inner.table).lookup(key, length, urgency);
        let inner = || PlainArc::clone(&self.inner);
        match answer {
            TableLookup::Hit(value) => Lookup::Hit(value),
            TableLookup::Miss(right) => Lookup::Miss(FillPermit::new(inner(), key, right)),
            TableLookup::Pending(wait_handle) => Lookup::Pending(match urgency {
                Urgency::Demand => Waiter::counted(inner(), key, wait_handle),
                Urgency::Prefetch => Waiter::uncounted(inner(), key, wait_handle),
            }),
        }
    }

    /// The value of `key` if one of at least `length` is kept: a demand that computes nothing and joins
    /// nobody.
    #[must_use]
    pub fn get(&self, key: K, length: usize) -> Option<V> {
        lock(&self.inner.table).serve(key, length, Urgency::Demand)
    }

    /// Keeps the value of `key` no longer; those who hold it still have it, and one that is on its way comes all
    /// the same.
    pub fn invalidate(&self, key: K) {
        // The guard ends with this statement; the value is dropped after it.
        let forgotten = lock(&self.inner.table).invalidate(key);
        drop(forgotten);
    }

    /// Drops values, those first that were used longest ago, until `bytes` of weight went or none is
    /// left; says how much went. A value that somebody still holds goes with its last holder. It waits
    /// for nobody.
    pub fn evict(&self, bytes: u64) -> u64 {
        self.inner.evict(bytes, |table| table.evict_above(0))
    }

    /// The same for best effort: what was prefetched and not used yet goes only while more than `unused` bytes of
    /// weight are kept, so that who decodes ahead does not push out what was decoded ahead.
    pub fn evict_used(&self, bytes: u64, unused: u64) -> u64 {
        self.inner.evict(bytes, |table| table.evict_used(unused))
    }

    /// What [`Budget::register_reclaimer`](crate::memory::Budget::register_reclaimer) takes: sheds while
    /// this cache exists, and does not keep it.
    pub fn reclaimer(&self) -> impl Fn(u64) -> u64 + Send + Sync + 'static + use<K, V>
    where
        K: Send + 'static,
    {
        let weak = PlainArc::downgrade(&self.inner);
        move |bytes| {
            weak.upgrade().map_or(0, |inner| inner.evict(bytes, |table| table.evict_above(0)))
        }
    }

    /// Changes the capacity; what is above goes.
    pub fn set_capacity(&self, capacity_bytes: u64) {
        lock(&self.inner.table).set_capacity(capacity_bytes);
        self.inner.evict_excess();
    }

    /// The weight of what is kept, 128 bytes a value included.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        lock(&self.inner.table).weight()
    }

    /// What was counted so far.
    #[must_use]
    pub fn stats(&self) -> SingleFlightStats {
        lock(&self.inner.table).stats()
    }

    /// Keys that are known, kept or on their way.
    #[cfg(all(test, not(loom)))]
    fn keys(&self) -> usize {
        lock(&self.inner.table).keys()
    }
}

impl<K: Copy + Eq + Hash, V: CacheValue> Clone for SingleFlight<K, V> {
    fn clone(&self) -> Self {
        Self { inner: PlainArc::clone(&self.inner) }
    }
}

impl<K: Copy + Eq + Hash, V: CacheValue> std::fmt::Debug for SingleFlight<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SingleFlight").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod stress_tests;
#[cfg(all(test, not(loom)))]
mod tests;
