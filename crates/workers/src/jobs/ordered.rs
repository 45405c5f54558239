//! Parallel work with commits in order: items are drawn from an iterator, processed by all threads, and
//! committed one by one in the order in which they were drawn. The caller has one loop and each helper another.
//! Between them are the items in flight, in a [`ReorderRing`]: drawn, being processed, or waiting for their turn
//! to be committed. The ring has one slot an item, and so bounds their number. [`EventCount`] is where helpers
//! sleep while there is nothing to claim.
//!
//! docs/workers.md, protocol O. A lock guards what is in a slot, and nobody waits for it longer than a move
//! takes; the counters only say whose turn it is.

use std::collections::VecDeque;

use super::or_process_budget;
use super::thread_team::{self, HelperBudget};
use crate::counters::CachePadded;
use crate::error::TaskFailure;
use crate::flags::WakeEvent;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Futex, Mutex, Ordering, fence, lock};

/// The most items in flight. It bounds the slots that a run allocates. More items in flight than this would
/// mean that the commit takes the time, and not the work.
pub const MAX_ITEMS_IN_FLIGHT: usize = 1 << 16;

/// Items in flight a thread by default: one being processed, one ready to be processed, and two that are
/// done and wait for an earlier one.
const ITEMS_IN_FLIGHT_PER_THREAD: usize = 4;

/// What the calling thread does beside drawing items and committing results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum CallerRole {
    /// It processes items, too, when it has nothing to commit and may draw no more.
    #[default]
    Works,
    /// It sleeps instead, so that a commit never waits for an item that the caller is busy with. For items
    /// that take long, under a tight bound. If no helper can be started, the caller works after all.
    CommitsOnly,
}

/// A pipeline that processes items in parallel and commits the results in order.
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
#[must_use = "nothing runs until `run` is called"]
pub struct OrderedPipeline<'h> {
    max_threads: Option<usize>,
    max_in_flight: Option<usize>,
    max_in_flight_bytes: Option<u64>,
    caller_role: CallerRole,
    helpers: Option<&'h HelperBudget>,
}

/// How a pipeline was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PipelineReport {
    /// Threads that took part, the caller included.
    pub threads: usize,
    /// Items committed.
    pub items: u64,
}

impl<'h> OrderedPipeline<'h> {
    /// A pipeline that uses all CPUs of the budget, with four items in flight a thread.
    pub const fn new() -> Self {
        Self {
            max_threads: None,
            max_in_flight: None,
            max_in_flight_bytes: None,
            caller_role: CallerRole::Works,
            helpers: None,
        }
    }

    /// Sets the largest number of threads that process items; a caller that works is one of them. 0 counts as
    /// 1. With 1 and [`CallerRole::Works`] the run is a plain loop. Default: the size of the budget.
    pub const fn max_threads(mut self, max_threads: usize) -> Self {
        self.max_threads = Some(max_threads);
        self
    }

    /// Sets the most items in flight: drawn and not yet committed. This bounds the memory of items and
    /// results, and the threads of use. From 1 to [`MAX_ITEMS_IN_FLIGHT`]; a number outside counts as the
    /// nearer bound. With 1 the run is a plain loop. Default: four a thread.
    pub const fn max_in_flight(mut self, items: usize) -> Self {
        self.max_in_flight = Some(items);
        self
    }

    /// Sets the most bytes in flight, as [`run_with_cost`](Self::run_with_cost) counts them: the costs of all
    /// items in flight sum up to this at most, except that one item alone may cost more. One further item may
    /// have been drawn; it is held back until it fits, and is not counted. Default: no bound.
    pub const fn max_in_flight_bytes(mut self, bytes: u64) -> Self {
        self.max_in_flight_bytes = Some(bytes);
        self
    }

    /// Sets what the calling thread does beside drawing and committing. Default: [`CallerRole::Works`].
    pub const fn caller_role(mut self, role: CallerRole) -> Self {
        self.caller_role = role;
        self
    }

    /// Takes helpers from this budget instead of that of the process.
    pub const fn helpers(mut self, helpers: &'h HelperBudget) -> Self {
        self.helpers = Some(helpers);
        self
    }

