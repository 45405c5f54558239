//! Replies, and the [`Channel`] by which requests are read and replies sent. A request gets at most one [`Reply`], and one that
//! is dropped unused sends `EIO`, so that no caller waits forever. It carries attributes, entries or directory entries, and goes
//! through the [`Channel`] that the request came from: a descriptor of `/dev/fuse` that belongs to a mount. The structures are
//! those of `include/uapi/linux/fuse.h` (version 7.45). Replies are made by `session::listener` and used by file systems; all
//! of the session uses channels.

use std::cell::Cell;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Setter, opcode};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::request_slot::RequestSlot;

/// How long the kernel may cache attributes and entries, in seconds. They never change, so: forever.
const VALID_SECONDS: u64 = 1 << 40;
/// The longest name, in bytes.
const NAME_MAX_BYTES: u32 = 255;

/// The right to reply to one request.
#[derive(Debug)]
pub struct Reply<'a> {
    channel: &'a Channel,
    slot: &'a RequestSlot,
    unique: u64,
    received_at: Instant,
    is_sent: bool,
    outcome: Option<&'a ReplyOutcome>,
}

/// A cell that records the reply when it is sent.
#[derive(Debug, Default)]
pub struct ReplyOutcome(Cell<Option<SentReply>>);

/// A reply that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentReply {
    /// The error, if it was one. `CANCELED` means that the session had already replied, after a timeout or an
    /// interrupt.
    pub errno: Option<Errno>,
    /// Bytes of the reply without its headers.
    pub bytes: usize,
    /// The time from reading the request to sending the reply.
    pub elapsed: Duration,
}

impl ReplyOutcome {
    /// The outcome of a reply that was sent.
    #[must_use]
    pub fn of(sent: SentReply) -> Self {
        Self(Cell::new(Some(sent)))
    }

    /// The reply; `None` before it was sent.
    #[must_use]
    pub fn sent(&self) -> Option<SentReply> {
        self.0.get()
    }
}

impl<'a> Reply<'a> {
    pub(crate) fn new(
        channel: &'a Channel,
        slot: &'a RequestSlot,
        unique: u64,
        received_at: Instant,
    ) -> Self {
        Self { channel, slot, unique, received_at, is_sent: false, outcome: None }
    }

    /// The same reply; it fills in `outcome` when it is sent.
    #[must_use]
    pub fn record_into(mut self, outcome: &'a ReplyOutcome) -> Self {
        self.outcome = Some(outcome);
        self
    }

    /// Whether the session has replied already, after a timeout or an interrupt: nobody waits for this reply, so a long
    /// search may end.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.slot.is_answered(self.unique)
    }

    /// Replies with an error.
    pub fn error(mut self, errno: Errno) {
        self.send_once(Some(errno), &[]);
    }

    /// Replies to LOOKUP: the node of the name, or that there is none.
    pub fn entry(mut self, entry: &NodeEntry) {
        self.send_once(None, &[entry.as_wire().as_bytes()]);
    }

    /// Replies to GETATTR.
    pub fn attributes(mut self, attributes: &NodeAttributes) {
        let valid =
            AttrOut { attr_valid: VALID_SECONDS, attr: attributes.as_wire(), ..AttrOut::default() };
        self.send_once(None, &[valid.as_bytes()]);
    }

    /// Replies with bytes: of a file, a symlink target, an attribute, names or directory entries. At most as many as
    /// were requested.
    pub fn bytes(mut self, bytes: &[u8]) {
        self.send_once(None, &[bytes]);
    }

    /// Replies to GETXATTR and LISTXATTR of size 0: how many bytes the value or the names have.
    pub fn length(mut self, bytes: u32) {
        self.send_once(None, &[GetxattrOut { size: bytes, padding: 0 }.as_bytes()]);
    }

    /// Replies to OPEN and OPENDIR, without a handle. An error of `NOSYS` instead saves further requests where
    /// [`Capabilities::NO_OPEN_SUPPORT`](crate::Capabilities::NO_OPEN_SUPPORT), or the same for directories, is granted.
    pub fn opened(mut self) {
        let out = OpenOut { handle: 0, open_flags: 0, padding: 0 };
        self.send_once(None, &[out.as_bytes()]);
    }

    /// Replies to LSEEK: the offset of the next data or hole.
    pub fn offset(mut self, offset: u64) {
        self.send_once(None, &[LseekOut { offset }.as_bytes()]);
    }

    /// Replies to STATFS.
    pub fn statfs(mut self, statfs: &Statfs) {
        let out = StatfsOut {
            blocks: statfs.blocks,
            files: statfs.files,
            ffree: statfs.free_files,
            bsize: statfs.block_bytes,
            frsize: statfs.block_bytes,
            namelen: NAME_MAX_BYTES,
            ..StatfsOut::default()
        };
        self.send_once(None, &[out.as_bytes()]);
    }

    /// Replies to IOCTL: the result of the call, and its output.
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
            // The kernel rejects a reply of the wrong size. The caller must not wait on.
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

