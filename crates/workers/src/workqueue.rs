//! The threaded work queue: requests from one submitter to many workers, without a lock, a contended cache line
//! or an allocation once it runs.
//!
//! Slots are allocated once and reused. Each worker has a few slots of its own, and two words: the submitter
//! turns a slot's bit in one of them when it has filled the slot, and the worker turns the bit in the other when
//! it is done. Equal bits mean that the slot is the submitter's. A wake-up costs a system call only if the
//! worker sleeps. There is one submitter by type: every step takes `&mut self`. The submitter works, too: it
//! handles the next request itself if all workers that have a CPU are busy, and while it waits for all of them
//! it handles what nobody has begun.
//!
//! ```
//! use ferrofs_workers::workqueue::{Handler, RequestOutcome, WorkQueue, WorkQueueSettings};
//!
//! struct Square;
//! impl Handler for Square {
//!     type Request = u64;
//!     fn handle(&mut self, request: &mut u64) {
//!         *request *= *request;
//!     }
//! }
//!
//! let mut sum = 0;
//! let on_done = |request: &mut u64, outcome| {
//!     assert_eq!(outcome, RequestOutcome::Done);
//!     sum += *request;
//! };
//! let settings = WorkQueueSettings::new("square");
//! let mut queue = WorkQueue::new(&settings, || 0, || Ok(Square), on_done)?;
//! for number in 1..=10 {
//!     let mut slot = queue.reserve_or_inline();
//!     *slot.request() = number;
//!     slot.submit();
//! }
//! queue.wait();
//! drop(queue);
//! assert_eq!(sum, 385);
//! # Ok::<(), ferrofs_workers::Error>(())
//! ```
//!
//! This file has the submitter and the loop of a worker; `worker_queue` is what they share. docs/workers.md,
//! protocol Q.

mod settings;
#[cfg(all(test, not(loom)))]
mod tests;
mod worker_queue;

use crate::Error;
use crate::counters::{CachePadded, Counter, HistogramSnapshot};
use crate::error::{CallOutcome, catch_panic};
use crate::flags::WakeEvent;
use crate::sync::{Arc, Instant, PlainArc, pause};
use crate::thread::{OwnedThread, ThreadOptions, start};

pub use settings::{ActiveWorkers, DispatchPolicy, WorkQueueSettings};

use settings::ResolvedSettings;
use worker_queue::{QueueCounters, SlotBody, SubmitterEnd, WorkerEnd};

/// Requests that wake no worker are timed once in this many, so that reading the clock twice does not become part
/// of the cost of a short request. Requests that wake a worker are always timed.
const TIMED_ONE_IN: u64 = 16;

/// Handles requests on one thread. Every worker makes one of its own, on its own thread, at its first request,
/// and the submitter makes one when it first handles a request itself: codec contexts and scratch memory belong
/// here.
pub trait Handler {
    /// What a slot holds; made once for each slot and reused.
    type Request: Send + 'static;

