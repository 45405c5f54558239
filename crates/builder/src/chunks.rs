//! Chunk-based files: equal chunks stored once, holes kept, and the table made as short as the places
//! of the chunks allow.

use std::collections::HashMap;

use ferrofs_ondisk::BlockSize;
use ferrofs_ondisk::chunk::{ChunkAddress, ChunkFormat, ChunkTable};

use crate::compress::digest::Sha256Digest;
use crate::data::FileData;
use crate::{BlockSink, Error, ErrorKind, Result};

/// The longest chunk is so many times as long as a block, as a power of two (docs/format.md F10).
pub(crate) const SHIFT_MAX: u32 = 31;
/// What an entry of a table takes until the table is written.
const ENTRY_BYTES: u64 = size_of::<Option<ChunkAddress>>() as u64;

/// Which table of chunks an image is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkTableParams {
    /// The block size.
    pub(crate) block: BlockSize,
    /// Bytes of a chunk.
    pub(crate) chunk_bytes: u64,
    /// 8-byte indexes, also where 4 bytes would do.
    pub(crate) force_indexes: bool,
    /// The device that the chunks lie on; 0 is the image.
    pub(crate) device: u16,
}

/// How many entries all tables may have yet: they are in memory until the metadata is written, and a source
/// that says it is huge and has nothing but holes would fill it.
#[derive(Debug)]
pub(crate) struct ChunkTableBudget {
    left: u64,
    memory_bytes: u64,
}

impl ChunkTableBudget {
    /// Half of this memory is for tables.
    pub(crate) fn new(memory_bytes: u64) -> Self {
        Self { left: memory_bytes / 2 / ENTRY_BYTES, memory_bytes }
    }

    /// Room for `entries` more.
    pub(crate) fn take(&mut self, entries: u64) -> Result<usize> {
        let left = self.left.checked_sub(entries);
        let (Some(left), Ok(count)) = (left, usize::try_from(entries)) else {
            let bytes = self.memory_bytes;
            let what = format!(
                "a table of {entries} chunks: the {bytes} bytes of memory have no budget for it; longer \
                 chunks or more memory do"
            );
            return Err(Error::new(ErrorKind::Unsupported(what)));
        };
        self.left = left;
        Ok(count)
    }

    /// Entries that are not needed any more.
    pub(crate) fn give_back(&mut self, entries: usize) {
        self.left = self.left.saturating_add(entries as u64);
    }
}

/// The chunks that are in the image, or in its blob.
#[derive(Debug, Default)]
pub(crate) struct ChunkStore {
    places: HashMap<(Sha256Digest, u64), u64>,
}

impl ChunkStore {
    /// The first block of the chunk with this digest and length, appended unless it is there already.
    /// `whole` is the chunk with the zeros that fill up its last block.
    pub(crate) fn place(
        &mut self,
        key: (Sha256Digest, u64),
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
pub(crate) fn table(mut blocks: Vec<Option<u64>>, params: &ChunkTableParams) -> Result<FileData> {
    let block_bytes = u64::from(params.block.bytes());
    let mut shift = (params.chunk_bytes / block_bytes).max(1).ilog2();
    while blocks.len() > 1 && shift < SHIFT_MAX {
        let Some(merged) = merged(&blocks, 1 << shift) else { break };
        blocks = merged;
        shift += 1;
    }
    let place =
        |block: Option<u64>| block.map(|block| ChunkAddress { device: params.device, block });
    chunked(blocks.into_iter().map(place).collect(), shift, params)
}

/// The data of a file with chunks of `1 << shift` blocks at these places.
pub(crate) fn chunked(
    places: Vec<Option<ChunkAddress>>,
    shift: u32,
    params: &ChunkTableParams,
) -> Result<FileData> {
    let present = || places.iter().flatten();
    // A block of all ones is a hole in either width.
    let has_far = present().any(|place| place.block >= u64::from(u32::MAX));
    let has_devices = params.device != 0 || present().any(|place| place.device != 0);
    let table = match (has_far, params.force_indexes || has_devices) {
        (true, _) => ChunkTable::WideIndexes,
        (false, true) => ChunkTable::Indexes,
        (false, false) => ChunkTable::BlockMap,
    };
    let format = ChunkFormat::new(u8::try_from(shift).unwrap_or(u8::MAX), table);
    let format = format.map_err(|error| Error::new(ErrorKind::Format(error)))?;
    Ok(FileData::Chunks { format, places })
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

    fn params() -> ChunkTableParams {
        let block = BlockSize::from_bits(12).unwrap();
        ChunkTableParams { block, chunk_bytes: 8192, force_indexes: false, device: 0 }
    }

    fn shape(blocks: Vec<Option<u64>>) -> (u64, Vec<Option<u64>>) {
        let FileData::Chunks { format, places } = table(blocks, &params()).unwrap() else {
            panic!("not in chunks");
        };
        let blocks = places.iter().map(|place| place.map(|place| place.block)).collect();
        (format.chunk_bytes(params().block), blocks)
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
    fn chunks_of_a_blob_are_indexed() {
        let params = ChunkTableParams { device: 1, ..params() };
        let FileData::Chunks { format, places } = table(vec![Some(5), None], &params).unwrap()
        else {
            panic!("not in chunks");
        };
        assert_eq!(format.entry_bytes(), 8);
        assert_eq!(places, [Some(ChunkAddress { device: 1, block: 5 }), None]);
    }

    #[test]
    fn tables_have_half_of_the_memory() {
        let mut budget = ChunkTableBudget::new(20 * ENTRY_BYTES);
        assert_eq!(budget.take(6).unwrap(), 6);
        let error = budget.take(5).unwrap_err();
        assert!(error.to_string().contains("a table of 5 chunks"), "{error}");
        budget.give_back(1);
        assert_eq!(budget.take(5).unwrap(), 5);
        budget.take(u64::MAX).unwrap_err();
    }

    #[test]
    fn a_far_chunk_needs_wide_addresses() {
        let format = |block| match table(vec![Some(block)], &params()).unwrap() {
            FileData::Chunks { format, .. } => format,
            other => panic!("{other:?}"),
        };
        assert!(format(1 << 33).is_wide() && format(u64::from(u32::MAX)).is_wide());
        assert_eq!(format(u64::from(u32::MAX) - 1).entry_bytes(), 4);
    }
}
