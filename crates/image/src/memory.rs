//! The memory of an image: one budget, and what is taken from it. It bounds; it decodes nothing and
//! caches nothing. The engine takes from here, and so may whoever extracts.

use ferrofs_workers::memory::{
    AllocPolicy, Budget, Buffer, BufferPool, BufferPoolStats, PagePool, PagePoolSettings,
    PagePoolStats, RequestFrameList,
};

use crate::error::{Error, ErrorKind, Result};

/// Bytes of memory for images: everything whose size an image or a caller decides is counted in it,
/// and stays below the limit.
///
/// Several images may share one. Clones are handles.
#[derive(Clone, Debug)]
pub struct MemoryPool {
    budget: Budget,
    buffers: BufferPool,
    frames: PagePool,
    /// Threads that read at a time on the reserve.
    readers: u64,
}

/// The share of the limit that buffers may take which nobody uses.
const IDLE_SHARE: u64 = 8;

impl MemoryPool {
    /// The smallest limit, in bytes: room for the longest extent of the format (12 MiB), its cluster
    /// (1 MiB), the tables of a walk, and something to read the next one with.
    pub const MIN_BYTES: u64 = 20 << 20;

    /// The largest limit that is chosen by itself, in bytes.
    const DEFAULT_LIMIT_BYTES: u64 = 256 << 20;

    /// Frames of 4 KiB at most that decoding through a window takes, all requests together. The
    /// address space for them costs nothing, the table 32 bytes a frame.
    const FRAMES: u32 = 4096;

    /// What a reserve counts in.
    pub(crate) const PAGE_BYTES: u64 = 4096;

    /// Bytes of one piece that is faulted in before it is wanted: what most extents fit in, and no more than
    /// four times what a small one asks for.
    pub(crate) const PREFAULT_BYTES: usize = 64 << 10;

    /// Memory of at most `limit_bytes`.
    ///
    /// # Errors
    /// [`ErrorKind::MemoryLimit`] for fewer than [`MemoryPool::MIN_BYTES`]; [`ErrorKind::OutOfMemory`]
    /// if the system has no address space.
    pub fn new(limit_bytes: u64) -> Result<Self> {
        Self::with_budget(Budget::new(limit_bytes))
    }

    /// The same with a reserve of `pages` pages of 4 KiB for decoding, and no more than those: what is given
    /// back above goes to the system at once, and they stay when nobody reads. Nothing is in it yet;
    /// [`prefault`](MemoryPool::prefault) fills it, or what is mapped first. From then on it goes round: clusters that
    /// were kept longest make room before anything else is mapped, and LZ4 extents of more than a
    /// [share](MemoryPool::reserve_share) of it are read through a window of frames, of which as many are reserved.
    /// `readers` threads read at a time; 0 counts as 1.
    ///
    /// # Errors
    /// As [`MemoryPool::new`]; [`ErrorKind::MemoryLimit`] for a reserve of more than half of the limit.
    pub fn with_reserve(limit_bytes: u64, pages: u32, readers: usize) -> Result<Self> {
        let bytes = u64::from(pages).saturating_mul(Self::PAGE_BYTES);
        if bytes > limit_bytes / 2 {
            let least = bytes.saturating_mul(2);
            return Err(ErrorKind::MemoryLimit { bytes: limit_bytes, least }.into());
        }
        let mut memory = Self::of(Budget::new(limit_bytes), pages.min(Self::FRAMES))?;
        memory.readers = u64::try_from(readers).unwrap_or(u64::MAX).max(1);
        memory.buffers.set_max_idle(bytes);
        memory.buffers.reserve(bytes);
        Ok(memory)
    }

    /// Faults the reserve in on up to `threads` threads, so that no reader pays for it; says how many bytes
    /// came: fewer than the reserve where the system is short.
    ///
    /// # Errors
    /// None that is known.
    pub fn prefault(&self, threads: usize) -> Result<u64> {
        Ok(self.buffers.fill_reserve(Self::PREFAULT_BYTES, threads)?)
    }

    /// Memory of a budget that is counted elsewhere too.
    ///
    /// # Errors
    /// As [`MemoryPool::new`].
    pub fn with_budget(budget: Budget) -> Result<Self> {
        Self::of(budget, 0)
    }

