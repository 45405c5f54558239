//! What a reply says about a node, in our words; `wire` has the kernel's. Made by file systems, written by `reply`
//! and `listing`.

use crate::wire::{Attr, EntryOut};

/// Replies about what never changes are good for as long as the kernel likes.
const FOREVER_SECONDS: u64 = 1 << 40;

/// What `stat` shows of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeAttributes {
    /// The inode number that users see.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// Blocks of 512 bytes that are allocated.
    pub blocks: u64,
    /// Type and permissions, as in `st_mode`.
    pub mode: u32,
    /// How many names there are.
    pub links: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The device, in the kernel's encoding of 32 bits.
    pub rdev: u32,
    /// What one read should be at least.
    pub block_bytes: u32,
    /// Seconds since 1970 of all three times.
    pub seconds: i64,
    /// Nanoseconds of all three times.
    pub nanoseconds: u32,
}

impl NodeAttributes {
    pub(crate) fn on_wire(&self) -> Attr {
        // Read back by the kernel as signed.
        let seconds = self.seconds.cast_unsigned();
        Attr {
            ino: self.ino,
            size: self.size,
            blocks: self.blocks,
            atime: seconds,
            mtime: seconds,
            ctime: seconds,
            atimensec: self.nanoseconds,
            mtimensec: self.nanoseconds,
            ctimensec: self.nanoseconds,
            mode: self.mode,
            nlink: self.links,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            blksize: self.block_bytes,
            flags: 0,
        }
    }
}

/// A name's node, or that there is none; both for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The node; 0 for a name that does not exist.
    pub node: u64,
    /// Its attributes; of no meaning without a node.
    pub attributes: NodeAttributes,
}

impl Entry {
    pub(crate) fn on_wire(&self) -> EntryOut {
        EntryOut {
            node: self.node,
            entry_valid: FOREVER_SECONDS,
            attr_valid: FOREVER_SECONDS,
            attr: self.attributes.on_wire(),
            ..EntryOut::default()
        }
    }
}

/// Seconds that attributes stay valid.
pub(crate) const ATTRIBUTES_VALID_SECONDS: u64 = FOREVER_SECONDS;
