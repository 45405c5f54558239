//! A process that reaches the fetcher for one that cannot: in its sandbox a mount opens no socket
//! and starts no program. The companion is started before the sandbox, connects to the fetcher or
//! starts one, and passes the connected socket over a socket pair. It reads no byte of an image.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::client::Connector;
use crate::connection::Connection;
use crate::launch::FetcherProgram;
use crate::lock::lock;
use crate::protocol::ClientRole;

/// How long the companion may take: starting a fetcher, and a margin.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// Asks for a connection. The number tells a late reply apart.
#[derive(Debug, Serialize, Deserialize)]
struct ConnectRequest {
    number: u64,
}

/// The reply. The socket is beside it, unless there is an error.
#[derive(Debug, Serialize, Deserialize)]
struct ConnectReply {
    number: u64,
    error: Option<String>,
    /// Why the fetcher stores nothing.
    #[serde(default)]
    uncached: Option<String>,
}

/// The companion, from the side of the mount. It ends when this is dropped.
#[derive(Debug)]
pub struct Companion {
    socket: Connection,
    last_number: Mutex<u64>,
    cache_limit: Option<u64>,
    /// Why the last connection is to a fetcher that stores nothing.
    diagnostic: Mutex<Option<String>>,
    /// Kept so that its number stays its own as long as somebody may look for it.
    _process: Child,
}

impl Companion {
    /// Starts `command`, which must call [`serve_companion`] with its standard input.
    ///
    /// # Errors
    /// The system refuses a socket or the process.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let (ours, theirs) = Connection::pair()?;
        command.stdin(theirs.into_socket()).stdout(Stdio::null()).stderr(Stdio::null());
        // Signals of the terminal are for the mount, which then ends this.
        std::os::unix::process::CommandExt::process_group(command, 0);
        crate::child::detach(command);
        let process = command.spawn()?;
        // It holds the other end of the pair, which would hide that the companion has ended.
        command.stdin(Stdio::null());
        let last_number = Mutex::default();
        let (cache_limit, diagnostic) = (None, Mutex::default());
        Ok(Self { socket: ours, last_number, cache_limit, diagnostic, _process: process })
    }

    /// Why the last connection is to a fetcher that stores nothing, if it is.
    #[must_use]
    pub fn uncached_because(&self) -> Option<String> {
        lock(&self.diagnostic).clone()
    }

    /// The same, with a limit of the bytes that the cache may take while a connection lasts.
    #[must_use]
    pub fn cache_limit(mut self, bytes: Option<u64>) -> Self {
        self.cache_limit = bytes;
        self
    }
}

impl AsFd for Companion {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Connector for Companion {
    fn cache_limit(&self) -> Option<u64> {
        self.cache_limit
    }

    fn connect(&self) -> io::Result<Connection> {
        let mut last = lock(&self.last_number);
        *last = last.wrapping_add(1);
        let number = *last;
        let ended =
            || io::Error::new(io::ErrorKind::BrokenPipe, "the connecting process has ended");
        self.socket.send(&ConnectRequest { number }, &[]).map_err(|_| ended())?;
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        loop {
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if !self.socket.wait(rest)? {
                continue;
            }
            let received = self.socket.receive::<ConnectReply>()?;
            let (reply, files) = received.ok_or_else(ended)?;
            if reply.number != number {
                continue;
            }
            *lock(&self.diagnostic) = reply.uncached;
            return match (reply.error, files.into_iter().next()) {
                (None, Some(file)) => Ok(Connection::from_prepared(OwnedFd::from(file))),
                (Some(error), _) => Err(io::Error::other(error)),
                (None, None) => Err(io::ErrorKind::InvalidData.into()),
            };
        }
    }
}

/// The whole life of the companion: answers the mount at the other end of `socket` until it ends. The mount decodes
/// what strangers have made, so each of its connections is that of a [`ClientRole::Reader`].
///
/// # Errors
/// `socket` is not the end of a pair that [`Companion::start`] has made, or fails.
pub fn serve_companion(socket: OwnedFd, fetcher: FetcherProgram) -> io::Result<()> {
    let fetcher = fetcher.role(ClientRole::Reader);
    let socket = Connection::new(socket)?;
    rustix::process::chdir(Path::new("/"))?;
    while let Some((ConnectRequest { number }, _)) = socket.receive()? {
        match fetcher.connect() {
            Ok(connection) => {
                let reply =
                    ConnectReply { number, error: None, uncached: fetcher.uncached_because() };
                socket.send(&reply, &[connection.as_fd()])?;
            }
            Err(error) => {
                let error = Some(error.to_string());
                socket.send(&ConnectReply { number, error, uncached: None }, &[])?;
            }
        }
    }
    Ok(())
}
