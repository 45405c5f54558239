//! The answer to one request. It is given at most once, and a request that is dropped without one is answered with
//! `EIO`, so that no reader waits for nothing. Made by `listener`, consumed by file systems.

use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::attributes::{ATTRIBUTES_VALID_SECONDS, Attributes, Entry};
use crate::channel::Channel;
use crate::slot::Slot;
use crate::wire::{AttrOut, GetxattrOut, IoctlOut, LseekOut, StatfsOut};

/// The right to answer a request.
#[derive(Debug)]
pub struct Reply<'a> {
    channel: &'a Channel,
    slot: &'a Slot,
    unique: u64,
    is_given: bool,
}

/// Numbers of a file system, as `statfs` shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statfs {
    /// Blocks of `block_bytes` in all; none of them are free.
    pub blocks: u64,
    /// Inodes in all; none of them are free.
    pub files: u64,
    /// What blocks are counted in.
    pub block_bytes: u32,
}

impl<'a> Reply<'a> {
    pub(crate) fn new(channel: &'a Channel, slot: &'a Slot, unique: u64) -> Self {
        Self { channel, slot, unique, is_given: false }
    }

    /// Fails.
    pub fn error(mut self, errno: Errno) {
        self.give(Some(errno), &[]);
    }

    /// A name's node, or that there is none.
    pub fn entry(mut self, entry: &Entry) {
        self.give(None, &[entry.on_wire().as_bytes()]);
    }

    /// A node's attributes.
    pub fn attributes(mut self, attributes: &Attributes) {
        let valid = AttrOut {
            attr_valid: ATTRIBUTES_VALID_SECONDS,
            attr: attributes.on_wire(),
            ..AttrOut::default()
        };
        self.give(None, &[valid.as_bytes()]);
    }

    /// Bytes of a file, a target, a value, names, a listing: at most as many as were asked for.
    pub fn bytes(mut self, bytes: &[u8]) {
        self.give(None, &[bytes]);
    }

    /// How many bytes a value or the names have.
    pub fn length(mut self, bytes: u32) {
        self.give(None, &[GetxattrOut { size: bytes, padding: 0 }.as_bytes()]);
    }

    /// Where the next data, or the next hole, begins.
    pub fn offset(mut self, offset: u64) {
        self.give(None, &[LseekOut { offset }.as_bytes()]);
    }

    /// Numbers of the file system.
    pub fn statfs(mut self, numbers: &Statfs) {
        let out = StatfsOut {
            blocks: numbers.blocks,
            files: numbers.files,
            bsize: numbers.block_bytes,
            frsize: numbers.block_bytes,
            namelen: 255,
            ..StatfsOut::default()
        };
        self.give(None, &[out.as_bytes()]);
    }

    /// The answer to a command: what `ioctl` returns, and its bytes.
    pub fn ioctl(mut self, result: i32, bytes: &[u8]) {
        let out = IoctlOut { result, ..IoctlOut::default() };
        self.give(None, &[out.as_bytes(), bytes]);
    }

    fn give(&mut self, errno: Option<Errno>, parts: &[&[u8]]) {
        self.is_given = true;
        if !self.slot.claim(self.unique) {
            return;
        }
        match self.channel.reply(self.unique, errno, parts) {
            Ok(()) | Err(Errno::NOENT | Errno::NODEV) => {}
            // The kernel refuses what it did not ask for; whoever waits must not wait on.
            Err(_) => {
                self.channel.reply(self.unique, Some(Errno::IO), &[]).ok();
            }
        }
    }
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        if !self.is_given {
            self.give(Some(Errno::IO), &[]);
        }
    }
}
