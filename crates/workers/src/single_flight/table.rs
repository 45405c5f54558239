//! The table of one shard of a single-flight cache: cached values, fills in flight, their LRU order
//! and counters, all under the lock of the shard. What is common to all shards it gets with each
//! call as `CacheUsage`: the capacity, the weight of all cached values, and the clock by which their
//! last uses are compared. That has no lock. Tables change it while they are locked, so that it
//! agrees with what they hold whenever no table is locked.
//!
//! A table runs no foreign code but the clone of a value: a value that leaves it is returned, so that
//! the caller drops it outside of the lock.

use std::collections::{HashMap, hash_map};
use std::hash::Hash;
use std::time::Duration;

use foldhash::fast::RandomState;

use super::{SingleFlightStats, Urgency};
use crate::counters::CachePadded;
use crate::sync::{
    AtomicBool, AtomicU64, AtomicUsize, Condvar, Mutex, Ordering, PlainArc, PlainAtomicU64, lock,
};

/// What a cached value costs beside its own weight: its entries in the tables. It also bounds the
/// number of cached values of no weight.
pub(super) const ENTRY_OVERHEAD_BYTES: u64 = 128;

/// So many prefetched values that nobody has used are passed over at most, in the search for one that was used, in all
/// the tables together that an eviction compares.
const UNUSED_PASSED_MAX: usize = 256;

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

/// The table under the lock.
#[derive(Debug)]
pub(super) struct CacheTable<K, V> {
    keys: HashMap<K, KeyState<V>, RandomState>,
    cached: LruList<CachedEntry<K, V>>,
    /// The share of this table in [`UNUSED_PASSED_MAX`].
    unused_passed_max: usize,
    /// The number of the next permit. Numbers are never used twice, so that an old permit is void.
    next_number: u64,
    stats: SingleFlightStats,
}

/// What is known of one key: at least one of the two.
#[derive(Debug)]
struct KeyState<V> {
    cached: Option<LruIndex>,
    fill: Option<PendingFill<V>>,
}

/// A cached value.
#[derive(Debug)]
struct CachedEntry<K, V> {
    key: K,
    value: V,
    weight: u64,
    length: usize,
    /// The time of the last use, by the clock of the cache. It never decreases from the oldest to
    /// the newest entry of a table.
    last_use: u64,
    /// A prefetch computed it, and no demand has found it yet.
    is_unused: bool,
}

/// Which values an eviction may take.
#[derive(Debug, Clone, Copy)]
pub(super) enum Evictable {
    /// All, while the cache holds more than so many bytes.
    AnyAbove(u64),
    /// The same, and values that a demand has used in any case.
    AnyAboveOrUsed(u64),
}

impl Evictable {
    /// Whether any value may be taken now.
    fn allows_all(self, usage: &CacheUsage) -> bool {
        match self {
            Self::AnyAbove(bytes) | Self::AnyAboveOrUsed(bytes) => usage.weight() > bytes,
        }
    }

    /// Whether some values may be taken now. It looks at no table.
    pub(super) fn allows_some(self, usage: &CacheUsage) -> bool {
        matches!(self, Self::AnyAboveOrUsed(_)) || self.allows_all(usage)
    }
}

/// How far a fill is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FillPhase {
    /// Its permit is in a queue: a demand may take the fill over.
    Queued,
    /// The holder of its permit computes, or is about to enqueue it.
    Running,
}

/// A fill that is not over.
#[derive(Debug)]
struct PendingFill<V> {
    /// None while the demand that owns the fill is the only one that knows of it. Most fills end
    /// before anybody joins, and then cost no allocation.
    in_flight: Option<PlainArc<InFlightEntry<V>>>,
    /// The number of the permit that may compute.
    owner: u64,
    phase: FillPhase,
    /// The length of the value to come.
    length: usize,
    /// The urgency that it began with.
    urgency: Urgency,
}

