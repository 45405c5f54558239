//! The socket by which the holder of a mount is reached (docs/survival.md, protocol R): an abstract Unix socket that is
//! named after the device number of the mount. Each side checks the user of the other one. Used by `holder` and
//! `handover`.
#![allow(
    unsafe_code,
    reason = "SO_PEERCRED: rustix has no place for a process of another PID namespace"
)]

use std::hash::{BuildHasher, RandomState};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, connect, listen, recvmsg, sendmsg, socket_with,
};

/// How the names of these sockets begin.
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
}
