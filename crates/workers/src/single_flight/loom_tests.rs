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

fn mine(lookup: Lookup<u8, Front>) -> OwnPermit {
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

/// A-R3, the engine's half: whenever the demand comes, before the prefetch begins, while it asks
/// whether it is demanded, or after it gave up, it ends with a value.
#[test]
fn two_demands_and_a_prefetch_that_gives_up_end_with_the_value() {
    bounded(|| {
        let inner = Arc::new((cache(), AtomicUsize::new(0)));
        let mut permit = mine(lookup(&inner.0, 1, Urgency::Prefetch));
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
        let mut permit = mine(lookup(&inner.0, 1, Urgency::Demand));
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
        assert_eq!((inner.1.load(Ordering::SeqCst), stats.computed, stats.abandoned), (1, 1, 0));
    });
}

/// K7 without a value: everybody wakes, and what is left to compute is computed.
#[test]
fn a_permit_that_is_dropped_wakes_everybody_who_waits() {
    bounded(|| {
        let inner = Arc::new((cache(), AtomicUsize::new(0)));
        let mut permit = mine(lookup(&inner.0, 1, Urgency::Demand));
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
        assert_eq!((inner.1.load(Ordering::SeqCst), stats.computed, stats.abandoned), (1, 1, 1));
    });
}

/// K8 against K4: a demand either is counted before the look and gets the copy, or comes after the
/// end and computes anew. None sleeps for a value that nobody publishes.
#[test]
fn who_finishes_without_publishing_leaves_no_demand_asleep() {
    loom::model(|| {
        let inner = Arc::new((cache(), AtomicUsize::new(0)));
        let mut permit = mine(lookup(&inner.0, 1, Urgency::Demand));
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
