//! What a thread keeps between two leases, and that nobody waits for it.
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

use std::time::Duration;

use super::*;
use crate::ErrorKind;

const PAGE: u64 = 4096;
const SHORT: Duration = Duration::from_millis(30);

/// A cache of one slot that keeps up to 64 KiB, with its budgets and its pool.
struct Fixture {
    memory: Budget,
    lease_budget: Budget,
    pool: BufferPool,
    cache: ThreadCache,
}

impl Fixture {
    fn new(memory_bytes: u64, lease_bytes: u64) -> Self {
        let memory = Budget::with_stall(memory_bytes, SHORT);
        let lease_budget = Budget::with_stall(lease_bytes, SHORT);
        let pool = BufferPool::new(&memory).unwrap();
        let cache = ThreadCache::new(&lease_budget, &pool, 1, 64 << 10).unwrap();
        Self { memory, lease_budget, pool, cache }
    }

    fn must(&self, length: usize) -> CachedBuffer {
        self.cache.lease(length, || self.pool.lease(length, AllocPolicy::MustSucceed)).unwrap()
    }

    /// Leases from the pool: of idle blocks, and of new ones.
    fn leases(&self) -> (u64, u64) {
        (self.pool.stats().from_idle, self.pool.stats().mapped)
    }
}

#[test]
fn a_thread_gets_the_buffer_that_it_had() {
    let fixture = Fixture::new(1 << 20, 1 << 20);
    let mut buffer = fixture.must(10_000);
    buffer.fill(7);
    drop(buffer);
    assert_eq!(fixture.cache.kept_bytes(), 4 * PAGE);
    assert_eq!(fixture.lease_budget.used_bytes(), 4 * PAGE, "it keeps its charge");
    for length in [1, 16_384, 9_000] {
        let buffer = fixture.must(length);
        assert_eq!((buffer.len(), fixture.cache.kept_bytes()), (length, 0));
        assert!(buffer.iter().take(9_000).all(|byte| *byte == 7));
    }
    assert_eq!(fixture.leases(), (0, 1), "the pool was needed once");
}

#[test]
fn a_kept_buffer_that_is_too_short_is_freed_before_anything_is_waited_for() {
    // Each budget has bytes for the longer buffer alone.
    let fixture = Fixture::new(16 * PAGE, 16 * PAGE);
    drop(fixture.must(1));
    assert_eq!(fixture.must(64 << 10).len(), 64 << 10);
    assert_eq!(fixture.cache.kept_bytes(), 16 * PAGE);
    assert_eq!(
        (fixture.lease_budget.stats().waited, fixture.lease_budget.used_bytes()),
        (0, 16 * PAGE)
    );
}

#[test]
fn a_buffer_that_is_too_long_is_not_kept() {
    let fixture = Fixture::new(1 << 20, 1 << 20);
    drop(fixture.must((64 << 10) + 1));
    assert_eq!((fixture.cache.kept_bytes(), fixture.lease_budget.used_bytes()), (0, 0));
    // A long block that a short lease got is not kept, either.
    drop(fixture.must(64 << 10));
    assert_eq!((fixture.cache.kept_bytes(), fixture.lease_budget.used_bytes()), (0, 0));
    assert_eq!(fixture.leases(), (1, 1));
}

#[test]
fn all_slots_together_keep_no_more_than_they_may() {
    let kept_after = |threads, kept_bytes_max, length| {
        let memory = Budget::new(64 << 20);
        let pool = BufferPool::new(&memory).unwrap();
        let cache = ThreadCache::new(&memory, &pool, threads, kept_bytes_max).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..100 {
                let lease = || pool.lease(length, AllocPolicy::MustSucceed);
                let (cache, lease) = (&cache, lease);
                scope.spawn(move || drop(cache.lease(length, lease).unwrap()));
            }
        });
        cache.kept_bytes()
    };
    assert_eq!(kept_after(1000, u64::MAX, 128 << 10), 64 * (128 << 10), "64 slots of 128 KiB");
    assert_eq!(kept_after(1000, 1 << 20, 16 << 10), 1 << 20);
    assert_eq!(kept_after(1000, 1 << 20, (16 << 10) + 1), 0);
    assert_eq!(kept_after(3, u64::MAX, 4096), 4 * PAGE);
    assert_eq!(kept_after(8, 8 * PAGE - 1, 1), 0, "less than a page for each thread");
}

