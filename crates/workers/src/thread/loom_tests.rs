//! Models of the owner of a thread: joined once, by the thread that drops it.
#![allow(clippy::unwrap_used, reason = "a test ends where its world is not as it must be")]

use crate::priority::PriorityRequest;
use crate::sync::{Arc, AtomicU32, Mutex, Ordering, lock};

use super::{OwnedThread, ThreadOptions, start};

fn plain() -> ThreadOptions {
    ThreadOptions { name: String::new(), cpu: None, priority: PriorityRequest::Normal }
}

#[test]
fn what_the_thread_wrote_is_seen_after_its_owner_is_gone() {
    loom::model(|| {
        let word = Arc::new(AtomicU32::new(0));
        let writer = Arc::clone(&word);
        // Relaxed: the join alone must order it.
        let owned = start(plain(), move |_| writer.store(1, Ordering::Relaxed)).unwrap();
        drop(owned);
        assert_eq!(word.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn an_owner_that_either_thread_may_drop_is_dropped_without_a_deadlock() {
    loom::model(|| {
        let slot: Arc<Mutex<Option<OwnedThread>>> = Arc::new(Mutex::new(None));
        let theirs = Arc::clone(&slot);
        let owned = start(plain(), move |_| {
            let taken = lock(&theirs).take();
            assert!(taken.as_ref().is_none_or(OwnedThread::is_current));
            drop(taken);
        })
        .unwrap();
        assert!(!owned.is_current());
        *lock(&slot) = Some(owned);
        let taken = lock(&slot).take();
        drop(taken);
    });
}
