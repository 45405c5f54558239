//! Which values are kept and which are on their way. It owns both tables and the counts, all under the
//! one lock of `Claims`; it never runs code of a value but its clone: what goes is handed out, to be
//! dropped when the lock is free. `Claims`, `Ticket` and `Waiter` call it.

use std::collections::{HashMap, hash_map};
use std::hash::Hash;

use foldhash::fast::RandomState;

use super::claim::Urgency;
use super::counts::ClaimCounts;
use super::flight::Flight;
use super::recency::{Place, Recency};
use crate::sync::PlainArc;

/// What a kept value costs beside its own weight: its places in the tables. It also bounds how many
/// values of no weight are kept.
pub(super) const KEPT_BYTES: u64 = 128;

/// Both tables.
#[derive(Debug)]
pub(super) struct Register<K, V> {
    slots: HashMap<K, Slot<V>, RandomState>,
    kept: Recency<Kept<K, V>>,
    weight: u64,
    capacity: u64,
    /// The next ticket's or flight's number. Never used twice, so that an old ticket is known as one.
    next_number: u64,
    counts: ClaimCounts,
}

/// What is known of one key; a slot has one of the two at least.
#[derive(Debug)]
struct Slot<V> {
    kept: Option<Place>,
    entry: Option<Entry<V>>,
}

/// A value to serve.
#[derive(Debug)]
struct Kept<K, V> {
    key: K,
    value: V,
    weight: u64,
    length: usize,
    /// Came by prefetch, and nobody has demanded it yet.
    is_unused: bool,
}

/// How far a flight is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Its ticket lies in a queue: a demand may take it over.
    Queued,
    /// Its ticket is in the hands of one who computes, or is about to decide where.
    Running,
}

/// A flight that is not over.
#[derive(Debug)]
struct Entry<V> {
    /// None while its owner, who came with a demand, is the only one who knows of it: most demands end
    /// before anybody joins.
    flight: Option<PlainArc<Flight<V>>>,
    /// Stays when the flight is taken over.
    number: u64,
    /// The ticket that may compute.
    owner: u64,
    phase: Phase,
    /// What the value will have.
    length: usize,
    /// What it began as.
    urgency: Urgency,
}

/// A right to compute.
#[derive(Debug)]
pub(super) struct Right<V> {
    /// None while only a demand's owner knows of it.
    pub(super) flight: Option<PlainArc<Flight<V>>>,
    /// The ticket's number.
    pub(super) ticket: u64,
    pub(super) length: usize,
}

/// A place among those who wait.
#[derive(Debug)]
pub(super) struct Boarding<V> {
    pub(super) flight: PlainArc<Flight<V>>,
    /// The flight's number.
    pub(super) number: u64,
    pub(super) length: usize,
}

/// The answer to a claim.
#[derive(Debug)]
pub(super) enum Answer<V> {
    Ready(V),
    Mine(Right<V>),
    Pending(Boarding<V>),
}

/// A value on its way into the register, measured outside of the lock.
#[derive(Debug)]
pub(super) struct Arrival<V> {
    pub(super) value: V,
    pub(super) weight: u64,
    pub(super) length: usize,
}

/// The answer to one who would finish without publishing.
#[derive(Debug)]
pub(super) enum Finish<V> {
    /// It is over; here is its flight, if others knew of it.
    Over(Option<PlainArc<Flight<V>>>),
    /// Somebody waits.
    Waited,
    /// The flight was another's already.
    Void,
}

impl<K: Copy + Eq + Hash, V: Clone> Register<K, V> {
    pub(super) fn new(capacity: u64) -> Self {
        Self {
            slots: HashMap::default(),
            kept: Recency::new(),
            weight: 0,
            capacity,
            next_number: 0,
            counts: ClaimCounts::default(),
        }
    }

    /// K1 to K4.
    pub(super) fn claim(&mut self, key: K, length: usize, urgency: Urgency) -> Answer<V> {
        let number = self.next();
        let Self { slots, kept, counts, .. } = self;
        let slot = slots.entry(key).or_insert(Slot { kept: None, entry: None });
        // K1. What is kept and long enough.
        if let Some(value) = slot.kept.and_then(|place| serve(kept, counts, place, length, urgency))
        {
            return Answer::Ready(value);
        }
        match (&mut slot.entry, urgency) {
            // K2. Nobody is at it.
            (None, _) => {
                // A prefetch looks at it without the lock, to see whether it is demanded.
                let is_prefetch = urgency == Urgency::Prefetch;
                let flight = is_prefetch.then(|| PlainArc::new(Flight::new(false)));
                let shared = flight.clone();
                let (phase, owner) = (Phase::Running, number);
                slot.entry = Some(Entry { flight: shared, number, owner, phase, length, urgency });
                Answer::Mine(Right { flight, ticket: number, length })
            }
            // K3. It lies in a queue.
            (Some(entry), Urgency::Demand) if entry.phase == Phase::Queued => {
                counts.taken_over += 1;
                Answer::Mine(entry.hand_over(number, length))
            }
            // K4. Somebody is at it.
            (Some(entry), Urgency::Demand) => {
                counts.waited += 1;
                let flight = entry.joined();
                let is_new = flight.demand();
                counts.upgraded += u64::from(is_new);
                flight.add_waiter();
                Answer::Pending(entry.boarding(length))
            }
            (Some(entry), Urgency::Prefetch) => Answer::Pending(entry.boarding(length)),
        }
    }