    /// Handles one request and leaves the result in it. A panic ends this request only
    /// ([`RequestOutcome::Panicked`]); the handler is then dropped and a new one made.
    fn handle(&mut self, request: &mut Self::Request);
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestOutcome {
    /// The handler returned.
    Done,
    /// The handler panicked; the request holds whatever it had reached.
    Panicked,
    /// No handler could be made, so nobody looked at the request; the next request tries again.
    NoHandler,
}

/// Says that no handler could be made. The function that makes handlers reports the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoHandler;

/// Preallocated requests from one submitter to many workers. See the [module](self).
pub struct WorkQueue<H: Handler, D> {
    settings: ResolvedSettings,
    workers: Vec<QueueWorker<H::Request>>,
    selector: WorkerSelector,
    /// A slot that no worker sees, for requests that the submitter handles itself.
    inline_slot: SlotBody<H::Request>,
    handler: HandlerCell<H>,
    finished: Arc<CachePadded<WakeEvent>>,
    on_done: D,
    counters: SubmitterCounters,
}

/// A worker as the submitter sees it.
#[derive(Debug)]
struct QueueWorker<R> {
    end: SubmitterEnd<R>,
    thread: WorkerThread,
}

/// The thread of a worker, which starts with the worker's first request.
#[derive(Debug)]
enum WorkerThread {
    NotStarted,
    Running(#[expect(dead_code, reason = "joined when dropped")] OwnedThread),
    /// The system gave none; the worker is not used again.
    Refused,
}

#[derive(Debug, Default)]
struct SubmitterCounters {
    submitted: Counter,
    inline: Counter,
    helped: Counter,
    panics: Counter,
    wakes: Counter,
    waits: Counter,
    refused: Counter,
}

/// Where a slot is: a worker and the number of its slot, or the submitter's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SlotLocation {
    Worker { worker: usize, slot: usize },
    Inline,
}

impl<H, D> WorkQueue<H, D>
where
    H: Handler + 'static,
    D: FnMut(&mut H::Request, RequestOutcome),
{
    /// A queue without threads yet: each worker starts with its first request.
    ///
    /// `request` makes the content of a slot, once for each. `make` makes a handler, on the thread that will use
    /// it. `on_done` is called exactly once for each request that was submitted and waited for, on the thread
    /// that holds the queue, in no particular order.
    ///
    /// # Errors
    ///
    /// [`InvalidSetting`](crate::ErrorKind::InvalidSetting) if a number of `settings` is outside its range.
    pub fn new(
        settings: &WorkQueueSettings,
        mut request: impl FnMut() -> H::Request,
        make: impl Fn() -> Result<H, NoHandler> + Send + Sync + 'static,
        on_done: D,
    ) -> Result<Self, Error> {
        let settings = settings.resolve()?;
        let worker = |_| QueueWorker {
            end: SubmitterEnd::new(settings.slots, &mut request),
            thread: WorkerThread::NotStarted,
        };
        Ok(Self {
            workers: (0..settings.workers).map(worker).collect(),
            selector: WorkerSelector::new(),
            inline_slot: SlotBody::new(request()),
            handler: HandlerCell::new(PlainArc::new(make)),
            finished: Arc::new(CachePadded(WakeEvent::new())),
            on_done,
            counters: SubmitterCounters::default(),
            settings,
        })
    }

    /// A free slot of any worker. Waits until there is one.
    ///
    /// A queue without workers (none asked for, or the system gives no thread) gives the submitter's own slot,
    /// whose request is handled when it is submitted.
    pub fn reserve(&mut self) -> ReservedSlot<'_, H, D> {
        let location = loop {
            let found = self.find(self.workers.len()).or_else(|| self.inline_if_alone());
            match found {
                Some(location) => break location,
                None => self.wait_for_any(),
            }
        };
        ReservedSlot { queue: self, location }
    }

