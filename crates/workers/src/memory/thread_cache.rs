//! One buffer for each thread that leases again and again, kept with its charge between two leases:
//! the per-thread cache of an allocator, or a slab allocator's magazine of one object. A lease that
//! finds one takes no lock and writes no word that other threads use. It owns the buffers between
//! two leases, and the rule when one is kept; never where a new buffer comes from, which is a closure
//! of the caller's. The engine of an image leases the buffers that threads read into here.
//!
//! What is kept stays charged. It is freed as soon as somebody waits for bytes of either budget, so
//! nobody waits for a buffer that is only kept.
//!
//! docs/workers.md, protocol M.

use std::ops::{Deref, DerefMut};

use super::AllocPolicy;
use super::budget::{Budget, Charge, ReclaimerRegistration};
use super::buffer_pool::{Buffer, BufferPool};
use crate::Error;
use crate::counters::{CachePadded, local_shard};
use crate::sync::{Mutex, PlainArc, PlainWeak, lock};

/// The longest buffer that is kept, in bytes: the longest read that the kernel makes ahead of a
/// reader by default. To copy more takes so long that the lease hardly counts.
const KEPT_LENGTH_MAX: u64 = 128 << 10;

/// Slots at most: with more threads, some share one. All together keep at most 8 MiB.
const SLOTS_MAX: usize = 64;

/// Leases buffers under a budget of their own, and keeps up to one for each thread.
///
/// ```
/// use ferrofs_workers::memory::{AllocPolicy, Budget, BufferPool, ThreadCache};
///
/// let pool = BufferPool::new(&Budget::new(1 << 20))?;
/// let leases = Budget::new(1 << 20);
/// let cache = ThreadCache::new(&leases, &pool, 4, 64 << 10)?;
/// let lease = || pool.lease(5000, AllocPolicy::MustSucceed);
/// drop(cache.lease(5000, lease)?);
/// // The buffer of the first lease is kept, so nothing is leased from the pool.
/// let buffer = cache.lease(4000, lease)?;
/// assert_eq!((buffer.len(), pool.stats().from_idle), (4000, 0));
/// drop(buffer);
/// assert_eq!((leases.used_bytes(), cache.clear()), (8192, 8192));
/// assert_eq!(leases.used_bytes(), 0);
/// # Ok::<(), ferrofs_workers::Error>(())
/// ```
#[derive(Debug)]
// Read by every lease, so nothing that is written may lie beside it.
#[repr(align(128))]
pub struct ThreadCache {
    slots: Slots,
    lease_budget: Budget,
    /// Of the lease budget and of the budget of the memory. They know the slots weakly.
    _reclaimers: [ReclaimerRegistration; 2],
}

/// A handle of each slot of its own: a buffer on lease has another one, and counts in a line that
/// hardly anybody but its thread writes.
type Slots = PlainArc<[PlainArc<CachePadded<Slot>>]>;

impl ThreadCache {
    /// A cache for buffers of `pool` that count in `lease_budget` while they are leased or kept, for
    /// `threads` threads that lease at the same time. All together keep at most `kept_bytes_max`
    /// bytes, and each at most one buffer of an equal share of that, up to 128 KiB. There is a slot
    /// for each thread, rounded up to a power of two, but at most 64; threads that share a slot find
    /// less in it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidSetting`](crate::ErrorKind::InvalidSetting) when one of the budgets takes
    /// no more reclaimers.
    pub fn new(
        lease_budget: &Budget,
        pool: &BufferPool,
        threads: usize,
        kept_bytes_max: u64,
    ) -> Result<Self, Error> {
        let memory = pool.budget();
        let count = threads.clamp(1, SLOTS_MAX).next_power_of_two();
        let length_max = KEPT_LENGTH_MAX.min(kept_bytes_max / count as u64);
        let slot = || Slot {
            state: Mutex::new(SlotState { kept: None, is_closed: false }),
            lease_budget: lease_budget.clone(),
            memory: memory.clone(),
            lease_limit: lease_budget.limit_bytes(),
            length_max,
        };
        let slots: Slots = (0..count).map(|_| PlainArc::new(CachePadded(slot()))).collect();
        // M5. Who waits for either budget calls these before it sleeps.
        let reclaimers = [
            register(lease_budget, &slots, ChargedBuffer::release)?,
            register(memory, &slots, ChargedBuffer::unmap)?,
        ];
        Ok(Self { slots, lease_budget: lease_budget.clone(), _reclaimers: reclaimers })
    }

