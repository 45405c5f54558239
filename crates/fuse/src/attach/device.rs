//! The device, `/dev/fuse`: opened, asked whether its file system lives, and kept off the standard
//! streams. It never reads from it. Both ways of mounting call it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use super::{AttachError, DirectMountRefusal};

const DEVICE: &str = "/dev/fuse";

/// The first descriptor that is none of the standard streams.
const FIRST_FREE: i32 = 3;

/// Opens the device, or says why not: a refusal leaves another way, an error does not.
pub(super) fn open_device() -> Result<Result<OwnedFd, DirectMountRefusal>, AttachError> {
    match open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(device) => Ok(Ok(device)),
        Err(cause @ (Errno::ACCESS | Errno::PERM)) => Ok(Err(DirectMountRefusal::Device(cause))),
        Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => Err(no_device()),
        Err(cause) => Err(AttachError::System { what: "open /dev/fuse", cause }),
    }
}

/// The error for a device that is not there.
pub(super) fn no_device() -> AttachError {
    AttachError::NoDevice { has_node: Path::new(DEVICE).exists(), is_known: kernel_knows_fuse() }
}

/// Whether this kernel has FUSE, built in or loaded.
fn kernel_knows_fuse() -> bool {
    std::fs::read_to_string("/proc/filesystems")
        .is_ok_and(|list| list.lines().any(|line| line == "nodev\tfuse"))
}

/// Moves the device off descriptors 0 to 2, where a stray message would go to the kernel as an answer.
/// They are free only in a process that was started with its standard streams closed.
pub(super) fn above_standard_streams(device: OwnedFd) -> Result<OwnedFd, AttachError> {
    use std::os::fd::AsRawFd;
    if device.as_raw_fd() >= FIRST_FREE {
        return Ok(device);
    }
    fcntl_dupfd_cloexec(&device, FIRST_FREE).map_err(|cause| AttachError::System {
        what: "move the device to another descriptor",
        cause,
    })
}

/// Whether the kernel still has the file system behind the device. The device reports an error once it
/// has not, and before anything was mounted.
pub(super) fn is_connected(device: &OwnedFd) -> bool {
    let mut asked = [PollFd::from_borrowed_fd(device.as_fd(), PollFlags::empty())];
    loop {
        match poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Err(Errno::INTR) => {}
            Ok(0) => return true,
            Ok(_) => return !asked.iter().any(|device| device.revents().contains(PollFlags::ERR)),
            // Out of kernel memory. To say that it lives costs a look into the mount table.
            Err(_) => return true,
        }
    }
}
