//! FUSE_INIT: the protocol version, capabilities and sizes that kernel and daemon agree on. Pure: a request in, a
//! reply and the negotiated parameters out. Called by `session`.

use std::fmt;

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::request::{InHeader, opcode, read_prefix};

/// The protocol that this crate speaks, as in `include/uapi/linux/fuse.h`.
const MAJOR: u32 = 7;
const MINOR: u32 = 45;
/// The oldest minor version whose replies have the forms used here (Linux 4.18 speaks 7.27).
const OLDEST_MINOR: u32 = 23;

/// Bytes of a page in FUSE_INIT.
const PAGE_BYTES: u32 = 4096;
/// The smallest `max_write` that the kernel accepts. Nothing is written, and it bounds the request buffer.
const MAX_WRITE_BYTES: u32 = 4096;
/// The largest request without data to write: a header, two names, attributes.
pub(crate) const REQUEST_BYTES: usize = 8192 + 4096;
/// The pages per request of a kernel without the capability `MAX_PAGES`.
const OLD_MAX_PAGES: u32 = 32;

/// What a daemon requests in FUSE_INIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InitRequest {
    /// The capabilities to request; those that the kernel does not offer are left out.
    pub capabilities: Capabilities,
    /// The largest read, in bytes.
    pub max_read: u32,
    /// The largest readahead, in bytes; the kernel applies its own limit, too.
    pub max_readahead: u32,
    /// The largest number of background requests, such as readahead, in flight.
    pub max_background: u16,
}

impl InitRequest {
    /// Requests these capabilities, reads and readahead of 128 KiB, and 12 background requests: the kernel's own
    /// defaults.
    #[must_use]
    pub fn new(capabilities: Capabilities) -> Self {
        Self { capabilities, max_read: 128 << 10, max_readahead: 128 << 10, max_background: 12 }
    }

    /// Sets the largest read, in bytes.
    #[must_use]
    pub fn max_read(mut self, bytes: u32) -> Self {
        self.max_read = bytes;
        self
    }

    /// Sets the largest readahead, in bytes.
    #[must_use]
    pub fn max_readahead(mut self, bytes: u32) -> Self {
        self.max_readahead = bytes;
        self
    }

    /// Sets the largest number of background requests in flight.
    #[must_use]
    pub fn max_background(mut self, requests: u16) -> Self {
        self.max_background = requests;
        self
    }
}

/// What kernel and daemon agreed on in FUSE_INIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitParameters {
    /// The protocol version of the kernel: major, minor.
    pub protocol: (u32, u32),
    /// The capabilities that the kernel offered.
    pub offered: Capabilities,
    /// The capabilities that the daemon requested.
    pub requested: Capabilities,
    /// Those that were both offered and requested.
    pub granted: Capabilities,
    /// The largest read, in bytes.
    pub max_read: u32,
    /// The largest readahead that the kernel offered, in bytes.
    pub offered_readahead: u32,
    /// The largest readahead that the daemon requested, in bytes.
    pub requested_readahead: u32,
    /// The largest number of background requests in flight.
    pub max_background: u16,
}

impl InitParameters {
    /// Numbers of [`words`](Self::words).
    pub(crate) const WORDS: usize = 9;

    /// All values as numbers, for another process that serves the mount.
    pub(crate) fn words(&self) -> [u64; Self::WORDS] {
        [
            u64::from(self.protocol.0),
            u64::from(self.protocol.1),
            self.offered.0,
            self.requested.0,
            self.granted.0,
            u64::from(self.max_read),
            u64::from(self.offered_readahead),
            u64::from(self.requested_readahead),
            u64::from(self.max_background),
        ]
    }

    /// The values of these numbers.
    pub(crate) fn from_words(words: [u64; Self::WORDS]) -> Self {
        let [
            major,
            minor,
            offered,
            requested,
            granted,
            max_read,
            readahead,
            own_readahead,
            background,
        ] = words;
        let number = |word: u64| u32::try_from(word).unwrap_or(u32::MAX);
        Self {
            protocol: (number(major), number(minor)),
            offered: Capabilities(offered),
            requested: Capabilities(requested),
            granted: Capabilities(granted),
            max_read: number(max_read),
            offered_readahead: number(readahead),
            requested_readahead: number(own_readahead),
            max_background: u16::try_from(background).unwrap_or(u16::MAX),
        }
    }

