//! The shards of a single-flight cache. Each is a table under a lock of its own, and a key belongs
//! to one shard for ever, so everything that concerns one key happens under one lock. Weight and
//! order of use are those of the whole cache (`usage.rs`): this file evicts across shards.
//!
//! docs/workers.md, protocol K.

use std::hash::{BuildHasher, Hash};

use foldhash::quality::FixedState;

use super::table::{CacheTable, Evictable};
use super::usage::CacheUsage;
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
