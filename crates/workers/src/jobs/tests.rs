//! Parallel loops: the rule that splits a range, as arithmetic and as calls; the cursor; and loops on real threads.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::convert::Infallible;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::{
    CHUNKS_PER_THREAD, ChunkCursor, Chunks, HelperBudget, OrderedPipeline, ParallelFor,
    PendingStarts, SplitParameters, TaskFailure,
};
use crate::cpus::CpuSet;

/// Longer than anything here takes; a test that waits so long has failed.
const DEADLINE: Duration = Duration::from_secs(60);

/// A number that rises and that threads of a test wait for, so that a test does not depend on the clock.
#[derive(Default)]
pub(super) struct CountLatch {
    count: Mutex<usize>,
    changed: Condvar,
}

impl CountLatch {
    pub(super) fn add_one(&self) {
        *self.count.lock().unwrap() += 1;
        self.changed.notify_all();
    }

    pub(super) fn wait_for(&self, goal: usize) {
        let count = self.count.lock().unwrap();
        let waited = self.changed.wait_timeout_while(count, DEADLINE, |now| *now < goal);
        assert!(!waited.unwrap().1.timed_out(), "{goal} were not reached");
    }

    pub(super) fn into_inner(self) -> usize {
        self.count.into_inner().unwrap()
    }
}

fn fine(outcome: Result<(), Infallible>) -> Result<(), Infallible> {
    outcome
}

/// The chunks that a job ran, in ascending order.
fn run_and_sort(job: ParallelFor<'_>) -> (super::ParallelForReport, Vec<Range<u64>>) {
    let chunks = Mutex::new(Vec::new());
    let report = job
        .run(|chunk| {
            chunks.lock().unwrap().push(chunk);
            fine(Ok(()))
        })
        .unwrap();
    let mut chunks = chunks.into_inner().unwrap();
    chunks.sort_by_key(|chunk| chunk.start);
    (report, chunks)
}

// The rows of the table, as calls.
#[test]
fn the_rows_of_the_table_come_out_as_calls() {
    let helpers = HelperBudget::new(30);
    let rows = [
        ([0, 1000, 1, 1], 4, 4, 62, 17, 992..1000),
        ([37, 1000, 1, 1], 4, 4, 62, 17, 992..1037),
        ([100, 1000, 0, 16], 3, 3, 96, 11, 1056..1100),
        ([0, 10, 100, 1], 4, 1, 10, 1, 0..10),
        ([5, 3, 1, 1], 8, 3, 1, 3, 7..8),
        ([0, 1000, 1, 64], 100, 15, 64, 16, 960..1000),
        ([7, 65, 8, 8], 2, 2, 8, 9, 64..72),
        ([12345, 1_000_000, 32768, 32768], 52, 30, 32768, 31, 983_040..1_012_345),
        ([0, 1000, 1, 1], 0, 1, 250, 4, 750..1000),
    ];
    for (asked, max_threads, threads, chunk_size, calls, last) in rows {
        let [start, size, min_chunk_size, align] = asked;
        let job =
            ParallelFor::over(start..start + size).min_chunk_size(min_chunk_size).align(align);
        let (report, chunks) = run_and_sort(job.max_threads(max_threads).helpers(&helpers));
        assert_eq!(
            (report.threads, report.chunk_size, report.chunks),
            (threads, chunk_size, calls)
        );
        assert_eq!((chunks.len() as u64, chunks.last()), (calls, Some(&last)), "{asked:?}");
        assert!(chunks.windows(2).all(|pair| pair[0].end == pair[1].start), "{asked:?}");
        assert_eq!(chunks[0].start, start);
    }
    assert_eq!(helpers.free(), 30);
}

// Nothing to do.
#[test]
fn an_empty_range_calls_nothing_and_starts_no_thread() {
    let helpers = HelperBudget::new(2);
    #[allow(clippy::reversed_empty_ranges, reason = "what a caller may hand over")]
    for range in [0..0, 7..7, u64::MAX..u64::MAX, 9..3] {
        let (report, chunks) =
            run_and_sort(ParallelFor::over(range).max_threads(4).helpers(&helpers));
        assert_eq!((report.threads, report.chunks, chunks.len()), (1, 0, 0));
    }
}