#[test]
fn what_is_kept_is_freed_for_anybody_who_must_have_memory() {
    let fixture = Fixture::new(16 * PAGE, 16 * PAGE);
    drop(fixture.must(64 << 10));
    drop(fixture.memory.charge(16 * PAGE, AllocPolicy::MustSucceed).unwrap());
    assert_eq!((fixture.cache.kept_bytes(), fixture.lease_budget.used_bytes()), (0, 0));
    assert_eq!(fixture.memory.stats().reclaimed_bytes, 16 * PAGE, "each byte is reported once");
    drop(fixture.must(64 << 10));
    drop(fixture.lease_budget.charge(1, AllocPolicy::MustSucceed).unwrap());
    assert_eq!((fixture.cache.kept_bytes(), fixture.pool.idle_bytes()), (0, 16 * PAGE));
    assert_eq!(fixture.lease_budget.stats().reclaimed_bytes, 16 * PAGE);
}

#[test]
fn a_buffer_that_comes_back_while_somebody_waits_is_freed() {
    for waits_for_memory in [true, false] {
        let memory = Budget::new(16 * PAGE);
        let lease_budget = Budget::new(16 * PAGE);
        let pool = BufferPool::new(&memory).unwrap();
        let cache = ThreadCache::new(&lease_budget, &pool, 1, 64 << 10).unwrap();
        let buffer = cache.lease(1, || pool.lease(1, AllocPolicy::MustSucceed)).unwrap();
        let wanted = if waits_for_memory { &memory } else { &lease_budget };
        std::thread::scope(|scope| {
            scope.spawn(|| drop(wanted.charge(16 * PAGE, AllocPolicy::MustSucceed).unwrap()));
            while wanted.waiters() == 0 {
                std::thread::yield_now();
            }
            drop(buffer);
        });
        assert_eq!((cache.kept_bytes(), lease_budget.used_bytes()), (0, 0));
    }
}

#[test]
fn best_effort_takes_what_is_free_and_is_not_kept() {
    let fixture = Fixture::new(16 * PAGE, 16 * PAGE);
    drop(fixture.must(32 << 10));
    let lease = || fixture.pool.lease(1, AllocPolicy::MustSucceed).ok();
    let buffer = fixture.cache.lease_best_effort(1, lease).unwrap();
    assert_eq!((buffer.len(), fixture.lease_budget.used_bytes()), (1, 9 * PAGE));
    drop(buffer);
    assert_eq!(
        (fixture.cache.kept_bytes(), fixture.lease_budget.used_bytes()),
        (8 * PAGE, 8 * PAGE)
    );
    assert!(fixture.cache.lease_best_effort(40 << 10, || unreachable!()).is_none(), "no bytes");
    assert!(fixture.cache.lease_best_effort(1, || None).is_none());
    assert_eq!(fixture.cache.kept_bytes(), 8 * PAGE, "it reclaims nothing");
    assert_eq!(fixture.lease_budget.used_bytes(), 8 * PAGE);
}

#[test]
fn a_failed_lease_gives_its_bytes_back() {
    let fixture = Fixture::new(16 * PAGE, 1 << 20);
    let held = fixture.memory.charge(16 * PAGE, AllocPolicy::MayFail).unwrap();
    let failed = fixture.cache.lease(1, || fixture.pool.lease(1, AllocPolicy::MustSucceed));
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(fixture.lease_budget.used_bytes(), 0);
    drop(held);
    assert_eq!(fixture.must(1).len(), 1);
}

#[test]
fn a_lease_longer_than_the_whole_lease_budget_has_it_alone() {
    let fixture = Fixture::new(1 << 20, 16 * PAGE);
    drop(fixture.must(1));
    let buffer = fixture.must(100_000);
    assert_eq!((buffer.len(), fixture.lease_budget.used_bytes()), (100_000, 16 * PAGE));
}