/// The reply to STATFS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statfs {
    /// The size in blocks of `block_bytes`; none is free.
    pub blocks: u64,
    /// The largest number of inodes.
    pub files: u64,
    /// How many of them are unused.
    pub free_files: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
}

/// The attributes of a node, as `stat` shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeAttributes {
    /// The inode number.
    pub ino: u64,
    /// The size in bytes.
    pub size: u64,
    /// Allocated blocks of 512 bytes.
    pub blocks: u64,
    /// Type and permissions, as in `st_mode`.
    pub mode: u32,
    /// The number of hard links.
    pub links: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The device of a device node, in the kernel's 32-bit encoding.
    pub rdev: u32,
    /// The preferred size of a read, in bytes.
    pub block_bytes: u32,
    /// Access, modification and change time, in seconds since 1970.
    pub seconds: i64,
    /// The nanoseconds of these times.
    pub nanoseconds: u32,
}

impl NodeAttributes {
    fn as_wire(&self) -> Attr {
        // The kernel reads it as signed.
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

/// The reply to LOOKUP. Names never change, so the kernel may cache it, also that a name does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeEntry {
    /// The node; 0 for a name that does not exist.
    pub node: u64,
    /// The attributes of the node, if there is one.
    pub attributes: NodeAttributes,
}

impl NodeEntry {
    fn as_wire(&self) -> EntryOut {
        EntryOut {
            node: self.node,
            entry_valid: VALID_SECONDS,
            attr_valid: VALID_SECONDS,
            attr: self.attributes.as_wire(),
            ..EntryOut::default()
        }
    }
}

/// Directory entries in the form of READDIR and READDIRPLUS, in a buffer of a fixed size.
#[derive(Debug)]
pub struct DirentBuffer<'a> {
    bytes: &'a mut Vec<u8>,
    capacity: usize,
    is_plus: bool,
}

/// One name of a directory.
#[derive(Clone, Copy, Debug)]
pub struct DirentName<'a> {
    /// The inode number.
    pub ino: u64,
    /// The `offset` of a later request that continues after this name.
    pub next: u64,
    /// The file type, as in `d_type`; 0 if unknown.
    pub file_type: u8,
    /// The name, 1 to 255 bytes.
    pub name: &'a [u8],
}

impl<'a> DirentBuffer<'a> {
    /// An empty list for READDIR, or for READDIRPLUS. It clears `bytes` and writes at most `capacity` bytes into it.
    pub fn new(bytes: &'a mut Vec<u8>, capacity: usize, is_plus: bool) -> Self {
        bytes.clear();
        Self { bytes, capacity, is_plus }
    }

    /// Whether entries carry attributes (READDIRPLUS).
    #[must_use]
    pub fn is_plus(&self) -> bool {
        self.is_plus
    }

    /// Whether a name of `name_bytes` bytes still fits.
    #[must_use]
    pub fn fits(&self, name_bytes: usize) -> bool {
        self.bytes.len().saturating_add(self.entry_bytes(name_bytes)) <= self.capacity
    }

