//! The single-flight cache: every answer, every end, and what is cached, on one thread; and random lookups on many.
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::table::ENTRY_OVERHEAD_BYTES;
use super::*;

/// A value whose drop is counted.
#[derive(Debug, Clone)]
struct Front(Arc<Content>);

#[derive(Debug)]
struct Content {
    length: usize,
    weight: u64,
    /// Locked by the drop: all shards must be free.
    home: Option<SingleFlight<u32, Front>>,
    ended: Arc<AtomicUsize>,
}

impl Drop for Content {
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            // With the lock held this would never return.
            assert!(home.keys() < usize::MAX);
        }
        self.ended.fetch_add(1, Ordering::SeqCst);
    }
}

impl CacheValue for Front {
    fn length(&self) -> usize {
        self.0.length
    }

    fn weight_bytes(&self) -> u64 {
        self.0.weight
    }
}

fn front(length: usize, weight: u64) -> Front {
    Front(Arc::new(Content { length, weight, home: None, ended: Arc::default() }))
}

const MANY: u64 = 1 << 20;

fn demand(single_flight: &SingleFlight<u32, Front>, key: u32, length: usize) -> Lookup<u32, Front> {
    single_flight.lookup(key, length, Urgency::Demand)
}

fn prefetch(
    single_flight: &SingleFlight<u32, Front>,
    key: u32,
    length: usize,
) -> Lookup<u32, Front> {
    single_flight.lookup(key, length, Urgency::Prefetch)
}

fn miss(lookup: Lookup<u32, Front>) -> FillPermit<u32, Front> {
    match lookup {
        Lookup::Miss(permit) => permit,
        other => panic!("{other:?}"),
    }
}

/// A prefetch that lies in a queue.
fn queued(
    single_flight: &SingleFlight<u32, Front>,
    key: u32,
    length: usize,
) -> FillPermit<u32, Front> {
    let mut permit = miss(prefetch(single_flight, key, length));
    drop(permit.enqueue());
    permit
}

fn pending(lookup: Lookup<u32, Front>) -> Waiter<Front> {
    match lookup {
        Lookup::Pending(waiter) => waiter,
        other => panic!("{other:?}"),
    }
}

fn ready(lookup: Lookup<u32, Front>) -> usize {
    match lookup {
        Lookup::Hit(value) => value.length(),
        other => panic!("{other:?}"),
    }
}

fn put(single_flight: &SingleFlight<u32, Front>, key: u32, length: usize, weight: u64) {
    let mut permit = miss(demand(single_flight, key, length));
    assert!(permit.begin());
    permit.publish(front(length, weight));
}

#[test]
fn what_one_published_the_next_finds_ready() {
    let single_flight = SingleFlight::new(MANY);
    put(&single_flight, 1, 10, 100);
    assert_eq!(ready(demand(&single_flight, 1, 10)), 10);
    assert_eq!(ready(prefetch(&single_flight, 1, 4)), 10, "a longer one serves a shorter lookup");
    assert_eq!(single_flight.weight_bytes(), 100 + ENTRY_OVERHEAD_BYTES);
    let stats = single_flight.stats();
    assert_eq!((stats.hits, stats.computed, stats.waited), (1, 1, 0));
}

#[test]
fn a_demand_takes_over_what_lies_in_a_queue_and_the_old_permit_is_void() {
    let single_flight = SingleFlight::new(MANY);
    let mut old = queued(&single_flight, 1, 10);
    let mut new = miss(demand(&single_flight, 1, 6));
    assert!(!old.begin());
    assert_eq!(new.length(), 10, "as long as the longer of the two");
    assert!(new.begin() && new.begin() && new.is_demanded());
    drop(old);
    let second = pending(demand(&single_flight, 1, 6));
    new.publish(front(10, 0));
    assert_eq!(second.wait().unwrap().length(), 10);
    let stats = single_flight.stats();
    assert_eq!((stats.taken_over, stats.abandoned, stats.computed), (1, 0, 1));
    assert_eq!((stats.prefetched, stats.prefetch_dropped), (0, 0));
}

