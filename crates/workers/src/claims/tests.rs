//! Claims on one thread: every answer, every end, and what is kept.
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::register::KEPT_BYTES;
use super::*;

/// A value that says what it is, and counts how many there are.
#[derive(Debug, Clone)]
struct Front(Arc<Content>);

#[derive(Debug)]
struct Content {
    length: usize,
    weight: u64,
    /// Asked when it ends: the lock must be free.
    home: Option<Claims<u32, Front>>,
    ended: Arc<AtomicUsize>,
}

impl Drop for Content {
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            // With the lock held this would never return.
            assert!(home.weight_bytes() < u64::MAX);
        }
        self.ended.fetch_add(1, Ordering::SeqCst);
    }
}

impl Value for Front {
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

fn demand(claims: &Claims<u32, Front>, key: u32, length: usize) -> Claim<u32, Front> {
    claims.claim(key, length, Urgency::Demand)
}

fn prefetch(claims: &Claims<u32, Front>, key: u32, length: usize) -> Claim<u32, Front> {
    claims.claim(key, length, Urgency::Prefetch)
}

fn mine(claim: Claim<u32, Front>) -> Ticket<u32, Front> {
    match claim {
        Claim::Mine(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

/// A prefetch that lies in a queue.
fn queued(claims: &Claims<u32, Front>, key: u32, length: usize) -> Ticket<u32, Front> {
    let mut ticket = mine(prefetch(claims, key, length));
    drop(ticket.hand_out());
    ticket
}

fn pending(claim: Claim<u32, Front>) -> Waiter<u32, Front> {
    match claim {
        Claim::Pending(waiter) => waiter,
        other => panic!("{other:?}"),
    }
}

fn ready(claim: Claim<u32, Front>) -> usize {
    match claim {
        Claim::Ready(value) => value.length(),
        other => panic!("{other:?}"),
    }
}

fn put(claims: &Claims<u32, Front>, key: u32, length: usize, weight: u64) {
    let mut ticket = mine(demand(claims, key, length));
    assert!(ticket.begin());
    ticket.publish(front(length, weight));
}

#[test]
fn what_one_published_the_next_finds_ready() {
    let claims = Claims::new(MANY);
    put(&claims, 1, 10, 100);
    assert_eq!(ready(demand(&claims, 1, 10)), 10);
    assert_eq!(ready(prefetch(&claims, 1, 4)), 10, "a longer one serves a shorter claim");
    assert_eq!(claims.weight_bytes(), 100 + KEPT_BYTES);
    let counts = claims.counts();
    assert_eq!((counts.served, counts.computed, counts.waited), (1, 1, 0));
}

#[test]
fn a_demand_takes_over_what_lies_in_a_queue_and_the_old_ticket_is_void() {
    let claims = Claims::new(MANY);
    let mut old = queued(&claims, 1, 10);
    let mut new = mine(demand(&claims, 1, 6));
    assert!(!old.begin());
    assert_eq!(new.length(), 10, "as long as the longer of the two");
    assert!(new.begin() && new.begin() && new.is_demanded());
    drop(old);
    let second = pending(demand(&claims, 1, 6));
    new.publish(front(10, 0));
    assert_eq!(second.wait().unwrap().length(), 10);
    let counts = claims.counts();
    assert_eq!((counts.taken_over, counts.gone, counts.computed), (1, 0, 1));
    assert_eq!((counts.prefetched, counts.prefetch_dropped), (0, 0));
}

#[test]
fn a_void_ticket_publishes_and_finishes_nothing() {
    let claims = Claims::new(MANY);
    let mut old = mine(prefetch(&claims, 1, 10));
    let older_waiter = old.hand_out();
    let new = mine(demand(&claims, 1, 10));
    old.publish(front(10, 0));
    let waiter = older_waiter.try_now().unwrap_err();
    assert!(matches!(demand(&claims, 1, 10), Claim::Pending(_)));
    let other = queued(&claims, 2, 1);
    let newer = mine(demand(&claims, 2, 1));
    assert!(other.finish_unless_waited().is_none());
    assert!(matches!(demand(&claims, 2, 1), Claim::Pending(_)), "the newer one is at it");
    new.publish(front(10, 0));
    assert_eq!(waiter.wait().unwrap().length(), 10, "whoever computed it");
    drop(newer);
}

#[test]
fn a_demand_joins_and_upgrades_what_runs_and_a_prefetch_leaves_it_alone() {
    let claims = Claims::new(MANY);
    let mut ticket = mine(prefetch(&claims, 1, 10));
    assert!(ticket.begin());
    let idle = pending(prefetch(&claims, 1, 10));
    assert!(!ticket.is_demanded() && !ticket.is_waited_for());
    let waiter = pending(demand(&claims, 1, 10));
    assert!(ticket.is_demanded() && ticket.is_waited_for());
    let late = pending(demand(&claims, 1, 10));
    ticket.publish(front(10, 0));
    assert_eq!(waiter.wait().unwrap().length(), 10);
    assert_eq!(late.try_now().unwrap().unwrap().length(), 10);
    assert_eq!(idle.wait().unwrap().length(), 10);
    let counts = claims.counts();
    assert_eq!((counts.upgraded, counts.waited, counts.prefetch_used), (1, 2, 1));
}

#[test]
fn what_ends_without_a_value_is_forgotten_and_the_next_one_computes() {
    let claims = Claims::new(MANY);
    for urgency in [Urgency::Prefetch, Urgency::Demand] {
        let mut ticket = mine(claims.claim(1, 10, urgency));
        assert!(ticket.begin());
        let waiter = pending(demand(&claims, 1, 10));
        drop(ticket);
        assert!(waiter.wait().is_none());
        assert_eq!(claims.keys(), 0);
    }
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut ticket = mine(demand(&claims, 1, 10));
        assert!(ticket.begin());
        panic!("on purpose");
    }));
    assert!(panicked.is_err());
    put(&claims, 1, 10, 0);
    let counts = claims.counts();
    assert_eq!((counts.gone, counts.prefetch_dropped, counts.computed), (3, 1, 1));
}

#[test]
fn a_longer_claim_waits_for_the_shorter_one_and_is_then_its_own() {
    let claims = Claims::new(MANY);
    let mut short = mine(demand(&claims, 1, 4));
    assert!(short.begin());
    let waiter = pending(demand(&claims, 1, 9));
    short.publish(front(4, 50));
    assert!(waiter.wait().is_none(), "too short is as good as gone");
    let long = mine(demand(&claims, 1, 9));
    assert_eq!(ready(demand(&claims, 1, 3)), 4, "the shorter one serves meanwhile");
    long.publish(front(9, 70));
    assert_eq!(ready(demand(&claims, 1, 3)), 9);
    assert_eq!(claims.weight_bytes(), 70 + KEPT_BYTES, "one value a key");
}

#[test]
fn a_shorter_value_never_replaces_a_longer_one() {
    let claims = Claims::new(MANY);
    put(&claims, 1, 9, 0);
    let ticket = mine(demand(&claims, 1, 20));
    ticket.publish(front(5, 0));
    assert_eq!(ready(demand(&claims, 1, 9)), 9);
}

#[test]
fn one_who_waits_takes_over_what_is_still_queued() {
    let claims = Claims::new(MANY);
    let mut queued = mine(demand(&claims, 1, 10));
    let own = queued.hand_out();
    let mut taken = own.take_over().unwrap();
    assert!(!queued.begin() && taken.begin());
    let waiter = pending(demand(&claims, 1, 10)).take_over().unwrap_err();
    taken.publish(front(10, 0));
    let waiter = waiter.take_over().unwrap_err();
    assert_eq!(waiter.wait().unwrap().length(), 10);
    assert_eq!(claims.counts().taken_over, 1);
}

#[test]
fn a_ticket_in_the_hand_is_not_taken_over_and_one_that_was_taken_may_be_handed_out_again() {
    let claims = Claims::new(MANY);
    let first = mine(demand(&claims, 1, 10));
    drop(pending(demand(&claims, 1, 10)).take_over().unwrap_err());
    drop(first);
    let mut second = queued(&claims, 1, 10);
    let mut third = mine(demand(&claims, 1, 10));
    drop(pending(demand(&claims, 1, 10)));
    let waiter = third.hand_out();
    let mut fourth = mine(demand(&claims, 1, 10));
    assert!(!second.begin() && !third.begin() && fourth.begin());
    fourth.publish(front(10, 0));
    assert_eq!(waiter.wait().unwrap().length(), 10);
    assert_eq!(claims.counts().taken_over, 2);
}

#[test]
fn a_waiter_of_an_earlier_flight_takes_nothing_over_from_a_later_one() {
    let claims = Claims::new(MANY);
    let mut first = mine(demand(&claims, 1, 10));
    let waiter = first.hand_out();
    drop(first);
    let mut second = mine(demand(&claims, 1, 10));
    drop(second.hand_out());
    assert!(waiter.take_over().unwrap_err().wait().is_none());
    assert!(second.begin());
}

#[test]
fn who_decoded_for_himself_publishes_only_for_those_who_wait() {
    let claims = Claims::new(MANY);
    let mut ticket = mine(demand(&claims, 1, 10));
    assert!(ticket.begin());
    let idle = pending(prefetch(&claims, 1, 10));
    let left = pending(demand(&claims, 1, 10));
    drop(left);
    assert!(ticket.finish_unless_waited().is_none(), "who left does not count");
    assert!(idle.wait().is_none(), "but nobody sleeps for ever");
    assert_eq!(claims.keys(), 0);
    let mut ticket = mine(demand(&claims, 1, 10));
    assert!(ticket.begin());
    let waiter = pending(demand(&claims, 1, 10));
    let ticket = ticket.finish_unless_waited().unwrap();
    ticket.publish(front(10, 0));
    assert_eq!(waiter.wait().unwrap().length(), 10);
    assert_eq!(claims.counts().computed, 2);
}

#[test]
fn the_least_recently_used_go_first_and_evicted_values_end_outside_of_the_lock() {
    let claims = Claims::new(3 * (100 + KEPT_BYTES));
    let ended = Arc::new(AtomicUsize::new(0));
    for key in 0..4 {
        if key == 3 {
            assert_eq!(ready(demand(&claims, 0, 1)), 1);
        }
        let home = Some(claims.clone());
        let content = Content { length: 1, weight: 100, home, ended: Arc::clone(&ended) };
        mine(demand(&claims, key, 1)).publish(Front(Arc::new(content)));
    }
    assert_eq!(ended.load(Ordering::SeqCst), 1);
    drop(mine(demand(&claims, 1, 1)));
    assert_eq!(claims.shed(1), 100);
    drop(mine(demand(&claims, 2, 1)));
    assert_eq!(ready(demand(&claims, 0, 1)), 1);
    claims.set_capacity(0);
    assert_eq!((claims.weight_bytes(), claims.keys()), (0, 0));
    assert_eq!(ended.load(Ordering::SeqCst), 4);
    assert_eq!(claims.shed(u64::MAX), 0);
}

#[test]
fn a_value_heavier_than_everything_serves_those_who_wait_and_is_not_kept() {
    let claims = Claims::new(1000);
    put(&claims, 1, 5, 100);
    let mut ticket = mine(demand(&claims, 1, 10));
    assert!(ticket.begin());
    let waiter = pending(demand(&claims, 1, 10));
    ticket.publish(front(10, u64::MAX));
    assert_eq!(waiter.wait().unwrap().length(), 10);
    assert_eq!(ready(demand(&claims, 1, 5)), 5, "what was there stays");
    drop(mine(demand(&claims, 1, 10)));
}

#[test]
fn values_of_no_weight_are_bounded_too() {
    let claims = Claims::new(10 * KEPT_BYTES);
    for key in 0..1000 {
        put(&claims, key, 0, 0);
    }
    assert_eq!((claims.keys(), claims.weight_bytes()), (10, 10 * KEPT_BYTES));
    assert_eq!(ready(demand(&claims, 999, 0)), 0);
}

#[test]
fn prefetches_are_counted_by_what_became_of_them() {
    let claims = Claims::new(MANY);
    for key in 0..4 {
        let mut ticket = mine(prefetch(&claims, key, 1));
        assert!(ticket.begin());
        if key != 3 {
            ticket.publish(front(1, 0));
        }
    }
    assert_eq!(ready(demand(&claims, 0, 1)), 1);
    assert_eq!(ready(demand(&claims, 0, 1)), 1);
    assert_eq!(ready(prefetch(&claims, 1, 1)), 1);
    claims.shed(u64::MAX);
    let counts = claims.counts();
    assert_eq!((counts.prefetched, counts.prefetch_used), (3, 1));
    assert_eq!((counts.prefetch_wasted, counts.prefetch_dropped), (2, 1));
    claims.set_capacity(0);
    mine(prefetch(&claims, 9, 1)).publish(front(1, 0));
    assert_eq!(claims.counts().prefetch_wasted, 3, "never kept is wasted");
}

#[test]
fn best_effort_leaves_what_was_prefetched_and_not_used() {
    let claims = Claims::new(MANY);
    put(&claims, 1, 1, 100);
    for key in [2, 3] {
        mine(prefetch(&claims, key, 1)).publish(front(1, 100));
    }
    let each = 100 + KEPT_BYTES;
    assert_eq!(claims.shed_used(u64::MAX, 2 * each), 100, "the one that was demanded");
    assert_eq!((claims.weight_bytes(), claims.shed_used(1, 2 * each)), (2 * each, 0));
    assert_eq!(ready(demand(&claims, 2, 1)), 1);
    assert_eq!(claims.shed_used(u64::MAX, each), 200, "one too many, and one that was used");
    assert_eq!(claims.shed(u64::MAX), 0);
}

#[test]
fn a_budget_asks_the_cache_and_does_not_keep_it() {
    use crate::memory::{Budget, Policy};
    let budget = Budget::new(100);
    let claims: Claims<u32, Front> = Claims::new(MANY);
    let registration = budget.register_reclaimer(claims.reclaimer()).unwrap();
    put(&claims, 1, 1, 10);
    let held = budget.charge(100, Policy::MayFail).unwrap();
    // Nothing of the value is charged here: what counts is that it was asked for.
    let charge = std::thread::scope(|scope| {
        scope.spawn(|| {
            while claims.weight_bytes() != 0 {
                std::thread::yield_now();
            }
            drop(held);
        });
        budget.charge(1, Policy::MustSucceed).unwrap()
    });
    assert_eq!(claims.keys(), 0);
    drop(charge);
    let ended = Arc::new(AtomicUsize::new(0));
    let content = Content { length: 1, weight: 1, home: None, ended: Arc::clone(&ended) };
    mine(demand(&claims, 2, 1)).publish(Front(Arc::new(content)));
    drop(claims);
    assert_eq!(ended.load(Ordering::SeqCst), 1, "the reclaimer does not keep it");
    drop(registration);
}
