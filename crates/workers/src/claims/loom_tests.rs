//! Every interleaving of those who claim, begin, publish, give up and take over. A wake-up that is lost is
//! a deadlock, and loom says so; a flight that is not forgotten never lets the loop of `value_of` end.
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

use super::*;
use crate::sync::{Arc, AtomicUsize, Ordering, thread};

/// A value of some length that weighs nothing.
#[derive(Debug, Clone)]
struct Front(usize);

impl Value for Front {
    fn length(&self) -> usize {
        self.0
    }

    fn weight_bytes(&self) -> u64 {
        0
    }
}

type Cache = Claims<u8, Front>;
type OwnTicket = Ticket<u8, Front>;

fn cache() -> Cache {
    Claims::new(1 << 20)
}

fn claim(cache: &Cache, length: usize, urgency: Urgency) -> Claim<u8, Front> {
    cache.claim(1, length, urgency)
}

fn mine(claim: Claim<u8, Front>) -> OwnTicket {
    match claim {
        Claim::Mine(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

/// How a reader reads: claims until it has a value, and computes when it is its turn.
fn value_of(cache: &Cache, length: usize, computed: &AtomicUsize) -> usize {
    loop {
        let value = match claim(cache, length, Urgency::Demand) {
            Claim::Ready(value) => Some(value),
            Claim::Pending(waiter) => waiter.wait(),
            Claim::Mine(ticket) => compute(ticket, computed),
        };
        if let Some(Front(found)) = value {
            assert!(found >= length);
            return found;
        }
    }
}

fn compute(mut ticket: OwnTicket, computed: &AtomicUsize) -> Option<Front> {
    if !ticket.begin() {
        return None;
    }
    computed.fetch_add(1, Ordering::SeqCst);
    let value = Front(ticket.length());
    ticket.publish(value.clone());
    Some(value)
}

/// How a prefetch fails when nobody demands: its memory may fail.
fn prefetch(mut ticket: OwnTicket, computed: &AtomicUsize) {
    if ticket.begin() && ticket.is_demanded() {
        computed.fetch_add(1, Ordering::SeqCst);
        let length = ticket.length();
        ticket.publish(Front(length));
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
        let shared = Arc::new((cache(), AtomicUsize::new(0)));
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || value_of(&other.0, 1, &other.1));
        value_of(&shared.0, 1, &shared.1);
        thread.join().unwrap();
        assert_eq!(shared.1.load(Ordering::SeqCst), 1);
        assert_eq!(shared.0.counts().computed, 1);
    });
}

/// A-R3, the engine's half: whenever the demand comes, before the prefetch begins, while it asks whether
/// it is demanded, or after it gave up, it ends with a value.
#[test]
fn two_demands_and_a_prefetch_that_gives_up_end_with_the_value() {
    bounded(|| {
        let shared = Arc::new((cache(), AtomicUsize::new(0)));
        let mut ticket = mine(claim(&shared.0, 1, Urgency::Prefetch));
        drop(ticket.hand_out());
        let threads = [0, 1].map(|_| {
            let own = Arc::clone(&shared);
            thread::spawn(move || value_of(&own.0, 1, &own.1))
        });
        prefetch(ticket, &shared.1);
        for thread in threads {
            thread.join().unwrap();
        }
        let counts = shared.0.counts();
        assert_eq!((shared.1.load(Ordering::SeqCst), counts.computed), (1, 1));
        assert_eq!(counts.gone, counts.prefetch_dropped);
    });
}

/// K3 against K5: one of the two computes, never both, never neither.
#[test]
fn a_queued_flight_is_begun_or_taken_over() {
    loom::model(|| {
        let shared = Arc::new((cache(), AtomicUsize::new(0)));
        let mut ticket = mine(claim(&shared.0, 1, Urgency::Demand));
        let waiter = ticket.hand_out();
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || compute(ticket, &other.1).is_some());
        let is_taken = match waiter.take_over() {
            Ok(ticket) => compute(ticket, &shared.1).is_some(),
            Err(waiter) => waiter.wait().is_none(),
        };
        assert_ne!(thread.join().unwrap(), is_taken);
        let counts = shared.0.counts();
        assert_eq!(counts.taken_over, u64::from(is_taken));
        assert_eq!((shared.1.load(Ordering::SeqCst), counts.computed, counts.gone), (1, 1, 0));
    });
}

/// K7 without a value: everybody wakes, and what is left to compute is computed.
#[test]
fn a_ticket_that_is_dropped_wakes_everybody_who_waits() {
    bounded(|| {
        let shared = Arc::new((cache(), AtomicUsize::new(0)));
        let mut ticket = mine(claim(&shared.0, 1, Urgency::Demand));
        assert!(ticket.begin());
        let threads = [0, 1].map(|_| {
            let own = Arc::clone(&shared);
            thread::spawn(move || value_of(&own.0, 1, &own.1))
        });
        drop(ticket);
        for thread in threads {
            thread.join().unwrap();
        }
        let counts = shared.0.counts();
        assert_eq!((shared.1.load(Ordering::SeqCst), counts.computed, counts.gone), (1, 1, 1));
    });
}

/// K8 against K4: a demand either is counted before the look and gets the copy, or comes after the end
/// and computes anew. None sleeps for a value that nobody publishes.
#[test]
fn who_finishes_without_publishing_leaves_no_demand_asleep() {
    loom::model(|| {
        let shared = Arc::new((cache(), AtomicUsize::new(0)));
        let mut ticket = mine(claim(&shared.0, 1, Urgency::Demand));
        assert!(ticket.begin());
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || match claim(&other.0, 1, Urgency::Demand) {
            Claim::Ready(_) => {}
            Claim::Mine(ticket) => drop(compute(ticket, &other.1)),
            Claim::Pending(waiter) => assert!(waiter.wait().is_some(), "it joined in time"),
        });
        let published = match ticket.finish_unless_waited() {
            Some(ticket) => {
                ticket.publish(Front(1));
                1
            }
            None => 0,
        };
        thread.join().unwrap();
        assert_eq!(published + shared.1.load(Ordering::SeqCst), 1);
        assert_eq!(shared.0.counts().computed as usize, 2 - published);
    });
}

/// A longer demand that meets a shorter flight ends with its own length, and the shorter one with any.
#[test]
fn a_longer_demand_waits_for_the_shorter_one_and_claims_again() {
    loom::model(|| {
        let shared = Arc::new((cache(), AtomicUsize::new(0)));
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || value_of(&other.0, 1, &other.1));
        assert_eq!(value_of(&shared.0, 2, &shared.1), 2);
        thread.join().unwrap();
        assert!(shared.1.load(Ordering::SeqCst) <= 2);
    });
}

/// Shedding meanwhile takes values away, never answers.
#[test]
fn what_is_shed_at_any_moment_is_computed_again() {
    bounded(|| {
        let shared = Arc::new((cache(), AtomicUsize::new(0)));
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || value_of(&other.0, 1, &other.1));
        shared.0.shed(u64::MAX);
        value_of(&shared.0, 1, &shared.1);
        thread.join().unwrap();
        assert!(shared.1.load(Ordering::SeqCst) <= 2);
        shared.0.shed(u64::MAX);
        assert_eq!(shared.0.weight_bytes(), 0);
    });
}
