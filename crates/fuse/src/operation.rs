//! Requests as values: the bytes of a request, checked and taken apart. It copies nothing and decides nothing.
//! Called by `listener`.

use std::ffi::CStr;

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::wire::{self, InHeader, opcode};

/// A request of the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Names the request as long as it is not answered; even, and never 0.
    pub unique: u64,
    /// The node it is about; 1 is the root.
    pub node: u64,
    /// Who asks, as seen from the namespace of the mount; 0 where the kernel asks for itself.
    pub uid: u32,
    /// The thread that asks; 0 for one of another PID namespace, and where nobody waits.
    pub pid: u32,
    /// What is wanted.
    pub operation: Operation<'a>,
}

/// What a request wants.
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
    /// Opening a file; `ENOSYS` says that no file needs it, if the kernel knows of that.
    Open,
    /// Bytes of a file, fewer only at its end: [`Reply::bytes`](crate::Reply::bytes).
    Read {
        /// The first byte.
        offset: u64,
        /// How many bytes.
        size: u32,
    },
    /// Numbers of the whole file system: [`Reply::statfs`](crate::Reply::statfs).
    Statfs,
    /// The value of an attribute, or its length if `size` is 0.
    GetXattr {
        /// Its full name.
        name: &'a [u8],
        /// The room that the caller has.
        size: u32,
    },
    /// The names of all attributes, each with a NUL behind it, or their length if `size` is 0.
    ListXattr {
        /// The room that the caller has.
        size: u32,
    },
    /// Opening a directory; `ENOSYS` as for files.
    OpenDir,
    /// Entries of a directory: [`Reply::bytes`](crate::Reply::bytes) of a [`DirentBuffer`](crate::DirentBuffer).
    ReadDir {
        /// Behind which entry to go on; 0 starts.
        offset: u64,
        /// The room for entries.
        size: u32,
    },
    /// The same with attributes.
    ReadDirPlus {
        /// Behind which entry to go on; 0 starts.
        offset: u64,
        /// The room for entries.
        size: u32,
    },
    /// The next data or hole: [`Reply::offset`](crate::Reply::offset).
    Lseek {
        /// From where on.
        offset: u64,
        /// What is looked for: 3 data, 4 a hole.
        whence: u32,
    },
    /// A command on an open file or directory: [`Reply::ioctl`](crate::Reply::ioctl).
    Ioctl {
        /// What is asked for.
        command: u32,
        /// The caller's bytes.
        input: &'a [u8],
        /// The room for an answer.
        out_size: u32,
    },
}

/// What the bytes of a request turned out to be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum IncomingMessage<'a> {
    /// For the file system.
    Request(Request<'a>),
    /// The request of this number is not wanted any more.
    Interrupt { unique: u64, of: u64 },
    /// Nothing to do, and no reply.
    NoReply,
    /// Answered without looking: an errno, or success for `None`.
    ImmediateReply { unique: u64, errno: Option<Errno> },
}

impl<'a> IncomingMessage<'a> {
    /// Takes the bytes apart that one read of the device has returned.
    ///
    /// # Errors
    /// `EIO` with the request's number where the request is shorter than it says, or than its operation needs:
    /// the kernel does not speak our protocol.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, MalformedRequest> {
        let (header, body) =
            read_prefix::<InHeader>(bytes).ok_or(MalformedRequest { unique: 0 })?;
        let unique = header.unique;
        let operation = match header.opcode {
            opcode::FORGET | opcode::BATCH_FORGET => return Ok(Self::NoReply),
            opcode::INTERRUPT => {
                let of = read_prefix::<wire::InterruptIn>(body)
                    .ok_or(MalformedRequest { unique })?
                    .0
                    .unique;
                return Ok(Self::Interrupt { unique, of });
            }
            // Nothing is open, nothing is dirty.
            opcode::RELEASE | opcode::RELEASEDIR | opcode::DESTROY => {
                return Ok(Self::ImmediateReply { unique, errno: None });
            }
            // Linux says so of its own read-only file systems, which have nothing to write out; without an answer it
            // would report success.
            opcode::FSYNC | opcode::FSYNCDIR => {
                return Ok(Self::ImmediateReply { unique, errno: Some(Errno::INVAL) });
            }
            code if is_write_operation(code) => {
                return Ok(Self::ImmediateReply { unique, errno: Some(Errno::ROFS) });
            }
            code => match parse_operation(code, body).ok_or(MalformedRequest { unique })? {
                Some(operation) => operation,
                // The kernel remembers it and does without: FLUSH, ACCESS, POLL, BMAP, STATX, ...
                None => return Ok(Self::ImmediateReply { unique, errno: Some(Errno::NOSYS) }),
            },
        };
        let InHeader { node, uid, pid, .. } = header;
        Ok(Self::Request(Request { unique, node, uid, pid, operation }))
    }
}