    /// The largest readahead, in bytes: the smaller one of what was offered and what was requested.
    #[must_use]
    pub fn max_readahead(&self) -> u32 {
        self.offered_readahead.min(self.requested_readahead)
    }
}

/// The reply to a FUSE_INIT request.
#[derive(Debug)]
pub(crate) enum Negotiation {
    /// Send this; the session has begun.
    Agreed { unique: u64, reply: InitOut, init_parameters: InitParameters },
    /// Send this, our version; the kernel repeats FUSE_INIT with a version that both know.
    Retry { unique: u64, reply: InitOut },
}

/// Answers the first request of a connection.
///
/// # Errors
/// The request is not FUSE_INIT, or the kernel is too old.
pub(crate) fn negotiate(
    request: &[u8],
    init_request: &InitRequest,
) -> Result<Negotiation, SessionError> {
    let (header, body) = read_prefix::<InHeader>(request).ok_or(SessionError::Protocol)?;
    if header.opcode != opcode::INIT {
        return Err(SessionError::Protocol);
    }
    let (init, more) = read_prefix::<InitIn>(body).ok_or(SessionError::Protocol)?;
    let unique = header.unique;
    if init.major > MAJOR {
        let reply = InitOut { major: MAJOR, minor: MINOR, ..InitOut::default() };
        return Ok(Negotiation::Retry { unique, reply });
    }
    if init.major < MAJOR || init.minor < OLDEST_MINOR {
        return Err(SessionError::OldKernel { major: init.major, minor: init.minor });
    }
    let mut offered = Capabilities(u64::from(init.flags));
    if offered.contains(Capabilities::INIT_EXT) {
        let more = read_prefix::<InitInMore>(more).ok_or(SessionError::Protocol)?.0;
        offered = offered.union(Capabilities(u64::from(more.flags2) << 32));
    }
    let requested = init_request.capabilities.union(Capabilities::INIT_EXT);
    let granted = requested.intersection(offered);
    let max_pages = if granted.contains(Capabilities::MAX_PAGES) {
        u16::try_from(init_request.max_read.div_ceil(PAGE_BYTES)).unwrap_or(u16::MAX)
    } else {
        0
    };
    let reads = if max_pages > 0 { u32::from(max_pages) } else { OLD_MAX_PAGES };
    let max_readahead = init_request.max_readahead.min(init.max_readahead);
    let reply = InitOut {
        major: MAJOR,
        minor: MINOR,
        max_readahead,
        flags: low(granted),
        max_background: init_request.max_background,
        congestion_threshold: congestion(init_request.max_background),
        max_write: MAX_WRITE_BYTES,
        time_gran: 1,
        max_pages,
        flags2: low(Capabilities(granted.0 >> 32)),
        ..InitOut::default()
    };
    let init_parameters = InitParameters {
        protocol: (init.major, init.minor),
        offered,
        requested,
        granted,
        max_read: reads.saturating_mul(PAGE_BYTES),
        offered_readahead: init.max_readahead,
        requested_readahead: init_request.max_readahead,
        max_background: init_request.max_background,
    };
    Ok(Negotiation::Agreed { unique, reply, init_parameters })
}

/// The number of background requests from which on the kernel considers the mount congested and reads less ahead.
fn congestion(max_background: u16) -> u16 {
    max_background.saturating_sub(max_background / 4).max(1)
}

fn low(bits: Capabilities) -> u32 {
    u32::try_from(bits.0 & u64::from(u32::MAX)).unwrap_or(0)
}

