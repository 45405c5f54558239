//! What one worker shares with the submitter, and the two ends of it. The shared part is a fill word, a done
//! word, a wake event and the slots, each on cache lines of their own. docs/workers.md, protocol Q.
//!
//! A bit that is equal in both words belongs to the submitter; one that differs is on its way through the
//! worker. The claim of a slot decides who handles it: the worker, or the submitter that helps. Only this file
//! touches slots: its two ends and the guard of a claimed slot cannot be used against the protocol.
#![allow(unsafe_code, reason = "a slot's body changes hands without a lock, by protocol Q")]

use std::ops::{Deref, DerefMut};

use super::RequestOutcome;
use crate::counters::{CachePadded, Counter, Histogram};
use crate::flags::WakeEvent;
use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Cell, Instant, Ordering};

/// Nobody may handle the slot: it is empty, or somebody handles it already.
const CLAIMED: u32 = 0;
/// The slot holds a request that nobody has begun.
const FILLED: u32 = 1;

/// The content of a slot.
#[derive(Debug)]
pub(super) struct SlotBody<R> {
    pub(super) request: R,
    pub(super) outcome: RequestOutcome,
    /// When the request was submitted, if this one is timed.
    pub(super) submitted: Option<Instant>,
}

impl<R> SlotBody<R> {
    pub(super) const fn new(request: R) -> Self {
        Self { request, outcome: RequestOutcome::Done, submitted: None }
    }
}

#[derive(Debug)]
struct QueueSlot<R> {
    claim: AtomicU32,
    body: Cell<SlotBody<R>>,
}

/// The part that both ends share.
#[derive(Debug)]
struct WorkerQueue<R> {
    /// Written by the submitter only.
    fill: CachePadded<AtomicU64>,
    /// Written by the worker only.
    done: CachePadded<AtomicU64>,
    wake: CachePadded<WakeEvent>,
    must_exit: AtomicBool,
    slots: Box<[CachePadded<QueueSlot<R>>]>,
    counters: CachePadded<QueueCounters>,
}

/// What a worker counts.
#[derive(Debug)]
pub(super) struct QueueCounters {
    pub(super) handled: Counter,
    pub(super) panics: Counter,
    pub(super) sleeps: Counter,
    pub(super) start_delay: Histogram,
}

// SAFETY: the bodies are the only fields that are not Sync by themselves. They are reached through `body`
// alone, whose callers prove that the slot is theirs; R moves between those threads, so it must be Send.
// Nobody gets two references to a body, so R need not be Sync.
unsafe impl<R: Send> Sync for WorkerQueue<R> {}
// SAFETY: the queue owns its bodies; moving it moves them.
unsafe impl<R: Send> Send for WorkerQueue<R> {}

impl<R> WorkerQueue<R> {
    fn new(slots: usize, mut make: impl FnMut() -> R) -> Self {
        let slot = |_| {
            let body = Cell::new(SlotBody::new(make()));
            CachePadded(QueueSlot { claim: AtomicU32::new(CLAIMED), body })
        };
        Self {
            fill: CachePadded(AtomicU64::new(0)),
            done: CachePadded(AtomicU64::new(0)),
            wake: CachePadded(WakeEvent::new()),
            must_exit: AtomicBool::new(false),
            slots: (0..slots).map(slot).collect(),
            counters: CachePadded(QueueCounters {
                handled: Counter::default(),
                panics: Counter::default(),
                sleeps: Counter::default(),
                start_delay: Histogram::new(),
            }),
        }
    }

    /// One bit a slot.
    fn slot_mask(&self) -> u64 {
        u64::MAX >> (64 - self.slots.len())
    }

