//! What submitters and the worker of a CPU share: an inbox, which is a list that any thread may push to and that
//! is taken as a whole, and the event on which the worker sleeps. An inbox can be closed, and then it gives back
//! what is pushed. It knows nothing of threads and never waits.
//!
//! docs/workers.md, steps P1 to P11. Submitters push, the CPU's worker takes, the registry opens and closes. An
//! inbox lives as long as its pool, and nobody reads an item that is still in the list: so neither a grace period
//! nor any other reclamation scheme is needed.
#![allow(unsafe_code, reason = "an intrusive list of boxes behind one atomic pointer")]

use std::ptr;

use crate::counters::{CachePadded, Counter};
use crate::flags::WakeEvent;
use crate::sync::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use crate::unbound::WorkItem;

/// The most items that wait in one inbox. Decoding the smallest unit takes some microseconds, so this many are a
/// millisecond of work. A longer queue keeps no worker busier; it only delays work and holds its memory. A
/// submitter that meets the limit runs the work itself.
#[cfg(not(loom))]
pub(crate) const MAX_ITEMS: usize = 256;
#[cfg(loom)]
pub(crate) const MAX_ITEMS: usize = 3;

/// One item and the one that was pushed before it.
struct InboxNode<T> {
    item: T,
    earlier: *mut InboxNode<T>,
}

/// The head of a closed inbox. No node has this address: a node has the alignment of a pointer at least, so its
/// address is even.
fn closed<T>() -> *mut InboxNode<T> {
    ptr::without_provenance_mut(1)
}

/// Why an item was not pushed. It comes back in the error.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PushError<T> {
    /// Nobody serves this inbox.
    Closed(T),
    /// [`MAX_ITEMS`] items wait already.
    Full(T),
}

/// What a worker takes out of an inbox.
#[derive(Debug)]
pub(crate) enum TakeResult<T> {
    /// Everything that was there, oldest first; at least one item.
    Items(ItemBatch<T>),
    /// There is nothing.
    Empty,
    /// The inbox is closed: the worker must end.
    Closed,
}

/// A list of items that can be closed.
#[derive(Debug)]
pub(crate) struct Inbox<T> {
    /// Null (open and empty), [`closed`], or the newest node.
    head: AtomicPtr<InboxNode<T>>,
    /// At least the number of nodes in the list; a reservation is made before a push.
    items: AtomicUsize,
}

// SAFETY: an item is owned by one thread at a time: by the pusher until P3, by the list, then by the
// one whose exchange (P5, P7) took the list. So sharing an inbox only moves items between threads,
// which `T: Send` allows.
unsafe impl<T: Send> Send for Inbox<T> {}
// SAFETY: as above; no `&T` is ever handed out.
unsafe impl<T: Send> Sync for Inbox<T> {}

impl<T> Inbox<T> {
    /// An inbox that is closed.
    pub(crate) fn new() -> Self {
        Self { head: AtomicPtr::new(closed()), items: AtomicUsize::new(0) }
    }