    /// Draws every item, processes it and commits the result.
    ///
    /// `items` and `commit` are called on this thread only; `work` on helpers, and on this thread according
    /// to its [`CallerRole`], with a state that `init` makes on each thread before its first item. The upper
    /// bound of `items.size_hint()` may save helpers.
    ///
    /// An iterator that can fail yields results, and `work` returns their errors, so that they take their
    /// place in the order.
    ///
    /// # Errors
    ///
    /// The error that a plain loop would have returned: the first in the order of the items, of `work` or of
    /// `commit`. All items before it are committed. Items behind it may have been drawn and processed, within
    /// the bounds; they are dropped.
    ///
    /// # Panics
    ///
    /// With a panic of `work` at the place in the order where an error would be returned, and with one of
    /// `items` or `commit` at once; in either case after all helpers have ended.
    pub fn run<T: Send, S, R: Send, E: Send>(
        &self,
        items: impl IntoIterator<Item = T>,
        init: impl Fn() -> S + Sync,
        work: impl Fn(&mut S, T) -> Result<R, E> + Sync,
        commit: impl FnMut(R) -> Result<(), E>,
    ) -> Result<PipelineReport, E> {
        self.run_with_cost(items, |_| 0, init, work, commit)
    }

    /// The same with a cost for each item, in bytes, which
    /// [`max_in_flight_bytes`](Self::max_in_flight_bytes) bounds. `cost` is called on this thread,
    /// once at most for each item, when it is drawn.
    ///
    /// ```
    /// use ferrofs_workers::jobs::OrderedPipeline;
    ///
    /// let files = [vec![1_u8; 3000], vec![2; 500], vec![3; 9000]];
    /// let mut bytes = 0;
    /// let pipeline = OrderedPipeline::new().max_in_flight_bytes(4096);
    /// let report = pipeline.run_with_cost(
    ///     files,
    ///     |file| file.len() as u64,
    ///     || (),
    ///     |(), file| Ok::<_, std::convert::Infallible>(file.len()),
    ///     |length| {
    ///         bytes += length;
    ///         Ok(())
    ///     },
    /// );
    /// assert!(report.is_ok_and(|report| report.items == 3));
    /// assert_eq!(bytes, 12_500);
    /// ```
    ///
    /// # Errors
    ///
    /// As [`OrderedPipeline::run`].
    ///
    /// # Panics
    ///
    /// As [`OrderedPipeline::run`].
    pub fn run_with_cost<T: Send, S, R: Send, E: Send>(
        &self,
        items: impl IntoIterator<Item = T>,
        cost: impl Fn(&T) -> u64,
        init: impl Fn() -> S + Sync,
        work: impl Fn(&mut S, T) -> Result<R, E> + Sync,
        commit: impl FnMut(R) -> Result<(), E>,
    ) -> Result<PipelineReport, E> {
        let items = items.into_iter();
        let helpers = or_process_budget(self.helpers);
        let all = || helpers.map_or(1, HelperBudget::total);
        let max_threads = self.max_threads.unwrap_or_else(all).max(1);
        let max_in_flight = self
            .max_in_flight
            .unwrap_or_else(|| max_threads.saturating_mul(ITEMS_IN_FLIGHT_PER_THREAD))
            .min(items.size_hint().1.unwrap_or(usize::MAX))
            .clamp(1, MAX_ITEMS_IN_FLIGHT);
        let wanted = match self.caller_role {
            _ if max_in_flight == 1 => 0,
            CallerRole::Works => max_threads.min(max_in_flight) - 1,
            CallerRole::CommitsOnly => max_threads.min(max_in_flight),
        };
        let tokens = helpers.map(|helpers| helpers.take(wanted as u64));
        if tokens.as_ref().is_none_or(|tokens| tokens.len() == 0) {
            return run_alone(items, init, work, commit);
        }
        let ring = ReorderRing::new(max_in_flight);
        let run = PipelineRun { ring: &ring, init: &init, work: &work };
        let bound = InFlightBytes::new(self.max_in_flight_bytes);
        let own = |helpers| {
            let role = if helpers == 0 { CallerRole::Works } else { self.caller_role };
            run.as_caller(role, ItemSource { items, cost, bound }, commit)
        };
        let (threads, items) = thread_team::run(tokens, None, || run.as_helper(), own);
        items.map(|items| PipelineReport { threads, items })
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

/// What the caller draws from: the items, their costs, and the bound of the costs in flight.
struct ItemSource<I, C> {
    items: I,
    cost: C,
    bound: InFlightBytes,
}

/// The costs of the items in flight. Only the caller changes it, when it publishes and when it commits.
#[derive(Debug)]
struct InFlightBytes {
    max: Option<u64>,
    sum: u64,
    /// By item, oldest first; empty without a bound.
    costs: VecDeque<u64>,
}

impl InFlightBytes {
    const fn new(max: Option<u64>) -> Self {
        Self { max, sum: 0, costs: VecDeque::new() }
    }

    /// Whether an item of this cost may be published beside those in flight.
    fn fits(&self, cost: u64) -> bool {
        // An item alone always fits: otherwise one of more than the bound would never be processed.
        self.max.is_none_or(|max| self.costs.is_empty() || self.sum.saturating_add(cost) <= max)
    }

    fn add(&mut self, cost: u64) {
        if self.max.is_some() {
            self.sum = self.sum.saturating_add(cost);
            self.costs.push_back(cost);
        }
    }

    fn remove_oldest(&mut self) {
        self.sum = self.sum.saturating_sub(self.costs.pop_front().unwrap_or(0));
    }
}

/// What the threads of a run have in common.
struct PipelineRun<'r, T, R, E, I, W> {
    ring: &'r ReorderRing<T, R, E>,
    init: I,
    work: W,
}

impl<T, R, E, I, W> PipelineRun<'_, T, R, E, I, W> {
    /// Processes one item, if there is one to claim.
    fn process_one<S>(&self, state: &mut Option<S>) -> bool
    where
        I: Fn() -> S,
        W: Fn(&mut S, T) -> Result<R, E>,
    {
        let Some((number, item)) = self.ring.claim() else {
            return false;
        };
        let work = || (self.work)(state.get_or_insert_with(&self.init), item);
        self.ring.finish(number, TaskFailure::catch(work));
        true
    }