    /// Leases `length` bytes: the kept buffer of this thread if it is long enough, and what `lease`
    /// returns otherwise. That is called with the bytes charged to the lease budget, and with no
    /// lock held. The content of the buffer is unspecified. When it is dropped, it is kept for the
    /// thread that leased it, if it is short enough and nobody waits for memory.
    ///
    /// While this waits for the lease budget, its thread holds nothing. So a thread must not hold
    /// one buffer when it leases the next.
    ///
    /// # Errors
    ///
    /// As [`Budget::charge`] under [`AllocPolicy::MustSucceed`], and those of `lease`.
    pub fn lease<E: From<Error>>(
        &self,
        length: usize,
        lease: impl FnOnce() -> Result<Buffer, E>,
    ) -> Result<CachedBuffer, E> {
        let slot = &self.slots[local_shard(self.slots.len())];
        let bytes = slot.charge_bytes(length);
        // A kept one that is too short is dropped here, before anything is waited for.
        let kept = slot.take().and_then(|kept| kept.reused(length, bytes));
        let leased = match kept {
            Some(kept) => kept,
            None => {
                let charge = self.lease_budget.charge(bytes, AllocPolicy::MustSucceed)?;
                ChargedBuffer { buffer: lease()?, charge }
            }
        };
        Ok(CachedBuffer { leased: Some(leased), slot: Some(PlainArc::clone(slot)) })
    }

    /// Leases what `lease` returns without waiting: none if the lease budget has not as many bytes
    /// now, or if `lease` has none. It takes no kept buffer, whose slot has a lock, and the buffer
    /// is not kept.
    pub fn lease_best_effort(
        &self,
        length: usize,
        lease: impl FnOnce() -> Option<Buffer>,
    ) -> Option<CachedBuffer> {
        let bytes = charge_bytes(length, self.lease_budget.limit_bytes());
        let charge = self.lease_budget.charge(bytes, AllocPolicy::MayFail).ok()?;
        Some(CachedBuffer { leased: Some(ChargedBuffer { buffer: lease()?, charge }), slot: None })
    }

    /// Makes all kept buffers idle buffers of their pool; returns how many bytes of the lease budget
    /// came back. Buffers on lease are kept again.
    pub fn clear(&self) -> u64 {
        empty(&self.slots, ChargedBuffer::release)
    }

    /// Bytes of the blocks of all kept buffers.
    #[must_use]
    pub fn kept_bytes(&self) -> u64 {
        let bytes = |slot: &Slot| {
            lock(&slot.state).kept.as_ref().map_or(0, |kept| kept.buffer.resident_bytes())
        };
        self.slots.iter().map(|slot| bytes(slot)).sum()
    }
}

impl Drop for ThreadCache {
    fn drop(&mut self) {
        // M6. Buffers that are still on lease are freed when they are dropped.
        for slot in self.slots.iter() {
            drop(slot.close());
        }
    }
}

/// Registers a reclaimer that empties the slots. It empties all, however many bytes are missing:
/// memory is rarely short, and a kept buffer is soon leased again.
fn register(
    budget: &Budget,
    slots: &Slots,
    free: impl Fn(ChargedBuffer) -> u64 + Send + Sync + 'static,
) -> Result<ReclaimerRegistration, Error> {
    let weak = PlainArc::downgrade(slots);
    budget.register_reclaimer(move |_| {
        PlainWeak::upgrade(&weak).map_or(0, |slots| empty(&slots, &free))
    })
}

/// Frees all kept buffers, each outside of the lock of its slot; returns how many bytes `free` says.
fn empty(slots: &Slots, free: impl Fn(ChargedBuffer) -> u64) -> u64 {
    slots.iter().filter_map(|slot| slot.take()).map(free).sum()
}

