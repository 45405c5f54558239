//! The service manager: systemd, or another one with its protocol (`sd_notify(3)`, `sd_listen_fds(3)`). It learns when a
//! mount is ready, and keeps the descriptors of a mount while no process of its service lives (docs/survival.md,
//! protocol F). Called by the command before it enters the sandbox, and by the holder, which only writes.
#![allow(unsafe_code, reason = "descriptors that the service manager has opened in this process")]

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, sendmsg, socket_with,
};

use super::Attachment;
use crate::session::fault_point;

/// The socket of the manager: a path, or an abstract name after `@`.
const SOCKET: &str = "NOTIFY_SOCKET";
/// How many descriptors it keeps. systemd sets it since version 254.
const ROOM: &str = "FDSTORE";
/// For which process it has opened descriptors, how many, and their names.
const PROCESS: &str = "LISTEN_PID";
const COUNT: &str = "LISTEN_FDS";
const NAMES: &str = "LISTEN_FDNAMES";
/// The first of them.
const FIRST: i32 = 3;
/// How names begin. A number follows: the place in the offer of a holder (R2).
const PREFIX: &str = "ferrofs-";
/// Whether this process owns the descriptors that it was given.
static ARE_TAKEN: AtomicBool = AtomicBool::new(false);
/// How long the manager may take to read its messages.
const BARRIER_LIMIT: Duration = Duration::from_secs(10);

/// The way to the service manager.
#[derive(Debug)]
pub struct ServiceManager {
    socket: OwnedFd,
    room: usize,
}

impl ServiceManager {
    /// The manager that has started this process and waits for its message; `None` without one.
    ///
    /// # Errors
    /// There is one, but it cannot be reached.
    pub fn of_environment() -> io::Result<Option<Self>> {
        let Some(name) = std::env::var_os(SOCKET).filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        let address = match name.as_bytes().split_first() {
            Some((b'@', name)) => SocketAddrUnix::new_abstract_name(name)?,
            _ => SocketAddrUnix::new(name.as_os_str())?,
        };
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        connect(&socket, &address)?;
        let room = std::env::var(ROOM).ok().and_then(|room| room.parse().ok()).unwrap_or(0);
        Ok(Some(Self { socket, room }))
    }

    /// Whether it keeps descriptors.
    #[must_use]
    pub fn keeps_descriptors(&self) -> bool {
        self.room > 0
    }

    /// The descriptor that messages need.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Tells it that the mount is ready.
    pub fn ready(&self) {
        self.write("READY=1");
    }

