//! Contiguous buffers that many threads share. It owns the idle blocks and the rules of leases;
//! never the bytes of a lease that is out, and never memory that the budget does not know. Decoders
//! of all threads lease their input and output here, and a cache keeps what they leased.
//!
//! A `Block` is charged memory in one piece: charged before it is mapped, unmapped before the charge
//! ends. A `Buffer` is a block on lease; `FreeLists` has the idle ones. One short lock guards the
//! free lists; nothing is mapped, unmapped or waited for under it. docs/memory.md says what best
//! effort may do.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use super::AllocPolicy;
use super::budget::{Budget, Charge, ReclaimerRegistration};
use super::mapping::{Mapping, PageSize, PopulateMethod, prefault_job, touch};
use super::wait_queue::WaitPriority;
use crate::counters::CachePadded;
use crate::sync::{Mutex, MutexGuard, Ordering, PlainArc, PlainAtomicU64, PlainWeak, lock};
use crate::{Error, ErrorKind};

/// Without a reserve, an idle block serves leases down to this part of its length by default: a small
/// lease that lasts should not hold far more than it needs.
const WASTE_MAX: usize = 4;

/// How often one lease from a reserve has blocks evicted: what goes may be shorter than what is
/// wanted, or come in pieces.
const EVICT_ATTEMPTS_MAX: usize = 4;

/// Bytes of the blocks that are mapped together when a reserve is filled, and then split. Each call
/// that maps excludes all threads that fault in: with blocks that were mapped one by one, two
/// threads took as long as one, and with a slab of 32 MiB for each thread 0.8 of it
/// (docs/memory.md). It is no more than that since nobody looks whether others wait before a slab
/// is done.
const SLAB_BYTES: usize = 256 << 20;

/// Size classes double up to this, so that small blocks have few lengths; above it they are
/// multiples of it, since doubling would charge far more than is needed.
const SIZE_CLASS_STEP_BYTES: usize = 1 << 20;

/// Buffers under one budget. Clones are handles of one pool; idle blocks live until the last handle
/// and the last lease are gone.
///
/// ```
/// use ferrofs_workers::memory::{AllocPolicy, Budget, BufferPool};
///
/// let pool = BufferPool::new(&Budget::new(1 << 20))?;
/// drop(pool.lease(5000, AllocPolicy::MustSucceed)?);
/// // The block of the first lease is idle, so best effort finds it.
/// let buffer = pool.lease(4000, AllocPolicy::MayFail)?;
/// assert_eq!((buffer.len(), buffer.resident_bytes()), (4000, 8192));
/// # Ok::<(), ferrofs_workers::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct BufferPool {
    inner: PlainArc<BufferPoolInner>,
}

#[derive(Debug)]
struct BufferPoolInner {
    budget: Budget,
    /// Every lease writes these lines, and reads the other fields without the lock.
    free_lists: CachePadded<Mutex<FreeLists>>,
    counters: BufferPoolCounters,
    /// The most bytes that may be idle.
    max_idle: PlainAtomicU64,
    /// Idle bytes that stay when others are released for being old or unused.
    reserve: PlainAtomicU64,
    /// How many times as long as needed an idle block may be.
    waste_max: PlainAtomicU64,
    /// Set once, after the pool has an address. The reclaimer knows the pool weakly.
    registration: Mutex<Option<ReclaimerRegistration>>,
}

#[derive(Debug, Default)]
struct BufferPoolCounters {
    from_idle: PlainAtomicU64,
    mapped: PlainAtomicU64,
    mapping_nanos: PlainAtomicU64,
    refused: PlainAtomicU64,
}

/// What a [`BufferPool`] has counted since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct BufferPoolStats {
    /// Leases of a block that was idle.
    pub from_idle: u64,
    /// Blocks that were mapped, for leases and in advance.
    pub mapped: u64,
    /// Nanoseconds that mapping and faulting them in took, all threads together, waiting for the
    /// system's memory included.
    pub mapping_nanos: u64,
    /// Leases that may fail and did.
    pub refused: u64,
}

