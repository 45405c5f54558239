//! A worker's loop: look, claim, handle, hand back; spin a little, then sleep. docs/workers.md,
//! protocol Q, steps Q5 to Q9.

use super::lane::Lane;
use super::patience::Patience;
use super::request::{Handler, Outcome};
use super::seat::{Make, Seat};
use crate::event::Event;
use crate::line::Line;
use crate::sync::{Arc, PlainArc, pause};

/// What a worker's thread needs; it owns or shares all of it.
pub(super) struct Worker<H: Handler> {
    pub(super) lane: Arc<Lane<H::Request>>,
    pub(super) finished: Arc<Line<Event>>,
    pub(super) make: PlainArc<Make<H>>,
    pub(super) spin: u32,
}

impl<H: Handler> Worker<H> {
    /// Handles requests until the lane says quit.
    pub(super) fn run(self) {
        let mut seat = Seat::empty();
        let mut done = 0;
        let mut patience = Patience::new(self.spin);
        while !self.lane.must_quit() {
            if self.handle_ready(&mut seat, &mut done) {
                patience.found();
            } else if patience.look_again() {
                pause();
            } else {
                self.sleep(&mut seat, &mut done);
            }
        }
    }

    /// Clear, look again, sleep (protocol E): what is filled after that look finds the event clear
    /// and sets it.
    fn sleep(&self, seat: &mut Seat<H>, done: &mut u64) {
        self.lane.wake().clear();
        if self.handle_ready(seat, done) || self.lane.must_quit() {
            return;
        }
        if self.lane.wake().wait() {
            self.lane.tally.sleeps.add(1);
        }
    }

    /// Handles every slot of one look at the fill word; says whether there was any to claim.
    fn handle_ready(&self, seat: &mut Seat<H>, done: &mut u64) -> bool {
        let mut ready = self.lane.on_their_way(*done);
        let mut has_handled = false;
        while ready != 0 && !(has_handled && self.lane.must_quit()) {
            let slot = ready.trailing_zeros();
            ready &= ready - 1;
            has_handled |= self.handle_slot(slot, seat, done);
        }
        has_handled
    }

    /// Q6 to Q9. A slot that the submitter took back cannot be claimed and is not counted as work,
    /// so a worker sleeps although it may still see the old bit.
    fn handle_slot(&self, slot: u32, seat: &mut Seat<H>, done: &mut u64) -> bool {
        let Some(body) = self.lane.claim_body(slot as usize) else { return false };
        let tally = &self.lane.tally;
        if let Some(submitted) = body.submitted.take() {
            tally.start_delay.record(submitted.elapsed());
        }
        seat.handle(&*self.make, body);
        tally.handled.add(1);
        if body.outcome == Outcome::Panicked {
            tally.panics.add(1);
        }
        *done ^= 1 << slot;
        self.lane.finish(*done);
        // Q9. One load while the submitter does not wait.
        self.finished.set();
        true
    }
}