    /// F2: lets it keep a mount: what its holder offers, and what unmounting needs. Returns when it has them.
    ///
    /// # Errors
    /// It has no room for as many, or does not answer.
    pub fn keep(&self, held: &[BorrowedFd<'_>], attachment: &Attachment) -> io::Result<usize> {
        let all: Vec<BorrowedFd<'_>> =
            held.iter().copied().chain(attachment.unmount_descriptor()).collect();
        if all.len() > self.room {
            let (needed, room) = (all.len(), self.room);
            let text = format!("it keeps {room} descriptors, and {needed} are needed");
            return Err(io::Error::other(text));
        }
        for (number, descriptor) in all.iter().enumerate() {
            fault_point("storing", number as u64);
            self.store(number, *descriptor)?;
        }
        self.wait_until_read()?;
        Ok(all.len())
    }

    /// F5: replaces what unmounting needs, the last of `count` descriptors: a process of the service waits on its other end.
    /// From here on, that one unmounts when nobody has the descriptor any more, and the one that it replaces does not.
    ///
    /// # Errors
    /// It does not answer. Then nobody unmounts.
    pub fn renew(&self, count: usize, attachment: &mut Attachment) -> io::Result<()> {
        let at_end = attachment.at_end();
        let Some(unmounter) = attachment.unmounter() else { return Ok(()) };
        let number = count.saturating_sub(1);
        // First: when the manager has removed its descriptor, no later process could.
        unmounter.retire_former();
        self.write(&removal(number));
        fault_point("renewing", 1);
        self.store(number, unmounter.descriptor())?;
        self.wait_until_read()?;
        unmounter.settle(at_end);
        Ok(())
    }

    /// Without the poll of systemd, which does not take every kind of descriptor.
    fn store(&self, number: usize, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.send(&format!("FDSTORE=1\nFDPOLL=0\nFDNAME={PREFIX}{number}"), descriptor)
    }

    /// Lets it close what it keeps. For a process that only writes.
    pub fn forget(&self, count: usize) {
        for number in 0..count {
            self.write(&removal(number));
        }
    }

    fn write(&self, text: &str) {
        // A manager that has ended needs no message.
        rustix::io::write(&self.socket, text.as_bytes()).ok();
    }

    fn send(&self, text: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let descriptors = [descriptor];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        loop {
            let text = [IoSlice::new(text.as_bytes())];
            match sendmsg(&self.socket, &text, &mut control, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                sent => return Ok(sent.map(|_| ())?),
            }
        }
    }

    /// It closes a descriptor that comes with a message as soon as it has read that and all messages before.
    fn wait_until_read(&self) -> io::Result<()> {
        let (reader, writer) = io::pipe()?;
        self.send("BARRIER=1", writer.as_fd())?;
        drop(writer);
        let limit = Timespec::try_from(BARRIER_LIMIT).unwrap_or_default();
        let mut polled = [PollFd::from_borrowed_fd(reader.as_fd(), PollFlags::empty())];
        match poll(&mut polled, Some(&limit))? {
            0 => Err(io::Error::other("it does not read its messages")),
            _ => Ok(()),
        }
    }
}

fn removal(number: usize) -> String {
    format!("FDSTOREREMOVE=1\nFDNAME={PREFIX}{number}")
}

/// F4: the descriptors of a mount that the service manager has kept, in the order in which they were given to it. None if
/// there is no such mount, and in every call after the first. Others are left open. Called before the process opens files.
///
/// # Errors
/// One of them is not open.
pub fn kept_descriptors() -> io::Result<Vec<OwnedFd>> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<i32>().ok();
    if number(PROCESS) != Some(rustix::process::getpid().as_raw_pid()) {
        return Ok(Vec::new());
    }
    if ARE_TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    let names = std::env::var(NAMES).unwrap_or_default();
    let places = places(&names, number(COUNT).unwrap_or(0));
    places
        .into_iter()
        .map(|place| {
            // SAFETY: the number is at least 3, and the borrow lasts for one system call, which refuses a number that is not
            // open.
            fcntl_setfd(unsafe { BorrowedFd::borrow_raw(place) }, FdFlags::CLOEXEC)?;
            // SAFETY: it is open. The manager has opened it for this process, says so by LISTEN_PID, and no other code looks
            // at these variables. `places` has no number twice, and `ARE_TAKEN` lets one call come here.
            Ok(unsafe { OwnedFd::from_raw_fd(place) })
        })
        .collect()
}

/// The descriptors with our names, in the order of their numbers, up to the first one that is missing.
fn places(names: &str, count: i32) -> Vec<i32> {
    let named: Vec<(usize, i32)> = names
        .split(':')
        .zip(FIRST..FIRST.saturating_add(count))
        .filter_map(|(name, place)| Some((name.strip_prefix(PREFIX)?.parse().ok()?, place)))
        .collect();
    (0..named.len())
        .map_while(|number| named.iter().find(|(named, _)| *named == number))
        .map(|(_, place)| *place)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::places;

    #[test]
    fn descriptors_are_found_by_their_names_in_any_order() {
        assert_eq!(places("ferrofs-1:other:ferrofs-0", 3), [5, 3]);
        assert_eq!(places("ferrofs-1:other:ferrofs-0", 2), [0_i32; 0]);
        assert_eq!(places("ferrofs-0:ferrofs-2:ferrofs-0:ferrofs-x", 4), [3]);
        for (names, count) in [("", 0), ("", 1), ("ferrofs-0", 0), ("ferrofs-0", -1), ("x", 9)] {
            assert_eq!(places(names, count), [0_i32; 0], "{names} {count}");
        }
    }
}