/// The bytes of the longest block that a lease of `length` bytes needs; one that is longer than the
/// whole limit has it alone.
fn charge_bytes(length: usize, limit: u64) -> u64 {
    let longest = length.max(rustix::param::page_size()).checked_next_power_of_two();
    longest.map_or(u64::MAX, |longest| longest as u64).min(limit)
}

/// Where the buffer of a thread, or of a few, is between two leases. All that a lease of a kept
/// buffer reads and writes is here, but for the words that count waiters.
#[derive(Debug)]
struct Slot {
    state: Mutex<SlotState>,
    lease_budget: Budget,
    /// The budget of the memory.
    memory: Budget,
    /// The limit of the lease budget. There it lies beside words that are written.
    lease_limit: u64,
    /// The longest buffer that is kept, in bytes.
    length_max: u64,
}

#[derive(Debug)]
struct SlotState {
    kept: Option<ChargedBuffer>,
    /// The cache is gone.
    is_closed: bool,
}

impl Slot {
    fn charge_bytes(&self, length: usize) -> u64 {
        charge_bytes(length, self.lease_limit)
    }

    fn take(&self) -> Option<ChargedBuffer> {
        // M1.
        lock(&self.state).kept.take()
    }

    /// Keeps a buffer whose lease ends. What is returned is to be freed.
    fn keep(&self, ended: ChargedBuffer) -> Option<ChargedBuffer> {
        if ended.bytes() > self.length_max {
            return Some(ended);
        }
        // M2.
        let mut state = lock(&self.state);
        // M3. Who waits empties this slot under the lock: either before this, and is seen here, or
        // later, and takes what is stored.
        let is_wanted = !self.lease_budget.has_no_waiters() || !self.memory.has_no_waiters();
        if is_wanted || state.is_closed || state.kept.is_some() {
            return Some(ended);
        }
        state.kept = Some(ended);
        None
    }

    fn close(&self) -> Option<ChargedBuffer> {
        let mut state = lock(&self.state);
        state.is_closed = true;
        state.kept.take()
    }
}

/// A buffer with its charge in the lease budget.
#[derive(Debug)]
struct ChargedBuffer {
    /// In this order: the lease budget has its bytes back after the pool has the block.
    buffer: Buffer,
    charge: Charge,
}

impl ChargedBuffer {
    /// This with `length` bytes, if the block and the charge are enough for that.
    fn reused(mut self, length: usize, charge_bytes: u64) -> Option<Self> {
        (self.charge.bytes() >= charge_bytes && self.buffer.set_length(length)).then_some(self)
    }

    /// What counts of it in one of the budgets at most.
    fn bytes(&self) -> u64 {
        self.buffer.resident_bytes().max(self.charge.bytes())
    }

    /// Makes the buffer idle, for a waiter of the lease budget; returns what came back to that.
    fn release(self) -> u64 {
        self.charge.bytes()
    }

    /// Unmaps the buffer, for a waiter of the budget of the memory; returns what came back to that.
    fn unmap(self) -> u64 {
        self.buffer.unmap()
    }
}

/// Bytes on lease from a [`ThreadCache`]. Dropping it keeps them for the next lease, or frees them.
#[derive(Debug)]
pub struct CachedBuffer {
    /// Taken out only when the lease ends.
    leased: Option<ChargedBuffer>,
    /// The slot to keep it in. None after best effort.
    slot: Option<PlainArc<CachePadded<Slot>>>,
}

impl Deref for CachedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.leased.as_ref().map_or(&[], |leased| &leased.buffer)
    }
}

impl DerefMut for CachedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.leased.as_mut().map_or(&mut [], |leased| &mut leased.buffer)
    }
}

impl Drop for CachedBuffer {
    fn drop(&mut self) {
        let Some(ended) = self.leased.take() else { return };
        let surplus = match &self.slot {
            Some(slot) => slot.keep(ended),
            None => Some(ended),
        };
        // M4. Outside of the lock. It wakes who waits (B1).
        drop(surplus);
    }
}

