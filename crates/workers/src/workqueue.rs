//! The submitter's end: hands out slots, fills queues, collects what is finished, helps and waits.
//! docs/workers.md, protocol Q, steps Q1 to Q4 and Q10 to Q13.

use super::handler_cell::{HandlerCell, MakeHandler};
use super::request::{Handler, NoHandler, RequestOutcome};
use super::reserved_slot::ReservedSlot;
use super::settings::{DispatchPolicy, ResolvedSettings, WorkQueueSettings};
use super::stats::{WorkQueueStats, WorkerQueueStats};
use super::submitter_end::{SubmitterEnd, WorkerThread};
use super::worker::Worker;
use super::worker_queue::{SlotBody, WorkerQueue};
use super::worker_selector::WorkerSelector;
use crate::Error;
use crate::cache_padded::CachePadded;
use crate::counters::Counter;
use crate::sync::{Arc, Instant, PlainArc, pause};
use crate::thread::{ThreadOptions, start};
use crate::wake_event::WakeEvent;

/// Requests that wake nobody are timed once in this many, so that two looks at the clock do not
/// become part of what a short request costs. Requests that wake a worker are always timed.
const TIMED_ONE_IN: u64 = 16;

/// Preallocated requests from one submitter to many workers. See the [module](super).
pub struct WorkQueue<H: Handler, D> {
    plan: ResolvedSettings,
    submitter_ends: Vec<SubmitterEnd<H::Request>>,
    selector: WorkerSelector,
    /// A slot that no worker sees, for requests that the submitter handles itself.
    inline_slot: SlotBody<H::Request>,
    handler_cell: HandlerCell<H>,
    make: PlainArc<MakeHandler<H>>,
    finished: Arc<CachePadded<WakeEvent>>,
    on_done: D,
    counters: SubmitterCounters,
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

/// Where a slot lies: a queue and a bit, or the submitter's inline slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotLocation {
    WorkerQueue { queue_index: usize, slot: usize },
    Inline,
}

