//! Which values are kept and which are on their way. It owns both tables and the stats, all under the
//! one lock of `SingleFlight`; it never runs code of a value but its clone: what goes is handed out, to be
//! dropped when the lock is free. `SingleFlight`, `FillPermit` and `Waiter` call it.

use std::collections::{HashMap, hash_map};
use std::hash::Hash;

use foldhash::fast::RandomState;

use super::Urgency;
use super::in_flight::InFlightEntry;
use super::lru::{LruIndex, LruList};
use super::stats::SingleFlightStats;
use crate::sync::PlainArc;

/// What a kept value costs beside its own weight: its places in the tables. It also bounds how many
/// values of no weight are kept.
pub(super) const ENTRY_OVERHEAD_BYTES: u64 = 128;

/// Both tables.
#[derive(Debug)]
pub(super) struct CacheTable<K, V> {
    slots: HashMap<K, KeyState<V>, RandomState>,
    kept: LruList<CachedEntry<K, V>>,
    weight: u64,
    capacity: u64,
    /// The next permit's or in_flight's number. Never used twice, so that an old permit is known as one.
    next_number: u64,
    stats: SingleFlightStats,
}

/// What is known of one key; a slot has one of the two at least.
#[derive(Debug)]
struct KeyState<V> {
    kept: Option<LruIndex>,
    entry: Option<PendingFill<V>>,
}

/// A value to serve.
#[derive(Debug)]
struct CachedEntry<K, V> {
    key: K,
    value: V,
    weight: u64,
    length: usize,
    /// Came by prefetch, and nobody has demanded it yet.
    is_unused: bool,
}

/// How far a in_flight is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FillPhase {
    /// Its permit lies in a queue: a demand may take it over.
    Queued,
    /// Its permit is in the hands of one who computes, or is about to decide where.
    Running,
}

/// A in_flight that is not over.
#[derive(Debug)]
struct PendingFill<V> {
    /// None while its owner, who came with a demand, is the only one who knows of it: most demands end
    /// before anybody joins.
    in_flight: Option<PlainArc<InFlightEntry<V>>>,
    /// Stays when the in_flight is taken over.
    number: u64,
    /// The permit that may compute.
    owner: u64,
    phase: FillPhase,
    /// What the value will have.
    length: usize,
    /// What it began as.
    urgency: Urgency,
}

/// A right to compute.
#[derive(Debug)]
pub(super) struct PermitState<V> {
    /// None while only a demand's owner knows of it.
    pub(super) in_flight: Option<PlainArc<InFlightEntry<V>>>,
    /// The permit's number.
    pub(super) permit: u64,
    pub(super) length: usize,
}

/// A place among those who wait.
#[derive(Debug)]
pub(super) struct WaitHandle<V> {
    pub(super) in_flight: PlainArc<InFlightEntry<V>>,
    /// The in_flight's number.
    pub(super) number: u64,
    pub(super) length: usize,
}

/// The answer to a lookup.
#[derive(Debug)]
pub(super) enum TableLookup<V> {
    Hit(V),
    Miss(PermitState<V>),
    Pending(WaitHandle<V>),
}

/// A value on its way into the table, measured outside of the lock.
#[derive(Debug)]
pub(super) struct FilledValue<V> {
    pub(super) value: V,
    pub(super) weight: u64,
    pub(super) length: usize,
}

/// The answer to one who would finish without publishing.
#[derive(Debug)]
pub(super) enum FinishResult<V> {
    /// It is over; here is its in_flight, if others knew of it.
    Over(Option<PlainArc<InFlightEntry<V>>>),
    /// Somebody waits.
    Waited,
    /// The in_flight was another's already.
    Void,
}

impl<K: Copy + Eq + Hash, V: Clone> CacheTable<K, V> {
    pub(super) fn new(capacity: u64) -> Self {
        Self {
            slots: HashMap::default(),
            kept: LruList::new(),
            weight: 0,
            capacity,
            next_number: 0,
            stats: SingleFlightStats::default(),
        }
    }