// Less than two chunks' worth is one call, here, with the budget untouched.
#[test]
fn a_small_range_is_one_call_on_the_callers_thread() {
    let helpers = HelperBudget::new(4);
    let here = std::thread::current().id();
    for (size, min_chunk_size, align) in
        [(1, 1, 1), (199, 100, 1), (127, 1, 64), (15, 8, 3), (1, 0, 0)]
    {
        let calls = Mutex::new(Vec::new());
        let job = ParallelFor::over(5..5 + size)
            .min_chunk_size(min_chunk_size)
            .align(align)
            .max_threads(8);
        let report = job.helpers(&helpers).run(|chunk| {
            assert_eq!(helpers.free(), 4);
            calls.lock().unwrap().push((chunk, std::thread::current().id()));
            fine(Ok(()))
        });
        assert_eq!(report.unwrap().threads, 1);
        assert_eq!(calls.into_inner().unwrap(), [(5..5 + size, here)]);
    }
}

#[test]
fn with_one_thread_a_range_of_any_size_is_one_call() {
    let helpers = HelperBudget::new(4);
    let job = ParallelFor::over(0..u64::MAX).max_threads(1).helpers(&helpers);
    let (report, chunks) = run_and_sort(job);
    assert_eq!((report.threads, report.chunk_size), (1, u64::MAX));
    assert_eq!((chunks.len(), &chunks[0]), (1, &(0..u64::MAX)));
}

// The peak of concurrent calls.
#[test]
fn no_more_than_max_threads_are_in_the_body_at_once() {
    let helpers = HelperBudget::new(16);
    for max_threads in 2..=5 {
        let (now, peak) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let job = ParallelFor::over(0..4096).max_threads(max_threads).helpers(&helpers);
        let report = job.run(|_| {
            peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::yield_now();
            now.fetch_sub(1, Ordering::SeqCst);
            fine(Ok(()))
        });
        assert_eq!(report.unwrap().threads, max_threads);
        assert!(peak.into_inner() <= max_threads);
    }
}

#[test]
fn all_the_threads_of_a_job_can_be_in_the_body_at_once() {
    let helpers = HelperBudget::new(3);
    let inside = CountLatch::default();
    let job = ParallelFor::over(0..4).max_threads(4).helpers(&helpers);
    let report = job.run(|_| {
        inside.add_one();
        inside.wait_for(4);
        fine(Ok(()))
    });
    assert_eq!(report.unwrap().threads, 4);
}

// Without helpers the caller does it all, in chunks.
#[test]
fn without_a_helper_the_caller_works_alone() {
    let helpers = HelperBudget::new(0);
    let here = std::thread::current().id();
    let threads = Mutex::new(Vec::new());
    let report = ParallelFor::over(0..1000).max_threads(8).helpers(&helpers).run(|_| {
        threads.lock().unwrap().push(std::thread::current().id());
        fine(Ok(()))
    });
    assert_eq!((report.unwrap().threads, report.unwrap().chunk_size), (1, 250));
    assert_eq!(threads.into_inner().unwrap(), [here; 4]);
}

// More is asked than there is, and jobs start jobs.
#[test]
fn eight_jobs_with_jobs_inside_share_three_helpers() {
    let helpers = HelperBudget::new(3);
    let units = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let outer =
                    ParallelFor::over(0..64).max_threads(4).helpers(&helpers).run(|outer| {
                        let inner = ParallelFor::over(0..1000).max_threads(4).helpers(&helpers);
                        inner.run(|inner| {
                            let innermost =
                                ParallelFor::over(inner).max_threads(2).helpers(&helpers);
                            innermost.run(|chunk| {
                                let count = (chunk.end - chunk.start) * (outer.end - outer.start);
                                units.fetch_add(count, Ordering::Relaxed);
                                fine(Ok(()))
                            })?;
                            fine(Ok(()))
                        })?;
                        fine(Ok(()))
                    });
                outer.unwrap();
            });
        }
    });
    assert_eq!(units.into_inner(), 8 * 64 * 1000);
    assert_eq!(helpers.free(), 3);
}