    /// Adds an item, or gives it back.
    pub(crate) fn push(&self, item: T) -> Result<(), PushError<T>> {
        // P1. Most refusals end here, before anything is allocated. Relaxed: P3 decides.
        if self.head.load(Ordering::Relaxed) == closed() {
            return Err(PushError::Closed(item));
        }
        // P2. Reserves a place. Relaxed: the number guards no memory.
        if self.items.fetch_add(1, Ordering::Relaxed) >= MAX_ITEMS {
            self.items.fetch_sub(1, Ordering::Relaxed);
            return Err(PushError::Full(item));
        }
        let node = Box::into_raw(Box::new(InboxNode { item, earlier: ptr::null_mut() }));
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            if head == closed() {
                self.items.fetch_sub(1, Ordering::Relaxed);
                // SAFETY: `node` came from `Box::into_raw` above and was not published: every
                // exchange below failed, and a successful one returns.
                let node = unsafe { Box::from_raw(node) };
                return Err(PushError::Closed(node.item));
            }
            // SAFETY: `node` is not published yet (as above), so this thread alone has it.
            unsafe { (*node).earlier = head };
            // P3. Release: the node's content is seen by the thread that takes the list, P5 or P7. A
            // later push is a read-modify-write too and so keeps this release in its sequence.
            // `head` may have been taken, freed and allocated again meanwhile: then it is in the
            // list again, and the link is right all the same, since no push reads through it.
            match self.head.compare_exchange_weak(head, node, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return Ok(()),
                Err(now) => head = now,
            }
        }
    }

    /// Takes all items.
    pub(crate) fn take(&self) -> TakeResult<T> {
        // P4. Relaxed: the worker that goes to sleep on this answer has a fence in front (E4).
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            if head.is_null() {
                return TakeResult::Empty;
            }
            if head == closed() {
                return TakeResult::Closed;
            }
            // P5. An exchange with a comparison, not a swap, because a swap could open what was
            // closed in between. Acquire: pairs with P3 of every node in the list.
            let emptied = ptr::null_mut();
            match self.head.compare_exchange_weak(
                head,
                emptied,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return TakeResult::Items(self.unlinked(head)),
                Err(now) => head = now,
            }
        }
    }

    /// P6. Opens the inbox; false when it was open already, and then nothing has happened.
    pub(crate) fn open(&self) -> bool {
        // AcqRel: the opener has seen what the closer did before P7, and a thread that pushes or takes
        // afterwards has seen what was done before opening.
        self.head
            .compare_exchange(closed(), ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// P7. Closes the inbox and returns what nobody took. Closing twice is harmless.
    pub(crate) fn close(&self) -> ItemBatch<T> {
        // Acquire: pairs with P3. Release: pairs with P6.
        let head = self.head.swap(closed(), Ordering::AcqRel);
        if head == closed() {
            return ItemBatch { next: ptr::null_mut(), left: 0 };
        }
        self.unlinked(head)
    }

    /// A list that was just taken out of `head`, oldest item first.
    fn unlinked(&self, mut newest: *mut InboxNode<T>) -> ItemBatch<T> {
        let mut batch = ItemBatch { next: ptr::null_mut(), left: 0 };
        while !newest.is_null() {
            // SAFETY: the list was taken by one exchange, so no other thread can reach its nodes;
            // each came from `Box::into_raw` in `push` and is linked to one earlier node or null:
            // `push` returns at `closed`, so that a link never holds it.
            let earlier = unsafe { std::mem::replace(&mut (*newest).earlier, batch.next) };
            batch.next = newest;
            batch.left += 1;
            newest = earlier;
        }
        // P8. The places are free again as soon as the items have left, not when they have run.
        // Every subtracted one was added (P2) before its node was published, so this cannot wrap.
        self.items.fetch_sub(batch.left, Ordering::Relaxed);
        batch
    }
}

impl<T> Drop for Inbox<T> {
    fn drop(&mut self) {
        drop(self.close());
    }
}

/// Items that left an inbox together, oldest first. Dropping it drops what is left.
pub(crate) struct ItemBatch<T> {
    next: *mut InboxNode<T>,
    left: usize,
}

// SAFETY: a batch owns its nodes alone (see `unlinked`), so it is a list of boxes.
unsafe impl<T: Send> Send for ItemBatch<T> {}

impl<T> ItemBatch<T> {
    /// How many items are left.
    pub(crate) fn len(&self) -> usize {
        self.left
    }
}

impl<T> Iterator for ItemBatch<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        if self.next.is_null() {
            return None;
        }
        // SAFETY: the node came from `Box::into_raw` and this batch is its only owner; the link to
        // it is replaced in the next line, so it is freed once.
        let node = unsafe { Box::from_raw(self.next) };
        self.next = node.earlier;
        self.left -= 1;
        Some(node.item)
    }
}

impl<T> Drop for ItemBatch<T> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

impl<T> std::fmt::Debug for ItemBatch<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ItemBatch").field("left", &self.left).finish_non_exhaustive()
    }
}

/// What submitters touch of a CPU: its inbox and the event on which its worker sleeps. There is one for every CPU
/// number that the machine may ever have, as long as the pool lives, whether a worker serves it or not.
#[derive(Debug)]
pub(crate) struct CpuQueue {
    /// Written by every submitter.
    pub(crate) inbox: CachePadded<Inbox<WorkItem>>,
    /// Read by submitters; written when the worker goes to sleep or is woken.
    doorbell: CachePadded<Doorbell>,
}

#[derive(Debug)]
struct Doorbell {
    event: WakeEvent,
    is_leaving: AtomicBool,
    wake_ups: Counter,
}

impl CpuQueue {
    pub(crate) fn new() -> Self {
        let doorbell = Doorbell {
            event: WakeEvent::new(),
            is_leaving: AtomicBool::new(false),
            wake_ups: Counter::default(),
        };
        Self { inbox: CachePadded(Inbox::new()), doorbell: CachePadded(doorbell) }
    }