    /// K1 to K4.
    pub(super) fn lookup(&mut self, key: K, length: usize, urgency: Urgency) -> TableLookup<V> {
        let number = self.next();
        let Self { slots, kept, stats, .. } = self;
        let slot = slots.entry(key).or_insert(KeyState { kept: None, entry: None });
        // K1. What is kept and long enough.
        if let Some(value) = slot.kept.and_then(|place| serve(kept, stats, place, length, urgency))
        {
            return TableLookup::Hit(value);
        }
        match (&mut slot.entry, urgency) {
            // K2. Nobody is at it.
            (None, _) => {
                // A prefetch looks at it without the lock, to see whether it is demanded.
                let is_prefetch = urgency == Urgency::Prefetch;
                let in_flight = is_prefetch.then(|| PlainArc::new(InFlightEntry::new(false)));
                let inner = in_flight.clone();
                let (phase, owner) = (FillPhase::Running, number);
                slot.entry =
                    Some(PendingFill { in_flight: inner, number, owner, phase, length, urgency });
                TableLookup::Miss(PermitState { in_flight, permit: number, length })
            }
            // K3. It lies in a queue.
            (Some(entry), Urgency::Demand) if entry.phase == FillPhase::Queued => {
                stats.taken_over += 1;
                TableLookup::Miss(entry.transfer_to(number, length))
            }
            // K4. Somebody is at it.
            (Some(entry), Urgency::Demand) => {
                stats.waited += 1;
                let in_flight = entry.joined();
                let is_new = in_flight.demand();
                stats.upgraded += u64::from(is_new);
                in_flight.add_waiter();
                TableLookup::Pending(entry.wait_handle(length))
            }
            (Some(entry), Urgency::Prefetch) => TableLookup::Pending(entry.wait_handle(length)),
        }
    }

    /// K1.
    pub(super) fn serve(&mut self, key: K, length: usize, urgency: Urgency) -> Option<V> {
        let place = self.slots.get(&key)?.kept?;
        serve(&mut self.kept, &mut self.stats, place, length, urgency)
    }

    /// K3 for one who waits: none when somebody has begun, or it is over.
    pub(super) fn take_over(
        &mut self,
        key: K,
        in_flight: u64,
        length: usize,
    ) -> Option<PermitState<V>> {
        let number = self.next();
        let entry = self.slots.get_mut(&key)?.entry.as_mut()?;
        if entry.number != in_flight || entry.phase != FillPhase::Queued {
            return None;
        }
        self.stats.taken_over += 1;
        Some(entry.transfer_to(number, length))
    }

    /// K5. Whether this permit is still the in_flight's; then nobody takes it over from now on.
    pub(super) fn begin(&mut self, key: K, permit: u64) -> bool {
        let Some(entry) = self.pending_fill_of(key, permit) else { return false };
        entry.phase = FillPhase::Running;
        true
    }

    /// K5. The permit goes into a queue, and its holder will wait. Of a void permit, whose in_flight may be
    /// over, somebody waits for `in_flight`.
    pub(super) fn enqueue(&mut self, key: K, right: &PermitState<V>) -> WaitHandle<V> {
        let length = right.length;
        if let Some(entry) = self.pending_fill_of(key, right.permit) {
            entry.phase = FillPhase::Queued;
            entry.joined().add_waiter();
            return entry.wait_handle(length);
        }
        let gone = || PlainArc::new(InFlightEntry::over());
        let in_flight = right.in_flight.clone().unwrap_or_else(gone);
        in_flight.add_waiter();
        // No in_flight has the number 0, so nothing is taken over.
        WaitHandle { in_flight, number: 0, length }
    }

    /// Whether somebody waits for a permit's in_flight.
    pub(super) fn is_waited_for(&mut self, key: K, permit: u64) -> bool {
        self.pending_fill_of(key, permit).is_some_and(|entry| entry.is_waited_for())
    }

