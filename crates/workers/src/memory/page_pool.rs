//! Frames of 4 KiB from one arena. It owns the arena, which frame is where, and what of it is charged
//! to the budget; it never holds more idle frames than its reserve may, and never looks at which CPU
//! asks. Decoders lease bounce pages here, through a `RequestFrameList` or directly.
//!
//! docs/memory.md, protocol F, and protocol B for those who wait.

use std::time::Instant;

use super::alloc_policy::AllocPolicy;
use super::arena::Arena;
use super::budget::{Budget, Charge};
use super::frame::Frame;
use super::frame_stack::{FrameKey, FrameLinks, FrameStack};
use super::frame_stats::{FrameSource, PagePoolStats};
use super::mapping::{LockState, PageSize};
use super::request_frames::RequestFrameList;
use super::wait_queue::WaitPriority;
use crate::sync::{Arc, AtomicU32, Ordering, PlainAtomicU64};
use crate::{Error, ErrorKind};

/// Frames in the largest arena: 64 GiB of 4 KiB each.
pub const FRAMES_MAX: u32 = 1 << 24;
/// Frames notify_waiters to the system in one go: what is sorted on the stack to find neighbours.
const RETURN_BATCH: usize = 64;

/// How a [`PagePool`] is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PagePoolSettings {
    /// Frames in the arena, 1 to [`FRAMES_MAX`]: the most that can be leased at a time. Address space
    /// only; memory comes with use.
    pub frames: u32,
    /// The most idle frames that stay resident, at most `frames`. 0, the default, keeps none.
    pub reserved_frames: u32,
    /// Whether the reserve is full from the start; otherwise it fills with the first frames released.
    pub prefill: bool,
    /// Whether resident frames are locked against swapping; a refusal is reported and tolerated.
    pub lock: bool,
    /// Which pages the arena is made of.
    pub pages: PageSize,
}