    /// The body of a slot.
    ///
    /// # Safety
    ///
    /// The caller has claimed the slot, or is the submitter and the slot's bits in fill and done are equal; and
    /// no other reference to the body is alive.
    #[allow(
        clippy::mut_from_ref,
        reason = "the protocol grants access, not the borrow of the queue"
    )]
    unsafe fn body(&self, slot: usize) -> &mut SlotBody<R> {
        // SAFETY: by this function's contract nobody else reaches the body now.
        self.slots[slot].body.with_mut(|body| unsafe { &mut *body })
    }

    /// Q6 and Q11: at most one thread wins a filled slot, and sees its body.
    fn claim(&self, slot: usize) -> bool {
        let claim = &self.slots[slot].claim;
        // A look first: a slot that is not filled costs no exclusive cache line.
        claim.load(Ordering::Relaxed) == FILLED
            && claim.compare_exchange(FILLED, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Q10: slots that belong to the submitter, given its own word.
    fn free(&self, fill: u64) -> u64 {
        // Pairs with Q8.
        !(fill ^ self.done.load(Ordering::Acquire)) & self.slot_mask()
    }
}

/// The submitter's end: its own copy of the fill word, and which slots it has submitted.
#[derive(Debug)]
pub(super) struct SubmitterEnd<R> {
    queue: Arc<WorkerQueue<R>>,
    /// The other end, until the worker takes it.
    worker_end: Option<WorkerEnd<R>>,
    fill: u64,
    /// Free slots as of the last look, less those that were filled since.
    free: u64,
    /// Submitted, not reclaimed, and not collected: the worker's, or on the way back from it.
    pending: u64,
}

impl<R> SubmitterEnd<R> {
    /// A queue with so many slots, 1 to 64, whose requests `make` makes.
    pub(super) fn new(slots: usize, make: impl FnMut() -> R) -> Self {
        let queue = Arc::new(WorkerQueue::new(slots, make));
        let free = queue.slot_mask();
        let worker_end = Some(WorkerEnd { queue: Arc::clone(&queue), done: 0 });
        Self { queue, worker_end, fill: 0, free, pending: 0 }
    }

    /// The other end; there is one, so the second call gives none.
    pub(super) fn take_worker_end(&mut self) -> Option<WorkerEnd<R>> {
        self.worker_end.take()
    }

    /// Slots that were submitted and are not collected, one bit each.
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
    /// If it is not, which would be a mistake of the queue.
    pub(super) fn body(&mut self, slot: usize) -> &mut SlotBody<R> {
        self.assert_owned(slot);
        // SAFETY: a slot that is not pending was never filled, or `finished` has seen its bits equal (Q10), or
        // `reclaim` has claimed it and made them equal (Q11, Q12). A worker claims only what `publish` has
        // filled, which makes the slot pending; so until then nobody else reaches the body, and `&mut self`
        // keeps every other reference of this end away.
        unsafe { self.queue.body(slot) }
    }

    fn assert_owned(&self, slot: usize) {
        assert_eq!(self.pending & (1 << slot), 0, "SubmitterEnd: slot {slot} is the worker's");
    }

    /// Q2, Q3, Q4: hands a slot to the worker. Returns whether a sleeping worker was woken, which takes a system
    /// call.
    ///
    /// # Panics
    ///
    /// If the slot is not the submitter's, which would be a mistake of the queue.
    pub(super) fn publish(&mut self, slot: usize) -> bool {
        self.assert_owned(slot);
        let bit = 1 << slot;
        self.fill ^= bit;
        self.free &= !bit;
        self.pending |= bit;
        // Q2. Pairs with the claim (Q6, Q11): the claimer sees the body.
        self.queue.slots[slot].claim.store(FILLED, Ordering::Release);
        // Q3. Pairs with the worker's look (Q5).
        self.queue.fill.store(self.fill, Ordering::Release);
        // Q4. The event's fence orders Q2 and Q3 before the look at its state (E1).
        self.queue.wake.set()
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

    /// Q11 and Q12: takes a slot back that was submitted, unless somebody has begun it.
    pub(super) fn reclaim(&mut self, slot: usize) -> bool {
        if !self.queue.claim(slot) {
            return false;
        }
        self.fill ^= 1 << slot;
        self.pending &= !(1 << slot);
        // Nothing is handed over: a worker that still sees the old word fails to claim.
        self.queue.fill.store(self.fill, Ordering::Relaxed);
        true
    }

    /// Q14: leaves nothing to be begun, and tells the worker to end after the request that it handles.
    pub(super) fn shut_down(&self) {
        for slot in 0..self.queue.slots.len() {
            self.queue.claim(slot);
        }
        // Pairs with the load in `must_exit`; the event's fence orders it before the wake-up.
        self.queue.must_exit.store(true, Ordering::Release);
        self.queue.wake.set();
    }

    /// Whether the worker sleeps or is about to. It may be wrong by the time it is used.
    pub(super) fn is_worker_idle(&self) -> bool {
        !self.queue.wake.is_set()
    }

    /// What the worker has counted.
    pub(super) fn counters(&self) -> &QueueCounters {
        &self.queue.counters
    }
}

/// The worker's end. There is one for each queue.
#[derive(Debug)]
pub(super) struct WorkerEnd<R> {
    queue: Arc<WorkerQueue<R>>,
    /// The worker's own copy of the done word.
    done: u64,
}

impl<R> WorkerEnd<R> {
    /// Q5: slots that are on their way, one bit each.
    pub(super) fn submitted(&self) -> u64 {
        // Pairs with Q3; the body itself is seen by way of the claim.
        self.queue.fill.load(Ordering::Acquire) ^ self.done
    }

    /// Q6: claims a slot; none if the submitter has taken it back.
    pub(super) fn claim(&mut self, slot: usize) -> Option<ClaimedSlot<'_, R>> {
        if !self.queue.claim(slot) {
            return None;
        }
        // Made only now: a guard that is dropped turns the slot's bit.
        Some(ClaimedSlot { end: self, slot })
    }

    /// Whether the worker must end.
    pub(super) fn must_exit(&self) -> bool {
        // Pairs with the store in `shut_down`.
        self.queue.must_exit.load(Ordering::Acquire)
    }

    /// The event on which the worker sleeps.
    pub(super) fn wake(&self) -> &WakeEvent {
        &self.queue.wake
    }

    pub(super) fn counters(&self) -> &QueueCounters {
        &self.queue.counters
    }
}

/// A slot that the worker has claimed. Dropping it hands the slot back (Q8).
#[derive(Debug)]
pub(super) struct ClaimedSlot<'e, R> {
    end: &'e mut WorkerEnd<R>,
    slot: usize,
}

