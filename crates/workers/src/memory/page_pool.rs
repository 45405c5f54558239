//! Frames of 4 KiB from one arena. It owns the arena, knows where each frame is, and charges
//! resident frames to the budget. It never holds more idle frames than its reserve allows. Decoders
//! lease the frames of a window here, through a `RequestFrameList` or directly.
//!
//! docs/workers.md, protocol F, and protocol B for requests that wait.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Instant;

use super::AllocPolicy;
use super::budget::{Budget, Charge};
use super::frame_stack::{Arena, FrameKey, FrameLinks, FrameSource, FrameStack};
use super::mapping::PageSize;
use super::wait_queue::WaitPriority;
use crate::sync::{Arc, AtomicU32, Ordering, PlainAtomicU64};
use crate::{Error, ErrorKind};

/// Frames in the largest arena: 64 GiB of 4 KiB each.
pub const FRAMES_MAX: u32 = 1 << 24;
/// Frames that are returned to the system in one go: they are sorted on the stack to find
/// neighbours.
const RETURN_BATCH: usize = 64;

/// How a [`PagePool`] is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PagePoolSettings {
    /// Frames in the arena, 1 to [`FRAMES_MAX`]: the most that can be leased at a time. They take
    /// address space; memory comes with use.
    pub frames: u32,
    /// The most idle frames that stay resident, at most `frames`. 0, the default, keeps none.
    pub reserved_frames: u32,
    /// Whether the reserve is full from the start. Otherwise it fills with the first frames
    /// released.
    pub prefill: bool,
    /// The pages that the arena is made of.
    pub pages: PageSize,
}

impl PagePoolSettings {
    /// An arena of `frames`, of which `reserved_frames` stay resident when idle; the rest as by
    /// default.
    #[must_use]
    pub fn new(frames: u32, reserved_frames: u32) -> Self {
        Self { frames, reserved_frames, ..Self::default() }
    }

    /// Whether the reserve is full from the start.
    #[must_use]
    pub fn prefill(self, prefill: bool) -> Self {
        Self { prefill, ..self }
    }

    /// The pages that the arena is made of.
    #[must_use]
    pub fn pages(self, pages: PageSize) -> Self {
        Self { pages, ..self }
    }

    fn check(&self) -> Result<(), Error> {
        if self.frames == 0 || self.frames > FRAMES_MAX {
            return Err(Error::new(ErrorKind::InvalidSetting, "frames of the page pool")
                .with_amount(self.frames.into(), FRAMES_MAX.into()));
        }
        if self.reserved_frames > self.frames {
            return Err(Error::new(ErrorKind::InvalidSetting, "reserved frames")
                .with_amount(self.reserved_frames.into(), self.frames.into()));
        }
        Ok(())
    }
}

/// What a page pool has counted since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PagePoolStats {
    /// Leases from request lists.
    pub from_list: u64,
    /// Leases from the reserve.
    pub from_reserve: u64,
    /// Leases of frames that were faulted in for it.
    pub from_system: u64,
    /// Nanoseconds that faulting these in took, all threads together, waiting for the system's
    /// memory included.
    pub faulting_nanos: u64,
    /// Frames returned to the system.
    pub returned: u64,
    /// Calls to return frames that the system refused; the frames are vacant all the same.
    pub refused_returns: u64,
}

impl PagePoolStats {
    /// All leases.
    #[must_use]
    pub fn leases(&self) -> u64 {
        self.from_list + self.from_reserve + self.from_system
    }
}

/// A pool of frames. Clones are handles of one pool, which lives until the last frame is back.
///
/// ```
/// use ferrofs_workers::memory::{AllocPolicy, Budget, PagePool, PagePoolSettings};
///
/// let budget = Budget::new(1 << 20);
/// let pool = PagePool::new(&budget, PagePoolSettings::new(64, 4))?;
/// let mut list = pool.request_list();
/// let mut frame = list.allocate(AllocPolicy::MustSucceed)?;
/// frame.fill(1);
/// list.put(frame);
/// // The list's own frame comes back, without a look at the pool.
/// assert_eq!(list.allocate(AllocPolicy::MayFail)?[0], 1);
/// # Ok::<(), ferrofs_workers::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct PagePool {
    pool: Arc<PagePoolInner>,
}

