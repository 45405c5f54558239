//! Parallel work for the length of one call: a range split over the CPUs ([`ParallelFor`]), and parallel
//! work whose results are committed in order ([`OrderedPipeline`]).
//!
//! The caller always takes part. Helper threads come from a budget ([`HelperBudget`]) that nobody waits
//! for, and all of them have ended when the call returns. So a body may borrow from the caller and may start
//! jobs of its own, and jobs cannot deadlock each other: a job without a helper is a loop on its caller.
//!
//! Bodies of one job must not wait for each other. The number of threads depends on what is free, and may be
//! one.
//!
//! Helpers keep the priority that a new thread inherits from the caller. They are not put behind other work
//! with `nice`: an unprivileged process could not raise them again for a caller that waits for the last
//! chunk.
//!
//! docs/workers.md, protocols J and O.

mod ordered;
mod thread_team;

#[cfg(all(test, not(loom)))]
mod ordered_tests;
#[cfg(all(test, not(loom)))]
mod tests;

use std::ops::Range;

use crate::counters::CachePadded;
use crate::error::TaskFailure;
use crate::sync::{AtomicU64, Mutex, Ordering, lock};

pub use ordered::{CallerRole, MAX_ITEMS_IN_FLIGHT, OrderedPipeline, PipelineReport};
pub use thread_team::{HelperBudget, MAX_HELPERS};

pub(crate) use thread_team::PendingStarts;

/// The average number of chunks a thread, so that other threads take over what a slow chunk delays. padata's
/// number.
const CHUNKS_PER_THREAD: u64 = 4;

/// The most shares of a range: the number of chunks, and that of the threads that find none left, fit into the cursor.
const SHARES_MAX: u64 = 1 << 62;

/// A loop over a range of numbers, run by several threads. The unit is the caller's: bytes, pages, blocks,
/// indices.
///
/// Without settings the range is split for all CPUs of the budget, into chunks of one unit or more.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use ferrofs_workers::jobs::ParallelFor;
///
/// let numbers: Vec<u64> = (0..100_000).collect();
/// let sum = AtomicU64::new(0);
/// let report = ParallelFor::over(0..100_000).min_chunk_size(1000).run(|chunk| {
///     let chunk = &numbers[chunk.start as usize..chunk.end as usize];
///     sum.fetch_add(chunk.iter().sum(), Ordering::Relaxed);
///     Ok::<(), std::convert::Infallible>(())
/// });
/// assert_eq!(sum.into_inner(), 4_999_950_000);
/// assert!(report.is_ok_and(|report| report.chunks >= 1));
/// ```
#[derive(Debug, Clone, Copy)]
#[must_use = "nothing runs until `run` is called"]
pub struct ParallelFor<'h> {
    start: u64,
    end: u64,
    align: u64,
    min_chunk_size: u64,
    max_threads: Option<usize>,
    chunks_per_thread: u64,
    helpers: Option<&'h HelperBudget>,
    pending_starts: Option<&'h PendingStarts>,
}

/// How a [`ParallelFor`] was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParallelForReport {
    /// Threads that took part, the caller included. A helper counts even if it found no chunk left.
    pub threads: usize,
    /// Calls of the body.
    pub chunks: u64,
    /// Units between two boundaries; the size of the range if it was not split.
    pub chunk_size: u64,
}

impl<'h> ParallelFor<'h> {
    /// A loop over `range`. An empty range, or one that ends before it starts, calls the body never.
    pub const fn over(range: Range<u64>) -> Self {
        Self {
            start: range.start,
            end: if range.end > range.start { range.end } else { range.start },
            align: 1,
            min_chunk_size: 1,
            max_threads: None,
            chunks_per_thread: CHUNKS_PER_THREAD,
            helpers: None,
            pending_starts: None,
        }
    }

    /// Makes the chunk size a multiple of `align` units, and so every boundary between two chunks, counted
    /// from 0. 0 counts as 1. Default: 1.
    pub const fn align(mut self, align: u64) -> Self {
        self.align = align;
        self
    }

    /// Sets the smallest chunk size in units; a range of less than two of these is not split. The first and
    /// the last chunk can be shorter. 0 counts as 1. Default: 1.
    pub const fn min_chunk_size(mut self, min_chunk_size: u64) -> Self {
        self.min_chunk_size = min_chunk_size;
        self
    }

    /// Sets the largest number of threads, the caller included. With 1 the range is not split: the body is
    /// called once. With 0 the caller works alone, too, but on the range split as for one thread, into about
    /// four chunks. Default: the size of the budget, which is one thread a CPU.
    pub const fn max_threads(mut self, max_threads: usize) -> Self {
        self.max_threads = Some(max_threads);
        self
    }

    /// Sets the average number of chunks a thread, as far as `min_chunk_size` and `align` allow. With 32, a
    /// chunk that takes eight times as long as the others costs at most 1.3 times the ideal, wherever it
    /// lies (docs/benchmarks.md). 0 counts as 1. Default: 4, as in Linux' padata.
    pub const fn chunks_per_thread(mut self, chunks: u64) -> Self {
        self.chunks_per_thread = chunks;
        self
    }

