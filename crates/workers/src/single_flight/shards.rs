//! The shards of a single-flight cache. Each is a table under a lock of its own, and a key belongs
//! to one shard for ever, so everything that concerns one key happens under one lock. Weight and
//! order of use are those of the whole cache (`CacheUsage`): this file evicts across shards.
//!
//! docs/workers.md, protocol K.

use std::hash::{BuildHasher, Hash};

use foldhash::quality::FixedState;

use super::table::{CacheTable, CacheUsage, Evictable};
use super::{CacheValue, SingleFlightStats};
use crate::counters::CachePadded;
use crate::sync::{Mutex, lock};

/// More shards than this would only make evictions and sums over all shards longer.
const SHARDS_MAX: usize = 64;

/// An eviction takes the oldest value of so many shards. Each of them costs a lock, which a hit may
/// want. With up to so many shards the order of evictions is exact.
const COMPARED_SHARDS: usize = 8;

/// A lookup writes its lines, and no other data lies there.
type CacheShard<K, V> = CachePadded<Mutex<CacheTable<K, V>>>;

/// What handles, permits and waiters share.
pub(super) struct CacheShards<K, V> {
    /// A power of two.
    shards: Box<[CacheShard<K, V>]>,
    /// Tables have random seeds of their own: keys that share a shard are spread over its table.
    /// The shard of a key is not random, so that models are the same in each run. Keys that were
    /// chosen to be in one shard are as slow as a cache with one shard.
    hasher: FixedState,
    /// The number of shards that an eviction compares.
    compared: usize,
    usage: CacheUsage,
}

impl<K: Copy + Eq + Hash, V: CacheValue> CacheShards<K, V> {
    pub(super) fn new(capacity_bytes: u64, shards: usize) -> Self {
        let shards = shards.clamp(1, SHARDS_MAX).next_power_of_two();
        Self::comparing(shards.min(COMPARED_SHARDS), capacity_bytes, shards)
    }

    fn comparing(compared: usize, capacity_bytes: u64, shards: usize) -> Self {
        Self {
            usage: CacheUsage::new(capacity_bytes, shards > 1),
            shards: (0..shards)
                .map(|_| CachePadded(Mutex::new(CacheTable::new(compared))))
                .collect(),
            hasher: FixedState::default(),
            compared,
        }
    }

    /// K10. The shard of a key.
    pub(super) fn shard(&self, key: K) -> &Mutex<CacheTable<K, V>> {
        &self.shards[self.shard_index(key)]
    }

    fn shard_index(&self, key: K) -> usize {
        // A power of two, so that this is no division; the mask fits, as it is that of a length.
        let mask = self.shards.len() - 1;
        if mask == 0 {
            return 0;
        }
        usize::try_from(self.hasher.hash_one(key) & mask as u64).unwrap_or(0)
    }

    pub(super) fn usage(&self) -> &CacheUsage {
        &self.usage
    }

    /// Drops what is above the capacity, each value outside of the locks.
    pub(super) fn evict_excess(&self) {
        while self.evict_one(Evictable::AnyAbove(self.usage.capacity())).is_some() {}
    }

    /// Evicts values until the sum of their weights is at least `bytes`, and returns that sum.
    pub(super) fn evict(&self, bytes: u64, evictable: Evictable) -> u64 {
        let mut evicted_bytes = 0_u64;
        while evicted_bytes < bytes {
            let Some((value, weight)) = self.evict_one(evictable) else { break };
            drop(value);
            evicted_bytes = evicted_bytes.saturating_add(weight);
        }
        evicted_bytes
    }

    /// Removes one value, and returns it with its own weight. None if no shard has one that may be
    /// evicted.
    fn evict_one(&self, evictable: Evictable) -> Option<(V, u64)> {
        if !evictable.allows_some(&self.usage) {
            return None;
        }
        if let [only] = &*self.shards {
            // The guard ends with this statement, before the value is dropped.
            return lock(only).evict(&self.usage, evictable, None);
        }
        let shards = self.shards.len();
        // K13. Places that overlap: a shard with many old values is compared, and gives a value,
        // several times before the next round.
        let first = usize::try_from(self.usage.next_scan() % shards as u64).unwrap_or(0);
        let mut passed = 0;
        while passed < shards && evictable.allows_some(&self.usage) {
            let oldest = (0..self.compared)
                .map(|nth| &self.shards[(first + passed + nth) % shards])
                .filter_map(|shard| {
                    let last_use = lock(shard).next_evicted(&self.usage, evictable)?;
                    Some((last_use, shard))
                })
                .min_by_key(|(last_use, _)| *last_use);
            let Some((last_use, shard)) = oldest else {
                // K14. Nothing in these.
                passed += self.compared;
                continue;
            };
            // K13. If another thread has used or evicted that value by now, compare again.
            let evicted = lock(shard).evict(&self.usage, evictable, Some(last_use));
            if evicted.is_some() {
                return evicted;
            }
        }
        None
    }

