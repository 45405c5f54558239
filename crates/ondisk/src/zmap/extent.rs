//! Encoded extents: a record for each extent instead of an entry for each lcluster
//! (docs/format.md F35, F36).

use super::{MAP_HEADER_BYTES, round_up};
use crate::bytes::{truncated, u32_at};
use crate::compression::AlgorithmId;
use crate::error::{Error, ErrorKind, Result};

const LENGTH_MASK: u32 = (1 << 21) - 1;
const PARTIAL: u32 = 1 << 27;

/// The header of a table of encoded extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentTable {
    /// How many records there are; it counts only for records of 16 and 32 bytes.
    pub count: u64,
    /// Bytes of a record as a shift: 2..=5.
    pub record_bits: u8,
    /// Decoded bytes of an extent as a shift, for records of 4 and 8 bytes.
    pub lcluster_bits: u8,
    /// Raw extents of whole blocks are rotated by their position in the block.
    pub is_interlaced: bool,
    /// The last extent lies in the packed inode.
    pub has_fragment: bool,
}

impl ExtentTable {
    /// Bytes of a record: 4, 8, 16 or 32.
    #[must_use]
    pub fn record_bytes(&self) -> u64 {
        1u64.wrapping_shl(u32::from(self.record_bits & 7))
    }

    /// Whether records say where their extent starts in the file.
    #[must_use]
    pub const fn has_logical_starts(&self) -> bool {
        self.record_bits >= 4
    }

    /// Whether records say where their data starts in the image; 4-byte ones follow each other
    /// from one start address in front of them.
    #[must_use]
    pub const fn has_physical_starts(&self) -> bool {
        self.record_bits >= 3
    }

    /// Bytes of an extent where records do not say.
    #[must_use]
    pub fn lcluster_bytes(&self) -> u64 {
        1u64.wrapping_shl(u32::from(self.lcluster_bits))
    }

    /// Where the table starts, whose map header starts at `header`.
    #[must_use]
    pub fn start(&self, header: u64) -> Option<u64> {
        round_up(header.checked_add(MAP_HEADER_BYTES)?, self.record_bytes())
    }

    /// Where record `index` lies in a table that starts at `start`.
    #[must_use]
    pub fn record_offset(&self, start: u64, index: u64) -> Option<u64> {
        let address_bytes = if self.has_physical_starts() { 0 } else { 8 };
        start.checked_add(address_bytes)?.checked_add(index.checked_mul(self.record_bytes())?)
    }
}

/// The length word of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentLength(u32);

impl ExtentLength {
    /// Encoded bytes; 0 is a hole.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        self.0 & LENGTH_MASK
    }

    /// Whether the data decodes to more than the extent uses.
    #[must_use]
    pub const fn is_partial(self) -> bool {
        self.0 & PARTIAL != 0
    }

    /// The word itself: in the last record of a file with a fragment it is the low half of the
    /// fragment's offset.
    #[must_use]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// The algorithm; `None` for raw data.
    ///
    /// # Errors
    /// [`ErrorKind::ExtentFormat`] for a number without a meaning.
    pub fn algorithm(self) -> Result<Option<AlgorithmId>> {
        let format = u8::try_from(self.0 >> 28).unwrap_or(u8::MAX);
        match format.checked_sub(1) {
            None => Ok(None),
            Some(number) => match AlgorithmId::from_number(number) {
                Ok(algorithm) => Ok(Some(algorithm)),
                Err(_) => Err(Error::new(ErrorKind::ExtentFormat(format), 0)),
            },
        }
    }
}

/// One record; fields that its size does not have are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentRecord {
    /// Length and flags.
    pub length: ExtentLength,
    /// Where the data starts in the image, in bytes.
    pub physical: u64,
    /// Where the extent starts in the file, in bytes.
    pub logical: u64,
}

impl ExtentRecord {
    /// Reads a record of `table`.
    ///
    /// # Errors
    /// [`ErrorKind::Truncated`] if it is not whole.
    pub fn parse(bytes: &[u8], table: &ExtentTable) -> Result<Self> {
        let field = |present: bool, at: usize| {
            if !present {
                return Ok(0);
            }
            u32_at(bytes, at).map(u64::from).ok_or_else(|| truncated(at, bytes.len()))
        };
        let length = u32_at(bytes, 0).ok_or_else(|| truncated(4, bytes.len()))?;
        let has_logical = table.has_logical_starts();
        let physical = field(table.has_physical_starts(), 4)? | field(has_logical, 8)? << 32;
        let logical = field(has_logical, 12)? | field(table.record_bits >= 5, 16)? << 32;
        Ok(Self { length: ExtentLength(length), physical, logical })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(record_bits: u8) -> ExtentTable {
        ExtentTable {
            count: 1,
            record_bits,
            lcluster_bits: 14,
            is_interlaced: false,
            has_fragment: false,
        }
    }

    #[test]
    fn each_size_has_the_fields_it_has_room_for() {
        let bytes: Vec<u8> = (1..=32).collect();
        let parse = |bits| ExtentRecord::parse(&bytes, &table(bits)).unwrap();
        assert_eq!((parse(2).physical, parse(2).logical), (0, 0));
        assert_eq!((parse(3).physical, parse(3).logical), (0x0807_0605, 0));
        assert_eq!((parse(4).physical, parse(4).logical), (0x0c0b_0a09_0807_0605, 0x100f_0e0d));
        assert_eq!(parse(5).logical, 0x1413_1211_100f_0e0d);
        assert!(ExtentRecord::parse(&bytes[..15], &table(4)).is_err());
    }

    #[test]
    fn the_table_is_aligned_to_its_records() {
        assert_eq!(table(5).start(40), Some(64));
        assert_eq!(table(2).start(40), Some(48));
        assert_eq!(table(2).record_offset(48, 2), Some(64));
        assert_eq!(table(3).record_offset(48, 2), Some(64));
        assert_eq!(table(3).record_offset(48, u64::MAX), None);
    }

    #[test]
    fn a_length_word_carries_its_format() {
        let length = ExtentLength(0x4 << 28 | PARTIAL | 77);
        assert_eq!(length.bytes(), 77);
        assert!(length.is_partial());
        assert_eq!(length.algorithm().unwrap(), Some(AlgorithmId::Zstd));
        assert_eq!(ExtentLength(5).algorithm().unwrap(), None);
        assert!(ExtentLength(0x5 << 28).algorithm().is_err());
    }
}
