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