    /// A free slot of an active worker, or else the submitter's own, whose request is handled when it is
    /// submitted. So a submitter that is ahead of its workers works instead of waiting. Never waits.
    pub fn reserve_or_inline(&mut self) -> ReservedSlot<'_, H, D> {
        let location = self.find(self.settings.active).unwrap_or(SlotLocation::Inline);
        ReservedSlot { queue: self, location }
    }

    /// Calls back for every request that is finished and not collected yet.
    pub fn collect(&mut self) {
        for worker in 0..self.workers.len() {
            self.collect_from(worker);
        }
    }

    /// Waits until every submitted request is finished and called back for. The submitter handles what nobody
    /// has begun, then sleeps until the rest is done.
    pub fn wait(&mut self) {
        for worker in (0..self.workers.len()).rev() {
            self.help(worker);
        }
        self.collect();
        while self.has_pending() {
            self.wait_for_any();
            self.collect();
        }
    }

    /// What was counted until now.
    #[must_use]
    pub fn stats(&self) -> WorkQueueStats {
        WorkQueueStats {
            submitted: self.counters.submitted.value(),
            handled_inline: self.counters.inline.value(),
            handled_helping: self.counters.helped.value(),
            panics_on_submitter: self.counters.panics.value(),
            wake_calls: self.counters.wakes.value(),
            waits: self.counters.waits.value(),
            refused_threads: self.counters.refused.value(),
            workers: self
                .workers
                .iter()
                .map(|one| WorkerQueueStats::of(one.end.counters()))
                .collect(),
        }
    }

    /// Q1 to Q4, or here and now.
    fn submit(&mut self, location: SlotLocation) {
        let count = self.counters.submitted.value();
        self.counters.submitted.add(1);
        match location {
            SlotLocation::Inline => self.handle_inline(),
            SlotLocation::Worker { worker, slot } => {
                self.publish(worker, slot, count.is_multiple_of(TIMED_ONE_IN));
            }
        }
    }

    fn publish(&mut self, worker: usize, slot: usize, is_timed: bool) {
        let end = &mut self.workers[worker].end;
        let is_timed = is_timed || end.is_worker_idle();
        end.body(slot).submitted = is_timed.then(Instant::now);
        if end.publish(slot) {
            self.counters.wakes.add(1);
        }
        if self.settings.dispatch_policy == DispatchPolicy::RoundRobin {
            self.selector.select(worker + 1);
        }
    }

    fn handle_inline(&mut self) {
        self.counters.inline.add(1);
        self.handle_at(SlotLocation::Inline);
        self.call_back(SlotLocation::Inline);
    }

    /// Q1. A free slot of the first `count` workers: of the selected one, of the next one in use, of one more, or
    /// of any.
    fn find(&mut self, count: usize) -> Option<SlotLocation> {
        let current = self.selector.current(count);
        if count == 0 {
            return None;
        }
        if let Some(location) = self.find_at(current) {
            return Some(location);
        }
        if self.settings.dispatch_policy == DispatchPolicy::FillFirst {
            let next = self.selector.next(count);
            let was_idle = self.workers[next].end.is_worker_idle();
            if next != current
                && let Some(location) = self.find_at(next)
            {
                if was_idle {
                    self.selector.shrink();
                }
                return Some(location);
            }
            if let Some(location) =
                self.selector.grow(count).and_then(|worker| self.find_at(worker))
            {
                return Some(location);
            }
        }
        (1..count).find_map(|step| self.find_at((current + step) % count))
    }

    /// A free slot of this worker, which is then the selected one. Starts its thread if that was not tried yet.
    fn find_at(&mut self, worker: usize) -> Option<SlotLocation> {
        if self.workers[worker].end.free_slot().is_none() {
            self.collect_from(worker);
        }
        let slot = self.workers[worker].end.free_slot()?;
        if matches!(self.workers[worker].thread, WorkerThread::NotStarted) {
            self.workers[worker].thread = self.start(worker);
        }
        if !matches!(self.workers[worker].thread, WorkerThread::Running(_)) {
            return None;
        }
        self.selector.select(worker);
        Some(SlotLocation::Worker { worker, slot })
    }

    #[cold]
    fn start(&mut self, worker: usize) -> WorkerThread {
        let Some(end) = self.workers[worker].end.take_worker_end() else {
            return WorkerThread::Refused;
        };
        let finished = Arc::clone(&self.finished);
        let make = self.handler.make();
        let spin = AdaptiveSpin::new(self.settings.worker_spins);
        let body = move |_| {
            // The handler is made and dropped on the worker's thread, so it need not be Send.
            Worker { end, finished, handler: HandlerCell::new(make), spin }.run();
        };
        let name = format!("{}/{worker}", self.settings.name);
        let options = ThreadOptions { name, cpu: None, priority: self.settings.priority };
        match start(options, body) {
            Ok(thread) => WorkerThread::Running(thread),
            Err(_no_thread) => {
                self.counters.refused.add(1);
                WorkerThread::Refused
            }
        }
    }

    fn inline_if_alone(&self) -> Option<SlotLocation> {
        let is_alone = self.workers.iter().all(|one| matches!(one.thread, WorkerThread::Refused));
        is_alone.then_some(SlotLocation::Inline)
    }

    /// Calls back for what is finished. A callback that panics leaves the rest of its worker's finished requests
    /// without one, and the queue whole.
    fn collect_from(&mut self, worker: usize) {
        let mut finished = self.workers[worker].end.finished();
        while finished != 0 {
            let slot = finished.trailing_zeros() as usize;
            finished &= finished - 1;
            self.call_back(SlotLocation::Worker { worker, slot });
        }
    }

    /// Handles what the worker has not begun.
    fn help(&mut self, worker: usize) {
        let mut candidates = self.workers[worker].end.pending();
        while candidates != 0 {
            // The worker goes up from the lowest slot, so the highest is the least likely to clash.
            let slot = candidates.ilog2() as usize;
            candidates &= !(1 << slot);
            if self.workers[worker].end.reclaim(slot) {
                self.counters.helped.add(1);
                let location = SlotLocation::Worker { worker, slot };
                self.handle_at(location);
                self.call_back(location);
            }
        }
    }

    fn handle_at(&mut self, location: SlotLocation) {
        let body = body(&mut self.inline_slot, &mut self.workers, location);
        self.handler.handle(body);
        if body.outcome == RequestOutcome::Panicked {
            self.counters.panics.add(1);
        }
    }

    fn call_back(&mut self, location: SlotLocation) {
        let body = body(&mut self.inline_slot, &mut self.workers, location);
        (self.on_done)(&mut body.request, body.outcome);
    }

    /// Q13. Spins, then sleeps, until a worker has finished something.
    fn wait_for_any(&mut self) {
        self.counters.waits.add(1);
        for _ in 0..self.settings.submitter_spins {
            if self.has_finished() {
                return;
            }
            pause();
        }
        self.finished.clear();
        if !self.has_finished() {
            self.finished.wait();
        }
    }

    fn has_finished(&self) -> bool {
        self.workers.iter().any(|one| one.end.has_finished())
    }

    fn has_pending(&self) -> bool {
        self.workers.iter().any(|one| one.end.pending() != 0)
    }
}