    /// K1.
    pub(super) fn serve(&mut self, key: K, length: usize, urgency: Urgency) -> Option<V> {
        let place = self.slots.get(&key)?.kept?;
        serve(&mut self.kept, &mut self.counts, place, length, urgency)
    }

    /// K3 for one who waits: none when somebody has begun, or it is over.
    pub(super) fn take_over(&mut self, key: K, flight: u64, length: usize) -> Option<Right<V>> {
        let number = self.next();
        let entry = self.slots.get_mut(&key)?.entry.as_mut()?;
        if entry.number != flight || entry.phase != Phase::Queued {
            return None;
        }
        self.counts.taken_over += 1;
        Some(entry.hand_over(number, length))
    }

    /// K5. Whether this ticket is still the flight's; then nobody takes it over from now on.
    pub(super) fn begin(&mut self, key: K, ticket: u64) -> bool {
        let Some(entry) = self.owned(key, ticket) else { return false };
        entry.phase = Phase::Running;
        true
    }

    /// K5. The ticket goes into a queue, and its holder will wait. Of a void ticket, whose flight may be
    /// over, somebody waits for `flight`.
    pub(super) fn hand_out(&mut self, key: K, right: &Right<V>) -> Boarding<V> {
        let length = right.length;
        if let Some(entry) = self.owned(key, right.ticket) {
            entry.phase = Phase::Queued;
            entry.joined().add_waiter();
            return entry.boarding(length);
        }
        let gone = || PlainArc::new(Flight::over());
        let flight = right.flight.clone().unwrap_or_else(gone);
        flight.add_waiter();
        // No flight has the number 0, so nothing is taken over.
        Boarding { flight, number: 0, length }
    }

    /// Whether somebody waits for a ticket's flight.
    pub(super) fn is_waited_for(&mut self, key: K, ticket: u64) -> bool {
        self.owned(key, ticket).is_some_and(|entry| entry.is_waited_for())
    }

    /// K8. Ends the flight if nobody waits for it.
    pub(super) fn finish_unless_waited(&mut self, key: K, ticket: u64) -> Finish<V> {
        let hash_map::Entry::Occupied(slot) = self.slots.entry(key) else { return Finish::Void };
        let owned = slot.get().entry.as_ref().filter(|entry| entry.owner == ticket);
        match owned.map(Entry::is_waited_for) {
            None => Finish::Void,
            Some(true) => Finish::Waited,
            Some(false) => {
                let entry = take_entry(slot, ticket);
                Finish::Over(entry.and_then(|entry| {
                    self.counts.end(&entry, true);
                    entry.flight
                }))
            }
        }
    }

    /// K7, the first half: the flight leaves the table. What a value replaces is the caller's to drop,
    /// outside of the lock; none when the ticket was void.
    pub(super) fn end(
        &mut self,
        key: K,
        ticket: u64,
        arrival: Option<Arrival<V>>,
    ) -> Option<Ended<V>> {
        let entry = match (self.slots.entry(key), &arrival) {
            (hash_map::Entry::Vacant(_), _) => None,
            (hash_map::Entry::Occupied(slot), None) => take_entry(slot, ticket),
            (hash_map::Entry::Occupied(mut slot), Some(_)) => {
                slot.get_mut().entry.take_if(|entry| entry.owner == ticket)
            }
        }?;
        let (is_used, is_prefetch) = self.counts.end(&entry, arrival.is_some());
        let mut left = None;
        if let Some(arrival) = arrival {
            left = self.keep(key, arrival, is_prefetch && !is_used);
            self.forget_if_empty(key);
        }
        let is_above_capacity = self.weight > self.capacity;
        Some(Ended { flight: entry.flight, left, is_above_capacity })
    }

