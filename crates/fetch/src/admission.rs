//! Which clients are served: accepts connections, counts them, and tells those beyond a limit why
//! they are refused. Knows no message but that refusal. The process lives as long as this loop, so
//! that a shortage of descriptors, threads or memory never ends it: other clients have images open.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use ferrofs_remote::Connection;
use ferrofs_remote::protocol::{FetchError, FetchErrorKind, FetcherMessage, NO_REPLY};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use tokio::runtime::Handle;

use crate::fetcher::Fetcher;
use crate::lock::lock;
use crate::server;

/// Connections at the same time. One is a mount or a running verb.
const CONNECTIONS_MAX: usize = 1024;
/// How long a connection waits for another one to end if there is no descriptor for it. The next
/// attempt comes then in any case, as an object that is closed frees descriptors as well.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

/// Allows this process all descriptors and all lengths of files that it may have. A connection needs a descriptor and an
/// open image about five, and the usual limit of 1024 is for programs that use `select`. The length is that which a verb was
/// allowed, and this process serves others as well.
pub(crate) fn raise_limits() {
    for resource in [Resource::Nofile, Resource::Fsize] {
        let maximum = getrlimit(resource).maximum;
        // With fewer descriptors fewer clients are served, which is no reason to serve none.
        setrlimit(resource, Rlimit { current: maximum, maximum }).ok();
    }
}

/// From here on, a write beyond the limit of file sizes (`ulimit -f`) is an error like any other and does not end the
/// process.
pub(crate) fn survive_file_size_limit() {
    // Programs that are started inherit no handlers. Where none can be installed, the signal ends the process.
    signal_hook::flag::register(Signal::XFSZ.as_raw(), Arc::default()).ok();
}

/// The connections that are open.
#[derive(Debug)]
struct Connections {
    open: Mutex<Open>,
    /// Notified when one has ended.
    ended: Condvar,
}

#[derive(Debug)]
struct Open {
    count: usize,
    last_used: Instant,
}

impl Connections {
    fn new() -> Self {
        let open = Open { count: 0, last_used: Instant::now() };
        Self { open: Mutex::new(open), ended: Condvar::new() }
    }

    /// Counts one more; false if there are as many as there may be.
    fn add(&self) -> bool {
        let mut open = lock(&self.open);
        let is_free = open.count < CONNECTIONS_MAX;
        open.count += usize::from(is_free);
        is_free
    }

    /// Takes back what [`add`](Self::add) has counted.
    fn remove(&self) {
        let mut open = lock(&self.open);
        open.count -= 1;
        open.last_used = Instant::now();
        self.ended.notify_all();
    }

    fn are_idle(&self, idle: Duration) -> bool {
        let open = lock(&self.open);
        open.count == 0 && open.last_used.elapsed() >= idle
    }

    /// Waits until one ends, at most [`SHORTAGE_PAUSE`]. False if none did.
    fn wait_for_end(&self) -> bool {
        let open = lock(&self.open);
        let before = open.count;
        let waited =
            self.ended.wait_timeout_while(open, SHORTAGE_PAUSE, |open| open.count >= before);
        waited.is_ok_and(|(_, result)| !result.timed_out())
    }
}

/// Accepts connections until none was open for `idle`.
///
/// # Errors
/// The socket cannot be used. A shortage is none: whoever is refused hears why.
pub(crate) fn serve(
    listener: BorrowedFd<'_>,
    fetcher: &Arc<Fetcher>,
    runtime: &Handle,
    idle: Duration,
) -> io::Result<()> {
    let connections = Arc::new(Connections::new());
    let mut spare = spare_descriptor();
    let timeout =
        Timespec { tv_sec: i64::try_from(idle.as_secs().max(1)).unwrap_or(i64::MAX), tv_nsec: 0 };
    loop {
        let mut waiting = [PollFd::new(&listener, PollFlags::IN)];
        match rustix::event::poll(&mut waiting, Some(&timeout)) {
            Ok(0) if connections.are_idle(idle) => return Ok(()),
            Ok(0) | Err(Errno::INTR) => continue,
            Err(errno) if is_shortage(errno) => {
                connections.wait_for_end();
                continue;
            }
            other => other?,
        };
        match accept(listener) {
            Ok(Some(connection)) => start(connection, fetcher, runtime, &connections),
            Ok(None) => {}
            Err(errno) if is_shortage(errno) => {
                if !connections.wait_for_end() {
                    refuse_next(listener, &mut spare);
                }
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// The next connection; `None` if it has gone or is not one of this process' user.
fn accept(listener: BorrowedFd<'_>) -> Result<Option<Connection>, Errno> {
    let socket = match rustix::net::accept_with(listener, rustix::net::SocketFlags::CLOEXEC) {
        Ok(socket) => socket,
        Err(Errno::CONNABORTED | Errno::INTR) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    let own = rustix::process::geteuid().as_raw();
    let accepted = Connection::new(socket).and_then(|one| Ok((one.peer_user()? == own, one)));
    Ok(accepted.ok().filter(|(is_own, _)| *is_own).map(|(_, connection)| connection))
}

/// Whether the system or this process lacks something that it may have again later.
fn is_shortage(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
}

/// Starts the thread of a connection.
fn start(
    connection: Connection,
    fetcher: &Arc<Fetcher>,
    runtime: &Handle,
    connections: &Arc<Connections>,
) {
    if !connections.add() {
        let detail = format!("{CONNECTIONS_MAX} clients are connected, which is the limit");
        return refuse(&connection, &detail);
    }
    let connection = Arc::new(connection);
    let serving = Arc::clone(&connection);
    let (fetcher, runtime) = (Arc::clone(fetcher), runtime.clone());
    let counted = Arc::clone(connections);
    let started = std::thread::Builder::new().name("client".to_owned()).spawn(move || {
        server::serve_one(serving, &fetcher, &runtime);
        counted.remove();
    });
    // The thread ends with its connection, or with the process.
    if let Err(error) = started {
        connections.remove();
        refuse(&connection, &format!("no thread for this client: {error}"));
    }
}

/// A descriptor that is closed for a moment to accept a connection that must be refused.
fn spare_descriptor() -> Option<File> {
    // Without it such a client waits until there is a descriptor for it.
    File::open("/dev/null").ok()
}

/// Refuses the next connection, for which there is no descriptor.
fn refuse_next(listener: BorrowedFd<'_>, spare: &mut Option<File>) {
    if let Some(file) = spare.take() {
        drop(file);
        // If another thread has taken the descriptor meanwhile, the client waits on.
        if let Ok(Some(connection)) = accept(listener) {
            refuse(&connection, "no descriptor is left for this client");
        }
    }
    *spare = spare_descriptor();
}

/// Tells a client why it is not served.
fn refuse(connection: &Connection, detail: &str) {
    let error = FetchError::new(FetchErrorKind::Exhausted, "the fetcher", detail);
    // A client that has gone needs no reason.
    connection.send(&FetcherMessage::Failed { id: NO_REPLY, error }, &[]).ok();
    connection.shut_down();
}
