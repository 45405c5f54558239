//! The checksum of the superblock: CRC-32C over the rest of its block (docs/format.md F2).

use crate::address::BlockSize;
use crate::error::Result;
use crate::{bytes, superblock::SUPERBLOCK_OFFSET};

/// Where the checksum field is inside the superblock.
const FIELD: std::ops::Range<usize> = 4..8;

/// How many bytes from the start of the superblock the checksum covers.
///
/// With blocks above 1 KiB it is the rest of block 0; with smaller ones it is one block.
#[must_use]
pub fn checksum_span(block_size: BlockSize) -> usize {
    let block = usize::try_from(block_size.bytes()).unwrap_or(usize::MAX);
    let before = usize::try_from(SUPERBLOCK_OFFSET).unwrap_or(usize::MAX);
    match block.checked_sub(before) {
        Some(rest) if rest > 0 => rest,
        _ => block,
    }
}

/// Computes the checksum over `bytes`, which start at the superblock.
///
/// The checksum's own field counts as zero; the register starts with all ones and is stored
/// without the usual final inversion.
///
/// # Errors
/// [`ErrorKind::Truncated`](crate::ErrorKind::Truncated) if `bytes` is shorter than
/// [`checksum_span`].
pub fn superblock_checksum(block_size: BlockSize, data: &[u8]) -> Result<u32> {
    let span = checksum_span(block_size);
    let covered = data.get(..span).ok_or_else(|| bytes::truncated(span, data.len()))?;
    let head = covered.get(..FIELD.start).unwrap_or_default();
    let tail = covered.get(FIELD.end..).unwrap_or_default();
    let crc = crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(head), &[0; 4]), tail);
    Ok(!crc)
}

/// Computes the checksum of the superblock at the start of `data` and writes it into its field.
///
/// Everything else within [`checksum_span`] must be in place: a byte changed afterwards breaks it.
///
/// # Errors
/// [`ErrorKind::Truncated`](crate::ErrorKind::Truncated) if `data` is shorter than
/// [`checksum_span`].
pub fn seal_checksum(block_size: BlockSize, data: &mut [u8]) -> Result<()> {
    let checksum = superblock_checksum(block_size, data)?;
    let length = data.len();
    let field = data.get_mut(FIELD).ok_or_else(|| bytes::truncated(FIELD.end, length))?;
    field.copy_from_slice(&checksum.to_le_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_span_follows_the_block_size() {
        let span = |bits| checksum_span(BlockSize::from_bits(bits).unwrap());
        assert_eq!(span(9), 512);
        assert_eq!(span(10), 1024);
        assert_eq!(span(11), 1024);
        assert_eq!(span(12), 3072);
        assert_eq!(span(16), 64512);
    }

    #[test]
    fn the_magic_and_the_zeroed_field_leave_the_documented_state() {
        // Eight bytes of magic and zeroed field bring the register to 0x5045B54A (F2).
        let mut first = [0u8; 8];
        first[..4].copy_from_slice(&crate::SUPERBLOCK_MAGIC.to_le_bytes());
        assert_eq!(!crc32c::crc32c(&first), 0x5045_B54A);
    }

    #[test]
    fn the_stored_checksum_does_not_count_itself() {
        let size = BlockSize::from_bits(9).unwrap();
        let mut block = [7u8; 512];
        let before = superblock_checksum(size, &block).unwrap();
        block[5] = 99;
        assert_eq!(superblock_checksum(size, &block).unwrap(), before);
        block[8] = 99;
        assert_ne!(superblock_checksum(size, &block).unwrap(), before);
    }

    #[test]
    fn a_sealed_block_holds_its_own_checksum() {
        let size = BlockSize::from_bits(9).unwrap();
        let mut block = [7u8; 600];
        seal_checksum(size, &mut block).unwrap();
        let stored = bytes::u32_at(&block, 4).unwrap();
        assert_eq!(superblock_checksum(size, &block).unwrap(), stored);
        assert_eq!((block[3], block[8]), (7, 7));
        assert!(seal_checksum(size, &mut block[..511]).is_err());
    }
}