    /// P10. Queues work for the CPU's worker, or gives it back.
    ///
    /// After the push this touches the queue and nothing else: the work may have run by then, and all that it
    /// owned may be freed. The queue lives as long as the pool that the caller holds.
    pub(crate) fn submit(&self, work: WorkItem) -> Result<(), PushError<WorkItem>> {
        self.inbox.push(work)?;
        self.ring();
        Ok(())
    }

    /// Opens the inbox. The registry has set the phase in which a worker takes.
    pub(crate) fn open(&self) {
        // Relaxed, here and below: only a hint for how soon the worker looks at its inbox again.
        self.doorbell.is_leaving.store(false, Ordering::Relaxed);
        let is_opened = self.inbox.open();
        debug_assert!(is_opened, "CpuQueue::open: a CPU has one worker at a time");
    }

    /// Closes the inbox and tells the worker. Returns what waited.
    pub(crate) fn close(&self) -> ItemBatch<WorkItem> {
        self.doorbell.is_leaving.store(true, Ordering::Relaxed);
        let rest = self.inbox.close();
        self.ring();
        rest
    }

    /// Whether the worker should look at its inbox before the next item.
    pub(crate) fn is_leaving(&self) -> bool {
        self.doorbell.is_leaving.load(Ordering::Relaxed)
    }

    pub(crate) fn event(&self) -> &WakeEvent {
        &self.doorbell.event
    }

    pub(crate) fn wake_ups(&self) -> u64 {
        self.doorbell.wake_ups.value()
    }