    /// The sums over all shards, each read at its own moment.
    pub(super) fn stats(&self) -> SingleFlightStats {
        let mut sums = SingleFlightStats::default();
        for shard in &self.shards {
            sums.add(&lock(shard).stats());
        }
        sums
    }

    /// The number of keys, cached or in flight.
    #[cfg(all(test, not(loom)))]
    pub(super) fn keys(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).keys()).sum()
    }

    /// The first of `keys` in each shard.
    #[cfg(test)]
    pub(super) fn key_of_each_shard(&self, keys: impl IntoIterator<Item = K>) -> Vec<K> {
        let mut found = vec![None; self.shards.len()];
        for key in keys {
            found[self.shard_index(key)].get_or_insert(key);
        }
        found.into_iter().flatten().collect()
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    //! Every interleaving of threads that publish, hit and evict in two shards. At the end the
    //! weight is that of what is cached.
    #![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

    use super::super::table::ENTRY_OVERHEAD_BYTES;
    use super::super::{Lookup, SingleFlight, Urgency};
    use super::*;
    use crate::sync::{Arc, PlainArc, thread};

    /// A value without content: its entry is all that it weighs.
    #[derive(Debug, Clone)]
    struct Empty;

    impl CacheValue for Empty {
        fn length(&self) -> usize {
            0
        }

        fn weight_bytes(&self) -> u64 {
            0
        }
    }

    type Cache = SingleFlight<u8, Empty>;

    /// A cache of two shards that holds so many values, and a key of each shard. Its evictions
    /// compare one shard or both.
    fn cache(compared: usize, values: u64) -> (Arc<Cache>, [u8; 2]) {
        let shards = CacheShards::comparing(compared, values * ENTRY_OVERHEAD_BYTES, 2);
        let keys = shards.key_of_each_shard(0..100).try_into().unwrap();
        (Arc::new(Cache { inner: PlainArc::new(shards) }), keys)
    }

    fn publish(cache: &Cache, key: u8) {
        match cache.lookup(key, 0, Urgency::Demand) {
            Lookup::Miss(permit) => permit.publish(Empty),
            other => panic!("{other:?}"),
        }
    }

    /// How many of the keys are cached. The weight must be theirs.
    fn cached(cache: &Cache, keys: &[u8]) -> usize {
        let cached = keys.iter().filter(|key| cache.get(**key, 0).is_some()).count();
        assert_eq!(cache.weight_bytes(), cached as u64 * ENTRY_OVERHEAD_BYTES);
        cached
    }

    /// K11: the two shards together are never left above the capacity, and two threads that see
    /// one excess evict one value, also if they look at different shards.
    #[test]
    fn two_publishers_in_two_shards_leave_what_the_capacity_allows() {
        loom::model(|| {
            let (cache, [first, second]) = cache(1, 1);
            let other = Arc::clone(&cache);
            let thread = thread::spawn(move || publish(&other, first));
            publish(&cache, second);
            thread.join().unwrap();
            assert_eq!(cached(&cache, &[first, second]), 1);
        });
    }

    /// K12, K13: the hit comes before the eviction, or finds nothing. The eviction takes one of the
    /// two older values. The newest one is in the shard of the hit: if the hit comes after the
    /// comparison, it is the oldest one there.
    #[test]
    fn a_hit_and_an_eviction_of_the_same_value_leave_the_newest_value() {
        loom::model(|| {
            let (cache, [first, second]) = cache(2, 2);
            publish(&cache, first);
            publish(&cache, second);
            let other = Arc::clone(&cache);
            let thread = thread::spawn(move || other.get(first, 0).is_some());
            let is_beside =
                |key: &u8| std::ptr::eq(cache.inner.shard(*key), cache.inner.shard(first));
            let newest = (0..100).filter(is_beside).find(|key| *key != first).unwrap();
            publish(&cache, newest);
            let is_hit = thread.join().unwrap();
            assert!(cache.get(newest, 0).is_some());
            assert!(is_hit || cache.get(first, 0).is_none());
            assert_eq!(cached(&cache, &[first, second, newest]), 2);
        });
    }

    /// K14: an eviction of everything ends, and takes what was there before it began; no
    /// subtraction comes before its addition.
    #[test]
    fn an_eviction_of_everything_meets_a_publisher_and_another_eviction() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let (cache, [first, second]) = cache(1, 2);
            publish(&cache, first);
            let other = Arc::clone(&cache);
            let thread = thread::spawn(move || {
                publish(&other, second);
                other.evict(1);
            });
            cache.evict(u64::MAX);
            assert!(cache.get(first, 0).is_none());
            assert!(cache.weight_bytes() <= ENTRY_OVERHEAD_BYTES);
            thread.join().unwrap();
            assert_eq!(cached(&cache, &[first, second]), 0);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    //! Several shards on one thread: what is evicted, in which order, and that the capacity is that of the
    //! whole cache. `single_flight/tests.rs` has the test with many threads.
    #![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

    use std::sync::{Arc, Mutex};

    use proptest::prelude::*;

    use crate::single_flight::table::ENTRY_OVERHEAD_BYTES;
    use crate::single_flight::*;

    /// The keys of dropped values, in the order of their drops.
    type Dropped = Arc<Mutex<Vec<u32>>>;

    #[derive(Debug)]
    struct RecordedContent {
        key: u32,
        weight: u64,
        dropped: Dropped,
    }

    impl Drop for RecordedContent {
        fn drop(&mut self) {
            self.dropped.lock().unwrap().push(self.key);
        }
    }

    /// A value that records its drop.
    #[derive(Debug, Clone)]
    struct Recorded(Arc<RecordedContent>);

    impl CacheValue for Recorded {
        fn length(&self) -> usize {
            1
        }

        fn weight_bytes(&self) -> u64 {
            self.0.weight
        }
    }

    const WEIGHT: u64 = 100;
    /// What a value of that weight takes of the capacity.
    const EACH: u64 = WEIGHT + ENTRY_OVERHEAD_BYTES;

    struct TestCache {
        cache: SingleFlight<u32, Recorded>,
        dropped: Dropped,
    }

    impl TestCache {
        fn new(capacity_bytes: u64, shards: usize) -> Self {
            let cache = SingleFlight::sharded(capacity_bytes, shards);
            Self { cache, dropped: Dropped::default() }
        }

        fn publish(&self, key: u32, weight: u64, urgency: Urgency) {
            match self.cache.lookup(key, 1, urgency) {
                Lookup::Miss(permit) => {
                    let content =
                        RecordedContent { key, weight, dropped: Arc::clone(&self.dropped) };
                    permit.publish(Recorded(Arc::new(content)));
                }
                other => panic!("{other:?}"),
            }
        }

        fn put(&self, key: u32) {
            self.publish(key, WEIGHT, Urgency::Demand);
        }

        /// The keys that were dropped since the last call.
        fn take_dropped(&self) -> Vec<u32> {
            std::mem::take(&mut self.dropped.lock().unwrap())
        }

        fn is_cached(&self, key: u32) -> bool {
            self.cache.get(key, 1).is_some()
        }
    }

    #[test]
    fn the_number_of_shards_is_a_power_of_two_up_to_64_and_each_gets_keys() {
        for (wanted, shards) in [(0, 1), (1, 1), (2, 2), (3, 4), (33, 64), (64, 64), (1000, 64)] {
            let keys = TestCache::new(0, wanted).cache.inner.key_of_each_shard(0..1000);
            assert_eq!(keys.len(), shards, "{wanted}");
        }
    }

    #[test]
    fn up_to_eight_shards_evict_in_the_order_of_all_inserts() {
        for shards in [1, 2, 4, 8] {
            let cache = TestCache::new(10 * EACH, shards);
            (0..100).for_each(|key| cache.put(key));
            assert_eq!(cache.take_dropped(), Vec::from_iter(0..90));
            assert_eq!(cache.cache.evict(3 * WEIGHT), 3 * WEIGHT);
            assert_eq!(cache.cache.evict(u64::MAX), 7 * WEIGHT);
            assert_eq!(cache.take_dropped(), Vec::from_iter(90..100));
        }
    }

    #[test]
    fn a_hit_counts_as_later_than_all_inserts_before_it_in_any_shard() {
        for shards in [1, 2, 4, 8] {
            let cache = TestCache::new(8 * EACH, shards);
            (0..8).for_each(|key| cache.put(key));
            assert!(cache.is_cached(0));
            (8..15).for_each(|key| cache.put(key));
            assert_eq!(cache.take_dropped(), Vec::from_iter(1..8), "{shards} shards");
            cache.put(15);
            assert_eq!(cache.take_dropped(), [0], "{shards} shards");
        }
    }

    /// The order is not exact, but the hash, and so this test, is the same in each run.
    #[test]
    fn with_64_shards_evicted_values_are_among_the_oldest() {
        const VALUES: u32 = 6400;
        let cache = TestCache::new(u64::from(VALUES) * EACH, 64);
        let mut ages = Vec::new();
        for key in 0..10 * VALUES {
            cache.put(key);
            ages.extend(cache.take_dropped().into_iter().map(|dropped| key - dropped));
        }
        assert_eq!(ages.len(), (9 * VALUES) as usize);
        let (least, most) = (ages.iter().min().unwrap(), ages.iter().max().unwrap());
        assert!(*least > VALUES * 7 / 10 && *most < VALUES * 13 / 10, "{least} to {most}");
    }

    #[test]
    fn one_shard_may_hold_the_whole_capacity() {
        let cache = TestCache::new(4 * EACH, 64);
        cache.publish(1, 4 * EACH - ENTRY_OVERHEAD_BYTES, Urgency::Demand);
        assert!(cache.is_cached(1), "it weighs 256 times the part of a shard");
        cache.publish(2, 4 * EACH - ENTRY_OVERHEAD_BYTES + 1, Urgency::Demand);
        assert_eq!(cache.take_dropped(), [2], "heavier than the whole");
        let shard = cache.cache.inner.key_of_each_shard(0..1000)[0];
        let same =
            |key: &u32| std::ptr::eq(cache.cache.inner.shard(*key), cache.cache.inner.shard(shard));
        (2..).filter(same).take(5).for_each(|key| cache.put(key));
        assert_eq!((cache.cache.keys(), cache.cache.weight_bytes()), (4, 4 * EACH));
    }

    #[test]
    fn an_eviction_reaches_all_shards_and_returns_what_it_freed() {
        let cache = TestCache::new(u64::MAX, 64);
        (0..1000).for_each(|key| cache.put(key));
        assert_eq!(cache.cache.evict(1), WEIGHT);
        assert_eq!(cache.cache.evict(10 * WEIGHT + 1), 11 * WEIGHT);
        assert_eq!(cache.cache.weight_bytes(), 988 * EACH);
        assert_eq!(cache.cache.evict(u64::MAX), 988 * WEIGHT);
        assert_eq!((cache.cache.keys(), cache.cache.weight_bytes()), (0, 0));
        assert_eq!(cache.cache.evict(u64::MAX), 0);
        assert_eq!(cache.take_dropped().len(), 1000);
        // One value, in any place of the rotation.
        for key in 0..200 {
            cache.put(key);
            assert_eq!(cache.cache.evict(1), WEIGHT);
        }
    }

    #[test]
    fn best_effort_leaves_unused_prefetches_of_all_shards_up_to_a_weight() {
        for shards in [1, 8, 64] {
            let cache = TestCache::new(u64::MAX, shards);
            (0..10).for_each(|key| cache.publish(key, WEIGHT, Urgency::Prefetch));
            (10..20).for_each(|key| cache.put(key));
            assert_eq!(cache.cache.evict_used(u64::MAX, u64::MAX), 10 * WEIGHT);
            assert_eq!(cache.cache.evict_used(1, u64::MAX), 0);
            assert!(cache.take_dropped().iter().all(|key| *key >= 10));
            assert_eq!(cache.cache.evict_used(u64::MAX, 4 * EACH), 6 * WEIGHT);
            assert_eq!(cache.cache.weight_bytes(), 4 * EACH);
            assert_eq!(cache.cache.stats().prefetch_wasted, 6);
        }
    }

    #[test]
    fn counters_are_sums_over_the_shards() {
        let cache = TestCache::new(u64::MAX, 8);
        (0..50).for_each(|key| cache.put(key));
        assert!((0..30).all(|key| cache.is_cached(key)));
        (50..60).for_each(|key| cache.publish(key, 0, Urgency::Prefetch));
        let stats = cache.cache.stats();
        assert_eq!((stats.computed, stats.hits, stats.prefetched), (60, 30, 10));
    }

    /// A value of the twin.
    #[derive(Debug)]
    struct TwinValue {
        key: u32,
        weight: u64,
        last_use: usize,
    }

    /// The simple twin of a cache with up to eight shards: a vector, oldest first.
    #[derive(Debug, Default)]
    struct Twin {
        cached: Vec<TwinValue>,
        inserts: usize,
    }

    impl Twin {
        fn weight(&self) -> u64 {
            self.cached.iter().map(|value| value.weight).sum()
        }

        fn take(&mut self, key: u32) -> Option<TwinValue> {
            let place = self.cached.iter().position(|value| value.key == key)?;
            Some(self.cached.remove(place))
        }

        /// A hit at the time of the last insert, but after it.
        fn hit(&mut self, key: u32) -> bool {
            let Some(value) = self.take(key) else { return false };
            self.cached.push(TwinValue { last_use: 2 * self.inserts + 1, ..value });
            true
        }

        fn insert(&mut self, key: u32, weight: u64) {
            self.inserts += 1;
            self.cached.push(TwinValue { key, weight, last_use: 2 * self.inserts });
        }

        /// What the cache evicted must have been one of those with the earliest last use; with one
        /// shard, the least recently used. Returns its own weight.
        fn evict(&mut self, key: u32, shards: usize) -> u64 {
            let (oldest_key, oldest_use) = (self.cached[0].key, self.cached[0].last_use);
            let evicted = self.take(key).unwrap();
            assert_eq!(evicted.last_use, oldest_use);
            assert!(shards > 1 || key == oldest_key);
            evicted.weight - ENTRY_OVERHEAD_BYTES
        }
    }

    fn any_step() -> impl Strategy<Value = (u8, u32, u64)> {
        (0..10_u8, 0..30_u32, 0..500_u64)
    }

    proptest! {
        #[test]
        fn any_sequence_of_steps_ends_as_in_a_vector(
            shards in 0..4_u32,
            capacity in 0..8000_u64,
            steps in prop::collection::vec(any_step(), 0..200),
        ) {
            let shards = 1 << shards;
            let cache = TestCache::new(capacity, shards);
            let mut twin = Twin::default();
            for (step, key, number) in steps {
                match step {
                    0 => {
                        cache.cache.invalidate(key);
                        let removed = twin.take(key).map(|value| value.key);
                        prop_assert_eq!(cache.take_dropped(), Vec::from_iter(removed));
                    }
                    1 => {
                        let freed = cache.cache.evict(number);
                        let dropped = cache.take_dropped();
                        let weights: Vec<u64> =
                            dropped.iter().map(|key| twin.evict(*key, shards)).collect();
                        prop_assert_eq!(freed, weights.iter().sum::<u64>());
                        prop_assert!(freed >= number || twin.cached.is_empty());
                        // Without the last one it was too little.
                        prop_assert!(weights.last().is_none_or(|last| freed - last < number));
                    }
                    _ => {
                        let is_hit = cache.is_cached(key);
                        prop_assert_eq!(is_hit, twin.hit(key));
                        if is_hit {
                            continue;
                        }
                        cache.publish(key, number, Urgency::Demand);
                        let weight = number + ENTRY_OVERHEAD_BYTES;
                        if weight <= capacity {
                            twin.insert(key, weight);
                        } else {
                            prop_assert_eq!(cache.take_dropped(), vec![key]);
                        }
                        for key in cache.take_dropped() {
                            prop_assert!(twin.weight() > capacity, "evicted for nothing");
                            twin.evict(key, shards);
                        }
                    }
                }
                prop_assert!(twin.weight() <= capacity);
                prop_assert_eq!(cache.cache.weight_bytes(), twin.weight());
                prop_assert_eq!(cache.cache.keys(), twin.cached.len());
            }
        }
    }
}
