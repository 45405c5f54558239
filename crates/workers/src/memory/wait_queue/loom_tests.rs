//! Every interleaving of those who wait and those who give back. Sleep has no clock here: a wake-up
//! that is lost is a deadlock, and loom says so.
#![allow(
    clippy::unwrap_used,
    clippy::assertions_on_result_states,
    reason = "a test may fail where it stands"
)]

use super::*;
use crate::sync::{Arc, thread};

const STALL: Duration = Duration::from_secs(3600);

/// A count and those who wait for it: the smallest budget.
struct BudgetInner {
    wait_queue: WaitQueue,
    left: AtomicU32,
}

impl BudgetInner {
    fn with(left: u32) -> Arc<Self> {
        Arc::new(Self { wait_queue: WaitQueue::new(), left: AtomicU32::new(left) })
    }

    fn try_charge_bytes(&self, count: u32) -> Option<()> {
        let mut left = self.left.load(Ordering::SeqCst);
        loop {
            let less = left.checked_sub(count)?;
            match self.left.compare_exchange(left, less, Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) => return Some(()),
                Err(now) => left = now,
            }
        }
    }

    fn take(&self, count: u32) {
        if self.wait_queue.is_empty() && self.try_charge_bytes(count).is_some() {
            return;
        }
        self.wait_queue.wait(STALL, WaitPriority::Normal, || self.try_charge_bytes(count)).unwrap();
    }

    fn give_back(&self, count: u32) {
        self.left.fetch_add(count, Ordering::SeqCst);
        self.wait_queue.notify_waiters();
    }
}

#[test]
fn a_return_just_before_the_sleep_is_not_lost() {
    loom::model(|| {
        let shared = BudgetInner::with(0);
        let waiter = Arc::clone(&shared);
        let thread = thread::spawn(move || waiter.take(1));
        shared.give_back(1);
        thread.join().unwrap();
        assert_eq!(shared.left.load(Ordering::SeqCst), 0);
        assert!(shared.wait_queue.is_empty());
    });
}

#[test]
fn two_returns_are_enough_for_one_that_wants_both() {
    loom::model(|| {
        let shared = BudgetInner::with(0);
        let waiter = Arc::clone(&shared);
        let thread = thread::spawn(move || waiter.take(2));
        shared.give_back(1);
        shared.give_back(1);
        thread.join().unwrap();
        assert_eq!(shared.left.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn of_two_that_wait_both_come_to_their_turn() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let shared = BudgetInner::with(0);
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let waiter = Arc::clone(&shared);
                thread::spawn(move || {
                    waiter.take(1);
                    waiter.give_back(1);
                })
            })
            .collect();
        shared.give_back(1);
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(shared.left.load(Ordering::SeqCst), 1);
        assert!(shared.wait_queue.is_empty());
    });
}

#[test]
fn one_return_for_two_ends_both_waits() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let shared = BudgetInner::with(0);
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let waiter = Arc::clone(&shared);
                thread::spawn(move || waiter.take(1))
            })
            .collect();
        shared.give_back(2);
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(shared.left.load(Ordering::SeqCst), 0);
    });
}