/// The table's part of a permit.
#[derive(Debug)]
pub(super) struct PermitState<V> {
    /// None while only the demand that owns the fill knows of it.
    pub(super) in_flight: Option<PlainArc<InFlightEntry<V>>>,
    pub(super) number: u64,
    pub(super) length: usize,
}

/// The table's part of a waiter.
#[derive(Debug)]
pub(super) struct WaitHandle<V> {
    pub(super) in_flight: PlainArc<InFlightEntry<V>>,
    /// The length that the waiter wants.
    pub(super) length: usize,
}

/// The answer to a lookup.
#[derive(Debug)]
pub(super) enum TableLookup<V> {
    Hit(V),
    Miss(PermitState<V>),
    Pending(WaitHandle<V>),
}

/// A computed value, measured outside of the lock.
#[derive(Debug)]
pub(super) struct FilledValue<V> {
    pub(super) value: V,
    pub(super) weight: u64,
    pub(super) length: usize,
}

/// The answer to `finish_unless_waited`.
#[derive(Debug)]
pub(super) enum FinishResult<V> {
    /// The fill is over. Its in-flight entry, if others know of it.
    Over(Option<PlainArc<InFlightEntry<V>>>),
    /// Somebody waits.
    Waited,
    /// The permit was void.
    Void,
}

/// A fill that has left the table.
#[derive(Debug)]
pub(super) struct CompletedFill<V> {
    /// None if only its owner knew of it: then nobody waits.
    pub(super) in_flight: Option<PlainArc<InFlightEntry<V>>>,
    /// The value that was replaced, or that was not cached.
    pub(super) replaced: Option<V>,
    pub(super) is_above_capacity: bool,
}

impl<K: Copy + Eq + Hash, V: Clone> CacheTable<K, V> {
    /// An empty table, of which an eviction compares `compared` at a time.
    pub(super) fn new(compared: usize) -> Self {
        Self {
            keys: HashMap::default(),
            cached: LruList::new(),
            unused_passed_max: UNUSED_PASSED_MAX.div_ceil(compared),
            next_number: 0,
            stats: SingleFlightStats::default(),
        }
    }

    /// K1 to K4.
    pub(super) fn lookup(
        &mut self,
        usage: &CacheUsage,
        key: K,
        length: usize,
        urgency: Urgency,
    ) -> TableLookup<V> {
        let number = self.next_number();
        let Self { keys, cached, stats, .. } = self;
        let state = keys.entry(key).or_insert(KeyState { cached: None, fill: None });
        // K1. A cached value that is long enough.
        let hit = state.cached.and_then(|index| get(cached, stats, usage, index, length, urgency));
        if let Some(value) = hit {
            return TableLookup::Hit(value);
        }
        match (&mut state.fill, urgency) {
            // K2. Nobody computes it.
            (None, _) => {
                // The holder of a prefetch's permit looks without the lock whether it is demanded.
                let is_prefetch = urgency == Urgency::Prefetch;
                let in_flight = is_prefetch.then(|| PlainArc::new(InFlightEntry::new(false)));
                state.fill = Some(PendingFill {
                    in_flight: in_flight.clone(),
                    owner: number,
                    phase: FillPhase::Running,
                    length,
                    urgency,
                });
                TableLookup::Miss(PermitState { in_flight, number, length })
            }
            // K3. Its permit is in a queue.
            (Some(fill), Urgency::Demand) if fill.phase == FillPhase::Queued => {
                stats.taken_over += 1;
                TableLookup::Miss(fill.transfer_to(number, length))
            }
            // K4. Somebody computes it.
            (Some(fill), Urgency::Demand) => {
                stats.waited += 1;
                let in_flight = fill.in_flight();
                let is_new = in_flight.demand();
                stats.upgraded += u64::from(is_new);
                in_flight.add_waiter();
                TableLookup::Pending(fill.wait_handle(length))
            }
            (Some(fill), Urgency::Prefetch) => TableLookup::Pending(fill.wait_handle(length)),
        }
    }

