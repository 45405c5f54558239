//! Contiguous buffers: which block a lease gets, what best effort never does, and what a failure
//! leaves.
#![allow(
    clippy::unwrap_used,
    clippy::assertions_on_result_states,
    reason = "a test may fail where it stands"
)]

use super::*;
use crate::memory::FaultPlan;

const PAGE: usize = 4096;
const SHORT: Duration = Duration::from_millis(30);

fn buffers(limit: u64) -> (Budget, BufferPool) {
    let budget = Budget::with_stall(limit, SHORT);
    let buffers = BufferPool::new(&budget).unwrap();
    (budget, buffers)
}

fn must(buffers: &BufferPool, length: usize) -> Buffer {
    buffers.lease(length, AllocPolicy::MustSucceed).unwrap()
}

fn refusal(buffers: &BufferPool, length: usize) -> ErrorKind {
    buffers.lease(length, AllocPolicy::MayFail).unwrap_err().kind()
}

/// Leases of idle blocks, blocks that were mapped, and refusals.
fn numbers(buffers: &BufferPool) -> (u64, u64, u64) {
    let BufferPoolStats { from_idle, mapped, refused, .. } = buffers.stats();
    (from_idle, mapped, refused)
}

#[test]
fn a_lease_has_its_length_and_is_charged_for_its_block() {
    let (budget, buffers) = buffers(1 << 30);
    for (length, block) in [
        (0, PAGE),
        (1, PAGE),
        (PAGE, PAGE),
        (PAGE + 1, 2 * PAGE),
        (700 << 10, 1 << 20),
        ((1 << 20) + 1, 2 << 20),
        ((12 << 20) + 5, 13 << 20),
    ] {
        let mut buffer = must(&buffers, length);
        buffer.fill(7);
        assert_eq!((buffer.len(), buffer.resident_bytes()), (length, block as u64));
        assert_eq!(budget.used_bytes(), buffers.idle_bytes() + block as u64);
        let mapping = &buffer.block.as_ref().unwrap().mapping;
        assert_eq!(mapping.resident_pages() * rustix::param::page_size(), block);
        drop(buffer);
        buffers.release_idle(u64::MAX);
        assert_eq!(budget.used_bytes(), 0);
    }
}

#[test]
fn an_end_that_is_cut_off_stays_off() {
    let (_budget, buffers) = buffers(1 << 20);
    let mut buffer = must(&buffers, 100);
    buffer[..40].fill(3);
    buffer.truncate(40);
    buffer.truncate(60);
    assert_eq!(&buffer[..], &[3; 40]);
    assert_eq!(buffer.resident_bytes(), PAGE as u64);
}

#[test]
fn the_block_that_was_released_last_comes_first() {
    let (_budget, buffers) = buffers(1 << 20);
    let leases: Vec<_> = (0..3).map(|_| must(&buffers, PAGE)).collect();
    let addresses: Vec<_> = leases.iter().map(|lease| lease.as_ptr()).collect();
    leases.into_iter().for_each(drop);
    let again: Vec<_> = (0..3).map(|_| must(&buffers, PAGE)).collect();
    let seen: Vec<_> = again.iter().map(|lease| lease.as_ptr()).collect();
    assert!(seen.iter().eq(addresses.iter().rev()));
    assert_eq!(numbers(&buffers), (3, 3, 0));
}

#[test]
fn an_idle_block_serves_what_is_at_most_four_times_smaller() {
    let (_budget, buffers) = buffers(1 << 30);
    drop(must(&buffers, 16 * PAGE));
    assert_eq!(refusal(&buffers, PAGE), ErrorKind::NotNow, "it is sixteen times as large");
    assert_eq!(refusal(&buffers, 2 * PAGE), ErrorKind::NotNow);
    let small = must(&buffers, 2 * PAGE);
    assert_eq!(small.resident_bytes(), 2 * PAGE as u64, "rather a new one than so large a one");
    let fitting = buffers.lease(3 * PAGE, AllocPolicy::MayFail).unwrap();
    assert_eq!(fitting.resident_bytes(), 16 * PAGE as u64);
    drop((small, fitting));
    let smallest = must(&buffers, 2 * PAGE);
    assert_eq!(smallest.resident_bytes(), 2 * PAGE as u64, "the smallest that fits");
}