    /// K8. Ends the in_flight if nobody waits for it.
    pub(super) fn finish_unless_waited(&mut self, key: K, permit: u64) -> FinishResult<V> {
        let hash_map::Entry::Occupied(slot) = self.slots.entry(key) else {
            return FinishResult::Void;
        };
        let pending_fill_of = slot.get().entry.as_ref().filter(|entry| entry.owner == permit);
        match pending_fill_of.map(PendingFill::is_waited_for) {
            None => FinishResult::Void,
            Some(true) => FinishResult::Waited,
            Some(false) => {
                let entry = take_entry(slot, permit);
                FinishResult::Over(entry.and_then(|entry| {
                    self.stats.end(&entry, true);
                    entry.in_flight
                }))
            }
        }
    }

    /// K7, the first half: the in_flight leaves the table. What a value replaces is the caller's to drop,
    /// outside of the lock; none when the permit was void.
    pub(super) fn end(
        &mut self,
        key: K,
        permit: u64,
        filled: Option<FilledValue<V>>,
    ) -> Option<CompletedFill<V>> {
        let entry = match (self.slots.entry(key), &filled) {
            (hash_map::Entry::Vacant(_), _) => None,
            (hash_map::Entry::Occupied(slot), None) => take_entry(slot, permit),
            (hash_map::Entry::Occupied(mut slot), Some(_)) => {
                slot.get_mut().entry.take_if(|entry| entry.owner == permit)
            }
        }?;
        let (is_used, is_prefetch) = self.stats.end(&entry, filled.is_some());
        let mut left = None;
        if let Some(filled) = filled {
            left = self.keep(key, filled, is_prefetch && !is_used);
            self.forget_if_empty(key);
        }
        let is_above_capacity = self.weight > self.capacity;
        Some(CompletedFill { in_flight: entry.in_flight, left, is_above_capacity })
    }

    /// Keeps a value, unless it is heavier than everything may be, or a longer one is there; what is
    /// not kept comes back.
    fn keep(&mut self, key: K, filled: FilledValue<V>, is_unused: bool) -> Option<V> {
        let slot = self.slots.get_mut(&key)?;
        let weight = filled.weight.saturating_add(ENTRY_OVERHEAD_BYTES);
        let old = slot.kept.and_then(|place| self.kept.peek(place));
        if weight > self.capacity || old.is_some_and(|old| old.length > filled.length) {
            self.stats.prefetch_wasted += u64::from(is_unused);
            return Some(filled.value);
        }
        let FilledValue { value, length, .. } = filled;
        let place = self.kept.insert(CachedEntry { key, value, weight, length, is_unused });
        let old = slot.kept.replace(place);
        self.weight += weight;
        old.and_then(|place| self.remove(place))
    }

    /// The value used longest ago, while more is kept than `most` bytes; with its own weight.
    pub(super) fn evict_above(&mut self, most: u64) -> Option<(V, u64)> {
        if self.weight <= most {
            return None;
        }
        let place = self.kept.oldest()?;
        let CachedEntry { key, weight, .. } = self.kept.peek(place)?;
        let (key, weight) = (*key, weight.saturating_sub(ENTRY_OVERHEAD_BYTES));
        if let Some(slot) = self.slots.get_mut(&key) {
            slot.kept = None;
        }
        self.forget_if_empty(key);
        self.remove(place).map(|value| (value, weight))
    }

    /// The same; but of values that were prefetched and not used yet at least `unused` bytes stay.
    pub(super) fn evict_used(&mut self, unused: u64) -> Option<(V, u64)> {
        let oldest = self.kept.peek(self.kept.oldest()?)?;
        let most = if oldest.is_unused { unused } else { 0 };
        self.evict_above(most)
    }

    /// The value kept for `key`, which is not kept any more.
    pub(super) fn invalidate(&mut self, key: K) -> Option<V> {
        let place = self.slots.get_mut(&key)?.kept.take()?;
        self.forget_if_empty(key);
        self.remove(place)
    }

    fn remove(&mut self, place: LruIndex) -> Option<V> {
        let kept = self.kept.remove(place)?;
        self.weight -= kept.weight;
        self.stats.prefetch_wasted += u64::from(kept.is_unused);
        Some(kept.value)
    }

