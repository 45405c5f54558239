//! What an inode has besides its content.

use std::collections::BTreeMap;

pub use ferrofs_ondisk::Timestamp;

/// Owner, permissions, time and xattrs of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Permission bits with set-uid, set-gid and sticky: 0o7777 at most.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time.
    pub mtime: Timestamp,
    /// Extended attributes by their full name, as in `security.capability`.
    pub xattrs: BTreeMap<Box<[u8]>, Box<[u8]>>,
}