#[test]
fn best_effort_makes_no_call_to_the_system_and_faults_nothing() {
    let (budget, buffers) = buffers(1 << 30);
    assert_eq!(refusal(&buffers, 1), ErrorKind::NotNow, "free bytes are not enough");
    assert_eq!(buffers.preallocate(64 << 10, 4), 4);
    let before = (budget.stats().mapping_calls, budget.stats().populating_calls);
    let leases: Vec<_> = (0..4)
        .map(|_| {
            let mut buffer = buffers.lease(40 << 10, AllocPolicy::MayFail).unwrap();
            let mapping = &buffer.block.as_ref().unwrap().mapping;
            assert_eq!(mapping.resident_pages() * PAGE, 64 << 10, "before anybody writes");
            buffer.fill(1);
            buffer
        })
        .collect();
    assert_eq!(refusal(&buffers, 40 << 10), ErrorKind::NotNow, "all are out");
    drop(leases);
    drop(buffers.lease(64 << 10, AllocPolicy::MayFail).unwrap());
    assert_eq!((budget.stats().mapping_calls, budget.stats().populating_calls), before);
    assert_eq!(numbers(&buffers), (5, 4, 2));
}

#[test]
fn best_effort_does_not_wait_for_the_lock() {
    let (_budget, buffers) = buffers(1 << 20);
    drop(must(&buffers, PAGE));
    let guard = lock(&buffers.inner.free_lists);
    assert_eq!(refusal(&buffers, PAGE), ErrorKind::NotNow);
    drop(guard);
    drop(buffers.lease(PAGE, AllocPolicy::MayFail).unwrap());
}

#[test]
fn best_effort_yields_to_waiters_and_to_a_plan_of_refusals() {
    let budget = Budget::new(4 * PAGE as u64);
    let buffers = BufferPool::new(&budget).unwrap();
    let held = must(&buffers, 2 * PAGE);
    drop(must(&buffers, PAGE));
    budget.refuse_best_effort(true);
    assert_eq!(refusal(&buffers, PAGE), ErrorKind::NotNow);
    budget.refuse_best_effort(false);
    drop(buffers.lease(PAGE, AllocPolicy::MayFail).unwrap());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| must(&buffers, 4 * PAGE).len());
        while budget.waiters() != 1 {
            std::thread::yield_now();
        }
        assert_eq!(refusal(&buffers, PAGE), ErrorKind::NotNow);
        drop(held);
        assert_eq!(waiter.join().unwrap(), 4 * PAGE);
    });
}

#[test]
fn a_reserve_is_used_before_anything_is_mapped_beyond_it() {
    let (budget, buffers) = buffers(64 * PAGE as u64);
    buffers.set_reserve(2 * PAGE as u64);
    let kept = Mutex::new(Vec::new());
    let asked = PlainAtomicU64::new(0);
    let evict = |bytes| {
        assert_eq!(bytes, PAGE as u64);
        asked.fetch_add(1, Ordering::Relaxed);
        lock(&kept).pop().map_or(0, |buffer: Buffer| buffer.resident_bytes())
    };
    let lease = |kept_on: bool| {
        let buffer = buffers.lease_from_reserve(PAGE, evict).unwrap();
        if kept_on {
            lock(&kept).push(buffer);
        }
    };
    lease(true);
    lease(true);
    assert_eq!((asked.load(Ordering::Relaxed), buffers.stats().mapped), (0, 2), "it grows");
    lease(false);
    lease(false);
    assert_eq!(
        (asked.load(Ordering::Relaxed), buffers.stats().mapped),
        (1, 2),
        "evicted, then idle"
    );
    lease(true);
    drop(lock(&kept).drain(..).collect::<Vec<_>>());
    // Nothing to let go of: it is mapped.
    let held: Vec<_> = (0..3).map(|_| buffers.lease_from_reserve(PAGE, evict).unwrap()).collect();
    assert_eq!((asked.load(Ordering::Relaxed), buffers.stats().mapped), (2, 3));
    drop(held);
    // A block that is in use does not come back: the pool does not request it without end.
    let all: Vec<_> = (0..3).map(|_| must(&buffers, PAGE)).collect();
    let in_vain = PlainAtomicU64::new(0);
    let more = buffers.lease_from_reserve(PAGE, |bytes| {
        in_vain.fetch_add(1, Ordering::Relaxed);
        bytes
    });
    assert_eq!((in_vain.load(Ordering::Relaxed), buffers.stats().mapped), (4, 4));
    assert_eq!(buffers.stats().refused, 0);
    drop((all, more, budget));
}