    /// What a helper does until the ring is closed.
    fn as_helper<S>(&self)
    where
        I: Fn() -> S,
        W: Fn(&mut S, T) -> Result<R, E>,
    {
        let mut state = None;
        while self.process_one(&mut state) || self.ring.wait_for_work() {}
    }

    /// What the caller does. Returns the number of items committed. With [`CallerRole::CommitsOnly`] there is
    /// at least one helper.
    fn as_caller<S, Items: Iterator<Item = T>, Cost: Fn(&T) -> u64>(
        &self,
        role: CallerRole,
        source: ItemSource<Items, Cost>,
        mut commit: impl FnMut(R) -> Result<(), E>,
    ) -> Result<u64, E>
    where
        I: Fn() -> S,
        W: Fn(&mut S, T) -> Result<R, E>,
    {
        // Closed at every way out, a panic of the iterator or of `commit` included: the helpers must end.
        let _close = CloseOnDrop(self.ring);
        let mut feeder = Feeder { ring: self.ring, source, held: None, is_exhausted: false };
        let mut state = None;
        let mut committed = 0;
        loop {
            // Commits first, since they make room; then items for the helpers; then work.
            let result = match self.ring.take_next() {
                Some(result) => result,
                None if feeder.feed() => continue,
                None if role == CallerRole::Works && self.process_one(&mut state) => continue,
                None if self.ring.is_settled() => return Ok(committed),
                None => self.ring.wait_for_next(),
            };
            feeder.source.bound.remove_oldest();
            commit(result.map_err(TaskFailure::into_error)?)?;
            committed += 1;
        }
    }
}

/// The caller's end of the ring where items go in.
struct Feeder<'r, T, R, E, Items, Cost> {
    ring: &'r ReorderRing<T, R, E>,
    source: ItemSource<Items, Cost>,
    /// An item that was drawn and does not fit yet, and its cost.
    held: Option<(T, u64)>,
    is_exhausted: bool,
}