// Two errors at the same time; one of them is returned, and nothing is begun after it.
#[test]
fn an_error_stops_the_job_on_every_thread() {
    let helpers = HelperBudget::new(1);
    let inside = CountLatch::default();
    let job = ParallelFor::over(0..64).max_threads(2).helpers(&helpers);
    let outcome = job.run(|chunk| {
        inside.add_one();
        inside.wait_for(2);
        Err::<(), _>(chunk)
    });
    assert!([0..8, 8..16].contains(&outcome.unwrap_err()));
    assert_eq!(inside.into_inner(), 2, "the job went on");
}

#[test]
fn a_panic_in_a_helper_goes_on_in_the_caller_and_the_helpers_come_back() {
    let helpers = HelperBudget::new(3);
    let here = std::thread::current().id();
    let panicked = CountLatch::default();
    let job = ParallelFor::over(0..4096).max_threads(4).helpers(&helpers);
    let caught = catch_unwind(AssertUnwindSafe(|| {
        job.run(|_| {
            if std::thread::current().id() == here {
                panicked.wait_for(1);
                return Err("goes behind a panic");
            }
            panicked.add_one();
            std::panic::resume_unwind(Box::new("on purpose"));
        })
    }));
    let payload = caught.unwrap_err();
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"on purpose"));
    assert_eq!(helpers.free(), 3);
}

#[test]
fn a_panic_in_the_caller_comes_after_what_was_completed() {
    let helpers = HelperBudget::new(0);
    let completed = Mutex::new(Vec::new());
    let job = ParallelFor::over(0..100).max_threads(0).helpers(&helpers);
    let caught = catch_unwind(AssertUnwindSafe(|| {
        job.run(|chunk| {
            if chunk.start == 50 {
                std::panic::resume_unwind(Box::new(50_u32));
            }
            completed.lock().unwrap().push(chunk);
            fine(Ok(()))
        })
    }));
    assert_eq!(caught.unwrap_err().downcast_ref::<u32>(), Some(&50));
    assert_eq!(completed.into_inner().unwrap(), [0..25, 25..50]);
}

#[test]
fn a_range_that_was_not_split_returns_its_error() {
    let job = ParallelFor::over(0..100).max_threads(1);
    assert_eq!(job.run(|_| Err("failed")), Err("failed"));
}

#[test]
fn a_panic_while_a_helpers_state_is_dropped_reaches_the_caller() {
    struct Bad(ThreadId);
    impl Drop for Bad {
        fn drop(&mut self) {
            if std::thread::current().id() != self.0 {
                std::panic::resume_unwind(Box::new("dropped"));
            }
        }
    }
    let helpers = HelperBudget::new(1);
    let here = std::thread::current().id();
    let both = CountLatch::default();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let body = |_: &mut Bad, _| {
            both.add_one();
            both.wait_for(2);
            fine(Ok(()))
        };
        ParallelFor::over(0..2).max_threads(2).helpers(&helpers).run_with(|| Bad(here), body)
    }));
    assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"dropped"));
    assert_eq!(helpers.free(), 1);
}

#[test]
fn every_thread_that_works_has_one_state_of_its_own() {
    let helpers = HelperBudget::new(2);
    let made = Mutex::new(Vec::new());
    let both = CountLatch::default();
    let init = || {
        made.lock().unwrap().push(std::thread::current().id());
        (std::thread::current().id(), 0_u64)
    };
    let sum = AtomicU64::new(0);
    let job = ParallelFor::over(0..3000).max_threads(3).helpers(&helpers);
    let outcome = job.run_with(init, |(maker, units), chunk: Range<u64>| {
        assert_eq!(*maker, std::thread::current().id());
        if *units == 0 {
            both.add_one();
            both.wait_for(3);
        }
        *units += chunk.end - chunk.start;
        sum.fetch_add(chunk.end - chunk.start, Ordering::Relaxed);
        fine(Ok(()))
    });
    outcome.unwrap();
    let mut made = made.into_inner().unwrap();
    made.sort_by_key(|id| format!("{id:?}"));
    made.dedup();
    assert_eq!((made.len(), sum.into_inner()), (3, 3000));
}