/// Every interleaving of a thread that keeps its buffer and one that must have the memory. A wake-up
/// that is lost is a deadlock, and loom says so.
#[cfg(all(test, loom))]
mod loom_tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

    use std::time::Duration;

    use super::*;
    use crate::sync::{Arc, thread};

    const STALL: Duration = Duration::from_secs(3600);
    const PAGE: u64 = 4096;

    /// Memory for one buffer.
    struct Scarce {
        memory: Budget,
        lease_budget: Budget,
        pool: BufferPool,
    }

    impl Scarce {
        fn new() -> Self {
            let memory = Budget::with_stall(PAGE, STALL);
            let pool = BufferPool::new(&memory).unwrap();
            Self { memory, lease_budget: Budget::with_stall(PAGE, STALL), pool }
        }

        /// A cache with one slot: the number of a thread differs between two executions.
        fn cache(&self) -> ThreadCache {
            ThreadCache::new(&self.lease_budget, &self.pool, 1, PAGE).unwrap()
        }

        fn lease_once(&self, cache: &ThreadCache) {
            let lease = || self.pool.lease(1, AllocPolicy::MustSucceed);
            drop(cache.lease(1, lease).unwrap());
        }
    }

    fn check(model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(model);
    }

    /// Leases twice while `take` must have all of the memory or of the leases. As in an image, the
    /// caches are there before anybody waits.
    fn check_against(take: impl Fn(&Scarce, &ThreadCache) + Send + Sync + Copy + 'static) {
        check(move || {
            let scarce = Arc::new(Scarce::new());
            let [cache, others] = [(); 2].map(|()| scarce.cache());
            let other = Arc::clone(&scarce);
            let waiter = thread::spawn(move || take(&other, &others));
            scarce.lease_once(&cache);
            scarce.lease_once(&cache);
            waiter.join().unwrap();
            drop(cache);
            assert_eq!(scarce.lease_budget.used_bytes(), 0);
            assert_eq!(scarce.memory.used_bytes(), scarce.pool.idle_bytes());
        });
    }

    #[test]
    fn who_waits_for_memory_gets_what_was_kept() {
        check_against(|scarce, _| {
            drop(scarce.memory.charge(PAGE, AllocPolicy::MustSucceed).unwrap());
        });
    }

    #[test]
    fn who_waits_for_the_lease_budget_gets_what_was_kept() {
        check_against(|scarce, _| {
            drop(scarce.lease_budget.charge(PAGE, AllocPolicy::MustSucceed).unwrap());
        });
    }

    #[test]
    fn of_two_that_lease_neither_waits_for_what_the_other_keeps() {
        check_against(|scarce, cache| scarce.lease_once(cache));
    }

    #[test]
    fn a_slot_that_two_threads_share_has_one_buffer_at_most() {
        check(|| {
            let scarce = Arc::new(Scarce::new());
            let cache = Arc::new(scarce.cache());
            let other = (Arc::clone(&scarce), Arc::clone(&cache));
            let second = thread::spawn(move || other.0.lease_once(&other.1));
            scarce.lease_once(&cache);
            second.join().unwrap();
            assert_eq!(cache.kept_bytes(), scarce.lease_budget.used_bytes());
            assert_eq!(cache.clear() + scarce.pool.idle_bytes(), 2 * PAGE);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
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
        const MUST_SUCCEED: AllocPolicy = AllocPolicy::MustSucceed;
        // Threads of other tests take numbers meanwhile, so it is unknown after how many all slots are full.
        let kept_after = |threads, kept_bytes_max, length| {
            let memory = Budget::new(64 << 20);
            let pool = BufferPool::new(&memory).unwrap();
            let cache = ThreadCache::new(&memory, &pool, threads, kept_bytes_max).unwrap();
            let lease = || drop(cache.lease(length, || pool.lease(length, MUST_SUCCEED)).unwrap());
            let lease_in_threads = || {
                std::thread::scope(|scope| (0..100).for_each(|_| drop(scope.spawn(lease))));
                cache.kept_bytes()
            };
            let is_full =
                |kept: &u64| *kept == cache.slots.len() as u64 * cache.slots[0].length_max;
            (0..20).map(|_| lease_in_threads()).find(is_full);
            lease_in_threads()
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
        assert_eq!(
            (lease_budget.used_bytes(), memory.used_bytes()),
            (0, 0),
            "nothing keeps the pool"
        );
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
}