    /// Takes helpers from this budget instead of that of the process.
    pub const fn helpers(mut self, helpers: &'h HelperBudget) -> Self {
        self.helpers = Some(helpers);
        self
    }

    /// Counts in `pending_starts`, during the call, the helpers that have not begun.
    pub(crate) const fn report_pending_starts(mut self, pending_starts: &'h PendingStarts) -> Self {
        self.pending_starts = Some(pending_starts);
        self
    }

    /// Calls `body` once for every chunk of the range, on this thread and on helpers, and returns when all
    /// calls have returned.
    ///
    /// # Errors
    ///
    /// The first error in time. No chunk begins after it; chunks that have begun are finished.
    ///
    /// # Panics
    ///
    /// With the panic of a body, once all threads are at rest. A panic stops the loop as an error does, and
    /// is reported before an error.
    pub fn run<E: Send>(
        &self,
        body: impl Fn(Range<u64>) -> Result<(), E> + Sync,
    ) -> Result<ParallelForReport, E> {
        self.run_with(|| (), |(), chunk| body(chunk))
    }

    /// The same with one state a thread: `init` makes it on that thread before its first chunk, and it is
    /// dropped there.
    ///
    /// # Errors
    ///
    /// As [`ParallelFor::run`].
    ///
    /// # Panics
    ///
    /// As [`ParallelFor::run`].
    pub fn run_with<S, E: Send>(
        &self,
        init: impl Fn() -> S + Sync,
        body: impl Fn(&mut S, Range<u64>) -> Result<(), E> + Sync,
    ) -> Result<ParallelForReport, E> {
        let helpers = or_process_budget(self.helpers);
        let split = self.split(helpers);
        let size = split.size();
        if size == 0 {
            return Ok(ParallelForReport { threads: 1, chunks: 0, chunk_size: 0 });
        }
        let wanted = split.threads();
        if wanted == 1 {
            body(&mut init(), split.whole())?;
            return Ok(ParallelForReport { threads: 1, chunks: 1, chunk_size: size });
        }
        let tokens = helpers.map(|helpers| helpers.take(wanted.saturating_sub(1)));
        let helper_count = tokens.as_ref().map_or(0, |tokens| tokens.len());
        let chunks = split.chunks(helper_count as u64 + 1, self.chunks_per_thread);
        let cursor = ChunkCursor::new(chunks);
        let share = || take_chunks(&cursor, &init, &body);
        let (threads, ()) = thread_team::run(tokens, self.pending_starts, share, |_| share());
        match cursor.take_failure() {
            None => Ok(ParallelForReport {
                threads,
                chunks: chunks.count(),
                chunk_size: chunks.chunk_size(),
            }),
            Some(failure) => Err(failure.into_error()),
        }
    }

    fn split(&self, helpers: Option<&HelperBudget>) -> SplitParameters {
        let all = || helpers.map_or(1, |helpers| helpers.total().max(1));
        SplitParameters {
            start: self.start,
            end: self.end,
            align: self.align,
            min_chunk_size: self.min_chunk_size,
            max_threads: self.max_threads.unwrap_or_else(all) as u64,
        }
    }
}

/// The given budget, or that of the process. None only in a loom model, which has no process.
fn or_process_budget(helpers: Option<&HelperBudget>) -> Option<&HelperBudget> {
    #[cfg(not(loom))]
    let helpers = helpers.or_else(|| Some(HelperBudget::process()));
    helpers
}

/// How a range is split, in the caller's unit: plain arithmetic in `u64`.
///
/// It is the rule of Linux' padata, number for number, so that its tuning applies here:
///
/// ```text
/// threads    = min(max(size / max(min_chunk_size, align), 1), max_threads)   then as many as are free
/// chunk_size = round up to align (max(size / (threads * 4), min_chunk_size, 1))
/// a chunk ends at the next multiple of chunk_size above its start, or at the end of the range
/// ```
///
/// Boundaries are multiples of the chunk size counted from 0, not from the start of the range: a range that
/// starts anywhere is aligned after its first chunk. padata divides by zero if `align` is 0, and cuts a count to
/// 32 bits; this does neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SplitParameters {
    /// First unit.
    start: u64,
    /// The unit behind the last; not below `start`.
    end: u64,
    /// The chunk size is a multiple of this; 0 counts as 1.
    align: u64,
    /// The chunk size is never less than this; 0 counts as 1.
    min_chunk_size: u64,
    /// The most threads, the caller included; 0 means the caller alone, on a split range.
    max_threads: u64,
}

