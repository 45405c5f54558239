//! The memory of one or several images: a budget, and the buffers and frames that are charged to
//! it. It bounds memory; it decodes nothing and caches nothing. The engine allocates here, and so
//! do callers that extract.

use std::sync::Arc;

use ferrofs_workers::memory::{
    AllocPolicy, Budget, Buffer, BufferPool, BufferPoolStats, FRAME_BYTES, PagePool,
    PagePoolSettings, PagePoolStats, ReclaimerRegistration, RequestFrameList,
};

use crate::error::{Error, ErrorKind, Result};

/// Memory for images. Everything whose size an image or a caller decides is charged to its budget,
/// and stays below the limit.
///
/// Several images may share a pool. Clones are handles of the same pool.
#[derive(Clone, Debug)]
pub struct MemoryPool {
    budget: Budget,
    buffers: BufferPool,
    frames: PagePool,
    /// Of the idle frames of a reserve. Its closure has a handle of the page pool; kept there, it would keep the pool alive.
    _frame_reclaimer: Option<Arc<ReclaimerRegistration>>,
    /// How many threads read at a time from the reserve.
    readers: u64,
}

/// Below this limit no buffer has a longer block than it needs: the shares of the limit count on that.
const SCARCE_BYTES: u64 = 64 << 20;

/// Idle buffers may take the limit divided by this.
const IDLE_SHARE: u64 = 8;

impl MemoryPool {
    /// The lowest limit, in bytes: room for the longest extent of the format (12 MiB), its cluster
    /// (1 MiB), the tables of a walk, and a buffer to read into.
    pub const MIN_BYTES: u64 = 20 << 20;

    /// The highest default limit, in bytes.
    const DEFAULT_LIMIT_BYTES: u64 = 256 << 20;

    /// At most so many frames of 4 KiB for decoding through windows, all requests together. Their
    /// address space costs nothing, the table 32 bytes a frame.
    const FRAMES: u32 = 4096;

    /// Bytes of a page, the unit of a reserve.
    pub(crate) const PAGE_BYTES: u64 = 4096;

    /// Bytes of one block that is faulted in ahead: most extents fit in it, and it is at most four
    /// times as long as the buffer of a small one.
    pub(crate) const PREFAULT_BYTES: usize = 64 << 10;

    /// A pool of at most `limit_bytes` bytes.
    ///
    /// # Errors
    /// [`ErrorKind::MemoryLimit`] below [`MemoryPool::MIN_BYTES`]; [`ErrorKind::OutOfMemory`] if
    /// the system has no address space.
    pub fn new(limit_bytes: u64) -> Result<Self> {
        Self::with_budget(Budget::new(limit_bytes))
    }

    /// A pool with a reserve of `pages` pages of 4 KiB for decoding. Memory of the reserve stays
    /// resident when nobody reads; memory that is freed beyond it goes back to the system at once.
    /// The reserve is empty at first; [`prefault`](MemoryPool::prefault) or the first reads fill
    /// it. Once it is used up, clusters that were kept longest are evicted before anything else is
    /// mapped, and LZ4 extents of more than a [share](MemoryPool::reserve_share) of it are read
    /// through a window of frames, of which as many are reserved. `readers` is how many threads
    /// read at a time; 0 counts as 1.
    ///
    /// # Errors
    /// As [`MemoryPool::new`]; also [`ErrorKind::MemoryLimit`] for a reserve of more than half of
    /// the limit.
    pub fn with_reserve(limit_bytes: u64, pages: u32, readers: usize) -> Result<Self> {
        let bytes = u64::from(pages).saturating_mul(Self::PAGE_BYTES);
        if bytes > limit_bytes / 2 {
            let min = bytes.saturating_mul(2);
            return Err(ErrorKind::MemoryLimit { bytes: limit_bytes, min }.into());
        }
        let mut memory = Self::of(Budget::new(limit_bytes), pages.min(Self::FRAMES))?;
        memory.readers = u64::try_from(readers).unwrap_or(u64::MAX).max(1);
        memory.buffers.set_max_idle(bytes);
        memory.buffers.set_reserve(bytes);
        Ok(memory)
    }

    /// Faults the reserve in on up to `threads` threads, so that no reader has to. Returns how many
    /// bytes were faulted in: fewer than the reserve if the system is short of memory.
    ///
    /// # Errors
    /// None is known: the blocks have a fixed length.
    pub fn prefault(&self, threads: usize) -> Result<u64> {
        Ok(self.buffers.fill_reserve(Self::PREFAULT_BYTES, threads)?)
    }

