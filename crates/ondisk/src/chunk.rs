//! Chunk-based files: an array that says where each chunk is (docs/format.md F8, F43, F53).

use crate::address::BlockSize;
use crate::bytes::{fit, low_half, truncated, u32_at};
use crate::error::{Error, ErrorKind, Result};

const SHIFT_MASK: u16 = 0x1f;
const INDEXES: u16 = 0x20;
const WIDE: u16 = 0x40;
const KNOWN: u16 = 0x7f;
/// A 48-bit block number of all ones is a hole.
const NULL_BLOCK_48: u64 = 0xffff_ffff_ffff;

/// The chunk size and the kind of table of a chunk-based file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkFormat {
    shift: u8,
    has_indexes: bool,
    is_wide: bool,
}

/// The kinds of tables that say where chunks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkTable {
    /// 4 bytes a chunk: a block of the image below 2^32 - 1.
    BlockMap,
    /// 8 bytes a chunk: a device, and a block below 2^32 - 1.
    Indexes,
    /// 8 bytes a chunk: a device, and a block below 2^48 - 1. Needs 48BIT.
    WideIndexes,
}

/// Where a chunk's data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkAddress {
    /// The device by its number in the device table, from 1; 0 is the image itself.
    pub device: u16,
    /// The first block.
    pub block: u64,
}

impl ChunkFormat {
    /// Chunks of `1 << shift` blocks (at most 31), in a table of this kind.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] for a larger shift.
    pub fn new(shift: u8, table: ChunkTable) -> Result<Self> {
        if u16::from(shift) > SHIFT_MASK {
            let field = "the shift of a chunk";
            return Err(Error::new(ErrorKind::TooLarge { field, value: u64::from(shift) }, 16));
        }
        let has_indexes = table != ChunkTable::BlockMap;
        Ok(Self { shift, has_indexes, is_wide: table == ChunkTable::WideIndexes })
    }

    /// The chunk format as an inode holds it.
    #[must_use]
    pub fn to_bits(self) -> u16 {
        let indexes = if self.has_indexes { INDEXES } else { 0 };
        let wide = if self.is_wide { WIDE } else { 0 };
        u16::from(self.shift) | indexes | wide
    }

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