    fn of(budget: Budget, frames: u32) -> Result<Self> {
        let limit = budget.limit_bytes();
        if limit < Self::MIN_BYTES {
            let kind = ErrorKind::MemoryLimit { bytes: limit, least: Self::MIN_BYTES };
            return Err(kind.into());
        }
        let buffers = BufferPool::new(&budget)?;
        buffers.set_max_idle(limit / IDLE_SHARE);
        let frames = PagePool::new(&budget, PagePoolSettings::new(Self::FRAMES, frames))?;
        Ok(Self { budget, buffers, frames, readers: 1 })
    }

    /// 256 MiB, or an eighth of what this machine or control group has, if that is less.
    ///
    /// # Errors
    /// As [`MemoryPool::new`].
    pub fn with_default_limit() -> Result<Self> {
        Self::new(Self::default_limit_bytes())
    }

    /// The limit of [`MemoryPool::with_default_limit`].
    #[must_use]
    pub fn default_limit_bytes() -> u64 {
        let share = ferrofs_workers::memory::available_memory_bytes() / 8;
        share.clamp(Self::MIN_BYTES, Self::DEFAULT_LIMIT_BYTES)
    }

    /// Bytes that stay resident for decoding once they are: what [`with_reserve`](MemoryPool::with_reserve) said.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.buffers.reserved_bytes()
    }

    /// Bytes of the reserve that one request of a reader may take, and as much again what is decoded for it: all
    /// readers then find room at a time. None without a reserve.
    #[must_use]
    pub fn reserve_share(&self) -> Option<u64> {
        let reserved = self.reserved_bytes();
        (reserved > 0).then(|| reserved.checked_div(self.readers.saturating_mul(2)).unwrap_or(0))
    }

    /// How often buffers were used again, mapped and refused, and how long mapping them took.
    #[must_use]
    pub fn buffer_stats(&self) -> BufferPoolStats {
        self.buffers.stats()
    }

    /// Where frames for windows came from, and how long faulting them in took.
    #[must_use]
    pub fn frame_stats(&self) -> PagePoolStats {
        self.frames.stats()
    }

    /// Bytes of buffers that are resident and that nobody uses.
    #[must_use]
    pub fn idle_bytes(&self) -> u64 {
        self.buffers.idle_bytes()
    }

    /// The one sum.
    #[must_use]
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// A contiguous buffer of `bytes` bytes, whose contents are left from its last use.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] at the limit, after waiting; under [`AllocPolicy::MayFail`] at once, and
    /// for this moment only.
    pub fn buffer(&self, bytes: usize, policy: AllocPolicy) -> Result<Buffer> {
        Ok(self.buffers.lease(bytes, policy)?)
    }

    /// Has up to `count` buffers of `bytes` bytes lie ready for best effort. With a reserve there are those in it, and
    /// nothing is taken from the system that can be done without.
    pub(crate) fn preallocate(&self, bytes: usize, count: usize) {
        if self.reserved_bytes() == 0 {
            let _made: usize = self.buffers.preallocate(bytes, count);
        }
    }

    /// The buffers.
    pub(crate) fn buffers(&self) -> &BufferPool {
        &self.buffers
    }

    /// A list of frames for one request.
    pub(crate) fn request_list(&self) -> RequestFrameList {
        self.frames.request_list()
    }

    /// The frames.
    pub(crate) fn frames(&self) -> &PagePool {
        &self.frames
    }

    /// Whether so much more could be had without taking it from anybody.
    pub(crate) fn has_room_for(&self, bytes: u64) -> bool {
        self.budget.used_bytes().saturating_add(bytes) <= self.budget.limit_bytes()
    }
}

impl From<ferrofs_workers::Error> for Error {
    fn from(error: ferrofs_workers::Error) -> Self {
        Self::new(match error.kind() {
            ferrofs_workers::ErrorKind::OutOfMemory => {
                ErrorKind::OutOfMemory { bytes: error.amount().unwrap_or(0) }
            }
            _ => ErrorKind::Workers(error),
        })
    }
}
