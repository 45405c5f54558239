//! The budget by itself: the sum, the two policies, waiting, reclaiming, giving up.
#![allow(
    clippy::unwrap_used,
    clippy::assertions_on_result_states,
    reason = "a test may fail where it stands"
)]

use std::sync::Mutex as StdMutex;
use std::sync::atomic::{AtomicBool as StdBool, AtomicU64 as StdU64, Ordering as StdOrdering};
use std::time::Instant;

use super::*;

const SHORT: Duration = Duration::from_millis(60);

fn kind<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorKind {
    result.unwrap_err().kind()
}

/// Waits until so many wait: an event of the code under test, not a time.
fn wait_for_waiters(budget: &Budget, waiters: u32) {
    while budget.waiters() != waiters {
        std::thread::yield_now();
    }
}

#[test]
fn a_charge_counts_until_it_is_dropped() {
    let budget = Budget::new(100);
    let charge = budget.charge(60, AllocPolicy::MayFail).unwrap();
    assert_eq!((budget.used_bytes(), charge.bytes()), (60, 60));
    drop(charge);
    assert_eq!((budget.used_bytes(), budget.peak_bytes()), (0, 60));
}

#[test]
fn what_may_fail_is_refused_at_the_limit_and_granted_after() {
    let budget = Budget::new(100);
    let held = budget.charge(60, AllocPolicy::MayFail).unwrap();
    assert_eq!(kind(budget.charge(41, AllocPolicy::MayFail)), ErrorKind::NotNow);
    assert_eq!(budget.used_bytes(), 60, "a refusal counts nothing");
    let rest = budget.charge(40, AllocPolicy::MayFail).unwrap();
    assert_eq!(budget.used_bytes(), 100);
    drop((held, rest));
    // Catalogue 16: no refusal is remembered.
    drop(budget.charge(100, AllocPolicy::MayFail).unwrap());
    assert_eq!(budget.stats().refused, 1);
}

#[test]
fn more_than_the_limit_is_out_of_memory_at_once() {
    let budget = Budget::new(100);
    for bytes in [101, u64::MAX] {
        for policy in [AllocPolicy::MayFail, AllocPolicy::MustSucceed] {
            let error = budget.charge(bytes, policy).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutOfMemory);
            assert_eq!((error.amount(), error.limit()), (Some(bytes), Some(100)));
        }
    }
    assert_eq!(budget.stats().waited, 0);
}

#[test]
fn a_sum_that_overflows_is_refused() {
    let budget = Budget::new(u64::MAX);
    let _held = budget.charge(u64::MAX - 1, AllocPolicy::MayFail).unwrap();
    assert_eq!(kind(budget.charge(2, AllocPolicy::MayFail)), ErrorKind::NotNow);
}

#[test]
fn charges_grow_shrink_and_split_without_losing_a_byte() {
    let budget = Budget::new(100);
    let mut charge = budget.charge(50, AllocPolicy::MayFail).unwrap();
    charge.grow(20, AllocPolicy::MayFail).unwrap();
    assert_eq!(kind(charge.grow(31, AllocPolicy::MayFail)), ErrorKind::NotNow);
    assert_eq!((charge.bytes(), budget.used_bytes()), (70, 70));
    charge.shrink(10);
    let part = charge.split(25).unwrap();
    assert!(charge.split(36).is_none());
    assert_eq!((charge.bytes(), part.bytes(), budget.used_bytes()), (35, 25, 60));
    drop(part);
    assert_eq!((charge.bytes(), budget.used_bytes()), (35, 35));
    charge.shrink(u64::MAX);
    assert_eq!((charge.bytes(), budget.used_bytes()), (0, 0));
}

#[test]
fn what_must_succeed_waits_for_bytes_to_come_back() {
    let budget = Budget::new(100);
    let held = budget.charge(80, AllocPolicy::MayFail).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| budget.charge(30, AllocPolicy::MustSucceed).unwrap().bytes());
        wait_for_waiters(&budget, 1);
        assert_eq!(kind(budget.charge(1, AllocPolicy::MayFail)), ErrorKind::NotNow, "it gives way");
        drop(held);
        assert_eq!(waiter.join().unwrap(), 30);
    });
    assert_eq!((budget.used_bytes(), budget.waiters()), (0, 0));
    assert_eq!(budget.stats().waited, 1);
    drop(budget.charge(1, AllocPolicy::MayFail).unwrap());
}

