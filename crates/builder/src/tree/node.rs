//! One inode of the tree: what it is, and what it holds.

use std::collections::BTreeMap;

use ferrofs_ondisk::FileType;

use super::{Content, Metadata};

/// Which inode of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u32);

impl NodeId {
    pub(super) const ROOT: Self = Self(0);

    pub(super) fn from_index(index: u32) -> Self {
        Self(index)
    }

    /// The number of the inode in its tree, from 0.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// An inode.
#[derive(Debug)]
pub struct Node {
    /// Owner, permissions, time and xattrs.
    pub metadata: Metadata,
    /// What it is.
    pub kind: NodeKind,
}

/// What an inode is.
#[derive(Debug)]
pub enum NodeKind {
    /// A directory: its entries in byte order, without `.` and `..`.
    Directory(BTreeMap<Box<[u8]>, NodeId>),
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
            Self::Directory(_) => FileType::Directory,
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
    /// An empty directory.
    #[must_use]
    pub fn directory(metadata: Metadata) -> Self {
        Self { metadata, kind: NodeKind::Directory(BTreeMap::new()) }
    }

    /// The entries, if this is a directory.
    #[must_use]
    pub fn entries(&self) -> Option<&BTreeMap<Box<[u8]>, NodeId>> {
        match &self.kind {
            NodeKind::Directory(entries) => Some(entries),
            _ => None,
        }
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