impl<H, D> WorkQueue<H, D>
where
    H: Handler + 'static,
    D: FnMut(&mut H::Request, RequestOutcome),
{
    /// A queue without threads yet: each worker starts with its first request.
    ///
    /// `request` makes the content of a slot, once for each. `make` makes a handler, on the thread
    /// that will use it. `on_done` is called exactly once for each request that was submitted and
    /// waited for, on the thread that holds the queue, in no particular order.
    ///
    /// # Errors
    ///
    /// `InvalidSetting` when a number of `settings` is outside its range.
    pub fn new(
        settings: &WorkQueueSettings,
        mut request: impl FnMut() -> H::Request,
        make: impl Fn() -> Result<H, NoHandler> + Send + Sync + 'static,
        on_done: D,
    ) -> Result<Self, Error> {
        let plan = settings.plan()?;
        let submitter_ends = (0..plan.workers)
            .map(|_| SubmitterEnd::new(WorkerQueue::new(plan.slots, &mut request)));
        Ok(Self {
            submitter_ends: submitter_ends.collect(),
            selector: WorkerSelector::new(),
            inline_slot: SlotBody::new(request()),
            handler_cell: HandlerCell::empty(),
            make: PlainArc::new(make),
            finished: Arc::new(CachePadded(WakeEvent::new())),
            on_done,
            counters: SubmitterCounters::default(),
            plan,
        })
    }

    /// A free slot of any worker; `None` exactly when every slot is on its way. It never waits.
    ///
    /// A queue without workers (none asked for, or the system gives no thread) hands out the
    /// submitter's inline slot, whose request is handled when it is submitted.
    pub fn try_reserve(&mut self) -> Option<ReservedSlot<'_, H, D>> {
        let location = self.find(self.submitter_ends.len()).or_else(|| self.own_if_alone())?;
        Some(ReservedSlot::new(self, location))
    }

    /// The same, but waits until a slot is free.
    pub fn reserve(&mut self) -> ReservedSlot<'_, H, D> {
        let location = loop {
            let found = self.find(self.submitter_ends.len()).or_else(|| self.own_if_alone());
            match found {
                Some(location) => break location,
                None => self.wait_for_any(),
            }
        };
        ReservedSlot::new(self, location)
    }

    /// A slot of a worker that has a CPU for it, or the submitter's inline slot: its request is handled when
    /// it is submitted, so a submitter that is ahead of its workers works instead of waiting.
    pub fn reserve_or_inline(&mut self) -> ReservedSlot<'_, H, D> {
        let location = self.find(self.plan.active).unwrap_or(SlotLocation::Inline);
        ReservedSlot::new(self, location)
    }

    /// Calls back for every request that is finished and was not collected yet.
    pub fn collect(&mut self) {
        for queue_index in 0..self.submitter_ends.len() {
            self.collect_queue(queue_index);
        }
    }

    /// Until every submitted request is finished and called back for. The submitter handles what
    /// nobody has begun, then sleeps until the rest is done.
    pub fn wait(&mut self) {
        for queue_index in (0..self.submitter_ends.len()).rev() {
            self.help(queue_index);
        }
        self.collect();
        while self.has_pending() {
            self.wait_for_any();
            self.collect();
        }
    }

    /// Until another submitted request, or several, are finished and called back for; at once if
    /// none is on its way. The submitter sleeps meanwhile: a request that it handled itself would keep
    /// it from what finishes next, and take a handler's memory once more.
    pub fn wait_for_one(&mut self) {
        if self.has_pending() {
            self.wait_for_any();
            self.collect();
        }
    }

    /// How many slots the workers have, all together.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.plan.workers * self.plan.slots
    }

    /// What was counted until now.
    #[must_use]
    pub fn snapshot(&self) -> WorkQueueStats {
        let workers = self
            .submitter_ends
            .iter()
            .map(|end| WorkerQueueStats::of(&end.queue().counters))
            .collect();
        WorkQueueStats {
            submitted: self.counters.submitted.value(),
            handled_inline: self.counters.inline.value(),
            handled_helping: self.counters.helped.value(),
            panics_on_submitter: self.counters.panics.value(),
            wake_calls: self.counters.wakes.value(),
            waits: self.counters.waits.value(),
            refused_threads: self.counters.refused.value(),
            workers,
        }
    }

    /// The request in a slot that was handed out.
    pub(super) fn request(&mut self, location: SlotLocation) -> &mut H::Request {
        &mut body(&mut self.inline_slot, &mut self.submitter_ends, location).request
    }

    /// Q1 to Q4, or here and now.
    pub(super) fn submit(&mut self, location: SlotLocation) {
        let count = self.counters.submitted.value();
        self.counters.submitted.add(1);
        match location {
            SlotLocation::Inline => self.handle_own(),
            SlotLocation::WorkerQueue { queue_index, slot } => {
                self.publish(queue_index, slot, count.is_multiple_of(TIMED_ONE_IN));
            }
        }
    }

    fn publish(&mut self, queue_index: usize, slot: usize, is_timed: bool) {
        let end = &mut self.submitter_ends[queue_index];
        let is_timed = is_timed || end.queue().is_idle();
        end.body(slot).submitted = is_timed.then(Instant::now);
        if end.publish(slot) {
            self.counters.wakes.add(1);
        }
        if self.plan.dispatch_policy == DispatchPolicy::RoundRobin {
            self.selector.fill(queue_index + 1);
        }
    }

    fn handle_own(&mut self) {
        self.counters.inline.add(1);
        self.handle_inline(SlotLocation::Inline);
        self.call_back(SlotLocation::Inline);
    }

    /// Q1. A free slot of the first `queues` queues: of the one that is being filled, of the next one that is gone
    /// round, of one more, or of any.
    fn find(&mut self, queues: usize) -> Option<SlotLocation> {
        let current = self.selector.current(queues);
        if queues == 0 {
            return None;
        }
        if let Some(location) = self.fill_in(current) {
            return Some(location);
        }
        if self.plan.dispatch_policy == DispatchPolicy::FillFirst {
            let next = self.selector.next(queues);
            let was_idle = self.submitter_ends[next].queue().is_idle();
            if next != current
                && let Some(location) = self.fill_in(next)
            {
                if was_idle {
                    self.selector.shrink();
                }
                return Some(location);
            }
            if let Some(location) =
                self.selector.grow(queues).and_then(|queue_index| self.fill_in(queue_index))
            {
                return Some(location);
            }
        }
        (1..queues).find_map(|step| self.fill_in((current + step) % queues))
    }

    fn fill_in(&mut self, queue_index: usize) -> Option<SlotLocation> {
        let slot = self.find_in(queue_index)?;
        self.selector.fill(queue_index);
        Some(SlotLocation::WorkerQueue { queue_index, slot })
    }

    fn find_in(&mut self, queue_index: usize) -> Option<usize> {
        if self.submitter_ends[queue_index].free_slot().is_none() {
            self.collect_queue(queue_index);
        }
        let slot = self.submitter_ends[queue_index].free_slot()?;
        self.has_worker(queue_index).then_some(slot)
    }

    /// Starts the queue's worker if that was not tried yet.
    fn has_worker(&mut self, queue_index: usize) -> bool {
        if matches!(self.submitter_ends[queue_index].thread, WorkerThread::NotStarted) {
            self.submitter_ends[queue_index].thread = self.start(queue_index);
        }
        matches!(self.submitter_ends[queue_index].thread, WorkerThread::Running(_))
    }

    #[cold]
    fn start(&mut self, queue_index: usize) -> WorkerThread {
        let worker = Worker {
            queue: Arc::clone(self.submitter_ends[queue_index].queue()),
            finished: Arc::clone(&self.finished),
            make: PlainArc::clone(&self.make),
            spin: self.plan.spin,
        };
        let name = format!("{}/{queue_index}", self.plan.name);
        let how = ThreadOptions { name, cpu: None, priority: self.plan.priority };
        match start(how, move |_| worker.run()) {
            Ok(thread) => WorkerThread::Running(thread),
            Err(_no_thread) => {
                self.counters.refused.add(1);
                WorkerThread::Refused
            }
        }
    }

    fn own_if_alone(&self) -> Option<SlotLocation> {
        let is_alone =
            self.submitter_ends.iter().all(|end| matches!(end.thread, WorkerThread::Refused));
        is_alone.then_some(SlotLocation::Inline)
    }

    /// Calls back for what is finished. A callback that panics leaves the rest of its queue's
    /// finished requests without one, and the queue whole.
    fn collect_queue(&mut self, queue_index: usize) {
        let mut finished = self.submitter_ends[queue_index].finished();
        while finished != 0 {
            let slot = finished.trailing_zeros() as usize;
            finished &= finished - 1;
            self.call_back(SlotLocation::WorkerQueue { queue_index, slot });
        }
    }

    /// Handles what the queue's worker has not begun.
    fn help(&mut self, queue_index: usize) {
        let mut candidates = self.submitter_ends[queue_index].pending();
        while candidates != 0 {
            // The worker goes up from the lowest slot, so the highest is the least likely to clash.
            let slot = candidates.ilog2() as usize;
            candidates &= !(1 << slot);
            if self.submitter_ends[queue_index].reclaim(slot) {
                self.counters.helped.add(1);
                let location = SlotLocation::WorkerQueue { queue_index, slot };
                self.handle_inline(location);
                self.call_back(location);
            }
        }
    }

    fn handle_inline(&mut self, location: SlotLocation) {
        let body = body(&mut self.inline_slot, &mut self.submitter_ends, location);
        self.handler_cell.handle(&*self.make, body);
        if body.outcome == RequestOutcome::Panicked {
            self.counters.panics.add(1);
        }
    }

    fn call_back(&mut self, location: SlotLocation) {
        let body = body(&mut self.inline_slot, &mut self.submitter_ends, location);
        (self.on_done)(&mut body.request, body.outcome);
    }

    /// Q13. Spins, then sleeps, until a worker has finished something.
    fn wait_for_any(&mut self) {
        self.counters.waits.add(1);
        for _ in 0..self.plan.submitter_spin {
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
        self.submitter_ends.iter().any(SubmitterEnd::has_finished)
    }

    fn has_pending(&self) -> bool {
        self.submitter_ends.iter().any(|end| end.pending() != 0)
    }
}

