//! Chunk-based files: one extent a chunk (docs/format.md F8, F10).

use ferrofs_ondisk::chunk::ChunkFormat;

use super::cursor::MetaCursor;
use super::{Data, MappedExtent};
use crate::error::{ErrorContext, Result, address, parsed};
use crate::image::ImageInner;
use crate::inode::Inode;

/// The array of a file's chunks.
#[derive(Debug)]
pub(super) struct ChunkMap {
    cursor: MetaCursor,
    size: u64,
    format: ChunkFormat,
    chunk_bytes: u64,
    /// Where the array starts.
    array: u64,
}

impl ChunkMap {
    pub(super) fn new(inner: &ImageInner, inode: &Inode, format: ChunkFormat) -> Result<Self> {
        let unit = u64::from(format.entry_bytes());
        let array = address(inode.end().checked_next_multiple_of(unit))?;
        Ok(Self {
            cursor: MetaCursor::new(inode),
            size: inode.size(),
            format,
            chunk_bytes: format.chunk_bytes(inner.sb.block_size),
            array,
        })
    }

    pub(super) fn extent_at(&mut self, inner: &ImageInner, offset: u64) -> Result<MappedExtent> {
        let number = address(offset.checked_div(self.chunk_bytes))?;
        let entry_bytes = u64::from(self.format.entry_bytes());
        let entry_at = address(
            number.checked_mul(entry_bytes).and_then(|before| self.array.checked_add(before)),
        )?;
        let entry = self.cursor.bytes(inner, entry_at, entry_bytes)?;
        let data = match parsed(self.format.entry(entry), entry_at)? {
            None => Data::Hole,
            Some(place) => {
                let offset = address(inner.sb.block_size.offset_of(place.block)).at(entry_at)?;
                Data::Raw { device: place.device, offset }
            }
        };
        let start = address(number.checked_mul(self.chunk_bytes))?;
        Ok(MappedExtent {
            start,
            length: self.chunk_bytes.min(self.size.saturating_sub(start)),
            data,
        })
    }
}
