//! The unique ID of a mount, which the kernel never gives to another one (Linux 6.8). The ID in the mount table is given to
//! the next mount as soon as it is free, and so is the number of the device: a process that looks for its mount after it is
//! gone would find a stranger. Used by `direct`.
#![allow(unsafe_code, reason = "rustix has no binding of the system call statmount")]

use std::ffi::{c_long, c_uint};
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::io::Errno;

/// `STATX_MNT_ID_UNIQUE`.
const STATX_UNIQUE: u32 = 0x4000;
/// The number of `statmount` on every architecture that has it.
const STATMOUNT: c_long = 457;
/// The kernel's `struct statmount` with some space for later fields, in words.
const STATMOUNT_WORDS: usize = 128;

/// The unique ID of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UniqueMountId(u64);

/// The kernel's `struct mnt_id_req` in its first version.
#[repr(C)]
struct MountIdRequest {
    size: u32,
    spare: u32,
    id: u64,
    fields: u64,
}

impl UniqueMountId {
    /// That of the mount of an open file. `None` on older kernels. It sends no request to the file system.
    pub(super) fn of(file: BorrowedFd<'_>) -> Option<Self> {
        let wanted = StatxFlags::from_bits_retain(STATX_UNIQUE);
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = statx(file, c"", flags, wanted).ok()?;
        (found.stx_mask & STATX_UNIQUE != 0).then_some(Self(found.stx_mnt_id))
    }

    /// Whether the mount is still in this mount namespace; `true` also if the kernel does not tell.
    pub(super) fn exists(self) -> bool {
        let request = MountIdRequest {
            size: u32::try_from(size_of::<MountIdRequest>()).unwrap_or(0),
            spare: 0,
            id: self.0,
            fields: 0,
        };
        let mut answer = [0_u64; STATMOUNT_WORDS];
        let flags: c_uint = 0;
        // SAFETY: statmount(request, buffer, bytes, flags) reads the `size` bytes of the request and writes at most `bytes`
        // bytes to the buffer. Both live until the call returns, and the kernel keeps no pointer. An older kernel has no
        // such call and returns ENOSYS.
        let result = unsafe {
            libc::syscall(
                STATMOUNT,
                &raw const request,
                answer.as_mut_ptr(),
                size_of_val(&answer),
                flags,
            )
        };
        let cause = || std::io::Error::last_os_error().raw_os_error();
        result == 0 || cause() != Some(Errno::NOENT.raw_os_error())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::UniqueMountId;

    #[test]
    fn a_mount_that_is_there_exists_and_one_that_never_was_does_not() {
        let root = std::fs::File::open("/").expect("a directory");
        // Older kernels have no such IDs.
        let Some(id) = UniqueMountId::of(root.as_fd()) else { return };
        assert!(id.exists());
        assert!(!UniqueMountId(u64::MAX >> 1).exists());
    }
}
