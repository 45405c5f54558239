//! Flat files: whole blocks in a row, and maybe a tail behind the inode (docs/format.md F10,
//! F14).

use ferrofs_ondisk::{DataLayout, Payload};

use super::{Data, MappedExtent};
use crate::error::{Error, ErrorKind, Result, address};
use crate::image::ImageInner;
use crate::inode::Inode;

/// Where the two parts of a flat file lie.
#[derive(Debug)]
pub(super) struct FlatMap {
    size: u64,
    /// Where the tail starts in the file; the file's size if it has none.
    tail_start: u64,
    blocks: Data,
    tail: Data,
}

impl FlatMap {
    pub(super) fn new(
        inner: &ImageInner,
        inode: &Inode,
        layout: DataLayout,
        payload: Payload,
    ) -> Result<Self> {
        let block_size = inner.sb.block_size;
        let size = inode.size();
        let is_inline = layout == DataLayout::FlatInline;
        let tail_start = if is_inline { block_size.floor(size.saturating_sub(1)) } else { size };
        let tail = Data::Inline { offset: inode.end() };
        let tail_bytes = size.saturating_sub(tail_start);
        let room =
            u64::from(block_size.bytes()).saturating_sub(u64::from(block_size.within(inode.end())));
        if tail_bytes > room {
            return Err(Error::new(ErrorKind::InlineData).at(inode.end()));
        }
        let blocks = match payload {
            Payload::StartBlock(Some(block)) => {
                let offset = address(block_size.offset_of(block))?;
                Data::Raw { device: 0, offset }
            }
            // With a tail a null address means "no blocks": none may be needed then.
            _ if is_inline && tail_start > 0 => return Err(ErrorKind::AddressOverflow.into()),
            _ => Data::Hole,
        };
        Ok(Self { size, tail_start, blocks, tail })
    }

    pub(super) fn extent_at(&self, offset: u64) -> Result<MappedExtent> {
        let (start, end, data) = if offset < self.tail_start {
            (0, self.tail_start, self.blocks)
        } else {
            (self.tail_start, self.size, self.tail)
        };
        Ok(MappedExtent { start, length: end.saturating_sub(start), data })
    }
}
