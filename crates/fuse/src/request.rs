//! Requests of the kernel: the bytes of one request, checked and parsed. It copies nothing. The structures and numbers are
//! those of `include/uapi/linux/fuse.h` (version 7.45). Called by `session::listener`.

use std::ffi::CStr;

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A request of the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The number of the request while it is in flight; even, and never 0.
    pub unique: u64,
    /// The node; 1 is the root.
    pub node: u64,
    /// The user of the caller, in the user namespace of the mount; 0 for a request of the kernel itself.
    pub uid: u32,
    /// The thread of the caller; 0 if it is in another PID namespace, and for a request that nobody waits for.
    pub pid: u32,
    /// The operation.
    pub operation: Operation<'a>,
}

/// The operation of a request, with its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// The entry of this name in the directory `node`: [`Reply::entry`](crate::Reply::entry).
    Lookup {
        /// Bytes other than NUL and `/`.
        name: &'a [u8],
    },
    /// The attributes of `node`: [`Reply::attributes`](crate::Reply::attributes).
    GetAttr,
    /// The target of a symlink: [`Reply::bytes`](crate::Reply::bytes).
    ReadLink,
    /// Opening a file. The reply `ENOSYS` means that no file needs it, with
    /// [`Capabilities::NO_OPEN_SUPPORT`](crate::Capabilities::NO_OPEN_SUPPORT).
    Open,
    /// Bytes of a file; fewer than `size` only at its end: [`Reply::bytes`](crate::Reply::bytes).
    Read {
        /// The first byte.
        offset: u64,
        /// How many bytes.
        size: u32,
    },
    /// The size of the file system: [`Reply::statfs`](crate::Reply::statfs).
    Statfs,
    /// The value of an extended attribute ([`Reply::bytes`](crate::Reply::bytes)), or its length if `size` is 0
    /// ([`Reply::length`](crate::Reply::length)).
    GetXattr {
        /// Its full name.
        name: &'a [u8],
        /// The size of the caller's buffer.
        size: u32,
    },
    /// The names of all extended attributes, each followed by NUL, or their length if `size` is 0.
    ListXattr {
        /// The size of the caller's buffer.
        size: u32,
    },
    /// Opening a directory; `ENOSYS` as for files.
    OpenDir,
    /// Entries of a directory: [`Reply::bytes`](crate::Reply::bytes) of a [`DirentBuffer`](crate::DirentBuffer).
    ReadDir {
        /// Where to continue: [`DirentName::next`](crate::DirentName::next) of an entry; 0 at the start.
        offset: u64,
        /// The size of the buffer for entries.
        size: u32,
    },
    /// The same, with attributes.
    ReadDirPlus {
        /// Where to continue: [`DirentName::next`](crate::DirentName::next) of an entry; 0 at the start.
        offset: u64,
        /// The size of the buffer for entries.
        size: u32,
    },
    /// The next data or hole: [`Reply::offset`](crate::Reply::offset).
    Lseek {
        /// Where to start.
        offset: u64,
        /// What to look for: 3 for data (`SEEK_DATA`), 4 for a hole (`SEEK_HOLE`).
        whence: u32,
    },
    /// A command on an open file or directory: [`Reply::ioctl`](crate::Reply::ioctl).
    Ioctl {
        /// The number of the command.
        command: u32,
        /// The input of the command.
        input: &'a [u8],
        /// The size of the buffer for its output.
        out_size: u32,
    },
}

/// A message of the kernel, by what has to be done for it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum IncomingMessage<'a> {
    /// The file system handles it.
    Request(Request<'a>),
    /// The caller of request `of` received a signal.
    Interrupt { unique: u64, of: u64 },
    /// Nothing to do; the kernel expects no reply.
    NoReply,
    /// A reply that needs no file system: an errno, or success for `None`.
    ImmediateReply { unique: u64, errno: Option<Errno> },
}

impl<'a> IncomingMessage<'a> {
    /// Parses the bytes of one read of the device.
    ///
    /// # Errors
    /// The request is shorter than its header or its operation requires.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, MalformedRequest> {
        let (header, body) =
            read_prefix::<InHeader>(bytes).ok_or(MalformedRequest { unique: 0 })?;
        let unique = header.unique;
        let operation = match header.opcode {
            opcode::FORGET | opcode::BATCH_FORGET => return Ok(Self::NoReply),
            opcode::INTERRUPT => {
                let of =
                    read_prefix::<InterruptIn>(body).ok_or(MalformedRequest { unique })?.0.unique;
                return Ok(Self::Interrupt { unique, of });
            }
            // Nothing is open and nothing is dirty.
            opcode::RELEASE | opcode::RELEASEDIR | opcode::DESTROY => {
                return Ok(Self::ImmediateReply { unique, errno: None });
            }
            // What Linux replies for its own read-only file systems. Without a reply it would report success.
            opcode::FSYNC | opcode::FSYNCDIR => {
                return Ok(Self::ImmediateReply { unique, errno: Some(Errno::INVAL) });
            }
            code if is_write_operation(code) => {
                return Ok(Self::ImmediateReply { unique, errno: Some(Errno::ROFS) });
            }
            code => match parse_operation(code, body).ok_or(MalformedRequest { unique })? {
                Some(operation) => operation,
                // FLUSH, ACCESS, POLL, BMAP, STATX, ...: after ENOSYS the kernel sends them no more.
                None => return Ok(Self::ImmediateReply { unique, errno: Some(Errno::NOSYS) }),
            },
        };
        let InHeader { node, uid, pid, .. } = header;
        Ok(Self::Request(Request { unique, node, uid, pid, operation }))
    }
}