    fn ring(&self) {
        if self.doorbell.event.set() {
            self.doorbell.wake_ups.add_shared(1);
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    //! Models of protocol P: every interleaving of a few pushes, takes, closings and openings.

    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicUsize, Ordering};

    use super::{Inbox, PushError, TakeResult};
    use crate::flags::WakeEvent;

    /// An item whose content loom watches: reading it without having seen the push is a race, and
    /// dropping it twice or never shows in `alive`.
    struct Item {
        content: loom::cell::UnsafeCell<usize>,
        alive: Arc<AtomicUsize>,
    }

    impl Item {
        fn new(value: usize, alive: &Arc<AtomicUsize>) -> Self {
            alive.fetch_add(1, Ordering::Relaxed);
            let content = loom::cell::UnsafeCell::new(0);
            // Written after it was made, as a submitter fills in what its worker reads.
            content.with_mut(|content| {
                // SAFETY: nobody else has the item.
                unsafe { *content = value };
            });
            Self { content, alive: Arc::clone(alive) }
        }

        fn read(&self) -> usize {
            self.content.with(|content| {
                // SAFETY: the item is owned; loom reports it if that was not seen.
                unsafe { *content }
            })
        }
    }

    impl Drop for Item {
        fn drop(&mut self) {
            self.read();
            self.alive.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Three forced switches of thread: more find nothing else and take minutes.
    fn model(check: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(3));
        builder.check(check);
    }

    fn opened() -> Arc<Inbox<Item>> {
        let inbox = Arc::new(Inbox::new());
        assert!(inbox.open());
        inbox
    }

    fn values(batch: super::ItemBatch<Item>) -> Vec<usize> {
        batch.map(|item| item.read()).collect()
    }

    fn take_all(inbox: &Inbox<Item>) -> Vec<usize> {
        match inbox.take() {
            TakeResult::Items(batch) => values(batch),
            TakeResult::Empty | TakeResult::Closed => Vec::new(),
        }
    }

    #[test]
    fn two_pushers_and_a_taker_lose_nothing() {
        model(|| {
            let alive = Arc::new(AtomicUsize::new(0));
            let inbox = opened();
            let pushers: Vec<_> = [[1, 2], [3, 4]]
                .into_iter()
                .map(|pair| {
                    let (inbox, alive) = (Arc::clone(&inbox), Arc::clone(&alive));
                    loom::thread::spawn(move || {
                        let kept: Vec<bool> = pair
                            .iter()
                            .map(|&value| inbox.push(Item::new(value, &alive)).is_ok())
                            .collect();
                        pair.into_iter()
                            .zip(kept)
                            .filter(|(_, kept)| *kept)
                            .map(|(value, _)| value)
                            .collect::<Vec<_>>()
                    })
                })
                .collect();
            let mut seen = take_all(&inbox);
            let mut pushed: Vec<usize> =
                pushers.into_iter().flat_map(|pusher| pusher.join().unwrap()).collect();
            seen.extend(take_all(&inbox));
            // The order of one pusher is kept.
            let place = |value| seen.iter().position(|&other| other == value);
            for (first, second) in [(1, 2), (3, 4)] {
                if let (Some(first), Some(second)) = (place(first), place(second)) {
                    assert!(first < second);
                }
            }
            pushed.sort_unstable();
            seen.sort_unstable();
            assert_eq!(seen, pushed);
            assert!(pushed.len() >= super::MAX_ITEMS);
            assert_eq!(alive.load(Ordering::Relaxed), 0);
        });
    }

    #[test]
    fn a_push_against_closing_is_either_drained_or_given_back() {
        model(|| {
            let alive = Arc::new(AtomicUsize::new(0));
            let inbox = opened();
            let pusher = {
                let (inbox, alive) = (Arc::clone(&inbox), Arc::clone(&alive));
                loom::thread::spawn(move || {
                    [1, 2].map(|value| match inbox.push(Item::new(value, &alive)) {
                        Ok(()) => 0,
                        Err(PushError::Closed(item) | PushError::Full(item)) => item.read(),
                    })
                })
            };
            let taker = {
                let inbox = Arc::clone(&inbox);
                loom::thread::spawn(move || take_all(&inbox))
            };
            let mut seen = values(inbox.close());
            seen.extend(pusher.join().unwrap().into_iter().filter(|&value| value != 0));
            seen.extend(taker.join().unwrap());
            assert!(
                matches!(inbox.take(), TakeResult::Closed),
                "a take never opens what was closed"
            );
            seen.sort_unstable();
            assert_eq!(seen, [1, 2]);
            assert_eq!(alive.load(Ordering::Relaxed), 0);
        });
    }

    #[test]
    fn closing_against_opening_and_pushing_keeps_every_item() {
        model(|| {
            let alive = Arc::new(AtomicUsize::new(0));
            let inbox = opened();
            let opener = {
                let inbox = Arc::clone(&inbox);
                loom::thread::spawn(move || inbox.open())
            };
            let pusher = {
                let (inbox, alive) = (Arc::clone(&inbox), Arc::clone(&alive));
                loom::thread::spawn(move || inbox.push(Item::new(1, &alive)).is_ok())
            };
            let mut seen = values(inbox.close());
            let _: bool = opener.join().unwrap();
            let is_pushed = pusher.join().unwrap();
            seen.extend(values(inbox.close()));
            assert_eq!(seen.len(), usize::from(is_pushed));
            assert_eq!(alive.load(Ordering::Relaxed), 0);
        });
    }

    #[test]
    fn only_one_of_two_openers_wins() {
        model(|| {
            let inbox: Arc<Inbox<Item>> = Arc::new(Inbox::new());
            let other = {
                let inbox = Arc::clone(&inbox);
                loom::thread::spawn(move || inbox.open())
            };
            let mine = inbox.open();
            assert!(mine ^ other.join().unwrap());
        });
    }

    /// The worker's loop without what it runs: returns what it saw before it found the inbox closed.
    fn serve(inbox: &Inbox<Item>, event: &WakeEvent) -> Vec<usize> {
        let mut seen = Vec::new();
        loop {
            match inbox.take() {
                TakeResult::Items(batch) => {
                    seen.extend(values(batch));
                    continue;
                }
                TakeResult::Closed => return seen,
                TakeResult::Empty => {}
            }
            event.clear();
            match inbox.take() {
                TakeResult::Items(batch) => seen.extend(values(batch)),
                TakeResult::Closed => return seen,
                TakeResult::Empty => {
                    let _: bool = event.wait();
                }
            }
        }
    }

    #[test]
    fn a_worker_that_goes_to_sleep_misses_no_push_and_no_closing() {
        model(|| {
            let alive = Arc::new(AtomicUsize::new(0));
            let inbox = opened();
            let event = Arc::new(WakeEvent::new());
            let worker = {
                let (inbox, event) = (Arc::clone(&inbox), Arc::clone(&event));
                loom::thread::spawn(move || serve(&inbox, &event))
            };
            let mut seen = Vec::new();
            if inbox.push(Item::new(1, &alive)).is_err() {
                panic!("the inbox is open and has room");
            }
            let _: bool = event.set();
            if inbox.push(Item::new(2, &alive)).is_err() {
                panic!("the inbox is open and has room");
            }
            let _: bool = event.set();
            seen.extend(values(inbox.close()));
            let _: bool = event.set();
            seen.extend(worker.join().unwrap());
            seen.sort_unstable();
            assert_eq!(seen, [1, 2]);
            assert_eq!(alive.load(Ordering::Relaxed), 0);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    //! The inbox as a list, and under threads that push, take, open and close at random.
    #![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};

    use super::{Inbox, MAX_ITEMS, PushError, TakeResult};

    fn taken<T>(inbox: &Inbox<T>) -> Vec<T> {
        match inbox.take() {
            TakeResult::Items(batch) => batch.collect(),
            TakeResult::Empty | TakeResult::Closed => Vec::new(),
        }
    }

    #[test]
    fn items_come_out_in_the_order_they_went_in() {
        let inbox = Inbox::new();
        assert!(inbox.open());
        for item in 0..10 {
            inbox.push(item).unwrap();
        }
        assert_eq!(taken(&inbox), (0..10).collect::<Vec<_>>());
        assert!(matches!(inbox.take(), TakeResult::Empty));
    }

    #[test]
    fn a_closed_inbox_gives_the_item_back() {
        let inbox = Inbox::new();
        assert_eq!(inbox.push(7), Err(PushError::Closed(7)));
        assert!(matches!(inbox.take(), TakeResult::Closed));
        assert!(inbox.open());
        assert!(!inbox.open(), "only one opens");
        assert_eq!(inbox.push(7), Ok(()));
    }

    #[test]
    fn a_full_inbox_gives_the_item_back_until_it_is_taken() {
        let inbox = Inbox::new();
        assert!(inbox.open());
        for item in 0..MAX_ITEMS {
            inbox.push(item).unwrap();
        }
        assert_eq!(inbox.push(9999), Err(PushError::Full(9999)));
        assert_eq!(taken(&inbox).len(), MAX_ITEMS);
        assert_eq!(inbox.push(1), Ok(()));
    }

    #[test]
    fn closing_returns_what_was_queued_and_opening_starts_empty() {
        let inbox = Inbox::new();
        assert!(inbox.open());
        inbox.push("one").unwrap();
        inbox.push("two").unwrap();
        let left = inbox.close();
        assert_eq!(left.len(), 2);
        assert_eq!(left.collect::<Vec<_>>(), ["one", "two"]);
        assert_eq!(inbox.close().len(), 0);
        assert!(inbox.open());
        assert!(matches!(inbox.take(), TakeResult::Empty));
        for _ in 0..MAX_ITEMS {
            inbox.push("again").unwrap();
        }
    }

    #[test]
    fn what_is_left_is_dropped_once_with_its_owner() {
        let shared = Arc::new(());
        let inbox = Inbox::new();
        assert!(inbox.open());
        for _ in 0..5 {
            inbox.push(Arc::clone(&shared)).unwrap();
        }
        let TakeResult::Items(mut batch) = inbox.take() else { panic!("five are there") };
        drop(batch.next());
        inbox.push(Arc::clone(&shared)).unwrap();
        assert_eq!(Arc::strong_count(&shared), 6);
        drop(batch);
        assert_eq!(Arc::strong_count(&shared), 2);
        drop(inbox);
        assert_eq!(Arc::strong_count(&shared), 1);
    }

    #[test]
    fn nothing_is_lost_or_doubled_while_the_door_opens_and_closes() {
        const PUSHERS: u64 = 3;
        const ITEMS: u64 = if cfg!(miri) { 50 } else { 5_000 };
        let inbox = Inbox::new();
        let done = AtomicBool::new(false);
        let refused = AtomicU64::new(0);
        let seen = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            let pushers: Vec<_> = (0..PUSHERS)
                .map(|pusher| {
                    let (inbox, refused) = (&inbox, &refused);
                    scope.spawn(move || {
                        for item in pusher * ITEMS..(pusher + 1) * ITEMS {
                            let mut item = item;
                            while let Err(PushError::Closed(back) | PushError::Full(back)) =
                                inbox.push(item)
                            {
                                item = back;
                                refused.fetch_add(1, Ordering::Relaxed);
                                std::thread::yield_now();
                            }
                        }
                    })
                })
                .collect();
            let (inbox, done, seen) = (&inbox, &done, &seen);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    assert!(inbox.open());
                    std::thread::yield_now();
                    let left: Vec<u64> = inbox.close().collect();
                    seen.lock().unwrap().extend(left);
                }
            });
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let items = taken(inbox);
                    seen.lock().unwrap().extend(items);
                    std::thread::yield_now();
                }
            });
            for pusher in pushers {
                pusher.join().unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        assert_eq!(seen, (0..PUSHERS * ITEMS).collect::<Vec<_>>());
        assert!(refused.into_inner() > 0);
    }
}