    /// K1.
    pub(super) fn get(
        &mut self,
        usage: &CacheUsage,
        key: K,
        length: usize,
        urgency: Urgency,
    ) -> Option<V> {
        let index = self.keys.get(&key)?.cached?;
        get(&mut self.cached, &mut self.stats, usage, index, length, urgency)
    }

    /// K5. Whether this permit still owns the fill; then nobody takes it over from now on.
    pub(super) fn begin(&mut self, key: K, number: u64) -> bool {
        let Some(fill) = self.fill_of(key, number) else { return false };
        fill.phase = FillPhase::Running;
        true
    }

    /// K5. The permit goes into a queue, and its holder waits. The handle of a void permit waits
    /// for the fill that it once owned, which may be over.
    pub(super) fn enqueue(&mut self, key: K, permit: &PermitState<V>) -> WaitHandle<V> {
        let length = permit.length;
        if let Some(fill) = self.fill_of(key, permit.number) {
            fill.phase = FillPhase::Queued;
            fill.in_flight().add_waiter();
            return fill.wait_handle(length);
        }
        let abandoned = || PlainArc::new(InFlightEntry::abandoned());
        let in_flight = permit.in_flight.clone().unwrap_or_else(abandoned);
        in_flight.add_waiter();
        WaitHandle { in_flight, length }
    }

    /// Whether somebody waits for the fill of a permit.
    pub(super) fn is_waited_for(&mut self, key: K, number: u64) -> bool {
        self.fill_of(key, number).is_some_and(|fill| fill.is_waited_for())
    }

    /// K8. Ends the fill if nobody waits for it.
    pub(super) fn finish_unless_waited(&mut self, key: K, number: u64) -> FinishResult<V> {
        let hash_map::Entry::Occupied(state) = self.keys.entry(key) else {
            return FinishResult::Void;
        };
        let fill = state.get().fill.as_ref().filter(|fill| fill.owner == number);
        match fill.map(PendingFill::is_waited_for) {
            None => FinishResult::Void,
            Some(true) => FinishResult::Waited,
            Some(false) => {
                let fill = take_fill(state, number);
                FinishResult::Over(fill.and_then(|fill| {
                    self.stats.end(&fill, true);
                    fill.in_flight
                }))
            }
        }
    }

    /// K7, the first half: the fill leaves the table, and its value goes in. None if the permit was
    /// void.
    pub(super) fn end(
        &mut self,
        usage: &CacheUsage,
        key: K,
        number: u64,
        filled: Option<FilledValue<V>>,
    ) -> Option<CompletedFill<V>> {
        let fill = match (self.keys.entry(key), &filled) {
            (hash_map::Entry::Vacant(_), _) => None,
            (hash_map::Entry::Occupied(state), None) => take_fill(state, number),
            (hash_map::Entry::Occupied(mut state), Some(_)) => {
                state.get_mut().fill.take_if(|fill| fill.owner == number)
            }
        }?;
        let (is_used, is_prefetch) = self.stats.end(&fill, filled.is_some());
        let mut replaced = None;
        if let Some(filled) = filled {
            replaced = self.insert(usage, key, filled, is_prefetch && !is_used);
            self.remove_if_empty(key);
        }
        let is_above_capacity = usage.weight() > usage.capacity();
        Some(CompletedFill { in_flight: fill.in_flight, replaced, is_above_capacity })
    }

    /// Caches a value, unless it is heavier than the capacity or a longer one is cached. Returns
    /// the value that was replaced or not cached.
    fn insert(
        &mut self,
        usage: &CacheUsage,
        key: K,
        filled: FilledValue<V>,
        is_unused: bool,
    ) -> Option<V> {
        let state = self.keys.get_mut(&key)?;
        let weight = filled.weight.saturating_add(ENTRY_OVERHEAD_BYTES);
        let old = state.cached.and_then(|index| self.cached.peek(index));
        if weight > usage.capacity() || old.is_some_and(|old| old.length > filled.length) {
            self.stats.prefetch_wasted += u64::from(is_unused);
            return Some(filled.value);
        }
        let FilledValue { value, length, .. } = filled;
        usage.replace(old.map_or(0, |old| old.weight), weight);
        let last_use = usage.insert_time();
        let entry = CachedEntry { key, value, weight, length, last_use, is_unused };
        let old = state.cached.replace(self.cached.insert(entry));
        old.and_then(|index| self.remove(index))
    }

