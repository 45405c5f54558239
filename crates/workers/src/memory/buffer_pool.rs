//! Contiguous buffers that many threads share. It owns the idle blocks, their charges and their order;
//! never the bytes of a lease that is out, and never memory that the budget does not know. Decoders of
//! every thread lease their input and output here, and a cache keeps what they leased.
//!
//! One short lock guards the lists; nothing is mapped, unmapped or waited for inside of it. What best
//! effort may do stands in docs/memory.md.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use super::alloc_policy::AllocPolicy;
use super::block::{Block, size_class};
use super::budget::{Budget, Charge, ReclaimerRegistration};
use super::wait_queue::WaitPriority;
use crate::sync::{Mutex, MutexGuard, Ordering, PlainArc, PlainAtomicU64, PlainWeak, lock};
use crate::{Error, ErrorKind};

/// An idle block serves leases down to this part of its length: more would let a small lease that
/// lasts hold far more than it needs.
const WASTE_MAX: usize = 4;

/// How often room is made for one lease of a reserve: what goes may be shorter than what is wanted, or come in
/// chunks.
const EVICT_ATTEMPTS_MAX: usize = 4;

/// Bytes of the blocks that are mapped together when a reserve is filled, and cut apart then. Each call that
/// maps excludes all that fault in: with blocks that were mapped one by one two threads took as long as one, and
/// with a slab of 32 MiB for each thread 0.8 of it (docs/memory.md). It is no more than that since nobody looks
/// whether others wait before it is done.
const SLAB_BYTES: usize = 256 << 20;

/// BufferPool under one budget. Clones are handles of the same ones; idle blocks live until the last
/// handle and the last lease are gone.
#[derive(Debug, Clone)]
pub struct BufferPool {
    store: PlainArc<BufferPoolInner>,
}

#[derive(Debug)]
struct BufferPoolInner {
    budget: Budget,
    free_lists: Mutex<FreeLists>,
    counts: BufferPoolCounters,
    /// Bytes that may lie idle.
    idle_most: PlainAtomicU64,
    /// Idle bytes that stay when others are given back for being old or not needed.
    reserve: PlainAtomicU64,
    /// Set once, after the store has an address. Its reclaimer knows the store weakly.
    registration: Mutex<Option<ReclaimerRegistration>>,
}

#[derive(Debug, Default)]
struct BufferPoolCounters {
    from_idle: PlainAtomicU64,
    mapped: PlainAtomicU64,
    mapping_nanos: PlainAtomicU64,
    refused: PlainAtomicU64,
}

/// What [`BufferPool`] counted since they were made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct BufferPoolStats {
    /// Leases of a block that was idle.
    pub from_idle: u64,
    /// Blocks that were mapped, for leases and for the preallocate.
    pub mapped: u64,
    /// Nanoseconds that mapping and faulting them in took, all threads together, waiting for the
    /// system's memory included.
    pub mapping_nanos: u64,
    /// Leases that may fail and did.
    pub refused: u64,
}

impl BufferPool {
    /// BufferPool that have nothing yet. What they get is charged to the budget, and idle blocks go back
    /// when somebody needs their bytes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidSetting`] when the budget has no room for another reclaimer.
    pub fn new(budget: &Budget) -> Result<Self, Error> {
        let store = PlainArc::new(BufferPoolInner {
            budget: budget.clone(),
            free_lists: Mutex::new(FreeLists::default()),
            counts: BufferPoolCounters::default(),
            registration: Mutex::new(None),
            idle_most: PlainAtomicU64::new(u64::MAX),
            reserve: PlainAtomicU64::new(0),
        });
        // Weak: the budget would keep the store, and the store keeps the budget.
        let weak = PlainArc::downgrade(&store);
        let registration = budget.register_reclaimer(move |bytes| {
            PlainWeak::upgrade(&weak).map_or(0, |store| store.release_idle(bytes))
        })?;
        *lock(&store.registration) = Some(registration);
        Ok(Self { store })
    }

    /// Keeps at most `bytes` idle: what is released above goes back to the system, the block first that
    /// was idle longest. Without this everything stays until somebody needs it.
    pub fn set_max_idle(&self, bytes: u64) {
        // Relaxed: a bound that the next releases see; it guards nothing.
        self.store.idle_most.store(bytes, Ordering::Relaxed);
    }