impl<T, R, E, Items: Iterator<Item = T>, Cost: Fn(&T) -> u64> Feeder<'_, T, R, E, Items, Cost> {
    /// Draws an item if there is room, and publishes it if it fits. Returns false if there is nothing to do
    /// before the next commit.
    fn feed(&mut self) -> bool {
        if !self.ring.can_publish() {
            return false;
        }
        if self.held.is_none() && !self.is_exhausted {
            match self.source.items.next() {
                Some(item) => {
                    let cost = (self.source.cost)(&item);
                    self.held = Some((item, cost));
                }
                None => self.is_exhausted = true,
            }
        }
        match self.held.take() {
            Some((item, cost)) if self.source.bound.fits(cost) => {
                self.source.bound.add(cost);
                self.ring.publish(item);
                true
            }
            held => {
                self.held = held;
                false
            }
        }
    }
}

/// Closes the ring when it is dropped.
struct CloseOnDrop<'r, T, R, E>(&'r ReorderRing<T, R, E>);

impl<T, R, E> Drop for CloseOnDrop<'_, T, R, E> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The result of processing an item.
type ItemResult<R, E> = Result<R, TaskFailure<E>>;

/// What is in a slot.
#[derive(Debug)]
enum RingSlot<T, R, E> {
    /// Nothing: not drawn, or being processed.
    Empty,
    /// An item that waits to be claimed.
    Item(T),
    /// A result that waits to be committed.
    Done(ItemResult<R, E>),
}

/// Items between the iterator and the commit, numbered from 0 in the order in which they are drawn.
///
/// `next <= claimed <= published <= next + slots` holds at all times. One thread, the caller, draws and
/// commits; the caller and all helpers claim and finish.
#[derive(Debug)]
struct ReorderRing<T, R, E> {
    slots: Box<[Mutex<RingSlot<T, R, E>>]>,
    /// Items published. Written by the caller.
    published: CachePadded<AtomicU64>,
    /// Items claimed. Written by everyone.
    claimed: CachePadded<AtomicU64>,
    /// The item to be committed next. Written by the caller.
    next: CachePadded<AtomicU64>,
    /// No item is claimed any more: one failed, or the caller is done.
    stopped: AtomicBool,
    /// Where helpers wait for items.
    items_available: EventCount,
    /// Where the caller waits for the item to be committed next.
    next_done: WakeEvent,
}

impl<T, R, E> ReorderRing<T, R, E> {
    /// `slots` is at least 1.
    fn new(slots: usize) -> Self {
        Self {
            slots: (0..slots.max(1)).map(|_| Mutex::new(RingSlot::Empty)).collect(),
            published: CachePadded(AtomicU64::new(0)),
            claimed: CachePadded(AtomicU64::new(0)),
            next: CachePadded(AtomicU64::new(0)),
            stopped: AtomicBool::new(false),
            items_available: EventCount::new(),
            next_done: WakeEvent::new(),
        }
    }

    fn slot(&self, number: u64) -> &Mutex<RingSlot<T, R, E>> {
        #[allow(clippy::cast_possible_truncation, reason = "less than the number of slots")]
        let index = (number % self.slots.len() as u64) as usize;
        &self.slots[index]
    }

    /// Puts something into the slot of item `number` and returns what was there.
    fn exchange(&self, number: u64, content: RingSlot<T, R, E>) -> RingSlot<T, R, E> {
        std::mem::replace(&mut *lock(self.slot(number)), content)
    }

    /// Whether another item may be published. Only the caller asks.
    fn can_publish(&self) -> bool {
        // Relaxed, both: written by this thread.
        let pending = self.published.load(Ordering::Relaxed) - self.next.load(Ordering::Relaxed);
        pending < self.slots.len() as u64 && !self.is_stopped()
    }

    /// Whether every item that was published is committed. Only the caller asks.
    fn is_settled(&self) -> bool {
        // Relaxed, both: written by this thread.
        self.published.load(Ordering::Relaxed) == self.next.load(Ordering::Relaxed)
    }