/// A request that is not what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MalformedRequest {
    /// Its number; 0 if not even that is known.
    pub(crate) unique: u64,
}

/// Whether somebody wants to change something. The mount is read-only, so the kernel refuses nearly all of this
/// by itself.
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

/// `None` where bytes are missing, `Some(None)` for what nobody here answers.
fn parse_operation(code: u32, body: &[u8]) -> Option<Option<Operation<'_>>> {
    let operation = match code {
        opcode::LOOKUP => Operation::Lookup { name: parse_name(body)? },
        opcode::GETATTR => Operation::GetAttr,
        opcode::READLINK => Operation::ReadLink,
        opcode::OPEN => Operation::Open,
        opcode::READ => {
            let read = read_prefix::<wire::ReadIn>(body)?.0;
            Operation::Read { offset: read.offset, size: read.size }
        }
        opcode::STATFS => Operation::Statfs,
        opcode::GETXATTR => {
            let (wanted, rest) = read_prefix::<wire::GetxattrIn>(body)?;
            Operation::GetXattr { name: parse_name(rest)?, size: wanted.size }
        }
        opcode::LISTXATTR => {
            Operation::ListXattr { size: read_prefix::<wire::GetxattrIn>(body)?.0.size }
        }
        opcode::OPENDIR => Operation::OpenDir,
        opcode::READDIR => {
            let read = read_prefix::<wire::ReadIn>(body)?.0;
            Operation::ReadDir { offset: read.offset, size: read.size }
        }
        opcode::READDIRPLUS => {
            let read = read_prefix::<wire::ReadIn>(body)?.0;
            Operation::ReadDirPlus { offset: read.offset, size: read.size }
        }
        opcode::LSEEK => {
            let seek = read_prefix::<wire::LseekIn>(body)?.0;
            Operation::Lseek { offset: seek.offset, whence: seek.whence }
        }
        opcode::IOCTL => {
            let (ioctl, rest) = read_prefix::<wire::IoctlIn>(body)?;
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

/// The structure at the front, and what follows it.
pub(crate) fn read_prefix<T: FromBytes + KnownLayout + Immutable + Copy>(
    bytes: &[u8],
) -> Option<(T, &[u8])> {
    T::read_from_prefix(bytes).ok()
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

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

    #[test]
    fn every_request_may_be_cut_anywhere() {
        let read = [0u8; 40];
        for code in 0..60 {
            let whole = request(code, &read);
            for length in 0..whole.len() {
                let shorter = whole.get(..length).unwrap();
                match IncomingMessage::parse(shorter) {
                    Ok(_) | Err(MalformedRequest { unique: 0 | 6 }) => {}
                    Err(other) => panic!("{other:?}"),
                }
            }
        }
    }

    #[test]
    fn an_ioctl_has_no_more_input_than_it_brought() {
        let ioctl =
            wire::IoctlIn { handle: 0, flags: 0, command: 7, argument: 0, in_size: 4, out_size: 9 };
        let bytes = request(opcode::IOCTL, &[ioctl.as_bytes(), b"abcd"].concat());
        let wanted = Operation::Ioctl { command: 7, input: b"abcd", out_size: 9 };
        assert_eq!(operation_of(&bytes), wanted);
        let short = request(opcode::IOCTL, &[ioctl.as_bytes(), b"abc"].concat());
        assert_eq!(IncomingMessage::parse(&short).err(), Some(MalformedRequest { unique: 6 }));
    }

    #[test]
    fn whatever_changes_something_is_refused() {
        for code in [opcode::WRITE, opcode::UNLINK, opcode::SETATTR, opcode::TMPFILE] {
            match IncomingMessage::parse(&request(code, &[])) {
                Ok(IncomingMessage::ImmediateReply { unique: 6, errno: Some(Errno::ROFS) }) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn there_is_nothing_to_write_out() {
        for code in [opcode::FSYNC, opcode::FSYNCDIR] {
            match IncomingMessage::parse(&request(code, &[0; 16])) {
                Ok(IncomingMessage::ImmediateReply { unique: 6, errno: Some(Errno::INVAL) }) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn what_nobody_knows_is_no_error_of_the_session() {
        match IncomingMessage::parse(&request(4000, &[])) {
            Ok(IncomingMessage::ImmediateReply { unique: 6, errno: Some(Errno::NOSYS) }) => {}
            other => panic!("{other:?}"),
        }
    }
}
