//! Models of protocol J, the cursor of a running loop, and of the budget that helpers come from.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::sync::atomic::{AtomicU32 as Plain, Ordering as PlainOrdering};

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