impl PagePoolSettings {
    /// An arena of `frames`, of which `reserved_frames` stay resident when idle; the rest as by
    /// default.
    #[must_use]
    pub fn new(frames: u32, reserved_frames: u32) -> Self {
        Self { frames, reserved_frames, ..Self::default() }
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

/// A pool of frames. Clones are handles of one pool, which lives until the last frame is back.
#[derive(Debug, Clone)]
pub struct PagePool {
    pool: Arc<PagePoolInner>,
}

impl PagePool {
    /// Maps the arena and, if asked, fills the reserve. The slots (32 bytes a frame) are charged to
    /// the budget now, a frame while it is resident.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidSetting`] for numbers out of range; [`ErrorKind::OutOfMemory`] and
    /// [`ErrorKind::System`] when the arena, the links or the prefilled frames cannot be had, and
    /// [`ErrorKind::NotNow`] when the budget has no room for them.
    pub fn new(budget: &Budget, settings: PagePoolSettings) -> Result<Self, Error> {
        settings.check()?;
        let tables = budget.charge(FrameLinks::bytes_for(settings.frames), AllocPolicy::MayFail)?;
        let (links, vacant) = FrameLinks::with_stack(settings.frames)?;
        let mut arena = Arena::new(budget.system(), settings.frames, settings.pages)?;
        if settings.lock {
            arena.lock();
        }
        let mut pool = PagePoolInner {
            arena,
            links,
            reserve: FrameStack::new(),
            vacant,
            settings,
            budget: budget.clone(),
            waiting: AtomicU32::new(0),
            _tables: tables,
            faulting_nanos: PlainAtomicU64::new(0),
            returned: PlainAtomicU64::new(0),
            refused_returns: PlainAtomicU64::new(0),
        };
        if settings.prefill {
            pool.fill_reserve()?;
        }
        Ok(Self { pool: Arc::new(pool) })
    }

    /// Leases one frame: from the reserve, then from the system. Under [`AllocPolicy::MustSucceed`] the
    /// frame is resident when this returns, so that what it costs is paid here. Who needs several
    /// before it can give one back takes them from one [`RequestFrameList`], which may pass those who wait
    /// for its frames.
    ///
    /// # Errors
    ///
    /// Under [`AllocPolicy::MayFail`] [`ErrorKind::NotNow`] when the reserve is empty, when somebody waits,
    /// or when the system is short of memory. Under [`AllocPolicy::MustSucceed`]
    /// [`ErrorKind::OutOfMemory`] when reclaiming and waiting did not help, with the system's error
    /// number if it was the system that refused.
    pub fn allocate(&self, policy: AllocPolicy) -> Result<Frame, Error> {
        let key = self.pool.allocate(policy, WaitPriority::Normal)?;
        Ok(Frame::new(Arc::clone(&self.pool), key))
    }

    /// A list in front of the pool for one request or one worker.
    #[must_use]
    pub fn request_list(&self) -> RequestFrameList {
        RequestFrameList::new(Arc::clone(&self.pool))
    }

    /// Idle frames that are resident now: never more than asked for in the settings.
    #[must_use]
    pub fn reserved_frames(&self) -> u32 {
        self.pool.reserve.len(&self.pool.links)
    }

    /// Frames that are neither resident nor leased.
    #[must_use]
    pub fn vacant_frames(&self) -> u32 {
        self.pool.vacant.len(&self.pool.links)
    }

    /// The settings that it was made with.
    #[must_use]
    pub fn settings(&self) -> PagePoolSettings {
        self.pool.settings
    }

    /// Whether resident frames are locked.
    #[must_use]
    pub fn locked(&self) -> LockState {
        self.pool.arena.locked()
    }

    /// Where frames came from and went to so far. It takes as many steps as there are frames: for
    /// reports, not for hot paths.
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

    /// Gives idle frames of the reserve back to the system until `frames` are left; says how many it
    /// gave. A reclaimer may call it.
    pub fn shrink_to_frames(&self, frames: u32) -> u32 {
        let mut given = 0;
        loop {
            let mut batch = [const { None }; RETURN_BATCH];
            let excess = self.reserved_frames().saturating_sub(frames) as usize;
            let mut count = 0;
            for place in batch.iter_mut().take(excess) {
                *place = self.pool.reserve.pop(&self.pool.links);
                count += usize::from(place.is_some());
            }
            if count == 0 {
                return given;
            }
            self.pool.return_to_system(&mut batch[..count]);
            given += u32::try_from(count).unwrap_or(u32::MAX);
        }
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn arena(&self) -> &Arena {
        &self.pool.arena
    }
}

/// What the handles and the frames share.
#[derive(Debug)]
pub(super) struct PagePoolInner {
    arena: Arena,
    links: FrameLinks,
    /// Idle and resident, charged.
    reserve: FrameStack,
    /// Not resident, not charged.
    vacant: FrameStack,
    settings: PagePoolSettings,
    budget: Budget,
    /// How many wait for a frame.
    waiting: AtomicU32,
    /// The charge for the links.
    _tables: Charge,
    /// What faulting frames in took.
    faulting_nanos: PlainAtomicU64,
    /// Frames given back to the system, and calls for it that the system refused.
    returned: PlainAtomicU64,
    refused_returns: PlainAtomicU64,
}

impl PagePoolInner {
    pub(super) fn arena(&self) -> &Arena {
        &self.arena
    }

    pub(super) fn links(&self) -> &FrameLinks {
        &self.links
    }

    /// A frame from the reserve or from the system.
    pub(super) fn allocate(
        &self,
        policy: AllocPolicy,
        priority: WaitPriority,
    ) -> Result<FrameKey, Error> {
        let is_allowed = match policy {
            AllocPolicy::MayFail => !self.budget.best_effort_yields(),
            // Who waits for bytes is not helped by a frame that stays charged: only who waits for a
            // frame goes first. Relaxed: a newcomer that looks too early passes once.
            AllocPolicy::MustSucceed => self.waiting.load(Ordering::Relaxed) == 0,
        };
        if is_allowed && let Some(key) = self.reserve.pop(&self.links) {
            return Ok(self.count(FrameSource::Reserve, key));
        }
        match policy {
            AllocPolicy::MayFail => Err(self.budget.refuse("a frame of the page pool")),
            AllocPolicy::MustSucceed => self.take_from_system(priority),
        }
    }

    /// A frame that must come: vacant memory faulted in, or, while that cannot be had, whatever
    /// comes back.
    #[cold]
    fn take_from_system(&self, priority: WaitPriority) -> Result<FrameKey, Error> {
        if self.budget.has_no_waiters()
            && let Ok(key) = PendingFrame::new(self).attempt()
        {
            return Ok(key);
        }
        let _waiting = WaitingGuard::begin(self);
        let mut pending = PendingFrame::new(self);
        let mut refusal = Error::new(ErrorKind::OutOfMemory, "a frame of the page pool")
            .with_amount(1, self.settings.frames.into());
        let taken = self.budget.wait_for(Arena::stride() as u64, priority, || {
            // Somebody else's frame may come back first.
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
        taken.ok_or(refusal)
    }

    fn count(&self, origin: FrameSource, key: FrameKey) -> FrameKey {
        self.links.count(&key, origin);
        key
    }

    /// Takes a frame back: to the reserve while that has room, otherwise to the system.
    pub(super) fn release(&self, key: FrameKey) {
        match self.reserve.push(&self.links, key, self.settings.reserved_frames) {
            Ok(()) => self.budget.notify_waiters(),
            Err(key) => self.return_to_system(&mut [Some(key)]),
        }
    }

    /// Takes a chain of frames back; neighbours among those that go to the system go together.
    pub(super) fn release_chain(&self, mut chain: Option<FrameKey>) {
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

    /// Gives frames back to the system and the budget. They are owned, so nobody can be using them.
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
        let has_room = self.vacant.push(&self.links, key, self.settings.frames).is_ok();
        debug_assert!(has_room, "all frames have room on this stack");
    }

    /// Faults frames in until the reserve is full.
    fn fill_reserve(&mut self) -> Result<(), Error> {
        let length = u64::from(self.settings.reserved_frames) * Arena::stride() as u64;
        let mut charge = self.budget.charge(length, AllocPolicy::MayFail)?;
        self.arena.populate_first(self.budget.system(), length)?;
        for _ in 0..self.settings.reserved_frames {
            // In order from 0: nothing was taken yet.
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
        // Every frame and list holds the pool, so all that is still charged lies in the reserve.
        let idle = u64::from(self.reserve.len(&self.links));
        self.budget.uncharge(idle * Arena::stride() as u64);
    }
}

/// Somebody waits for a frame of this pool.
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

/// A vacant frame on its way to being resident. What it has got so far it keeps between attempts, and
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

    /// Goes on from where the last attempt ended. The error is what the system said, if it was asked.
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

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