impl PagePool {
    /// Maps the arena and, if asked, fills the reserve. The links (32 bytes a frame) are charged to
    /// the budget now, each frame while it is resident.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidSetting`] for numbers out of range; [`ErrorKind::OutOfMemory`] and
    /// [`ErrorKind::System`] when the system refuses the arena, the links or the prefilled frames;
    /// [`ErrorKind::NotNow`] when the budget has no room for them.
    pub fn new(budget: &Budget, settings: PagePoolSettings) -> Result<Self, Error> {
        settings.check()?;
        let tables = budget.charge(FrameLinks::bytes_for(settings.frames), AllocPolicy::MayFail)?;
        let (links, vacant) = FrameLinks::with_stack(settings.frames)?;
        let arena = Arena::new(budget.system(), &links, settings.frames, settings.pages)?;
        let reserve = FrameStack::new(&links);
        let mut pool = PagePoolInner {
            arena,
            links,
            reserve,
            vacant,
            settings,
            budget: budget.clone(),
            waiting: AtomicU32::new(0),
            charge: tables,
            faulting_nanos: PlainAtomicU64::new(0),
            returned: PlainAtomicU64::new(0),
            refused_returns: PlainAtomicU64::new(0),
        };
        if settings.prefill {
            pool.fill_reserve()?;
        }
        Ok(Self { pool: Arc::new(pool) })
    }

    /// Leases one frame, from the reserve or else from the system. Under
    /// [`AllocPolicy::MustSucceed`] the frame is resident when this returns, so that its cost is
    /// paid here. A caller that needs several frames before it can give one back takes them from
    /// one [`RequestFrameList`], which may pass requests that wait for its frames.
    ///
    /// # Errors
    ///
    /// Under [`AllocPolicy::MayFail`] [`ErrorKind::NotNow`] when the reserve is empty or somebody
    /// waits. Under [`AllocPolicy::MustSucceed`] [`ErrorKind::OutOfMemory`] when reclaiming and
    /// waiting did not help, with the system's error number if it was the system that refused.
    pub fn allocate(&self, policy: AllocPolicy) -> Result<Frame, Error> {
        let key = self.pool.allocate(policy, WaitPriority::Normal)?;
        Ok(Frame { pool: Arc::clone(&self.pool), key: Some(key) })
    }

    /// A list in front of the pool for one request or one worker.
    #[must_use]
    pub fn request_list(&self) -> RequestFrameList {
        RequestFrameList::new(Arc::clone(&self.pool))
    }

    /// Idle frames that are resident now; never more than the settings allow.
    #[must_use]
    pub fn reserved_frames(&self) -> u32 {
        self.pool.reserve.len(&self.pool.links)
    }

    /// Frames that are neither resident nor leased.
    #[cfg(test)]
    pub(super) fn vacant_frames(&self) -> u32 {
        self.pool.vacant.len(&self.pool.links)
    }

    /// The settings that it was made with.
    #[must_use]
    pub fn settings(&self) -> PagePoolSettings {
        self.pool.settings
    }

    /// The counters so far. It takes as many steps as there are frames: for reports, not for hot
    /// paths.
    #[must_use]
    pub fn stats(&self) -> PagePoolStats {
        let PagePoolInner { links, faulting_nanos, returned, refused_returns, .. } = &*self.pool;
        PagePoolStats {
            from_list: links.leases(FrameSource::List),
            from_reserve: links.leases(FrameSource::Reserve),
            from_system: links.leases(FrameSource::System),
            faulting_nanos: faulting_nanos.load(Ordering::Relaxed),
            returned: returned.load(Ordering::Relaxed),
            refused_returns: refused_returns.load(Ordering::Relaxed),
        }
    }

