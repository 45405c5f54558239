//! A job over a range of numbers: it is cut into chunks by the rule in [`super::split`] and worked off
//! by the caller and its helpers. This owns the settings and the order of the steps; the state of a
//! running job is [`ChunkCursor`], its threads are a [`ThreadTeam`].

use std::ops::Range;

use super::chunk_cursor::{ChunkCursor, Record};
use super::helper_budget::{HelperBudget, HelperPlacement};
use super::pending_starts::PendingStarts;
use super::split::{CHUNKS_PER_THREAD, SplitParameters};
use super::{ThreadTeam, chosen, thread_team};
use crate::{Error, ErrorKind};

/// A range of work, in units that the caller chooses: bytes, pages, blocks, indices.
///
/// Without settings it is cut for all CPUs of the budget, into chunks of one unit or more.
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
#[must_use = "a job does nothing until it is run"]
pub struct ParallelFor<'h> {
    start: u64,
    end: u64,
    align: u64,
    min_chunk_size: u64,
    max_threads: Option<usize>,
    chunks_per_thread: u64,
    placement: HelperPlacement,
    helpers: Option<&'h HelperBudget>,
    pending_starts: Option<&'h PendingStarts>,
}

/// How a job was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParallelForReport {
    /// Threads that took part, the caller among them. A helper counts even if it came too late to
    /// find a chunk.
    pub threads: usize,
    /// Calls of the body.
    pub chunks: u64,
    /// Units between two boundaries; the size of the range where it was not cut.
    pub chunk_size: u64,
    /// HelperBudget that were bound to the CPUs of one node: [`HelperPlacement::ByNode`].
    pub bound: usize,
}

impl<'h> ParallelFor<'h> {
    /// A job over `range`. An empty range, also one that ends before it starts, calls nothing.
    pub const fn over(range: Range<u64>) -> Self {
        Self {
            start: range.start,
            end: if range.end > range.start { range.end } else { range.start },
            align: 1,
            min_chunk_size: 1,
            max_threads: None,
            chunks_per_thread: CHUNKS_PER_THREAD,
            placement: HelperPlacement::Anywhere,
            helpers: None,
            pending_starts: None,
        }
    }

    /// A job over the `size` units from `start` on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidSetting`] if the range ends behind `u64::MAX`; the limit it names is the
    /// largest size from there.
    pub fn from_start(start: u64, size: u64) -> Result<Self, Error> {
        let room = u64::MAX - start;
        start.checked_add(size).map(|end| Self::over(start..end)).ok_or_else(|| {
            Error::new(ErrorKind::InvalidSetting, "units of a job").with_amount(size, room)
        })
    }

    /// The chunk_size is a multiple of `align` units, and so is every boundary between two chunks, counted
    /// from 0. 0 counts as 1. 1 without this setting.
    pub const fn align(mut self, align: u64) -> Self {
        self.align = align;
        self
    }

    /// No chunk_size has fewer units than `min_chunk_size`; a range of less than two of them is not cut. The
    /// first chunk and the last can be shorter. 0 counts as 1. 1 without this setting.
    pub const fn min_chunk_size(mut self, min_chunk_size: u64) -> Self {
        self.min_chunk_size = min_chunk_size;
        self
    }

    /// Threads at most, the caller among them. With 1 the range is not cut: the body is called once.
    /// With 0, too, the caller is alone, but the range is cut as for one thread, into about four
    /// chunks. Without this setting: the size of the budget, so a CPU each.
    pub const fn max_threads(mut self, max_threads: usize) -> Self {
        self.max_threads = Some(max_threads);
        self
    }

    /// Chunks that each thread gets on the average, where `min_chunk_size` and `align` allow. 4 without
    /// this setting, as in padata. With 32 a chunk that takes eight times as long as the others costs
    /// at most 1.3 times the ideal, wherever it lies (docs/benchmarks.md). 0 counts as 1.
    pub const fn chunks_per_thread(mut self, chunks: u64) -> Self {
        self.chunks_per_thread = chunks;
        self
    }

    /// Where helpers run. Without this setting: [`HelperPlacement::Anywhere`].
    pub const fn placement(mut self, placement: HelperPlacement) -> Self {
        self.placement = placement;
        self
    }

    /// Takes helpers from this budget and not from that of the process.
    pub const fn helpers(mut self, helpers: &'h HelperBudget) -> Self {
        self.helpers = Some(helpers);
        self
    }

    /// Says in `pending_starts`, while it runs, whether some helper has not begun.
    pub(crate) const fn report_pending_starts(mut self, pending_starts: &'h PendingStarts) -> Self {
        self.pending_starts = Some(pending_starts);
        self
    }