impl BufferPool {
    /// A pool without blocks. What it maps is charged to the budget, and idle blocks are reclaimed
    /// when somebody needs their bytes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidSetting`] when the budget takes no more reclaimers.
    pub fn new(budget: &Budget) -> Result<Self, Error> {
        let inner = PlainArc::new(BufferPoolInner {
            budget: budget.clone(),
            free_lists: CachePadded(Mutex::new(FreeLists::default())),
            counters: BufferPoolCounters::default(),
            registration: Mutex::new(None),
            max_idle: PlainAtomicU64::new(u64::MAX),
            reserve: PlainAtomicU64::new(0),
            waste_max: PlainAtomicU64::new(WASTE_MAX as u64),
        });
        // Weak: the budget would keep the pool, and the pool keeps the budget.
        let weak = PlainArc::downgrade(&inner);
        let registration = budget.register_reclaimer(move |bytes| {
            PlainWeak::upgrade(&weak).map_or(0, |inner| inner.reclaim(bytes))
        })?;
        *lock(&inner.registration) = Some(registration);
        Ok(Self { inner })
    }

    /// Keeps at most `bytes` idle. What is released above that goes back to the system, the block
    /// first that was idle longest. By default everything stays until somebody needs it.
    pub fn set_max_idle(&self, bytes: u64) {
        // Relaxed: a bound that the next releases see; it guards nothing.
        self.inner.max_idle.store(bytes, Ordering::Relaxed);
    }

    /// Sets how many times as long as needed the idle block of a lease may be, 4 by default; 1 for
    /// none but the size class of the lease. With a reserve there is no such limit.
    pub fn set_waste_max(&self, times: u64) {
        // Relaxed: as in `set_max_idle`.
        self.inner.waste_max.store(times, Ordering::Relaxed);
    }

    /// Sets the reserve: [`release_idle`](Self::release_idle) leaves `bytes` idle, as far as so
    /// many are idle. Requests that must succeed get them all the same. Nothing is mapped here;
    /// [`fill_reserve`](Self::fill_reserve) does that.
    pub fn set_reserve(&self, bytes: u64) {
        // Relaxed: as in `set_max_idle`.
        self.inner.reserve.store(bytes, Ordering::Relaxed);
    }