impl SplitParameters {
    /// Units in the range.
    const fn size(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Threads wanted, the caller included. 1: the range is not worth splitting, or must not be split. 0 only
    /// if `max_threads` is 0: the caller alone, on a split range.
    fn threads(&self) -> u64 {
        let useful = self.min_chunk_size.max(self.align).max(1);
        (self.size() / useful).max(1).min(self.max_threads)
    }

    /// The chunks for so many threads, with an average number of chunks a thread; 0 counts as 1.
    fn chunks(&self, threads: u64, chunks_per_thread: u64) -> Chunks {
        let shares = threads.max(1).saturating_mul(chunks_per_thread.max(1)).min(SHARES_MAX);
        // The minimum comes before the rounding: rounded first, the minimum itself could miss align.
        let chunk_size = (self.size() / shares).max(self.min_chunk_size).max(1);
        // A multiple that u64 does not hold lies behind every end, and so does u64::MAX.
        let chunk_size = chunk_size.checked_next_multiple_of(self.align.max(1)).unwrap_or(u64::MAX);
        Chunks::new(self.start, self.end, chunk_size)
    }

    /// The whole range as one chunk.
    fn whole(&self) -> Range<u64> {
        self.start..self.end
    }
}

/// A range split at the multiples of its chunk size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Chunks {
    start: u64,
    /// Where the first chunk ends: the first boundary above `start`, or `end`.
    first_end: u64,
    end: u64,
    chunk_size: u64,
    count: u64,
}

impl Chunks {
    /// `chunk_size` is at least 1.
    fn new(start: u64, end: u64, chunk_size: u64) -> Self {
        // Saturated, both are the largest number, which no end exceeds.
        let boundary = (start / chunk_size).saturating_add(1).saturating_mul(chunk_size);
        let first_end = boundary.min(end);
        let rest = end.saturating_sub(first_end).div_ceil(chunk_size);
        let count = if start < end { rest.saturating_add(1) } else { 0 };
        Self { start, first_end, end, chunk_size, count }
    }

    /// Units between two boundaries.
    const fn chunk_size(&self) -> u64 {
        self.chunk_size
    }

    /// Number of chunks: less than twice the chunks that were asked for and 2 more, because the chunk size
    /// is at least `size / (threads * chunks_per_thread)`, rounded down, and not 0.
    const fn count(&self) -> u64 {
        self.count
    }

    /// The chunk with this number, counted from 0; none behind the last.
    fn chunk(&self, number: u64) -> Option<Range<u64>> {
        if number >= self.count {
            return None;
        }
        let Some(behind_first) = number.checked_sub(1) else {
            return Some(self.start..self.first_end);
        };
        // Below `end`, as `number` is below `count`: neither step wraps.
        let start = self.first_end + behind_first * self.chunk_size;
        Some(start..start.saturating_add(self.chunk_size).min(self.end))
    }
}

/// What each thread of a [`ParallelFor`] does: chunk after chunk, until none is left.
fn take_chunks<S, E>(
    cursor: &ChunkCursor<E>,
    init: impl Fn() -> S,
    body: impl Fn(&mut S, Range<u64>) -> Result<(), E>,
) {
    let mut state = None;
    while let Some(chunk) = cursor.take() {
        let work = || body(state.get_or_insert_with(&init), chunk);
        if let Err(failure) = TaskFailure::catch(work) {
            cursor.fail(failure);
        }
    }
}

/// What the threads of one running loop share: the number of the next chunk, and the first failure.
/// docs/workers.md, protocol J.
#[derive(Debug)]
struct ChunkCursor<E> {
    chunks: Chunks,
    /// The number of the next chunk. At or above the number of chunks nothing is left: all were taken, or
    /// the loop was stopped.
    next: CachePadded<AtomicU64>,
    failure: Mutex<Option<TaskFailure<E>>>,
}

impl<E> ChunkCursor<E> {
    fn new(chunks: Chunks) -> Self {
        Self { chunks, next: CachePadded(AtomicU64::new(0)), failure: Mutex::new(None) }
    }

    /// J1. Takes the next chunk; none if all are taken or the loop was stopped.
    ///
    /// A thread ends with its first "none", so `next` passes the number of chunks by at most the number of
    /// threads and cannot wrap, since [`SHARES_MAX`] bounds that number.
    fn take(&self) -> Option<Range<u64>> {
        // Relaxed: the number guards no data. Each goes out once, and none after J2, because all changes of
        // this one word have a total order, the swap in `fail` included.
        self.chunks.chunk(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// J2. Stops the loop: no chunk goes out after this. The first error stays; a panic replaces an error,
    /// since an error must not hide a defect.
    fn fail(&self, failure: TaskFailure<E>) {
        // Relaxed: see `take`. The lock hands the failure over.
        self.next.swap(self.chunks.count(), Ordering::Relaxed);
        let mut first = lock(&self.failure);
        match (&*first, &failure) {
            (None, _) | (Some(TaskFailure::Error(_)), TaskFailure::Panic(_)) => {
                *first = Some(failure);
            }
            (Some(_), _) => {}
        }
    }

    /// J3. Takes the failure out, after every thread of the loop was joined.
    fn take_failure(&self) -> Option<TaskFailure<E>> {
        lock(&self.failure).take()
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    //! Models of protocol J, the cursor of a running loop.
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

    use std::sync::atomic::{AtomicU32 as Plain, Ordering as PlainOrdering};

    use super::{CHUNKS_PER_THREAD, ChunkCursor, SplitParameters, take_chunks};
    use crate::error::TaskFailure;
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
            let split = SplitParameters {
                start: 0,
                end: size,
                align: 1,
                min_chunk_size: 1,
                max_threads: 3,
            };
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
}