    /// Calls `body` once for every chunk of the range, on this thread and on helpers, and returns
    /// when all calls have returned.
    ///
    /// # Errors
    ///
    /// The first error in time. No chunk is begun after it; chunks that were begun are finished.
    ///
    /// # Panics
    ///
    /// With the panic of a body, once all threads are at rest; it stops the job as an error does,
    /// and goes before one.
    pub fn run<E: Send>(
        &self,
        body: impl Fn(Range<u64>) -> Result<(), E> + Sync,
    ) -> Result<ParallelForReport, E> {
        self.run_with(|| (), |(), chunk| body(chunk))
    }

    /// The same with a state of its own for every thread, made by `init` on that thread when it has
    /// its first chunk, and dropped there.
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
        let (report, chunk_cursor) = self.work_off(Record::Nothing, init, body)?;
        match chunk_cursor.and_then(|chunk_cursor| chunk_cursor.take_failure()) {
            None => Ok(report),
            Some(failure) => Err(failure.into_error()),
        }
    }

    /// The same as [`ParallelFor::run`], and if the job fails, `undo` is called on this thread for every chunk
    /// whose body returned `Ok`, in ascending order, after all threads are at rest. Not for the chunk
    /// that failed: its body cleans up after itself.
    ///
    /// # Errors
    ///
    /// As [`ParallelFor::run`], after the undo.
    ///
    /// # Panics
    ///
    /// As [`ParallelFor::run`], after the undo; and with a panic of `undo`.
    pub fn run_or_undo<E: Send>(
        &self,
        body: impl Fn(Range<u64>) -> Result<(), E> + Sync,
        undo: impl FnMut(Range<u64>),
    ) -> Result<ParallelForReport, E> {
        let (report, chunk_cursor) =
            self.work_off(Record::Completed, || (), |(), chunk| body(chunk))?;
        // A range that was not cut and failed has no completed chunk: it ended in the line above.
        let Some(chunk_cursor) = chunk_cursor else {
            return Ok(report);
        };
        match chunk_cursor.take_failure() {
            None => Ok(report),
            Some(failure) => {
                chunk_cursor.completed().for_each(undo);
                Err(failure.into_error())
            }
        }
    }

    /// Runs the job. Without chunk_cursor the range was empty or went through in one call.
    fn work_off<S, E: Send>(
        &self,
        record: Record,
        init: impl Fn() -> S + Sync,
        body: impl Fn(&mut S, Range<u64>) -> Result<(), E> + Sync,
    ) -> Result<(ParallelForReport, Option<ChunkCursor<E>>), E> {
        let helpers = chosen(self.helpers);
        let shape = self.shape(helpers);
        let size = shape.size();
        if size == 0 {
            return Ok((
                ParallelForReport { threads: 1, chunks: 0, chunk_size: 0, bound: 0 },
                None,
            ));
        }
        let wanted = shape.threads();
        if wanted == 1 {
            body(&mut init(), shape.whole())?;
            return Ok((
                ParallelForReport { threads: 1, chunks: 1, chunk_size: size, bound: 0 },
                None,
            ));
        }
        let tokens = helpers.map(|helpers| helpers.take(wanted.saturating_sub(1)));
        let helping = tokens.as_ref().map_or(0, |tokens| tokens.len());
        let chunks = shape.chunks(helping as u64 + 1, self.chunks_per_thread);
        let chunk_cursor = ChunkCursor::new(chunks, record);
        let share = || take_chunks(&chunk_cursor, &init, &body);
        let (ThreadTeam { threads, bound }, ()) =
            thread_team::run(tokens, self.placement, self.pending_starts, share, share);
        let report = ParallelForReport {
            threads,
            chunks: chunks.count(),
            chunk_size: chunks.chunk_size(),
            bound,
        };
        Ok((report, Some(chunk_cursor)))
    }

    fn shape(&self, helpers: Option<&HelperBudget>) -> SplitParameters {
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

/// What every thread of a job does: chunk after chunk, until none is left.
pub(super) fn take_chunks<S, E>(
    chunk_cursor: &ChunkCursor<E>,
    init: impl Fn() -> S,
    body: impl Fn(&mut S, Range<u64>) -> Result<(), E>,
) {
    let mut state = None;
    while let Some((number, chunk)) = chunk_cursor.take() {
        let work = || body(state.get_or_insert_with(&init), chunk);
        match super::task_failure::TaskFailure::catch(work) {
            Ok(()) => chunk_cursor.complete(number),
            Err(failure) => chunk_cursor.fail(failure),
        }
    }
}