/// The body at `location`; a function of two fields, so that the others stay free to use.
fn body<'q, R>(
    inline_slot: &'q mut SlotBody<R>,
    workers: &'q mut [QueueWorker<R>],
    location: SlotLocation,
) -> &'q mut SlotBody<R> {
    match location {
        SlotLocation::Inline => inline_slot,
        SlotLocation::Worker { worker, slot } => workers[worker].end.body(slot),
    }
}

impl<H: Handler, D> Drop for WorkQueue<H, D> {
    /// Q14. Requests that nobody has begun are dropped unhandled, those that run end, and every worker is joined.
    /// Nothing is called back: call `wait` before, if results matter.
    fn drop(&mut self) {
        // The threads are joined when `workers` is dropped, after all of them were told to end.
        self.workers.iter().for_each(|one| one.end.shut_down());
    }
}

impl<H: Handler, D> std::fmt::Debug for WorkQueue<H, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pending: u32 = self.workers.iter().map(|one| one.end.pending().count_ones()).sum();
        f.debug_struct("WorkQueue")
            .field("settings", &self.settings)
            .field("pending", &pending)
            .finish_non_exhaustive()
    }
}

/// A free slot of a [`WorkQueue`], to be filled and submitted. The queue can do nothing else meanwhile. Dropping
/// it leaves the slot free.
#[must_use = "a slot that is dropped stays free, and its request is not handled"]
pub struct ReservedSlot<'q, H: Handler, D> {
    queue: &'q mut WorkQueue<H, D>,
    location: SlotLocation,
}

impl<H, D> ReservedSlot<'_, H, D>
where
    H: Handler + 'static,
    D: FnMut(&mut H::Request, RequestOutcome),
{
    /// The request to fill in; it holds what the last use of the slot left.
    pub fn request(&mut self) -> &mut H::Request {
        &mut body(&mut self.queue.inline_slot, &mut self.queue.workers, self.location).request
    }

    /// Whether the submitter will handle the request itself, within [`submit`](Self::submit).
    #[must_use]
    pub fn is_inline(&self) -> bool {
        self.location == SlotLocation::Inline
    }

    /// Hands the request over. From then on its handler owns its content, until the queue calls back.
    pub fn submit(self) {
        self.queue.submit(self.location);
    }
}

impl<H: Handler, D> std::fmt::Debug for ReservedSlot<'_, H, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReservedSlot").field("location", &self.location).finish_non_exhaustive()
    }
}

/// What a queue has counted since it was made.
#[derive(Debug, Clone, Default)]
pub struct WorkQueueStats {
    /// Requests submitted.
    pub submitted: u64,
    /// Of these, handled by the submitter when it submitted them.
    pub handled_inline: u64,
    /// Of these, handled by the submitter while it waited.
    pub handled_helping: u64,
    /// Handlers that panicked on the submitter.
    pub panics_on_submitter: u64,
    /// System calls that woke a worker.
    pub wake_calls: u64,
    /// Times that the submitter had nothing to do but to spin or sleep.
    pub waits: u64,
    /// Workers for which the system gave no thread.
    pub refused_threads: u64,
    /// One for each worker.
    pub workers: Vec<WorkerQueueStats>,
}

/// What one worker has counted.
#[derive(Debug, Clone, Default)]
pub struct WorkerQueueStats {
    /// Requests handled.
    pub handled: u64,
    /// Handlers that panicked.
    pub panics: u64,
    /// Times that the worker slept.
    pub sleeps: u64,
    /// From submission to start: every request that woke the worker, one in 16 of the others.
    pub start_delay: HistogramSnapshot,
}

impl WorkerQueueStats {
    fn of(counters: &QueueCounters) -> Self {
        Self {
            handled: counters.handled.value(),
            panics: counters.panics.value(),
            sleeps: counters.sleeps.value(),
            start_delay: counters.start_delay.snapshot(),
        }
    }
}

