//! The sockets by which other processes reach those of a mount.
//!
//! The holder of a mount has a control socket (docs/survival.md, protocol R): an abstract Unix socket that is named after the
//! device number of the mount. Each side checks the user of the other one. Used by `holder` and `handover`.
//!
//! The socket of the service manager is that of systemd, or of another one with its protocol (`sd_notify(3)`,
//! `sd_listen_fds(3)`). The manager learns when a mount is ready, and keeps the descriptors of a mount while no process of its
//! service lives (protocol F). Used by the command before it enters the sandbox, and by the holder, which only writes.
#![allow(
    unsafe_code,
    reason = "SO_PEERCRED: rustix has no place for a process of another PID namespace; descriptors that the service manager \
              has opened in this process"
)]

use std::hash::{BuildHasher, RandomState};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, connect, listen, recvmsg, sendmsg, socket_with,
};

use super::Attachment;
use crate::session::fault_point;

/// How the names of control sockets begin.
const PREFIX: &str = "ferrofs/";
/// The list of the sockets of this network namespace.
const SOCKETS: &str = "/proc/net/unix";
/// Programs that may wait for the holder at a time.
const BACKLOG: i32 = 4;
/// Descriptors of a message; the kernel takes 253.
const DESCRIPTORS_MAX: usize = 200;
/// The largest message: a kind, a number and a text.
const MESSAGE_BYTES: usize = 512;
const NUMBER_BYTES: usize = 8;
/// The user that the kernel shows for one that is not mapped in this user namespace, by default.
const UNMAPPED_USER: u32 = 65_534;

/// From a program: it wants to take the mount over; or that the holder starts a server now.
pub(super) const TAKE_OVER: u8 = b'T';
pub(super) const REATTACH: u8 = b'A';
/// From the holder: a part of what it holds; it refuses; a server has been or is started.
pub(super) const OFFER: u8 = b'S';
pub(super) const REFUSED: u8 = b'F';
pub(super) const ATTACHED: u8 = b'A';
/// From the program: its server is prepared. From the holder: its own server has ended.
pub(super) const GO: u8 = b'G';
pub(super) const HANDED: u8 = b'H';
/// From the new server: it serves. From the program: its server has ended before. From the holder: it starts one.
pub(super) const DONE: u8 = b'D';
pub(super) const GIVE_UP: u8 = b'X';
pub(super) const TAKEN_BACK: u8 = b'B';

/// A message.
#[derive(Debug, Default)]
pub(super) struct ControlMessage {
    pub(super) kind: u8,
    pub(super) number: u64,
    pub(super) text: String,
    pub(super) descriptors: Vec<OwnedFd>,
    /// Whether descriptors are missing, since this process may have no more.
    pub(super) is_cut: bool,
}

const NO_DESCRIPTORS: &str =
    "the process that holds the mount may open no more files: raise its limit (prlimit --nofile)";

/// Who is on the other side of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerCredentials {
    /// 0 in another PID namespace.
    pub(super) process: i32,
    pub(super) user: u32,
    pub(super) group: u32,
}

/// Where the holder listens.
#[derive(Debug)]
pub struct ControlSocket {
    listener: OwnedFd,
    /// Closed to take a program from the queue where this process may open nothing more: a program that is left there would
    /// wake it up without end.
    spare: Option<OwnedFd>,
}

impl ControlSocket {
    /// Listens for the mount with this device number.
    ///
    /// # Errors
    /// The system refuses.
    pub fn listen(device_number: &str) -> io::Result<Self> {
        // Another user cannot take a name that is not known beforehand.
        let unknown = RandomState::new().hash_one(std::process::id());
        let name = format!("{PREFIX}{device_number}/{unknown:016x}");
        let listener = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        bind(&listener, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        listen(&listener, BACKLOG)?;
        let spare = fcntl_dupfd_cloexec(&listener, 0).ok();
        Ok(Self { listener, spare })
    }

    /// The descriptors that it needs.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [self.listener.as_fd()].into_iter().chain(self.spare.as_ref().map(AsFd::as_fd))
    }