impl<R> ClaimedSlot<'_, R> {
    /// What the worker counts.
    pub(super) fn counters(&self) -> &QueueCounters {
        &self.end.queue.counters
    }
}

impl<R> Deref for ClaimedSlot<'_, R> {
    type Target = SlotBody<R>;

    fn deref(&self) -> &SlotBody<R> {
        // SAFETY: `WorkerEnd::claim` won the claim when it made this guard, so neither the submitter (which
        // finds the slot pending) nor another guard reaches the body before `drop` turns the slot's bit. The
        // reference borrows the guard, which gives out a mutable one in `deref_mut` only.
        self.end.queue.slots[self.slot].body.with_mut(|body| unsafe { &*body })
    }
}

impl<R> DerefMut for ClaimedSlot<'_, R> {
    fn deref_mut(&mut self) -> &mut SlotBody<R> {
        // SAFETY: as in `deref`; the reference borrows the guard mutably, so no other one is alive.
        unsafe { self.end.queue.body(self.slot) }
    }
}

impl<R> Drop for ClaimedSlot<'_, R> {
    /// Q8: hands the slot back.
    fn drop(&mut self) {
        self.end.done ^= 1 << self.slot;
        // Pairs with Q10: the submitter sees what the handler wrote.
        self.end.queue.done.store(self.end.done, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::mem::{align_of, offset_of};

    use super::{CachePadded, QueueSlot, SubmitterEnd, WorkerQueue};

    /// What different threads write lies on different cache lines.
    #[test]
    fn fill_done_wake_and_every_slot_have_lines_of_their_own() {
        let offsets = [
            offset_of!(WorkerQueue<u8>, fill),
            offset_of!(WorkerQueue<u8>, done),
            offset_of!(WorkerQueue<u8>, wake),
            offset_of!(WorkerQueue<u8>, counters),
        ];
        for (index, offset) in offsets.iter().enumerate() {
            assert_eq!(offset % 128, 0);
            assert!(!offsets[..index].contains(offset));
        }
        assert!(align_of::<CachePadded<QueueSlot<u8>>>() >= 128);
        let queue = WorkerQueue::new(3, || 0_u8);
        assert_eq!((&raw const queue.slots[0]).addr() % 128, 0);
    }

    #[test]
    fn a_slot_is_claimed_once_for_each_time_it_is_filled() {
        let mut submitter = SubmitterEnd::new(2, || 0_u32);
        let mut worker = submitter.take_worker_end().unwrap();
        assert!(worker.claim(0).is_none(), "an empty slot");
        submitter.publish(0);
        assert!(worker.claim(1).is_none());
        let mut claimed = worker.claim(0).unwrap();
        claimed.request = 7;
        assert!(!submitter.reclaim(0));
        assert_eq!(submitter.finished(), 0, "a claim that fails hands nothing back");
        drop(claimed);
        assert!(worker.claim(0).is_none());
        assert_eq!((submitter.finished(), submitter.body(0).request), (0b01, 7));
        submitter.publish(0);
        assert!(submitter.reclaim(0) && !submitter.reclaim(0));
        assert_eq!((worker.submitted(), submitter.body(0).request), (0, 7));
    }

    #[test]
    fn there_is_one_worker_end() {
        let mut submitter = SubmitterEnd::new(1, || ());
        assert!(submitter.take_worker_end().is_some());
        assert!(submitter.take_worker_end().is_none());
    }

    #[test]
    #[should_panic(expected = "slot 0 is the worker's")]
    fn a_submitted_slot_cannot_be_touched() {
        let mut submitter = SubmitterEnd::new(1, || 0_u8);
        submitter.publish(0);
        submitter.body(0);
    }

    #[test]
    #[should_panic(expected = "slot 0 is the worker's")]
    fn a_submitted_slot_cannot_be_submitted_again() {
        let mut submitter = SubmitterEnd::new(1, || 0_u8);
        submitter.publish(0);
        submitter.publish(0);
    }

    #[test]
    fn sixty_four_slots_use_the_whole_word() {
        assert_eq!(WorkerQueue::new(64, || ()).slot_mask(), u64::MAX);
        assert_eq!(WorkerQueue::new(1, || ()).slot_mask(), 1);
    }
}