#[test]
fn a_void_permit_publishes_and_finishes_nothing() {
    let single_flight = SingleFlight::new(MANY);
    let mut old = miss(prefetch(&single_flight, 1, 10));
    let older_waiter = old.enqueue();
    let new = miss(demand(&single_flight, 1, 10));
    old.publish(front(10, 0));
    let waiter = older_waiter.try_wait().unwrap_err();
    assert!(matches!(demand(&single_flight, 1, 10), Lookup::Pending(_)));
    let other = queued(&single_flight, 2, 1);
    let newer = miss(demand(&single_flight, 2, 1));
    assert!(other.finish_unless_waited().is_none());
    assert!(matches!(demand(&single_flight, 2, 1), Lookup::Pending(_)), "the newer one is at it");
    new.publish(front(10, 0));
    assert_eq!(waiter.wait().unwrap().length(), 10, "any thread may compute it");
    drop(newer);
}

#[test]
fn a_demand_joins_and_upgrades_what_runs_and_a_prefetch_leaves_it_alone() {
    let single_flight = SingleFlight::new(MANY);
    let mut permit = miss(prefetch(&single_flight, 1, 10));
    assert!(permit.begin());
    let idle = pending(prefetch(&single_flight, 1, 10));
    assert!(!permit.is_demanded() && !permit.is_waited_for());
    let waiter = pending(demand(&single_flight, 1, 10));
    assert!(permit.is_demanded() && permit.is_waited_for());
    let late = pending(demand(&single_flight, 1, 10));
    permit.publish(front(10, 0));
    assert_eq!(waiter.wait().unwrap().length(), 10);
    assert_eq!(late.try_wait().unwrap().unwrap().length(), 10);
    assert_eq!(idle.wait().unwrap().length(), 10);
    let stats = single_flight.stats();
    assert_eq!((stats.upgraded, stats.waited, stats.prefetch_used), (1, 2, 1));
}

#[test]
fn what_ends_without_a_value_is_forgotten_and_the_next_one_computes() {
    let single_flight = SingleFlight::new(MANY);
    for urgency in [Urgency::Prefetch, Urgency::Demand] {
        let mut permit = miss(single_flight.lookup(1, 10, urgency));
        assert!(permit.begin());
        let waiter = pending(demand(&single_flight, 1, 10));
        drop(permit);
        assert!(waiter.wait().is_none());
        assert_eq!(single_flight.keys(), 0);
    }
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let mut permit = miss(demand(&single_flight, 1, 10));
        assert!(permit.begin());
        panic!("on purpose");
    }));
    assert!(panicked.is_err());
    put(&single_flight, 1, 10, 0);
    let stats = single_flight.stats();
    assert_eq!((stats.abandoned, stats.prefetch_dropped, stats.computed), (3, 1, 1));
}

#[test]
fn a_longer_lookup_waits_for_the_shorter_one_and_is_then_its_own() {
    let single_flight = SingleFlight::new(MANY);
    let mut short = miss(demand(&single_flight, 1, 4));
    assert!(short.begin());
    let waiter = pending(demand(&single_flight, 1, 9));
    short.publish(front(4, 50));
    assert!(waiter.wait().is_none(), "too short is as good as gone");
    let long = miss(demand(&single_flight, 1, 9));
    assert_eq!(ready(demand(&single_flight, 1, 3)), 4, "the shorter one serves meanwhile");
    long.publish(front(9, 70));
    assert_eq!(ready(demand(&single_flight, 1, 3)), 9);
    assert_eq!(single_flight.weight_bytes(), 70 + ENTRY_OVERHEAD_BYTES, "one value a key");
}

#[test]
fn a_shorter_value_never_replaces_a_longer_one() {
    let single_flight = SingleFlight::new(MANY);
    put(&single_flight, 1, 9, 0);
    let permit = miss(demand(&single_flight, 1, 20));
    permit.publish(front(5, 0));
    assert_eq!(ready(demand(&single_flight, 1, 9)), 9);
}