    /// Returns idle frames of the reserve to the system until `frames` are left, and says how many.
    /// A reclaimer may call it:
    ///
    /// ```
    /// use ferrofs_workers::memory::{AllocPolicy, Budget, FRAME_BYTES, PagePool, PagePoolSettings};
    ///
    /// let budget = Budget::new(32 << 10);
    /// let pool = PagePool::new(&budget, PagePoolSettings::new(16, 4).prefill(true))?;
    /// let reclaimed = pool.clone();
    /// let _registration = budget.register_reclaimer(move |bytes| {
    ///     let frames = u32::try_from(bytes.div_ceil(FRAME_BYTES as u64)).unwrap_or(u32::MAX);
    ///     let left = reclaimed.reserved_frames().saturating_sub(frames);
    ///     u64::from(reclaimed.shrink_to_frames(left)) * FRAME_BYTES as u64
    /// })?;
    /// // The reserve of 16 KiB gives way to a charge that must succeed.
    /// let _table = budget.charge(24 << 10, AllocPolicy::MustSucceed)?;
    /// assert!(pool.reserved_frames() < 4);
    /// # Ok::<(), ferrofs_workers::Error>(())
    /// ```
    pub fn shrink_to_frames(&self, frames: u32) -> u32 {
        let mut returned = 0;
        loop {
            let mut batch = [const { None }; RETURN_BATCH];
            let excess = self.reserved_frames().saturating_sub(frames) as usize;
            let mut count = 0;
            for slot in batch.iter_mut().take(excess) {
                *slot = self.pool.reserve.pop(&self.pool.links);
                count += usize::from(slot.is_some());
            }
            if count == 0 {
                return returned;
            }
            self.pool.return_to_system(&mut batch[..count]);
            returned += u32::try_from(count).unwrap_or(u32::MAX);
        }
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn arena(&self) -> &Arena {
        &self.pool.arena
    }
}

/// What the handles and the frames share.
#[derive(Debug)]
struct PagePoolInner {
    /// The first field, so that it is unmapped before the charges below end.
    arena: Arena,
    links: FrameLinks,
    /// Idle and resident, charged.
    reserve: FrameStack,
    /// Not resident, not charged.
    vacant: FrameStack,
    settings: PagePoolSettings,
    budget: Budget,
    /// How many requests wait for a frame.
    waiting: AtomicU32,
    /// The charge for the links, and in the end for the frames of the reserve.
    charge: Charge,
    faulting_nanos: PlainAtomicU64,
    returned: PlainAtomicU64,
    refused_returns: PlainAtomicU64,
}

impl PagePoolInner {
    /// A frame from the reserve or from the system.
    fn allocate(&self, policy: AllocPolicy, priority: WaitPriority) -> Result<FrameKey, Error> {
        let is_allowed = match policy {
            AllocPolicy::MayFail => !self.budget.best_effort_yields(),
            // A frame that stays charged does not help a request that waits for bytes: only those
            // that wait for a frame go first. Relaxed: a request that looks too early passes once.
            AllocPolicy::MustSucceed => self.waiting.load(Ordering::Relaxed) == 0,
        };
        if is_allowed && let Some(key) = self.reserve.pop(&self.links) {
            return Ok(self.count(FrameSource::Reserve, key));
        }
        match policy {
            AllocPolicy::MayFail => Err(self.budget.refuse("a frame of the page pool")),
            AllocPolicy::MustSucceed => self.allocate_from_system(priority),
        }
    }

    /// A frame that must come: vacant memory that is faulted in, or, while that fails, whatever
    /// comes back.
    #[cold]
    fn allocate_from_system(&self, priority: WaitPriority) -> Result<FrameKey, Error> {
        if self.budget.has_no_waiters()
            && let Ok(key) = PendingFrame::new(self).attempt()
        {
            return Ok(key);
        }
        let _waiting = WaitingGuard::begin(self);
        let mut pending = PendingFrame::new(self);
        let mut refusal = Error::new(ErrorKind::OutOfMemory, "a frame of the page pool")
            .with_amount(1, self.settings.frames.into());
        let key = self.budget.wait_for(Arena::stride() as u64, priority, || {
            // Another holder's frame may come back first.
            if let Some(key) = self.reserve.pop(&self.links) {
                return Some(self.count(FrameSource::Reserve, key));
            }
            match pending.attempt() {
                Ok(key) => Some(key),
                Err(error) => {
                    refusal = error.unwrap_or(refusal);
                    None
                }
            }
        });
        key.ok_or(refusal)
    }

    fn count(&self, source: FrameSource, key: FrameKey) -> FrameKey {
        self.links.count(&key, source);
        key
    }

    /// Takes a frame back: to the reserve while that has room, otherwise to the system.
    fn release(&self, key: FrameKey) {
        match self.reserve.push(&self.links, key, self.settings.reserved_frames) {
            Ok(()) => self.budget.notify_waiters(),
            Err(key) => self.return_to_system(&mut [Some(key)]),
        }
    }