#[test]
fn helpers_are_named_after_their_work() {
    let helpers = HelperBudget::new(1);
    let here = std::thread::current().id();
    let both = CountLatch::default();
    let outcome = ParallelFor::over(0..2).max_threads(2).helpers(&helpers).run(|_| {
        both.add_one();
        both.wait_for(2);
        if std::thread::current().id() != here {
            assert_eq!(std::thread::current().name(), Some("job/1"));
        }
        fine(Ok(()))
    });
    outcome.unwrap();
}

#[test]
fn a_pinned_callers_helpers_are_not_pinned_with_it() {
    let all = CpuSet::of_current_thread();
    let available = crate::cpus::AvailableCpus::fixed(all.clone());
    let cpu = all.iter().next().unwrap();
    // On a thread of its own, so that the test's thread keeps its CPUs.
    let seen = std::thread::scope(|scope| {
        let pinned = scope.spawn(|| {
            let one: CpuSet = [cpu].into_iter().collect();
            one.bind_current_thread().unwrap();
            let helpers = HelperBudget::on(&available);
            let here = std::thread::current().id();
            let seen = Mutex::new(None);
            let both = CountLatch::default();
            let job = ParallelFor::over(0..2).max_threads(2).helpers(&helpers);
            let outcome = job.run(|_| {
                both.add_one();
                both.wait_for(2);
                if std::thread::current().id() != here {
                    *seen.lock().unwrap() = Some(CpuSet::of_current_thread());
                }
                fine(Ok(()))
            });
            outcome.unwrap();
            seen.into_inner().unwrap()
        });
        pinned.join().unwrap()
    });
    assert_eq!(seen, Some(all));
}

/// Says to the child process below that it is the child.
const NO_STACKS: &str = "FERROFS_TEST_NO_STACKS";

// In a process of its own, where the standard library asks for stacks that no address space holds.
#[test]
fn without_threads_to_be_had_the_caller_works_alone_on_the_same_pieces() {
    let name = "jobs::tests::without_threads_to_be_had_the_caller_works_alone_on_the_same_pieces";
    if std::env::var_os(NO_STACKS).is_none() {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--test-threads=1"])
            .env(NO_STACKS, "1")
            .env("RUST_MIN_STACK", (1_u64 << 62).to_string())
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && output.contains("1 passed"), "{output}");
        return;
    }
    let helpers = HelperBudget::new(3);
    let job = ParallelFor::over(0..1000).max_threads(4).helpers(&helpers);
    let (report, chunks) = run_and_sort(job);
    assert_eq!((report.threads, report.chunk_size, chunks.len()), (1, 62, 17));
    let run = OrderedPipeline::new().max_threads(4).helpers(&helpers);
    let mut sum = 0;
    let add = |item| {
        sum += item;
        fine(Ok(()))
    };
    let report = run.run(0..100_u64, || (), |(), item| Ok(item), add).unwrap();
    assert_eq!((report.threads, report.items, sum), (1, 100, 4950));
    assert_eq!(helpers.free(), 3);
}

// The slow chunk ends when all the others are done, which only the other
// thread can do.
#[test]
fn one_slow_piece_leaves_all_the_others_to_the_rest() {
    let helpers = HelperBudget::new(1);
    let done = CountLatch::default();
    let job = ParallelFor::over(0..8).max_threads(2).helpers(&helpers);
    let outcome = job.run(|chunk| {
        if chunk.start == 0 {
            done.wait_for(7);
        } else {
            done.add_one();
        }
        fine(Ok(()))
    });
    assert_eq!(outcome.unwrap().chunks, 8);
}