// A reserve that was faulted in has blocks of one length.
#[test]
fn shorter_blocks_go_for_a_longer_one() {
    let (budget, buffers) = buffers(64 * PAGE as u64);
    let reserve = 8 * PAGE as u64;
    buffers.set_max_idle(reserve);
    buffers.set_reserve(reserve);
    assert_eq!(buffers.fill_reserve(PAGE, 1).unwrap(), reserve);
    let nothing_to_free = |_| panic!("what idles is enough");
    let first = buffers.lease_from_reserve(4 * PAGE, nothing_to_free).unwrap();
    let second = buffers.lease_from_reserve(4 * PAGE, nothing_to_free).unwrap();
    assert_eq!((buffers.idle_bytes(), budget.used_bytes()), (0, reserve));
    drop((first, second));
    let mapped = buffers.stats().mapped;
    drop(buffers.lease_from_reserve(3 * PAGE, nothing_to_free).unwrap());
    assert_eq!(buffers.stats().mapped, mapped, "from then on there is one");
}

#[test]
fn best_effort_leaves_what_it_is_told() {
    let (_budget, buffers) = buffers(64 * PAGE as u64);
    buffers.set_reserve(8 * PAGE as u64);
    buffers.fill_reserve(2 * PAGE, 1).unwrap();
    let left = 5 * PAGE as u64;
    let taken = buffers.lease_above_watermark(PAGE, left).unwrap();
    assert_eq!(buffers.lease_above_watermark(1, left).unwrap_err().kind(), ErrorKind::NotNow);
    assert_eq!((buffers.idle_bytes(), buffers.stats().refused), (6 * PAGE as u64, 1));
    assert_eq!(buffers.lease_above_watermark(1, u64::MAX).unwrap_err().kind(), ErrorKind::NotNow);
    drop(taken);
}

#[test]
fn without_a_reserve_no_room_is_made() {
    let (_budget, buffers) = buffers(64 * PAGE as u64);
    let held = buffers.lease_from_reserve(PAGE, |_| panic!("there is none to make")).unwrap();
    assert_eq!((buffers.leased_bytes(), held.len()), (PAGE as u64, PAGE));
}

#[test]
fn nobody_of_a_reserve_passes_those_who_wait() {
    let budget = Budget::new(4 * PAGE as u64);
    let buffers = BufferPool::new(&budget).unwrap();
    buffers.set_reserve(2 * PAGE as u64);
    let (held, idle) = (must(&buffers, 2 * PAGE), must(&buffers, PAGE));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| must(&buffers, 4 * PAGE).len());
        while budget.waiters() != 1 {
            std::thread::yield_now();
        }
        drop(idle);
        let second = scope.spawn(|| {
            let lease = buffers.lease_from_reserve(PAGE, |_| panic!("others wait for it"));
            lease.unwrap().len()
        });
        // It ends at once where it does not wait, with a panic or a buffer.
        while budget.waiters() != 2 && !second.is_finished() {
            std::thread::yield_now();
        }
        drop(held);
        assert_eq!((waiter.join().unwrap(), second.join().unwrap()), (4 * PAGE, PAGE));
    });
}