#[test]
fn a_buffer_outlives_the_cache_and_is_freed_with_its_drop() {
    let Fixture { memory, lease_budget, pool, cache } = Fixture::new(1 << 20, 1 << 20);
    let lease = || pool.lease(1, AllocPolicy::MustSucceed);
    drop(cache.lease(1, lease).unwrap());
    let [mut first, second] = [(); 2].map(|()| cache.lease(1, lease).unwrap());
    drop(cache);
    drop(pool);
    first.fill(7);
    assert_eq!((lease_budget.used_bytes(), memory.used_bytes()), (2 * PAGE, 2 * PAGE));
    drop(first);
    // The block is idle in its pool, which the second buffer keeps alive.
    assert_eq!((lease_budget.used_bytes(), memory.used_bytes()), (PAGE, 2 * PAGE));
    drop(second);
    assert_eq!((lease_budget.used_bytes(), memory.used_bytes()), (0, 0), "nothing keeps the pool");
}

#[test]
fn a_cache_that_is_dropped_frees_what_it_keeps() {
    let Fixture { memory, lease_budget, pool, cache } = Fixture::new(1 << 20, 1 << 20);
    drop(cache.lease(1, || pool.lease(1, AllocPolicy::MustSucceed)).unwrap());
    drop(pool);
    assert_eq!((lease_budget.used_bytes(), memory.used_bytes()), (PAGE, PAGE));
    drop(cache);
    assert_eq!((lease_budget.used_bytes(), memory.used_bytes()), (0, 0));
}

/// Threads that lease, and threads that need memory beside them, all of it or less, in budgets that
/// have bytes for few of them. The default stall time: nobody gives up.
fn check_with_more_threads_than_memory(memory_pages: u64, lease_pages: u64) {
    let memory = Budget::new(memory_pages * PAGE);
    let lease_budget = Budget::new(lease_pages * PAGE);
    let pool = BufferPool::new(&memory).unwrap();
    let cache = ThreadCache::new(&lease_budget, &pool, 16, u64::MAX).unwrap();
    std::thread::scope(|scope| {
        for number in 0..12_usize {
            let (cache, pool) = (&cache, &pool);
            scope.spawn(move || {
                for round in 0..400_usize {
                    let length = 1 + (number * 7 + round * 13) % 4 * 4096;
                    let lease = || pool.lease(length, AllocPolicy::MustSucceed);
                    let mut buffer = cache.lease(length, lease).unwrap();
                    let value = u8::try_from(number).unwrap();
                    buffer.fill(value);
                    if round % 16 == 0 {
                        std::thread::yield_now();
                    }
                    assert!(buffer.len() == length && buffer.iter().all(|byte| *byte == value));
                }
            });
        }
        for (budget, pages) in [(&memory, memory_pages), (&lease_budget, lease_pages)] {
            scope.spawn(move || {
                for round in 0..100 {
                    let bytes = (pages - round % 3) * PAGE;
                    drop(budget.charge(bytes, AllocPolicy::MustSucceed).unwrap());
                }
            });
        }
    });
    assert!(memory.peak_bytes() <= memory_pages * PAGE);
    assert!(lease_budget.peak_bytes() <= lease_pages * PAGE);
    for budget in [&memory, &lease_budget] {
        assert_eq!(budget.stats().gave_up, 0);
    }
    assert_eq!(memory.used_bytes(), pool.idle_bytes() + cache.kept_bytes());
    assert!(lease_budget.used_bytes() <= cache.kept_bytes());
    drop((cache, pool));
    assert_eq!((memory.used_bytes(), lease_budget.used_bytes()), (0, 0));
}

#[test]
fn more_threads_than_memory_all_get_their_buffers() {
    check_with_more_threads_than_memory(16, 64);
}

#[test]
fn more_threads_than_leases_all_get_their_buffers() {
    check_with_more_threads_than_memory(128, 16);
}
