//! Models of protocol O, with the loops that ship: a lost wake-up is a deadlock, which loom reports.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use super::ordered::{CallerRole, InFlightBytes, ItemSource, PipelineRun};
use super::reorder_ring::ReorderRing;
use crate::sync::{Arc, thread};

type Doubled = ReorderRing<u64, u64, u64>;

/// An item that fails when it is worked on.
const BAD: u64 = 100;

/// What a model runs.
#[derive(Clone, Copy)]
struct Setup {
    slots: usize,
    helpers: usize,
    role: CallerRole,
    max_bytes: Option<u64>,
}

impl Setup {
    const fn new(slots: usize, helpers: usize) -> Self {
        Self { slots, helpers, role: CallerRole::Works, max_bytes: None }
    }

    /// Runs the items, each of which costs as much as its number says.
    fn run(self, items: &[u64], commit: impl FnMut(u64) -> Result<(), u64>) -> Result<u64, u64> {
        let work = |(): &mut (), item: u64| if item >= BAD { Err(item) } else { Ok(item * 2) };
        let ring = Arc::new(Doubled::new(self.slots));
        let helpers: Vec<_> = (0..self.helpers)
            .map(|_| {
                let ring = Arc::clone(&ring);
                thread::spawn(move || PipelineRun { ring: &ring, init: || (), work }.as_helper())
            })
            .collect();
        let run = PipelineRun { ring: &ring, init: || (), work };
        let (items, bound) = (items.iter().copied(), InFlightBytes::new(self.max_bytes));
        let outcome =
            run.as_caller(self.role, ItemSource { items, cost: |item: &u64| *item, bound }, commit);
        for helper in helpers {
            helper.join().unwrap();
        }
        outcome
    }

    /// Runs the items and expects these commits.
    fn expect(self, items: &[u64], outcome: Result<u64, u64>, commits: &[u64]) {
        let mut committed = Vec::new();
        let keep = |result| {
            committed.push(result);
            Ok(())
        };
        assert_eq!(self.run(items, keep), outcome);
        assert_eq!(committed, commits);
    }
}

fn bounded(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

#[test]
fn each_item_is_committed_once_and_in_order() {
    bounded(3, || Setup::new(2, 1).expect(&[1, 2, 3], Ok(3), &[2, 4, 6]));
}

#[test]
fn a_single_slot_is_used_again_and_again() {
    bounded(3, || Setup::new(1, 1).expect(&[1, 2, 3], Ok(3), &[2, 4, 6]));
}

#[test]
fn two_helpers_and_the_caller_lose_no_item_and_no_wake_up() {
    bounded(2, || Setup::new(2, 2).expect(&[1, 2], Ok(2), &[2, 4]));
}

#[test]
fn the_first_error_in_the_order_of_the_items_is_returned() {
    bounded(3, || Setup::new(2, 1).expect(&[1, BAD, BAD + 1], Err(BAD), &[2]));
}

#[test]
fn an_error_in_a_commit_ends_the_helper() {
    bounded(3, || assert_eq!(Setup::new(2, 1).run(&[1, 2, 3], Err), Err(2)));
}

#[test]
fn without_items_the_helper_ends() {
    loom::model(|| Setup::new(1, 1).expect(&[], Ok(0), &[]));
}

#[test]
fn a_caller_that_only_commits_waits_for_its_helper_and_loses_no_wake_up() {
    let setup = Setup { role: CallerRole::CommitsOnly, ..Setup::new(2, 1) };
    bounded(3, move || setup.expect(&[1, 2, 3], Ok(3), &[2, 4, 6]));
}

#[test]
fn a_caller_that_only_commits_returns_the_first_error_of_its_helper() {
    let setup = Setup { role: CallerRole::CommitsOnly, ..Setup::new(2, 1) };
    bounded(3, move || setup.expect(&[1, BAD, BAD + 1], Err(BAD), &[2]));
}

// One item and a bound of 1: with two items and a bound of 2 this model takes ten minutes.
#[test]
fn a_caller_that_only_commits_wakes_one_of_two_helpers_and_ends_both() {
    let setup = Setup { role: CallerRole::CommitsOnly, ..Setup::new(2, 2) };
    bounded(1, move || setup.expect(&[1], Ok(1), &[2]));
}

#[test]
fn an_item_that_does_not_fit_is_held_back_until_the_others_are_committed() {
    let setup = Setup { max_bytes: Some(3), ..Setup::new(2, 1) };
    bounded(3, move || setup.expect(&[2, 2, 9], Ok(3), &[4, 4, 18]));
}

#[test]
fn a_bound_in_bytes_holds_for_a_caller_that_only_commits() {
    let setup = Setup { role: CallerRole::CommitsOnly, max_bytes: Some(1), ..Setup::new(2, 1) };
    bounded(3, move || setup.expect(&[2, BAD], Err(BAD), &[4]));
}