#[test]
fn at_the_limit_idle_blocks_of_another_size_go() {
    let (budget, buffers) = buffers(64 * PAGE as u64);
    let small: Vec<_> = (0..64).map(|_| must(&buffers, PAGE)).collect();
    drop(small);
    let large = must(&buffers, 32 * PAGE);
    assert_eq!((buffers.leased_bytes(), budget.used_bytes()), (32 * PAGE as u64, 64 * PAGE as u64));
    assert_eq!(buffers.idle_bytes(), 32 * PAGE as u64, "as much as was missing");
    let charge = budget.charge(20 * PAGE as u64, AllocPolicy::MustSucceed).unwrap();
    assert_eq!(buffers.idle_bytes(), 12 * PAGE as u64, "others get it, too");
    drop((large, charge));
}

#[test]
fn a_waiter_gets_what_somebody_releases() {
    let budget = Budget::new(8 * PAGE as u64);
    let buffers = BufferPool::new(&budget).unwrap();
    let held = must(&buffers, 8 * PAGE);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| must(&buffers, 7 * PAGE).len());
        while budget.waiters() != 1 {
            std::thread::yield_now();
        }
        drop(held);
        assert_eq!(waiter.join().unwrap(), 7 * PAGE);
    });
    // The block itself, or its bytes, where the waiter had begun to reclaim them.
    assert!(buffers.stats().mapped <= 2 && budget.peak_bytes() <= budget.limit_bytes());
}

#[test]
fn more_than_the_limit_is_out_of_memory_at_once_and_a_stall_after_a_while() {
    let (budget, buffers) = buffers(8 << 20);
    for length in [(8 << 20) + 1, isize::MAX as usize, usize::MAX] {
        for policy in [AllocPolicy::MayFail, AllocPolicy::MustSucceed] {
            assert_eq!(buffers.lease(length, policy).unwrap_err().kind(), ErrorKind::OutOfMemory);
        }
        assert_eq!(buffers.preallocate(length, 1), 0);
    }
    assert_eq!(budget.stats().waited, 0);
    let all = must(&buffers, 8 << 20);
    let error = buffers.lease(1, AllocPolicy::MustSucceed).unwrap_err();
    assert_eq!((error.kind(), error.amount()), (ErrorKind::OutOfMemory, Some(PAGE as u64)));
    drop(all);
    assert_eq!(must(&buffers, 8 << 20).len(), 8 << 20);
}

/// A failure at every request of a lease, one that stays and one that passes.
#[test]
fn whichever_request_fails_the_answer_is_an_error_and_all_is_as_before() {
    let (budget, buffers) = buffers(1 << 30);
    let held = must(&buffers, PAGE);
    let before = (budget.used_bytes(), buffers.leased_bytes(), buffers.idle_bytes());
    let mut failures = 0;
    for after in 0.. {
        budget.inject_failures(FaultPlan { after, count: u64::MAX, ..FaultPlan::default() });
        let leased = buffers.lease(8 * PAGE, AllocPolicy::MustSucceed).map(drop);
        let hits = budget.injected_failures();
        budget.inject_failures(FaultPlan::default());
        if hits == 0 {
            leased.unwrap();
            break;
        }
        assert_eq!(leased.unwrap_err().kind(), ErrorKind::OutOfMemory);
        let now = (budget.used_bytes(), buffers.leased_bytes(), buffers.idle_bytes());
        assert_eq!(now, before, "after {after} requests");
        failures += 1;
    }
    assert_eq!(failures, 3, "bytes, mapping, faulting in");
    drop(held);
    buffers.release_idle(u64::MAX);
    assert_eq!(budget.used_bytes(), 0);
    // One that passes is survived.
    for after in 0..failures {
        budget.inject_failures(FaultPlan { after, count: 1, ..FaultPlan::default() });
        drop(must(&buffers, 8 * PAGE));
        assert_eq!(budget.injected_failures(), 1);
        buffers.release_idle(u64::MAX);
    }
}