    /// The last use of the value that [`Self::evict`] would take.
    pub(super) fn next_evicted(&self, usage: &CacheUsage, evictable: Evictable) -> Option<u64> {
        let index = self.evictable(usage, evictable)?;
        self.cached.peek(index).map(|entry| entry.last_use)
    }

    /// The least recently used value that may be evicted. It looks past a bounded number of those that may not.
    fn evictable(&self, usage: &CacheUsage, evictable: Evictable) -> Option<LruIndex> {
        let mut index = self.cached.oldest()?;
        if matches!(evictable, Evictable::AnyAbove(_)) || evictable.allows_all(usage) {
            return Some(index);
        }
        for _ in 0..self.unused_passed_max {
            if !self.cached.peek(index)?.is_unused {
                return Some(index);
            }
            index = self.cached.next_newer(index)?;
        }
        None
    }

    /// Removes the least recently used value that may be evicted, and returns it with its own
    /// weight; if `compared` is given, only if its last use is that.
    pub(super) fn evict(
        &mut self,
        usage: &CacheUsage,
        evictable: Evictable,
        compared: Option<u64>,
    ) -> Option<(V, u64)> {
        let index = self.evictable(usage, evictable)?;
        let CachedEntry { key, weight, last_use, is_unused, .. } = self.cached.peek(index)?;
        let (key, weight, is_used) = (*key, *weight, !is_unused);
        if compared.is_some_and(|compared| compared != *last_use) {
            return None;
        }
        match evictable {
            Evictable::AnyAboveOrUsed(_) if is_used => usage.remove(weight),
            Evictable::AnyAbove(bytes) | Evictable::AnyAboveOrUsed(bytes) => {
                if !usage.remove_above(bytes, weight) {
                    return None;
                }
            }
        }
        if let Some(state) = self.keys.get_mut(&key) {
            state.cached = None;
        }
        self.remove_if_empty(key);
        self.remove(index).map(|value| (value, weight.saturating_sub(ENTRY_OVERHEAD_BYTES)))
    }

    /// Removes the cached value of `key`.
    pub(super) fn invalidate(&mut self, usage: &CacheUsage, key: K) -> Option<V> {
        let index = self.keys.get_mut(&key)?.cached.take()?;
        self.remove_if_empty(key);
        usage.remove(self.cached.peek(index)?.weight);
        self.remove(index)
    }

    /// Removes a value whose weight has been subtracted.
    fn remove(&mut self, index: LruIndex) -> Option<V> {
        let entry = self.cached.remove(index)?;
        self.stats.prefetch_wasted += u64::from(entry.is_unused);
        Some(entry.value)
    }

    fn remove_if_empty(&mut self, key: K) {
        if let hash_map::Entry::Occupied(state) = self.keys.entry(key)
            && state.get().cached.is_none()
            && state.get().fill.is_none()
        {
            state.remove();
        }
    }

    /// The fill of a permit, if the permit still owns it.
    fn fill_of(&mut self, key: K, number: u64) -> Option<&mut PendingFill<V>> {
        let fill = self.keys.get_mut(&key)?.fill.as_mut()?;
        (fill.owner == number).then_some(fill)
    }

    fn next_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    pub(super) fn stats(&self) -> SingleFlightStats {
        self.stats
    }

    /// The number of keys, cached or in flight.
    #[cfg(all(test, not(loom)))]
    pub(super) fn keys(&self) -> usize {
        self.keys.len()
    }
}

