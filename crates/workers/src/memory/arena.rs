//! The mapping that all frames are cut from. It owns the address space, never says who has which
//! frame: that is the page pool's. `Frame` reads and writes through it.
#![allow(unsafe_code, reason = "frames of one mapping, each with one owner")]

use super::FRAME_BYTES;
use super::frame_stack::FrameKey;
use super::mapping::{LockState, Mapping, PageSize, PopulateMethod, touch};
use super::system_memory::SystemMemory;
use crate::Error;

/// So many frames, a system page apart where pages are larger than frames.
#[derive(Debug)]
pub(super) struct Arena {
    mapping: Mapping,
    stride: usize,
    locked: LockState,
}

impl Arena {
    /// Bytes from one frame to the next: a frame is returned to the system in whole pages, so it gets
    /// whole pages.
    pub(super) fn stride() -> usize {
        FRAME_BYTES.max(rustix::param::page_size())
    }

    /// Maps room for `frames` frames; none is resident.
    pub(super) fn new(system: &SystemMemory, frames: u32, pages: PageSize) -> Result<Self, Error> {
        let stride = Self::stride();
        let mapping = system.map((frames as usize).saturating_mul(stride), pages)?;
        Ok(Self { mapping, stride, locked: LockState::NotRequested })
    }

    /// Locks what is and becomes resident; says how that went.
    pub(super) fn lock(&mut self) -> LockState {
        self.locked = self.mapping.lock();
        self.locked
    }

    /// Whether it is locked.
    pub(super) fn locked(&self) -> LockState {
        self.locked
    }

    /// Makes the first `length` bytes resident, while no frame is leased.
    pub(super) fn populate_first(
        &mut self,
        system: &SystemMemory,
        length: u64,
    ) -> Result<(), Error> {
        system.prefault(&mut self.mapping, length).map(drop)
    }

    /// Makes a frame resident.
    pub(super) fn populate(&self, system: &SystemMemory, key: &mut FrameKey) -> Result<(), Error> {
        let offset = self.offset(key);
        if system.populate(&self.mapping, offset, self.stride)? == PopulateMethod::Touch {
            touch(self.bytes_mut(key));
        }
        Ok(())
    }

    /// Gives frames that lie next to each other, in order, back to the system.
    pub(super) fn discard(&self, keys: &mut [Option<FrameKey>]) -> Result<(), Error> {
        let Some(Some(first)) = keys.first() else {
            return Ok(());
        };
        let are_neighbours = keys
            .iter()
            .zip(first.index()..)
            .all(|(key, index)| key.as_ref().is_some_and(|key| key.index() == index));
        assert!(are_neighbours, "only frames that are owned are discarded");
        let length = keys.len() * self.stride;
        // SAFETY: the caller has the keys of all frames in the range (the line above), exclusively, so
        // that nobody has a reference into them.
        unsafe { self.mapping.discard_range(self.offset(first), length, self.locked) }
    }

    /// The bytes of a frame, as long as its key is lent.
    pub(super) fn bytes<'frame>(&'frame self, key: &'frame FrameKey) -> &'frame [u8] {
        match self.mapping.address(self.offset(key), FRAME_BYTES) {
            // SAFETY: inside of the mapping; its bytes are zero or written before; there is one key of
            // the frame, and while it is lent shared, nobody writes (`bytes_mut` wants it exclusive).
            Some(start) => unsafe { std::slice::from_raw_parts(start.as_ptr(), FRAME_BYTES) },
            None => &[],
        }
    }

    /// The same, for writing.
    pub(super) fn bytes_mut<'frame>(&'frame self, key: &'frame mut FrameKey) -> &'frame mut [u8] {
        match self.mapping.address(self.offset(key), FRAME_BYTES) {
            // SAFETY: as in `bytes`; the one key is lent exclusively as long as the slice lives.
            Some(start) => unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), FRAME_BYTES) },
            None => &mut [],
        }
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn resident_pages(&self) -> usize {
        self.mapping.resident_pages()
    }

    fn offset(&self, key: &FrameKey) -> usize {
        key.index() as usize * self.stride
    }
}