/// The body at `location`; a function of two fields, so that the others stay free to use.
fn body<'q, R>(
    inline_slot: &'q mut SlotBody<R>,
    submitter_ends: &'q mut [SubmitterEnd<R>],
    location: SlotLocation,
) -> &'q mut SlotBody<R> {
    match location {
        SlotLocation::Inline => inline_slot,
        SlotLocation::WorkerQueue { queue_index, slot } => submitter_ends[queue_index].body(slot),
    }
}

impl<H: Handler, D> Drop for WorkQueue<H, D> {
    /// Q14. Requests that nobody has begun are dropped unhandled, those that run end, and every
    /// worker is joined. Nothing is called back: `wait` comes before, where results matter.
    fn drop(&mut self) {
        for end in &self.submitter_ends {
            for slot in 0..self.plan.slots {
                end.queue().claim(slot);
            }
            end.queue().shut_down();
        }
        // The threads are joined when the submitter_ends are dropped, all of them told to shut_down before.
    }
}

impl<H: Handler, D> std::fmt::Debug for WorkQueue<H, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pending: u32 = self.submitter_ends.iter().map(|end| end.pending().count_ones()).sum();
        f.debug_struct("WorkQueue")
            .field("plan", &self.plan)
            .field("pending", &pending)
            .finish_non_exhaustive()
    }
}
