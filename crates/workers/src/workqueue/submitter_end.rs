//! A queue as the submitter sees it: its own copy of the fill word, and which slots it has handed out.
//! It decides which bodies the submitter may touch. docs/workers.md, protocol Q. Called by `queue`.
#![allow(unsafe_code, reason = "a slot's body belongs to whoever the protocol says")]

use super::worker_queue::{SlotBody, WorkerQueue};
use crate::sync::Arc;
use crate::thread::OwnedThread;

/// What the submitter knows about a queue.
#[derive(Debug)]
pub(super) struct SubmitterEnd<R> {
    queue: Arc<WorkerQueue<R>>,
    fill: u64,
    /// Free slots as of the last look, less those that were filled since.
    free: u64,
    /// Submitted, not taken back, and not collected: the worker's, or on the way back from it.
    pending: u64,
    pub(super) thread: WorkerThread,
}

/// The worker of a queue starts with the queue's first request.
#[derive(Debug)]
pub(super) enum WorkerThread {
    NotStarted,
    Running(#[expect(dead_code, reason = "joined when dropped")] OwnedThread),
    /// The system gave none; the queue is not used again.
    Refused,
}

impl<R> SubmitterEnd<R> {
    pub(super) fn new(queue: WorkerQueue<R>) -> Self {
        let free = queue.slot_mask();
        Self { queue: Arc::new(queue), fill: 0, free, pending: 0, thread: WorkerThread::NotStarted }
    }

    pub(super) const fn queue(&self) -> &Arc<WorkerQueue<R>> {
        &self.queue
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
    pub(super) fn body(&mut self, slot: usize) -> &mut SlotBody<R> {
        assert_eq!(self.pending & (1 << slot), 0, "body: slot {slot} is a worker's");
        // SAFETY: a slot that is not pending was never filled, or `finished` has seen its bits equal
        // (Q10), or `reclaim` has claimed it and made them equal (Q11, Q12). A worker claims only
        // what `publish` has filled, which makes the slot pending; so until then nobody else reaches
        // the body, and this `&mut self` keeps every other reference of this side away.
        unsafe { self.queue.own(slot) }
    }

    /// Q2 to Q4: hands over a slot that is the submitter's; says whether that took a system call.
    pub(super) fn publish(&mut self, slot: usize) -> bool {
        let bit = 1 << slot;
        self.fill ^= bit;
        self.free &= !bit;
        self.pending |= bit;
        self.queue.publish(slot, self.fill)
    }

    /// Q10: looks which pending slots are finished; they are the submitter's again. One bit a slot.
    pub(super) fn finished(&mut self) -> u64 {
        self.free = self.queue.free(self.fill);
        let finished = self.pending & self.free;
        self.pending &= !finished;
        finished
    }

    /// Whether `finished` would find any.
    pub(super) fn has_finished(&self) -> bool {
        self.pending & self.queue.free(self.fill) != 0
    }

    /// Q11 and Q12: takes a pending slot back unless somebody has begun it.
    pub(super) fn reclaim(&mut self, slot: usize) -> bool {
        if !self.queue.claim(slot) {
            return false;
        }
        self.fill ^= 1 << slot;
        self.pending &= !(1 << slot);
        self.queue.withdraw(self.fill);
        true
    }
}