    /// The bytes of the reserve.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.inner.reserved_bytes()
    }

    /// Maps blocks of `length` bytes until the reserve is idle, faults them in on up to `threads`
    /// threads, the caller included, and returns how many bytes came. It ends early rather than
    /// wait, reclaim, or take what others wait for.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] when `length` is more than a block can have.
    pub fn fill_reserve(&self, length: usize, threads: usize) -> Result<u64, Error> {
        let wanted = size_class(length)?;
        let missing = self.inner.reserved_bytes().saturating_sub(self.idle_bytes());
        let blocks = self.inner.map_idle(wanted, missing / wanted as u64, threads);
        Ok(blocks * wanted as u64)
    }

    /// Leases `length` bytes in one piece, until the buffer is dropped. They are resident; their
    /// content is unspecified.
    ///
    /// The lease takes an idle block if one fits: of the smallest size class that holds `length`
    /// and is at most [four times](Self::set_waste_max) as long, the block released last. Otherwise, under
    /// [`AllocPolicy::MustSucceed`], it maps a new block. [`AllocPolicy::MayFail`] makes no system
    /// call and waits for nothing, not even for the lock.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotNow`] under [`AllocPolicy::MayFail`] when nothing fits, when somebody waits
    /// for memory, or when another thread holds the lock. [`ErrorKind::OutOfMemory`] for more than
    /// the budget's limit, or when reclaiming and waiting did not help.
    pub fn lease(&self, length: usize, policy: AllocPolicy) -> Result<Buffer, Error> {
        self.inner.lease(length, policy).map(|block| self.buffer(block, length))
    }

    /// Leases from the reserve, and maps beyond it only when nothing else helps.
    ///
    /// It takes an idle block that fits. It maps one while less than the reserve is resident, or
    /// where as many bytes are idle in shorter blocks, which go for it. Else it calls `evict` with
    /// the bytes that are missing, at most four times, and looks again. When `evict` frees nothing,
    /// or others wait for memory, it becomes a [`lease`](Self::lease) under
    /// [`AllocPolicy::MustSucceed`]. `evict` returns how many bytes it freed, and runs outside of
    /// the lock.
    ///
    /// # Errors
    ///
    /// As [`Self::lease`] under [`AllocPolicy::MustSucceed`].
    pub fn lease_from_reserve(
        &self,
        length: usize,
        evict: impl Fn(u64) -> u64,
    ) -> Result<Buffer, Error> {
        let inner = &self.inner;
        let (wanted, reserved) = (size_class(length)?, inner.reserved_bytes());
        for attempt in 0..EVICT_ATTEMPTS_MAX {
            // Waiters come first, and have memory reclaimed.
            if reserved == 0 || !inner.budget.has_no_waiters() {
                break;
            }
            let mut lists = lock(&inner.free_lists);
            if let Some(block) = lists.take(wanted, inner.waste_max(), 0) {
                drop(lists);
                return Ok(self.buffer(inner.counted_idle(block), length));
            }
            let is_growing = lists.resident_bytes() < reserved;
            let is_fragmented = lists.idle_bytes() >= wanted as u64;
            drop(lists);
            // Only at first: what was just evicted may still add up.
            if !is_growing && is_fragmented && attempt == 0 {
                inner.reclaim(wanted as u64);
                break;
            }
            if is_growing || evict(wanted as u64) == 0 {
                break;
            }
        }
        self.lease(length, AllocPolicy::MustSucceed)
    }

    /// A best-effort lease that leaves `watermark` idle bytes to others: a [`lease`](Self::lease)
    /// under [`AllocPolicy::MayFail`] that is refused if fewer would be left.
    ///
    /// # Errors
    ///
    /// As [`Self::lease`] under [`AllocPolicy::MayFail`].
    pub fn lease_above_watermark(&self, length: usize, watermark: u64) -> Result<Buffer, Error> {
        let block = self.inner.lease_idle(size_class(length)?, watermark)?;
        Ok(self.buffer(block, length))
    }

    /// Maps idle blocks for leases of `length` bytes until `count` are idle, so that best effort
    /// finds some; returns how many it mapped. It ends early rather than wait, reclaim, take what
    /// others wait for, or exceed [`set_max_idle`](Self::set_max_idle). It is for threads that may
    /// map and fault in.
    #[must_use]
    pub fn preallocate(&self, length: usize, count: usize) -> usize {
        let Ok(wanted) = size_class(length) else { return 0 };
        let inner = &self.inner;
        let mut mapped = 0;
        while lock(&inner.free_lists).idle_blocks(wanted) < count {
            let Some(block) = inner.new_idle(wanted, 1, 1) else { break };
            inner.release(block);
            mapped += 1;
        }
        mapped
    }

    /// Maps one idle block for leases of `length` bytes, if no more than the reserve is resident
    /// then, idle or leased. Returns whether it did. Like [`preallocate`](Self::preallocate) it is
    /// for threads that may map, and does not wait.
    pub fn grow_reserve(&self, length: usize) -> bool {
        let Ok(wanted) = size_class(length) else { return false };
        let inner = &self.inner;
        let resident = lock(&inner.free_lists).resident_bytes();
        if resident.saturating_add(wanted as u64) > inner.reserved_bytes() {
            return false;
        }
        inner.new_idle(wanted, 1, 1).map(|block| inner.release(block)).is_some()
    }

    /// Bytes of idle blocks: resident, charged, and available without a system call.
    #[must_use]
    pub fn idle_bytes(&self) -> u64 {
        lock(&self.inner.free_lists).idle_bytes()
    }

    /// Bytes of the blocks of all leases.
    #[cfg(all(test, not(loom)))]
    fn leased_bytes(&self) -> u64 {
        let lists = lock(&self.inner.free_lists);
        lists.resident_bytes() - lists.idle_bytes()
    }

    /// Returns idle blocks to the system, those first that were idle longest, until `bytes` are
    /// returned or only the reserve is left. Returns how many bytes went.
    pub fn release_idle(&self, bytes: u64) -> u64 {
        self.inner.unmap_idle(bytes, self.inner.reserved_bytes())
    }

    /// The counters so far.
    #[must_use]
    pub fn stats(&self) -> BufferPoolStats {
        let counters = &self.inner.counters;
        BufferPoolStats {
            from_idle: counters.from_idle.load(Ordering::Relaxed),
            mapped: counters.mapped.load(Ordering::Relaxed),
            mapping_nanos: counters.mapping_nanos.load(Ordering::Relaxed),
            refused: counters.refused.load(Ordering::Relaxed),
        }
    }

    /// The budget that its blocks are charged to.
    pub(super) fn budget(&self) -> &Budget {
        &self.inner.budget
    }

    fn buffer(&self, block: Block, length: usize) -> Buffer {
        Buffer { inner: PlainArc::clone(&self.inner), block: Some(block), length }
    }
}

