//! The inodes of the special files, the packed inode and the metabox: they come last, when all else lies
//! where it lies, and fill what is left of the head.

use ferrofs_ondisk::Nid;

use super::features::Features;
use super::layout::{InodeAllocator, SLOT_BYTES};
use super::records::InodeRecords;
use super::zone::MetadataArea;
use crate::Result;
use crate::data::InternalFile;

impl InodeRecords<'_, '_> {
    /// Writes the inodes of those of `files` that there are, where `layout` has room. Returns the head, and
    /// the nid of each.
    ///
    /// # Errors
    /// What an inode cannot say, and the host's.
    pub(super) fn write_special(
        &self,
        files: [Option<&InternalFile>; 2],
        (mut layout, features): (InodeAllocator, &mut Features),
        mut area: MetadataArea<'_>,
    ) -> Result<(Vec<u8>, [Option<Nid>; 2])> {
        let mut inodes = Vec::new();
        let mut nids = [None; 2];
        for ((number, file), nid) in files.into_iter().enumerate().zip(&mut nids) {
            let Some(file) = file else { continue };
            let record = self.special(number, file)?;
            features.add(&record);
            let start = layout.place(self.inode_extent(&record)?);
            inodes.push((start, record.render(self.prepared.times.base, &[], &[])?));
            *nid = Some(Nid::new(start / SLOT_BYTES));
        }
        inodes.sort_unstable_by_key(|(start, _)| *start);
        for (start, bytes) in inodes {
            area.put(start, &bytes)?;
        }
        Ok((area.finish_block()?, nids))
    }
}