    /// Keeps a value, unless it is heavier than everything may be, or a longer one is there; what is
    /// not kept comes back.
    fn keep(&mut self, key: K, arrival: Arrival<V>, is_unused: bool) -> Option<V> {
        let slot = self.slots.get_mut(&key)?;
        let weight = arrival.weight.saturating_add(KEPT_BYTES);
        let old = slot.kept.and_then(|place| self.kept.peek(place));
        if weight > self.capacity || old.is_some_and(|old| old.length > arrival.length) {
            self.counts.prefetch_wasted += u64::from(is_unused);
            return Some(arrival.value);
        }
        let Arrival { value, length, .. } = arrival;
        let place = self.kept.insert(Kept { key, value, weight, length, is_unused });
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
        let Kept { key, weight, .. } = self.kept.peek(place)?;
        let (key, weight) = (*key, weight.saturating_sub(KEPT_BYTES));
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
    pub(super) fn forget(&mut self, key: K) -> Option<V> {
        let place = self.slots.get_mut(&key)?.kept.take()?;
        self.forget_if_empty(key);
        self.remove(place)
    }

    fn remove(&mut self, place: Place) -> Option<V> {
        let kept = self.kept.remove(place)?;
        self.weight -= kept.weight;
        self.counts.prefetch_wasted += u64::from(kept.is_unused);
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

    /// The flight of a ticket, if it is still that ticket's.
    fn owned(&mut self, key: K, ticket: u64) -> Option<&mut Entry<V>> {
        let entry = self.slots.get_mut(&key)?.entry.as_mut()?;
        (entry.owner == ticket).then_some(entry)
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

    pub(super) fn counts(&self) -> ClaimCounts {
        self.counts
    }

    /// Keys that are known, kept or on their way.
    #[cfg(all(test, not(loom)))]
    pub(super) fn keys(&self) -> usize {
        self.slots.len()
    }
}

/// A flight that has left the table.
#[derive(Debug)]
pub(super) struct Ended<V> {
    /// None if only its owner knew of it: then nobody waits.
    pub(super) flight: Option<PlainArc<Flight<V>>>,
    /// What was replaced, or not kept.
    pub(super) left: Option<V>,
    /// More is kept than may be.
    pub(super) is_above_capacity: bool,
}

/// K1: what is kept in this place, if it is long enough.
fn serve<K, V: Clone>(
    kept: &mut Recency<Kept<K, V>>,
    counts: &mut ClaimCounts,
    place: Place,
    length: usize,
    urgency: Urgency,
) -> Option<V> {
    if kept.peek(place)?.length < length {
        return None;
    }
    let kept = kept.touch(place)?;
    if urgency == Urgency::Demand {
        counts.served += 1;
        counts.prefetch_used += u64::from(std::mem::take(&mut kept.is_unused));
    }
    Some(kept.value.clone())
}

/// Takes a ticket's flight out of the table, if it is still that ticket's, with the slot if nothing is left.
fn take_entry<K, V>(
    mut slot: hash_map::OccupiedEntry<'_, K, Slot<V>>,
    ticket: u64,
) -> Option<Entry<V>> {
    let entry = slot.get_mut().entry.take_if(|entry| entry.owner == ticket);
    if slot.get().kept.is_none() && slot.get().entry.is_none() {
        slot.remove();
    }
    entry
}

impl ClaimCounts {
    /// Counts the end of a flight; answers whether it was demanded, and whether it began as a prefetch.
    fn end<V: Clone>(&mut self, entry: &Entry<V>, is_computed: bool) -> (bool, bool) {
        let is_prefetch = entry.urgency == Urgency::Prefetch;
        let is_used = entry.is_demanded();
        if is_computed {
            self.computed += 1;
            self.prefetched += u64::from(is_prefetch);
            self.prefetch_used += u64::from(is_prefetch && is_used);
        } else {
            self.gone += 1;
            self.prefetch_dropped += u64::from(is_prefetch);
        }
        (is_used, is_prefetch)
    }
}

impl<V: Clone> Entry<V> {
    /// The flight, from now on known to more than its owner.
    fn joined(&mut self) -> &PlainArc<Flight<V>> {
        // Without one it is a demand's.
        self.flight.get_or_insert_with(|| PlainArc::new(Flight::new(true)))
    }

    fn is_demanded(&self) -> bool {
        self.flight.as_ref().is_none_or(|flight| flight.is_demanded())
    }

    fn is_waited_for(&self) -> bool {
        self.flight.as_ref().is_some_and(|flight| flight.is_waited_for())
    }

    /// A new owner, out of the queue: two demands never take a flight from each other's hands, which
    /// might go on for ever.
    fn hand_over(&mut self, ticket: u64, length: usize) -> Right<V> {
        self.owner = ticket;
        self.phase = Phase::Running;
        self.length = self.length.max(length);
        self.urgency = Urgency::Demand;
        if let Some(flight) = &self.flight {
            flight.demand();
        }
        Right { flight: self.flight.clone(), ticket, length: self.length }
    }

    fn boarding(&mut self, length: usize) -> Boarding<V> {
        let flight = PlainArc::clone(self.joined());
        Boarding { flight, number: self.number, length }
    }
}