/// A request that is too short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MalformedRequest {
    /// Its number; 0 if the header is cut, too.
    pub(crate) unique: u64,
}

/// Whether an operation changes the file system. The mount is read-only, so the kernel refuses most of them itself.
fn is_write_operation(code: u32) -> bool {
    matches!(
        code,
        opcode::SETATTR
            | opcode::SYMLINK
            | opcode::MKNOD
            | opcode::MKDIR
            | opcode::UNLINK
            | opcode::RMDIR
            | opcode::RENAME
            | opcode::RENAME2
            | opcode::LINK
            | opcode::WRITE
            | opcode::SETXATTR
            | opcode::REMOVEXATTR
            | opcode::CREATE
            | opcode::FALLOCATE
            | opcode::COPY_FILE_RANGE
            | opcode::TMPFILE
    )
}

/// `None` if the body is too short, `Some(None)` for an operation that is not supported.
fn parse_operation(code: u32, body: &[u8]) -> Option<Option<Operation<'_>>> {
    let operation = match code {
        opcode::LOOKUP => Operation::Lookup { name: parse_name(body)? },
        opcode::GETATTR => Operation::GetAttr,
        opcode::READLINK => Operation::ReadLink,
        opcode::OPEN => Operation::Open,
        opcode::READ => {
            let read = read_prefix::<ReadIn>(body)?.0;
            Operation::Read { offset: read.offset, size: read.size }
        }
        opcode::STATFS => Operation::Statfs,
        opcode::GETXATTR => {
            let (wanted, rest) = read_prefix::<GetxattrIn>(body)?;
            Operation::GetXattr { name: parse_name(rest)?, size: wanted.size }
        }
        opcode::LISTXATTR => Operation::ListXattr { size: read_prefix::<GetxattrIn>(body)?.0.size },
        opcode::OPENDIR => Operation::OpenDir,
        opcode::READDIR => {
            let read = read_prefix::<ReadIn>(body)?.0;
            Operation::ReadDir { offset: read.offset, size: read.size }
        }
        opcode::READDIRPLUS => {
            let read = read_prefix::<ReadIn>(body)?.0;
            Operation::ReadDirPlus { offset: read.offset, size: read.size }
        }
        opcode::LSEEK => {
            let seek = read_prefix::<LseekIn>(body)?.0;
            Operation::Lseek { offset: seek.offset, whence: seek.whence }
        }
        opcode::IOCTL => {
            let (ioctl, rest) = read_prefix::<IoctlIn>(body)?;
            let input = rest.get(..usize::try_from(ioctl.in_size).ok()?)?;
            Operation::Ioctl { command: ioctl.command, input, out_size: ioctl.out_size }
        }
        _ => return Some(None),
    };
    Some(Some(operation))
}

fn parse_name(bytes: &[u8]) -> Option<&[u8]> {
    CStr::from_bytes_until_nul(bytes).ok().map(CStr::to_bytes)
}

/// The structure at the start of `bytes`, and the bytes after it.
pub(crate) fn read_prefix<T: FromBytes + KnownLayout + Immutable + Copy>(
    bytes: &[u8],
) -> Option<(T, &[u8])> {
    T::read_from_prefix(bytes).ok()
}

/// Before each request.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
pub(crate) struct InHeader {
    pub(crate) len: u32,
    pub(crate) opcode: u32,
    pub(crate) unique: u64,
    pub(crate) node: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) pid: u32,
    pub(crate) extension_words: u16,
    pub(crate) padding: u16,
}

/// Numbers of operations.
pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const IOCTL: u32 = 39;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const TMPFILE: u32 = 51;
}

#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
struct ReadIn {
    handle: u64,
    offset: u64,
    size: u32,
    read_flags: u32,
    lock_owner: u64,
    flags: u32,
    padding: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
pub(crate) struct GetxattrIn {
    pub(crate) size: u32,
    pub(crate) padding: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
struct LseekIn {
    handle: u64,
    offset: u64,
    whence: u32,
    padding: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
struct IoctlIn {
    handle: u64,
    flags: u32,
    command: u32,
    argument: u64,
    in_size: u32,
    out_size: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
pub(crate) struct InterruptIn {
    pub(crate) unique: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
        let header = InHeader {
            len: 0,
            opcode,
            unique: 6,
            node: 42,
            uid: 1000,
            gid: 100,
            pid: 77,
            extension_words: 0,
            padding: 0,
        };
        [header.as_bytes(), body].concat()
    }