/// Where the block of a lease comes from.
enum BlockSource {
    Idle(Block),
    /// Charged bytes, for a new block.
    Bytes(Charge),
}

impl BufferPoolInner {
    fn lease(&self, length: usize, policy: AllocPolicy) -> Result<Block, Error> {
        let wanted = size_class(length)?;
        if wanted as u64 > self.budget.limit_bytes() {
            return Err(Error::new(ErrorKind::OutOfMemory, "bytes of a buffer")
                .with_amount(wanted as u64, self.budget.limit_bytes()));
        }
        match policy {
            AllocPolicy::MayFail => self.lease_idle(wanted, 0),
            AllocPolicy::MustSucceed => self.lease_waiting(wanted),
        }
    }

    fn lease_idle(&self, wanted: usize, watermark: u64) -> Result<Block, Error> {
        let lists =
            if self.budget.best_effort_yields() { None } else { self.try_lock_free_lists() };
        // The guard ends with this statement, before the refusal is counted.
        let block = lists.and_then(|mut lists| lists.take(wanted, self.waste_max(), watermark));
        match block {
            Some(block) => Ok(self.counted_idle(block)),
            None => {
                self.counters.refused.fetch_add(1, Ordering::Relaxed);
                Err(self.budget.refuse("bytes of a buffer"))
            }
        }
    }

    fn lease_waiting(&self, wanted: usize) -> Result<Block, Error> {
        // Waiters come first: idle blocks are for them, too, since reclaiming gives them away.
        let found = if self.budget.has_no_waiters() { self.find_block(wanted) } else { None };
        let found = match found {
            Some(found) => Some(found),
            None => self
                .budget
                .wait_for(wanted as u64, WaitPriority::Normal, || self.find_block(wanted)),
        };
        match found {
            Some(BlockSource::Idle(block)) => Ok(self.counted_idle(block)),
            Some(BlockSource::Bytes(charge)) => self.map(charge, wanted),
            None => Err(Error::new(ErrorKind::OutOfMemory, "bytes of a buffer")
                .with_amount(wanted as u64, self.budget.limit_bytes())),
        }
    }

    fn find_block(&self, wanted: usize) -> Option<BlockSource> {
        // The guard ends with this statement: bytes are charged outside of the lock.
        let idle = lock(&self.free_lists).take(wanted, self.waste_max(), 0);
        idle.map(BlockSource::Idle)
            .or_else(|| self.budget.try_charge(wanted as u64).map(BlockSource::Bytes))
    }

    #[cold]
    fn map(&self, charge: Charge, wanted: usize) -> Result<Block, Error> {
        lock(&self.free_lists).reserve_slots(wanted, 1)?;
        self.counted_mapping(wanted, 1, || {
            Ok((Block::new(&self.budget, charge, wanted)?, Duration::ZERO))
        })
    }

    /// Maps `count` idle blocks of `wanted` bytes, or as many as come without waiting; returns how
    /// many.
    fn map_idle(&self, wanted: usize, count: u64, threads: usize) -> u64 {
        let mut together = (SLAB_BYTES / wanted).max(1);
        let mut mapped = 0;
        while mapped < count && !self.budget.best_effort_yields() {
            together = usize::try_from(count - mapped).map_or(together, |left| together.min(left));
            match self.new_idle(wanted, together, threads) {
                Some(mut slab) => {
                    while let Some(block) = slab.split(wanted) {
                        self.release(block);
                    }
                    self.release(slab);
                    mapped += together as u64;
                }
                // What is free may be less than a slab, and each slab that comes leaves less.
                None if together > 1 => together /= 2,
                None => break,
            }
        }
        mapped
    }

    /// `count` new blocks of `wanted` bytes in one piece. None if a request would have to wait for
    /// it.
    fn new_idle(&self, wanted: usize, count: usize, threads: usize) -> Option<Block> {
        let bytes = wanted.checked_mul(count)?;
        let max_idle = self.max_idle.load(Ordering::Relaxed);
        // A block that may not stay idle would be unmapped as soon as it is there, over and over.
        let idle = lock(&self.free_lists).idle_bytes();
        if self.budget.best_effort_yields() || idle + bytes as u64 > max_idle {
            return None;
        }
        let charge = self.budget.try_charge(bytes as u64)?;
        lock(&self.free_lists).reserve_slots(wanted, count).ok()?;
        let map = || Block::try_new(&self.budget, charge, bytes, threads);
        self.counted_mapping(wanted, count, map).ok()
    }