    /// The next program that waits, if it is of root or of the user of this process. It is refused where this process may
    /// open nothing more.
    pub(super) fn accept(&mut self) -> Option<(OwnedFd, PeerCredentials)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match accept_with(&self.listener, flags) {
            Ok(socket) => socket,
            // Also where no program waits.
            Err(Errno::MFILE | Errno::NFILE) => {
                let mut polled = [PollFd::new(&self.listener, PollFlags::IN)];
                if !poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
                    return None;
                }
                drop(self.spare.take());
                // The next spare one. If the program has gone, its number stays free for the next program.
                self.spare = accept_with(&self.listener, flags).ok();
                if let Some(socket) = &self.spare {
                    send(socket.as_fd(), REFUSED, 0, NO_DESCRIPTORS).ok();
                }
                return None;
            }
            Err(_) => return None,
        };
        let peer = peer(socket.as_fd()).ok()?;
        may_control(peer.user, rustix::process::geteuid().as_raw()).then_some((socket, peer))
    }
}

impl AsFd for ControlSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Whether a user may control a mount of `owner`. Users of other user namespaces look like the unmapped one.
fn may_control(user: u32, owner: u32) -> bool {
    user == 0 || (user == owner && (user != UNMAPPED_USER || are_all_users_mapped()))
}

fn are_all_users_mapped() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// A connection to a holder.
pub(super) struct ConnectedHolder {
    pub(super) socket: OwnedFd,
    pub(super) peer: PeerCredentials,
    /// The name of its socket.
    pub(super) name: Vec<u8>,
}

/// What a search for a holder has found.
pub(super) enum HolderSearch {
    /// A holder that has taken the connection.
    Found(ConnectedHolder),
    /// None, but a socket with a fitting name has a full queue, or the time was over: it may be that of the holder.
    Busy,
    /// None.
    Absent,
}

/// Connects to the holder of the mount with this device number, if it runs as root or as `owner`. Sockets with the names
/// `except` are passed over: the kernel gives a device number again at once, so one of a mount that has ended may have it, too.
///
/// Every user may listen at such a name, so no connection is waited for: one whose queue is full is passed over, too. At
/// `deadline` the search ends, however many names there are.
///
/// # Errors
/// The list of sockets cannot be read, or there is no memory for a socket.
pub(super) fn connect_to(
    device_number: &str,
    owner: u32,
    except: &[Vec<u8>],
    deadline: Instant,
) -> io::Result<HolderSearch> {
    let table = std::fs::read(SOCKETS)?;
    let place = format!("@{PREFIX}{device_number}/");
    let mut names: Vec<&[u8]> = table
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.rsplit(|byte| *byte == b' ').next())
        .filter(|name| name.starts_with(place.as_bytes()))
        .filter(|name| !except.iter().any(|other| other == name))
        .collect();
    // Accepted sockets have the name, too.
    names.sort_unstable();
    names.dedup();
    let mut absent = HolderSearch::Absent;
    for name in names {
        if Instant::now() >= deadline {
            return Ok(HolderSearch::Busy);
        }
        // A connection to a full queue waits without limit otherwise.
        let socket = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        let Ok(address) = SocketAddrUnix::new_abstract_name(name.get(1..).unwrap_or_default())
        else {
            continue;
        };
        match connect(&socket, &address) {
            Ok(()) => {}
            Err(Errno::AGAIN) => {
                absent = HolderSearch::Busy;
                continue;
            }
            Err(_) => continue,
        }
        let peer = peer(socket.as_fd())?;
        if peer.user == 0 || peer.user == owner {
            // Messages to a holder wait until it has room for them.
            fcntl_setfl(&socket, OFlags::empty())?;
            return Ok(HolderSearch::Found(ConnectedHolder { socket, peer, name: name.to_vec() }));
        }
    }
    Ok(absent)
}

fn socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

fn peer(socket: BorrowedFd<'_>) -> io::Result<PeerCredentials> {
    let mut credentials = MaybeUninit::<libc::ucred>::zeroed();
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or(0);
    // SAFETY: getsockopt writes at most `length` bytes to `credentials`, which has as many; every value is a valid ucred.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            credentials.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was zeroed, and the call has written to it.
    let libc::ucred { pid, uid, gid } = unsafe { credentials.assume_init() };
    Ok(PeerCredentials { process: pid, user: uid, group: gid })
}

/// Sends a message. The other side may have ended.
///
/// # Errors
/// It has; or it does not read.
pub(super) fn send(socket: BorrowedFd<'_>, kind: u8, number: u64, text: &str) -> Result<(), Errno> {
    send_with(socket, &bytes(kind, number, text), &[])
}