/// Which workers the submitter cycles through, so that no more of them are kept awake than one submitter can
/// feed. With one worker more than that, each is asleep by the time its turn comes, and waking it costs the
/// submitter more than the request. Step Q1.
#[derive(Debug)]
struct WorkerSelector {
    current: usize,
    /// How many workers are in use, at least 1.
    used: usize,
}

impl WorkerSelector {
    const fn new() -> Self {
        Self { current: 0, used: 1 }
    }

    /// The selected worker, among the first `count`.
    fn current(&self, count: usize) -> usize {
        if self.current < count { self.current } else { 0 }
    }

    /// The worker after that one.
    fn next(&self, count: usize) -> usize {
        let next = self.current(count) + 1;
        if next < self.used.min(count) { next } else { 0 }
    }

    /// Selects the worker whose slots are filled from now on.
    fn select(&mut self, worker: usize) {
        self.current = worker;
    }

    /// A worker was asleep when its turn came: one worker fewer from now on.
    fn shrink(&mut self) {
        self.used = self.used.saturating_sub(1).max(1);
    }

    /// The workers that were looked at are full: one worker more, if there are so many.
    fn grow(&mut self, count: usize) -> Option<usize> {
        let worker = self.used;
        (worker < count).then(|| {
            self.used += 1;
            worker
        })
    }
}

/// Makes handlers; shared by all threads of a queue.
type MakeHandler<H> = dyn Fn() -> Result<H, NoHandler> + Send + Sync;

/// What a worker owns and shares on its thread.
struct Worker<H: Handler> {
    end: WorkerEnd<H::Request>,
    finished: Arc<CachePadded<WakeEvent>>,
    handler: HandlerCell<H>,
    spin: AdaptiveSpin,
}

impl<H: Handler> Worker<H> {
    /// Handles requests until the submitter shuts the queue down.
    fn run(mut self) {
        while !self.end.must_exit() {
            if self.handle_submitted() {
                self.spin.work_found();
            } else if self.spin.keep_spinning() {
                pause();
            } else {
                self.sleep();
            }
        }
    }

    /// Clear, look again, sleep (protocol E): what is filled after that look finds the event clear and sets it.
    fn sleep(&mut self) {
        self.end.wake().clear();
        if self.handle_submitted() || self.end.must_exit() {
            return;
        }
        if self.end.wake().wait() {
            self.end.counters().sleeps.add(1);
        }
    }

    /// Handles every slot of one look at the fill word. Returns whether there was any to claim.
    fn handle_submitted(&mut self) -> bool {
        let mut submitted = self.end.submitted();
        let mut has_handled = false;
        while submitted != 0 && !(has_handled && self.end.must_exit()) {
            let slot = submitted.trailing_zeros() as usize;
            submitted &= submitted - 1;
            has_handled |= self.handle_slot(slot);
        }
        has_handled
    }

    /// Q6 to Q9. A slot that the submitter took back cannot be claimed and does not count as work, so a worker
    /// sleeps although it may still see the old bit.
    fn handle_slot(&mut self, slot: usize) -> bool {
        let Some(mut body) = self.end.claim(slot) else { return false };
        if let Some(submitted) = body.submitted.take() {
            body.counters().start_delay.record(submitted.elapsed());
        }
        self.handler.handle(&mut body);
        body.counters().handled.add(1);
        if body.outcome == RequestOutcome::Panicked {
            body.counters().panics.add(1);
        }
        // Q8.
        drop(body);
        // Q9. One load while the submitter does not wait.
        self.finished.set();
        true
    }
}

/// A thread's handler: made at the first request, dropped after a panic, made again.
struct HandlerCell<H> {
    handler: Option<H>,
    make: PlainArc<MakeHandler<H>>,
}

impl<H: Handler> HandlerCell<H> {
    const fn new(make: PlainArc<MakeHandler<H>>) -> Self {
        Self { handler: None, make }
    }

    /// What makes the handlers, for a cell on another thread.
    fn make(&self) -> PlainArc<MakeHandler<H>> {
        PlainArc::clone(&self.make)
    }

    /// Handles one request and notes its outcome. It never unwinds.
    fn handle(&mut self, body: &mut SlotBody<H::Request>) {
        // A handler that panicked is dropped below and the request is marked, so nobody uses what the panic left
        // half done.
        if catch_panic(|| self.handle_or_unwind(body)) == CallOutcome::Panicked {
            body.outcome = RequestOutcome::Panicked;
            let handler = self.handler.take();
            // A second panic stops here, too, and tells nothing new.
            catch_panic(move || drop(handler));
        }
    }

