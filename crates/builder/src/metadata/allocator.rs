//! Allocates places for inodes: each gets slots of 32 bytes, and no inline tail crosses a block.
//!
//! The allocator is best fit: it keeps the gaps that large inodes leave at the end of blocks, and takes the
//! smallest one that is large enough; of equal ones the first. The result depends on the sizes of the inodes and
//! their order only.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use ferrofs_ondisk::BlockSize;

/// Nids count these.
pub(crate) const SLOT_BYTES: u64 = 32;

/// What an inode takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InodeExtent {
    /// The inode, its xattrs and its index: they may cross blocks.
    pub(crate) core_bytes: u64,
    /// What is inline behind them: it ends in the block in which `core_bytes` end.
    pub(crate) tail: u64,
}

impl InodeExtent {
    fn bytes(self) -> u64 {
        self.core_bytes.saturating_add(self.tail)
    }

    /// Whether there is a place for it at all. Where the core ends in its block depends on its length modulo 32.
    pub(crate) fn is_possible(self, block_size: BlockSize) -> bool {
        let least = match self.core_bytes % SLOT_BYTES {
            0 => SLOT_BYTES,
            rest => rest,
        };
        self.tail == 0 || least.saturating_add(self.tail) <= u64::from(block_size.bytes())
    }
}

/// Allocates from some byte of the image, or of the metabox, on.
#[derive(Debug)]
pub(crate) struct InodeAllocator {
    block_bytes: u64,
    /// Everything from here on is free.
    end: u64,
    /// What is free before `end`: by the length in slots, where gaps of that length start. None crosses a block.
    gaps: Vec<BinaryHeap<Reverse<u64>>>,
}

impl InodeAllocator {
    /// An allocator that starts at byte `start` of the image.
    pub(crate) fn new(block_size: BlockSize, start: u64) -> Self {
        Self {
            block_bytes: u64::from(block_size.bytes()),
            end: start.next_multiple_of(SLOT_BYTES),
            gaps: Vec::new(),
        }
    }

    /// The byte behind the last one that is taken.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Goes on at `start`, the start of a block. What is left of the last block is used, too.
    pub(crate) fn resume_at(&mut self, start: u64) {
        let rest = self.end..self.end.next_multiple_of(self.block_bytes).min(start);
        self.add_gap(rest);
        self.end = start;
    }

    /// Finds a place for a [possible](InodeExtent::is_possible) inode: where it starts, a multiple of 32.
    pub(crate) fn place(&mut self, inode_extent: InodeExtent) -> u64 {
        let bytes = inode_extent.bytes();
        if let Some((gap, start)) = self.take_gap(bytes) {
            self.add_gap(start.saturating_add(bytes)..start.saturating_add(gap));
            return start;
        }
        let start = self.first_fit(inode_extent);
        self.add_gap(self.end..start);
        self.end = start.saturating_add(bytes).next_multiple_of(SLOT_BYTES);
        start
    }

    /// The smallest gap of at least `bytes` bytes, of equal ones the first: its length and its start.
    fn take_gap(&mut self, bytes: u64) -> Option<(u64, u64)> {
        let least = usize::try_from(bytes.div_ceil(SLOT_BYTES)).ok()?;
        let slots = (least..self.gaps.len()).find(|slots| !self.gaps[*slots].is_empty())?;
        let Reverse(start) = self.gaps[slots].pop()?;
        Some((slots as u64 * SLOT_BYTES, start))
    }

    /// The first place from the end on. If the tail does not fit into the block in which the core would
    /// end, it is the next block's start or a place behind it: an inode in one block is read at once.
    fn first_fit(&self, inode_extent: InodeExtent) -> u64 {
        if self.fits_at(self.end, inode_extent) {
            return self.end;
        }
        let mut start = self.end.next_multiple_of(self.block_bytes);
        // The core ends somewhere in its block, in steps of 32: one block of such steps finds the place.
        for _ in 0..self.block_bytes / SLOT_BYTES {
            if self.fits_at(start, inode_extent) {
                break;
            }
            start = start.saturating_add(SLOT_BYTES);
        }
        start
    }

