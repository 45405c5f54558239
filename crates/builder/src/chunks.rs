//! Chunk-based files: equal chunks stored once, holes kept, and the table made as short as the places
//! of the chunks allow.

use std::collections::HashMap;

use ferrofs_ondisk::BlockSize;
use ferrofs_ondisk::chunk::{ChunkFormat, ChunkPlace};

use crate::compress::digest::Digest;
use crate::data::FileData;
use crate::{BlockSink, Error, ErrorKind, Result};

/// The longest chunk is so many times as long as a block, as a power of two (docs/format.md F10).
const SHIFT_MAX: u32 = 31;
/// The bits of the chunk format: indexes of 8 bytes, and 48-bit block numbers.
const INDEXES: u16 = 0x20;
const WIDE: u16 = 0x40;

/// Which table of chunks an image is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableRules {
    /// The block size.
    pub(crate) block: BlockSize,
    /// Bytes of a chunk.
    pub(crate) chunk_bytes: u64,
    /// 8-byte indexes, also where 4 bytes would do.
    pub(crate) force_indexes: bool,
    /// The device that the chunks lie on; 0 is the image.
    pub(crate) device: u16,
}

/// The chunks that are in the image.
#[derive(Debug, Default)]
pub(crate) struct ChunkStore {
    places: HashMap<(Digest, u64), u64>,
}

impl ChunkStore {
    /// The first block of the chunk with this digest and length, appended unless it is there already.
    /// `whole` is the chunk with the zeros that fill up its last block.
    pub(crate) fn place(
        &mut self,
        key: (Digest, u64),
        whole: &[u8],
        block: BlockSize,
        sink: &mut dyn BlockSink,
    ) -> Result<u64> {
        if let Some(&place) = self.places.get(&key) {
            return Ok(place);
        }
        let place = sink.append(whole)? / u64::from(block.bytes());
        self.places.insert(key, place);
        Ok(place)
    }
}

/// The data of a file whose chunks lie at these blocks.
pub(crate) fn table(mut blocks: Vec<Option<u64>>, rules: &TableRules) -> Result<FileData> {
    let block_bytes = u64::from(rules.block.bytes());
    let mut shift = (rules.chunk_bytes / block_bytes).max(1).ilog2();
    while blocks.len() > 1 && shift < SHIFT_MAX {
        let Some(merged) = merged(&blocks, 1 << shift) else { break };
        blocks = merged;
        shift += 1;
    }
    // A block of all ones is a hole in either width.
    let has_far = blocks.iter().flatten().any(|&block| block >= u64::from(u32::MAX));
    let has_indexes = rules.force_indexes || rules.device != 0 || has_far;
    let bits = if has_indexes { INDEXES } else { 0 } | if has_far { WIDE } else { 0 };
    let shift = u16::try_from(shift).unwrap_or(u16::MAX);
    let format = ChunkFormat::parse(shift | bits).map_err(|e| Error::new(ErrorKind::Format(e)))?;
    let place = |block: Option<u64>| block.map(|block| ChunkPlace { device: rules.device, block });
    Ok(FileData::Chunks { format, places: blocks.into_iter().map(place).collect() })
}

/// The table with chunks of twice the length, if each two neighbours are holes or lie side by side.
fn merged(blocks: &[Option<u64>], chunk_blocks: u64) -> Option<Vec<Option<u64>>> {
    let merge = |pair: &[Option<u64>]| match *pair {
        [one] | [one @ None, None] => Some(one),
        [Some(one), Some(other)] if one.checked_add(chunk_blocks) == Some(other) => Some(Some(one)),
        _ => None,
    };
    blocks.chunks(2).map(merge).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> TableRules {
        let block = BlockSize::from_bits(12).unwrap();
        TableRules { block, chunk_bytes: 8192, force_indexes: false, device: 0 }
    }

    fn shape(blocks: Vec<Option<u64>>) -> (u64, Vec<Option<u64>>) {
        let FileData::Chunks { format, places } = table(blocks, &rules()).unwrap() else {
            panic!("not in chunks");
        };
        let blocks = places.iter().map(|place| place.map(|place| place.block)).collect();
        (format.chunk_bytes(rules().block), blocks)
    }

    #[test]
    fn chunks_side_by_side_become_one_entry() {
        assert_eq!(shape(vec![Some(5), Some(7), Some(9)]), (32768, vec![Some(5)]));
    }

    #[test]
    fn holes_keep_their_place() {
        let table = vec![Some(5), Some(7), None, None, Some(9)];
        assert_eq!(shape(table), (16384, vec![Some(5), None, Some(9)]));
        assert_eq!(shape(vec![None, Some(5)]), (8192, vec![None, Some(5)]));
        assert_eq!(shape(vec![None, None, None]), (32768, vec![None]));
    }

    #[test]
    fn a_far_chunk_needs_wide_addresses() {
        let format = |block| match table(vec![Some(block)], &rules()).unwrap() {
            FileData::Chunks { format, .. } => format,
            other => panic!("{other:?}"),
        };
        assert!(format(1 << 33).is_wide() && format(u64::from(u32::MAX)).is_wide());
        assert_eq!(format(u64::from(u32::MAX) - 1).entry_bytes(), 4);
    }
}