// A count of units that 32 bits do not hold.
#[test]
fn a_range_of_every_number_is_cut_and_covered() {
    let helpers = HelperBudget::new(3);
    for job in [ParallelFor::over(0..u64::MAX), ParallelFor::over(1..u64::MAX)] {
        let (report, chunks) = run_and_sort(job.max_threads(4).helpers(&helpers));
        assert_eq!(report.threads, 4);
        assert!(chunks.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!(chunks.last().unwrap().end, u64::MAX);
        assert!((16..=18).contains(&chunks.len()));
    }
    let job = ParallelFor::over(u64::MAX - 7..u64::MAX).max_threads(4).helpers(&helpers);
    let (_, chunks) = run_and_sort(job);
    assert_eq!((chunks.len(), chunks[0].start, chunks[6].end), (7, u64::MAX - 7, u64::MAX));
}

#[test]
fn without_settings_a_job_uses_the_budget_of_the_process() {
    let (report, chunks) = run_and_sort(ParallelFor::over(0..1000));
    assert!(report.threads <= HelperBudget::process().total());
    assert_eq!(chunks.iter().map(|chunk| chunk.end - chunk.start).sum::<u64>(), 1000);
}

#[test]
fn every_helper_that_begins_is_no_longer_being_started() {
    let (helpers, starting) = (HelperBudget::new(3), PendingStarts::default());
    let job = ParallelFor::over(0..64).helpers(&helpers).report_pending_starts(&starting);
    for _ in 0..100 {
        let report = job.run(|_| {
            // Ends, or the test hangs: they begin whatever this thread does.
            while starting.is_any() {
                std::thread::yield_now();
            }
            fine(Ok(()))
        });
        assert_eq!(report.unwrap().threads, 3);
        assert!(!starting.is_any());
    }
}

/// How long a test of random work goes on.
const LENGTH: Duration = Duration::from_secs(2);

/// Numbers that look random: xorshift.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Runs `once` on `threads` threads, again and again.
pub(super) fn for_a_while(threads: u64, once: impl Fn(&mut Random) + Sync) -> usize {
    let rounds = AtomicUsize::new(0);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for number in 1..=threads {
            let (once, rounds) = (&once, &rounds);
            scope.spawn(move || {
                let mut random = Random(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
                while begun.elapsed() < LENGTH {
                    once(&mut random);
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    rounds.into_inner()
}

pub(super) fn place(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

#[test]
fn random_jobs_cover_their_ranges_or_return_their_error() {
    let helpers = HelperBudget::new(3);
    let rounds = for_a_while(4, |random| {
        let (start, size) = (random.below(1000), random.below(2000));
        let bad = random.below(4000);
        let visits: Vec<AtomicU8> = (0..size).map(|_| AtomicU8::new(0)).collect();
        let job = ParallelFor::over(start..start + size);
        let job = job.align(random.below(70)).min_chunk_size(random.below(90)).helpers(&helpers);
        let outcome = job.max_threads(place(random.below(6))).run(|chunk| {
            if chunk.contains(&bad) {
                return Err(bad);
            }
            // A job of its own visits the units.
            ParallelFor::over(chunk).max_threads(2).helpers(&helpers).run(|chunk| {
                for unit in chunk {
                    visits[place(unit - start)].fetch_add(1, Ordering::Relaxed);
                }
                Ok::<_, u64>(())
            })?;
            Ok(())
        });
        let fails = (start..start + size).contains(&bad);
        assert_eq!(outcome.err(), fails.then_some(bad));
        let visits = visits.iter().map(|count| count.load(Ordering::Relaxed));
        // No unit twice, and without a failure all of them once.
        assert!(visits.into_iter().all(|count| if fails { count <= 1 } else { count == 1 }));
    });
    assert_eq!(helpers.free(), 3);
    eprintln!("{rounds} jobs");
}

fn cursor(size: u64) -> ChunkCursor<&'static str> {
    let split =
        SplitParameters { start: 0, end: size, align: 1, min_chunk_size: 1, max_threads: 2 };
    ChunkCursor::new(split.chunks(2, CHUNKS_PER_THREAD))
}

#[test]
fn nothing_goes_out_after_a_failure() {
    let cursor = cursor(8);
    assert_eq!(cursor.take(), Some(0..1));
    cursor.fail(TaskFailure::Error("first"));
    assert_eq!((cursor.take(), cursor.take()), (None, None));
}

#[test]
fn a_cursor_of_the_most_chunks_does_not_wrap() {
    let split =
        SplitParameters { start: 0, end: u64::MAX, align: 1, min_chunk_size: 1, max_threads: 2 };
    let cursor = ChunkCursor::new(split.chunks(2, u64::MAX));
    assert_eq!(cursor.take(), Some(0..3));
    cursor.fail(TaskFailure::Error("first"));
    assert_eq!((cursor.take(), cursor.take()), (None, None));
}

#[test]
fn the_first_error_stays_and_a_panic_replaces_it() {
    let cursor = cursor(8);
    cursor.fail(TaskFailure::Error("first"));
    cursor.fail(TaskFailure::Error("second"));
    cursor.fail(TaskFailure::Panic(Box::new(7_u32)));
    cursor.fail(TaskFailure::Error("third"));
    cursor.fail(TaskFailure::Panic(Box::new(8_u32)));
    match cursor.take_failure() {
        Some(TaskFailure::Panic(payload)) => {
            assert_eq!(payload.downcast_ref::<u32>(), Some(&7));
        }
        other => panic!("{other:?}"),
    }
}

/// More threads than any row of the table asks for.
const PLENTY: u64 = 1000;

fn chunks_of(shape: SplitParameters, available: u64) -> (u64, Chunks) {
    let threads = shape.threads().min(available).max(1);
    (threads, shape.chunks(threads, CHUNKS_PER_THREAD))
}

fn list(chunks: &Chunks) -> Vec<Range<u64>> {
    (0..chunks.count()).map_while(|number| chunks.chunk(number)).collect()
}

/// The loop of padata itself, in u128: the simple twin.
fn cut_one_by_one(start: u64, end: u64, chunk_size: u64) -> Vec<Range<u64>> {
    let (mut at, end, chunk_size) = (u128::from(start), u128::from(end), u128::from(chunk_size));
    let narrow = |value: u128| u64::try_from(value).unwrap();
    let mut chunks = Vec::new();
    while at < end {
        let stop = ((at / chunk_size + 1) * chunk_size).min(end);
        chunks.push(narrow(at)..narrow(stop));
        at = stop;
    }
    chunks
}

struct Row {
    asked: [u64; 5],
    threads: u64,
    chunk_size: u64,
    first: Range<u64>,
    last: Range<u64>,
    calls: u64,
}

// `threads` 0 is the row of max_threads 0.
#[test]
fn all_nine_rows_of_the_table_come_out() {
    let row = |asked, threads, chunk_size, calls, first, last| Row {
        asked,
        threads,
        chunk_size,
        first,
        last,
        calls,
    };
    let rows = [
        row([0, 1000, 1, 1, 4], 4, 62, 17, 0..62, 992..1000),
        row([37, 1000, 1, 1, 4], 4, 62, 17, 37..62, 992..1037),
        row([100, 1000, 0, 16, 3], 3, 96, 11, 100..192, 1056..1100),
        row([5, 3, 1, 1, 8], 3, 1, 3, 5..6, 7..8),
        row([0, 1000, 1, 64, 100], 15, 64, 16, 0..64, 960..1000),
        row([7, 65, 8, 8, 2], 2, 8, 9, 7..8, 64..72),
        row([12345, 1_000_000, 32768, 32768, 52], 30, 32768, 31, 12345..32768, 983_040..1_012_345),
        row([0, 1000, 1, 1, 0], 0, 250, 4, 0..250, 750..1000),
    ];
    for Row { asked, threads, chunk_size, first, last, calls } in rows {
        let [start, size, min_chunk_size, align, max_threads] = asked;
        let shape =
            SplitParameters { start, end: start + size, align, min_chunk_size, max_threads };
        assert_eq!(shape.threads(), threads, "threads of {asked:?}");
        let (_, chunks) = chunks_of(shape, PLENTY);
        assert_eq!(chunks.chunk_size(), chunk_size, "chunk_size of {asked:?}");
        let chunks = list(&chunks);
        assert_eq!(chunks, cut_one_by_one(start, start + size, chunk_size), "chunks of {asked:?}");
        assert_eq!(chunks.len() as u64, calls, "calls of {asked:?}");
        assert_eq!(chunks.first(), Some(&first), "first of {asked:?}");
        assert_eq!(chunks.last(), Some(&last), "last of {asked:?}");
    }
    // The ninth: not worth a second thread, so it is not cut at all.
    let shape =
        SplitParameters { start: 0, end: 10, align: 1, min_chunk_size: 100, max_threads: 4 };
    assert_eq!((shape.threads(), shape.whole()), (1, 0..10));
}

// Chunk size 0, align 0, a count cut to 32 bits.
#[test]
fn zero_align_and_zero_chunk_count_as_one() {
    for (align, min_chunk_size) in [(0, 0), (0, 1), (1, 0)] {
        let shape = SplitParameters { start: 3, end: 9, align, min_chunk_size, max_threads: 4 };
        assert_eq!(shape.threads(), 4);
        assert_eq!(list(&shape.chunks(4, CHUNKS_PER_THREAD)), cut_one_by_one(3, 9, 1));
    }
    // Rounded before the minimum came in, this was 1 once, and then missed the alignment.
    let shape = SplitParameters { start: 0, end: 16, align: 8, min_chunk_size: 0, max_threads: 2 };
    assert_eq!(shape.chunks(2, CHUNKS_PER_THREAD).chunk_size(), 8);
}

#[test]
fn two_to_the_31_units_and_more_still_get_their_threads() {
    for size in [1_u64 << 31, 1 << 32, (1 << 32) + 1, u64::MAX] {
        let shape =
            SplitParameters { start: 0, end: size, align: 1, min_chunk_size: 1, max_threads: 16 };
        assert_eq!(shape.threads(), 16, "{size} units");
    }
}

#[test]
fn a_range_up_to_the_last_number_is_cut_without_wrapping() {
    let shape =
        SplitParameters { start: 0, end: u64::MAX, align: 1, min_chunk_size: 1, max_threads: 4 };
    let chunks = shape.chunks(4, CHUNKS_PER_THREAD);
    assert_eq!(list(&chunks), cut_one_by_one(0, u64::MAX, chunks.chunk_size()));
    let start = u64::MAX - 100;
    let shape =
        SplitParameters { start, end: u64::MAX, align: 16, min_chunk_size: 1, max_threads: 4 };
    let chunks = shape.chunks(4, CHUNKS_PER_THREAD);
    assert_eq!(list(&chunks), cut_one_by_one(start, u64::MAX, chunks.chunk_size()));
    assert_eq!(list(&chunks).last().unwrap().end, u64::MAX);
    assert_eq!(chunks.chunk(u64::MAX), None);
}

#[test]
fn a_chunk_that_rounds_past_u64_makes_one_piece() {
    let align = (1 << 63) + 1;
    let shape =
        SplitParameters { start: 5, end: 100, align, min_chunk_size: u64::MAX, max_threads: 0 };
    let chunks = shape.chunks(1, CHUNKS_PER_THREAD);
    assert_eq!((chunks.count(), chunks.chunk(0)), (1, Some(5..100)));
}

/// A number of any magnitude.
fn any_magnitude() -> impl Strategy<Value = u64> {
    (0_u32..64, any::<u64>()).prop_map(|(shift, bits)| bits >> shift)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

    // Disjoint, covering exactly, boundaries and chunk size as the rule says.
    #[test]
    fn chunks_cover_the_range_and_end_at_multiples_of_the_chunk_size(
        start in any_magnitude(),
        size in any_magnitude(),
        align in any_magnitude(),
        min_chunk_size in any_magnitude(),
        max_threads in 0_u64..300,
        available in 1_u64..300,
    ) {
        let end = start.saturating_add(size);
        let shape = SplitParameters { start, end, align, min_chunk_size, max_threads };
        prop_assert!(shape.threads() <= max_threads);
        let (threads, chunks) = chunks_of(shape, available);
        let chunk_size = chunks.chunk_size();
        let whole = u128::from(shape.size()) / u128::from(threads * 4);
        let min = whole.max(u128::from(min_chunk_size)).max(1);
        let exact = min.next_multiple_of(u128::from(align.max(1)));
        prop_assert_eq!(u128::from(chunk_size), exact.min(u128::from(u64::MAX)));
        prop_assert!(chunks.count() <= 8 * threads + 2, "{} chunks", chunks.count());
        let chunks = list(&chunks);
        prop_assert_eq!(&chunks, &cut_one_by_one(start, end, chunk_size));
        let mut at = start;
        for chunk in &chunks {
            prop_assert_eq!(chunk.start, at);
            prop_assert!(chunk.end > chunk.start);
            prop_assert!(chunk.end == end || chunk.end % chunk_size == 0);
            at = chunk.end;
        }
        prop_assert_eq!(at, end);
    }

    // Two threads or more never meet a chunk size that does not fit into u64, and it keeps to align.
    #[test]
    fn a_shared_chunk_is_a_multiple_of_align(
        size in any_magnitude(),
        align in any_magnitude(),
        min_chunk_size in any_magnitude(),
        max_threads in 2_u64..300,
        available in 1_u64..300,
    ) {
        let shape = SplitParameters { start: 0, end: size, align, min_chunk_size, max_threads };
        if shape.threads() > 1 {
            let (_, chunks) = chunks_of(shape, available);
            prop_assert_eq!(chunks.chunk_size() % align.max(1), 0);
            prop_assert!(chunks.chunk_size() >= min_chunk_size);
        }
    }
}

/// Ends a schedule in which a free thread takes the next chunk: the virtual clock.
fn finish_time(costs: &[u64], threads: usize) -> u64 {
    let mut free_at = vec![0_u64; threads];
    for cost in costs {
        *free_at.iter_mut().min().unwrap() += cost;
    }
    free_at.into_iter().max().unwrap()
}

// One chunk takes eight times as long, counted on a virtual clock.
#[test]
fn one_slow_piece_does_not_hold_the_others_up() {
    for threads in 2..=16_usize {
        let shape = SplitParameters {
            start: 0,
            end: 1 << 20,
            align: 1,
            min_chunk_size: 1,
            max_threads: 16,
        };
        let chunks = list(&shape.chunks(threads as u64, CHUNKS_PER_THREAD));
        for slow in 0..chunks.len() {
            let cost = |(number, chunk): (usize, &Range<u64>)| {
                (chunk.end - chunk.start) * if number == slow { 8 } else { 1 }
            };
            let costs: Vec<u64> = chunks.iter().enumerate().map(cost).collect();
            let ideal = costs.iter().sum::<u64>() / threads as u64;
            let elapsed = finish_time(&costs, threads);
            if slow < threads {
                // Met at once, it costs its own time, or the others hide it.
                assert!(elapsed <= costs[slow].max(ideal * 13 / 10), "{slow} of {threads}");
            }
            // Met at any time: never more than what every greedy schedule promises.
            assert!(
                elapsed <= ideal + costs[slow],
                "{slow} of {threads}: {elapsed}, ideal {ideal}"
            );
        }
    }
}

// A slow chunk anywhere: what it takes is more chunks, not another rule.
#[test]
fn thirty_two_pieces_a_thread_keep_a_slow_piece_within_1_3_of_the_ideal_wherever_it_lies() {
    let shape =
        SplitParameters { start: 0, end: 1 << 20, align: 1, min_chunk_size: 1, max_threads: 64 };
    for threads in 2..=24_usize {
        let count = list(&shape.chunks(threads as u64, 32)).len();
        for slow in 0..count {
            let costs: Vec<u64> =
                (0..count).map(|number| if number == slow { 80 } else { 10 }).collect();
            // No schedule is faster than its slowest chunk.
            let ideal = costs.iter().sum::<u64>().div_ceil(threads as u64).max(80);
            let elapsed = finish_time(&costs, threads);
            assert!(elapsed * 10 <= ideal * 13, "{slow} of {threads}: {elapsed}, {ideal}");
        }
    }
}
