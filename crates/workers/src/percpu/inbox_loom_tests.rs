//! Models of protocol P: every interleaving of a few pushes, takes, closings and openings.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};

use super::{Inbox, PushError, TakeResult};
use crate::wake_event::WakeEvent;

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
        assert!(matches!(inbox.take(), TakeResult::Closed), "a take never opens what was closed");
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