    /// Adds a name. Returns `false`, and adds nothing, if it does not fit. `entry` matters to READDIRPLUS only;
    /// without one the kernel looks the name up when it is needed.
    pub fn push(&mut self, listed: &DirentName<'_>, entry: Option<&NodeEntry>) -> bool {
        if !self.fits(listed.name.len()) {
            return false;
        }
        let end = self.bytes.len().saturating_add(self.entry_bytes(listed.name.len()));
        if self.is_plus {
            let entry = entry.map_or_else(EntryOut::default, NodeEntry::as_wire);
            self.bytes.extend_from_slice(entry.as_bytes());
        }
        let dirent = FuseDirent {
            ino: listed.ino,
            offset: listed.next,
            name_bytes: u32::try_from(listed.name.len()).unwrap_or(0),
            file_type: u32::from(listed.file_type),
        };
        self.bytes.extend_from_slice(dirent.as_bytes());
        self.bytes.extend_from_slice(listed.name);
        self.bytes.resize(end, 0);
        true
    }

    /// The bytes of the reply. None means the end of the directory.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes
    }

    fn entry_bytes(&self, name_bytes: usize) -> usize {
        let attributes = if self.is_plus { size_of::<EntryOut>() } else { 0 };
        attributes + size_of::<FuseDirent>() + name_bytes.next_multiple_of(8)
    }
}

/// `FUSE_DEV_IOC_CLONE`: attaches a new descriptor of the device to the mount of another one.
const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);
const DEVICE: &str = "/dev/fuse";

/// How often a reply is sent that the kernel does not take: for a second in all, after which a kernel without memory has
/// other worries.
const REPLY_ATTEMPTS: u32 = 500;
/// How long a thread sleeps after the kernel had no memory.
const RETRY_PAUSE: Duration = Duration::from_millis(2);

/// The largest number of parts of a message, without its header.
const MAX_PARTS: usize = 3;

/// What a read of the device found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// A message of so many bytes.
    Message(usize),
    /// No message: the next read may get one.
    Nothing,
    /// The file system is unmounted; no message follows.
    Unmounted,
}

impl Received {
    /// `NOENT` is a request that was interrupted while it was read. `NOMEM` is a request that the kernel could not copy: its
    /// caller got `EIO` (`fuse_dev_do_read` in fs/fuse/dev.c of Linux), and the device can still be read.
    fn of(read: Result<usize, Errno>) -> Result<Self, Errno> {
        match read {
            Ok(0) | Err(Errno::NODEV) => Ok(Self::Unmounted),
            Ok(bytes) => Ok(Self::Message(bytes)),
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT | Errno::NOMEM) => Ok(Self::Nothing),
            Err(errno) => Err(errno),
        }
    }
}

/// A descriptor of `/dev/fuse`.
#[derive(Debug)]
pub(crate) struct Channel {
    device: OwnedFd,
}

impl Channel {
    pub(crate) fn new(device: OwnedFd) -> Self {
        Self { device }
    }

