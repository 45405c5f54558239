//! A socket between a reader and the fetcher: whole messages, with descriptors beside them. Does
//! not know what they mean.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::protocol::{DESCRIPTORS_MAX, MESSAGE_MAX_BYTES};

/// A peer that takes no message for so long is given up.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// One end of a connection. Threads may send at the same time; one thread receives.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
}

impl Connection {
    /// Uses a connected socket of the type `SOCK_SEQPACKET`.
    ///
    /// # Errors
    /// It is of another type, or an option of it cannot be set.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        if sockopt::socket_type(&socket)? != SocketType::SEQPACKET {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(SEND_TIMEOUT))?;
        Ok(Self { socket })
    }

    /// Uses a socket that another process of ours has passed to [`Connection::new`]: the options are
    /// those of the socket, whoever holds it. Makes no system call.
    #[must_use]
    pub fn from_prepared(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// Two connected ends.
    ///
    /// # Errors
    /// As `socketpair`.
    pub fn pair() -> io::Result<(Self, Self)> {
        let flags = SocketFlags::CLOEXEC;
        let (one, other) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self::new(one)?, Self::new(other)?))
    }

    /// The socket, for another process.
    pub(crate) fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Sends a message.
    ///
    /// # Errors
    /// `InvalidInput` if it is too long; otherwise the connection has ended or the peer does not
    /// read.
    pub fn send(&self, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_with(message, descriptors, SendFlags::empty())
    }

    /// Sends a message if that takes no wait for the peer.
    ///
    /// # Errors
    /// `WouldBlock` if the peer must read first; otherwise as [`send`](Self::send).
    pub fn try_send(
        &self,
        message: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        self.send_with(message, descriptors, SendFlags::DONTWAIT)
    }

    fn send_with(
        &self,
        message: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> io::Result<()> {
        let flags = flags | SendFlags::NOSIGNAL;
        let bytes = serde_json::to_vec(message)?;
        if bytes.len() > MESSAGE_MAX_BYTES || descriptors.len() > DESCRIPTORS_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // A record is sent whole or not at all.
        loop {
            let sent = if descriptors.is_empty() {
                // The only call that sends in the sandbox of a mount.
                rustix::net::send(&self.socket, &bytes, flags)
            } else {
                self.send_descriptors(&bytes, descriptors, flags)
            };
            match sent {
                Err(rustix::io::Errno::INTR) => {}
                other => return Ok(other.map(drop)?),
            }
        }
    }

    fn send_descriptors(
        &self,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> rustix::io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        let slices = [IoSlice::new(bytes)];
        rustix::net::sendmsg(&self.socket, &slices, &mut ancillary, flags)
    }

    /// Whether a message, or the end, comes within `time`.
    ///
    /// # Errors
    /// As `poll`.
    pub fn wait(&self, time: Duration) -> io::Result<bool> {
        let timeout = Timespec::try_from(time).ok();
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
        match rustix::event::poll(&mut polled, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => Ok(false),
            ready => Ok(ready? > 0),
        }
    }

    /// Waits for a message; `None` when the peer has closed the connection.
    ///
    /// # Errors
    /// `InvalidData` if the message is too long, is none of type `T`, or has too many descriptors;
    /// otherwise the connection has ended.
    pub fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<File>)>> {
        let mut bytes = vec![0; MESSAGE_MAX_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut slices = [IoSliceMut::new(&mut bytes)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            match rustix::net::recvmsg(&self.socket, &mut slices, &mut ancillary, flags) {
                Err(rustix::io::Errno::INTR) => {}
                other => break other?,
            }
        };
        if received.bytes == 0 {
            return Ok(None);
        }
        let mut files = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                files.extend(descriptors.map(File::from));
            }
        }
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the message is too long"));
        }
        let bytes = bytes.get(..received.bytes).unwrap_or_default();
        let message = serde_json::from_slice(bytes)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(Some((message, files)))
    }

    /// Ends the connection; a receiver on either side sees its end.
    pub fn shut_down(&self) {
        // It may have ended already.
        rustix::net::shutdown(&self.socket, Shutdown::Both).ok();
    }

    /// The user who runs the peer.
    ///
    /// # Errors
    /// As `getsockopt`.
    pub fn peer_user(&self) -> io::Result<u32> {
        Ok(sockopt::socket_peercred(&self.socket)?.uid.as_raw())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};

    use super::*;
    use crate::protocol::{ClientMessage, PROTOCOL_VERSION};

    #[test]
    fn a_message_arrives_with_its_descriptors() {
        let (one, other) = Connection::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"abc").unwrap();
        file.rewind().unwrap();
        let hello = ClientMessage::Hello { version: PROTOCOL_VERSION, cache_limit: None };
        one.send(&hello, &[file.as_fd(), file.as_fd()]).unwrap();
        let (message, mut files) = other.receive::<ClientMessage>().unwrap().unwrap();
        assert_eq!((message, files.len()), (hello, 2));
        let mut text = String::new();
        files[0].read_to_string(&mut text).unwrap();
        assert_eq!(text, "abc");
        assert_eq!(other.peer_user().unwrap(), rustix::process::geteuid().as_raw());
    }

    #[test]
    fn the_end_of_a_peer_is_no_message() {
        let (one, other) = Connection::pair().unwrap();
        drop(one);
        assert!(other.receive::<ClientMessage>().unwrap().is_none());
        other.send(&ClientMessage::Stats { id: 1 }, &[]).unwrap_err();
        let (one, other) = Connection::pair().unwrap();
        other.shut_down();
        assert!(one.receive::<ClientMessage>().unwrap().is_none());
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        let (one, other) = Connection::pair().unwrap();
        let long = "x".repeat(MESSAGE_MAX_BYTES);
        assert_eq!(one.send(&long, &[]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        for bytes in
            [&b"{"[..], b"{\"type\":\"none\"}", b"\xff", &vec![b' '; MESSAGE_MAX_BYTES + 1]]
        {
            rustix::net::send(&one.socket, bytes, SendFlags::empty()).unwrap();
            let error = other.receive::<ClientMessage>().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn only_a_socket_with_record_boundaries_is_used() {
        let flags = SocketFlags::CLOEXEC;
        let (one, _other) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        Connection::new(one).unwrap_err();
    }
}