    /// Has `bytes` idle bytes stay when [`release_idle`](Self::release_idle) or [`trim`](Self::trim) is asked
    /// for more, as far as so many are idle. Whoever must have memory of the budget gets them all the
    /// same. Nothing is mapped for it; [`fill_reserve`](Self::fill_reserve) does that.
    pub fn reserve(&self, bytes: u64) {
        // Relaxed: as in `set_max_idle`.
        self.store.reserve.store(bytes, Ordering::Relaxed);
    }

    /// How many bytes [`reserve`](Self::reserve) said.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.store.kept_bytes()
    }

    /// Maps blocks of `length` bytes until the reserve is idle, and faults them in on up to `threads`
    /// threads, the caller among them; says how many bytes came. It ends early rather than wait, reclaim,
    /// or take what others wait for.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] when `length` is more than can be.
    pub fn fill_reserve(&self, length: usize, threads: usize) -> Result<u64, Error> {
        let wanted = size_class(length)?;
        let missing = self.store.kept_bytes().saturating_sub(self.idle_bytes());
        let came = self.store.fill_idle(wanted, missing / wanted as u64, threads);
        Ok(came * wanted as u64)
    }

    /// Leases `length` bytes in one piece, until the buffer is dropped. They are resident; what they
    /// say is whatever was there.
    ///
    /// What is idle and fits is used: the smallest size that holds `length` and is at most four times
    /// as large, and of that size the block that was released last. Otherwise, under
    /// [`AllocPolicy::MustSucceed`], a new block comes. [`AllocPolicy::MayFail`] makes no system call and waits
    /// for nobody, not even for the lock.
    ///
    /// Who holds a buffer and needs another one to finish uses [`Self::lease_beside`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotNow`] under [`AllocPolicy::MayFail`] when nothing fits, when somebody waits for
    /// memory or is at the lists just now, or when the system is short of memory;
    /// [`ErrorKind::OutOfMemory`] when more is asked than the limit, or when reclaiming and waiting
    /// did not help. What there was is then there as before.
    pub fn lease(&self, length: usize, policy: AllocPolicy) -> Result<Buffer, Error> {
        self.store
            .lease(length, policy, WaitPriority::Normal)
            .map(|block| self.buffer(block, length))
    }

    /// The same for one who holds a buffer and can give it back only with this one: under
    /// [`AllocPolicy::MustSucceed`] it may pass those who wait, once nothing came back for a while, since
    /// they may wait for what it holds.
    ///
    /// # Errors
    ///
    /// As [`Self::lease`].
    pub fn lease_beside(
        &self,
        _held: &Buffer,
        length: usize,
        policy: AllocPolicy,
    ) -> Result<Buffer, Error> {
        self.store
            .lease(length, policy, WaitPriority::Holder)
            .map(|block| self.buffer(block, length))
    }

    /// The same for one who lives on the reserve, and maps beyond it only when nothing else helps: takes what is idle
    /// and fits; maps while less than the reserve is resident, or where so many bytes lie idle in shorter blocks, which
    /// go for it; and else has `evict` free as many bytes as it is told, four times at most, and looks again. Then,
    /// or when it frees none or others wait for memory, it is a [`lease`](Self::lease) under
    /// [`AllocPolicy::MustSucceed`]. `evict` says how many bytes it let go of, and runs outside of the lock.
    ///
    /// # Errors
    ///
    /// As [`Self::lease`] under [`AllocPolicy::MustSucceed`].
    pub fn lease_from_reserve(
        &self,
        length: usize,
        evict: impl Fn(u64) -> u64,
    ) -> Result<Buffer, Error> {
        let store = &self.store;
        let (wanted, kept) = (size_class(length)?, store.kept_bytes());
        for attempt in 0..EVICT_ATTEMPTS_MAX {
            // Who waits comes first, and has memory reclaimed that is kept.
            if kept == 0 || !store.budget.has_no_waiters() {
                break;
            }
            let mut free_lists = lock(&store.free_lists);
            if let Some(block) = free_lists.take(wanted, store.waste_max(), 0) {
                drop(free_lists);
                return Ok(self.buffer(store.counted_idle(block), length));
            }
            let is_growing = free_lists.resident_bytes < kept;
            let is_cut_short = free_lists.idle_bytes >= wanted as u64;
            drop(free_lists);
            // At first only: what was just let go of may still come together.
            if !is_growing && is_cut_short && attempt == 0 {
                store.release_idle(wanted as u64);
                break;
            }
            if is_growing || evict(wanted as u64) == 0 {
                break;
            }
        }
        self.lease(length, AllocPolicy::MustSucceed)
    }

    /// Best effort that leaves `left` idle bytes to others: a [`lease`](Self::lease) under [`AllocPolicy::MayFail`] that is
    /// refused where fewer would be left.
    ///
    /// # Errors
    ///
    /// As [`Self::lease`] under [`AllocPolicy::MayFail`].
    pub fn lease_above_watermark(&self, length: usize, left: u64) -> Result<Buffer, Error> {
        self.store.lease_idle(size_class(length)?, left).map(|block| self.buffer(block, length))
    }

    /// Makes idle blocks for leases of `length` bytes, until there are `count` of that size, so that
    /// best effort finds some; says how many it made. It ends early rather than wait, reclaim, take what
    /// others wait for, or have more idle than [`set_max_idle`](Self::set_max_idle) says. It maps and faults: for
    /// threads that may.
    #[must_use]
    pub fn preallocate(&self, length: usize, count: usize) -> usize {
        let Ok(wanted) = size_class(length) else { return 0 };
        let store = &self.store;
        let mut made = 0;
        while lock(&store.free_lists).idle_of(wanted) < count {
            let Some(block) = store.new_idle(wanted, 1, 1) else { break };
            store.put_back(block);
            made += 1;
        }
        made
    }

    /// Makes an idle block for leases of `length` bytes, if the reserve has not so many bytes yet: idle or out, no more
    /// than it may have are resident then. Says whether it did. As [`preallocate`](Self::preallocate) it is for threads that may
    /// map, and does not wait.
    pub fn grow_reserve(&self, length: usize) -> bool {
        let Ok(wanted) = size_class(length) else { return false };
        let store = &self.store;
        let resident = lock(&store.free_lists).resident_bytes;
        if resident.saturating_add(wanted as u64) > store.kept_bytes() {
            return false;
        }
        store.new_idle(wanted, 1, 1).map(|block| store.put_back(block)).is_some()
    }

    /// Bytes of idle blocks: resident, charged, and to be had without a system call.
    #[must_use]
    pub fn idle_bytes(&self) -> u64 {
        lock(&self.store.free_lists).idle_bytes
    }

    /// Bytes of the blocks behind leases that are out: what is charged for them, which may be more than
    /// what was asked for.
    #[must_use]
    pub fn leased_bytes(&self) -> u64 {
        let free_lists = lock(&self.store.free_lists);
        free_lists.resident_bytes - free_lists.idle_bytes
    }

    /// Gives idle blocks back to the system, those first that were idle longest, until `bytes` went or
    /// only the reserve is left; says how many went.
    pub fn release_idle(&self, bytes: u64) -> u64 {
        self.store.release_while(self.store.kept_bytes(), |gone, _| gone < bytes)
    }

    /// Gives blocks back that were idle for longer than `age`, down to the reserve; says how many bytes went. For
    /// whoever has a moment, from time to time: so a burst does not keep its memory.
    pub fn trim(&self, age: Duration) -> u64 {
        // A clock younger than the age: nothing is that old.
        let Some(before) = Instant::now().checked_sub(age) else { return 0 };
        self.store.release_while(self.store.kept_bytes(), |_, released| released <= before)
    }

    /// What was counted so far.
    #[must_use]
    pub fn stats(&self) -> BufferPoolStats {
        let counts = &self.store.counts;
        BufferPoolStats {
            from_idle: counts.from_idle.load(Ordering::Relaxed),
            mapped: counts.mapped.load(Ordering::Relaxed),
            mapping_nanos: counts.mapping_nanos.load(Ordering::Relaxed),
            refused: counts.refused.load(Ordering::Relaxed),
        }
    }

    fn buffer(&self, block: Block, length: usize) -> Buffer {
        Buffer { store: PlainArc::clone(&self.store), block: Some(block), length }
    }
}