    fn fits_at(&self, start: u64, inode_extent: InodeExtent) -> bool {
        if inode_extent.tail == 0 {
            return true;
        }
        // Old kernels look for a symlink's target in the block in which its inode ends.
        let used = start.saturating_add(inode_extent.core_bytes) % self.block_bytes;
        used != 0 && used.saturating_add(inode_extent.tail) <= self.block_bytes
    }

    /// Keeps a free range for later, block by block.
    fn add_gap(&mut self, free: Range<u64>) {
        let mut start = free.start.next_multiple_of(SLOT_BYTES);
        while start < free.end {
            let end = start.saturating_add(1).next_multiple_of(self.block_bytes).min(free.end);
            // A block has a few thousand slots.
            let slots = usize::try_from(end.saturating_sub(start) / SLOT_BYTES).unwrap_or(0);
            if slots > 0 {
                if self.gaps.len() <= slots {
                    self.gaps.resize_with(slots + 1, BinaryHeap::new);
                }
                self.gaps[slots].push(Reverse(start));
            }
            start = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn block_size(bits: u8) -> BlockSize {
        BlockSize::from_bits(bits).unwrap()
    }

    fn inode_extent(core_bytes: u64, tail: u64) -> InodeExtent {
        InodeExtent { core_bytes, tail }
    }

    #[test]
    fn a_tail_that_would_cross_a_block_goes_to_the_next_one() {
        let mut layout = InodeAllocator::new(block_size(9), 512);
        assert_eq!(layout.place(inode_extent(32, 300)), 512);
        assert_eq!(layout.place(inode_extent(32, 300)), 1024);
        assert_eq!(layout.place(inode_extent(32, 100)), 864);
        assert_eq!(layout.place(inode_extent(64, 0)), 1376);
        assert_eq!(layout.end(), 1440);
    }

    #[test]
    fn a_tail_never_starts_a_block() {
        let mut layout = InodeAllocator::new(block_size(9), 480);
        assert_eq!(layout.place(inode_extent(32, 10)), 512);
        assert_eq!(layout.place(inode_extent(32, 0)), 480);
    }

    #[test]
    fn what_is_left_of_the_head_is_used() {
        let mut layout = InodeAllocator::new(block_size(12), 1152);
        assert_eq!(layout.place(inode_extent(32, 60)), 1152);
        layout.resume_at(1 << 20);
        assert_eq!(layout.place(inode_extent(32, 2000)), 1248);
        assert_eq!(layout.place(inode_extent(32, 2000)), 1 << 20);
        assert_eq!(layout.place(inode_extent(32, 700)), 3296);
        assert_eq!(layout.place(inode_extent(32, 28)), 4032);
    }

    #[test]
    fn a_tail_that_fits_no_block_is_not_possible() {
        assert!(inode_extent(32, 480).is_possible(block_size(9)));
        assert!(!inode_extent(32, 481).is_possible(block_size(9)));
        assert!(inode_extent(44, 500).is_possible(block_size(9)));
        assert!(!inode_extent(44, 501).is_possible(block_size(9)));
    }

    proptest! {
        #[test]
        fn no_two_inodes_overlap_and_no_tail_crosses_a_block(
            shapes in proptest::collection::vec((32u64..1500, 0u64..480), 1..200), bits in 9u8..13,
        ) {
            let size = block_size(bits);
            let block = u64::from(size.bytes());
            let mut layout = InodeAllocator::new(size, 1152);
            let mut taken = Vec::new();
            for (core_bytes, tail) in shapes {
                let inode_extent = InodeExtent { core_bytes, tail };
                if !inode_extent.is_possible(size) {
                    continue;
                }
                let start = layout.place(inode_extent);
                prop_assert_eq!(start % 32, 0);
                let behind = start + core_bytes;
                prop_assert!(tail == 0 || (behind - 1) / block == (behind + tail - 1) / block);
                taken.push(start..behind + tail);
            }
            taken.sort_by_key(|range| range.start);
            prop_assert!(taken.windows(2).all(|pair| pair[0].end <= pair[1].start));
            prop_assert!(taken.last().is_none_or(|range| range.end <= layout.end()));
        }
    }
}
