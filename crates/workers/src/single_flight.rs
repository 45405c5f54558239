//! A bounded cache in which each missing value is computed by exactly one of the threads that want
//! it (single flight). It owns the cached values and the right to compute one; it never computes a
//! value and never sees why a computation failed. Readers of compressed clusters look up here
//! before they decode.
//!
//! A lookup ends in one of three ways: [`Lookup::Hit`], [`Lookup::Miss`] or [`Lookup::Pending`]. A
//! demand may take a fill over while its permit is queued, and upgrades a prefetch that is running.
//! A fill that ends without a value leaves no trace: its waiters look up again.
//!
//! A lock guards each shard of the table; a cache has one shard, or one for each CPU that looks up.
//! A lookup under the lock is a hash lookup, a list operation and the clone of a handle, each in
//! constant time; the caller copies or decodes kilobytes next, which takes longer. Many CPUs that
//! read cached values would still wait for one lock. The capacity is that of all shards together.
//! With one shard the LRU order is exact, which matters where a cache holds a few values of
//! megabytes. Up to eight shards it is exact for values that were used between different inserts;
//! with more, an eviction takes the oldest value of eight shards.
//!
//! docs/workers.md, protocol K.

use std::fmt;
use std::hash::Hash;
use std::time::Duration;

mod shards;
mod table;

use crate::sync::{PlainArc, lock};
use shards::CacheShards;
use table::{
    CompletedFill, Evictable, FilledValue, FinishResult, PermitState, TableLookup, WaitHandle,
};

/// A value that is computed once. It is a handle: its clones share one content.
///
/// A clone is made under a lock of the cache and must be cheap. The other methods and the drop run
/// outside of all locks.
pub trait CacheValue: Clone + Send + Sync + 'static {
    /// The length of the content. A longer value serves lookups of a shorter length.
    fn length(&self) -> usize;

    /// What the value takes of the cache's capacity, in bytes. It must not change.
    fn weight_bytes(&self) -> u64;
}

/// Whether somebody waits for the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Urgency {
    /// Somebody waits for it.
    Demand,
    /// Somebody may want it soon. There is nothing to do if it is cached or in flight.
    Prefetch,
}

/// The answer to a lookup.
#[derive(Debug)]
pub enum Lookup<K: Copy + Eq + Hash, V: CacheValue> {
    /// The cached value.
    Hit(V),
    /// The caller computes the value, or gives the permit to a thread that does.
    Miss(FillPermit<K, V>),
    /// Another thread computes the value.
    Pending(Waiter<V>),
}

/// What a [`SingleFlight`] has counted since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SingleFlightStats {
    /// Demands that found a cached value.
    pub hits: u64,
    /// Demands that joined a running fill and had to wait.
    pub waited: u64,
    /// Values that were computed: published, or used by the thread that computed it and nobody
    /// else.
    pub computed: u64,
    /// Fills that ended without a value: a failure, a panic, or a prefetch that got no memory.
    pub abandoned: u64,
    /// Queued fills that a demand took over.
    pub taken_over: u64,
    /// Prefetches in flight that a demand joined.
    pub upgraded: u64,
    /// Values computed by prefetches, upgraded ones included.
    pub prefetched: u64,
    /// Of `prefetched`: those that a demand joined or found.
    pub prefetch_used: u64,
    /// Of `prefetched`: those that were dropped before any demand.
    pub prefetch_wasted: u64,
    /// Prefetches that ended without a value.
    pub prefetch_dropped: u64,
}

/// A bounded cache in which each value is computed by one of the threads that want it. Clones are
/// handles of one cache.
pub struct SingleFlight<K: Copy + Eq + Hash, V: CacheValue> {
    inner: PlainArc<CacheShards<K, V>>,
}

