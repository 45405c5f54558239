//! Chunk-based files: an array that says where each chunk lies (docs/format.md F8, F10).

use crate::address::BlockSize;
use crate::bytes::{truncated, u32_at};
use crate::error::{Error, ErrorKind, Result};

const SHIFT_MASK: u16 = 0x1f;
const INDEXES: u16 = 0x20;
const WIDE: u16 = 0x40;
const KNOWN: u16 = 0x7f;
/// A 48-bit block number of all ones is a hole.
const NULL_BLOCK_48: u64 = 0xffff_ffff_ffff;

/// How a chunk-based file is cut and indexed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkFormat {
    shift: u8,
    has_indexes: bool,
    is_wide: bool,
}

/// Where a chunk's data lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkPlace {
    /// The device by its number in the device table, from 1; 0 is the image itself.
    pub device: u16,
    /// The first block.
    pub block: u64,
}

impl ChunkFormat {
    /// Reads the chunk format of an inode.
    ///
    /// # Errors
    /// [`ErrorKind::ChunkFormat`] for unknown bits.
    pub fn parse(format: u16) -> Result<Self> {
        if format & !KNOWN != 0 {
            return Err(Error::new(ErrorKind::ChunkFormat(format), 16));
        }
        Ok(Self {
            shift: u8::try_from(format & SHIFT_MASK).unwrap_or(0),
            has_indexes: format & INDEXES != 0,
            is_wide: format & WIDE != 0,
        })
    }

    /// Bytes of a chunk.
    #[must_use]
    pub fn chunk_bytes(self, block_size: BlockSize) -> u64 {
        // At most 2^(16 + 31), so no bit is lost.
        u64::from(block_size.bytes()).wrapping_shl(u32::from(self.shift))
    }

    /// Bytes of an entry of the array: 8 for an index, 4 for a block map.
    #[must_use]
    pub const fn entry_bytes(self) -> u8 {
        if self.has_indexes { 8 } else { 4 }
    }

    /// Reads an entry of the array; `None` is a hole.
    ///
    /// # Errors
    /// [`ErrorKind::Truncated`] if the entry is not whole.
    pub fn entry(self, bytes: &[u8]) -> Result<Option<ChunkPlace>> {
        let short = || truncated(usize::from(self.entry_bytes()), bytes.len());
        if !self.has_indexes {
            let block = u32_at(bytes, 0).ok_or_else(short)?;
            let place = ChunkPlace { device: 0, block: u64::from(block) };
            return Ok((block != u32::MAX).then_some(place));
        }
        let front = u32_at(bytes, 0).ok_or_else(short)?;
        let low = u64::from(u32_at(bytes, 4).ok_or_else(short)?);
        let high = if self.is_wide { u64::from(front & 0xffff) } else { 0 };
        let null = if self.is_wide { NULL_BLOCK_48 } else { u64::from(u32::MAX) };
        let block = low | high << 32;
        let device = u16::try_from(front >> 16).unwrap_or(0);
        Ok((block != null).then_some(ChunkPlace { device, block }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_map_has_four_bytes_and_a_hole_of_ones() {
        let format = ChunkFormat::parse(0).unwrap();
        assert_eq!(format.entry_bytes(), 4);
        assert_eq!(format.entry(&[0xff; 4]).unwrap(), None);
        let place = ChunkPlace { device: 0, block: 3 };
        assert_eq!(format.entry(&[3, 0, 0, 0]).unwrap(), Some(place));
        assert!(format.entry(&[3, 0, 0]).is_err());
    }

    #[test]
    fn a_narrow_index_ignores_its_high_half() {
        let format = ChunkFormat::parse(0x20).unwrap();
        let place = format.entry(&[9, 9, 2, 0, 5, 0, 0, 0]).unwrap();
        assert_eq!(place, Some(ChunkPlace { device: 2, block: 5 }));
        assert_eq!(format.entry(&[9, 9, 2, 0, 0xff, 0xff, 0xff, 0xff]).unwrap(), None);
    }

    #[test]
    fn a_wide_index_joins_both_halves() {
        let format = ChunkFormat::parse(0x65).unwrap();
        let place = format.entry(&[1, 0, 0, 0, 5, 0, 0, 0]).unwrap();
        assert_eq!(place, Some(ChunkPlace { device: 0, block: 5 | 1 << 32 }));
        assert_eq!(format.entry(&[0xff, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff]).unwrap(), None);
        let size = BlockSize::from_bits(12).unwrap();
        assert_eq!(format.chunk_bytes(size), 4096 << 5);
    }

    #[test]
    fn unknown_bits_are_refused() {
        assert!(ChunkFormat::parse(0x80).is_err());
    }
}
