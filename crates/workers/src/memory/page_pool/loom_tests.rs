//! The pool's own step between the stacks and the room, with a real arena.
#![allow(
    clippy::unwrap_used,
    clippy::assertions_on_result_states,
    reason = "a test may fail where it stands"
)]

use std::time::Duration;

use super::*;
use crate::sync::thread;

#[test]
fn a_frame_released_to_the_reserve_reaches_the_one_who_waits() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let budget = Budget::with_stall(1 << 20, Duration::from_secs(3600));
        let pool = PagePool::new(&budget, PagePoolSettings::new(1, 1)).unwrap();
        let held = pool.allocate(AllocPolicy::MustSucceed).unwrap();
        let own = pool.clone();
        let waiter = thread::spawn(move || drop(own.allocate(AllocPolicy::MustSucceed).unwrap()));
        drop(held);
        waiter.join().unwrap();
        assert_eq!(pool.reserved_frames(), 1);
    });
}

#[test]
fn a_frame_returned_to_the_system_reaches_the_one_who_waits() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let budget = Budget::with_stall(1 << 20, Duration::from_secs(3600));
        let pool = PagePool::new(&budget, PagePoolSettings::new(1, 0)).unwrap();
        let held = pool.allocate(AllocPolicy::MustSucceed).unwrap();
        let own = pool.clone();
        let waiter = thread::spawn(move || drop(own.allocate(AllocPolicy::MustSucceed).unwrap()));
        drop(held);
        waiter.join().unwrap();
        assert_eq!((pool.reserved_frames(), pool.vacant_frames()), (0, 1));
    });
}