#[test]
fn a_preallocation_that_fails_midway_is_a_smaller_one() {
    let (budget, buffers) = buffers(8 * PAGE as u64);
    for after in 0..3 {
        budget.inject_failures(FaultPlan { after, count: 1, ..FaultPlan::default() });
        assert_eq!(buffers.preallocate(PAGE, 3), 0, "{after}");
        assert_eq!((budget.used_bytes(), buffers.idle_bytes()), (0, 0));
    }
    assert_eq!(buffers.preallocate(PAGE, 3), 3);
    assert_eq!(buffers.preallocate(PAGE, 5), 2, "up to so many");
    assert_eq!(buffers.preallocate(PAGE, 100), 3, "as much as there is room");
    assert_eq!((budget.stats().waited, budget.stats().gave_up), (0, 0));
    assert_eq!(buffers.idle_bytes(), budget.limit_bytes());
}

#[test]
fn giving_back_takes_what_was_idle_longest() {
    let (_budget, buffers) = buffers(1 << 30);
    let leases = [must(&buffers, 4 * PAGE), must(&buffers, PAGE), must(&buffers, 2 * PAGE)];
    leases.into_iter().for_each(drop);
    assert_eq!(buffers.release_idle(0), 0);
    assert_eq!(buffers.release_idle(1), 4 * PAGE as u64);
    assert_eq!(buffers.release_idle(PAGE as u64 + 1), 3 * PAGE as u64);
    assert_eq!(buffers.release_idle(u64::MAX), 0);
}

#[test]
fn leases_outlive_every_handle_and_nothing_is_left() {
    let budget = Budget::new(1 << 20);
    let buffers = BufferPool::new(&budget).unwrap();
    let mut buffer = must(&buffers, PAGE);
    drop(must(&buffers, 2 * PAGE));
    drop(buffers);
    assert_eq!(budget.used_bytes(), 3 * PAGE as u64);
    // Idle ones can still be reclaimed.
    let charge = budget.charge((1 << 20) - PAGE as u64, AllocPolicy::MustSucceed).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| buffer.fill(5));
    });
    buffer.truncate(2);
    assert_eq!(&buffer[..], &[5, 5]);
    drop((charge, buffer));
    assert_eq!(budget.used_bytes(), 0);
    // Its reclaimer is gone: there is room for all 64 again.
    let all: Vec<_> = (0..4096).map(|_| budget.register_reclaimer(|_| 0).unwrap()).collect();
    assert_eq!(BufferPool::new(&budget).unwrap_err().kind(), ErrorKind::InvalidSetting);
    drop(all);
}

#[test]
fn a_long_block_that_comes_back_pushes_out_as_many_short_ones_as_it_takes() {
    let (budget, buffers) = buffers(1 << 30);
    buffers.set_max_idle(64 << 10);
    drop((0..16).map(|_| must(&buffers, PAGE)).collect::<Vec<_>>());
    assert_eq!(buffers.idle_bytes(), 64 << 10);
    for _ in 0..3 {
        drop(must(&buffers, 32 << 10));
        assert!(buffers.idle_bytes() <= 64 << 10, "{}", buffers.idle_bytes());
    }
    assert_eq!(budget.used_bytes(), buffers.idle_bytes());
}

#[test]
fn no_more_stays_idle_than_is_to_be_kept() {
    let budget = Budget::new(1 << 20);
    let buffers = BufferPool::new(&budget).unwrap();
    buffers.set_max_idle(100 << 10);
    let held: Vec<_> =
        (0..8).map(|_| buffers.lease(64 << 10, AllocPolicy::MustSucceed).unwrap()).collect();
    drop(held);
    assert_eq!(buffers.idle_bytes(), 64 << 10);
    assert_eq!(budget.used_bytes(), 64 << 10);
}

