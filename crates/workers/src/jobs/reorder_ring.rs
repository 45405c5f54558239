//! The items of an ordered pipeline that are in flight: drawn, being processed, or waiting for their turn to
//! be committed. The ring has one slot an item, and so bounds their number. It starts no thread and runs no
//! work; [`OrderedPipeline`](super::OrderedPipeline) does both over it. [`EventCount`] is where helpers sleep
//! while there is nothing to claim.
//!
//! docs/workers.md, protocol O. A lock guards what is in a slot, and nobody waits for it longer than a move
//! takes; the counters only say whose turn it is.

use crate::cache_padded::CachePadded;
use crate::error::TaskFailure;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Futex, Mutex, Ordering, fence, lock};
use crate::wake_event::WakeEvent;

/// The result of processing an item.
pub(super) type ItemResult<R, E> = Result<R, TaskFailure<E>>;

/// What is in a slot.
#[derive(Debug)]
enum RingSlot<T, R, E> {
    /// Nothing: not drawn, or being processed.
    Empty,
    /// An item that waits to be claimed.
    Item(T),
    /// A result that waits to be committed.
    Done(ItemResult<R, E>),
}

/// Items between the iterator and the commit, numbered from 0 in the order in which they are drawn.
///
/// `next <= claimed <= published <= next + slots` holds at all times. One thread, the caller, draws and
/// commits; the caller and all helpers claim and finish.
#[derive(Debug)]
pub(super) struct ReorderRing<T, R, E> {
    slots: Box<[Mutex<RingSlot<T, R, E>>]>,
    /// Items published. Written by the caller.
    published: CachePadded<AtomicU64>,
    /// Items claimed. Written by everyone.
    claimed: CachePadded<AtomicU64>,
    /// The item to be committed next. Written by the caller.
    next: CachePadded<AtomicU64>,
    /// No item is claimed any more: one failed, or the caller is done.
    stopped: AtomicBool,
    /// Where helpers wait for items.
    items_available: EventCount,
    /// Where the caller waits for the item to be committed next.
    next_done: WakeEvent,
}

impl<T, R, E> ReorderRing<T, R, E> {
    /// `slots` is at least 1.
    pub(super) fn new(slots: usize) -> Self {
        Self {
            slots: (0..slots.max(1)).map(|_| Mutex::new(RingSlot::Empty)).collect(),
            published: CachePadded(AtomicU64::new(0)),
            claimed: CachePadded(AtomicU64::new(0)),
            next: CachePadded(AtomicU64::new(0)),
            stopped: AtomicBool::new(false),
            items_available: EventCount::new(),
            next_done: WakeEvent::new(),
        }
    }

    fn slot(&self, number: u64) -> &Mutex<RingSlot<T, R, E>> {
        #[allow(clippy::cast_possible_truncation, reason = "less than the number of slots")]
        let index = (number % self.slots.len() as u64) as usize;
        &self.slots[index]
    }

    /// Puts something into the slot of item `number` and returns what was there.
    fn exchange(&self, number: u64, content: RingSlot<T, R, E>) -> RingSlot<T, R, E> {
        std::mem::replace(&mut *lock(self.slot(number)), content)
    }

    /// Whether another item may be published. Only the caller asks.
    pub(super) fn has_room(&self) -> bool {
        // Relaxed, both: written by this thread.
        let pending = self.published.load(Ordering::Relaxed) - self.next.load(Ordering::Relaxed);
        pending < self.slots.len() as u64 && !self.is_stopped()
    }

    /// Whether every item that was published is committed. Only the caller asks.
    pub(super) fn is_settled(&self) -> bool {
        // Relaxed, both: written by this thread.
        self.published.load(Ordering::Relaxed) == self.next.load(Ordering::Relaxed)
    }

    /// O1. Publishes an item for which `has_room` was true. Only the caller does.
    pub(super) fn publish(&self, item: T) {
        let number = self.published.load(Ordering::Relaxed); // written by this thread
        self.exchange(number, RingSlot::Item(item));
        // Release: pairs with the load in `claim`; the claimer finds the item in its slot.
        self.published.store(number + 1, Ordering::Release);
        self.items_available.notify_one();
    }