    /// A pool on a budget that other users charge, too.
    ///
    /// # Errors
    /// As [`MemoryPool::new`].
    pub fn with_budget(budget: Budget) -> Result<Self> {
        Self::of(budget, 0)
    }

    fn of(budget: Budget, frames: u32) -> Result<Self> {
        let limit = budget.limit_bytes();
        if limit < Self::MIN_BYTES {
            let kind = ErrorKind::MemoryLimit { bytes: limit, min: Self::MIN_BYTES };
            return Err(kind.into());
        }
        let buffers = BufferPool::new(&budget)?;
        buffers.set_max_idle(limit / IDLE_SHARE);
        if limit < SCARCE_BYTES {
            buffers.set_waste_max(1);
        }
        let frames = PagePool::new(&budget, PagePoolSettings::new(Self::FRAMES, frames))?;
        let frame_reclaimer = match frames.settings().reserved_frames {
            0 => None,
            _ => Some(Arc::new(reclaim_frames(&budget, &frames)?)),
        };
        Ok(Self { budget, buffers, frames, _frame_reclaimer: frame_reclaimer, readers: 1 })
    }

    /// A pool of 256 MiB, or of an eighth of the memory of this machine or control group, if that
    /// is less.
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

    /// Bytes of the reserve, as given to [`with_reserve`](MemoryPool::with_reserve). They stay
    /// resident once they are.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.buffers.reserved_bytes()
    }

    /// Bytes of the reserve that one request of a reader may take; the extent that is decoded for
    /// it may take as many again. So all readers find room at the same time. `None` without a
    /// reserve.
    #[must_use]
    pub fn reserve_share(&self) -> Option<u64> {
        let reserved = self.reserved_bytes();
        (reserved > 0).then(|| reserved.checked_div(self.readers.saturating_mul(2)).unwrap_or(0))
    }

    /// How often buffers were reused, mapped and refused, and how long mapping took.
    #[must_use]
    pub fn buffer_stats(&self) -> BufferPoolStats {
        self.buffers.stats()
    }

    /// Where frames for windows came from, and how long faulting them in took.
    #[must_use]
    pub fn frame_stats(&self) -> PagePoolStats {
        self.frames.stats()
    }

    /// Bytes of idle buffers: resident and unused.
    #[must_use]
    pub fn idle_bytes(&self) -> u64 {
        self.buffers.idle_bytes()
    }

    /// The budget that everything is charged to.
    #[must_use]
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// A contiguous buffer of `bytes` bytes. Its contents are left from its last use.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] at the limit, after waiting. With [`AllocPolicy::MayFail`] the
    /// request fails at once, with an error that holds only for this moment.
    pub fn buffer(&self, bytes: usize, policy: AllocPolicy) -> Result<Buffer> {
        Ok(self.buffers.lease(bytes, policy)?)
    }

    /// Maps up to `count` buffers of `bytes` bytes ahead, so that best effort finds them idle. With
    /// a reserve it does nothing, as the reserve is there for that.
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

    /// Whether so many bytes could be charged without taking them from others.
    pub(crate) fn fits(&self, bytes: u64) -> bool {
        self.budget.used_bytes().saturating_add(bytes) <= self.budget.limit_bytes()
    }
}

/// Has idle frames returned to the system for requests that must succeed.
fn reclaim_frames(budget: &Budget, frames: &PagePool) -> Result<ReclaimerRegistration> {
    let frames = frames.clone();
    let frame_bytes = u64::try_from(FRAME_BYTES).unwrap_or(u64::MAX);
    Ok(budget.register_reclaimer(move |bytes| {
        let wanted = u32::try_from(bytes.div_ceil(frame_bytes)).unwrap_or(u32::MAX);
        let returned = frames.shrink_to_frames(frames.reserved_frames().saturating_sub(wanted));
        u64::from(returned).saturating_mul(frame_bytes)
    })?)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_frames_of_a_reserve_give_way_to_a_demand() {
        let pages = 2_560;
        let memory = MemoryPool::with_reserve(MemoryPool::MIN_BYTES, pages, 1).unwrap();
        let mut list = memory.request_list();
        let frames: Vec<_> =
            (0..2_000).map(|_| list.allocate(AllocPolicy::MustSucceed).unwrap()).collect();
        drop((frames, list));
        assert_eq!(memory.frames().reserved_frames(), 2_000);
        let buffer = memory.buffer(13 << 20, AllocPolicy::MustSucceed).unwrap();
        assert!(memory.frames().reserved_frames() < 2_000);
        let budget = memory.budget().clone();
        drop((buffer, memory));
        assert_eq!(budget.used_bytes(), 0, "the reclaimer does not keep the frames");
    }
}