/// A set of capabilities: the flags of FUSE_INIT, `flags` in the low and `flags2` in the high half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// The kernel sends reads of readahead without waiting for each.
    pub const ASYNC_READ: Self = Self(1 << 0);
    /// Inodes can be looked up by `.` and `..`, as NFS export requires.
    pub const EXPORT_SUPPORT: Self = Self(1 << 4);
    /// The kernel drops cached pages of a file whose size or time changes.
    pub const AUTO_INVAL_DATA: Self = Self(1 << 12);
    /// Directory entries may carry attributes (`READDIRPLUS`).
    pub const DO_READDIRPLUS: Self = Self(1 << 13);
    /// The kernel chooses between `READDIR` and `READDIRPLUS` by what callers use.
    pub const READDIRPLUS_AUTO: Self = Self(1 << 14);
    /// Reads with `O_DIRECT` are sent concurrently.
    pub const ASYNC_DIO: Self = Self(1 << 15);
    /// The reply `ENOSYS` to `OPEN` means that files need no `OPEN`.
    pub const NO_OPEN_SUPPORT: Self = Self(1 << 17);
    /// The kernel sends lookups and listings of one directory concurrently.
    pub const PARALLEL_DIROPS: Self = Self(1 << 18);
    /// The kernel enforces POSIX access control lists.
    pub const POSIX_ACL: Self = Self(1 << 20);
    /// The reply says in `max_pages` how large a request may be.
    pub const MAX_PAGES: Self = Self(1 << 22);
    /// The kernel caches the targets of symlinks.
    pub const CACHE_SYMLINKS: Self = Self(1 << 23);
    /// The reply `ENOSYS` to `OPENDIR` means that directories need no `OPENDIR`.
    pub const NO_OPENDIR_SUPPORT: Self = Self(1 << 24);
    /// FUSE_INIT has a second word of flags.
    pub const INIT_EXT: Self = Self(1 << 30);
    /// The kernel sends `IOCTL` for directories, too.
    pub const IOCTL_DIR: Self = Self(1 << 11);
    /// The kernel can send requests again that were read and not answered (Linux 6.9).
    pub const HAS_RESEND: Self = Self(1 << 39);

    /// Each flag with its name in texts.
    const NAMES: [(Self, &'static str); 15] = [
        (Self::ASYNC_READ, "async-read"),
        (Self::EXPORT_SUPPORT, "export-support"),
        (Self::IOCTL_DIR, "ioctl-dir"),
        (Self::AUTO_INVAL_DATA, "auto-inval-data"),
        (Self::DO_READDIRPLUS, "readdirplus"),
        (Self::READDIRPLUS_AUTO, "readdirplus-auto"),
        (Self::ASYNC_DIO, "async-dio"),
        (Self::NO_OPEN_SUPPORT, "no-open"),
        (Self::PARALLEL_DIROPS, "parallel-dirops"),
        (Self::POSIX_ACL, "posix-acl"),
        (Self::MAX_PAGES, "max-pages"),
        (Self::CACHE_SYMLINKS, "cache-symlinks"),
        (Self::NO_OPENDIR_SUPPORT, "no-opendir"),
        (Self::INIT_EXT, "init-ext"),
        (Self::HAS_RESEND, "resend"),
    ];

    /// The flags of either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The flags of both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether this set has every flag of `other`.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The names of the known flags, by bit.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().filter(move |(bit, _)| self.contains(*bit)).map(|(_, name)| name)
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (count, name) in self.names().enumerate() {
            if count > 0 {
                f.write_str(" ")?;
            }
            f.write_str(name)?;
        }
        Ok(())
    }
}

/// Why a session could not start.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionError {
    /// The kernel speaks a protocol older than 7.23.
    OldKernel {
        /// Its major version.
        major: u32,
        /// Its minor version.
        minor: u32,
    },
    /// The first request was not FUSE_INIT.
    Protocol,
    /// The file system was unmounted before FUSE_INIT.
    Unmounted,
    /// The device failed.
    Device(Errno),
    /// A thread could not be started.
    Thread(String),
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OldKernel { major, minor } => {
                write!(
                    f,
                    "the kernel supports FUSE {major}.{minor}; version 7.23 or newer is required (Linux 4.18)"
                )
            }
            Self::Protocol => f.write_str("the kernel's first request is not FUSE_INIT"),
            Self::Unmounted => f.write_str("unmounted before it was ready"),
            Self::Device(errno) => write!(f, "/dev/fuse: {errno}"),
            Self::Thread(cause) => write!(f, "cannot start a thread: {cause}"),
        }
    }
}

impl std::error::Error for SessionError {}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
pub(crate) struct InitIn {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) max_readahead: u32,
    pub(crate) flags: u32,
}