    /// Maps `count` blocks that have slots, and counts their time: this thread's, and what `map`
    /// says that other threads took.
    fn counted_mapping(
        &self,
        wanted: usize,
        count: usize,
        map: impl FnOnce() -> Result<(Block, Duration), Error>,
    ) -> Result<Block, Error> {
        let begin = Instant::now();
        let made = map();
        let of_others = made.as_ref().map_or(Duration::ZERO, |(_, of_others)| *of_others);
        let nanos = (begin.elapsed() + of_others).as_nanos();
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        self.counters.mapping_nanos.fetch_add(nanos, Ordering::Relaxed);
        match &made {
            Ok(_) => {
                self.counters.mapped.fetch_add(count as u64, Ordering::Relaxed);
            }
            Err(_) => lock(&self.free_lists).release_slots(wanted, count),
        }
        made.map(|(block, _)| block)
    }

    fn counted_idle(&self, block: Block) -> Block {
        self.counters.from_idle.fetch_add(1, Ordering::Relaxed);
        block
    }

    /// The free lists, if no other thread has the lock.
    fn try_lock_free_lists(&self) -> Option<MutexGuard<'_, FreeLists>> {
        match self.free_lists.try_lock() {
            Ok(lists) => Some(lists),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    /// The end of a lease: the block becomes idle.
    fn release(&self, block: Block) {
        let now = Instant::now();
        let max_idle = self.max_idle.load(Ordering::Relaxed);
        let mut lists = lock(&self.free_lists);
        lists.put(block, now);
        // One at a time, each unmapped outside of the lock: a long block may push out many short
        // ones.
        while lists.idle_bytes() > max_idle
            && let Some(surplus) = lists.pop_oldest()
        {
            drop(lists);
            drop(surplus);
            lists = lock(&self.free_lists);
        }
        drop(lists);
        // A waiter can take the block now, or reclaim it. It looks under the same lock: either it
        // looked later and saw the block, or it is seen in the wait queue here.
        self.budget.notify_waiters();
    }

    /// Unmaps idle blocks for requests that must have the bytes: the reserve goes, too.
    fn reclaim(&self, bytes: u64) -> u64 {
        self.unmap_idle(bytes, 0)
    }

    /// With a reserve, any idle block that is long enough serves a lease: asking the system costs
    /// more than what is wasted.
    fn waste_max(&self) -> usize {
        if self.reserved_bytes() > 0 {
            return usize::MAX;
        }
        usize::try_from(self.waste_max.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
    }

    fn reserved_bytes(&self) -> u64 {
        self.reserve.load(Ordering::Relaxed)
    }

    /// Unmaps the blocks that were idle longest until `bytes` went, while more than `kept` are
    /// idle.
    fn unmap_idle(&self, bytes: u64, kept: u64) -> u64 {
        let mut unmapped = 0;
        loop {
            // One at a time: a lease meanwhile waits for no more than one look.
            let mut lists = lock(&self.free_lists);
            let has_more = unmapped < bytes && lists.idle_bytes() > kept;
            let oldest = if has_more { lists.pop_oldest() } else { None };
            drop(lists);
            let Some(block) = oldest else { return unmapped };
            unmapped += block.length() as u64;
            // Unmapped here, outside of the lock.
            drop(block);
        }
    }
}

/// Bytes on lease from a [`BufferPool`]. Dropping it makes its block idle; the block stays
/// resident.
#[derive(Debug)]
pub struct Buffer {
    inner: PlainArc<BufferPoolInner>,
    /// Taken out only when the lease ends.
    block: Option<Block>,
    length: usize,
}

impl Buffer {
    /// Shortens the buffer to its first `length` bytes; no change if it has fewer. Its block stays
    /// as long as it is.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// Makes the buffer the first `length` bytes of its block; false, without a change, if the block
    /// has fewer.
    pub(super) fn set_length(&mut self, length: usize) -> bool {
        let fits = self.block.as_ref().is_some_and(|block| length <= block.length());
        if fits {
            self.length = length;
        }
        fits
    }

    /// Ends the lease and returns the block to the system, where a drop would make it idle. Returns
    /// how many bytes went.
    pub(super) fn unmap(mut self) -> u64 {
        let Some(block) = self.block.take() else { return 0 };
        let length = block.length();
        lock(&self.inner.free_lists).release_slots(length, 1);
        // Unmapped here, outside of the lock. The end of its charge wakes waiters (B1).
        drop(block);
        length as u64
    }

    /// Bytes of its block: what the budget is charged for.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.block.as_ref().map_or(0, |block| block.length() as u64)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.block.as_ref().map_or(&[], |block| &block.mapping.bytes()[..self.length])
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.block {
            Some(block) => &mut block.mapping.bytes_mut()[..self.length],
            None => &mut [],
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.inner.release(block);
        }
    }
}

/// The length of a block for a lease of `length` bytes.
fn size_class(length: usize) -> Result<usize, Error> {
    let rounded = if length <= SIZE_CLASS_STEP_BYTES {
        length.max(rustix::param::page_size()).checked_next_power_of_two()
    } else {
        length.checked_next_multiple_of(SIZE_CLASS_STEP_BYTES)
    };
    rounded.filter(|length| isize::try_from(*length).is_ok()).ok_or(
        Error::new(ErrorKind::OutOfMemory, "bytes in one piece")
            .with_amount(length as u64, isize::MAX as u64),
    )
}

/// Resident memory with its charge.
///
/// What the budget gets back is unmapped by then.
#[derive(Debug)]
struct Block {
    mapping: Mapping,
    charge: Charge,
}

impl Block {
    /// A new block of `length` bytes, which `charge` counts. It waits while the system refuses.
    fn new(budget: &Budget, charge: Charge, length: usize) -> Result<Self, Error> {
        let mapping = retry_until_available(budget, length, || map_resident(budget, length))?;
        Ok(Self { mapping, charge })
    }

