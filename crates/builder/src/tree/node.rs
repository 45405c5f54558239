//! Inodes as values: what an importer adds to a tree, and what a tree returns.

use std::collections::BTreeMap;

use ferrofs_ondisk::{FileType, Timestamp};

use super::content::Content;

/// Extended attributes by their full name, as in `security.capability`.
pub type Xattrs = BTreeMap<Box<[u8]>, Box<[u8]>>;

/// Which inode of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u32);

impl NodeId {
    pub(crate) const ROOT: Self = Self(0);

    pub(crate) fn from_index(index: u32) -> Self {
        Self(index)
    }

    /// The number of the inode in its tree, from 0.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The same in 32 bits.
    pub(crate) fn number(self) -> u32 {
        self.0
    }
}

/// An inode.
#[derive(Clone, Debug)]
pub struct Node {
    /// Owner, permissions, time and xattrs.
    pub metadata: Metadata,
    /// What it is.
    pub kind: NodeKind,
}

/// What an inode is.
#[derive(Clone, Debug)]
pub enum NodeKind {
    /// A directory. The tree has its entries.
    Directory,
    /// A regular file.
    File(Content),
    /// A symlink and its target.
    Symlink(Box<[u8]>),
    /// A character device.
    CharacterDevice {
        /// Major number, 12 bits.
        major: u32,
        /// Minor number, 20 bits.
        minor: u32,
    },
    /// A block device.
    BlockDevice {
        /// Major number, 12 bits.
        major: u32,
        /// Minor number, 20 bits.
        minor: u32,
    },
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
}

impl NodeKind {
    /// What it is called in an image.
    #[must_use]
    pub fn file_type(&self) -> FileType {
        match self {
            Self::Directory => FileType::Directory,
            Self::File(_) => FileType::Regular,
            Self::Symlink(_) => FileType::Symlink,
            Self::CharacterDevice { .. } => FileType::CharDevice,
            Self::BlockDevice { .. } => FileType::BlockDevice,
            Self::Fifo => FileType::Fifo,
            Self::Socket => FileType::Socket,
        }
    }
}

impl Node {
    /// A directory.
    #[must_use]
    pub fn directory(metadata: Metadata) -> Self {
        Self { metadata, kind: NodeKind::Directory }
    }

    /// Whether this is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        matches!(self.kind, NodeKind::Directory)
    }

    /// The content, if this is a regular file.
    #[must_use]
    pub fn content(&self) -> Option<&Content> {
        match &self.kind {
            NodeKind::File(content) => Some(content),
            _ => None,
        }
    }
}

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
    pub xattrs: Xattrs,
}
