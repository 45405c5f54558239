//! The submitter's side: hands out slots, fills lanes, collects what is finished, helps and waits.
//! docs/workers.md, protocol Q, steps Q1 to Q4 and Q10 to Q13.

use super::lane::{Body, Lane};
use super::request::{Handler, NoHandler, Outcome};
use super::ring::Ring;
use super::seat::{Make, Seat};
use super::settings::{Batching, Plan, Settings};
use super::side::{Side, Thread};
use super::slot::Slot;
use super::tally::{LaneTally, Snapshot};
use super::worker::Worker;
use crate::Error;
use crate::counters::Counter;
use crate::event::Event;
use crate::line::Line;
use crate::sync::{Arc, Instant, PlainArc, pause};
use crate::thread::{Start, start};

/// Requests that wake nobody are timed once in this many, so that two looks at the clock do not
/// become part of what a short request costs. Requests that wake a worker are always timed.
const TIMED_ONE_IN: u64 = 16;

/// Preallocated requests from one submitter to many workers. See the [module](super).
pub struct WorkQueue<H: Handler, D> {
    plan: Plan,
    sides: Vec<Side<H::Request>>,
    ring: Ring,
    /// A slot that no worker sees, for requests that the submitter handles itself.
    own: Body<H::Request>,
    seat: Seat<H>,
    make: PlainArc<Make<H>>,
    finished: Arc<Line<Event>>,
    on_done: D,
    tally: Tally,
}

#[derive(Debug, Default)]
struct Tally {
    submitted: Counter,
    inline: Counter,
    helped: Counter,
    panics: Counter,
    wakes: Counter,
    waits: Counter,
    refused: Counter,
}

/// Where a slot lies: a lane and a bit, or the submitter's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Lane { lane: usize, slot: usize },
    Own,
}