impl<K: Copy + Eq + Hash, V: CacheValue> SingleFlight<K, V> {
    /// An empty cache with one shard. The weights of its values, and 128 bytes for each of them,
    /// stay within `capacity_bytes`.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> Self {
        Self::sharded(capacity_bytes, 1)
    }

    /// Like [`new`](Self::new), with `shards` locks, rounded up to a power of two and at most 64,
    /// so that as many threads look up different keys without waiting for each other. The shard of
    /// a key depends on the key alone. The capacity is that of the whole cache: one shard may hold
    /// all of it.
    ///
    /// An eviction takes the value that was used least recently in one shard, or the oldest of up
    /// to eight shards. Where inserts come between two uses, that order is exact; uses between the
    /// same two inserts are in no order across shards. A cache that holds few values should have
    /// one shard.
    #[must_use]
    pub fn sharded(capacity_bytes: u64, shards: usize) -> Self {
        Self { inner: PlainArc::new(CacheShards::new(capacity_bytes, shards)) }
    }

    /// Looks up the value of `key`, of at least `length`.
    ///
    /// A demand takes over a queued fill and joins a running one; a prefetch that it joins counts
    /// as demanded from then on. A prefetch changes neither. A lookup that is longer than a running
    /// fill waits for it, too, and looks up again.
    pub fn lookup(&self, key: K, length: usize, urgency: Urgency) -> Lookup<K, V> {
        // The guard ends with this statement.
        let answer = lock(self.inner.shard(key)).lookup(self.inner.usage(), key, length, urgency);
        match answer {
            TableLookup::Hit(value) => Lookup::Hit(value),
            TableLookup::Miss(state) => {
                Lookup::Miss(FillPermit::new(PlainArc::clone(&self.inner), key, state))
            }
            TableLookup::Pending(handle) => {
                Lookup::Pending(Waiter { handle, is_counted: urgency == Urgency::Demand })
            }
        }
    }

    /// The value of `key` if one of at least `length` is cached. It counts as a demand, but
    /// computes nothing and joins nobody.
    #[must_use]
    pub fn get(&self, key: K, length: usize) -> Option<V> {
        lock(self.inner.shard(key)).get(self.inner.usage(), key, length, Urgency::Demand)
    }

    /// Removes the value of `key` from the cache. Threads that hold it keep it, and a fill in
    /// flight goes on.
    pub fn invalidate(&self, key: K) {
        // The guard ends with this statement, before the value is dropped.
        let removed = lock(self.inner.shard(key)).invalidate(self.inner.usage(), key);
        drop(removed);
    }

    /// Drops the values that were used least recently until their weights reach `bytes` or the
    /// cache is empty, and returns the sum of their weights, in bytes. A value that somebody holds
    /// is freed by its last holder. It waits for nothing but the locks of shards, one at a time.
    pub fn evict(&self, bytes: u64) -> u64 {
        self.inner.evict(bytes, Evictable::AnyAbove(0))
    }

    /// Like [`evict`](Self::evict), for best-effort work: prefetched values that nobody has used
    /// yet are dropped only while the cache holds more than `unused_bytes`. So prefetching does not
    /// evict its own results.
    pub fn evict_used(&self, bytes: u64, unused_bytes: u64) -> u64 {
        self.inner.evict(bytes, Evictable::AnyAboveOrUsed(unused_bytes))
    }

    /// The weight of all cached values in bytes, 128 bytes a value included. It takes no lock.
    /// While a thread publishes, it may be above the capacity.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        self.inner.usage().weight()
    }

    /// The counters so far, summed over the shards, which are locked one after the other.
    #[must_use]
    pub fn stats(&self) -> SingleFlightStats {
        self.inner.stats()
    }

    /// The number of keys in the table, cached or in flight.
    #[cfg(all(test, not(loom)))]
    fn keys(&self) -> usize {
        self.inner.keys()
    }
}

impl<K: Copy + Eq + Hash, V: CacheValue> Clone for SingleFlight<K, V> {
    fn clone(&self) -> Self {
        Self { inner: PlainArc::clone(&self.inner) }
    }
}

impl<K: Copy + Eq + Hash, V: CacheValue> fmt::Debug for SingleFlight<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SingleFlight").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// The right to compute the value of one key. A permit that is dropped without a value, also by a
/// panic, wakes all waiters, and nothing is cached.
#[must_use = "dropping a permit makes all waiters look up again"]
pub struct FillPermit<K: Copy + Eq + Hash, V: CacheValue> {
    inner: PlainArc<CacheShards<K, V>>,
    key: K,
    state: PermitState<V>,
    /// It has been in a queue, where demands may take the fill over.
    was_enqueued: bool,
    is_over: bool,
}

impl<K: Copy + Eq + Hash, V: CacheValue> FillPermit<K, V> {
    fn new(inner: PlainArc<CacheShards<K, V>>, key: K, state: PermitState<V>) -> Self {
        Self { inner, key, state, was_enqueued: false, is_over: false }
    }

    /// Starts the computation: from now on nobody takes the fill over. False if somebody took it
    /// over while the permit was queued; then the permit is void and there is nothing to compute. A
    /// permit that was never [enqueued](Self::enqueue) is never void.
    #[must_use = "a void permit must not compute"]
    pub fn begin(&mut self) -> bool {
        // K5. A fill that was never queued is not taken over.
        !self.was_enqueued || lock(self.inner.shard(self.key)).begin(self.key, self.state.number)
    }