    /// O1. Publishes an item for which `can_publish` was true. Only the caller does.
    fn publish(&self, item: T) {
        let number = self.published.load(Ordering::Relaxed); // written by this thread
        self.exchange(number, RingSlot::Item(item));
        // Release: pairs with the load in `claim`; the claimer finds the item in its slot.
        self.published.store(number + 1, Ordering::Release);
        self.items_available.notify_one();
    }

    /// O2. Takes the oldest item that nobody has; none if there is none, or after a stop.
    fn claim(&self) -> Option<(u64, T)> {
        // Relaxed: the exchange below decides.
        let mut number = self.claimed.load(Ordering::Relaxed);
        while self.is_claimable(number) {
            // Relaxed, both: each item is claimed once and in order, because all changes of this one word
            // have a total order. `published` and the lock hand the item over.
            let claim = self.claimed.compare_exchange_weak(
                number,
                number + 1,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            match claim {
                Err(now) => number = now,
                Ok(_) => {
                    return match self.exchange(number, RingSlot::Empty) {
                        RingSlot::Item(item) => Some((number, item)),
                        // Nobody else takes an item out of its slot.
                        RingSlot::Empty | RingSlot::Done(_) => None,
                    };
                }
            }
        }
        None
    }

    fn is_claimable(&self, number: u64) -> bool {
        // Acquire: pairs with the release in `publish`.
        number < self.published.load(Ordering::Acquire) && !self.is_stopped()
    }

    /// O3. Stores the result of item `number`, and wakes the caller if that item is the one to be committed
    /// next. A failure stops the ring first: all items before it are claimed, so those are finished, and none
    /// behind it begins any more.
    fn finish(&self, number: u64, result: ItemResult<R, E>) {
        if result.is_err() {
            self.stop();
        }
        self.exchange(number, RingSlot::Done(result));
        // Relaxed: the lock of the slot orders this with O4 and O5. If the caller looked into the slot before
        // the result came, then what it wrote to `next` before that look is seen here.
        if self.next.load(Ordering::Relaxed) == number {
            self.next_done.set();
        }
    }

    /// O4. The result of the item to be committed next, if it is there. Only the caller does.
    fn take_next(&self) -> Option<ItemResult<R, E>> {
        let number = self.next.load(Ordering::Relaxed); // written by this thread
        let mut slot = lock(self.slot(number));
        match std::mem::replace(&mut *slot, RingSlot::Empty) {
            RingSlot::Done(result) => {
                drop(slot);
                // Relaxed: see `finish`.
                self.next.store(number + 1, Ordering::Relaxed);
                Some(result)
            }
            other => {
                *slot = other;
                None
            }
        }
    }

    /// O5. Waits for the item to be committed next. Only the caller does, and only while it is not settled:
    /// the item is published, and a thread has claimed it or a helper will.
    fn wait_for_next(&self) -> ItemResult<R, E> {
        loop {
            self.next_done.clear();
            if let Some(result) = self.take_next() {
                return result;
            }
            self.next_done.wait();
        }
    }

    /// O6. Waits, on a helper, until there may be an item to claim; false after a stop.
    fn wait_for_work(&self) -> bool {
        self.items_available.wait(|| {
            // Relaxed: an old number costs a useless look at most.
            self.is_stopped() || self.is_claimable(self.claimed.load(Ordering::Relaxed))
        });
        !self.is_stopped()
    }

    /// Whether nothing more is claimed.
    fn is_stopped(&self) -> bool {
        // Relaxed: it hands nothing over; that no item is missed follows from the order of claims.
        self.stopped.load(Ordering::Relaxed)
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed); // see `is_stopped`
    }

    /// O8. Ends the loops of all helpers.
    fn close(&self) {
        self.stop();
        self.items_available.notify_all();
    }
}

/// A count of notifications that threads can sleep on. Many may wait, one thread notifies, and that costs a
/// system call only if somebody waits. It guards nothing itself: the waiter brings the condition.
///
/// docs/workers.md, steps O6 and O7.
#[derive(Debug)]
struct EventCount {
    /// Changed by every notification, so that a waiter that looked before it does not fall asleep after it.
    epoch: CachePadded<Futex>,
    /// How many may sleep.
    waiters: CachePadded<AtomicU32>,
}