    fn handle_or_unwind(&mut self, body: &mut SlotBody<H::Request>) {
        let handler = match &mut self.handler {
            Some(handler) => handler,
            empty => match (self.make)() {
                Ok(handler) => empty.insert(handler),
                Err(NoHandler) => {
                    body.outcome = RequestOutcome::NoHandler;
                    return;
                }
            },
        };
        handler.handle(&mut body.request);
        body.outcome = RequestOutcome::Done;
    }
}

/// The fewest spins of a wait, as a part of the most.
const MIN_SPINS_DIVISOR: u32 = 64;

/// How often a worker looks for work before it sleeps. Spinning pays off while the submitter runs on another
/// CPU; if the two share one, it delays the thread that would bring the work. The number of CPUs does not show
/// which, so the worker goes by whether its last spins found work.
#[derive(Debug)]
struct AdaptiveSpin {
    max: u32,
    /// What the next wait may take.
    budget: u32,
    /// What this wait has taken.
    spins: u32,
}

impl AdaptiveSpin {
    /// `max` spins to begin with; with 0 the worker sleeps at once, always.
    const fn new(max: u32) -> Self {
        Self { max, budget: max, spins: 0 }
    }

    /// There was work. If spinning found it, the next wait may take twice as long.
    fn work_found(&mut self) {
        if self.spins > 0 {
            self.budget = self.budget.saturating_mul(2).min(self.max);
            self.spins = 0;
        }
    }

    /// There was no work. Returns false if it is time to sleep, and then the next wait takes half as long.
    fn keep_spinning(&mut self) -> bool {
        if self.spins < self.budget {
            self.spins += 1;
            return true;
        }
        // At least one, or no work would ever be found by spinning.
        self.budget = (self.budget / 2).max(self.max / MIN_SPINS_DIVISOR).max(self.max.min(1));
        self.spins = 0;
        false
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    //! Models of protocol Q: every interleaving of one submitter and one worker, with one or two slots.

    use super::{ActiveWorkers, Handler, RequestOutcome, WorkQueue, WorkQueueSettings};

    /// Adds a thousand.
    struct Add;

    impl Handler for Add {
        type Request = u32;

        fn handle(&mut self, request: &mut u32) {
            *request += 1000;
        }
    }

    fn model(run: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(run);
    }

    fn settings(slots: usize) -> WorkQueueSettings {
        let settings = WorkQueueSettings::new("model").workers(1).slots(slots);
        settings.active_workers(ActiveWorkers::All).spins(0).cpus(1)
    }

    /// Submits `requests` and waits; returns the sum that came back.
    fn sum_of(slots: usize, requests: u32, wait_between: bool) -> u32 {
        let settings = settings(slots);
        let mut sum = 0;
        let mut count = 0;
        let on_done = |request: &mut u32, outcome| {
            assert_eq!(outcome, RequestOutcome::Done);
            sum += *request;
            count += 1;
        };
        let mut queue = WorkQueue::new(&settings, || 0, || Ok(Add), on_done).unwrap();
        for number in 0..requests {
            let mut slot = queue.reserve();
            *slot.request() = number;
            slot.submit();
            if wait_between {
                queue.wait();
            }
        }
        queue.wait();
        drop(queue);
        assert_eq!(count, requests);
        sum
    }

    /// Q1 to Q13 with a slot for each request.
    #[test]
    fn two_slots_give_both_requests_back() {
        model(|| assert_eq!(sum_of(2, 2, false), 2001));
    }

    /// Q12 and Q2 again: a slot that was taken back and filled once more is not mistaken for the old one.
    #[test]
    fn a_slot_that_was_taken_back_can_be_filled_again() {
        model(|| assert_eq!(sum_of(1, 2, true), 2001));
    }

    /// Q13: the submitter sleeps until the only slot is free.
    #[test]
    fn reserve_waits_for_the_only_slot() {
        model(|| assert_eq!(sum_of(1, 2, false), 2001));
    }

    /// Q14: a shutdown is not slept through, and what runs ends before the queue is gone.
    #[test]
    fn a_queue_dropped_at_once_joins_its_worker() {
        model(|| {
            let settings = settings(1);
            let mut queue =
                WorkQueue::new(&settings, || 0, || Ok(Add), |_: &mut u32, _| ()).unwrap();
            queue.reserve().submit();
            drop(queue);
        });
    }
}