/// An error after the stall time, and the budget works on.
#[test]
fn when_nothing_comes_back_the_answer_is_out_of_memory_not_a_hang() {
    let budget = Budget::with_stall(100, SHORT);
    let held = budget.charge(80, AllocPolicy::MayFail).unwrap();
    let started_at = Instant::now();
    assert_eq!(kind(budget.charge(30, AllocPolicy::MustSucceed)), ErrorKind::OutOfMemory);
    assert!(started_at.elapsed() >= SHORT);
    assert_eq!((budget.used_bytes(), budget.waiters(), budget.stats().gave_up), (80, 0, 1));
    drop(held);
    drop(budget.charge(30, AllocPolicy::MustSucceed).unwrap());
}

#[test]
fn of_two_that_are_stuck_on_each_other_one_gives_up_and_saves_the_other() {
    let budget = Budget::with_stall(100, SHORT);
    let barrier = std::sync::Barrier::new(2);
    let request = || {
        let held = budget.charge(50, AllocPolicy::MustSucceed).unwrap();
        barrier.wait();
        let more = budget.charge(50, AllocPolicy::MustSucceed).map(drop);
        drop(held);
        more
    };
    let results = std::thread::scope(|scope| {
        let other = scope.spawn(request);
        [request(), other.join().unwrap()]
    });
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
    assert_eq!(budget.used_bytes(), 0);
}

/// Four hold a fifth each, need another to finish, and come back for more at once; one wants all.
/// It must come to its turn when the holders have finished, in whatever order they request: the
/// second half of the rounds begins with a request of normal priority between two holders, which
/// once went round for ever.
#[test]
fn a_waiter_for_much_is_not_starved_by_many_for_little() {
    const ROUNDS: u64 = 20;
    let budget = Budget::new(100);
    let granted = StdU64::new(0);
    for round in 0..ROUNDS {
        let is_over = StdBool::new(false);
        let all_hold = std::sync::Barrier::new(5);
        let all = std::thread::scope(|scope| {
            for me in 0..4 {
                let (budget, granted, is_over, all_hold) = (&budget, &granted, &is_over, &all_hold);
                scope.spawn(move || {
                    let mut held = budget.charge(20, AllocPolicy::MustSucceed).unwrap();
                    all_hold.wait();
                    // The big one has the turn before anybody asks for more, and late ones do so
                    // when two have come back for another round.
                    let before = if round >= ROUNDS / 2 && me >= 2 { 3 } else { 1 };
                    while budget.waiters() < before && !is_over.load(StdOrdering::SeqCst) {
                        std::thread::yield_now();
                    }
                    while !is_over.load(StdOrdering::SeqCst) {
                        if held.grow(20, AllocPolicy::MustSucceed).is_err() {
                            return;
                        }
                        granted.fetch_add(1, StdOrdering::SeqCst);
                        drop(held);
                        let Ok(again) = budget.charge(20, AllocPolicy::MustSucceed) else { return };
                        held = again;
                    }
                });
            }
            all_hold.wait();
            let all = budget.charge(100, AllocPolicy::MustSucceed);
            // While it still holds everything, so that nothing later is counted; and before
            // anything can panic, so that a failure is a failure and not a hang.
            is_over.store(true, StdOrdering::SeqCst);
            all.map(drop)
        });
        all.unwrap();
    }
    let counts = budget.stats();
    println!("{granted:?} passed, {counts:?}");
    // The holders finish, once each; no other request passes.
    assert!(granted.into_inner() <= ROUNDS * 8);
    assert_eq!((budget.used_bytes(), counts.gave_up), (0, 0));
}

#[test]
fn a_small_waiter_passes_a_big_one_that_waits_for_it() {
    // The big one waits for what the small one holds, the small one needs a little more to end.
    let budget = Budget::new(100);
    let mut held = budget.charge(50, AllocPolicy::MustSucceed).unwrap();
    std::thread::scope(|scope| {
        let big = scope.spawn(|| budget.charge(90, AllocPolicy::MustSucceed).map(drop));
        wait_for_waiters(&budget, 1);
        held.grow(10, AllocPolicy::MustSucceed).unwrap();
        drop(held);
        big.join().unwrap().unwrap();
    });
    assert_eq!(budget.stats().gave_up, 0);
}

