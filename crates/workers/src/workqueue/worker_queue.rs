//! What one worker shares with the submitter: a fill word, a done word, a wake-up and the slots, each
//! on lines of their own. docs/workers.md, protocol Q.
//!
//! A bit that is equal in both words belongs to the submitter, one that differs is on its way through
//! the worker. The claim of a slot decides who handles it: the worker, or the submitter that helps.
//! Called by `queue` (the submitter) and `worker`; nobody else touches a slot.
#![allow(unsafe_code, reason = "a slot's body changes hands without a lock, by protocol Q")]

use super::request::RequestOutcome;
use crate::cache_padded::CachePadded;
use crate::counters::{Counter, Histogram};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Cell, Instant, Ordering};
use crate::wake_event::WakeEvent;

/// Nobody may handle the slot: it is empty, or somebody handles it already.
const CLAIMED: u32 = 0;
/// The slot holds a request that nobody has begun.
const FILLED: u32 = 1;

/// What lies in a slot.
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

/// One worker's share of the queue.
#[derive(Debug)]
pub(super) struct WorkerQueue<R> {
    /// Written by the submitter only.
    fill: CachePadded<AtomicU64>,
    /// Written by the worker only.
    done: CachePadded<AtomicU64>,
    wake: CachePadded<WakeEvent>,
    is_shutting_down: AtomicBool,
    slots: Box<[CachePadded<QueueSlot<R>>]>,
    pub(super) counters: CachePadded<QueueCounters>,
}

/// What a worker counts.
#[derive(Debug)]
pub(super) struct QueueCounters {
    pub(super) handled: Counter,
    pub(super) panics: Counter,
    pub(super) sleeps: Counter,
    pub(super) start_delay: Histogram,
}

// SAFETY: the bodies are the only fields that are not Sync by themselves. They are reached through
// `own`, whose callers prove that the slot is the submitter's, and through `claim`, which one thread
// wins; R moves between those threads, so it must be Send. Nobody gets two references to a body, so
// R need not be Sync.
unsafe impl<R: Send> Sync for WorkerQueue<R> {}
// SAFETY: the queue owns its bodies; moving it moves them.
unsafe impl<R: Send> Send for WorkerQueue<R> {}

impl<R> WorkerQueue<R> {
    pub(super) fn new(slots: usize, mut make: impl FnMut() -> R) -> Self {
        let slot = |_| {
            CachePadded(QueueSlot {
                claim: AtomicU32::new(CLAIMED),
                body: Cell::new(SlotBody::new(make())),
            })
        };
        Self {
            fill: CachePadded(AtomicU64::new(0)),
            done: CachePadded(AtomicU64::new(0)),
            wake: CachePadded(WakeEvent::new()),
            is_shutting_down: AtomicBool::new(false),
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
    pub(super) fn slot_mask(&self) -> u64 {
        u64::MAX >> (64 - self.slots.len())
    }

    /// The body of a slot that belongs to the submitter.
    ///
    /// # Safety
    ///
    /// The caller has claimed the slot, or is the submitter and the slot's bits in fill and done are
    /// equal; and no other reference to the body is alive.
    #[allow(
        clippy::mut_from_ref,
        reason = "the slot's protocol decides who may, not the queue's borrow"
    )]
    pub(super) unsafe fn own(&self, slot: usize) -> &mut SlotBody<R> {
        // SAFETY: by this function's contract nobody else reaches the body now.
        self.slots[slot].body.with_mut(|body| unsafe { &mut *body })
    }

    /// Q2, Q3, Q4: hands a filled slot to the worker; `fill` is the submitter's word with the slot's
    /// bit turned. Says whether a sleeping worker was woken, which takes a system call.
    pub(super) fn publish(&self, slot: usize, fill: u64) -> bool {
        // Q2. Pairs with the claim (Q6, Q11): who claims sees the body.
        self.slots[slot].claim.store(FILLED, Ordering::Release);
        // Q3. Pairs with the worker's look (Q5).
        self.fill.store(fill, Ordering::Release);
        // Q4. The event's fence orders Q2 and Q3 before the look at its state (E1).
        self.wake.set()
    }

    /// Q12: takes back the bit of a slot that the submitter has claimed.
    pub(super) fn withdraw(&self, fill: u64) {
        // Nothing is handed over: a worker that still sees the old word fails to claim.
        self.fill.store(fill, Ordering::Relaxed);
    }

    /// Q5: slots that differ between the submitter's word and the worker's own `done`.
    pub(super) fn pending(&self, done: u64) -> u64 {
        // Pairs with Q3; the body itself is seen by way of the claim.
        self.fill.load(Ordering::Acquire) ^ done
    }

    /// Q6 and Q11: at most one thread wins a filled slot, and sees its body.
    pub(super) fn claim(&self, slot: usize) -> bool {
        let claim = &self.slots[slot].claim;
        // A look first: a slot that is not filled costs no exclusive line.
        claim.load(Ordering::Relaxed) == FILLED
            && claim.compare_exchange(FILLED, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// The same, with the body that the winner may touch until `finish`.
    #[allow(clippy::mut_from_ref, reason = "the claim decides who may, not the queue's borrow")]
    pub(super) fn claim_body(&self, slot: usize) -> Option<&mut SlotBody<R>> {
        // SAFETY: this thread has just won the claim, so nobody else touches the body until the
        // slot's bit is turned by `finish` (Q8), which the worker calls when it is done with the
        // reference: `Worker::handle_slot` is the only caller of both.
        self.claim(slot).then(|| unsafe { self.own(slot) })
    }

    /// Q8: hands the slot back; `done` is the worker's word with the slot's bit turned.
    pub(super) fn finish(&self, done: u64) {
        // Pairs with Q10: the submitter sees what the handler wrote.
        self.done.store(done, Ordering::Release);
    }

    /// Q10: slots that belong to the submitter, given its own word.
    pub(super) fn free(&self, fill: u64) -> u64 {
        // Pairs with Q8.
        !(fill ^ self.done.load(Ordering::Acquire)) & self.slot_mask()
    }

    /// Tells the worker to end after the request that it handles.
    pub(super) fn shut_down(&self) {
        // Pairs with the load in `is_shutting_down`; the event's fence orders it before the wake-up.
        self.is_shutting_down.store(true, Ordering::Release);
        self.wake.set();
    }

    pub(super) fn is_shutting_down(&self) -> bool {
        // Pairs with the store in `shut_down`.
        self.is_shutting_down.load(Ordering::Acquire)
    }

    /// Whether the worker sleeps or is about to. It may be wrong by the time it is used.
    pub(super) fn is_idle(&self) -> bool {
        !self.wake.is_set()
    }

    /// The wake-up of this queue's worker.
    pub(super) fn wake(&self) -> &WakeEvent {
        &self.wake
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::mem::{align_of, offset_of};

    use super::{CachePadded, QueueSlot, WorkerQueue};

    /// A-Q9: what different threads write lies on different lines.
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
        let queue = WorkerQueue::new(2, || 0_u32);
        assert!(!queue.claim(0), "an empty slot");
        queue.publish(0, 0b01);
        assert!(!queue.claim(1));
        assert!(queue.claim(0));
        assert!(!queue.claim(0));
        queue.withdraw(0);
        queue.publish(0, 0b01);
        assert!(queue.claim(0));
    }

    #[test]
    fn sixty_four_slots_use_the_whole_word() {
        assert_eq!(WorkerQueue::new(64, || ()).slot_mask(), u64::MAX);
        assert_eq!(WorkerQueue::new(1, || ()).slot_mask(), 1);
    }
}