    /// A new block that does not wait: it fails when the system refuses. It is faulted in on up to
    /// `threads` threads; with it comes the time that they took beyond the caller's.
    fn try_new(
        budget: &Budget,
        charge: Charge,
        length: usize,
        threads: usize,
    ) -> Result<(Self, Duration), Error> {
        // On an error the mapping ends before `charge`, which came before it.
        let mut mapping = budget.system().map(length, PageSize::Small)?;
        let job = prefault_job(length as u64).max_threads(threads);
        let begin = Instant::now();
        let taken = budget.system().populate_by(&mut mapping, job)?;
        Ok((Self { mapping, charge }, taken.saturating_sub(begin.elapsed())))
    }

    /// Moves the first `length` bytes out of this block into a new one, with their share of the
    /// charge. None unless something is left of both.
    fn split(&mut self, length: usize) -> Option<Self> {
        debug_assert_eq!(self.mapping.length() as u64, self.charge.bytes(), "a block is charged");
        // In this order: if a share of the charge were missing, its bytes would be unmapped and
        // stay charged, and not the other way round.
        let mapping = self.mapping.split(length)?;
        let charge = self.charge.split(length as u64)?;
        Some(Self { mapping, charge })
    }

    fn length(&self) -> usize {
        self.mapping.length()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // Memory that the system does not take back stays charged.
        if !self.mapping.unmap() {
            self.charge.forget();
        }
    }
}

/// Tries until the system gives what it may refuse for a moment, or gives up.
fn retry_until_available<T>(
    budget: &Budget,
    length: usize,
    mut attempt: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    let mut refusal = match attempt() {
        Ok(made) => return Ok(made),
        Err(error) if error.kind() != ErrorKind::OutOfMemory => return Err(error),
        Err(error) => error,
    };
    // The bytes are charged already, so others may be waiting for them: a holder.
    let made = budget.wait_for(length as u64, WaitPriority::Holder, || {
        attempt().map_err(|error| refusal = error).ok()
    });
    made.ok_or(refusal)
}

/// A new mapping, all of it resident.
fn map_resident(budget: &Budget, length: usize) -> Result<Mapping, Error> {
    let mut mapping = budget.system().map(length, PageSize::Small)?;
    let length = mapping.length();
    if budget.system().populate(&mapping, 0, length)? == PopulateMethod::Touch {
        touch(mapping.bytes_mut());
    }
    Ok(mapping)
}

/// The idle blocks of a buffer pool by size class, and how many bytes all of its blocks have.
#[derive(Debug, Default)]
struct FreeLists {
    /// The classes that were ever leased, ascending. Few: powers of two and whole MiB.
    classes: Vec<SizeClass>,
    idle_bytes: u64,
    /// Of all blocks, idle or leased.
    resident_bytes: u64,
}

/// The blocks of one length.
#[derive(Debug)]
struct SizeClass {
    length: usize,
    /// Blocks of this class, idle or leased. `idle` has capacity for all of them, so that the end
    /// of a lease allocates nothing.
    blocks: usize,
    /// With the time of release, ascending.
    idle: VecDeque<(Block, Instant)>,
}

impl FreeLists {
    /// Bytes of idle blocks.
    fn idle_bytes(&self) -> u64 {
        self.idle_bytes
    }