/// What an attempt to lease came to.
enum BlockSource {
    Idle(Block),
    /// Bytes of the budget, for a new block.
    Bytes(Charge),
}

impl BufferPoolInner {
    fn lease(
        &self,
        length: usize,
        policy: AllocPolicy,
        priority: WaitPriority,
    ) -> Result<Block, Error> {
        let wanted = size_class(length)?;
        if wanted as u64 > self.budget.limit_bytes() {
            return Err(Error::new(ErrorKind::OutOfMemory, "bytes of a buffer")
                .with_amount(wanted as u64, self.budget.limit_bytes()));
        }
        match policy {
            AllocPolicy::MayFail => self.lease_idle(wanted, 0),
            AllocPolicy::MustSucceed => self.lease_waiting(wanted, priority),
        }
    }

    fn lease_idle(&self, wanted: usize, left: u64) -> Result<Block, Error> {
        let at_hand = if self.budget.best_effort_yields() { None } else { self.try_free_lists() };
        // A second word for the guard: it ends before the refusal is counted.
        let block =
            at_hand.and_then(|mut free_lists| free_lists.take(wanted, self.waste_max(), left));
        match block {
            Some(block) => Ok(self.counted_idle(block)),
            None => {
                self.counts.refused.fetch_add(1, Ordering::Relaxed);
                Err(self.budget.refuse("bytes of a buffer"))
            }
        }
    }