/// K1: the value at `index`, if it is long enough.
fn get<K, V: Clone>(
    cached: &mut LruList<CachedEntry<K, V>>,
    stats: &mut SingleFlightStats,
    usage: &CacheUsage,
    index: LruIndex,
    length: usize,
    urgency: Urgency,
) -> Option<V> {
    if cached.peek(index)?.length < length {
        return None;
    }
    let entry = cached.touch(index)?;
    // K12. Under the lock, so that times do not decrease in the list.
    entry.last_use = usage.hit_time();
    if urgency == Urgency::Demand {
        stats.hits += 1;
        stats.prefetch_used += u64::from(std::mem::take(&mut entry.is_unused));
    }
    Some(entry.value.clone())
}

/// Takes the fill of a permit out of the table, if the permit still owns it, and removes a key of
/// which nothing is left.
fn take_fill<K, V>(
    mut state: hash_map::OccupiedEntry<'_, K, KeyState<V>>,
    number: u64,
) -> Option<PendingFill<V>> {
    let fill = state.get_mut().fill.take_if(|fill| fill.owner == number);
    if state.get().cached.is_none() && state.get().fill.is_none() {
        state.remove();
    }
    fill
}

impl SingleFlightStats {
    /// Adds the counters of another table.
    pub(super) fn add(&mut self, other: &Self) {
        // No `..`: a new counter must be added here.
        let Self {
            hits,
            waited,
            computed,
            abandoned,
            taken_over,
            upgraded,
            prefetched,
            prefetch_used,
            prefetch_wasted,
            prefetch_dropped,
        } = other;
        self.hits += hits;
        self.waited += waited;
        self.computed += computed;
        self.abandoned += abandoned;
        self.taken_over += taken_over;
        self.upgraded += upgraded;
        self.prefetched += prefetched;
        self.prefetch_used += prefetch_used;
        self.prefetch_wasted += prefetch_wasted;
        self.prefetch_dropped += prefetch_dropped;
    }

    /// Counts the end of a fill. Returns whether it was demanded, and whether it began as a
    /// prefetch.
    fn end<V: Clone>(&mut self, fill: &PendingFill<V>, is_computed: bool) -> (bool, bool) {
        let is_prefetch = fill.urgency == Urgency::Prefetch;
        let is_used = fill.is_demanded();
        if is_computed {
            self.computed += 1;
            self.prefetched += u64::from(is_prefetch);
            self.prefetch_used += u64::from(is_prefetch && is_used);
        } else {
            self.abandoned += 1;
            self.prefetch_dropped += u64::from(is_prefetch);
        }
        (is_used, is_prefetch)
    }
}

impl<V: Clone> PendingFill<V> {
    /// The in-flight entry, which others than the owner know from now on.
    fn in_flight(&mut self) -> &PlainArc<InFlightEntry<V>> {
        // A fill without an entry belongs to a demand.
        self.in_flight.get_or_insert_with(|| PlainArc::new(InFlightEntry::new(true)))
    }

    fn is_demanded(&self) -> bool {
        self.in_flight.as_ref().is_none_or(|in_flight| in_flight.is_demanded())
    }

    fn is_waited_for(&self) -> bool {
        self.in_flight.as_ref().is_some_and(|in_flight| in_flight.is_waited_for())
    }

    /// K3. Makes a new permit the owner. The fill is running then: two demands that could take a
    /// fill from each other might do so for ever.
    fn transfer_to(&mut self, number: u64, length: usize) -> PermitState<V> {
        self.owner = number;
        self.phase = FillPhase::Running;
        self.length = self.length.max(length);
        self.urgency = Urgency::Demand;
        if let Some(in_flight) = &self.in_flight {
            in_flight.demand();
        }
        PermitState { in_flight: self.in_flight.clone(), number, length: self.length }
    }

    fn wait_handle(&mut self, length: usize) -> WaitHandle<V> {
        WaitHandle { in_flight: PlainArc::clone(self.in_flight()), length }
    }
}