    /// Takes a chain of frames back. Neighbours among those that go to the system go together.
    fn release_chain(&self, mut chain: Option<FrameKey>) {
        let mut excess = [const { None }; RETURN_BATCH];
        let mut count = 0;
        while let Some(first) = chain {
            let (key, rest) = self.links.unchain(first);
            chain = rest;
            let Err(key) = self.reserve.push(&self.links, key, self.settings.reserved_frames)
            else {
                continue;
            };
            if count == excess.len() {
                self.return_to_system(&mut excess);
                count = 0;
            }
            excess[count] = Some(key);
            count += 1;
        }
        self.return_to_system(&mut excess[..count]);
        self.budget.notify_waiters();
    }

    /// Returns frames to the system and their bytes to the budget. The caller owns them, so nobody
    /// uses them.
    fn return_to_system(&self, keys: &mut [Option<FrameKey>]) {
        keys.sort_unstable_by_key(|key| key.as_ref().map(FrameKey::index));
        let are_neighbours = |left: &Option<FrameKey>, right: &Option<FrameKey>| match (left, right)
        {
            (Some(left), Some(right)) => left.index() + 1 == right.index(),
            _ => false,
        };
        for run in keys.chunk_by_mut(are_neighbours) {
            let is_returned = self.arena.discard(run).is_ok();
            self.returned.fetch_add(run.len() as u64, Ordering::Relaxed);
            self.refused_returns.fetch_add(u64::from(!is_returned), Ordering::Relaxed);
        }
        let mut count = 0;
        for key in keys.iter_mut().filter_map(Option::take) {
            self.make_vacant(key);
            count += 1;
        }
        self.budget.uncharge(count * Arena::stride() as u64);
    }

    fn make_vacant(&self, key: FrameKey) {
        let was_pushed = self.vacant.push(&self.links, key, self.settings.frames).is_ok();
        debug_assert!(was_pushed, "all frames have room on this stack");
    }

    /// Faults frames in until the reserve is full.
    fn fill_reserve(&mut self) -> Result<(), Error> {
        let length = u64::from(self.settings.reserved_frames) * Arena::stride() as u64;
        let mut charge = self.budget.charge(length, AllocPolicy::MayFail)?;
        self.arena.populate_first(self.budget.system(), length)?;
        for _ in 0..self.settings.reserved_frames {
            // In order from 0: no frame has been popped yet.
            let Some(key) = self.vacant.pop(&self.links) else { break };
            if self.reserve.push(&self.links, key, self.settings.reserved_frames).is_err() {
                break;
            }
        }
        charge.forget();
        Ok(())
    }
}

impl Drop for PagePoolInner {
    fn drop(&mut self) {
        // Every frame and list holds the pool, so all frames that are still charged are in the
        // reserve.
        let idle = u64::from(self.reserve.len(&self.links));
        self.charge.adopt(idle * Arena::stride() as u64);
    }
}

/// Counts a request that waits for a frame.
struct WaitingGuard<'pool>(&'pool AtomicU32);

impl<'pool> WaitingGuard<'pool> {
    fn begin(pool: &'pool PagePoolInner) -> Self {
        pool.waiting.fetch_add(1, Ordering::Relaxed);
        Self(&pool.waiting)
    }
}

impl Drop for WaitingGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A vacant frame on its way to being resident. What it has between two attempts it keeps, and
/// gives back when dropped.
struct PendingFrame<'pool> {
    pool: &'pool PagePoolInner,
    key: Option<FrameKey>,
    is_charged: bool,
}

impl<'pool> PendingFrame<'pool> {
    fn new(pool: &'pool PagePoolInner) -> Self {
        Self { pool, key: None, is_charged: false }
    }

    /// Goes on from where the last attempt ended. The error is the system's, if it was asked.
    fn attempt(&mut self) -> Result<FrameKey, Option<Error>> {
        let pool = self.pool;
        let mut key = self.key.take().or_else(|| pool.vacant.pop(&pool.links)).ok_or(None)?;
        self.is_charged = self.is_charged || pool.budget.try_charge_bytes(Arena::stride() as u64);
        if !self.is_charged {
            self.key = Some(key);
            return Err(None);
        }
        let begin = Instant::now();
        let populated = pool.arena.populate(pool.budget.system(), &mut key);
        let nanos = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        pool.faulting_nanos.fetch_add(nanos, Ordering::Relaxed);
        match populated {
            Ok(()) => {
                // The charge goes with the frame until that is vacant again.
                self.is_charged = false;
                Ok(pool.count(FrameSource::System, key))
            }
            Err(error) => {
                self.key = Some(key);
                Err(Some(error))
            }
        }
    }
}

