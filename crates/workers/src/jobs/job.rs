//! A job over a range of numbers: it is cut into pieces by the rule in [`super::chunk`] and worked off
//! by the caller and its helpers. This owns the settings and the order of the steps; the state of a
//! running job is [`Tickets`], its threads are a [`Crew`].

use std::ops::Range;

use super::chunk::{PIECES_A_THREAD, Shape};
use super::helper_budget::{Helpers, Placement};
use super::starting::Starting;
use super::tickets::{Record, Tickets};
use super::{Crew, chosen, crew};
use crate::{Error, ErrorKind};

/// A range of work, in units that the caller chooses: bytes, pages, blocks, indices.
///
/// Without settings it is cut for all CPUs of the budget, into pieces of one unit or more.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use ferrofs_workers::jobs::Job;
///
/// let numbers: Vec<u64> = (0..100_000).collect();
/// let sum = AtomicU64::new(0);
/// let report = Job::over(0..100_000).min_chunk(1000).run(|piece| {
///     let piece = &numbers[piece.start as usize..piece.end as usize];
///     sum.fetch_add(piece.iter().sum(), Ordering::Relaxed);
///     Ok::<(), std::convert::Infallible>(())
/// });
/// assert_eq!(sum.into_inner(), 4_999_950_000);
/// assert!(report.is_ok_and(|report| report.pieces >= 1));
/// ```
#[derive(Debug, Clone, Copy)]
#[must_use = "a job does nothing until it is run"]
pub struct Job<'h> {
    start: u64,
    end: u64,
    align: u64,
    min_chunk: u64,
    max_threads: Option<usize>,
    pieces_a_thread: u64,
    placement: Placement,
    helpers: Option<&'h Helpers>,
    starting: Option<&'h Starting>,
}

/// How a job was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Threads that took part, the caller among them. A helper counts even if it came too late to
    /// find a piece.
    pub threads: usize,
    /// Calls of the body.
    pub pieces: u64,
    /// Units between two boundaries; the size of the range where it was not cut.
    pub chunk: u64,
    /// Helpers that were bound to the CPUs of one node: [`Placement::ByNode`].
    pub bound: usize,
}