/// Follows `InitIn` from 7.36 on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
pub(crate) struct InitInMore {
    pub(crate) flags2: u32,
    pub(crate) unused: [u32; 11],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
pub(crate) struct InitOut {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) max_readahead: u32,
    pub(crate) flags: u32,
    pub(crate) max_background: u16,
    pub(crate) congestion_threshold: u16,
    pub(crate) max_write: u32,
    pub(crate) time_gran: u32,
    pub(crate) max_pages: u16,
    pub(crate) map_alignment: u16,
    pub(crate) flags2: u32,
    pub(crate) max_stack_depth: u32,
    pub(crate) request_timeout: u16,
    pub(crate) unused: [u16; 11],
}

#[cfg(test)]
mod tests {
    use super::*;

    const INIT_REQUEST: InitRequest = InitRequest {
        capabilities: Capabilities::ASYNC_READ
            .union(Capabilities::MAX_PAGES)
            .union(Capabilities::POSIX_ACL),
        max_read: 1 << 20,
        max_readahead: 8 << 20,
        max_background: 32,
    };

    fn init(major: u32, minor: u32, flags: u32) -> Vec<u8> {
        let header = InHeader {
            len: 0,
            opcode: opcode::INIT,
            unique: 2,
            node: 0,
            uid: 0,
            gid: 0,
            pid: 0,
            extension_words: 0,
            padding: 0,
        };
        let init = InitIn { major, minor, max_readahead: 131_072, flags };
        [header.as_bytes(), init.as_bytes(), InitInMore::default().as_bytes()].concat()
    }

    fn agreed(request: &[u8]) -> (InitOut, InitParameters) {
        match negotiate(request, &INIT_REQUEST) {
            Ok(Negotiation::Agreed { unique: 2, reply, init_parameters }) => {
                (reply, init_parameters)
            }
            other => panic!("{other:?}"),
        }
    }

    /// The sizes that the kernel checks.
    #[test]
    fn structures_have_the_sizes_of_the_kernel() {
        let sizes =
            [(size_of::<InitIn>() + size_of::<InitInMore>(), 64), (size_of::<InitOut>(), 64)];
        for (ours, theirs) in sizes {
            assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn only_what_is_offered_is_granted() {
        let (reply, init_parameters) = agreed(&init(7, 45, 1 | 1 << 22 | 1 << 5));
        assert_eq!(init_parameters.granted.to_string(), "async-read max-pages");
        assert_eq!(reply.flags, 1 | 1 << 22);
        assert_eq!((reply.max_pages, init_parameters.max_read), (256, 1 << 20));
        assert_eq!(reply.max_readahead, 131_072);
    }

    #[test]
    fn an_old_kernel_gets_small_reads() {
        let (reply, init_parameters) = agreed(&init(7, 27, 1));
        assert_eq!((reply.max_pages, init_parameters.max_read), (0, 131_072));
    }

    #[test]
    fn a_kernel_that_is_too_old_is_refused_by_version() {
        let refused = negotiate(&init(7, 22, 1), &INIT_REQUEST).err();
        assert_eq!(refused, Some(SessionError::OldKernel { major: 7, minor: 22 }));
    }

    #[test]
    fn a_kernel_of_the_future_is_asked_to_speak_our_version() {
        match negotiate(&init(8, 0, 1), &INIT_REQUEST) {
            Ok(Negotiation::Retry { unique: 2, reply }) => assert_eq!(reply.major, 7),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_first_request_of_another_kind_ends_the_session() {
        let mut request = init(7, 45, 1);
        request[4] = 1;
        assert_eq!(negotiate(&request, &INIT_REQUEST).err(), Some(SessionError::Protocol));
        assert_eq!(
            negotiate(&init(7, 45, 1)[..50], &INIT_REQUEST).err(),
            Some(SessionError::Protocol)
        );
    }

    #[test]
    fn names_tell_what_is_in_a_set() {
        let both = Capabilities::ASYNC_READ.union(Capabilities::CACHE_SYMLINKS);
        assert_eq!(both.to_string(), "async-read cache-symlinks");
        assert!(both.contains(Capabilities::ASYNC_READ) && !both.contains(Capabilities::MAX_PAGES));
        assert_eq!(both.intersection(Capabilities::ASYNC_READ), Capabilities::ASYNC_READ);
    }
}