    fn forget_if_empty(&mut self, key: K) {
        if let hash_map::Entry::Occupied(slot) = self.slots.entry(key)
            && slot.get().kept.is_none()
            && slot.get().entry.is_none()
        {
            slot.remove();
        }
    }

    /// The in_flight of a permit, if it is still that permit's.
    fn pending_fill_of(&mut self, key: K, permit: u64) -> Option<&mut PendingFill<V>> {
        let entry = self.slots.get_mut(&key)?.entry.as_mut()?;
        (entry.owner == permit).then_some(entry)
    }

    fn next(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    pub(super) fn weight(&self) -> u64 {
        self.weight
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(super) fn set_capacity(&mut self, capacity: u64) {
        self.capacity = capacity;
    }

    pub(super) fn stats(&self) -> SingleFlightStats {
        self.stats
    }

    /// Keys that are known, kept or on their way.
    #[cfg(all(test, not(loom)))]
    pub(super) fn keys(&self) -> usize {
        self.slots.len()
    }
}

/// A in_flight that has left the table.
#[derive(Debug)]
pub(super) struct CompletedFill<V> {
    /// None if only its owner knew of it: then nobody waits.
    pub(super) in_flight: Option<PlainArc<InFlightEntry<V>>>,
    /// What was replaced, or not kept.
    pub(super) left: Option<V>,
    /// More is kept than may be.
    pub(super) is_above_capacity: bool,
}

/// K1: what is kept in this place, if it is long enough.
fn serve<K, V: Clone>(
    kept: &mut LruList<CachedEntry<K, V>>,
    stats: &mut SingleFlightStats,
    place: LruIndex,
    length: usize,
    urgency: Urgency,
) -> Option<V> {
    if kept.peek(place)?.length < length {
        return None;
    }
    let kept = kept.touch(place)?;
    if urgency == Urgency::Demand {
        stats.hits += 1;
        stats.prefetch_used += u64::from(std::mem::take(&mut kept.is_unused));
    }
    Some(kept.value.clone())
}

/// Takes a permit's in_flight out of the table, if it is still that permit's, with the slot if nothing is left.
fn take_entry<K, V>(
    mut slot: hash_map::OccupiedEntry<'_, K, KeyState<V>>,
    permit: u64,
) -> Option<PendingFill<V>> {
    let entry = slot.get_mut().entry.take_if(|entry| entry.owner == permit);
    if slot.get().kept.is_none() && slot.get().entry.is_none() {
        slot.remove();
    }
    entry
}

impl SingleFlightStats {
    /// Counts the end of a in_flight; answers whether it was demanded, and whether it began as a prefetch.
    fn end<V: Clone>(&mut self, entry: &PendingFill<V>, is_computed: bool) -> (bool, bool) {
        let is_prefetch = entry.urgency == Urgency::Prefetch;
        let is_used = entry.is_demanded();
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
    /// The in_flight, from now on known to more than its owner.
    fn joined(&mut self) -> &PlainArc<InFlightEntry<V>> {
        // Without one it is a demand's.
        self.in_flight.get_or_insert_with(|| PlainArc::new(InFlightEntry::new(true)))
    }

    fn is_demanded(&self) -> bool {
        self.in_flight.as_ref().is_none_or(|in_flight| in_flight.is_demanded())
    }

    fn is_waited_for(&self) -> bool {
        self.in_flight.as_ref().is_some_and(|in_flight| in_flight.is_waited_for())
    }

    /// A new owner, out of the queue: two demands never take a in_flight from each other's hands, which
    /// might go on for ever.
    fn transfer_to(&mut self, permit: u64, length: usize) -> PermitState<V> {
        self.owner = permit;
        self.phase = FillPhase::Running;
        self.length = self.length.max(length);
        self.urgency = Urgency::Demand;
        if let Some(in_flight) = &self.in_flight {
            in_flight.demand();
        }
        PermitState { in_flight: self.in_flight.clone(), permit, length: self.length }
    }

    fn wait_handle(&mut self, length: usize) -> WaitHandle<V> {
        let in_flight = PlainArc::clone(self.joined());
        WaitHandle { in_flight, number: self.number, length }
    }
}
