//! The mapping that all frames of a pool are cut from. It owns the address space and never knows
//! who holds which frame: the keys of `frame_stack` do. `Frame` reads and writes through it.
#![allow(unsafe_code, reason = "frames of one mapping, each with one owner")]

use super::FRAME_BYTES;

use super::frame_stack::{ArenaId, FrameKey, FrameLinks};
use super::mapping::{Mapping, PageSize, PopulateMethod, touch};
use super::system_memory::SystemMemory;
use crate::Error;

/// The frames of one pool. Each gets whole system pages, since it is returned to the system in
/// whole pages.
#[derive(Debug)]
pub(super) struct Arena {
    mapping: Mapping,
    /// Whose keys fit.
    id: ArenaId,
}

impl Arena {
    /// Bytes from one frame to the next.
    pub(super) fn stride() -> usize {
        FRAME_BYTES.max(rustix::param::page_size())
    }

    /// Maps the `frames` frames of `links`; none is resident.
    pub(super) fn new(
        system: &SystemMemory,
        links: &FrameLinks,
        frames: u32,
        pages: PageSize,
    ) -> Result<Self, Error> {
        let mapping = system.map((frames as usize).saturating_mul(Self::stride()), pages)?;
        Ok(Self { mapping, id: links.arena() })
    }

    /// Makes the first `length` bytes resident, before any frame is leased.
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
        if system.populate(&self.mapping, offset, Self::stride())? == PopulateMethod::Touch {
            touch(self.bytes_mut(key));
        }
        Ok(())
    }

    /// Gives the pages of frames back to the system. The frames must be neighbours, in order.
    pub(super) fn discard(&self, keys: &mut [Option<FrameKey>]) -> Result<(), Error> {
        let Some(Some(first)) = keys.first() else {
            return Ok(());
        };
        let are_neighbours = keys
            .iter()
            .zip(first.index()..)
            .all(|(key, index)| key.as_ref().is_some_and(|key| self.fits(key, index)));
        assert!(are_neighbours, "only frames that are owned are discarded");
        let length = keys.len() * Self::stride();
        // SAFETY: the caller lends the keys of all frames in the range exclusively (the assertion
        // above: they are this arena's, one for each frame), so nobody has a reference into them.
        unsafe { self.mapping.discard_range(self.offset(first), length) }
    }

    /// The bytes of a frame, for as long as its key is borrowed.
    pub(super) fn bytes<'frame>(&'frame self, key: &'frame FrameKey) -> &'frame [u8] {
        match self.mapping.address(self.offset(key), FRAME_BYTES) {
            // SAFETY: inside of the mapping (`address`); the bytes are zero or were written. A
            // frame of this arena has one key (`offset` checks that it is this arena's), and while
            // that is borrowed shared, nobody writes: `bytes_mut` borrows it exclusively.
            Some(start) => unsafe { std::slice::from_raw_parts(start.as_ptr(), FRAME_BYTES) },
            None => &[],
        }
    }

    /// The bytes of a frame, for writing.
    pub(super) fn bytes_mut<'frame>(&'frame self, key: &'frame mut FrameKey) -> &'frame mut [u8] {
        match self.mapping.address(self.offset(key), FRAME_BYTES) {
            // SAFETY: as in `bytes`; the one key is borrowed exclusively for as long as the slice
            // lives.
            Some(start) => unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), FRAME_BYTES) },
            None => &mut [],
        }
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn resident_pages(&self) -> usize {
        self.mapping.resident_pages()
    }

    fn fits(&self, key: &FrameKey, index: u32) -> bool {
        key.arena() == self.id && key.index() == index
    }

    /// Where the frame of a key of this arena begins.
    ///
    /// # Panics
    ///
    /// For a key of another arena, which says nothing of who uses the frame here.
    fn offset(&self, key: &FrameKey) -> usize {
        assert_eq!(key.arena(), self.id, "a key fits its own arena only");
        key.index() as usize * Self::stride()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

    use super::*;
    use crate::memory::frame_stack::FrameStack;

    /// An arena of four frames with its links and the stack of all of its keys.
    fn arena() -> (Arena, FrameLinks, FrameStack) {
        let (links, stack) = FrameLinks::with_stack(4).unwrap();
        let arena = Arena::new(&SystemMemory::new(), &links, 4, PageSize::Small).unwrap();
        (arena, links, stack)
    }

    #[test]
    fn a_key_fits_the_arena_that_it_was_made_for() {
        let (arena, links, stack) = arena();
        let mut key = stack.pop(&links).unwrap();
        arena.bytes_mut(&mut key).fill(7);
        assert!(arena.bytes(&key).iter().all(|byte| *byte == 7));
    }

    #[test]
    #[should_panic(expected = "a key fits its own arena only")]
    fn a_key_of_another_arena_gives_no_bytes() {
        let (_, links, stack) = arena();
        let (other, ..) = arena();
        let _bytes = other.bytes(&stack.pop(&links).unwrap());
    }

    #[test]
    #[should_panic(expected = "only frames that are owned are discarded")]
    fn a_key_of_another_arena_discards_nothing() {
        let (_, links, stack) = arena();
        let (other, ..) = arena();
        let _discarded = other.discard(&mut [stack.pop(&links)]);
    }

    #[test]
    #[should_panic(expected = "a key fits its own arena only")]
    fn a_key_of_another_arena_is_pushed_on_no_stack() {
        let (_, links, stack) = arena();
        let (_, other_links, other_stack) = arena();
        let _pushed = other_stack.push(&other_links, stack.pop(&links).unwrap(), 9);
    }

    #[test]
    #[should_panic(expected = "a stack is of one arena")]
    fn a_stack_is_not_read_through_the_links_of_another_arena() {
        let (_, _, stack) = arena();
        let (_, other_links, _) = arena();
        let _key = stack.pop(&other_links);
    }

    #[test]
    #[should_panic(expected = "a key fits its own arena only")]
    fn a_key_of_another_arena_is_put_in_no_chain() {
        let (_, links, stack) = arena();
        let (_, other_links, _) = arena();
        let _chain = other_links.chain(stack.pop(&links).unwrap(), None);
    }
}