#[test]
fn a_demand_takes_over_what_is_still_queued_and_all_waiters_get_its_value() {
    let single_flight = SingleFlight::new(MANY);
    let mut queued = miss(demand(&single_flight, 1, 10));
    let own = queued.enqueue();
    let mut taken = miss(demand(&single_flight, 1, 10));
    assert!(!queued.begin() && taken.begin());
    let waiter = pending(demand(&single_flight, 1, 10));
    taken.publish(front(10, 0));
    assert_eq!(waiter.wait().unwrap().length(), 10);
    assert_eq!(own.wait().unwrap().length(), 10);
    assert_eq!(single_flight.stats().taken_over, 1);
}

#[test]
fn a_running_fill_is_not_taken_over_and_one_that_was_may_be_enqueued_again() {
    let single_flight = SingleFlight::new(MANY);
    let first = miss(demand(&single_flight, 1, 10));
    drop(pending(demand(&single_flight, 1, 10)));
    drop(first);
    let mut second = queued(&single_flight, 1, 10);
    let mut third = miss(demand(&single_flight, 1, 10));
    drop(pending(demand(&single_flight, 1, 10)));
    let waiter = third.enqueue();
    let mut fourth = miss(demand(&single_flight, 1, 10));
    assert!(!second.begin() && !third.begin() && fourth.begin());
    fourth.publish(front(10, 0));
    assert_eq!(waiter.wait().unwrap().length(), 10);
    assert_eq!(single_flight.stats().taken_over, 2);
}

#[test]
fn a_waiter_of_an_earlier_fill_gets_nothing_from_a_later_one() {
    let single_flight = SingleFlight::new(MANY);
    let mut first = miss(demand(&single_flight, 1, 10));
    let waiter = first.enqueue();
    drop(first);
    let mut second = miss(demand(&single_flight, 1, 10));
    drop(second.enqueue());
    assert!(waiter.wait().is_none());
    assert!(second.begin());
}

#[test]
fn who_decoded_for_himself_publishes_only_for_those_who_wait() {
    let single_flight = SingleFlight::new(MANY);
    let mut permit = miss(demand(&single_flight, 1, 10));
    assert!(permit.begin());
    let idle = pending(prefetch(&single_flight, 1, 10));
    let left = pending(demand(&single_flight, 1, 10));
    drop(left);
    assert!(permit.finish_unless_waited().is_none(), "a waiter that left does not count");
    assert!(idle.wait().is_none(), "but no waiter sleeps for ever");
    assert_eq!(single_flight.keys(), 0);
    let mut permit = miss(demand(&single_flight, 1, 10));
    assert!(permit.begin());
    let waiter = pending(demand(&single_flight, 1, 10));
    let permit = permit.finish_unless_waited().unwrap();
    permit.publish(front(10, 0));
    assert_eq!(waiter.wait().unwrap().length(), 10);
    assert_eq!(single_flight.stats().computed, 2);
}

#[test]
fn the_least_recently_used_go_first_and_evicted_values_end_outside_of_the_lock() {
    let single_flight = SingleFlight::new(3 * (100 + ENTRY_OVERHEAD_BYTES));
    let ended = Arc::new(AtomicUsize::new(0));
    for key in 0..4 {
        if key == 3 {
            assert_eq!(ready(demand(&single_flight, 0, 1)), 1);
        }
        let home = Some(single_flight.clone());
        let content = Content { length: 1, weight: 100, home, ended: Arc::clone(&ended) };
        miss(demand(&single_flight, key, 1)).publish(Front(Arc::new(content)));
    }
    assert_eq!(ended.load(Ordering::SeqCst), 1);
    drop(miss(demand(&single_flight, 1, 1)));
    assert_eq!(single_flight.evict(1), 100);
    drop(miss(demand(&single_flight, 2, 1)));
    assert_eq!(ready(demand(&single_flight, 0, 1)), 1);
    assert_eq!(single_flight.evict(u64::MAX), 200);
    assert_eq!((single_flight.weight_bytes(), single_flight.keys()), (0, 0));
    assert_eq!(ended.load(Ordering::SeqCst), 4);
    assert_eq!(single_flight.evict(u64::MAX), 0);
}

#[test]
fn a_value_heavier_than_everything_serves_those_who_wait_and_is_not_kept() {
    let single_flight = SingleFlight::new(1000);
    put(&single_flight, 1, 5, 100);
    let mut permit = miss(demand(&single_flight, 1, 10));
    assert!(permit.begin());
    let waiter = pending(demand(&single_flight, 1, 10));
    permit.publish(front(10, u64::MAX));
    assert_eq!(waiter.wait().unwrap().length(), 10);
    assert_eq!(ready(demand(&single_flight, 1, 5)), 5, "what was there stays");
    drop(miss(demand(&single_flight, 1, 10)));
}

