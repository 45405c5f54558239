//! An inode with its number and its address.

use ferrofs_ondisk as ondisk;
use ferrofs_ondisk::{DataLayout, FileType, Nid, Payload, Timestamp};

use crate::error::{Error, ErrorKind, Result};
use crate::extent::AddressSpace;

/// An inode of an image: what it is, and how its data is stored.
///
/// A value without a reference to the image. It must only be used with the image that it came from.
#[derive(Clone, Debug)]
pub struct Inode {
    nid: Nid,
    offset: u64,
    pub(crate) disk: ondisk::DiskInode,
}

impl Inode {
    pub(crate) fn new(nid: Nid, offset: u64, disk: ondisk::DiskInode) -> Self {
        Self { nid, offset, disk }
    }

    /// Its inode number.
    #[must_use]
    pub fn nid(&self) -> Nid {
        self.nid
    }

    /// Its type.
    #[must_use]
    pub fn file_type(&self) -> FileType {
        self.disk.file_type
    }

    /// Type and permission bits, as in `st_mode`.
    #[must_use]
    pub fn mode(&self) -> u16 {
        self.disk.mode
    }

    /// The length of its data in bytes; for a symlink, of its target.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.disk.size
    }

    /// The user that owns it.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.disk.uid
    }

    /// The group that owns it.
    #[must_use]
    pub fn gid(&self) -> u32 {
        self.disk.gid
    }

    /// Its link count: how many names it should have.
    #[must_use]
    pub fn nlink(&self) -> u32 {
        self.disk.nlink
    }

    /// The modification time; EROFS stores no other time.
    #[must_use]
    pub fn mtime(&self) -> Timestamp {
        self.disk.mtime
    }

    /// Major and minor number of a device node; `None` for other inodes.
    #[must_use]
    pub fn device(&self) -> Option<(u32, u32)> {
        match self.disk.payload {
            Payload::Device { major, minor } => Some((major, minor)),
            _ => None,
        }
    }

    /// Blocks that a compressed file takes in the image; `None` for other inodes.
    #[must_use]
    pub fn compressed_blocks(&self) -> Option<u64> {
        match self.disk.payload {
            Payload::CompressedBlocks(blocks) => Some(blocks),
            _ => None,
        }
    }

    /// How its data is stored.
    #[must_use]
    pub fn layout(&self) -> DataLayout {
        self.disk.layout
    }

    /// The 32-bit number for old `stat` calls; nothing depends on it.
    #[must_use]
    pub fn ino(&self) -> u32 {
        self.disk.ino
    }

    /// The byte where it starts: of the image, or of the metabox file if its nid lies there.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// How many bytes the inode itself takes: 32 or 64.
    #[must_use]
    pub fn bytes(&self) -> u8 {
        self.disk.bytes
    }

    /// How many bytes the xattr body behind it takes; 0 if there is none.
    #[must_use]
    pub fn xattr_bytes(&self) -> u32 {
        self.disk.xattr_bytes
    }

    /// Whether it has an xattr body.
    #[must_use]
    pub fn has_xattrs(&self) -> bool {
        self.disk.xattr_bytes != 0
    }

    /// The space that holds it, with its xattrs and its inline data or index.
    pub(crate) fn space(&self) -> AddressSpace {
        AddressSpace::of(self.nid)
    }

    /// Where its xattr body starts.
    pub(crate) fn xattr_start(&self) -> u64 {
        self.offset.saturating_add(u64::from(self.disk.bytes))
    }

    /// Where its xattrs end: inline data, chunks or an index follow.
    pub(crate) fn end(&self) -> u64 {
        self.xattr_start().saturating_add(u64::from(self.disk.xattr_bytes))
    }

    /// Fails unless it is a `wanted`.
    pub(crate) fn require(&self, wanted: FileType) -> Result<()> {
        let found = self.file_type();
        if found == wanted {
            return Ok(());
        }
        Err(Error::new(ErrorKind::WrongType { wanted, found }).in_inode(self.nid).at(self.offset))
    }
}
