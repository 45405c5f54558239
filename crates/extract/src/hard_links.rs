//! Which inodes with several names were extracted already, and under which name first.

use std::collections::HashMap;

use ferrofs_image::{Inode, Nid};

use crate::directory_stack::Identity;

/// The first name of an inode.
#[derive(Clone, Debug)]
pub(crate) struct First {
    pub(crate) path: Vec<u8>,
    pub(crate) identity: Identity,
    names_left: u32,
}

/// Inodes that may still turn up under another name.
#[derive(Debug, Default)]
pub(crate) struct HardLinks {
    firsts: HashMap<Nid, First>,
}

impl HardLinks {
    /// The name under which `inode` was extracted before.
    pub(crate) fn first(&self, inode: &Inode) -> Option<&First> {
        if inode.nlink() > 1 { self.firsts.get(&inode.nid()) } else { None }
    }

    /// Remembers `path` as the first name; an earlier one is forgotten.
    pub(crate) fn remember(&mut self, inode: &Inode, path: &[u8], identity: Identity) {
        if inode.nlink() > 1 {
            let first = First { path: path.to_vec(), identity, names_left: inode.nlink() - 1 };
            self.firsts.insert(inode.nid(), first);
        }
    }

    /// Counts one more name, and forgets an inode that has no further ones.
    pub(crate) fn count(&mut self, inode: &Inode) {
        if let Some(first) = self.firsts.get_mut(&inode.nid()) {
            first.names_left = first.names_left.saturating_sub(1);
            if first.names_left == 0 {
                self.firsts.remove(&inode.nid());
            }
        }
    }
}
