//! The socket of the fetcher in its cache directory. A lock makes sure that one fetcher listens.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FlockOperation, OFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::{CacheDirectory, open_in};
use crate::connection::Connection;

const SOCKET_NAME: &str = "socket";
pub(super) const LOCK_NAME: &str = "lock";
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// How long a fetcher may take to accept a connection while others wait, unless it is stopped or hangs.
const CONNECT_LIMIT: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 10_000 });

/// A socket on which the only fetcher of a cache listens. Dropping it removes its name.
#[derive(Debug)]
pub struct FetcherSocket {
    name: ListeningName,
    /// Dropped last.
    lock: std::fs::File,
}

/// The socket and its name, which is removed when this is dropped.
#[derive(Debug)]
struct ListeningName {
    listener: OwnedFd,
    folder: OwnedFd,
}

impl FetcherSocket {
    /// Listens in a cache directory; `None` if another fetcher does.
    ///
    /// # Errors
    /// The lock or the socket cannot be made.
    pub fn listen(cache: &CacheDirectory) -> io::Result<Option<Self>> {
        let folder = cache.objects.try_clone()?;
        let lock = open_in(&folder, LOCK_NAME, OFlags::RDWR | OFlags::CREATE)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Ok(None),
            other => other?,
        }
        // Left over by a fetcher that was killed.
        match rustix::fs::unlinkat(&folder, SOCKET_NAME, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        let listener = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        rustix::net::bind(&listener, &address(&folder)?)?;
        rustix::net::listen(&listener, BACKLOG)?;
        Ok(Some(Self { name: ListeningName { listener, folder }, lock }))
    }

    /// The listening socket.
    #[must_use]
    pub fn listener(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.name.listener)
    }

    /// Listens no more. Until the returned file is closed, no other fetcher uses the cache.
    #[must_use]
    pub fn into_lock(self) -> std::fs::File {
        self.lock
    }
}

impl Drop for ListeningName {
    fn drop(&mut self) {
        // The next fetcher removes it otherwise.
        rustix::fs::unlinkat(&self.folder, SOCKET_NAME, AtFlags::empty()).ok();
    }
}

impl CacheDirectory {
    /// Connects to the fetcher of this cache.
    ///
    /// # Errors
    /// `NotFound` or `ConnectionRefused` if none listens; `TimedOut` if it accepts no connections.
    pub fn connect(&self) -> io::Result<Connection> {
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        // The limit of sending is also that of connecting (unix(7)), which waits while too many others do.
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(CONNECT_LIMIT))?;
        let (address, until) = (address(&self.objects)?, Instant::now() + CONNECT_LIMIT);
        loop {
            match rustix::net::connect(&socket, &address) {
                Err(Errno::INTR) if Instant::now() < until => {}
                Err(Errno::AGAIN | Errno::INTR) => {
                    let seconds = CONNECT_LIMIT.as_secs();
                    let text = format!(
                        "the fetcher accepted no connection within {seconds} s; if ferrofs-fetch \
                         hangs, end it"
                    );
                    return Err(io::Error::new(io::ErrorKind::TimedOut, text));
                }
                connected => break connected?,
            }
        }
        Connection::new(socket)
    }
}

/// The name of the socket by way of the descriptor of its folder: the path of a socket has at most
/// 107 bytes, and that of a cache can be longer.
fn address(folder: &OwnedFd) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new(format!("/proc/self/fd/{}/{SOCKET_NAME}", folder.as_raw_fd()))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_fetcher_listens_and_leaves_nothing_behind() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("long".repeat(50)).join("cache");
        let cache = CacheDirectory::open(&path).unwrap();
        assert_eq!(cache.connect().unwrap_err().kind(), io::ErrorKind::NotFound);
        let socket = FetcherSocket::listen(&cache).unwrap().unwrap();
        assert!(FetcherSocket::listen(&cache).unwrap().is_none());
        let client = cache.connect().unwrap();
        let accepted = rustix::net::accept(socket.listener()).unwrap();
        let server = Connection::new(accepted).unwrap();
        client.send(&5, &[]).unwrap();
        assert_eq!(server.receive::<u32>().unwrap().unwrap().0, 5);
        let lock = socket.into_lock();
        assert_eq!(cache.connect().unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(FetcherSocket::listen(&cache).unwrap().is_none());
        drop(lock);
        assert!(FetcherSocket::listen(&cache).unwrap().is_some());
    }

    /// A client of a fetcher that was stopped waited for ever.
    #[test]
    fn a_fetcher_that_accepts_no_connections_is_not_waited_for() {
        let above = tempfile::tempdir().unwrap();
        let cache = CacheDirectory::open(&above.path().join("cache")).unwrap();
        let _socket = FetcherSocket::listen(&cache).unwrap().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let clients = std::thread::Builder::new().spawn(move || {
            let connected: Vec<_> = (0..=BACKLOG + 1).map(|_| cache.connect()).collect();
            let error = connected.into_iter().find_map(Result::err);
            sender.send(error).unwrap();
        });
        clients.unwrap();
        let error = receiver.recv_timeout(Duration::from_secs(20)).unwrap().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        assert!(error.to_string().contains("ferrofs-fetch"), "{error}");
    }

    #[test]
    fn the_socket_of_a_killed_fetcher_is_replaced() {
        let above = tempfile::tempdir().unwrap();
        let cache = CacheDirectory::open(&above.path().join("cache")).unwrap();
        let socket = FetcherSocket::listen(&cache).unwrap().unwrap();
        // A killed process drops nothing, but its descriptors are closed.
        let name = above.path().join("cache/v1/socket");
        std::fs::rename(&name, name.with_extension("kept")).unwrap();
        drop(socket);
        std::fs::rename(name.with_extension("kept"), &name).unwrap();
        assert_eq!(cache.connect().unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert!(FetcherSocket::listen(&cache).unwrap().is_some());
    }
}
