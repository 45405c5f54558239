//! Scratch: guards that stay valid, growth that fails midway, and what is charged.
#![allow(
    clippy::unwrap_used,
    clippy::assertions_on_result_states,
    reason = "a test may fail where it stands"
)]

use std::time::Duration;

use super::*;

const PAGE: usize = 4096;
const SHORT: Duration = Duration::from_millis(60);

/// A-P9, the first half.
#[test]
fn earlier_guards_stay_valid_while_the_scratch_grows() {
    let budget = Budget::new(1 << 30);
    let scratch = Scratch::new(&budget);
    let mut guards = Vec::new();
    for (stamp, pages) in [(1, 1), (2, 16), (3, 256)] {
        let mut guard = scratch.lease(pages * PAGE, AllocPolicy::MustSucceed).unwrap();
        guard.fill(stamp);
        guards.push(guard);
    }
    for ((stamp, pages), guard) in [(1, 1), (2, 16), (3, 256)].into_iter().zip(&guards) {
        assert_eq!(guard.len(), pages * PAGE);
        assert!(guard.iter().all(|byte| *byte == stamp));
    }
    assert_eq!(scratch.resident_bytes(), 273 * PAGE);
    assert_eq!(budget.used_bytes(), 273 * PAGE as u64);
    drop(guards);
    assert_eq!(scratch.resident_bytes(), 273 * PAGE, "it stays");
    drop(scratch);
    assert_eq!(budget.used_bytes(), 0);
}

/// A-P9, the second half; catalogue 3 and 4: a failure at any point of growing.
#[test]
fn a_failure_midway_leaves_the_old_size_usable_and_leaks_nothing() {
    let budget = Budget::with_stall(1 << 30, SHORT);
    let scratch = Scratch::new(&budget);
    drop(scratch.lease(16 * PAGE, AllocPolicy::MustSucceed).unwrap());
    let failures = &budget.system().failures;
    for break_it in [
        (|failures| failures.refuse_maps(0, u32::MAX))
            as fn(&crate::memory::system_memory::failures::Failures),
        |failures| failures.refuse_populations(0, u32::MAX),
    ] {
        break_it(failures);
        let error = scratch.lease(256 * PAGE, AllocPolicy::MustSucceed).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert!(error.raw_os_error().is_some());
        assert_eq!(scratch.resident_bytes(), 16 * PAGE);
        assert_eq!(budget.used_bytes(), 16 * PAGE as u64);
        let mut old = scratch.lease(16 * PAGE, AllocPolicy::MayFail).unwrap();
        old.fill(1);
        let error = scratch.lease(PAGE, AllocPolicy::MustSucceed).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "a new block fails, too");
        assert_eq!(budget.used_bytes(), 16 * PAGE as u64);
        drop(old);
        failures.refuse_maps(0, 0);
        failures.refuse_populations(0, 0);
    }
    let mut large = scratch.lease(256 * PAGE, AllocPolicy::MustSucceed).unwrap();
    large.fill(2);
    drop(large);
    drop(scratch);
    assert_eq!(budget.used_bytes(), 0);
}

/// A-R4 for scratch.
#[test]
fn a_system_that_refuses_a_few_times_is_asked_again() {
    let budget = Budget::new(1 << 30);
    let scratch = Scratch::new(&budget);
    budget.system().failures.refuse_maps(0, 3);
    drop(scratch.lease(PAGE, AllocPolicy::MustSucceed).unwrap());
    budget.system().failures.refuse_populations(0, 3);
    let mut grown = scratch.lease(16 * PAGE, AllocPolicy::MustSucceed).unwrap();
    grown.fill(1);
    assert_eq!((budget.stats().waited, budget.stats().gave_up), (2, 0));
}

#[test]
fn best_effort_gets_what_is_there_and_never_asks_the_system() {
    let budget = Budget::new(1 << 30);
    let scratch = Scratch::new(&budget);
    let refused = |length| scratch.lease(length, AllocPolicy::MayFail).unwrap_err().kind();
    assert_eq!(refused(1), ErrorKind::NotNow);
    assert_eq!(budget.system().maps(), 0);
    drop(scratch.lease(4 * PAGE, AllocPolicy::MustSucceed).unwrap());
    let maps = budget.system().maps();
    let guard = scratch.lease(3 * PAGE, AllocPolicy::MayFail).unwrap();
    assert_eq!(guard.len(), 3 * PAGE);
    assert_eq!(refused(1), ErrorKind::NotNow, "the only block is out");
    drop(guard);
    assert_eq!(refused(4 * PAGE + 1), ErrorKind::NotNow);
    assert_eq!(budget.system().maps(), maps);
    // Catalogue 16.
    drop(scratch.lease(4 * PAGE, AllocPolicy::MayFail).unwrap());
}

#[test]
fn what_is_leased_is_resident_already() {
    let budget = Budget::new(1 << 30);
    let scratch = Scratch::new(&budget);
    let guard = scratch.lease(100 * PAGE, AllocPolicy::MustSucceed).unwrap();
    let mapping = &guard.block.as_ref().unwrap().mapping;
    assert_eq!(mapping.resident_pages() * rustix::param::page_size(), mapping.length());
}

#[test]
fn shrinking_takes_idle_blocks_and_leaves_leased_ones() {
    let budget = Budget::new(1 << 30);
    let scratch = Scratch::new(&budget);
    let held = scratch.lease(16 * PAGE, AllocPolicy::MustSucceed).unwrap();
    drop(scratch.lease(64 * PAGE, AllocPolicy::MustSucceed).unwrap());
    scratch.shrink_to(0);
    assert_eq!((scratch.resident_bytes(), held.len()), (16 * PAGE, 16 * PAGE));
    assert_eq!(budget.used_bytes(), 16 * PAGE as u64);
    drop(held);
    scratch.shrink_to(16 * PAGE);
    assert_eq!(scratch.resident_bytes(), 16 * PAGE);
    scratch.shrink_to(0);
    assert_eq!(budget.used_bytes(), 0);
}

#[test]
fn lengths_of_nothing_of_too_much_and_of_everything() {
    let budget = Budget::with_stall(8 << 20, SHORT);
    let scratch = Scratch::new(&budget);
    assert!(scratch.lease(0, AllocPolicy::MustSucceed).unwrap().is_empty());
    for length in [usize::MAX, isize::MAX as usize, (8 << 20) + 1] {
        let error = scratch.lease(length, AllocPolicy::MustSucceed).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{length}");
    }
    let all = scratch.lease(8 << 20, AllocPolicy::MustSucceed).unwrap();
    assert_eq!((all.len(), budget.used_bytes()), (8 << 20, 8 << 20));
}

#[test]
fn the_number_of_leases_at_a_time_is_bounded() {
    let budget = Budget::new(1 << 30);
    let scratch = Scratch::new(&budget);
    let guards: Vec<_> =
        (0..BLOCKS_MAX).map(|_| scratch.lease(1, AllocPolicy::MustSucceed).unwrap()).collect();
    let error = scratch.lease(1, AllocPolicy::MustSucceed).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidSetting);
    drop(guards);
    drop(scratch.lease(1, AllocPolicy::MustSucceed).unwrap());
}

#[test]
fn scratch_moves_to_another_thread() {
    let budget = Budget::new(1 << 30);
    let scratch = Scratch::new(&budget);
    drop(scratch.lease(PAGE, AllocPolicy::MustSucceed).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(move || scratch.lease(PAGE, AllocPolicy::MayFail).unwrap().fill(1));
    });
    assert_eq!(budget.used_bytes(), 0, "it ended there");
}