impl Drop for PendingFrame<'_> {
    fn drop(&mut self) {
        let pool = self.pool;
        if let Some(key) = self.key.take() {
            pool.make_vacant(key);
            if self.is_charged {
                pool.budget.uncharge(Arena::stride() as u64);
            } else {
                pool.budget.notify_waiters();
            }
        }
    }
}

/// 4096 bytes on lease from a [`PagePool`], which takes them back on drop.
///
/// The bytes are whatever the last holder left: nothing is cleared. A frame that several parts of
/// an output need is shared by reference (or in an `Arc`), and so given back once.
pub struct Frame {
    pool: Arc<PagePoolInner>,
    /// Taken out only when the lease ends.
    key: Option<FrameKey>,
}

impl Frame {
    /// The number of the frame in its arena. The same number at another time means the same memory.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.key.as_ref().map_or(u32::MAX, FrameKey::index)
    }
}

impl Deref for Frame {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.key.as_ref().map_or(&[], |key| self.pool.arena.bytes(key))
    }
}

impl DerefMut for Frame {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.key {
            Some(key) => self.pool.arena.bytes_mut(key),
            None => &mut [],
        }
    }
}

impl AsMut<[u8]> for Frame {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.pool.release(key);
        }
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame").field("number", &self.number()).finish_non_exhaustive()
    }
}

/// The private frames of one request or one worker, in front of the pool: last in, first out. For
/// the pool they are leased. Dropping the list gives them back to the pool.
#[derive(Debug)]
pub struct RequestFrameList {
    pool: Arc<PagePoolInner>,
    /// The frames, chained through the pool's links, so that putting one here allocates nothing.
    first: Option<FrameKey>,
    length: u32,
    /// A holder once frames were allocated, until the release. The list does not know where they
    /// are now, so one list should serve one request.
    priority: WaitPriority,
}

impl RequestFrameList {
    fn new(pool: Arc<PagePoolInner>) -> Self {
        Self { pool, first: None, length: 0, priority: WaitPriority::Normal }
    }

    /// Leases one frame: from this list, then from the reserve, then from the system.
    ///
    /// # Errors
    ///
    /// As [`PagePool::allocate`]; never while a frame is on the list.
    pub fn allocate(&mut self, policy: AllocPolicy) -> Result<Frame, Error> {
        let key = match self.first.take() {
            Some(first) => {
                let (key, rest) = self.pool.links.unchain(first);
                self.first = rest;
                self.length -= 1;
                self.pool.count(FrameSource::List, key)
            }
            None => self.pool.allocate(policy, self.priority)?,
        };
        self.priority = WaitPriority::Holder;
        Ok(Frame { pool: Arc::clone(&self.pool), key: Some(key) })
    }

    /// Puts a frame on the list. A frame of another pool goes back to that pool.
    pub fn put(&mut self, mut frame: Frame) {
        if Arc::ptr_eq(&frame.pool, &self.pool)
            && let Some(key) = frame.key.take()
        {
            self.first = Some(self.pool.links.chain(key, self.first.take()));
            self.length += 1;
        }
    }

    /// Frames on the list.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.length
    }

    /// Gives all frames on the list back to the pool. The reserve keeps what it has room for;
    /// neighbours among the rest go to the system together.
    pub fn release(&mut self) {
        self.length = 0;
        self.priority = WaitPriority::Normal;
        self.pool.release_chain(self.first.take());
    }
}

impl Drop for RequestFrameList {
    fn drop(&mut self) {
        self.release();
    }
}

/// The pool's own step between the stacks and the wait queue, with a real arena.
#[cfg(all(test, loom))]
mod loom_tests {
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
            let waiter =
                thread::spawn(move || drop(own.allocate(AllocPolicy::MustSucceed).unwrap()));
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
            let waiter =
                thread::spawn(move || drop(own.allocate(AllocPolicy::MustSucceed).unwrap()));
            drop(held);
            waiter.join().unwrap();
            assert_eq!((pool.reserved_frames(), pool.vacant_frames()), (0, 1));
        });
    }
}
#[cfg(all(test, not(loom)))]
#[path = "page_pool_tests.rs"]
mod tests;
