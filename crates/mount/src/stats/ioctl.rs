//! The ioctl by which a mount is asked for its numbers: its number, which the daemon compares, and the call, which the
//! client makes. The kernel passes it on to the daemon of a FUSE mount with the caller's bytes, and back with the
//! reply's; it looks at neither.
#![allow(unsafe_code, reason = "an ioctl of our own making is covered by no safe binding")]

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, opcode};

use super::record::IOCTL_BYTES;

/// What a question becomes an answer in.
pub(super) type IoctlBuffer = [u8; IOCTL_BYTES];

/// "F" for the group, as in the name of the program.
const OPCODE: Opcode = opcode::read_write::<IoctlBuffer>(b'F', 0xe0);
/// Of an ioctl's number: the bits that say how many bytes it has. Another version of the program may have others.
const SIZE_MASK: u32 = 0x3fff << 16;

/// Whether an ioctl's number is that of a question, of whatever length.
pub(crate) fn is_stats_ioctl(command: u32) -> bool {
    command & !SIZE_MASK == OPCODE & !SIZE_MASK
}

/// Sends a question; it is replaced by the answer, as far as that reaches.
///
/// # Errors
/// `NOTTY` and `NOSYS` where nobody knows the question; whatever the kernel or the daemon says else.
pub(super) fn send_ioctl(directory: BorrowedFd<'_>, bytes: &mut IoctlBuffer) -> Result<(), Errno> {
    // SAFETY: the opcode says that it reads and writes `size_of::<IoctlBuffer>()` bytes, for which the kernel holds the
    // daemon of a FUSE mount to account (fuse_do_ioctl makes its list of memory from the opcode alone unless the
    // file is a CUSE device, and `directory` is a directory: `client` opens it as that). No other file system knows
    // this opcode. Any bytes are a valid `IoctlBuffer`, and the kernel keeps no pointer.
    unsafe { rustix::ioctl::ioctl(directory, Updater::<OPCODE, IoctlBuffer>::new(bytes)) }
}

#[cfg(test)]
mod tests {
    use super::{OPCODE, is_stats_ioctl};

    #[test]
    fn a_question_is_known_whatever_its_length() {
        let ours = OPCODE;
        assert!(is_stats_ioctl(ours));
        assert!(is_stats_ioctl(ours ^ 64 << 16));
        for other in [0, ours ^ 1, ours ^ 1 << 8, ours ^ 1 << 30, ours ^ 1 << 31] {
            assert!(!is_stats_ioctl(other), "{other:#x}");
        }
    }
}