/// What a fill came to.
#[derive(Debug)]
enum FillOutcome<V> {
    Pending,
    /// No value. The reason is not kept: waiters look up again.
    Abandoned,
    Value(V),
}

/// The part of a fill outside of the table's lock: its outcome, on which waiters sleep.
#[derive(Debug)]
pub(super) struct InFlightEntry<V> {
    outcome: Mutex<FillOutcome<V>>,
    /// One for each entry, so that the end of one fill wakes nobody else's waiters.
    over: Condvar,
    /// Whether a demand wants it. Only ever set.
    is_demanded: AtomicBool,
    /// Demands that wait or are about to. It grows under the table's lock only.
    waiters: AtomicUsize,
}

impl<V: Clone> InFlightEntry<V> {
    fn new(is_demanded: bool) -> Self {
        Self {
            outcome: Mutex::new(FillOutcome::Pending),
            over: Condvar::new(),
            is_demanded: AtomicBool::new(is_demanded),
            waiters: AtomicUsize::new(0),
        }
    }

    /// The entry of a fill that has ended without a value.
    fn abandoned() -> Self {
        let entry = Self::new(false);
        *lock(&entry.outcome) = FillOutcome::Abandoned;
        entry
    }

    /// K4. Records that a demand wants it; returns whether that is new.
    fn demand(&self) -> bool {
        // Relaxed: it guards no data, and a worker that looked a moment too early is the case of
        // K9.
        !self.is_demanded.swap(true, Ordering::Relaxed)
    }

    pub(super) fn is_demanded(&self) -> bool {
        self.is_demanded.load(Ordering::Relaxed)
    }

    fn add_waiter(&self) {
        // Relaxed: the table's lock orders it before the look of K8.
        self.waiters.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn remove_waiter(&self) {
        // Relaxed: seen late, it costs one copy that nobody takes.
        self.waiters.fetch_sub(1, Ordering::Relaxed);
    }

    fn is_waited_for(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) != 0
    }

    /// K7, the second half. Sets the outcome and wakes all waiters.
    pub(super) fn end(&self, value: Option<V>) {
        let mut outcome = lock(&self.outcome);
        *outcome = value.map_or(FillOutcome::Abandoned, FillOutcome::Value);
        drop(outcome);
        self.over.notify_all();
    }

    /// The outcome, once there is one: the value, or none if the fill was abandoned.
    pub(super) fn outcome(&self) -> Option<Option<V>> {
        match &*lock(&self.outcome) {
            FillOutcome::Pending => None,
            FillOutcome::Abandoned => Some(None),
            FillOutcome::Value(value) => Some(Some(value.clone())),
        }
    }

