//! Parallel work with commits in order: items are drawn from an iterator, worked on by all threads,
//! and committed one by one in the order in which they were drawn. This owns the settings and the two
//! loops, that of the caller and that of a helper; the items on their way are in a [`ReorderRing`].
//!
//! docs/workers.md, protocol O.

mod event_count;
#[cfg(all(test, loom))]
mod loom_tests;
mod reorder_ring;
#[cfg(all(test, not(loom)))]
mod tests;

use super::helper_budget::{HelperBudget, HelperPlacement};
use super::task_failure::TaskFailure;
use super::{ThreadTeam, chosen, thread_team};
use reorder_ring::ReorderRing;

/// The longest look-ahead. It bounds the slots that a run allocates; more items than this on their way
/// would mean that the commit, and not the work, is what takes the time.
pub const IN_FLIGHT_MAX: usize = 1 << 16;

/// Items on their way for each thread, where nothing else is asked for: one that is worked on, one
/// that is next, and two that are done while an earlier one still takes its time.
const IN_FLIGHT_PER_THREAD: usize = 4;

/// Work on items, with commits in order.
///
/// The result is that of a plain loop: `for item in items { commit(work(&mut state, item)?)? }`.
///
/// ```
/// use ferrofs_workers::jobs::OrderedPipeline;
///
/// let mut output = Vec::new();
/// let report = OrderedPipeline::new().max_in_flight(16).run(
///     0..100_u64,
///     || (),
///     |(), number| Ok::<u64, std::convert::Infallible>(number * number),
///     |square| {
///         output.push(square);
///         Ok(())
///     },
/// );
/// assert_eq!(output, (0..100).map(|number| number * number).collect::<Vec<_>>());
/// assert!(report.is_ok_and(|report| report.items == 100));
/// ```
#[derive(Debug, Clone, Copy, Default)]
#[must_use = "nothing is done until it is run"]
pub struct OrderedPipeline<'h> {
    max_threads: Option<usize>,
    max_in_flight: Option<usize>,
    helpers: Option<&'h HelperBudget>,
}

/// How an ordered run was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PipelineReport {
    /// Threads that took part, the caller among them.
    pub threads: usize,
    /// Items committed.
    pub items: u64,
}

impl<'h> OrderedPipeline<'h> {
    /// All CPUs of the budget, and a look-ahead of four items a thread.
    pub const fn new() -> Self {
        Self { max_threads: None, max_in_flight: None, helpers: None }
    }

    /// Threads at most, the caller among them. With 0 and 1 the caller is alone, and the run is a
    /// plain loop.
    pub const fn max_threads(mut self, max_threads: usize) -> Self {
        self.max_threads = Some(max_threads);
        self
    }

    /// Items at most that are drawn and not yet committed: the bound of the memory that items and
    /// results take. From 1 to [`IN_FLIGHT_MAX`]; what is outside counts as the nearer of the two.
    /// No more threads than this can be of use, and with 1 the run is a plain loop.
    pub const fn max_in_flight(mut self, items: usize) -> Self {
        self.max_in_flight = Some(items);
        self
    }

    /// Takes helpers from this budget and not from that of the process.
    pub const fn helpers(mut self, helpers: &'h HelperBudget) -> Self {
        self.helpers = Some(helpers);
        self
    }