    fn operation_of(bytes: &[u8]) -> Operation<'_> {
        match IncomingMessage::parse(bytes) {
            Ok(IncomingMessage::Request(request)) => {
                assert_eq!((request.unique, request.node), (6, 42));
                assert_eq!((request.uid, request.pid), (1000, 77));
                request.operation
            }
            other => panic!("{other:?}"),
        }
    }

    /// The sizes that the kernel checks.
    #[test]
    fn structures_have_the_sizes_of_the_kernel() {
        let sizes =
            [(size_of::<InHeader>(), 40), (size_of::<ReadIn>(), 40), (size_of::<IoctlIn>(), 32)];
        for (ours, theirs) in sizes {
            assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn a_lookup_carries_its_name_without_the_nul() {
        let bytes = request(opcode::LOOKUP, b"etc\0");
        assert_eq!(operation_of(&bytes), Operation::Lookup { name: b"etc" });
    }

    #[test]
    fn a_name_without_an_end_is_malformed() {
        let bytes = request(opcode::LOOKUP, b"etc");
        assert_eq!(IncomingMessage::parse(&bytes).err(), Some(MalformedRequest { unique: 6 }));
    }

    /// The shortest body with which a request of this operation can be parsed, if it consists of zeros.
    fn body_bytes(code: u32) -> usize {
        match code {
            opcode::LOOKUP => 1,
            opcode::READ | opcode::READDIR | opcode::READDIRPLUS => size_of::<ReadIn>(),
            opcode::GETXATTR => size_of::<GetxattrIn>() + 1,
            opcode::LISTXATTR => size_of::<GetxattrIn>(),
            opcode::LSEEK => size_of::<LseekIn>(),
            opcode::IOCTL => size_of::<IoctlIn>(),
            opcode::INTERRUPT => size_of::<InterruptIn>(),
            _ => 0,
        }
    }

    #[test]
    fn a_request_that_is_cut_is_malformed_and_a_longer_one_is_parsed_alike() {
        let header_bytes = size_of::<InHeader>();
        for code in 0..60 {
            let whole = request(code, &[0; 40]);
            let shortest = header_bytes + body_bytes(code);
            let expected = format!("{:?}", IncomingMessage::parse(&whole[..shortest]).unwrap());
            for length in 0..=whole.len() {
                match IncomingMessage::parse(&whole[..length]) {
                    Err(MalformedRequest { unique: 0 }) => assert!(length < header_bytes),
                    Err(MalformedRequest { unique }) => {
                        assert_eq!(unique, 6, "operation {code} of {length} bytes");
                        assert!(
                            (header_bytes..shortest).contains(&length),
                            "operation {code}, {length}"
                        );
                    }
                    Ok(message) => {
                        assert!(length >= shortest, "operation {code} of {length} bytes");
                        assert_eq!(format!("{message:?}"), expected, "operation {code}");
                    }
                }
            }
        }
    }

    #[test]
    fn an_ioctl_with_less_input_than_it_declares_is_malformed() {
        let ioctl =
            IoctlIn { handle: 0, flags: 0, command: 7, argument: 0, in_size: 4, out_size: 9 };
        let bytes = request(opcode::IOCTL, &[ioctl.as_bytes(), b"abcd"].concat());
        let wanted = Operation::Ioctl { command: 7, input: b"abcd", out_size: 9 };
        assert_eq!(operation_of(&bytes), wanted);
        let short = request(opcode::IOCTL, &[ioctl.as_bytes(), b"abc"].concat());
        assert_eq!(IncomingMessage::parse(&short).err(), Some(MalformedRequest { unique: 6 }));
    }

    #[test]
    fn operations_that_write_get_erofs() {
        for code in [opcode::WRITE, opcode::UNLINK, opcode::SETATTR, opcode::TMPFILE] {
            match IncomingMessage::parse(&request(code, &[])) {
                Ok(IncomingMessage::ImmediateReply { unique: 6, errno: Some(Errno::ROFS) }) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn fsync_is_refused_as_linux_does() {
        for code in [opcode::FSYNC, opcode::FSYNCDIR] {
            match IncomingMessage::parse(&request(code, &[0; 16])) {
                Ok(IncomingMessage::ImmediateReply { unique: 6, errno: Some(Errno::INVAL) }) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn an_unknown_operation_gets_enosys() {
        match IncomingMessage::parse(&request(4000, &[])) {
            Ok(IncomingMessage::ImmediateReply { unique: 6, errno: Some(Errno::NOSYS) }) => {}
            other => panic!("{other:?}"),
        }
    }
}