    /// K6. Sleeps until there is an outcome.
    pub(super) fn wait(&self) -> Option<V> {
        let mut outcome = lock(&self.outcome);
        loop {
            match &*outcome {
                FillOutcome::Pending => {}
                FillOutcome::Abandoned => return None,
                FillOutcome::Value(value) => return Some(value.clone()),
            }
            outcome = self.over.wait(outcome).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// K6. The same, for some time at most: then, or after a wake-up for nothing, as [`Self::outcome`].
    pub(super) fn wait_for(&self, most: Duration) -> Option<Option<V>> {
        let outcome = lock(&self.outcome);
        if matches!(&*outcome, FillOutcome::Pending) {
            drop(self.over.wait_timeout(outcome, most));
        } else {
            drop(outcome);
        }
        self.outcome()
    }
}

/// The index of no node.
const NONE: usize = usize::MAX;

#[derive(Debug)]
struct LruNode<T> {
    /// None in a free node.
    value: Option<T>,
    newer: usize,
    /// The next older node; of a free node, the next free one.
    older: usize,
}

/// A list by last use. Each operation takes constant time. It is a slab whose nodes are linked by
/// index, so that there is no unsafe code.
#[derive(Debug)]
struct LruList<T> {
    nodes: Vec<LruNode<T>>,
    newest: usize,
    oldest: usize,
    free: usize,
}

/// The index of a value, until it is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LruIndex(usize);

impl<T> LruList<T> {
    fn new() -> Self {
        Self { nodes: Vec::new(), newest: NONE, oldest: NONE, free: NONE }
    }

    /// Inserts a value as the most recently used.
    fn insert(&mut self, value: T) -> LruIndex {
        let node = LruNode { value: Some(value), newer: NONE, older: NONE };
        let index = self.free;
        let index = match self.nodes.get_mut(index) {
            Some(free) => {
                self.free = free.older;
                *free = node;
                index
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        };
        self.link(index);
        LruIndex(index)
    }

    /// Makes a value the most recently used.
    fn touch(&mut self, LruIndex(index): LruIndex) -> Option<&mut T> {
        if self.newest != index {
            self.unlink(index);
            self.link(index);
        }
        self.nodes.get_mut(index)?.value.as_mut()
    }

    /// A value, without a change of the order.
    fn peek(&self, LruIndex(index): LruIndex) -> Option<&T> {
        self.nodes.get(index)?.value.as_ref()
    }

    /// Removes a value.
    fn remove(&mut self, LruIndex(index): LruIndex) -> Option<T> {
        let value = self.nodes.get_mut(index)?.value.take()?;
        self.unlink(index);
        self.nodes[index].older = self.free;
        self.free = index;
        Some(value)
    }

    /// The least recently used.
    fn oldest(&self) -> Option<LruIndex> {
        (self.oldest != NONE).then_some(LruIndex(self.oldest))
    }

    /// The one that was used next after a value.
    fn next_newer(&self, LruIndex(index): LruIndex) -> Option<LruIndex> {
        let newer = self.nodes.get(index)?.newer;
        (newer != NONE).then_some(LruIndex(newer))
    }

    fn link(&mut self, index: usize) {
        let older = std::mem::replace(&mut self.newest, index);
        self.nodes[index].newer = NONE;
        self.nodes[index].older = older;
        match self.nodes.get_mut(older) {
            Some(older) => older.newer = index,
            None => self.oldest = index,
        }
    }

    fn unlink(&mut self, index: usize) {
        let LruNode { newer, older, .. } = self.nodes[index];
        match self.nodes.get_mut(newer) {
            Some(newer) => newer.older = older,
            None => self.newest = older,
        }
        match self.nodes.get_mut(older) {
            Some(older) => older.newer = newer,
            None => self.oldest = newer,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

    use proptest::prelude::*;

    use super::{LruIndex, LruList};

    proptest! {
        /// Its simple twin is a vector, oldest first.
        #[test]
        fn any_sequence_of_steps_ends_as_in_a_vector(steps in prop::collection::vec((0..4_u8, 0..9_usize), 0..200)) {
            let mut list = LruList::new();
            let mut twin: Vec<(LruIndex, usize)> = Vec::new();
            for (number, (step, which)) in steps.into_iter().enumerate() {
                match step {
                    0 => twin.push((list.insert(number), number)),
                    _ if twin.is_empty() => prop_assert!(list.oldest().is_none()),
                    1 => {
                        let used = twin.remove(which % twin.len());
                        prop_assert_eq!(*list.touch(used.0).unwrap(), used.1);
                        twin.push(used);
                    }
                    2 => {
                        let gone = twin.remove(which % twin.len());
                        prop_assert_eq!(list.remove(gone.0), Some(gone.1));
                        prop_assert_eq!(list.peek(gone.0), None);
                    }
                    _ => {
                        let (oldest, value) = twin.remove(0);
                        prop_assert_eq!(list.oldest(), Some(oldest));
                        prop_assert_eq!(list.remove(oldest), Some(value));
                    }
                }
            }
            for (index, value) in twin {
                prop_assert_eq!(list.oldest(), Some(index));
                prop_assert_eq!(list.remove(index), Some(value));
            }
            prop_assert!(list.oldest().is_none());
        }
    }
}
