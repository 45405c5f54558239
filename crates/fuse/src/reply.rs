//! The answer to one request. It is given at most once, and a request that is dropped without one is answered with
//! `EIO`, so that no reader waits for nothing. Made by `listener`, consumed by file systems.

use std::cell::Cell;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::attributes::{ATTRIBUTES_VALID_SECONDS, Entry, NodeAttributes};
use crate::channel::Channel;
use crate::request_slot::RequestSlot;
use crate::wire::{AttrOut, GetxattrOut, IoctlOut, LseekOut, StatfsOut};

/// The right to answer a request.
#[derive(Debug)]
pub struct Reply<'a> {
    channel: &'a Channel,
    slot: &'a RequestSlot,
    unique: u64,
    received_at: Instant,
    is_sent: bool,
    outcome: Option<&'a ReplyOutcome>,
}

/// What became of a reply, for whoever counts: filled in when the reply is given.
#[derive(Debug, Default)]
pub struct ReplyOutcome(Cell<Option<SentReply>>);

/// A reply that was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentReply {
    /// The error, if it was one. `CANCELED` says that the session gave the request up before the file system was done.
    pub errno: Option<Errno>,
    /// Bytes that it carried, its headers left out.
    pub bytes: usize,
    /// From when the request was received until the kernel had the reply.
    pub elapsed: Duration,
}

impl ReplyOutcome {
    /// That of a reply which was given.
    #[must_use]
    pub fn of(given: SentReply) -> Self {
        Self(Cell::new(Some(given)))
    }

    /// What was replied; `None` before that.
    #[must_use]
    pub fn sent(&self) -> Option<SentReply> {
        self.0.get()
    }
}

/// Numbers of a file system, as `statfs` shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statfs {
    /// Blocks of `block_bytes` in all; none of them are free.
    pub blocks: u64,
    /// Inodes that there are and that there could be.
    pub files: u64,
    /// Inodes that there could be.
    pub free_files: u64,
    /// What blocks are counted in.
    pub block_bytes: u32,
}

impl<'a> Reply<'a> {
    pub(crate) fn new(
        channel: &'a Channel,
        slot: &'a RequestSlot,
        (unique, received_at): (u64, Instant),
    ) -> Self {
        Self { channel, slot, unique, received_at, is_sent: false, outcome: None }
    }

    /// The same reply, which tells `outcome` when it is given.
    #[must_use]
    pub fn record_into(mut self, outcome: &'a ReplyOutcome) -> Self {
        self.outcome = Some(outcome);
        self
    }

    /// Fails.
    pub fn error(mut self, errno: Errno) {
        self.send_once(Some(errno), &[]);
    }

    /// A name's node, or that there is none.
    pub fn entry(mut self, entry: &Entry) {
        self.send_once(None, &[entry.on_wire().as_bytes()]);
    }

    /// A node's attributes.
    pub fn attributes(mut self, attributes: &NodeAttributes) {
        let valid = AttrOut {
            attr_valid: ATTRIBUTES_VALID_SECONDS,
            attr: attributes.on_wire(),
            ..AttrOut::default()
        };
        self.send_once(None, &[valid.as_bytes()]);
    }

    /// Bytes of a file, a target, a value, names, a listing: at most as many as were asked for.
    pub fn bytes(mut self, bytes: &[u8]) {
        self.send_once(None, &[bytes]);
    }

    /// How many bytes a value or the names have.
    pub fn length(mut self, bytes: u32) {
        self.send_once(None, &[GetxattrOut { size: bytes, padding: 0 }.as_bytes()]);
    }

    /// Where the next data, or the next hole, begins.
    pub fn offset(mut self, offset: u64) {
        self.send_once(None, &[LseekOut { offset }.as_bytes()]);
    }

    /// Numbers of the file system.
    pub fn statfs(mut self, numbers: &Statfs) {
        let out = StatfsOut {
            blocks: numbers.blocks,
            files: numbers.files,
            ffree: numbers.free_files,
            bsize: numbers.block_bytes,
            frsize: numbers.block_bytes,
            namelen: 255,
            ..StatfsOut::default()
        };
        self.send_once(None, &[out.as_bytes()]);
    }

    /// The answer to a command: what `ioctl` returns, and its bytes.
    pub fn ioctl(mut self, result: i32, bytes: &[u8]) {
        let out = IoctlOut { result, ..IoctlOut::default() };
        self.send_once(None, &[out.as_bytes(), bytes]);
    }

    fn send_once(&mut self, errno: Option<Errno>, parts: &[&[u8]]) {
        self.is_sent = true;
        let errno = if self.slot.claim(self.unique) {
            self.send(errno, parts);
            errno
        } else {
            Some(Errno::CANCELED)
        };
        if let Some(outcome) = self.outcome {
            let bytes = if errno.is_some() { 0 } else { parts.iter().map(|part| part.len()).sum() };
            outcome.0.set(Some(SentReply { errno, bytes, elapsed: self.received_at.elapsed() }));
        }
    }

    fn send(&self, errno: Option<Errno>, parts: &[&[u8]]) {
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
        if !self.is_sent {
            self.send_once(Some(Errno::IO), &[]);
        }
    }
}
