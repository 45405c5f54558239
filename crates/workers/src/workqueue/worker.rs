//! A worker's loop: look, claim, handle, hand back; spin a little, then sleep. docs/workers.md,
//! protocol Q, steps Q5 to Q9.

use super::adaptive_spin::AdaptiveSpin;
use super::handler_cell::{HandlerCell, MakeHandler};
use super::request::{Handler, RequestOutcome};
use super::worker_queue::WorkerQueue;
use crate::cache_padded::CachePadded;
use crate::sync::{Arc, PlainArc, pause};
use crate::wake_event::WakeEvent;

/// What a worker's thread needs; it owns or shares all of it.
pub(super) struct Worker<H: Handler> {
    pub(super) queue: Arc<WorkerQueue<H::Request>>,
    pub(super) finished: Arc<CachePadded<WakeEvent>>,
    pub(super) make: PlainArc<MakeHandler<H>>,
    pub(super) spin: u32,
}

impl<H: Handler> Worker<H> {
    /// Handles requests until the queue says shut_down.
    pub(super) fn run(self) {
        let mut handler_cell = HandlerCell::empty();
        let mut done = 0;
        let mut spin_policy = AdaptiveSpin::new(self.spin);
        while !self.queue.is_shutting_down() {
            if self.handle_ready(&mut handler_cell, &mut done) {
                spin_policy.work_found();
            } else if spin_policy.keep_spinning() {
                pause();
            } else {
                self.sleep(&mut handler_cell, &mut done);
            }
        }
    }

    /// Clear, look again, sleep (protocol E): what is filled after that look finds the event clear
    /// and sets it.
    fn sleep(&self, handler_cell: &mut HandlerCell<H>, done: &mut u64) {
        self.queue.wake().clear();
        if self.handle_ready(handler_cell, done) || self.queue.is_shutting_down() {
            return;
        }
        if self.queue.wake().wait() {
            self.queue.counters.sleeps.add(1);
        }
    }

    /// Handles every slot of one look at the fill word; says whether there was any to claim.
    fn handle_ready(&self, handler_cell: &mut HandlerCell<H>, done: &mut u64) -> bool {
        let mut ready = self.queue.pending(*done);
        let mut has_handled = false;
        while ready != 0 && !(has_handled && self.queue.is_shutting_down()) {
            let slot = ready.trailing_zeros();
            ready &= ready - 1;
            has_handled |= self.handle_slot(slot, handler_cell, done);
        }
        has_handled
    }

    /// Q6 to Q9. A slot that the submitter took back cannot be claimed and is not counted as work,
    /// so a worker sleeps although it may still see the old bit.
    fn handle_slot(&self, slot: u32, handler_cell: &mut HandlerCell<H>, done: &mut u64) -> bool {
        let Some(body) = self.queue.claim_body(slot as usize) else { return false };
        let counters = &self.queue.counters;
        if let Some(submitted) = body.submitted.take() {
            counters.start_delay.record(submitted.elapsed());
        }
        handler_cell.handle(&*self.make, body);
        counters.handled.add(1);
        if body.outcome == RequestOutcome::Panicked {
            counters.panics.add(1);
        }
        *done ^= 1 << slot;
        self.queue.finish(*done);
        // Q9. One load while the submitter does not wait.
        self.finished.set();
        true
    }
}
