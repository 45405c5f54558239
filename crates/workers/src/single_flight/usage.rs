//! What the shards of a single-flight cache have in common: the capacity, the weight of all cached
//! values, and the clock by which their last uses are compared. It has no lock. Its tables change
//! it while they are locked, so that it agrees with what they hold whenever no table is locked.
//!
//! docs/workers.md, protocol K.

use crate::counters::CachePadded;
use crate::sync::{AtomicU64, Ordering, PlainAtomicU64};

/// The part of a cache outside of its shards. The words that change have cache lines of their own:
/// a hit reads the clock, and writes none of them.
#[derive(Debug)]
pub(super) struct CacheUsage {
    capacity: u64,
    /// With one shard its list has the whole order, and nobody reads the clock.
    has_clock: bool,
    eviction: CachePadded<EvictionState>,
    /// Even. It advances by two with each insert, so that a hit between two inserts has a time of
    /// its own, between theirs.
    clock: CachePadded<AtomicU64>,
}

/// What inserts and evictions write.
#[derive(Debug)]
struct EvictionState {
    /// The weight of all cached values.
    weight: AtomicU64,
    /// Where the next eviction begins to look.
    scans: PlainAtomicU64,
}

impl CacheUsage {
    pub(super) fn new(capacity: u64, has_clock: bool) -> Self {
        let eviction = EvictionState { weight: AtomicU64::new(0), scans: PlainAtomicU64::new(0) };
        Self {
            capacity,
            has_clock,
            eviction: CachePadded(eviction),
            clock: CachePadded(AtomicU64::new(0)),
        }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    // The weight is relaxed throughout. Of one value, the addition comes before the subtraction,
    // since both are made under the lock of its shard. An evicting thread that finds all shards
    // empty, K14, is ordered by their locks.

    pub(super) fn weight(&self) -> u64 {
        self.eviction.weight.load(Ordering::Relaxed)
    }

    /// K11. Adds a value of weight `added`, which replaces one of weight `removed`.
    pub(super) fn replace(&self, removed: u64, added: u64) {
        // The sum stays right: it contains `removed`, and additions wrap.
        self.eviction.weight.fetch_add(added.wrapping_sub(removed), Ordering::Relaxed);
    }

    /// K11. Subtracts a value.
    pub(super) fn remove(&self, weight: u64) {
        self.eviction.weight.fetch_sub(weight, Ordering::Relaxed);
    }

    /// K11. Subtracts a value if the weight of all values is above `bytes`. Comparison and
    /// subtraction are one step: two threads never evict for the same excess.
    pub(super) fn remove_above(&self, bytes: u64, weight: u64) -> bool {
        let word = &self.eviction.weight;
        let mut seen = word.load(Ordering::Relaxed);
        while seen > bytes {
            let left = seen.wrapping_sub(weight);
            match word.compare_exchange_weak(seen, left, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// K12. The time of an insert: later than every time before.
    pub(super) fn insert_time(&self) -> u64 {
        // Relaxed, as below: the lock of a shard orders the times in that shard, and two shards are
        // in no order but that of the clock.
        if self.has_clock { self.clock.fetch_add(2, Ordering::Relaxed).wrapping_add(2) } else { 0 }
    }

    /// K12. The time of a hit: later than the inserts before, earlier than those after it.
    pub(super) fn hit_time(&self) -> u64 {
        if self.has_clock { self.clock.load(Ordering::Relaxed) | 1 } else { 0 }
    }

    /// Another number for each eviction.
    pub(super) fn next_scan(&self) -> u64 {
        self.eviction.scans.fetch_add(1, Ordering::Relaxed)
    }
}
