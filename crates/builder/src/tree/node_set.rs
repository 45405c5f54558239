//! A set of inodes of a tree: a bit for each inode, in the store of the tree. So it takes memory as the
//! tree does, and what does not fit goes to the same file.

use super::node::NodeId;
use crate::spill::SpillStore;
use crate::spill::paged::PagedBytes;

/// Bytes of the set that are read at once.
const BATCH_BYTES: usize = 512;

/// A set of inodes of one tree.
#[derive(Debug)]
pub(crate) struct NodeSet {
    bits: PagedBytes,
    count: u64,
}

impl NodeSet {
    /// The empty set.
    pub(crate) fn new(store: &SpillStore) -> Self {
        Self { bits: PagedBytes::new(store), count: 0 }
    }

    /// Adds an inode; false if it was there.
    pub(crate) fn insert(&mut self, id: NodeId) -> bool {
        let (at, bit) = place(id);
        let missing = (at + 1).saturating_sub(self.bits.len());
        self.bits.append_zeros(missing);
        let mut byte = [0];
        self.bits.read(at, &mut byte);
        let is_new = byte[0] & bit == 0;
        if is_new {
            self.bits.write(at, &[byte[0] | bit]);
            self.count += 1;
        }
        is_new
    }

    /// Whether an inode is in the set.
    pub(crate) fn contains(&self, id: NodeId) -> bool {
        let (at, bit) = place(id);
        let mut byte = [0];
        if self.count > 0 {
            self.bits.read(at, &mut byte);
        }
        byte[0] & bit != 0
    }

    /// Whether it has no inode.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Removes all inodes.
    pub(crate) fn clear(&mut self) {
        self.bits.truncate(0);
        self.count = 0;
    }

    /// All inodes, in the order of the tree.
    pub(crate) fn iter(&self) -> impl Iterator<Item = NodeId> {
        let bytes = self.bits.len();
        let batches = (0..bytes).step_by(BATCH_BYTES);
        let with_places = batches.flat_map(|at| (at..).zip(self.bits.read_vec(at, BATCH_BYTES)));
        with_places
            .filter(|(_, byte)| *byte != 0)
            .flat_map(|(at, byte)| {
                let set = (0..8_u32).filter(move |bit| byte >> bit & 1 != 0);
                // There are no more inodes than 32 bits count.
                set.filter_map(move |bit| u32::try_from(at * 8 + u64::from(bit)).ok())
            })
            .map(NodeId::from_index)
    }
}

/// The byte of an inode, and its bit in it.
fn place(id: NodeId) -> (u64, u8) {
    let number = u64::from(id.number());
    (number / 8, 1 << (number % 8))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::spill::tests::small_store;

    #[test]
    fn it_is_a_set_in_order() {
        let (store, _directory) = small_store();
        let (mut set, mut truth) = (NodeSet::new(&store), BTreeSet::new());
        let mut number = 1_u32;
        for _ in 0..20_000 {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let id = NodeId::from_index(number >> 12);
            assert_eq!(set.contains(id), truth.contains(&id.number()));
            assert_eq!(set.insert(id), truth.insert(id.number()));
            assert!(set.contains(id));
        }
        assert!(set.iter().map(NodeId::number).eq(truth));
        assert!(!set.contains(NodeId::from_index(u32::MAX)));
        set.clear();
        assert!(set.is_empty() && set.iter().next().is_none());
        assert!(!set.contains(NodeId::from_index(number >> 12)));
        assert!(set.insert(NodeId::from_index(3)) && set.iter().count() == 1);
    }
}