    /// The key whose value is wanted.
    #[must_use]
    pub fn key(&self) -> K {
        self.key
    }

    /// The length to compute: that of the lookup, or more where a longer prefetch was taken over.
    #[must_use]
    pub fn length(&self) -> usize {
        self.state.length
    }

    /// Whether the value is demanded. A thread that allocates for it asks right before: memory for
    /// a demanded value must succeed, memory for a prefetch may fail. A demand may join at any
    /// time; once true, the answer stays true.
    #[must_use]
    pub fn is_demanded(&self) -> bool {
        // A fill that nobody else knows of belongs to a demand.
        self.state.in_flight.as_ref().is_none_or(|in_flight| in_flight.is_demanded())
    }

    /// Whether another thread waits for the value. Only a hint: one may come at any time.
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        lock(self.inner.shard(self.key)).is_waited_for(self.key, self.state.number)
    }

    /// Marks the fill as queued, so that demands may take it over until it begins, and returns a
    /// waiter for the value. The caller of a prefetch drops that waiter.
    ///
    /// A permit must be enqueued before it goes into a queue, and nobody may wait while holding an
    /// unqueued permit. Otherwise nobody could help: a worker that waits for something behind it in
    /// its own queue waits for ever.
    pub fn enqueue(&mut self) -> Waiter<V> {
        self.was_enqueued = true;
        let handle = lock(self.inner.shard(self.key)).enqueue(self.key, &self.state);
        Waiter { handle, is_counted: true }
    }

    /// Gives the value to all waiters and caches it if the capacity allows. The value of a void
    /// permit is dropped.
    pub fn publish(mut self, value: V) {
        let (weight, length) = (value.weight_bytes(), value.length());
        let copy = value.clone();
        self.end(Some(FilledValue { value, weight, length }), Some(copy));
    }

    /// Ends the fill without a value, for a caller that computed straight into its own memory. If
    /// somebody else waits, the permit comes back, and the caller publishes a copy.
    #[must_use = "somebody waits for the permit that comes back"]
    pub fn finish_unless_waited(mut self) -> Option<Self> {
        // The guard ends with this statement.
        let finish =
            lock(self.inner.shard(self.key)).finish_unless_waited(self.key, self.state.number);
        if matches!(finish, FinishResult::Waited) {
            return Some(self);
        }
        self.is_over = true;
        if let FinishResult::Over(Some(in_flight)) = finish {
            // A prefetch may wait without being counted: it looks up again.
            in_flight.end(None);
        }
        None
    }

    fn end(&mut self, filled: Option<FilledValue<V>>, value: Option<V>) {
        self.is_over = true;
        let ended = lock(self.inner.shard(self.key)).end(
            self.inner.usage(),
            self.key,
            self.state.number,
            filled,
        );
        let Some(CompletedFill { in_flight, replaced, is_above_capacity }) = ended else { return };
        if let Some(in_flight) = in_flight {
            in_flight.end(value);
        }
        // Outside of the lock: the drop of a value runs foreign code.
        drop(replaced);
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

impl<K: Copy + Eq + Hash, V: CacheValue> fmt::Debug for FillPermit<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FillPermit").field("number", &self.state.number).finish_non_exhaustive()
    }
}

/// Waits for one fill. Dropping it stops waiting.
#[must_use = "dropping a waiter stops waiting"]
pub struct Waiter<V: CacheValue> {
    handle: WaitHandle<V>,
    /// False for a prefetch, for whose sake nothing is published.
    is_counted: bool,
}

impl<V: CacheValue> Waiter<V> {
    /// Sleeps until the fill is over. None if it ended without a value, or with one that is too
    /// short: then look up again.
    #[must_use = "on none, look up again"]
    pub fn wait(self) -> Option<V> {
        let value = self.handle.in_flight.wait();
        self.long_enough(value)
    }

    /// Like [`wait`](Self::wait), without sleeping.
    ///
    /// # Errors
    ///
    /// The waiter itself, while the fill is not over.
    pub fn try_wait(self) -> Result<Option<V>, Self> {
        match self.handle.in_flight.outcome() {
            Some(value) => Ok(self.long_enough(value)),
            None => Err(self),
        }
    }