impl EventCount {
    fn new() -> Self {
        Self { epoch: CachePadded(Futex::new(0)), waiters: CachePadded(AtomicU32::new(0)) }
    }

    /// O6. Sleeps unless `has_cause` is true already. It may return without cause: callers look again.
    fn wait(&self, has_cause: impl Fn() -> bool) {
        // Acquire: pairs with the release in `advance`; the waiter sees the cause, too.
        let seen = self.epoch.word.load(Ordering::Acquire);
        self.waiters.fetch_add(1, Ordering::Relaxed);
        // The look at the cause comes after the entry in `waiters`: pairs with the fence in `advance`. Either
        // the notifier sees that somebody waits, or the cause is seen here.
        fence(Ordering::SeqCst);
        if !has_cause() {
            self.epoch.wait(seen);
        }
        // Relaxed: a number that is too high for a moment costs the notifier a system call, no more.
        self.waiters.fetch_sub(1, Ordering::Relaxed);
    }

    /// O7. Lets one waiter look again, after the cause was made visible.
    fn notify_one(&self) {
        if self.advance() {
            self.epoch.wake_one();
        }
    }

    /// O7. Lets all waiters look again.
    fn notify_all(&self) {
        if self.advance() {
            self.epoch.wake_all();
        }
    }

    /// Whether anybody is there to be woken.
    fn advance(&self) -> bool {
        // Pairs with the fence in `wait`.
        fence(Ordering::SeqCst);
        if self.waiters.load(Ordering::Relaxed) == 0 {
            return false;
        }
        // Release: pairs with the acquire in `wait`.
        self.epoch.word.fetch_add(1, Ordering::Release);
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn after_a_failure_nothing_is_begun_and_what_was_begun_is_committed() {
        let ring: ReorderRing<char, u8, &str> = ReorderRing::new(4);
        for item in ['a', 'b', 'c'] {
            assert!(ring.can_publish());
            ring.publish(item);
        }
        assert_eq!((ring.claim(), ring.claim()), (Some((0, 'a')), Some((1, 'b'))));
        ring.finish(1, Err(TaskFailure::Error("failed")));
        assert_eq!(ring.claim(), None);
        assert!(!ring.can_publish() && ring.take_next().is_none());
        ring.finish(0, Ok(7));
        assert!(matches!(ring.take_next(), Some(Ok(7))));
        assert!(matches!(ring.wait_for_next(), Err(TaskFailure::Error("failed"))));
    }

    #[test]
    fn a_full_ring_has_room_again_after_a_commit() {
        let ring: ReorderRing<u8, u8, ()> = ReorderRing::new(1);
        for item in 0..5 {
            ring.publish(item);
            assert!(!ring.can_publish() && !ring.is_settled());
            assert_eq!(ring.claim(), Some((u64::from(item), item)));
            ring.finish(u64::from(item), Ok(item));
            assert!(matches!(ring.take_next(), Some(Ok(result)) if result == item));
            assert!(ring.can_publish() && ring.is_settled());
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    //! Models of protocol O, with the loops that ship: a lost wake-up is a deadlock, which loom reports.
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

    use super::{CallerRole, InFlightBytes, ItemSource, PipelineRun, ReorderRing};
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
        fn run(
            self,
            items: &[u64],
            commit: impl FnMut(u64) -> Result<(), u64>,
        ) -> Result<u64, u64> {
            let work = |(): &mut (), item: u64| if item >= BAD { Err(item) } else { Ok(item * 2) };
            let ring = Arc::new(Doubled::new(self.slots));
            let helpers: Vec<_> = (0..self.helpers)
                .map(|_| {
                    let ring = Arc::clone(&ring);
                    thread::spawn(move || {
                        PipelineRun { ring: &ring, init: || (), work }.as_helper()
                    })
                })
                .collect();
            let run = PipelineRun { ring: &ring, init: || (), work };
            let (items, bound) = (items.iter().copied(), InFlightBytes::new(self.max_bytes));
            let outcome = run.as_caller(
                self.role,
                ItemSource { items, cost: |item: &u64| *item, bound },
                commit,
            );
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
}
