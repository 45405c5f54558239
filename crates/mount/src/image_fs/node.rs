//! Node numbers of FUSE and inode numbers of the image. Both have 64 bits, and each can be computed from the other, so no
//! table of inodes is needed, and FORGET needs no work.

use ferrofs_image::Nid;

/// The node number of the root.
const ROOT: u64 = 1;
/// The node number of nid 0, since node 0 means "none". No inode can be at the end of the address space.
const NID_ZERO: u64 = u64::MAX;

/// The mapping between both: the nid of the root and 1 are exchanged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeMap {
    root: u64,
    has_metabox: bool,
}

impl NodeMap {
    pub(crate) fn new(root: Nid, has_metabox: bool) -> Self {
        Self { root: root.raw(), has_metabox }
    }

    /// The node number of an inode; never 0.
    pub(crate) fn node(&self, nid: Nid) -> u64 {
        match self.swap_root(nid.raw()) {
            0 => NID_ZERO,
            node => node,
        }
    }

    /// The inode of a node.
    pub(crate) fn nid(&self, node: u64) -> Nid {
        Nid::new(self.swap_root(if node == NID_ZERO { 0 } else { node }))
    }

    /// The inode number for `stat`, computed as Linux does: bit 63 of a nid, which means that the inode is in the metabox,
    /// becomes bit 31, and the bits from 31 on move up by one.
    pub(crate) fn ino(&self, nid: Nid) -> u64 {
        const LOW: u64 = (1 << 31) - 1;
        const HIGH: u64 = !0 << 32;
        let raw = nid.raw();
        if self.has_metabox { (raw << 1) & HIGH | raw & LOW | (raw >> 63) << 31 } else { raw }
    }

    fn swap_root(&self, number: u64) -> u64 {
        match number {
            _ if number == self.root => ROOT,
            ROOT => self.root,
            _ => number,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_inode_has_a_node_of_its_own() {
        for root in [0, 1, 2, 36, 1 << 63] {
            let nodes = NodeMap::new(Nid::new(root), false);
            assert_eq!(nodes.node(Nid::new(root)), 1);
            for raw in [0, 1, 2, 3, 36, 37, 1 << 40, 1 << 63, (1 << 63) + 1] {
                let node = nodes.node(Nid::new(raw));
                assert_ne!(node, 0);
                assert_eq!(nodes.nid(node), Nid::new(raw));
            }
        }
    }

    #[test]
    fn inode_numbers_are_those_of_linux() {
        let plain = NodeMap::new(Nid::new(36), false);
        assert_eq!(plain.ino(Nid::new(1 << 33 | 7)), 1 << 33 | 7);
        let metabox = NodeMap::new(Nid::new(36), true);
        assert_eq!(metabox.ino(Nid::new(7)), 7);
        assert_eq!(metabox.ino(Nid::new(1 << 63 | 7)), 1 << 31 | 7);
        assert_eq!(metabox.ino(Nid::new(1 << 31 | 7)), 1 << 32 | 7);
    }
}
