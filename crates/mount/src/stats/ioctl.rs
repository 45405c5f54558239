//! The ioctl that reads the statistics of a mount: its number, which the daemon compares, and the call, which the client
//! makes. The kernel passes the caller's bytes to the daemon of a FUSE mount, and the bytes of the reply back. Separate,
//! since it has unsafe code.
#![allow(unsafe_code, reason = "rustix has no safe binding of this project's own ioctl")]

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, opcode};

use super::record::IOCTL_BYTES;

/// The argument of the ioctl: a request, which the response overwrites.
pub(super) type IoctlBuffer = [u8; IOCTL_BYTES];

/// The group is "F".
const OPCODE: Opcode = opcode::read_write::<IoctlBuffer>(b'F', 0xe0);
/// The bits of an ioctl's number that are the size of its argument, which may differ in other versions of the program.
const SIZE_MASK: u32 = 0x3fff << 16;

/// Whether `command` is this ioctl, with an argument of any size.
pub(crate) fn is_stats_ioctl(command: u32) -> bool {
    command & !SIZE_MASK == OPCODE & !SIZE_MASK
}

/// Sends a request. The response overwrites it.
///
/// # Errors
/// `NOTTY` and `NOSYS`: the file system does not know this ioctl. Others come from the kernel or the daemon.
pub(super) fn send_ioctl(directory: BorrowedFd<'_>, bytes: &mut IoctlBuffer) -> Result<(), Errno> {
    // SAFETY: the opcode declares that `size_of::<IoctlBuffer>()` bytes are read and written. For a FUSE mount the kernel
    // accesses no other memory: fuse_do_ioctl derives the range from the opcode alone, unless the file is a CUSE device,
    // and `directory` is a directory (`client::open_directory` opens it with O_DIRECTORY). No other file system knows
    // this opcode. Any bytes are a valid `IoctlBuffer`, and the kernel keeps no pointer.
    unsafe { rustix::ioctl::ioctl(directory, Updater::<OPCODE, IoctlBuffer>::new(bytes)) }
}

#[cfg(test)]
mod tests {
    use super::{OPCODE, is_stats_ioctl};

    #[test]
    fn the_ioctl_is_recognized_with_any_size() {
        let ours = OPCODE;
        assert!(is_stats_ioctl(ours));
        assert!(is_stats_ioctl(ours ^ 64 << 16));
        for other in [0, ours ^ 1, ours ^ 1 << 8, ours ^ 1 << 30, ours ^ 1 << 31] {
            assert!(!is_stats_ioctl(other), "{other:#x}");
        }
    }
}
