//! Which features of the format an image holds, gathered inode by inode.

use std::collections::BTreeSet;

use ferrofs_ondisk::compression::AlgorithmId;
use ferrofs_ondisk::{DataLayout, Payload};

use super::inodes::{InodeRecord, InodeTail};

/// What the inodes of an image need of a reader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Features {
    /// Algorithms that an index names.
    pub(crate) algorithms: BTreeSet<AlgorithmId>,
    /// Some file is compressed, or lies in a compressed one.
    pub(crate) has_compressed: bool,
    pub(crate) has_big_pclusters: bool,
    pub(crate) has_two_algorithms: bool,
    pub(crate) has_inline_pclusters: bool,
    pub(crate) has_shared_pclusters: bool,
    pub(crate) has_chunks: bool,
    /// Something that only 48BIT says.
    pub(crate) has_wide: bool,
    /// InodeTail the last pcluster of the files so far: data is written in their order.
    seen: u64,
}

impl Features {
    /// Notes what `record` needs: those that have a name in the order of their data.
    pub(crate) fn add(&mut self, record: &InodeRecord<'_>) {
        self.has_wide |= is_wide(record);
        match record.tail {
            InodeTail::Chunks(..) => self.has_chunks = true,
            InodeTail::Index(plan) => {
                self.has_compressed = true;
                self.algorithms.extend(plan.named_algorithms());
                self.has_big_pclusters |= plan.has_big_pclusters();
                self.has_two_algorithms |= plan.has_two_algorithms();
                self.has_inline_pclusters |= !plan.inline().is_empty();
                if record.node.is_some() {
                    self.note_extents(plan.extents());
                }
            }
            InodeTail::Nothing | InodeTail::Tail(_) | InodeTail::DirectoryTail(_) => {}
        }
    }

    fn note_extents(&mut self, extents: &[crate::data::DataExtent]) {
        for extent in extents {
            self.has_shared_pclusters |= extent.partial || extent.address < self.seen;
            self.seen = self.seen.max(extent.address + u64::from(extent.pcluster_bytes));
        }
    }
}

/// Whether a reader without 48BIT would take the inode for something else.
fn is_wide(record: &InodeRecord<'_>) -> bool {
    let in_payload = match record.inode.payload {
        // Without 48BIT an inline tail is all that has no start block.
        Payload::StartBlock(None) => record.inode.layout == DataLayout::FlatPlain,
        Payload::StartBlock(Some(number)) | Payload::CompressedBlocks(number) => {
            number >= u64::from(u32::MAX)
        }
        Payload::Chunks(format) => format.is_wide(),
        Payload::Device { .. } | Payload::Nothing => false,
    };
    let has_encoded_extents = match record.tail {
        InodeTail::Index(plan) => plan.has_encoded_extents(),
        _ => false,
    };
    in_payload || has_encoded_extents || record.inode.has_no_dot
}
