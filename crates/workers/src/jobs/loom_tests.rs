//! Models of protocol J, the cursor of a running loop, and of the budget that helpers come from; and of protocol O, with the
//! loops that ship: a lost wake-up is a deadlock, which loom reports.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::sync::atomic::{AtomicU32 as Plain, Ordering as PlainOrdering};

use super::ordered::{CallerRole, InFlightBytes, ItemSource, PipelineRun};
use super::reorder_ring::ReorderRing;
use super::{
    CHUNKS_PER_THREAD, ChunkCursor, HelperBudget, PendingStarts, SplitParameters, take_chunks,
};
use crate::catch_panic::TaskFailure;
use crate::sync::{Arc, AtomicBool, Ordering, thread};

const FAILS: u64 = 1;

/// A running loop over chunks of one unit.
struct RunningLoop {
    cursor: ChunkCursor<u64>,
    /// Calls of the body for each chunk: what the model checks, unseen by loom.
    calls: Vec<Plain>,
    finished: Vec<Plain>,
    /// Set once the failure was noted.
    failed: AtomicBool,
}

impl RunningLoop {
    fn new(size: u64) -> Arc<Self> {
        let split =
            SplitParameters { start: 0, end: size, align: 1, min_chunk_size: 1, max_threads: 3 };
        let chunks = split.chunks(3, CHUNKS_PER_THREAD);
        assert_eq!(chunks.count(), size);
        let zeros = || (0..size).map(|_| Plain::new(0)).collect();
        Arc::new(Self {
            cursor: ChunkCursor::new(chunks),
            calls: zeros(),
            finished: zeros(),
            failed: AtomicBool::new(false),
        })
    }

    /// The loop of a thread, step by step, so that the model can look between the steps.
    fn work(&self) {
        loop {
            let had_failed = self.failed.load(Ordering::SeqCst);
            let Some(chunk) = self.cursor.take() else {
                return;
            };
            let number = chunk.start;
            assert!(!had_failed, "chunk {number} went out after the stop");
            let place = usize::try_from(number).unwrap();
            assert_eq!(chunk, number..number + 1);
            assert_eq!(self.calls[place].fetch_add(1, PlainOrdering::SeqCst), 0);
            if number == FAILS {
                self.cursor.fail(TaskFailure::Error(number));
                self.failed.store(true, Ordering::SeqCst);
            } else {
                self.finished[place].store(1, PlainOrdering::SeqCst);
            }
        }
    }

    /// After all threads were joined: what was taken is finished, but for the chunk that failed.
    fn check(&self) {
        for (number, (calls, finished)) in (0..).zip(self.calls.iter().zip(&self.finished)) {
            let taken = calls.load(PlainOrdering::SeqCst) == 1 && number != FAILS;
            assert_eq!(finished.load(PlainOrdering::SeqCst), u32::from(taken));
        }
        assert!(matches!(self.cursor.take_failure(), Some(TaskFailure::Error(FAILS))));
    }
}

#[test]
fn two_threads_take_each_piece_once_and_none_after_a_failure() {
    loom::model(|| {
        let job = RunningLoop::new(3);
        let helper = Arc::clone(&job);
        let helper = thread::spawn(move || helper.work());
        job.work();
        helper.join().unwrap();
        job.check();
    });
}

#[test]
fn three_threads_take_each_piece_once_and_none_after_a_failure() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let job = RunningLoop::new(3);
        let helpers = [0, 1].map(|_| {
            let job = Arc::clone(&job);
            thread::spawn(move || job.work())
        });
        job.work();
        for helper in helpers {
            helper.join().unwrap();
        }
        job.check();
    });
}

#[test]
fn the_loop_that_ships_works_every_piece_off() {
    loom::model(|| {
        let job = RunningLoop::new(3);
        let work = |job: &RunningLoop| {
            let count = |(): &mut (), chunk: std::ops::Range<u64>| {
                let place = usize::try_from(chunk.start).unwrap();
                job.calls[place].fetch_add(1, PlainOrdering::SeqCst);
                Ok(())
            };
            take_chunks(&job.cursor, || (), count);
        };
        let helper = Arc::clone(&job);
        let helper = thread::spawn(move || work(&helper));
        work(&job);
        helper.join().unwrap();
        assert!(job.calls.iter().all(|calls| calls.load(PlainOrdering::SeqCst) == 1));
        assert!(job.cursor.take_failure().is_none());
    });
}

#[test]
fn no_helper_is_given_out_twice_and_all_come_back() {
    loom::model(|| {
        let helpers = Arc::new(HelperBudget::new(2));
        let taken = Arc::new(Plain::new(0));
        let take = |helpers: &HelperBudget, taken: &Plain| {
            let tokens = helpers.take(2);
            let count = u32::try_from(tokens.len()).unwrap();
            assert!(taken.fetch_add(count, PlainOrdering::SeqCst) + count <= 2);
            taken.fetch_sub(count, PlainOrdering::SeqCst);
        };
        let other = (Arc::clone(&helpers), Arc::clone(&taken));
        let other = thread::spawn(move || take(&other.0, &other.1));
        take(&helpers, &taken);
        other.join().unwrap();
        assert_eq!(helpers.free(), 2);
    });
}

#[test]
fn who_is_being_started_ends_with_the_last_of_them() {
    loom::model(|| {
        let starting = Arc::new(PendingStarts::default());
        starting.add(3);
        let helpers = [0; 2].map(|_| {
            let starting = Arc::clone(&starting);
            thread::spawn(move || {
                drop(starting.guard());
            })
        });
        assert!(starting.is_any(), "one was not given up yet");
        starting.remove(1);
        helpers.into_iter().for_each(|helper| helper.join().unwrap());
        assert!(!starting.is_any());
    });
}

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