#[test]
fn values_of_no_weight_are_bounded_too() {
    let single_flight = SingleFlight::new(10 * ENTRY_OVERHEAD_BYTES);
    for key in 0..1000 {
        put(&single_flight, key, 0, 0);
    }
    assert_eq!(
        (single_flight.keys(), single_flight.weight_bytes()),
        (10, 10 * ENTRY_OVERHEAD_BYTES)
    );
    assert_eq!(ready(demand(&single_flight, 999, 0)), 0);
}

#[test]
fn prefetches_are_counted_by_what_became_of_them() {
    let single_flight = SingleFlight::new(MANY);
    for key in 0..4 {
        let mut permit = miss(prefetch(&single_flight, key, 1));
        assert!(permit.begin());
        if key != 3 {
            permit.publish(front(1, 0));
        }
    }
    assert_eq!(ready(demand(&single_flight, 0, 1)), 1);
    assert_eq!(ready(demand(&single_flight, 0, 1)), 1);
    assert_eq!(ready(prefetch(&single_flight, 1, 1)), 1);
    single_flight.evict(u64::MAX);
    let stats = single_flight.stats();
    assert_eq!((stats.prefetched, stats.prefetch_used), (3, 1));
    assert_eq!((stats.prefetch_wasted, stats.prefetch_dropped), (2, 1));
    miss(prefetch(&single_flight, 9, 1)).publish(front(1, u64::MAX));
    assert_eq!(single_flight.stats().prefetch_wasted, 3, "never kept is wasted");
}

#[test]
fn best_effort_evicts_what_was_used_after_the_oldest_prefetches() {
    let single_flight = SingleFlight::new(MANY);
    for key in [1, 2] {
        miss(prefetch(&single_flight, key, 1)).publish(front(1, 100));
    }
    for key in [3, 4] {
        put(&single_flight, key, 1, 100);
    }
    assert_eq!(single_flight.evict_used(150, u64::MAX), 200, "both that were demanded");
    assert_eq!(single_flight.evict_used(1, u64::MAX), 0);
    assert_eq!(single_flight.weight_bytes(), 2 * (100 + ENTRY_OVERHEAD_BYTES));
}

#[test]
fn a_waiter_that_wants_to_look_at_others_comes_back_after_some_time() {
    let single_flight = SingleFlight::new(MANY);
    let permit = miss(demand(&single_flight, 1, 1));
    let Lookup::Pending(waiter) = demand(&single_flight, 1, 1) else { panic!() };
    let waiter = waiter.wait_for(Duration::from_millis(1)).unwrap_err();
    permit.publish(front(1, 7));
    assert_eq!(waiter.wait_for(Duration::from_secs(60)).unwrap().unwrap().length(), 1);
}

#[test]
fn best_effort_leaves_what_was_prefetched_and_not_used() {
    let single_flight = SingleFlight::new(MANY);
    put(&single_flight, 1, 1, 100);
    for key in [2, 3] {
        miss(prefetch(&single_flight, key, 1)).publish(front(1, 100));
    }
    let each = 100 + ENTRY_OVERHEAD_BYTES;
    assert_eq!(single_flight.evict_used(u64::MAX, 2 * each), 100, "the one that was demanded");
    assert_eq!(
        (single_flight.weight_bytes(), single_flight.evict_used(1, 2 * each)),
        (2 * each, 0)
    );
    assert_eq!(ready(demand(&single_flight, 2, 1)), 1);
    assert_eq!(
        single_flight.evict_used(u64::MAX, each),
        200,
        "one too many, and one that was used"
    );
    assert_eq!(single_flight.evict(u64::MAX), 0);
}

