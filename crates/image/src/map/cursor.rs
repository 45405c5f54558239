//! Reads small structures of one inode that lie close to each other, without asking the cache of
//! windows each time.

use crate::error::Result;
use crate::image::ImageInner;
use crate::inner::{AddressSpace, MetaBytes};
use crate::inode::Inode;

/// How much is fetched at once; entries are aligned to their size, which divides it.
const SPAN_BYTES: u64 = 4096;

/// A view on an inode's space of metadata.
#[derive(Debug)]
pub(super) struct MetaCursor {
    space: AddressSpace,
    start: u64,
    span: Option<MetaBytes>,
}

impl MetaCursor {
    pub(super) fn new(inode: &Inode) -> Self {
        Self { space: inode.place().0, start: 0, span: None }
    }

    /// The space that it reads.
    pub(super) fn space(&self) -> AddressSpace {
        self.space
    }

    /// The `bytes` bytes at `offset`, at most [`SPAN_BYTES`].
    pub(super) fn bytes(&mut self, inner: &ImageInner, offset: u64, bytes: u64) -> Result<&[u8]> {
        let wanted = usize::try_from(bytes).unwrap_or(usize::MAX);
        if self.within(offset, wanted).is_none() {
            self.start = offset & !SPAN_BYTES.wrapping_sub(1);
            let span = usize::try_from(SPAN_BYTES).unwrap_or(usize::MAX);
            self.span = Some(inner.meta_up_to(self.space, self.start, span)?);
        }
        if self.within(offset, wanted).is_none() {
            // Past the end of the space, or across two spans.
            self.start = offset;
            self.span = Some(inner.meta(self.space, offset, wanted)?);
        }
        Ok(self.within(offset, wanted).unwrap_or_default())
    }

    fn within(&self, offset: u64, bytes: usize) -> Option<&[u8]> {
        let start = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        self.span.as_deref()?.get(start..start.checked_add(bytes)?)
    }
}