/// Sends a message from a process whose sandbox allows writing only.
pub(super) fn write(socket: BorrowedFd<'_>, kind: u8) {
    // The other side may have ended.
    rustix::io::write(socket, &bytes(kind, 0, "")).ok();
}

/// Sends descriptors in messages of this kind.
///
/// # Errors
/// As [`send`].
pub(super) fn send_descriptors(
    socket: BorrowedFd<'_>,
    kind: u8,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let mut left = descriptors.len();
    for some in descriptors.chunks(DESCRIPTORS_MAX) {
        left = left.saturating_sub(some.len());
        send_with(socket, &bytes(kind, u64::try_from(left).unwrap_or(0), ""), some)?;
    }
    Ok(())
}

fn bytes(kind: u8, number: u64, text: &str) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend(number.to_le_bytes());
    bytes.extend(text.bytes().take(MESSAGE_BYTES - NUMBER_BYTES - 1));
    bytes
}

fn send_with(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::TOOBIG);
    }
    loop {
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return sent.map(|_| ()),
        }
    }
}

/// The next message, without waiting: `None` if there is none, kind 0 if the other side has closed the socket.
pub(super) fn receive_now(socket: BorrowedFd<'_>) -> Option<ControlMessage> {
    let mut buffer = [0; MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let (received, is_cut) = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut buffer)], &mut control, flags) {
            // The other side has closed the socket and left messages unread. What it has sent before comes next.
            Err(Errno::INTR | Errno::CONNRESET) => {}
            Err(Errno::AGAIN) => return None,
            Err(_) => break (0, false),
            Ok(received) => {
                break (received.bytes, received.flags.contains(ReturnFlags::CTRUNC));
            }
        }
    };
    let descriptors = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(received) => Some(received),
            _ => None,
        })
        .flatten()
        .collect();
    let message = buffer.get(..received).unwrap_or_default();
    let Some((kind, rest)) = message.split_first() else { return Some(ControlMessage::default()) };
    let number = rest.first_chunk::<NUMBER_BYTES>().map_or(0, |word| u64::from_le_bytes(*word));
    let text = String::from_utf8_lossy(rest.get(NUMBER_BYTES..).unwrap_or_default()).into_owned();
    Some(ControlMessage { kind: *kind, number, text, descriptors, is_cut })
}

/// The next message; kind 0 also after the time limit.
pub(super) fn receive(socket: BorrowedFd<'_>, limit: Duration) -> ControlMessage {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(message) = receive_now(socket) {
            return message;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return ControlMessage::default();
        }
        let left = Timespec::try_from(left).unwrap_or_default();
        poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::IN)], Some(&left)).ok();
    }
}

/// The socket of the manager: a path, or an abstract name after `@`.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";
/// How many descriptors it keeps. systemd sets it since version 254.
const FDSTORE: &str = "FDSTORE";
/// For which process it has opened descriptors, how many, and their names.
const LISTEN_PID: &str = "LISTEN_PID";
const LISTEN_FDS: &str = "LISTEN_FDS";
const LISTEN_FDNAMES: &str = "LISTEN_FDNAMES";
/// The first of them.
const LISTEN_FDS_START: i32 = 3;
/// How names begin. A number follows: the place in the offer of a holder (KR2).
const FDNAME_PREFIX: &str = "ferrofs-";
/// Whether this process owns the descriptors that it was given.
static ARE_TAKEN: AtomicBool = AtomicBool::new(false);
/// How long the manager may take to read its messages.
const BARRIER_LIMIT: Duration = Duration::from_secs(10);

/// The way to the service manager.
#[derive(Debug)]
pub struct ServiceManager {
    socket: OwnedFd,
    capacity: usize,
}

impl ServiceManager {
    /// The manager that has started this process and waits for its message; `None` without one.
    ///
    /// # Errors
    /// There is one, but it cannot be reached.
    pub fn of_environment() -> io::Result<Option<Self>> {
        let Some(name) = std::env::var_os(NOTIFY_SOCKET).filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        let address = match name.as_bytes().split_first() {
            Some((b'@', name)) => SocketAddrUnix::new_abstract_name(name)?,
            _ => SocketAddrUnix::new(name.as_os_str())?,
        };
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        connect(&socket, &address)?;
        let capacity =
            std::env::var(FDSTORE).ok().and_then(|capacity| capacity.parse().ok()).unwrap_or(0);
        Ok(Some(Self { socket, capacity }))
    }

