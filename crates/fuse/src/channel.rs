//! One way to the kernel: a descriptor of `/dev/fuse` that belongs to a mount. A request has to be answered through
//! the way it came. It knows no meaning of what it carries. Used by all of the session.
#![allow(
    unsafe_code,
    reason = "tying a descriptor to a mount is an ioctl, which no safe binding covers"
)]

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Setter, opcode};
use zerocopy::IntoBytes;

use crate::wire::OutHeader;

/// `FUSE_DEV_IOC_CLONE`: ties a fresh descriptor of the device to the mount of another one.
const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);
const DEVICE: &str = "/dev/fuse";

/// A descriptor of `/dev/fuse` that a mount listens to.
#[derive(Debug)]
pub(crate) struct Channel {
    device: OwnedFd,
}

impl Channel {
    pub(crate) fn new(device: OwnedFd) -> Self {
        Self { device }
    }

    /// Another way to the same mount, with a queue of its own for requests in flight, so that answering takes no
    /// lock that other listeners take.
    ///
    /// # Errors
    /// The device cannot be opened here, or the kernel is older than 4.2.
    pub(crate) fn clone_channel(&self) -> Result<Self, Errno> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let device = rustix::fs::open(Path::new(DEVICE), flags, Mode::empty())?;
        let ours = std::os::fd::AsRawFd::as_raw_fd(&self.device).cast_unsigned();
        // SAFETY: FUSE_DEV_IOC_CLONE is declared as reading one u32 from the pointer that it is given; `Setter` passes
        // one to such a value and keeps it alive during the call. The kernel keeps no pointer.
        unsafe { rustix::ioctl::ioctl(&device, Setter::<CLONE, u32>::new(ours))? };
        Ok(Self { device })
    }

    /// Waits for a request; answers how many bytes it has.
    ///
    /// # Errors
    /// `NODEV` once the mount is gone. `INTR`, `AGAIN` and `NOENT` (a request that was taken back while it was
    /// read) mean that there was nothing.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::read(&self.device, buffer)
    }

    /// Answers a request with an errno, or with these parts one after the other.
    ///
    /// # Errors
    /// `NOENT`: the kernel does not wait for it any more. `NODEV`: the mount is gone. Others: the reply is not
    /// what the request allows.
    pub(crate) fn reply(
        &self,
        unique: u64,
        errno: Option<Errno>,
        parts: &[&[u8]],
    ) -> Result<(), Errno> {
        self.send(unique, errno.map_or(0, |errno| -errno.raw_os_error()), parts)
    }

    /// Says something of its own accord.
    ///
    /// # Errors
    /// Whatever the kernel has against it.
    pub(crate) fn notify(&self, what: i32, parts: &[&[u8]]) -> Result<(), Errno> {
        self.send(0, what, parts)
    }

    fn send(&self, unique: u64, error: i32, parts: &[&[u8]]) -> Result<(), Errno> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let len = bytes.saturating_add(size_of::<OutHeader>());
        let len = u32::try_from(len).map_err(|_| Errno::INVAL)?;
        let header = OutHeader { len, error, unique };
        let mut slices = [IoSlice::new(&[]); MAX_PARTS + 1];
        let (first, rest) = slices.split_first_mut().ok_or(Errno::INVAL)?;
        *first = IoSlice::new(header.as_bytes());
        let room = rest.get_mut(..parts.len()).ok_or(Errno::INVAL)?;
        for (slice, part) in room.iter_mut().zip(parts) {
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

/// How many parts a message has at most, its header not counted.
const MAX_PARTS: usize = 3;

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}