#[test]
fn a_budget_asks_the_cache_and_does_not_keep_it() {
    use crate::memory::{AllocPolicy, Budget};
    let budget = Budget::new(100);
    let single_flight: SingleFlight<u32, Front> = SingleFlight::new(MANY);
    let registration = budget
        .register_reclaimer({
            let cache = single_flight.clone();
            move |bytes| cache.evict(bytes)
        })
        .unwrap();
    put(&single_flight, 1, 1, 10);
    let held = budget.charge(100, AllocPolicy::MayFail).unwrap();
    // Nothing of the value is charged here: what counts is that the reclaimer was called.
    let charge = std::thread::scope(|scope| {
        scope.spawn(|| {
            while single_flight.weight_bytes() != 0 {
                std::thread::yield_now();
            }
            drop(held);
        });
        budget.charge(1, AllocPolicy::MustSucceed).unwrap()
    });
    assert_eq!(single_flight.keys(), 0);
    drop(charge);
    let ended = Arc::new(AtomicUsize::new(0));
    let content = Content { length: 1, weight: 1, home: None, ended: Arc::clone(&ended) };
    miss(demand(&single_flight, 2, 1)).publish(Front(Arc::new(content)));
    drop(single_flight);
    assert_eq!(ended.load(Ordering::SeqCst), 0, "the reclaimer has a handle");
    drop(registration);
    assert_eq!(ended.load(Ordering::SeqCst), 1, "and ends with its registration");
}

/// How long the test of random lookups goes on.
const LENGTH: Duration = Duration::from_millis(1500);
const KEYS: u64 = 40;
const LONGEST: u64 = 64;

/// Numbers that look random: xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// The key, repeated, so that a value of another key is seen.
#[derive(Debug, Clone)]
struct Repeated(Arc<Vec<u64>>);

impl CacheValue for Repeated {
    fn length(&self) -> usize {
        self.0.len()
    }

    fn weight_bytes(&self) -> u64 {
        self.0.len() as u64 * 8
    }
}

/// A payload that does not print.
struct InjectedPanic;

/// A cache under random lookups on eight threads, with prefetches, failures, panics, permits that are queued, fills
/// that are taken over, and evictions.
struct RandomLookups {
    single_flight: SingleFlight<u64, Repeated>,
    /// Permits that were enqueued.
    queue: Mutex<VecDeque<FillPermit<u64, Repeated>>>,
    begun: AtomicU64,
    reads: AtomicU64,
}