    fn lease_waiting(&self, wanted: usize, priority: WaitPriority) -> Result<Block, Error> {
        // Those who wait come first: what is idle is theirs, too, since reclaiming gives it to them.
        let found = if self.budget.has_no_waiters() { self.find_block(wanted) } else { None };
        let found = match found {
            Some(found) => Some(found),
            None => self.budget.wait_for(wanted as u64, priority, || self.find_block(wanted)),
        };
        match found {
            Some(BlockSource::Idle(block)) => Ok(self.counted_idle(block)),
            Some(BlockSource::Bytes(charge)) => self.map(charge, wanted),
            None => Err(Error::new(ErrorKind::OutOfMemory, "bytes of a buffer")
                .with_amount(wanted as u64, self.budget.limit_bytes())),
        }
    }

    fn find_block(&self, wanted: usize) -> Option<BlockSource> {
        // The guard ends with this statement: bytes are taken outside of the lock.
        let idle = lock(&self.free_lists).take(wanted, self.waste_max(), 0);
        idle.map(BlockSource::Idle)
            .or_else(|| self.budget.try_charge(wanted as u64).map(BlockSource::Bytes))
    }

    #[cold]
    fn map(&self, charge: Charge, wanted: usize) -> Result<Block, Error> {
        lock(&self.free_lists).reserve_slots(wanted, 1)?;
        self.counted_mapping(wanted, 1, || {
            Ok((Block::of_charged(&self.budget, charge, wanted)?, Duration::ZERO))
        })
    }

    /// Makes `count` idle blocks of `wanted` bytes, or as many as come without anybody's waiting; says how
    /// many.
    fn fill_idle(&self, wanted: usize, count: u64, threads: usize) -> u64 {
        let mut together = (SLAB_BYTES / wanted).max(1);
        let mut made = 0;
        while made < count && !self.budget.best_effort_yields() {
            together = usize::try_from(count - made).map_or(together, |left| together.min(left));
            match self.new_idle(wanted, together, threads) {
                Some(mut slab) => {
                    while let Some(block) = slab.split(wanted) {
                        self.put_back(block);
                    }
                    self.put_back(slab);
                    made += together as u64;
                }
                // What is left may be less than a slab, and each slab that comes leaves less.
                None if together > 1 => together /= 2,
                None => break,
            }
        }
        made
    }

