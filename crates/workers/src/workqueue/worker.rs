//! A worker's loop: look, claim, handle, hand back; spin a little, then sleep. [`HandlerCell`] is a thread's
//! handler, for workers and for the submitter; [`AdaptiveSpin`] decides when to sleep. docs/workers.md, protocol
//! Q, steps Q5 to Q9.

use super::worker_queue::{SlotBody, WorkerEnd};
use super::{Handler, NoHandler, RequestOutcome};
use crate::counters::CachePadded;
use crate::error::{CallOutcome, catch_panic};
use crate::sync::{Arc, PlainArc, pause};
use crate::wake_event::WakeEvent;

/// Makes handlers; shared by all threads of a queue.
pub(super) type MakeHandler<H> = dyn Fn() -> Result<H, NoHandler> + Send + Sync;

/// What a worker owns and shares on its thread.
pub(super) struct Worker<H: Handler> {
    pub(super) end: WorkerEnd<H::Request>,
    pub(super) finished: Arc<CachePadded<WakeEvent>>,
    pub(super) handler: HandlerCell<H>,
    pub(super) spin: AdaptiveSpin,
}

impl<H: Handler> Worker<H> {
    /// Handles requests until the submitter shuts the queue down.
    pub(super) fn run(mut self) {
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
pub(super) struct HandlerCell<H> {
    handler: Option<H>,
    make: PlainArc<MakeHandler<H>>,
}

impl<H: Handler> HandlerCell<H> {
    pub(super) const fn new(make: PlainArc<MakeHandler<H>>) -> Self {
        Self { handler: None, make }
    }

    /// What makes the handlers, for a cell on another thread.
    pub(super) fn make(&self) -> PlainArc<MakeHandler<H>> {
        PlainArc::clone(&self.make)
    }

    /// Handles one request and notes its outcome. It never unwinds.
    pub(super) fn handle(&mut self, body: &mut SlotBody<H::Request>) {
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
/// CPU; if the two share one, it delays the thread that would bring the work. The number of CPUs does not tell
/// which, so the worker goes by whether its last spins found work.
#[derive(Debug)]
pub(super) struct AdaptiveSpin {
    max: u32,
    /// What the next wait may take.
    budget: u32,
    /// What this wait has taken.
    spins: u32,
}

impl AdaptiveSpin {
    /// `max` spins to begin with; with 0 the worker sleeps at once, always.
    pub(super) const fn new(max: u32) -> Self {
        Self { max, budget: max, spins: 0 }
    }

    /// There was work. If spinning found it, the next wait may take twice as long.
    pub(super) fn work_found(&mut self) {
        if self.spins > 0 {
            self.budget = self.budget.saturating_mul(2).min(self.max);
            self.spins = 0;
        }
    }

    /// There was no work. Returns false if it is time to sleep, and then the next wait takes half as long.
    pub(super) fn keep_spinning(&mut self) -> bool {
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::AdaptiveSpin;

    fn spins_until_sleep(spin: &mut AdaptiveSpin) -> u32 {
        let mut spins = 0;
        while spin.keep_spinning() {
            spins += 1;
        }
        spins
    }

    #[test]
    fn spinning_in_vain_halves_the_next_wait_down_to_a_floor() {
        let mut spin = AdaptiveSpin::new(640);
        let waits: Vec<u32> = (0..8).map(|_| spins_until_sleep(&mut spin)).collect();
        assert_eq!(waits, [640, 320, 160, 80, 40, 20, 10, 10]);
    }

    #[test]
    fn work_found_by_spinning_doubles_it_up_to_the_most() {
        let mut spin = AdaptiveSpin::new(640);
        for _ in 0..8 {
            spins_until_sleep(&mut spin);
        }
        for expected in [20, 40, 80, 160, 320, 640, 640] {
            assert!(spin.keep_spinning());
            spin.work_found();
            assert_eq!(spin.budget, expected);
        }
    }

    #[test]
    fn few_spins_come_back_as_many_do() {
        let mut spin = AdaptiveSpin::new(32);
        for _ in 0..8 {
            spins_until_sleep(&mut spin);
        }
        for expected in [2, 4, 8, 16, 32, 32] {
            assert!(spin.keep_spinning());
            spin.work_found();
            assert_eq!(spin.budget, expected);
        }
    }

    #[test]
    fn work_that_was_there_at_once_changes_nothing() {
        let mut spin = AdaptiveSpin::new(640);
        spins_until_sleep(&mut spin);
        spin.work_found();
        assert_eq!(spins_until_sleep(&mut spin), 320);
    }

    #[test]
    fn no_spins_mean_no_spins() {
        let mut spin = AdaptiveSpin::new(0);
        assert!(!spin.keep_spinning());
        spin.work_found();
        assert!(!spin.keep_spinning());
    }
}