impl RandomLookups {
    fn read(&self, key: u64, length: usize, random: &mut Random) {
        loop {
            let value = match self.single_flight.lookup(key, length, Urgency::Demand) {
                Lookup::Hit(value) => Some(value),
                Lookup::Miss(mut permit) if random.below(3) == 0 => {
                    let waiter = permit.enqueue();
                    self.queue.lock().unwrap().push_back(permit);
                    self.wait(waiter, key, length, random)
                }
                Lookup::Miss(permit) => self.compute(permit, random),
                Lookup::Pending(waiter) => self.wait(waiter, key, length, random),
            };
            if let Some(Repeated(content)) = value {
                assert!(content.len() >= length && content.iter().all(|said| *said == key));
                self.reads.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
    }

    /// Takes over what it waits for if nobody has begun it; otherwise it sleeps.
    fn wait(
        &self,
        waiter: Waiter<Repeated>,
        key: u64,
        length: usize,
        random: &mut Random,
    ) -> Option<Repeated> {
        match self.single_flight.lookup(key, length, Urgency::Demand) {
            Lookup::Hit(value) => Some(value),
            Lookup::Miss(permit) => self.compute(permit, random),
            Lookup::Pending(_) => waiter.wait(),
        }
    }

    fn help(&self, random: &mut Random) {
        let permit = self.queue.lock().unwrap().pop_front();
        if let Some(permit) = permit {
            self.compute(permit, random);
        }
    }

    /// Fails now and then, panics now and then, and gives up without a demand.
    fn compute(
        &self,
        mut permit: FillPermit<u64, Repeated>,
        random: &mut Random,
    ) -> Option<Repeated> {
        if !permit.begin() {
            return None;
        }
        self.begun.fetch_add(1, Ordering::Relaxed);
        let content = vec![permit.key(); permit.length()];
        match random.below(12) {
            0 => {
                let panicked = catch_unwind(AssertUnwindSafe(|| {
                    let _lost = permit;
                    std::panic::resume_unwind(Box::new(InjectedPanic));
                }));
                assert!(panicked.is_err());
                return None;
            }
            1 => return None,
            2 | 3 => std::thread::yield_now(),
            _ => {}
        }
        if !permit.is_demanded() && random.below(2) == 0 {
            return None;
        }
        let value = Repeated(Arc::new(content));
        if random.below(3) == 0 {
            if let Some(permit) = permit.finish_unless_waited() {
                permit.publish(value.clone());
            }
        } else {
            permit.publish(value.clone());
        }
        Some(value)
    }

    fn round(&self, random: &mut Random) {
        let key = random.below(random.0 % KEYS + 1);
        let length = usize::try_from(random.below(LONGEST)).unwrap();
        match random.below(12) {
            0..8 => self.read(key, length, random),
            8 => {
                if let Lookup::Miss(mut permit) =
                    self.single_flight.lookup(key, length, Urgency::Prefetch)
                {
                    drop(permit.enqueue());
                    self.queue.lock().unwrap().push_back(permit);
                }
            }
            9 => {
                if let Lookup::Miss(permit) =
                    self.single_flight.lookup(key, length, Urgency::Prefetch)
                {
                    self.compute(permit, random);
                }
            }
            10 => self.help(random),
            _ => drop(self.single_flight.evict(random.below(2000))),
        }
    }
}

#[test]
fn every_reader_gets_the_right_value_whatever_happens_to_who_computes_it() {
    look_up_at_random(1);
}

#[test]
fn every_reader_of_a_sharded_cache_gets_the_right_value_and_no_weight_is_lost() {
    look_up_at_random(16);
}

fn look_up_at_random(shards: usize) {
    let lookups = RandomLookups {
        single_flight: SingleFlight::sharded(12_000, shards),
        queue: Mutex::new(VecDeque::new()),
        begun: AtomicU64::new(0),
        reads: AtomicU64::new(0),
    };
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for number in 1..=8_u64 {
            let lookups = &lookups;
            scope.spawn(move || {
                let mut random = Random(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
                while begun.elapsed() < LENGTH {
                    lookups.round(&mut random);
                }
            });
        }
    });
    let RandomLookups { single_flight, queue, begun, reads } = lookups;
    drop(queue);
    let stats = single_flight.stats();
    // Every computation that began ended once, and none that was taken over began twice.
    let queued_at_the_end = stats.abandoned + stats.computed - begun.load(Ordering::Relaxed);
    assert!(queued_at_the_end <= KEYS, "{queued_at_the_end}; {reads:?} reads, {stats:?}");
    let (keys, weight) = (single_flight.keys() as u64, single_flight.weight_bytes());
    assert!(weight <= 12_000);
    assert_eq!(single_flight.evict(u64::MAX) + keys * ENTRY_OVERHEAD_BYTES, weight);
    assert_eq!((single_flight.keys(), single_flight.weight_bytes()), (0, 0));
}

#[test]
fn sixty_four_readers_of_the_same_values_compute_each_once() {
    [1, 64].into_iter().for_each(read_the_same_values);
}

fn read_the_same_values(shards: usize) {
    const READERS: u64 = 64;
    let single_flight: SingleFlight<u64, Repeated> = SingleFlight::sharded(1 << 20, shards);
    let barrier = std::sync::Barrier::new(64);
    let computed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| {
                barrier.wait();
                for key in 0..KEYS {
                    let value = loop {
                        match single_flight.lookup(key, 8, Urgency::Demand) {
                            Lookup::Hit(value) => break value,
                            Lookup::Pending(waiter) => {
                                if let Some(value) = waiter.wait() {
                                    break value;
                                }
                            }
                            Lookup::Miss(mut permit) => {
                                if permit.begin() {
                                    computed.fetch_add(1, Ordering::Relaxed);
                                    std::thread::yield_now();
                                    permit.publish(Repeated(Arc::new(vec![key; 8])));
                                }
                            }
                        }
                    };
                    assert!(value.0.iter().all(|said| *said == key));
                }
            });
        }
    });
    let stats = single_flight.stats();
    assert_eq!((computed.into_inner(), stats.computed), (KEYS, KEYS), "{stats:?}");
}