    /// O2. Claims the oldest item that nobody has; none if there is none, or after a stop.
    pub(super) fn claim(&self) -> Option<(u64, T)> {
        // Relaxed: the exchange below decides.
        let mut number = self.claimed.load(Ordering::Relaxed);
        while self.is_claimable(number) {
            // Relaxed, both: each item is claimed once and in order, because all changes of this one word
            // have a total order. `published` and the lock hand the item over.
            let claim = self.claimed.compare_exchange_weak(
                number,
                number + 1,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            match claim {
                Err(now) => number = now,
                Ok(_) => {
                    return match self.exchange(number, RingSlot::Empty) {
                        RingSlot::Item(item) => Some((number, item)),
                        // Nobody else takes an item out of its slot.
                        RingSlot::Empty | RingSlot::Done(_) => None,
                    };
                }
            }
        }
        None
    }

    fn is_claimable(&self, number: u64) -> bool {
        // Acquire: pairs with the release in `publish`.
        number < self.published.load(Ordering::Acquire) && !self.is_stopped()
    }

    /// O3. Stores the result of item `number`, and wakes the caller if that item is the one to be committed
    /// next. A failure stops the ring first: all items before it are claimed, so those are finished, and none
    /// behind it begins any more.
    pub(super) fn finish(&self, number: u64, result: ItemResult<R, E>) {
        if result.is_err() {
            self.stop();
        }
        self.exchange(number, RingSlot::Done(result));
        // Relaxed: the lock of the slot orders this with O4 and O5. If the caller looked into the slot before
        // the result came, then what it wrote to `next` before that look is seen here.
        if self.next.load(Ordering::Relaxed) == number {
            self.next_done.set();
        }
    }

    /// O4. The result of the item to be committed next, if it is there. Only the caller does.
    pub(super) fn take_next(&self) -> Option<ItemResult<R, E>> {
        let number = self.next.load(Ordering::Relaxed); // written by this thread
        let mut slot = lock(self.slot(number));
        match std::mem::replace(&mut *slot, RingSlot::Empty) {
            RingSlot::Done(result) => {
                drop(slot);
                // Relaxed: see `finish`.
                self.next.store(number + 1, Ordering::Relaxed);
                Some(result)
            }
            other => {
                *slot = other;
                None
            }
        }
    }

    /// O5. Waits for the item to be committed next. Only the caller does, and only while it is not settled:
    /// the item is published, and a thread has claimed it or a helper will.
    pub(super) fn wait_for_next(&self) -> ItemResult<R, E> {
        loop {
            self.next_done.clear();
            if let Some(result) = self.take_next() {
                return result;
            }
            self.next_done.wait();
        }
    }

    /// O6. Waits, on a helper, until there may be an item to claim; false after a stop.
    pub(super) fn wait_for_work(&self) -> bool {
        self.items_available.wait(|| {
            // Relaxed: an old number costs a useless look at most.
            self.is_stopped() || self.is_claimable(self.claimed.load(Ordering::Relaxed))
        });
        !self.is_stopped()
    }

    /// Whether nothing more is claimed.
    fn is_stopped(&self) -> bool {
        // Relaxed: it hands nothing over; that no item is missed follows from the order of claims.
        self.stopped.load(Ordering::Relaxed)
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed); // see `is_stopped`
    }

    /// O8. Ends the loops of all helpers.
    pub(super) fn close(&self) {
        self.stop();
        self.items_available.notify_all();
    }
}

/// A count of notifications that threads can sleep on. Many may wait, one thread notifies, and that costs a
/// system call only if somebody waits. It guards nothing itself: the waiter brings the condition.
///
/// docs/workers.md, steps O6 and O7.
#[derive(Debug)]
struct EventCount {
    /// Changed by every notification, so that a waiter that looked before it does not fall asleep after it.
    epoch: CachePadded<Futex>,
    /// How many may sleep.
    waiters: CachePadded<AtomicU32>,
}

impl EventCount {
    fn new() -> Self {
        Self { epoch: CachePadded(Futex::new(0)), waiters: CachePadded(AtomicU32::new(0)) }
    }

    /// O6. Sleeps unless `has_cause` is true already. It may return without cause: callers look again.
    fn wait(&self, has_cause: impl Fn() -> bool) {
        // Acquire: pairs with the release in `advance`; the waiter sees the cause, too.
        let seen = self.epoch.word.load(Ordering::Acquire);
        self.waiters.fetch_add(1, Ordering::Relaxed);
        // The look at the cause comes after the entry in `waiters`: pairs with the fence in `advance`. Either
        // the notifier sees that somebody waits, or the cause is seen here.
        fence(Ordering::SeqCst);
        if !has_cause() {
            self.epoch.wait(seen);
        }
        // Relaxed: a number that is too high for a moment costs the notifier a system call, no more.
        self.waiters.fetch_sub(1, Ordering::Relaxed);
    }

    /// O7. Lets one waiter look again, after the cause was made visible.
    fn notify_one(&self) {
        if self.advance() {
            self.epoch.wake_one();
        }
    }

    /// O7. Lets all waiters look again.
    fn notify_all(&self) {
        if self.advance() {
            self.epoch.wake_all();
        }
    }

    /// Whether anybody is there to be woken.
    fn advance(&self) -> bool {
        // Pairs with the fence in `wait`.
        fence(Ordering::SeqCst);
        if self.waiters.load(Ordering::Relaxed) == 0 {
            return false;
        }
        // Release: pairs with the acquire in `wait`.
        self.epoch.word.fetch_add(1, Ordering::Release);
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn after_a_failure_nothing_is_begun_and_what_was_begun_is_committed() {
        let ring: ReorderRing<char, u8, &str> = ReorderRing::new(4);
        for item in ['a', 'b', 'c'] {
            assert!(ring.has_room());
            ring.publish(item);
        }
        assert_eq!((ring.claim(), ring.claim()), (Some((0, 'a')), Some((1, 'b'))));
        ring.finish(1, Err(TaskFailure::Error("failed")));
        assert_eq!(ring.claim(), None);
        assert!(!ring.has_room() && ring.take_next().is_none());
        ring.finish(0, Ok(7));
        assert!(matches!(ring.take_next(), Some(Ok(7))));
        assert!(matches!(ring.wait_for_next(), Err(TaskFailure::Error("failed"))));
    }

    #[test]
    fn a_full_ring_has_room_again_after_a_commit() {
        let ring: ReorderRing<u8, u8, ()> = ReorderRing::new(1);
        for item in 0..5 {
            ring.publish(item);
            assert!(!ring.has_room() && !ring.is_settled());
            assert_eq!(ring.claim(), Some((u64::from(item), item)));
            ring.finish(u64::from(item), Ok(item));
            assert!(matches!(ring.take_next(), Some(Ok(result)) if result == item));
            assert!(ring.has_room() && ring.is_settled());
        }
    }
}