    /// Whether block numbers have 48 bits, which needs 48BIT.
    #[must_use]
    pub const fn is_wide(self) -> bool {
        self.is_wide
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
    pub fn entry(self, bytes: &[u8]) -> Result<Option<ChunkAddress>> {
        let short = || truncated(usize::from(self.entry_bytes()), bytes.len());
        if !self.has_indexes {
            let block = u32_at(bytes, 0).ok_or_else(short)?;
            let place = ChunkAddress { device: 0, block: u64::from(block) };
            return Ok((block != u32::MAX).then_some(place));
        }
        let front = u32_at(bytes, 0).ok_or_else(short)?;
        let low = u64::from(u32_at(bytes, 4).ok_or_else(short)?);
        let high = if self.is_wide { u64::from(front & 0xffff) } else { 0 };
        let null = if self.is_wide { NULL_BLOCK_48 } else { u64::from(u32::MAX) };
        let block = low | high << 32;
        let device = u16::try_from(front >> 16).unwrap_or(0);
        Ok((block != null).then_some(ChunkAddress { device, block }))
    }

    /// Appends an entry to an array; `None` is a hole.
    ///
    /// # Errors
    /// [`ErrorKind::Unwritable`] for a device in a block map, and [`ErrorKind::TooLarge`] for a
    /// block past the largest, of which the pattern of holes is one.
    pub fn push_entry(self, place: Option<ChunkAddress>, array: &mut Vec<u8>) -> Result<()> {
        let null =
            if self.has_indexes && self.is_wide { NULL_BLOCK_48 } else { u64::from(u32::MAX) };
        let (device, block) = match place {
            Some(place) if place.block >= null => {
                let field = "the block of a chunk";
                return Err(Error::new(ErrorKind::TooLarge { field, value: place.block }, 0));
            }
            Some(place) => (place.device, place.block),
            None => (0, null),
        };
        if self.has_indexes {
            let high: u16 = fit(block >> 32, "the block of a chunk", 0)?;
            array.extend_from_slice(&high.to_le_bytes());
            array.extend_from_slice(&device.to_le_bytes());
        } else if device != 0 {
            return Err(Error::new(ErrorKind::Unwritable("a device in a block map"), 0));
        }
        array.extend_from_slice(&low_half(block).to_le_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_block_map_has_four_bytes_and_a_hole_of_ones() {
        let format = ChunkFormat::parse(0).unwrap();
        assert_eq!(format.entry_bytes(), 4);
        assert_eq!(format.entry(&[0xff; 4]).unwrap(), None);
        let place = ChunkAddress { device: 0, block: 3 };
        assert_eq!(format.entry(&[3, 0, 0, 0]).unwrap(), Some(place));
        assert!(format.entry(&[3, 0, 0]).is_err());
    }

    #[test]
    fn a_narrow_index_ignores_its_high_half() {
        let format = ChunkFormat::parse(0x20).unwrap();
        let place = format.entry(&[9, 9, 2, 0, 5, 0, 0, 0]).unwrap();
        assert_eq!(place, Some(ChunkAddress { device: 2, block: 5 }));
        assert_eq!(format.entry(&[9, 9, 2, 0, 0xff, 0xff, 0xff, 0xff]).unwrap(), None);
    }

    #[test]
    fn a_wide_index_joins_both_halves() {
        let format = ChunkFormat::parse(0x65).unwrap();
        let place = format.entry(&[1, 0, 0, 0, 5, 0, 0, 0]).unwrap();
        assert_eq!(place, Some(ChunkAddress { device: 0, block: 5 | 1 << 32 }));
        assert_eq!(format.entry(&[0xff, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff]).unwrap(), None);
        let size = BlockSize::from_bits(12).unwrap();
        assert_eq!(format.chunk_bytes(size), 4096 << 5);
    }

    #[test]
    fn a_hole_is_written_as_the_table_says_it() {
        let written = |table| {
            let mut bytes = Vec::new();
            ChunkFormat::new(0, table).unwrap().push_entry(None, &mut bytes).unwrap();
            bytes
        };
        assert_eq!(written(ChunkTable::BlockMap), [0xff; 4]);
        assert_eq!(written(ChunkTable::Indexes), [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(written(ChunkTable::WideIndexes), [0xff, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    }

    #[test]
    fn a_block_that_reads_back_as_a_hole_is_refused() {
        let push = |table, device, block| {
            let format = ChunkFormat::new(31, table).unwrap();
            format.push_entry(Some(ChunkAddress { device, block }), &mut Vec::new())
        };
        assert!(push(ChunkTable::BlockMap, 0, 0xffff_ffff).is_err());
        assert!(push(ChunkTable::BlockMap, 1, 5).is_err());
        assert!(push(ChunkTable::Indexes, 1, 0xffff_ffff).is_err());
        assert!(push(ChunkTable::WideIndexes, 1, 0xffff_ffff).is_ok());
        assert!(push(ChunkTable::WideIndexes, 1, (1 << 48) - 1).is_err());
        assert!(push(ChunkTable::WideIndexes, 1, 1 << 50).is_err());
        assert!(ChunkFormat::new(32, ChunkTable::BlockMap).is_err());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            bits in 0u16..0x80, device: u16, block in 0u64..1 << 50, is_hole: bool,
        ) {
            let format = ChunkFormat::parse(bits).unwrap();
            prop_assert_eq!(format.to_bits(), bits);
            let place = (!is_hole).then_some(ChunkAddress { device, block });
            let mut bytes = Vec::new();
            if format.push_entry(place, &mut bytes).is_ok() {
                prop_assert_eq!(bytes.len(), usize::from(format.entry_bytes()));
                prop_assert_eq!(format.entry(&bytes).unwrap(), place);
            } else {
                prop_assert!(bytes.is_empty() && !is_hole);
            }
        }
    }

    #[test]
    fn unknown_bits_are_refused() {
        assert!(ChunkFormat::parse(0x80).is_err());
    }
}