    /// Another channel of the same mount. It has its own queue of requests in flight, so its listener takes no lock
    /// that other listeners take.
    ///
    /// # Errors
    /// The device cannot be opened, or the kernel is older than 4.2.
    #[allow(unsafe_code, reason = "rustix has no safe binding of FUSE_DEV_IOC_CLONE")]
    pub(crate) fn clone_channel(&self) -> Result<Self, Errno> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let device = rustix::fs::open(Path::new(DEVICE), flags, Mode::empty())?;
        let ours = std::os::fd::AsRawFd::as_raw_fd(&self.device).cast_unsigned();
        // SAFETY: FUSE_DEV_IOC_CLONE reads one u32 from the pointer that it gets (fuse_dev_ioctl_clone). `Setter`
        // passes a pointer to its u32, which lives until the call returns. The kernel keeps no pointer.
        unsafe { rustix::ioctl::ioctl(&device, Setter::<CLONE, u32>::new(ours))? };
        Ok(Self { device })
    }

    /// Waits for a message.
    ///
    /// # Errors
    /// The device cannot be read, now and later.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> Result<Received, Errno> {
        let read = rustix::io::read(&self.device, buffer);
        if read == Err(Errno::NOMEM) {
            std::thread::sleep(RETRY_PAUSE);
        }
        Received::of(read)
    }

    /// Whether `receive` does not wait: there is a message, or the file system is unmounted.
    pub(crate) fn is_ready(&self) -> bool {
        let mut polled = [PollFd::new(&self.device, PollFlags::IN)];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut polled, Some(&none)) == Ok(1)
    }

    /// Replies to a request with an errno, or with the concatenated `parts`. A kernel that is short of memory is asked
    /// again, since the caller of the request waits for a reply.
    ///
    /// # Errors
    /// `NOENT`: the request is not in flight any more. `NODEV`: the file system is unmounted. Others: the kernel does
    /// not accept this reply to this request.
    pub(crate) fn reply(
        &self,
        unique: u64,
        errno: Option<Errno>,
        parts: &[&[u8]],
    ) -> Result<(), Errno> {
        let error = errno.map_or(0, |errno| -errno.raw_os_error());
        let mut attempts = REPLY_ATTEMPTS;
        loop {
            match self.send(unique, error, parts) {
                Err(Errno::NOMEM | Errno::AGAIN) if attempts > 1 => {
                    attempts -= 1;
                    std::thread::sleep(RETRY_PAUSE);
                }
                result => return result,
            }
        }
    }

    /// Sends a notification: a message that replies to no request.
    ///
    /// # Errors
    /// The kernel's own.
    pub(crate) fn notify(&self, code: i32, parts: &[&[u8]]) -> Result<(), Errno> {
        self.send(0, code, parts)
    }

    fn send(&self, unique: u64, error: i32, parts: &[&[u8]]) -> Result<(), Errno> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let len = bytes.saturating_add(size_of::<OutHeader>());
        let len = u32::try_from(len).map_err(|_| Errno::INVAL)?;
        let header = OutHeader { len, error, unique };
        let mut slices = [IoSlice::new(&[]); MAX_PARTS + 1];
        let (first, rest) = slices.split_first_mut().ok_or(Errno::INVAL)?;
        *first = IoSlice::new(header.as_bytes());
        let rest = rest.get_mut(..parts.len()).ok_or(Errno::INVAL)?;
        for (slice, part) in rest.iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
        }
        let slices = slices.get(..=parts.len()).ok_or(Errno::INVAL)?;
        loop {
            match rustix::io::writev(&self.device, slices) {
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
                Ok(_) => return Ok(()),
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

/// Before each reply, and before each notification, where `unique` is 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
pub(crate) struct OutHeader {
    pub(crate) len: u32,
    /// A negative errno, or 0; in a notification, its number.
    pub(crate) error: i32,
    pub(crate) unique: u64,
}

/// Numbers of notifications.
pub(crate) mod notification {
    pub(crate) const STORE: i32 = 4;
    pub(crate) const RESEND: i32 = 7;
}

/// After the header of a `STORE` notification.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
pub(crate) struct StoreOut {
    pub(crate) node: u64,
    pub(crate) offset: u64,
    pub(crate) size: u32,
    pub(crate) padding: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
struct Attr {
    ino: u64,
    size: u64,
    blocks: u64,
    atime: u64,
    mtime: u64,
    ctime: u64,
    atimensec: u32,
    mtimensec: u32,
    ctimensec: u32,
    mode: u32,
    nlink: u32,
    uid: u32,
    gid: u32,
    rdev: u32,
    blksize: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
struct EntryOut {
    node: u64,
    generation: u64,
    entry_valid: u64,
    attr_valid: u64,
    entry_valid_nsec: u32,
    attr_valid_nsec: u32,
    attr: Attr,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
struct AttrOut {
    attr_valid: u64,
    attr_valid_nsec: u32,
    dummy: u32,
    attr: Attr,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
struct StatfsOut {
    blocks: u64,
    bfree: u64,
    bavail: u64,
    files: u64,
    ffree: u64,
    bsize: u32,
    namelen: u32,
    frsize: u32,
    padding: u32,
    spare: [u32; 6],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
struct GetxattrOut {
    size: u32,
    padding: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
struct OpenOut {
    handle: u64,
    open_flags: u32,
    padding: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
struct LseekOut {
    offset: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
struct IoctlOut {
    result: i32,
    flags: u32,
    in_iovs: u32,
    out_iovs: u32,
}

/// A directory entry; its name follows, padded to eight bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
struct FuseDirent {
    ino: u64,
    offset: u64,
    name_bytes: u32,
    file_type: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: DirentName<'static> =
        DirentName { ino: 7, next: 1, file_type: 8, name: b"nine-char" };

    /// The sizes that the kernel checks.
    #[test]
    fn structures_have_the_sizes_of_the_kernel() {
        let sizes = [
            (size_of::<OutHeader>(), 16),
            (size_of::<StoreOut>(), 24),
            (size_of::<Attr>(), 88),
            (size_of::<EntryOut>(), 128),
            (size_of::<AttrOut>(), 104),
            (size_of::<StatfsOut>(), 80),
            (size_of::<FuseDirent>(), 24),
        ];
        for (ours, theirs) in sizes {
            assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn names_are_padded_and_a_name_that_does_not_fit_is_left_out() {
        let mut bytes = vec![9; 3];
        let mut listing = DirentBuffer::new(&mut bytes, 100, false);
        assert!(listing.push(&NAME, None));
        assert_eq!(listing.as_bytes().len(), 24 + 16);
        assert!(listing.push(&NAME, None));
        assert!(!listing.push(&NAME, None));
        assert_eq!(listing.as_bytes().len(), 80);
        assert_eq!(listing.as_bytes().get(24..34), Some(&b"nine-char\0"[..]));
    }

    #[test]
    fn attributes_precede_a_name_and_may_be_absent() {
        let mut bytes = Vec::new();
        let mut listing = DirentBuffer::new(&mut bytes, 4096, true);
        assert!(listing.push(&NAME, None));
        let entry = NodeEntry { node: 5, ..NodeEntry::default() };
        assert!(listing.push(&NAME, Some(&entry)));
        assert_eq!(listing.as_bytes().len(), 2 * (128 + 40));
        assert_eq!(listing.as_bytes().get(..8), Some(&0u64.to_ne_bytes()[..]));
        assert_eq!(listing.as_bytes().get(168..176), Some(&5u64.to_ne_bytes()[..]));
    }
}

#[cfg(all(test, not(loom)))]
mod channel_tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn a_request_that_the_kernel_had_no_memory_for_does_not_end_the_mount() {
        for errno in [Errno::INTR, Errno::AGAIN, Errno::NOENT, Errno::NOMEM] {
            assert_eq!(Received::of(Err(errno)), Ok(Received::Nothing));
        }
        for end in [Ok(0), Err(Errno::NODEV)] {
            assert_eq!(Received::of(end), Ok(Received::Unmounted));
        }
        assert_eq!(Received::of(Ok(40)), Ok(Received::Message(40)));
        assert_eq!(Received::of(Err(Errno::BADF)), Err(Errno::BADF));
    }

    #[test]
    fn a_reply_that_the_kernel_cannot_take_now_is_sent_again() {
        let flags = SocketFlags::NONBLOCK;
        let (kernel, device) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("sockets");
        let channel = Channel::new(device);
        // Until the socket is full.
        let mut sent = 0;
        while channel.send(2, 0, &[&[0; 4096]]).is_ok() {
            sent += 1;
        }
        assert_eq!(channel.send(4, 0, &[]), Err(Errno::AGAIN));
        let mut message = vec![0; 8192];
        std::thread::scope(|scope| {
            let reply = scope.spawn(|| channel.reply(4, Some(Errno::IO), &[]));
            for _ in 0..sent {
                assert!(rustix::io::read(&kernel, &mut message[..]).expect("a message") > 4096);
            }
            assert_eq!(reply.join().expect("no panic"), Ok(()));
        });
        assert_eq!(rustix::io::read(&kernel, &mut message[..]), Ok(size_of::<OutHeader>()));
    }
}
