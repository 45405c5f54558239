//! Metadata in front of the data (`metadata_first`), so that a reader of a remote image gets all of it with its first
//! request:
//!
//! ```text
//! head: superblock, configuration records, long prefixes, root, and whatever else fits its last block
//! metadata area: the packed inode's inode, shared xattrs, inodes with their indexes
//! whole blocks of directories and of long symlinks
//! data of files and of the packed inode
//! ```
//!
//! How long indexes and tails are is known when the data is encoded. So the data goes to a temporary file first, as if
//! it followed the head, and is copied behind the metadata, which counts it from there. Data is moved, never encoded
//! again.

use crate::data_map::{DataMap, InternalFile};
use crate::image_file::ImageWriter;
use crate::metadata::allocator::InodeAllocator;
use crate::metadata::inode::InodeRecords;
use crate::metadata::placement::MetadataArea;
use crate::metadata::{MetadataWriter, WrittenMetadata, too_large};
use crate::packed_file::PackedFile;
use crate::write_data::write_packed;
use crate::{BuildPhase, Error, ErrorKind, Result};

use crate::context::BuildContext;

/// Data that waits for its place behind the metadata.
#[derive(Debug)]
pub(crate) struct WaitingData {
    /// As if the data followed the head of the image.
    pub(crate) file: ImageWriter,
    pub(crate) packed: PackedFile,
}

impl MetadataWriter<'_> {
    /// Writes all metadata behind the head, and `waiting` behind that. `data` comes to say where everything lies then.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub(crate) fn write_first(
        &mut self,
        data: &mut DataMap,
        waiting: WaitingData,
        image: &mut ImageWriter,
        context: &BuildContext<'_>,
    ) -> Result<WrittenMetadata> {
        let block_size = self.options.block_size;
        let WaitingData { file: mut waiting, packed } = waiting;
        if let Some(content) = packed.into_content() {
            context.observer.phase(BuildPhase::Data);
            data.packed = Some(write_packed(&content, context, &mut waiting)?);
            context.observer.phase(BuildPhase::Metadata);
        }
        waiting.fill_block()?;
        let mut area = std::mem::replace(&mut self.layout, InodeAllocator::new(block_size, 0));
        area.resume_at(image.bytes());
        let records = InodeRecords { prepared: self, data };
        let packed_at = records.place_special(data.packed.as_ref(), &mut area)?;
        let mut placement = records.place(area, context)?;
        let end = block_size.offset_of(placement.end_block()).ok_or_else(too_large)?;
        let unit = u64::from(self.options.data_alignment_blocks) * u64::from(block_size.bytes());
        let shift_bytes = (end - self.head_bytes).next_multiple_of(unit);
        data.shift(shift_bytes, block_size);
        let data_end = block_size.count(waiting.bytes().saturating_add(shift_bytes));
        if u32::try_from(data_end).is_err() {
            let what = "metadata in front of more than 2^32 blocks of data: use larger blocks";
            return Err(Error::new(ErrorKind::Unsupported(what.to_owned())));
        }
        let records = InodeRecords { prepared: self, data };
        let special = match packed_at.zip(data.packed.as_ref()) {
            Some((start, file)) => {
                let record = records.special(0, file)?;
                placement.features.add(&record);
                Some((start, record.render(self.times.base, &[], &[])?))
            }
            None => None,
        };
        // A head is the superblock, at most 33 KiB of long prefixes, and a root.
        let head = vec![0; usize::try_from(self.head_bytes).unwrap_or(0)];
        let area = MetadataArea::new(image, head);
        let head = records.write_area(&placement, special, area, context)?;
        records.write_blocks(&placement, image, context)?;
        image.write_zeros(self.head_bytes + shift_bytes - image.bytes())?;
        waiting.copy_to(image, self.head_bytes, context)?;
        self.written(placement, head, [packed_at, None])
    }
}

impl InodeRecords<'_, '_> {
    /// The place of the inode of an internal file, if there is one. Its length does not depend on where the data lies.
    fn place_special(
        &self,
        file: Option<&InternalFile>,
        area: &mut InodeAllocator,
    ) -> Result<Option<u64>> {
        let Some(file) = file else { return Ok(None) };
        let inode_extent = self.inode_extent(&self.special(0, file)?)?;
        Ok(Some(area.place(inode_extent)))
    }
}