#[test]
fn what_is_reserved_serves_whatever_is_shorter() {
    let (_budget, buffers) = buffers(1 << 20);
    buffers.set_reserve(64 * PAGE as u64);
    drop(must(&buffers, 64 * PAGE));
    let one = buffers.lease(1, AllocPolicy::MayFail).unwrap();
    assert_eq!(one.resident_bytes(), 64 * PAGE as u64);
    assert_eq!(refusal(&buffers, 1), ErrorKind::NotNow);
    drop(one);
    buffers.set_reserve(0);
    assert_eq!(refusal(&buffers, 1), ErrorKind::NotNow, "it is no reserve any more");
}

#[test]
fn a_reserve_stays_when_idle_blocks_are_released_and_serves_who_must_have_it() {
    let (budget, buffers) = buffers(16 * PAGE as u64);
    buffers.set_reserve(4 * PAGE as u64);
    drop((0..8).map(|_| must(&buffers, PAGE)).collect::<Vec<_>>());
    assert_eq!(buffers.release_idle(u64::MAX), 4 * PAGE as u64);
    assert_eq!(buffers.idle_bytes(), 4 * PAGE as u64);
    // Other sizes: nothing of what is idle fits.
    let all = must(&buffers, 16 * PAGE);
    assert_eq!((buffers.idle_bytes(), budget.used_bytes()), (0, 16 * PAGE as u64));
    drop(all);
}

#[test]
fn a_reserve_is_filled_by_several_threads_and_never_beyond_the_budget() {
    let (budget, buffers) = buffers(200 * PAGE as u64);
    assert_eq!(buffers.fill_reserve(PAGE, 2), Ok(0));
    buffers.set_reserve(130 * PAGE as u64);
    assert_eq!(buffers.fill_reserve(PAGE, 2), Ok(130 * PAGE as u64));
    let counts = buffers.stats();
    assert_eq!((counts.mapped, buffers.idle_bytes()), (130, 130 * PAGE as u64));
    assert!(counts.mapping_nanos > 0);
    let _lease = must(&buffers, PAGE);
    assert_eq!(buffers.stats().from_idle, 1);
    buffers.set_reserve(1000 * PAGE as u64);
    assert_eq!(buffers.fill_reserve(PAGE, 2), Ok(70 * PAGE as u64));
    assert_eq!(budget.used_bytes(), 200 * PAGE as u64);
    buffers.fill_reserve(usize::MAX, 1).unwrap_err();
}

#[test]
fn a_stock_is_never_more_than_may_lie_idle() {
    let (_budget, buffers) = buffers(1 << 20);
    buffers.set_max_idle(0);
    assert_eq!(buffers.preallocate(PAGE, 2), 0);
    buffers.set_max_idle(3 * PAGE as u64);
    assert_eq!(buffers.preallocate(2 * PAGE, 2), 1);
    assert_eq!(buffers.preallocate(PAGE, 2), 1);
    assert_eq!(buffers.stats().mapped, 2);
}

/// Blocks of a reserve of `count` pages, which came in one piece.
fn filled(count: usize) -> (Budget, BufferPool) {
    let (budget, buffers) = buffers((2 * count * PAGE) as u64);
    buffers.set_reserve((count * PAGE) as u64);
    assert_eq!(buffers.fill_reserve(PAGE, 1), Ok((count * PAGE) as u64));
    let counts = budget.stats();
    assert_eq!((counts.mapping_calls, counts.populating_calls), (1, 1));
    (budget, buffers)
}

