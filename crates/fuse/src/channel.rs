//! A channel to the kernel: a descriptor of `/dev/fuse` that belongs to a mount. The reply to a request has to go
//! through the channel that the request came from. Used by all of the session.
#![allow(unsafe_code, reason = "rustix has no safe binding of FUSE_DEV_IOC_CLONE")]

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Setter, opcode};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `FUSE_DEV_IOC_CLONE`: attaches a new descriptor of the device to the mount of another one.
const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);
const DEVICE: &str = "/dev/fuse";

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
    pub(crate) fn clone_channel(&self) -> Result<Self, Errno> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let device = rustix::fs::open(Path::new(DEVICE), flags, Mode::empty())?;
        let ours = std::os::fd::AsRawFd::as_raw_fd(&self.device).cast_unsigned();
        // SAFETY: FUSE_DEV_IOC_CLONE reads one u32 from the pointer that it gets (fuse_dev_ioctl_clone). `Setter`
        // passes a pointer to its u32, which lives until the call returns. The kernel keeps no pointer.
        unsafe { rustix::ioctl::ioctl(&device, Setter::<CLONE, u32>::new(ours))? };
        Ok(Self { device })
    }

    /// Waits for a request and returns its length in bytes.
    ///
    /// # Errors
    /// `NODEV` once the file system is unmounted. `INTR`, `AGAIN` and `NOENT` (a request that was interrupted while
    /// it was read) mean that there is no request.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::read(&self.device, buffer)
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
                    std::thread::sleep(REPLY_PAUSE);
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

/// How often a reply is sent that the kernel does not take, and how long to wait in between: a second in all, after which
/// a kernel without memory has other worries.
const REPLY_ATTEMPTS: u32 = 500;
const REPLY_PAUSE: Duration = Duration::from_millis(2);

/// The largest number of parts of a message, without its header.
const MAX_PARTS: usize = 3;

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

#[cfg(all(test, not(loom)))]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    /// The sizes that the kernel checks.
    #[test]
    fn structures_have_the_sizes_of_the_kernel() {
        let sizes = [(size_of::<OutHeader>(), 16), (size_of::<StoreOut>(), 24)];
        for (ours, theirs) in sizes {
            assert_eq!(ours, theirs);
        }
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
