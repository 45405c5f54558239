//! A lane as the submitter sees it: its own copy of the fill word, and which slots it has handed out.
//! It decides which bodies the submitter may touch. docs/workers.md, protocol Q. Called by `queue`.
#![allow(unsafe_code, reason = "a slot's body belongs to whoever the protocol says")]

use super::lane::{Body, Lane};
use crate::sync::Arc;
use crate::thread::Owned;

/// What the submitter knows about a lane.
#[derive(Debug)]
pub(super) struct Side<R> {
    lane: Arc<Lane<R>>,
    fill: u64,
    /// Free slots as of the last look, less those that were filled since.
    free: u64,
    /// Submitted, not taken back, and not collected: the worker's, or on the way back from it.
    pending: u64,
    pub(super) thread: Thread,
}

/// The worker of a lane starts with the lane's first request.
#[derive(Debug)]
pub(super) enum Thread {
    NotStarted,
    Running(#[expect(dead_code, reason = "joined when dropped")] Owned),
    /// The system gave none; the lane is not used again.
    Refused,
}

impl<R> Side<R> {
    pub(super) fn new(lane: Lane<R>) -> Self {
        let free = lane.every_slot();
        Self { lane: Arc::new(lane), fill: 0, free, pending: 0, thread: Thread::NotStarted }
    }

    pub(super) const fn lane(&self) -> &Arc<Lane<R>> {
        &self.lane
    }

    pub(super) const fn pending(&self) -> u64 {
        self.pending
    }

    /// A slot that is known to be free.
    pub(super) fn free_slot(&self) -> Option<usize> {
        (self.free != 0).then(|| self.free.trailing_zeros() as usize)
    }

    /// The body of a slot that is the submitter's.
    ///
    /// # Panics
    ///
    /// When it is not: that would be a mistake of this module.
    pub(super) fn body(&mut self, slot: usize) -> &mut Body<R> {
        assert_eq!(self.pending & (1 << slot), 0, "body: slot {slot} is a worker's");
        // SAFETY: a slot that is not pending was never filled, or `finished` has seen its bits equal
        // (Q10), or `take_back` has claimed it and made them equal (Q11, Q12). A worker claims only
        // what `publish` has filled, which makes the slot pending; so until then nobody else reaches
        // the body, and this `&mut self` keeps every other reference of this side away.
        unsafe { self.lane.own(slot) }
    }

    /// Q2 to Q4: hands over a slot that is the submitter's; says whether that took a system call.
    pub(super) fn publish(&mut self, slot: usize) -> bool {
        let bit = 1 << slot;
        self.fill ^= bit;
        self.free &= !bit;
        self.pending |= bit;
        self.lane.publish(slot, self.fill)
    }

    /// Q10: looks which pending slots are finished; they are the submitter's again. One bit a slot.
    pub(super) fn finished(&mut self) -> u64 {
        self.free = self.lane.free(self.fill);
        let finished = self.pending & self.free;
        self.pending &= !finished;
        finished
    }

    /// Whether `finished` would find any.
    pub(super) fn has_finished(&self) -> bool {
        self.pending & self.lane.free(self.fill) != 0
    }

    /// Q11 and Q12: takes a pending slot back unless somebody has begun it.
    pub(super) fn take_back(&mut self, slot: usize) -> bool {
        if !self.lane.claim(slot) {
            return false;
        }
        self.fill ^= 1 << slot;
        self.pending &= !(1 << slot);
        self.lane.withdraw(self.fill);
        true
    }
}