    /// Like [`wait`](Self::wait), for about `most` at most. A thread that has several waiters calls it in turns with
    /// [`try_wait`](Self::try_wait) of the others: a value that is there stays in memory until its waiter takes it.
    ///
    /// # Errors
    ///
    /// The waiter itself, if the fill is not over.
    pub fn wait_for(self, most: Duration) -> Result<Option<V>, Self> {
        match self.handle.in_flight.wait_for(most) {
            Some(value) => Ok(self.long_enough(value)),
            None => Err(self),
        }
    }

    fn long_enough(&self, value: Option<V>) -> Option<V> {
        value.filter(|value| value.length() >= self.handle.length)
    }
}

impl<V: CacheValue> Drop for Waiter<V> {
    fn drop(&mut self) {
        if self.is_counted {
            self.handle.in_flight.remove_waiter();
        }
    }
}

impl<V: CacheValue> fmt::Debug for Waiter<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiter").field("length", &self.handle.length).finish_non_exhaustive()
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    //! Every interleaving of threads that look up, begin, publish, give up and take over. A wake-up
    //! that is lost is a deadlock, and loom says so; a fill that stays in the table never lets the loop
    //! of `value_of` end.
    #![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

    use super::*;
    use crate::sync::{Arc, AtomicUsize, Ordering, thread};

    /// A value of some length that weighs nothing.
    #[derive(Debug, Clone)]
    struct Front(usize);

    impl CacheValue for Front {
        fn length(&self) -> usize {
            self.0
        }

        fn weight_bytes(&self) -> u64 {
            0
        }
    }

    type Cache = SingleFlight<u8, Front>;
    type OwnPermit = FillPermit<u8, Front>;

    fn cache() -> Cache {
        SingleFlight::new(1 << 20)
    }

    fn lookup(cache: &Cache, length: usize, urgency: Urgency) -> Lookup<u8, Front> {
        cache.lookup(1, length, urgency)
    }

    fn miss(lookup: Lookup<u8, Front>) -> OwnPermit {
        match lookup {
            Lookup::Miss(permit) => permit,
            other => panic!("{other:?}"),
        }
    }

    /// How a reader reads: it looks up until it has a value, and computes when it has the permit.
    fn value_of(cache: &Cache, length: usize, computed: &AtomicUsize) -> usize {
        loop {
            let value = match lookup(cache, length, Urgency::Demand) {
                Lookup::Hit(value) => Some(value),
                Lookup::Pending(waiter) => waiter.wait(),
                Lookup::Miss(permit) => compute(permit, computed),
            };
            if let Some(Front(found)) = value {
                assert!(found >= length);
                return found;
            }
        }
    }

    fn compute(mut permit: OwnPermit, computed: &AtomicUsize) -> Option<Front> {
        if !permit.begin() {
            return None;
        }
        computed.fetch_add(1, Ordering::SeqCst);
        let value = Front(permit.length());
        permit.publish(value.clone());
        Some(value)
    }

    /// How a prefetch fails when nobody demands: its memory may fail.
    fn prefetch(mut permit: OwnPermit, computed: &AtomicUsize) {
        if permit.begin() && permit.is_demanded() {
            computed.fetch_add(1, Ordering::SeqCst);
            let length = permit.length();
            permit.publish(Front(length));
        }
    }

    fn bounded(check: impl Fn() + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(check);
    }

    /// K1, K2, K4, K7: published exactly once, and everybody has it.
    #[test]
    fn of_two_demands_one_computes_and_both_have_the_value() {
        loom::model(|| {
            let inner = Arc::new((cache(), AtomicUsize::new(0)));
            let other = Arc::clone(&inner);
            let thread = thread::spawn(move || value_of(&other.0, 1, &other.1));
            value_of(&inner.0, 1, &inner.1);
            thread.join().unwrap();
            assert_eq!(inner.1.load(Ordering::SeqCst), 1);
            assert_eq!(inner.0.stats().computed, 1);
        });
    }

    /// Whenever the demand comes, before the prefetch begins, while it asks
    /// whether it is demanded, or after it gave up, it ends with a value.
    #[test]
    fn two_demands_and_a_prefetch_that_gives_up_end_with_the_value() {
        bounded(|| {
            let inner = Arc::new((cache(), AtomicUsize::new(0)));
            let mut permit = miss(lookup(&inner.0, 1, Urgency::Prefetch));
            drop(permit.enqueue());
            let threads = [0, 1].map(|_| {
                let own = Arc::clone(&inner);
                thread::spawn(move || value_of(&own.0, 1, &own.1))
            });
            prefetch(permit, &inner.1);
            for thread in threads {
                thread.join().unwrap();
            }
            let stats = inner.0.stats();
            assert_eq!((inner.1.load(Ordering::SeqCst), stats.computed), (1, 1));
            assert_eq!(stats.abandoned, stats.prefetch_dropped);
        });
    }

    /// K3 against K5: one of the two computes, never both, never neither.
    #[test]
    fn a_queued_fill_is_begun_or_taken_over() {
        loom::model(|| {
            let inner = Arc::new((cache(), AtomicUsize::new(0)));
            let mut permit = miss(lookup(&inner.0, 1, Urgency::Demand));
            let waiter = permit.enqueue();
            let other = Arc::clone(&inner);
            let thread = thread::spawn(move || compute(permit, &other.1).is_some());
            let is_taken = match lookup(&inner.0, 1, Urgency::Demand) {
                Lookup::Miss(permit) => compute(permit, &inner.1).is_some(),
                Lookup::Pending(second) => second.wait().is_none(),
                Lookup::Hit(_) => false,
            };
            assert_eq!(waiter.wait().is_some(), inner.0.stats().computed == 1);
            assert_ne!(thread.join().unwrap(), is_taken);
            let stats = inner.0.stats();
            assert_eq!(stats.taken_over, u64::from(is_taken));
            assert_eq!(
                (inner.1.load(Ordering::SeqCst), stats.computed, stats.abandoned),
                (1, 1, 0)
            );
        });
    }

    /// K7 without a value: everybody wakes, and what is left to compute is computed.
    #[test]
    fn a_permit_that_is_dropped_wakes_everybody_who_waits() {
        bounded(|| {
            let inner = Arc::new((cache(), AtomicUsize::new(0)));
            let mut permit = miss(lookup(&inner.0, 1, Urgency::Demand));
            assert!(permit.begin());
            let threads = [0, 1].map(|_| {
                let own = Arc::clone(&inner);
                thread::spawn(move || value_of(&own.0, 1, &own.1))
            });
            drop(permit);
            for thread in threads {
                thread.join().unwrap();
            }
            let stats = inner.0.stats();
            assert_eq!(
                (inner.1.load(Ordering::SeqCst), stats.computed, stats.abandoned),
                (1, 1, 1)
            );
        });
    }

    /// K8 against K4: a demand either is counted before the look and gets the copy, or comes after the
    /// end and computes anew. None sleeps for a value that nobody publishes.
    #[test]
    fn who_finishes_without_publishing_leaves_no_demand_asleep() {
        loom::model(|| {
            let inner = Arc::new((cache(), AtomicUsize::new(0)));
            let mut permit = miss(lookup(&inner.0, 1, Urgency::Demand));
            assert!(permit.begin());
            let other = Arc::clone(&inner);
            let thread = thread::spawn(move || match lookup(&other.0, 1, Urgency::Demand) {
                Lookup::Hit(_) => {}
                Lookup::Miss(permit) => drop(compute(permit, &other.1)),
                Lookup::Pending(waiter) => assert!(waiter.wait().is_some(), "it joined in time"),
            });
            let published = match permit.finish_unless_waited() {
                Some(permit) => {
                    permit.publish(Front(1));
                    1
                }
                None => 0,
            };
            thread.join().unwrap();
            assert_eq!(published + inner.1.load(Ordering::SeqCst), 1);
            assert_eq!(inner.0.stats().computed as usize, 2 - published);
        });
    }

    /// A longer demand that meets a shorter fill ends with its own length, and the shorter one with
    /// any.
    #[test]
    fn a_longer_demand_waits_for_the_shorter_one_and_looks_up_again() {
        loom::model(|| {
            let inner = Arc::new((cache(), AtomicUsize::new(0)));
            let other = Arc::clone(&inner);
            let thread = thread::spawn(move || value_of(&other.0, 1, &other.1));
            assert_eq!(value_of(&inner.0, 2, &inner.1), 2);
            thread.join().unwrap();
            assert!(inner.1.load(Ordering::SeqCst) <= 2);
        });
    }

    /// Shedding meanwhile takes values away, never answers.
    #[test]
    fn what_is_shed_at_any_moment_is_computed_again() {
        bounded(|| {
            let inner = Arc::new((cache(), AtomicUsize::new(0)));
            let other = Arc::clone(&inner);
            let thread = thread::spawn(move || value_of(&other.0, 1, &other.1));
            inner.0.evict(u64::MAX);
            value_of(&inner.0, 1, &inner.1);
            thread.join().unwrap();
            assert!(inner.1.load(Ordering::SeqCst) <= 2);
            inner.0.evict(u64::MAX);
            assert_eq!(inner.0.weight_bytes(), 0);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