    /// Draws every item, works on it and commits what came out.
    ///
    /// `items` and `commit` are called on this thread only; `work` on this thread and on helpers, with
    /// a state that `init` makes on each thread when it has its first item. While the next commit is
    /// not ready this thread draws items, and works on them when the look-ahead is full. The upper
    /// bound of `items.size_hint()` may save helpers.
    ///
    /// # Errors
    ///
    /// The error that a plain loop would have returned: the first in the order of the items, be it of
    /// `work` or of `commit`. All items before it are committed. Items behind it may have been drawn
    /// and worked on, within the look-ahead; they are dropped.
    ///
    /// # Panics
    ///
    /// With a panic of `work` at the place in the order where an error would be returned, and with one
    /// of `items` or `commit` at once; in either case after all helpers are at rest.
    pub fn run<T: Send, S, R: Send, E: Send>(
        &self,
        items: impl IntoIterator<Item = T>,
        init: impl Fn() -> S + Sync,
        work: impl Fn(&mut S, T) -> Result<R, E> + Sync,
        commit: impl FnMut(R) -> Result<(), E>,
    ) -> Result<PipelineReport, E> {
        let items = items.into_iter();
        let helpers = chosen(self.helpers);
        let all = || helpers.map_or(1, HelperBudget::total);
        let max_threads = self.max_threads.unwrap_or_else(all).max(1);
        let max_in_flight = self
            .max_in_flight
            .unwrap_or_else(|| max_threads.saturating_mul(IN_FLIGHT_PER_THREAD))
            .min(items.size_hint().1.unwrap_or(usize::MAX))
            .clamp(1, IN_FLIGHT_MAX);
        let wanted = max_threads.min(max_in_flight) - 1;
        let tokens = helpers.map(|helpers| helpers.take(wanted as u64));
        if tokens.as_ref().is_none_or(|tokens| tokens.len() == 0) {
            return run_alone(items, init, work, commit);
        }
        let reorder_ring = ReorderRing::new(max_in_flight);
        let perform = PipelineRun { reorder_ring: &reorder_ring, init: &init, work: &work };
        let helper = || perform.as_helper();
        let own = || perform.as_caller(items, commit);
        let (ThreadTeam { threads, .. }, outcome) =
            thread_team::run(tokens, HelperPlacement::Anywhere, None, helper, own);
        outcome.map(|items| PipelineReport { threads, items })
    }
}

/// The plain loop.
fn run_alone<T, S, R, E>(
    items: impl Iterator<Item = T>,
    init: impl Fn() -> S,
    work: impl Fn(&mut S, T) -> Result<R, E>,
    mut commit: impl FnMut(R) -> Result<(), E>,
) -> Result<PipelineReport, E> {
    let mut state = None;
    let mut report = PipelineReport { threads: 1, items: 0 };
    for item in items {
        commit(work(state.get_or_insert_with(&init), item)?)?;
        report.items += 1;
    }
    Ok(report)
}

/// What the threads of a run have in common.
struct PipelineRun<'r, T, R, E, I, W> {
    reorder_ring: &'r ReorderRing<T, R, E>,
    init: I,
    work: W,
}

impl<T, R, E, I, W> PipelineRun<'_, T, R, E, I, W> {
    /// Works on one item, if there is one to claim.
    fn work_on_one<S>(&self, state: &mut Option<S>) -> bool
    where
        I: Fn() -> S,
        W: Fn(&mut S, T) -> Result<R, E>,
    {
        let Some((number, item)) = self.reorder_ring.claim() else {
            return false;
        };
        let work = || (self.work)(state.get_or_insert_with(&self.init), item);
        self.reorder_ring.finish(number, TaskFailure::catch(work));
        true
    }

    /// What a helper does until it is sent home.
    fn as_helper<S>(&self)
    where
        I: Fn() -> S,
        W: Fn(&mut S, T) -> Result<R, E>,
    {
        let mut state = None;
        while self.work_on_one(&mut state) || self.reorder_ring.wait_for_work() {}
    }

    /// What the caller does; the number of items committed.
    fn as_caller<S>(
        &self,
        items: impl Iterator<Item = T>,
        mut commit: impl FnMut(R) -> Result<(), E>,
    ) -> Result<u64, E>
    where
        I: Fn() -> S,
        W: Fn(&mut S, T) -> Result<R, E>,
    {
        // Closed at every way out, a panic of `items` or `commit` too: the helpers must go home.
        let _closing = CloseOnDrop(self.reorder_ring);
        let mut items = items.fuse();
        let mut is_drawn_out = false;
        let mut state = None;
        let mut committed = 0;
        loop {
            // Commits first, since they make room; then items for the helpers; then work.
            let outcome = match self.reorder_ring.take_next() {
                Some(outcome) => outcome,
                None if !is_drawn_out && self.reorder_ring.has_room() => {
                    match items.next() {
                        Some(item) => self.reorder_ring.publish(item),
                        None => is_drawn_out = true,
                    }
                    continue;
                }
                None if self.work_on_one(&mut state) => continue,
                None if self.reorder_ring.is_settled() => return Ok(committed),
                None => self.reorder_ring.wait_for_next(),
            };
            commit(outcome.map_err(TaskFailure::into_error)?)?;
            committed += 1;
        }
    }
}

/// Closes the reorder_ring when it is dropped.
struct CloseOnDrop<'r, T, R, E>(&'r ReorderRing<T, R, E>);

impl<T, R, E> Drop for CloseOnDrop<'_, T, R, E> {
    fn drop(&mut self) {
        self.0.close();
    }
}