    /// Whether it keeps descriptors.
    #[must_use]
    pub fn keeps_descriptors(&self) -> bool {
        self.capacity > 0
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

    /// KF2: lets it keep a mount: what its holder offers, and what unmounting needs. Returns when it has them.
    ///
    /// # Errors
    /// It has no room for as many, or does not answer.
    pub fn keep(&self, held: &[BorrowedFd<'_>], attachment: &Attachment) -> io::Result<usize> {
        let all: Vec<BorrowedFd<'_>> =
            held.iter().copied().chain(attachment.unmount_descriptor()).collect();
        if all.len() > self.capacity {
            let (needed, capacity) = (all.len(), self.capacity);
            let text = format!("it keeps {capacity} descriptors, and {needed} are needed");
            return Err(io::Error::other(text));
        }
        for (number, descriptor) in all.iter().enumerate() {
            fault_point("storing", number as u64);
            self.store(number, *descriptor)?;
        }
        self.wait_until_read()?;
        Ok(all.len())
    }

    /// KF5: replaces what unmounting needs, the last of `count` descriptors: a process of the service waits on its other end.
    /// From here on, that one unmounts when nobody has the descriptor any more, and the one that it replaces does not.
    ///
    /// # Errors
    /// It does not answer. Then nobody unmounts.
    pub fn renew(&self, count: usize, attachment: &mut Attachment) -> io::Result<()> {
        let at_end = attachment.at_end();
        let Some(unmounter) = attachment.unmounter() else { return Ok(()) };
        let number = count.saturating_sub(1);
        // First: when the manager has removed its descriptor, no later process could.
        unmounter.retire_previous();
        self.write(&removal(number));
        fault_point("renewing", 1);
        self.store(number, unmounter.descriptor())?;
        self.wait_until_read()?;
        unmounter.resolve_previous(at_end);
        Ok(())
    }

    /// Without the poll of systemd, which does not take every kind of descriptor.
    fn store(&self, number: usize, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.send(&format!("FDSTORE=1\nFDPOLL=0\nFDNAME={FDNAME_PREFIX}{number}"), descriptor)
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
    format!("FDSTOREREMOVE=1\nFDNAME={FDNAME_PREFIX}{number}")
}

/// KF4: the descriptors of a mount that the service manager has kept, in the order in which they were given to it. None if
/// there is no such mount, and in every call after the first. Others are left open. Called before the process opens files.
///
/// # Errors
/// One of them is not open.
pub fn kept_descriptors() -> io::Result<Vec<OwnedFd>> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<i32>().ok();
    if number(LISTEN_PID) != Some(rustix::process::getpid().as_raw_pid()) {
        return Ok(Vec::new());
    }
    if ARE_TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    let names = std::env::var(LISTEN_FDNAMES).unwrap_or_default();
    let places = places(&names, number(LISTEN_FDS).unwrap_or(0));
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
        .zip(LISTEN_FDS_START..LISTEN_FDS_START.saturating_add(count))
        .filter_map(|(name, place)| Some((name.strip_prefix(FDNAME_PREFIX)?.parse().ok()?, place)))
        .collect();
    (0..named.len())
        .map_while(|number| named.iter().find(|(named, _)| *named == number))
        .map(|(_, place)| *place)
        .collect()
}

#[cfg(test)]
mod tests {
    use rustix::net::socketpair;

    use super::*;

    /// The limit of every wait.
    const LIMIT: Duration = Duration::from_secs(60);

    fn find(number: &str, owner: u32, except: &[Vec<u8>]) -> Option<ConnectedHolder> {
        match connect_to(number, owner, except, Instant::now() + LIMIT).expect("a list") {
            HolderSearch::Found(holder) => Some(holder),
            HolderSearch::Busy => panic!("no queue is full"),
            HolderSearch::Absent => None,
        }
    }

    #[test]
    fn a_holder_is_found_by_the_device_number_and_gets_messages_with_descriptors() {
        let number = format!("test:{}", std::process::id());
        let owner = rustix::process::geteuid().as_raw();
        let find = |except: &[Vec<u8>]| find(&number, owner, except);
        assert!(find(&[]).is_none());
        let mut holder = ControlSocket::listen(&number).expect("a socket");
        let ConnectedHolder { socket: client, peer, name } = find(&[]).expect("a holder");
        assert_eq!(peer.user, owner);
        assert!(find(std::slice::from_ref(&name)).is_none());
        let (accepted, peer) = holder.accept().expect("the client");
        assert_eq!(peer.process, std::process::id().cast_signed());
        assert!(receive_now(accepted.as_fd()).is_none() && holder.accept().is_none());
        let many = vec![client.as_fd(); DESCRIPTORS_MAX + 7];
        send_descriptors(client.as_fd(), OFFER, &many).expect("sent");
        send(client.as_fd(), REFUSED, 7, &"x".repeat(MESSAGE_BYTES)).expect("sent");
        let first = receive_now(accepted.as_fd()).expect("a message");
        assert_eq!((first.number, first.descriptors.len()), (7, DESCRIPTORS_MAX));
        drop(first);
        assert_eq!(receive_now(accepted.as_fd()).expect("a message").descriptors.len(), 7);
        let refused = receive(accepted.as_fd(), Duration::from_secs(9));
        assert_eq!((refused.kind, refused.number), (REFUSED, 7));
        assert_eq!(refused.text.len(), MESSAGE_BYTES - 1 - NUMBER_BYTES);
        drop(client);
        assert_eq!(receive(accepted.as_fd(), Duration::from_secs(9)).kind, 0);
    }

    /// Any user may listen at a name that is before that of the holder, and let its queue fill.
    #[test]
    fn a_socket_whose_queue_is_full_does_not_keep_a_program_from_the_holder() {
        let number = format!("full:{}", std::process::id());
        let owner = rustix::process::geteuid().as_raw();
        let name = format!("{PREFIX}{number}/0000000000000000");
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("an address");
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let foreign = socket(flags).expect("a socket");
        bind(&foreign, &address).expect("a name");
        listen(&foreign, 0).expect("a queue");
        let waiting: Vec<OwnedFd> = std::iter::repeat_with(|| socket(flags).expect("a socket"))
            .take_while(|socket| connect(socket, &address).is_ok())
            .collect();
        // A search that waits for that socket has no end.
        let find = |deadline| connect_to(&number, owner, &[], deadline).expect("a list");
        let alone = find(Instant::now() + LIMIT);
        let mut holder = ControlSocket::listen(&number).expect("a socket");
        let both = find(Instant::now() + LIMIT);
        let late = find(Instant::now());
        assert!(matches!(alone, HolderSearch::Busy) && matches!(late, HolderSearch::Busy));
        let HolderSearch::Found(found) = both else { panic!("the holder was not found") };
        assert!(!found.name.ends_with(b"/0000000000000000"));
        assert!(holder.accept().is_some());
        drop(waiting);
    }

    /// The kernel reports that messages were left unread before it gives out what was sent.
    #[test]
    fn the_last_message_of_a_socket_that_was_closed_with_unread_ones_arrives() {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (own, other) = socketpair(AddressFamily::UNIX, kind, flags, None).expect("sockets");
        send(own.as_fd(), GO, 0, "").expect("sent");
        send(other.as_fd(), REFUSED, 0, "too late").expect("sent");
        drop(other);
        let message = receive_now(own.as_fd()).expect("a message");
        assert_eq!((message.kind, message.text.as_str()), (REFUSED, "too late"));
        assert_eq!(receive_now(own.as_fd()).expect("the end").kind, 0);
    }

    /// The kernel cuts the descriptors at the limit of open files, too.
    #[test]
    fn a_message_whose_descriptors_are_cut_says_so() {
        const MANY: usize = DESCRIPTORS_MAX + 8;
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (own, other) = socketpair(AddressFamily::UNIX, kind, flags, None).expect("sockets");
        for (count, is_cut) in [(DESCRIPTORS_MAX, false), (MANY, true)] {
            let descriptors = vec![own.as_fd(); count];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MANY))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
            let bytes = bytes(OFFER, 0, "");
            let flags = SendFlags::NOSIGNAL;
            sendmsg(&other, &[IoSlice::new(&bytes)], &mut control, flags).expect("sent");
            let message = receive_now(own.as_fd()).expect("a message");
            assert_eq!((message.kind, message.is_cut), (OFFER, is_cut), "{count}");
        }
    }

    #[test]
    fn only_root_and_the_owner_control_a_mount() {
        assert!(may_control(0, 1000) && may_control(1000, 1000));
        assert!(!may_control(1001, 1000) && !may_control(1000, 0));
        assert_eq!(may_control(UNMAPPED_USER, UNMAPPED_USER), are_all_users_mapped());
    }

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