impl<H, D> WorkQueue<H, D>
where
    H: Handler + 'static,
    D: FnMut(&mut H::Request, Outcome),
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
        settings: &Settings,
        mut request: impl FnMut() -> H::Request,
        make: impl Fn() -> Result<H, NoHandler> + Send + Sync + 'static,
        on_done: D,
    ) -> Result<Self, Error> {
        let plan = settings.plan()?;
        let sides = (0..plan.workers).map(|_| Side::new(Lane::new(plan.slots, &mut request)));
        Ok(Self {
            sides: sides.collect(),
            ring: Ring::new(),
            own: Body::new(request()),
            seat: Seat::empty(),
            make: PlainArc::new(make),
            finished: Arc::new(Line(Event::new())),
            on_done,
            tally: Tally::default(),
            plan,
        })
    }

    /// A free slot of any worker; `None` exactly when every slot is on its way. It never waits.
    ///
    /// A queue without workers (none asked for, or the system gives no thread) hands out the
    /// submitter's own slot, whose request is handled when it is submitted.
    pub fn try_get(&mut self) -> Option<Slot<'_, H, D>> {
        let place = self.find(self.sides.len()).or_else(|| self.own_if_alone())?;
        Some(Slot::new(self, place))
    }

    /// The same, but waits until a slot is free.
    pub fn get(&mut self) -> Slot<'_, H, D> {
        let place = loop {
            let found = self.find(self.sides.len()).or_else(|| self.own_if_alone());
            match found {
                Some(place) => break place,
                None => self.wait_for_any(),
            }
        };
        Slot::new(self, place)
    }

    /// A slot of a worker that has a CPU for it, or the submitter's own: its request is handled when
    /// it is submitted, so a submitter that is ahead of its workers works instead of waiting.
    pub fn get_or_inline(&mut self) -> Slot<'_, H, D> {
        let place = self.find(self.plan.active).unwrap_or(Place::Own);
        Slot::new(self, place)
    }

    /// Calls back for every request that is finished and was not collected yet.
    pub fn collect(&mut self) {
        for lane in 0..self.sides.len() {
            self.collect_lane(lane);
        }
    }

    /// Until every submitted request is finished and called back for. The submitter handles what
    /// nobody has begun, then sleeps until the rest is done.
    pub fn wait(&mut self) {
        for lane in (0..self.sides.len()).rev() {
            self.help(lane);
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
    pub fn snapshot(&self) -> Snapshot {
        let lanes = self.sides.iter().map(|side| LaneTally::of(&side.lane().tally)).collect();
        Snapshot {
            submitted: self.tally.submitted.value(),
            handled_inline: self.tally.inline.value(),
            handled_helping: self.tally.helped.value(),
            panics_on_submitter: self.tally.panics.value(),
            wake_calls: self.tally.wakes.value(),
            waits: self.tally.waits.value(),
            refused_threads: self.tally.refused.value(),
            lanes,
        }
    }

    /// The request in a slot that was handed out.
    pub(super) fn request(&mut self, place: Place) -> &mut H::Request {
        &mut body(&mut self.own, &mut self.sides, place).request
    }

    /// Q1 to Q4, or here and now.
    pub(super) fn submit(&mut self, place: Place) {
        let count = self.tally.submitted.value();
        self.tally.submitted.add(1);
        match place {
            Place::Own => self.handle_own(),
            Place::Lane { lane, slot } => {
                self.publish(lane, slot, count.is_multiple_of(TIMED_ONE_IN));
            }
        }
    }

    fn publish(&mut self, lane: usize, slot: usize, is_timed: bool) {
        let side = &mut self.sides[lane];
        let is_timed = is_timed || side.lane().is_idle();
        side.body(slot).submitted = is_timed.then(Instant::now);
        if side.publish(slot) {
            self.tally.wakes.add(1);
        }
        if self.plan.batching == Batching::RoundRobin {
            self.ring.fill(lane + 1);
        }
    }

    fn handle_own(&mut self) {
        self.tally.inline.add(1);
        self.handle_here(Place::Own);
        self.call_back(Place::Own);
    }

    /// Q1. A free slot of the first `lanes` lanes: of the one that is being filled, of the next one that is gone
    /// round, of one more, or of any.
    fn find(&mut self, lanes: usize) -> Option<Place> {
        let current = self.ring.current(lanes);
        if lanes == 0 {
            return None;
        }
        if let Some(place) = self.fill_in(current) {
            return Some(place);
        }
        if self.plan.batching == Batching::FillOne {
            let next = self.ring.next(lanes);
            let was_idle = self.sides[next].lane().is_idle();
            if next != current
                && let Some(place) = self.fill_in(next)
            {
                if was_idle {
                    self.ring.shrink();
                }
                return Some(place);
            }
            if let Some(place) = self.ring.grow(lanes).and_then(|lane| self.fill_in(lane)) {
                return Some(place);
            }
        }
        (1..lanes).find_map(|step| self.fill_in((current + step) % lanes))
    }

    fn fill_in(&mut self, lane: usize) -> Option<Place> {
        let slot = self.find_in(lane)?;
        self.ring.fill(lane);
        Some(Place::Lane { lane, slot })
    }

    fn find_in(&mut self, lane: usize) -> Option<usize> {
        if self.sides[lane].free_slot().is_none() {
            self.collect_lane(lane);
        }
        let slot = self.sides[lane].free_slot()?;
        self.has_worker(lane).then_some(slot)
    }

    /// Starts the lane's worker if that was not tried yet.
    fn has_worker(&mut self, lane: usize) -> bool {
        if matches!(self.sides[lane].thread, Thread::NotStarted) {
            self.sides[lane].thread = self.start(lane);
        }
        matches!(self.sides[lane].thread, Thread::Running(_))
    }

    #[cold]
    fn start(&mut self, lane: usize) -> Thread {
        let worker = Worker {
            lane: Arc::clone(self.sides[lane].lane()),
            finished: Arc::clone(&self.finished),
            make: PlainArc::clone(&self.make),
            spin: self.plan.spin,
        };
        let name = format!("{}/{lane}", self.plan.name);
        let how = Start { name, cpu: None, priority: self.plan.priority };
        match start(how, move |_| worker.run()) {
            Ok(thread) => Thread::Running(thread),
            Err(_no_thread) => {
                self.tally.refused.add(1);
                Thread::Refused
            }
        }
    }

    fn own_if_alone(&self) -> Option<Place> {
        let is_alone = self.sides.iter().all(|side| matches!(side.thread, Thread::Refused));
        is_alone.then_some(Place::Own)
    }

    /// Calls back for what is finished. A callback that panics leaves the rest of its lane's
    /// finished requests without one, and the queue whole.
    fn collect_lane(&mut self, lane: usize) {
        let mut finished = self.sides[lane].finished();
        while finished != 0 {
            let slot = finished.trailing_zeros() as usize;
            finished &= finished - 1;
            self.call_back(Place::Lane { lane, slot });
        }
    }

    /// Handles what the lane's worker has not begun.
    fn help(&mut self, lane: usize) {
        let mut candidates = self.sides[lane].pending();
        while candidates != 0 {
            // The worker goes up from the lowest slot, so the highest is the least likely to clash.
            let slot = candidates.ilog2() as usize;
            candidates &= !(1 << slot);
            if self.sides[lane].take_back(slot) {
                self.tally.helped.add(1);
                let place = Place::Lane { lane, slot };
                self.handle_here(place);
                self.call_back(place);
            }
        }
    }

    fn handle_here(&mut self, place: Place) {
        let body = body(&mut self.own, &mut self.sides, place);
        self.seat.handle(&*self.make, body);
        if body.outcome == Outcome::Panicked {
            self.tally.panics.add(1);
        }
    }

    fn call_back(&mut self, place: Place) {
        let body = body(&mut self.own, &mut self.sides, place);
        (self.on_done)(&mut body.request, body.outcome);
    }

    /// Q13. Spins, then sleeps, until a worker has finished something.
    fn wait_for_any(&mut self) {
        self.tally.waits.add(1);
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
        self.sides.iter().any(Side::has_finished)
    }

    fn has_pending(&self) -> bool {
        self.sides.iter().any(|side| side.pending() != 0)
    }
}

/// The body at `place`; a function of two fields, so that the others stay free to use.
fn body<'q, R>(own: &'q mut Body<R>, sides: &'q mut [Side<R>], place: Place) -> &'q mut Body<R> {
    match place {
        Place::Own => own,
        Place::Lane { lane, slot } => sides[lane].body(slot),
    }
}

impl<H: Handler, D> Drop for WorkQueue<H, D> {
    /// Q14. Requests that nobody has begun are dropped unhandled, those that run end, and every
    /// worker is joined. Nothing is called back: `wait` comes before, where results matter.
    fn drop(&mut self) {
        for side in &self.sides {
            for slot in 0..self.plan.slots {
                side.lane().claim(slot);
            }
            side.lane().quit();
        }
        // The threads are joined when the sides are dropped, all of them told to quit before.
    }
}

impl<H: Handler, D> std::fmt::Debug for WorkQueue<H, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pending: u32 = self.sides.iter().map(|side| side.pending().count_ones()).sum();
        f.debug_struct("WorkQueue")
            .field("plan", &self.plan)
            .field("pending", &pending)
            .finish_non_exhaustive()
    }
}