    /// Bytes of all blocks, idle or leased.
    fn resident_bytes(&self) -> u64 {
        self.resident_bytes
    }

    fn class(&self, length: usize) -> Result<usize, usize> {
        self.classes.binary_search_by_key(&length, |class| class.length)
    }

    /// How many blocks of this length are idle.
    fn idle_blocks(&self, length: usize) -> usize {
        self.class(length).map_or(0, |index| self.classes[index].idle.len())
    }

    /// Takes a block of the smallest class that fits and wastes no more than allowed, the last one
    /// released. None if less than `watermark` bytes would stay idle.
    fn take(&mut self, wanted: usize, waste_max: usize, watermark: u64) -> Option<Block> {
        let first = self.class(wanted).unwrap_or_else(|index| index);
        let longest = wanted.saturating_mul(waste_max);
        let spare = self.idle_bytes.checked_sub(watermark)?;
        let fitting = self.classes[first..].iter_mut();
        let fitting =
            fitting.take_while(|class| class.length <= longest && class.length as u64 <= spare);
        let (block, _) = fitting.filter_map(|class| class.idle.pop_back()).next()?;
        self.idle_bytes -= block.length() as u64;
        Some(block)
    }

    /// Removes the idle block that was released first of all.
    fn pop_oldest(&mut self) -> Option<Block> {
        let classes = self.classes.iter_mut().filter(|class| !class.idle.is_empty());
        let class =
            classes.min_by_key(|class| class.idle.front().map(|(_, released)| *released))?;
        let (block, _) = class.idle.pop_front()?;
        class.blocks -= 1;
        let bytes = block.length() as u64;
        self.idle_bytes -= bytes;
        self.resident_bytes -= bytes;
        Some(block)
    }

    /// Counts blocks that are about to come, and reserves capacity for their release.
    fn reserve_slots(&mut self, length: usize, count: usize) -> Result<(), Error> {
        let no_room = |_| Error::new(ErrorKind::OutOfMemory, "the list of buffers");
        let index = match self.class(length) {
            Ok(index) => index,
            Err(index) => {
                self.classes.try_reserve(1).map_err(no_room)?;
                self.classes.insert(index, SizeClass { length, blocks: 0, idle: VecDeque::new() });
                index
            }
        };
        let class = &mut self.classes[index];
        let more = class.blocks + count - class.idle.len();
        class.idle.try_reserve(more).map_err(no_room)?;
        class.blocks += count;
        self.resident_bytes += (length * count) as u64;
        Ok(())
    }

    /// Undoes [`Self::reserve_slots`]: the blocks did not come, or will not be released.
    fn release_slots(&mut self, length: usize, count: usize) {
        if let Ok(index) = self.class(length) {
            self.classes[index].blocks -= count;
            self.resident_bytes -= (length * count) as u64;
        }
    }

    /// Makes a block idle, for which a slot was reserved.
    fn put(&mut self, block: Block, now: Instant) {
        let length = block.length();
        let Ok(index) = self.class(length) else { return };
        self.idle_bytes += length as u64;
        // `now` was read before the lock was taken: another release may have been later and
        // quicker.
        let idle = &mut self.classes[index].idle;
        let released = idle.back().map_or(now, |(_, last)| now.max(*last));
        idle.push_back((block, released));
    }
}

#[cfg(all(test, not(loom)))]
#[path = "buffer_pool_tests.rs"]
mod tests;
