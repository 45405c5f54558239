//! Models of protocol O, with the loops that ship: a lost wake-up is a deadlock, which loom reports.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use super::PipelineRun;
use super::reorder_ring::ReorderRing;
use crate::sync::{Arc, thread};

type Doubled = ReorderRing<u64, u64, u64>;

/// An item that fails when it is worked on.
const BAD: u64 = 100;

/// Runs the items through a ring with so many slots and helpers.
fn run(
    (slots, helpers): (usize, usize),
    items: &[u64],
    commit: impl FnMut(u64) -> Result<(), u64>,
) -> Result<u64, u64> {
    let work = |(): &mut (), item: u64| if item >= BAD { Err(item) } else { Ok(item * 2) };
    let ring = Arc::new(Doubled::new(slots));
    let helpers: Vec<_> = (0..helpers)
        .map(|_| {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                PipelineRun { reorder_ring: &ring, init: || (), work }.as_helper()
            })
        })
        .collect();
    let perform = PipelineRun { reorder_ring: &ring, init: || (), work };
    let outcome = perform.as_caller(items.iter().copied(), commit);
    for helper in helpers {
        helper.join().unwrap();
    }
    outcome
}

fn bounded(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Runs the items and expects these commits.
fn expect(shape: (usize, usize), items: &[u64], outcome: Result<u64, u64>, commits: &[u64]) {
    let mut committed = Vec::new();
    let keep = |result| {
        committed.push(result);
        Ok(())
    };
    assert_eq!(run(shape, items, keep), outcome);
    assert_eq!(committed, commits);
}

#[test]
fn each_item_is_committed_once_and_in_order() {
    bounded(3, || expect((2, 1), &[1, 2, 3], Ok(3), &[2, 4, 6]));
}

#[test]
fn a_single_slot_is_used_again_and_again() {
    bounded(3, || expect((1, 1), &[1, 2, 3], Ok(3), &[2, 4, 6]));
}

#[test]
fn two_helpers_and_the_caller_lose_no_item_and_no_wake_up() {
    bounded(2, || expect((2, 2), &[1, 2], Ok(2), &[2, 4]));
}

#[test]
fn the_first_error_in_the_order_of_the_items_is_returned() {
    bounded(3, || expect((2, 1), &[1, BAD, BAD + 1], Err(BAD), &[2]));
}

#[test]
fn an_error_in_a_commit_sends_the_helper_home() {
    bounded(3, || assert_eq!(run((2, 1), &[1, 2, 3], Err), Err(2)));
}

#[test]
fn without_items_the_helper_goes_home() {
    loom::model(|| expect((1, 1), &[], Ok(0), &[]));
}
