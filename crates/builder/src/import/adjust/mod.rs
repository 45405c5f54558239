//! What is changed about a tree after it was imported and before it is built: owners, times, xattrs and
//! the marks of overlay file systems. The same for every importer.
//!
//! [`ExcludePatterns`] and the names that aufs gives a meaning ([`AufsName`]) are asked while a tree is
//! imported; everything else is done to the whole tree by [`Adjustments::apply`].

mod exclude_patterns;
mod mtime;
mod overlay;
mod owners;
pub(crate) mod posix_regex;
#[cfg(test)]
mod tests;
mod xattr_filter;

pub use exclude_patterns::ExcludePatterns;
pub use mtime::{CompactTime, MtimePolicy};
pub use overlay::{
    AufsName, OPAQUE_XATTR, ORIGIN_XATTR, OverlayPolicy, is_whiteout, mark_opaque, mark_origin,
    whiteout,
};
pub use owners::OwnerOverrides;
pub use xattr_filter::XattrFilter;

use std::os::unix::ffi::OsStrExt;

use crate::Result;
use crate::tree::{NodeId, Tree};

/// What to change about a tree. The default changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adjustments {
    /// Owners and groups.
    pub owners: OwnerOverrides,
    /// Modification times.
    pub mtime: MtimePolicy,
    /// Times of the inodes that compact inodes could hold if it were not for their times.
    pub compact_time: Option<CompactTime>,
    /// Which xattrs stay.
    pub xattrs: XattrFilter,
    /// What becomes of whiteouts and opaque directories.
    pub overlay: OverlayPolicy,
}

impl Adjustments {
    /// Changes `tree` accordingly. To be called once, when nothing will be added any more: offsets would
    /// be added again.
    ///
    /// # Errors
    /// An owner plus its offset exceeds 32 bits; the error names the path in the tree.
    pub fn apply(&self, tree: &mut Tree) -> Result<()> {
        let refused = tree.nodes_mut().find_map(|(id, node)| {
            self.owners.apply(&mut node.metadata).err().map(|error| (id, error))
        });
        if let Some((id, error)) = refused {
            return Err(error.at(first_path(tree, id)));
        }
        for (_, node) in tree.nodes_mut() {
            self.mtime.apply(&mut node.metadata);
            self.xattrs.apply(&mut node.metadata.xattrs);
        }
        if let Some(compact_time) = self.compact_time {
            compact_time.apply(tree);
        }
        self.overlay.apply(tree);
        Ok(())
    }
}

/// The first path of an inode, for messages.
fn first_path(tree: &Tree, wanted: NodeId) -> std::path::PathBuf {
    let mut found = std::path::PathBuf::new();
    let stopped = tree.walk(|path, id| {
        if id != wanted {
            return Ok(());
        }
        let name = if path.is_empty() { b"/" } else { path };
        found.push(std::ffi::OsStr::from_bytes(name));
        Err(())
    });
    // An inode that has no name any more keeps an empty path.
    debug_assert!(stopped.is_err() || found.as_os_str().is_empty());
    found
}
