//! The items on their way: drawn, worked on, waiting for their turn. The ring has a slot for each and
//! no more slots than the look-ahead, so it is what bounds the memory. It starts no thread and runs
//! no work; [`OrderedPipeline`](super::OrderedPipeline) does both over it.
//!
//! docs/workers.md, protocol O. What is in a slot is guarded by the slot's lock, which nobody ever
//! has to wait for longer than a move takes; the counters only say whose turn it is.

use super::event_count::EventCount;
use crate::cache_padded::CachePadded;
use crate::jobs::task_failure::TaskFailure;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock};
use crate::wake_event::WakeEvent;

/// What became of an item.
pub(super) type ItemResult<R, E> = Result<R, TaskFailure<E>>;

/// What is in a slot.
#[derive(Debug)]
enum RingSlot<T, R, E> {
    /// Nothing: not drawn, or being worked on.
    Empty,
    /// An item that waits to be claimed.
    Item(T),
    /// An item that waits to be committed.
    Done(ItemResult<R, E>),
}

/// Items between the iterator and the commit, numbered from 0 in the order in which they are drawn.
///
/// `next <= claimed <= published <= next + slots` holds at all times. One thread, the caller, draws
/// and commits; every thread claims and finishes.
#[derive(Debug)]
pub(super) struct ReorderRing<T, R, E> {
    slots: Box<[Mutex<RingSlot<T, R, E>>]>,
    /// Items drawn. Written by the caller.
    published: CachePadded<AtomicU64>,
    /// Items claimed. Written by everyone.
    claimed: CachePadded<AtomicU64>,
    /// The item to be committed next. Written by the caller.
    next: CachePadded<AtomicU64>,
    /// No item is claimed any more: one failed, or the caller is done.
    stopped: AtomicBool,
    /// Where helpers wait for items.
    work: EventCount,
    /// Where the caller waits for the item to be committed next.
    ready: WakeEvent,
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
            work: EventCount::new(),
            ready: WakeEvent::new(),
        }
    }

    fn slot(&self, number: u64) -> &Mutex<RingSlot<T, R, E>> {
        #[allow(clippy::cast_possible_truncation, reason = "less than the number of slots")]
        let place = (number % self.slots.len() as u64) as usize;
        &self.slots[place]
    }

    /// Puts something into the slot of item `number` and returns what was there.
    fn exchange(&self, number: u64, content: RingSlot<T, R, E>) -> RingSlot<T, R, E> {
        std::mem::replace(&mut *lock(self.slot(number)), content)
    }

    /// Whether another item may be drawn. Only the caller asks.
    pub(super) fn has_room(&self) -> bool {
        // Relaxed, both: written by this thread.
        let pending = self.published.load(Ordering::Relaxed) - self.next.load(Ordering::Relaxed);
        pending < self.slots.len() as u64 && !self.is_stopped()
    }

    /// Whether every item that was drawn is committed. Only the caller asks.
    pub(super) fn is_settled(&self) -> bool {
        // Relaxed, both: written by this thread.
        self.published.load(Ordering::Relaxed) == self.next.load(Ordering::Relaxed)
    }

    /// O1. Publishes an item for which `has_room` was true. Only the caller does.
    pub(super) fn publish(&self, item: T) {
        let number = self.published.load(Ordering::Relaxed); // written by this thread
        self.exchange(number, RingSlot::Item(item));
        // Release: pairs with the load in `claim`; who sees the number finds the item in its slot.
        self.published.store(number + 1, Ordering::Release);
        self.work.notify_one();
    }

    /// O2. Claims the oldest item that nobody has; none if there is none, or after a stop.
    pub(super) fn claim(&self) -> Option<(u64, T)> {
        // Relaxed: the exchange below decides.
        let mut number = self.claimed.load(Ordering::Relaxed);
        while self.is_claimable(number) {
            // Relaxed, both: that each item is claimed once, and in order, is the total order of the
            // changes of this one word. The item is handed over by `published` and by the lock.
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

    /// O3. Stores what became of item `number`, and tells the caller if it is the one to be committed
    /// next. A failure stops the ring first: all items before it are claimed, so those are finished,
    /// and none behind it is begun any more.
    pub(super) fn finish(&self, number: u64, outcome: ItemResult<R, E>) {
        if outcome.is_err() {
            self.stop();
        }
        self.exchange(number, RingSlot::Done(outcome));
        // Relaxed: the lock of the slot orders this with O4 and O5. If the caller looked into the slot
        // before the outcome came, then what it wrote to `next` before that look is seen here.
        if self.next.load(Ordering::Relaxed) == number {
            self.ready.set();
        }
    }

    /// O4. The outcome of the item to be committed next, if it is there. Only the caller does.
    pub(super) fn take_next(&self) -> Option<ItemResult<R, E>> {
        let number = self.next.load(Ordering::Relaxed); // written by this thread
        let mut slot = lock(self.slot(number));
        match std::mem::replace(&mut *slot, RingSlot::Empty) {
            RingSlot::Done(outcome) => {
                drop(slot);
                // Relaxed: see `finish`.
                self.next.store(number + 1, Ordering::Relaxed);
                Some(outcome)
            }
            other => {
                *slot = other;
                None
            }
        }
    }

    /// O5. Waits for the item to be committed next. Only the caller does, and only while it is not
    /// settled: the item was drawn and is claimed.
    pub(super) fn wait_for_next(&self) -> ItemResult<R, E> {
        loop {
            self.ready.clear();
            if let Some(outcome) = self.take_next() {
                return outcome;
            }
            self.ready.wait();
        }
    }

    /// O6. Waits, on a helper, until there may be an item to claim; false after a stop.
    pub(super) fn wait_for_work(&self) -> bool {
        self.work.wait(|| {
            // Relaxed: an old number makes for a useless look at most.
            self.is_stopped() || self.is_claimable(self.claimed.load(Ordering::Relaxed))
        });
        !self.is_stopped()
    }

    /// Whether nothing more is claimed.
    pub(super) fn is_stopped(&self) -> bool {
        // Relaxed: it hands nothing over; that no item is missed follows from the order of claims.
        self.stopped.load(Ordering::Relaxed)
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed); // see `is_stopped`
    }

    /// O8. Sends all helpers home.
    pub(super) fn close(&self) {
        self.stop();
        self.work.notify_all();
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