    /// `count` blocks of `wanted` bytes for the preallocate, in one piece; none where somebody would have to wait
    /// for it.
    fn new_idle(&self, wanted: usize, count: usize, threads: usize) -> Option<Block> {
        let bytes = wanted.checked_mul(count)?;
        let most = self.idle_most.load(Ordering::Relaxed);
        // What may not lie idle would be unmapped as soon as it is there, over and over.
        if self.budget.best_effort_yields()
            || lock(&self.free_lists).idle_bytes + bytes as u64 > most
        {
            return None;
        }
        let charge = self.budget.try_charge(bytes as u64)?;
        lock(&self.free_lists).reserve_slots(wanted, count).ok()?;
        let map = || Block::of_charged_now(&self.budget, charge, bytes, threads);
        self.counted_mapping(wanted, count, map).ok()
    }

    /// Maps `count` blocks that were announced, and takes their time: this thread's, and what others took
    /// besides.
    fn counted_mapping(
        &self,
        wanted: usize,
        count: usize,
        map: impl FnOnce() -> Result<(Block, Duration), Error>,
    ) -> Result<Block, Error> {
        let begin = Instant::now();
        let made = map();
        let besides = made.as_ref().map_or(Duration::ZERO, |(_, besides)| *besides);
        let nanos = (begin.elapsed() + besides).as_nanos();
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        self.counts.mapping_nanos.fetch_add(nanos, Ordering::Relaxed);
        match &made {
            Ok(_) => {
                self.counts.mapped.fetch_add(count as u64, Ordering::Relaxed);
            }
            Err(_) => lock(&self.free_lists).release_slots(wanted, count),
        }
        made.map(|(block, _)| block)
    }

    fn counted_idle(&self, block: Block) -> Block {
        self.counts.from_idle.fetch_add(1, Ordering::Relaxed);
        block
    }

    /// The lists, if nobody is at them.
    fn try_free_lists(&self) -> Option<MutexGuard<'_, FreeLists>> {
        match self.free_lists.try_lock() {
            Ok(free_lists) => Some(free_lists),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    /// The end of a lease.
    fn put_back(&self, block: Block) {
        let now = Instant::now();
        let most = self.idle_most.load(Ordering::Relaxed);
        let mut free_lists = lock(&self.free_lists);
        free_lists.put(block, now);
        // One at a time, each unmapped outside of the lock: a long block may push out many short ones.
        while free_lists.idle_bytes > most
            && let Some(surplus) = free_lists.pop_oldest(|_| true)
        {
            drop(free_lists);
            drop(surplus);
            free_lists = lock(&self.free_lists);
        }
        drop(free_lists);
        // Who waits for memory can take it now, or reclaim it. It looks under the same lock: either
        // that look came later and saw the block, or its visit is seen here.
        self.budget.notify_waiters();
    }

    /// For those who must have the bytes: the reserve goes, too.
    fn release_idle(&self, bytes: u64) -> u64 {
        self.release_while(0, |gone, _| gone < bytes)
    }

    /// What is reserved is there to be used, whatever its size: asking the system costs more than what lies idle.
    fn waste_max(&self) -> usize {
        if self.kept_bytes() > 0 { usize::MAX } else { WASTE_MAX }
    }

    fn kept_bytes(&self) -> u64 {
        self.reserve.load(Ordering::Relaxed)
    }

    /// Unmaps the block that was idle longest while more than `kept` bytes are idle and `goes` says so of
    /// the bytes gone so far and the time of its release.
    fn release_while(&self, kept: u64, goes: impl Fn(u64, Instant) -> bool) -> u64 {
        let mut gone = 0;
        loop {
            // One at a time: whoever leases meanwhile waits for no more than one look.
            let mut free_lists = lock(&self.free_lists);
            let is_above = free_lists.idle_bytes > kept;
            let oldest = free_lists.pop_oldest(|released| is_above && goes(gone, released));
            drop(free_lists);
            let Some(block) = oldest else { return gone };
            gone += block.mapping.length() as u64;
            // Unmapped here, outside of the lock.
            drop(block);
        }
    }
}

/// The idle blocks by size, and what is out.
#[derive(Debug, Default)]
struct FreeLists {
    /// Sizes that were ever leased, ascending. Few: powers of two and whole MiB.
    sizes: Vec<SizeClass>,
    idle_bytes: u64,
    /// Of all blocks, idle or out.
    resident_bytes: u64,
}

/// Blocks of one size.
#[derive(Debug)]
struct SizeClass {
    length: usize,
    /// Blocks of this size, idle or out. There is room for all of them in `idle`, so that the end of a
    /// lease allocates nothing.
    blocks: usize,
    /// With the time of release, ascending.
    idle: VecDeque<(Block, Instant)>,
}

impl FreeLists {
    fn place(&self, length: usize) -> Result<usize, usize> {
        self.sizes.binary_search_by_key(&length, |size| size.length)
    }