#[test]
fn blocks_that_were_mapped_together_are_resident_charged_and_nobody_elses() {
    let (budget, buffers) = filled(63);
    let mut leases: Vec<_> =
        (0..63).map(|_| buffers.lease(PAGE, AllocPolicy::MayFail).unwrap()).collect();
    for (lease, value) in leases.iter_mut().zip(0_u8..) {
        let block = lease.block.as_ref().unwrap();
        assert_eq!(block.mapping.resident_pages() * rustix::param::page_size(), PAGE);
        lease.fill(value);
    }
    // Every third ends, and its bytes with it; what lies between them stays.
    let ends = |place: usize| place.is_multiple_of(3);
    let mut place = 0;
    leases.retain(|_| {
        place += 1;
        !ends(place - 1)
    });
    assert_eq!(buffers.idle_bytes(), 21 * PAGE as u64);
    assert_eq!(buffers.inner.reclaim(u64::MAX), 21 * PAGE as u64);
    assert_eq!((budget.used_bytes(), buffers.leased_bytes()), (42 * PAGE as u64, 42 * PAGE as u64));
    let values = (0_u8..63).filter(|value| !ends(usize::from(*value)));
    assert!(
        leases.iter().zip(values).all(|(lease, value)| lease.iter().all(|byte| *byte == value))
    );
    drop(leases);
    buffers.inner.reclaim(u64::MAX);
    assert_eq!((budget.used_bytes(), buffers.leased_bytes()), (0, 0));
}