#[test]
fn reclaimers_are_called_before_anybody_sleeps() {
    let budget = Budget::with_stall(100, Duration::from_secs(3600));
    let cache = Arc::new(StdMutex::new(Vec::new()));
    for _ in 0..10 {
        cache.lock().unwrap().push(budget.charge(10, AllocPolicy::MayFail).unwrap());
    }
    let inside = Arc::clone(&cache);
    let registration = budget
        .register_reclaimer(move |bytes| {
            let mut given = 0;
            while given < bytes
                && let Some(charge) = inside.lock().unwrap().pop()
            {
                given += charge.bytes();
            }
            given
        })
        .unwrap();
    let charge = budget.charge(35, AllocPolicy::MustSucceed).unwrap();
    assert_eq!(cache.lock().unwrap().len(), 6, "as much as was missing, no more");
    assert_eq!((budget.stats().reclaimed_bytes, budget.used_bytes()), (40, 95));
    assert_eq!(kind(budget.charge(10, AllocPolicy::MayFail)), ErrorKind::NotNow, "never reclaims");
    assert_eq!(cache.lock().unwrap().len(), 6);
    drop((registration, charge));
}

#[test]
fn a_reclaimer_that_needs_memory_itself_ends_in_an_error_not_in_the_stack() {
    let budget = Budget::with_stall(100, SHORT);
    let held = budget.charge(100, AllocPolicy::MayFail).unwrap();
    let calls = Arc::new(StdU64::new(0));
    let (own, counter) = (budget.clone(), Arc::clone(&calls));
    let registration = budget
        .register_reclaimer(move |bytes| {
            counter.fetch_add(1, StdOrdering::Relaxed);
            own.charge(bytes, AllocPolicy::MustSucceed).map_or(0, |charge| charge.bytes())
        })
        .unwrap();
    assert_eq!(kind(budget.charge(1, AllocPolicy::MustSucceed)), ErrorKind::OutOfMemory);
    assert!(calls.load(StdOrdering::Relaxed) > 0);
    drop(registration);
    drop(held);
    assert_eq!(budget.used_bytes(), 0);
}

#[test]
fn a_reclaimer_that_panics_leaves_the_queue_empty() {
    let budget = Budget::with_stall(10, SHORT);
    let held = budget.charge(10, AllocPolicy::MayFail).unwrap();
    let registration = budget.register_reclaimer(|_| panic!("on purpose")).unwrap();
    let charged = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        budget.charge(1, AllocPolicy::MustSucceed)
    }));
    assert!(charged.is_err());
    drop(registration);
    assert_eq!(budget.waiters(), 0);
    drop(held);
    drop(budget.charge(10, AllocPolicy::MayFail).unwrap());
}

#[test]
fn a_dropped_registration_is_asked_no_more_and_the_list_is_bounded() {
    let budget = Budget::with_stall(10, SHORT);
    let _held = budget.charge(10, AllocPolicy::MayFail).unwrap();
    let calls = Arc::new(StdU64::new(0));
    let counter = Arc::clone(&calls);
    drop(budget.register_reclaimer(move |_| counter.fetch_add(1, StdOrdering::Relaxed)).unwrap());
    assert_eq!(kind(budget.charge(1, AllocPolicy::MustSucceed)), ErrorKind::OutOfMemory);
    assert_eq!(calls.load(StdOrdering::Relaxed), 0);
    let all: Vec<_> = (0..4096).map(|_| budget.register_reclaimer(|_| 0).unwrap()).collect();
    assert_eq!(kind(budget.register_reclaimer(|_| 0)), ErrorKind::InvalidSetting);
    drop(all);
    drop(budget.register_reclaimer(|_| 0).unwrap());
}

#[test]
fn many_threads_never_see_more_used_than_the_limit() {
    let budget = Budget::new(64);
    let inside = StdU64::new(0);
    std::thread::scope(|scope| {
        for me in 0..4_u64 {
            let (budget, inside) = (&budget, &inside);
            scope.spawn(move || {
                let mut state = me + 1;
                for _ in 0..20_000 {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                    let bytes = (state >> 33) % 40;
                    let policy = if state >> 63 == 0 {
                        AllocPolicy::MayFail
                    } else {
                        AllocPolicy::MustSucceed
                    };
                    if let Ok(charge) = budget.charge(bytes, policy) {
                        let sum = inside.fetch_add(bytes, StdOrdering::SeqCst) + bytes;
                        assert!(sum <= 64, "{sum} bytes are inside");
                        inside.fetch_sub(bytes, StdOrdering::SeqCst);
                        drop(charge);
                    } else {
                        assert_eq!(policy, AllocPolicy::MayFail);
                    }
                }
            });
        }
    });
    assert_eq!((budget.used_bytes(), budget.waiters()), (0, 0));
    assert!(budget.peak_bytes() <= 64);
}