    fn idle_of(&self, length: usize) -> usize {
        self.place(length).map_or(0, |place| self.sizes[place].idle.len())
    }

    /// The block of the smallest size that fits and wastes no more than it may, the last one released; none where
    /// fewer than `left` bytes would stay idle.
    fn take(&mut self, wanted: usize, waste_max: usize, left: u64) -> Option<Block> {
        let first = self.place(wanted).unwrap_or_else(|place| place);
        let most = wanted.saturating_mul(waste_max);
        let spare = self.idle_bytes.checked_sub(left)?;
        let fitting = self.sizes[first..].iter_mut();
        let fitting = fitting.take_while(|size| size.length <= most && size.length as u64 <= spare);
        let (block, _) = fitting.filter_map(|size| size.idle.pop_back()).next()?;
        self.idle_bytes -= block.mapping.length() as u64;
        Some(block)
    }

    /// The block that was released first of all, if `goes` says so; it is a block of ours no longer.
    fn pop_oldest(&mut self, goes: impl Fn(Instant) -> bool) -> Option<Block> {
        let fronts = self.sizes.iter_mut().filter(|size| !size.idle.is_empty());
        let size = fronts.min_by_key(|size| size.idle.front().map(|(_, released)| *released))?;
        let (_, released) = size.idle.front()?;
        if !goes(*released) {
            return None;
        }
        let (block, _) = size.idle.pop_front()?;
        size.blocks -= 1;
        let bytes = block.mapping.length() as u64;
        self.idle_bytes -= bytes;
        self.resident_bytes -= bytes;
        Some(block)
    }

    /// BufferPoolCounters blocks that are about to come, and makes room for their ends.
    fn reserve_slots(&mut self, length: usize, count: usize) -> Result<(), Error> {
        let no_room = |_| Error::new(ErrorKind::OutOfMemory, "the list of buffers");
        let place = match self.place(length) {
            Ok(place) => place,
            Err(place) => {
                self.sizes.try_reserve(1).map_err(no_room)?;
                self.sizes.insert(place, SizeClass { length, blocks: 0, idle: VecDeque::new() });
                place
            }
        };
        let size = &mut self.sizes[place];
        let more = size.blocks + count - size.idle.len();
        size.idle.try_reserve(more).map_err(no_room)?;
        size.blocks += count;
        self.resident_bytes += (length * count) as u64;
        Ok(())
    }

    /// The blocks did not come.
    fn release_slots(&mut self, length: usize, count: usize) {
        if let Ok(place) = self.place(length) {
            self.sizes[place].blocks -= count;
            self.resident_bytes -= (length * count) as u64;
        }
    }

    fn put(&mut self, block: Block, now: Instant) {
        let length = block.mapping.length();
        // Every block was announced.
        let Ok(place) = self.place(length) else { return };
        self.idle_bytes += length as u64;
        // `now` was read before the lock was had: another release may have been later and quicker.
        let idle = &mut self.sizes[place].idle;
        let released = idle.back().map_or(now, |(_, last)| now.max(*last));
        idle.push_back((block, released));
    }
}

/// Bytes on lease from [`BufferPool`], owned. Dropping it makes its block idle; it stays resident.
#[derive(Debug)]
pub struct Buffer {
    store: PlainArc<BufferPoolInner>,
    /// Taken out only when the lease ends.
    block: Option<Block>,
    length: usize,
}

impl Buffer {
    /// Cuts the end off, so that the first `length` bytes are left; all when it has fewer. The block
    /// behind it stays as large as it is.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// Bytes of the block behind it: what the budget is charged for.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.block.as_ref().map_or(0, |block| block.mapping.length() as u64)
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
            self.store.put_back(block);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod stress_tests;
#[cfg(all(test, not(loom)))]
mod tests;