#[test]
fn a_reserve_that_does_not_come_in_one_piece_comes_in_smaller_ones() {
    // Bytes, mapping, faulting in: of the whole, and of its half, which fails once more.
    for (after, count) in [(0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (0, 5)] {
        let (budget, buffers) = buffers(64 * PAGE as u64);
        buffers.set_reserve(63 * PAGE as u64);
        budget.inject_failures(FaultPlan { after, count, ..FaultPlan::default() });
        assert_eq!(buffers.fill_reserve(PAGE, 1), Ok(63 * PAGE as u64), "{after}, {count}");
        assert_eq!(budget.injected_failures(), count);
        assert_eq!((buffers.stats().mapped, budget.used_bytes()), (63, 63 * PAGE as u64));
        assert_eq!((buffers.leased_bytes(), budget.stats().waited), (0, 0));
    }
}

#[test]
fn a_reserve_that_fails_for_good_leaves_what_came() {
    let mut parts = 0;
    for after in 0..24 {
        let (budget, buffers) = buffers(100 * PAGE as u64);
        // The budget has less, so it comes in chunks: 60, 30, 7, 3.
        buffers.set_reserve(120 * PAGE as u64);
        budget.inject_failures(FaultPlan { after, count: u64::MAX, ..FaultPlan::default() });
        let came = buffers.fill_reserve(PAGE, 2).unwrap();
        assert!(came.is_multiple_of(PAGE as u64) && came <= 100 * PAGE as u64);
        assert_eq!(after < 4, came == 0, "{after}: {came}");
        parts += u32::from(came > 0 && came < 100 * PAGE as u64);
        assert_eq!((buffers.idle_bytes(), budget.used_bytes()), (came, came));
        assert_eq!((buffers.leased_bytes(), budget.stats().waited), (0, 0));
        assert_eq!(buffers.stats().mapped, came / PAGE as u64);
    }
    assert!(parts > 3, "{parts}");
}

#[test]
fn a_reserve_that_several_threads_fault_in_is_resident() {
    const BLOCK: usize = 64 << 10;
    let (budget, buffers) = buffers(1 << 30);
    buffers.set_reserve(40 << 20);
    assert_eq!(buffers.fill_reserve(BLOCK, 3), Ok(40 << 20));
    let leases: Vec<_> =
        (0..640).map(|_| buffers.lease(BLOCK, AllocPolicy::MayFail).unwrap()).collect();
    for lease in &leases {
        let mapping = &lease.block.as_ref().unwrap().mapping;
        assert_eq!(mapping.resident_pages() * rustix::param::page_size(), BLOCK);
        assert!(lease.iter().all(|byte| *byte == 0));
    }
    assert_eq!((numbers(&buffers), budget.used_bytes()), ((640, 640, 0), 40 << 20));
}

#[test]
fn a_reserve_takes_what_is_left_of_the_budget_and_of_what_may_lie_idle() {
    let (budget, buffers) = buffers(200 * PAGE as u64);
    buffers.set_reserve(200 * PAGE as u64);
    buffers.set_max_idle(101 * PAGE as u64);
    assert_eq!(buffers.fill_reserve(PAGE, 1), Ok(101 * PAGE as u64));
    buffers.set_max_idle(u64::MAX);
    let held = budget.charge(56 * PAGE as u64, AllocPolicy::MustSucceed).unwrap();
    assert_eq!(buffers.fill_reserve(PAGE, 1), Ok(43 * PAGE as u64));
    assert_eq!(budget.used_bytes(), budget.limit_bytes());
    assert_eq!((budget.stats().waited, buffers.idle_bytes()), (0, 144 * PAGE as u64));
    drop(held);
    budget.refuse_best_effort(true);
    assert_eq!(buffers.fill_reserve(PAGE, 1), Ok(0), "the system is short");
}

/// A second of leases of all lengths and both policies on eight threads, under a budget too small
/// for them, with blocks given back, trimmed and mapped together meanwhile: every lease is its
/// holder's alone.
mod stress {
    #![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

    use super::*;

    const LENGTH: Duration = Duration::from_secs(1);
    const LIMIT: u64 = 6 << 20;

    /// Numbers that look random: xorshift.
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % limit
        }
    }

    fn round(buffers: &BufferPool, random: &mut Random, me: u8) {
        let magnitude = random.below(21);
        let length = usize::try_from(random.below(1 << magnitude)).unwrap();
        let policy =
            if random.below(3) == 0 { AllocPolicy::MayFail } else { AllocPolicy::MustSucceed };
        let Ok(mut buffer) = buffers.lease(length, policy) else {
            assert_eq!(policy, AllocPolicy::MayFail);
            return;
        };
        let ends = |buffer: &Buffer| (buffer.first().copied(), buffer.last().copied());
        let write_ends = |buffer: &mut Buffer| {
            if let Some(last) = buffer.last_mut() {
                *last = me;
            }
            if let Some(first) = buffer.first_mut() {
                *first = me;
            }
        };
        write_ends(&mut buffer);
        if random.below(4) == 0
            && let Ok(mut beside) = buffers.lease(length / 2, AllocPolicy::MayFail)
        {
            write_ends(&mut beside);
            std::thread::yield_now();
            assert!(beside.is_empty() || ends(&beside) == (Some(me), Some(me)));
        }
        match random.below(40) {
            0 => drop(buffers.release_idle(random.below(1 << 20))),
            3 => drop(buffers.fill_reserve(length, 2)),
            1 => drop(buffers.lease_above_watermark(length, random.below(1 << 18))),
            2 => drop(buffers.preallocate(length, 3)),
            _ => std::thread::yield_now(),
        }
        assert!(buffer.is_empty() || ends(&buffer) == (Some(me), Some(me)));
    }

    #[test]
    fn every_lease_is_its_holders_alone_and_the_budget_holds() {
        let budget = Budget::new(LIMIT);
        let buffers = BufferPool::new(&budget).unwrap();
        buffers.set_reserve(LIMIT / 3);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for me in 1..=8_u8 {
                let buffers = buffers.clone();
                scope.spawn(move || {
                    let mut random = Random(u64::from(me).wrapping_mul(0x9E37_79B9_7F4A_7C15));
                    while begun.elapsed() < LENGTH {
                        round(&buffers, &mut random, me);
                    }
                });
            }
        });
        println!("{:?} {:?}", buffers.stats(), budget.stats());
        assert_eq!((buffers.leased_bytes(), budget.used_bytes()), (0, buffers.idle_bytes()));
        assert!(budget.peak_bytes() <= LIMIT);
        buffers.inner.reclaim(u64::MAX);
        assert_eq!(budget.used_bytes(), 0);
    }
}