impl<'h> Job<'h> {
    /// A job over `range`. An empty range, also one that ends before it starts, calls nothing.
    pub const fn over(range: Range<u64>) -> Self {
        Self {
            start: range.start,
            end: if range.end > range.start { range.end } else { range.start },
            align: 1,
            min_chunk: 1,
            max_threads: None,
            pieces_a_thread: PIECES_A_THREAD,
            placement: Placement::Anywhere,
            helpers: None,
            starting: None,
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

    /// The chunk is a multiple of `align` units, and so is every boundary between two pieces, counted
    /// from 0. 0 counts as 1. 1 without this setting.
    pub const fn align(mut self, align: u64) -> Self {
        self.align = align;
        self
    }

    /// No chunk has fewer units than `min_chunk`; a range of less than two of them is not cut. The
    /// first piece and the last can be shorter. 0 counts as 1. 1 without this setting.
    pub const fn min_chunk(mut self, min_chunk: u64) -> Self {
        self.min_chunk = min_chunk;
        self
    }

    /// Threads at most, the caller among them. With 1 the range is not cut: the body is called once.
    /// With 0, too, the caller is alone, but the range is cut as for one thread, into about four
    /// pieces. Without this setting: the size of the budget, so a CPU each.
    pub const fn max_threads(mut self, max_threads: usize) -> Self {
        self.max_threads = Some(max_threads);
        self
    }

    /// Pieces that each thread gets on the average, where `min_chunk` and `align` allow. 4 without
    /// this setting, as in padata. With 32 a piece that takes eight times as long as the others costs
    /// at most 1.3 times the ideal, wherever it lies (docs/benchmarks.md). 0 counts as 1.
    pub const fn pieces_a_thread(mut self, pieces: u64) -> Self {
        self.pieces_a_thread = pieces;
        self
    }

    /// Where helpers run. Without this setting: [`Placement::Anywhere`].
    pub const fn placement(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// Takes helpers from this budget and not from that of the process.
    pub const fn helpers(mut self, helpers: &'h Helpers) -> Self {
        self.helpers = Some(helpers);
        self
    }

    /// Says in `starting`, while it runs, whether some helper has not begun.
    pub(crate) const fn tell_starting(mut self, starting: &'h Starting) -> Self {
        self.starting = Some(starting);
        self
    }

    /// Calls `body` once for every piece of the range, on this thread and on helpers, and returns
    /// when all calls have returned.
    ///
    /// # Errors
    ///
    /// The first error in time. No piece is begun after it; pieces that were begun are finished.
    ///
    /// # Panics
    ///
    /// With the panic of a body, once all threads are at rest; it stops the job as an error does,
    /// and goes before one.
    pub fn run<E: Send>(
        &self,
        body: impl Fn(Range<u64>) -> Result<(), E> + Sync,
    ) -> Result<Report, E> {
        self.run_with(|| (), |(), piece| body(piece))
    }

    /// The same with a state of its own for every thread, made by `init` on that thread when it has
    /// its first piece, and dropped there.
    ///
    /// # Errors
    ///
    /// As [`Job::run`].
    ///
    /// # Panics
    ///
    /// As [`Job::run`].
    pub fn run_with<S, E: Send>(
        &self,
        init: impl Fn() -> S + Sync,
        body: impl Fn(&mut S, Range<u64>) -> Result<(), E> + Sync,
    ) -> Result<Report, E> {
        let (report, tickets) = self.work_off(Record::Nothing, init, body)?;
        match tickets.and_then(|tickets| tickets.take_failure()) {
            None => Ok(report),
            Some(failure) => Err(failure.into_error()),
        }
    }

    /// The same as [`Job::run`], and if the job fails, `undo` is called on this thread for every piece
    /// whose body returned `Ok`, in ascending order, after all threads are at rest. Not for the piece
    /// that failed: its body cleans up after itself.
    ///
    /// # Errors
    ///
    /// As [`Job::run`], after the undo.
    ///
    /// # Panics
    ///
    /// As [`Job::run`], after the undo; and with a panic of `undo`.
    pub fn run_or_undo<E: Send>(
        &self,
        body: impl Fn(Range<u64>) -> Result<(), E> + Sync,
        undo: impl FnMut(Range<u64>),
    ) -> Result<Report, E> {
        let (report, tickets) = self.work_off(Record::Completed, || (), |(), piece| body(piece))?;
        // A range that was not cut and failed has no completed piece: it ended in the line above.
        let Some(tickets) = tickets else {
            return Ok(report);
        };
        match tickets.take_failure() {
            None => Ok(report),
            Some(failure) => {
                tickets.completed().for_each(undo);
                Err(failure.into_error())
            }
        }
    }

    /// Runs the job. Without tickets the range was empty or went through in one call.
    fn work_off<S, E: Send>(
        &self,
        record: Record,
        init: impl Fn() -> S + Sync,
        body: impl Fn(&mut S, Range<u64>) -> Result<(), E> + Sync,
    ) -> Result<(Report, Option<Tickets<E>>), E> {
        let helpers = chosen(self.helpers);
        let shape = self.shape(helpers);
        let size = shape.size();
        if size == 0 {
            return Ok((Report { threads: 1, pieces: 0, chunk: 0, bound: 0 }, None));
        }
        let wanted = shape.threads();
        if wanted == 1 {
            body(&mut init(), shape.whole())?;
            return Ok((Report { threads: 1, pieces: 1, chunk: size, bound: 0 }, None));
        }
        let tokens = helpers.map(|helpers| helpers.take(wanted.saturating_sub(1)));
        let helping = tokens.as_ref().map_or(0, |tokens| tokens.len());
        let pieces = shape.pieces(helping as u64 + 1, self.pieces_a_thread);
        let tickets = Tickets::new(pieces, record);
        let share = || take_pieces(&tickets, &init, &body);
        let (Crew { threads, bound }, ()) =
            crew::run(tokens, self.placement, self.starting, share, share);
        let report = Report { threads, pieces: pieces.count(), chunk: pieces.chunk(), bound };
        Ok((report, Some(tickets)))
    }

    fn shape(&self, helpers: Option<&Helpers>) -> Shape {
        let all = || helpers.map_or(1, |helpers| helpers.total().max(1));
        Shape {
            start: self.start,
            end: self.end,
            align: self.align,
            min_chunk: self.min_chunk,
            max_threads: self.max_threads.unwrap_or_else(all) as u64,
        }
    }
}

/// What every thread of a job does: piece after piece, until none is left.
pub(super) fn take_pieces<S, E>(
    tickets: &Tickets<E>,
    init: impl Fn() -> S,
    body: impl Fn(&mut S, Range<u64>) -> Result<(), E>,
) {
    let mut state = None;
    while let Some((number, piece)) = tickets.take() {
        let work = || body(state.get_or_insert_with(&init), piece);
        match super::failure::Failure::catch(work) {
            Ok(()) => tickets.complete(number),
            Err(failure) => tickets.fail(failure),
        }
    }
}
