//! What a session reports: events for a log, and the errors that prevent its start.

use std::fmt;
use std::time::Duration;

use rustix::io::Errno;

/// An event of a session that belongs in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionEvent {
    /// A request exceeded the time limit; its caller got `EIO`.
    TimedOut {
        /// The thread that made the request; 0 if there is none, or if it is in another PID namespace.
        pid: u32,
        /// How long the request had been in flight.
        after: Duration,
    },
    /// The caller of a request that hangs is being killed; it got `EINTR`.
    Interrupted {
        /// The thread that made the request; 0 if it is in another PID namespace.
        pid: u32,
        /// How long the request had been in flight.
        after: Duration,
    },
    /// All listeners were busy, so a spare one was started.
    SpareListenerStarted {
        /// The number of listener threads now.
        listeners: usize,
    },
    /// The file system panicked in [`FileSystem::listener_started`](crate::FileSystem::listener_started); the
    /// listener serves all the same.
    ListenerStartPanicked,
    /// The file system panicked in a request; its caller got `EIO`.
    Panicked {
        /// The node of the request.
        node: u64,
    },
    /// This process has taken over from another one.
    TookOver {
        /// Requests that the other one had read and not answered.
        in_flight: usize,
        /// Whether the kernel sends them again; otherwise their callers got `EIO`.
        are_resent: bool,
    },
    /// Requests of a node get `EIO` from here on, because processes have died in one of them.
    Banned {
        /// The node.
        node: u64,
    },
    /// The kernel sent a request that is shorter than its header or its operation requires; it got `EIO`.
    MalformedRequest,
    /// Reading from the device failed for good; the listener ended.
    DeviceFailed {
        /// Why.
        errno: Errno,
    },
    /// The file system was unmounted and its last user is gone. The first listener that sees this reports it, once.
    Unmounted,
}

impl fmt::Display for SessionEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut { pid, after } => {
                write!(f, "request of thread {pid} timed out after {after:?}; replied EIO")
            }
            Self::Interrupted { pid, after } => {
                write!(
                    f,
                    "thread {pid} is being killed; its request was interrupted after {after:?}"
                )
            }
            Self::SpareListenerStarted { listeners } => {
                write!(f, "all listeners are busy; started another one, {listeners} in total")
            }
            Self::ListenerStartPanicked => f.write_str(
                "a listener panicked when it started; it serves without its preparation",
            ),
            Self::Panicked { node } => write!(f, "request for node {node} panicked; replied EIO"),
            Self::TookOver { in_flight, are_resent } => {
                let answer = if *are_resent { "sent again" } else { "replied EIO" };
                write!(
                    f,
                    "took over from a process that ended; requests in flight: {in_flight}, {answer}"
                )
            }
            Self::Banned { node } => {
                write!(f, "requests for node {node} get EIO: processes have died in one")
            }
            Self::MalformedRequest => f.write_str("malformed request from the kernel; replied EIO"),
            Self::DeviceFailed { errno } => write!(f, "/dev/fuse: {errno}; a listener ended"),
            Self::Unmounted => f.write_str("unmounted"),
        }
    }
}

/// Why a session could not start.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionError {
    /// The kernel speaks a protocol older than 7.23.
    OldKernel {
        /// Its major version.
        major: u32,
        /// Its minor version.
        minor: u32,
    },
    /// The first request was not FUSE_INIT.
    Protocol,
    /// The file system was unmounted before FUSE_INIT.
    Unmounted,
    /// The device failed.
    Device(Errno),
    /// A thread could not be started.
    Thread(String),
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OldKernel { major, minor } => {
                write!(
                    f,
                    "the kernel supports FUSE {major}.{minor}; version 7.23 or newer is required (Linux 4.18)"
                )
            }
            Self::Protocol => f.write_str("the kernel's first request is not FUSE_INIT"),
            Self::Unmounted => f.write_str("unmounted before it was ready"),
            Self::Device(errno) => write!(f, "/dev/fuse: {errno}"),
            Self::Thread(cause) => write!(f, "cannot start a thread: {cause}"),
        }
    }
}

impl std::error::Error for SessionError {}
