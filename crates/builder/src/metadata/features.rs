//! Which features of the format an image holds, gathered inode by inode.

use std::collections::BTreeSet;

use ferrofs_ondisk::compression::AlgorithmId;

use super::inodes::{Behind, Record};

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
    pub(crate) has_fragments: bool,
    pub(crate) has_shared_pclusters: bool,
    pub(crate) has_chunks: bool,
    /// Behind the last pcluster of the files so far: data is written in their order.
    seen: u64,
}

impl Features {
    /// Notes what `record` needs; the packed inode comes first, then all others in the order of their data.
    pub(crate) fn note(&mut self, record: &Record<'_>) {
        match record.behind {
            Behind::Chunks(..) => self.has_chunks = true,
            Behind::Index(plan) => {
                self.has_compressed = true;
                self.algorithms.extend(plan.named_algorithms());
                self.has_big_pclusters |= plan.has_big_pclusters();
                self.has_two_algorithms |= plan.has_two_algorithms();
                self.has_inline_pclusters |= !plan.inline().is_empty();
                self.has_fragments |= plan.has_fragment();
                if record.node.is_some() {
                    self.note_extents(plan.extents());
                }
            }
            Behind::Nothing | Behind::Tail(_) | Behind::DirectoryTail(_) => {}
        }
    }

    fn note_extents(&mut self, extents: &[crate::data::Extent]) {
        for extent in extents {
            self.has_shared_pclusters |= extent.partial || extent.address < self.seen;
            self.seen = self.seen.max(extent.address + u64::from(extent.pcluster_bytes));
        }
    }
}
