//! What a session tells whoever runs it: things that ought to be in a log.

use std::fmt;
use std::time::Duration;

/// Something that happened to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionEvent {
    /// It took longer than the limit, and was answered with `EIO`.
    TimedOut {
        /// The thread that asked; 0 if nobody waits, or it is out of sight.
        pid: u32,
        /// How long it had taken.
        after: Duration,
    },
    /// Whoever asked is being killed, and was let go while the request hangs.
    Interrupted {
        /// The thread that asked.
        pid: u32,
        /// How long it had waited.
        after: Duration,
    },
    /// Every listener has been at a request for a while, so one more was started.
    SpareListenerStarted {
        /// How many listeners there are now.
        listeners: usize,
    },
    /// The file system panicked; the request was answered with `EIO`.
    Panicked {
        /// What it was about.
        node: u64,
    },
    /// A request was not what it says; it was answered with `EIO`.
    MalformedRequest,
    /// The device failed in a way that no retry mends; the listener ended.
    DeviceFailed {
        /// Why.
        errno: rustix::io::Errno,
    },
    /// The mount is gone, and nobody waits for an answer any more. Told once, by the first listener that sees it;
    /// the others end as soon as they are done.
    Unmounted,
}

impl fmt::Display for SessionEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut { pid, after } => {
                write!(f, "a request of thread {pid} was given up after {after:?}; it gets EIO")
            }
            Self::Interrupted { pid, after } => {
                write!(f, "thread {pid} is being killed; its request was given up after {after:?}")
            }
            Self::SpareListenerStarted { listeners } => {
                write!(f, "all listeners are busy for long; there are {listeners} now")
            }
            Self::Panicked { node } => {
                write!(f, "a request about node {node} panicked; it gets EIO")
            }
            Self::MalformedRequest => {
                f.write_str("a request of the kernel is not what it says; it gets EIO")
            }
            Self::Unmounted => f.write_str("the mount is gone"),
            Self::DeviceFailed { errno } => write!(f, "/dev/fuse: {errno}; a listener ended"),
        }
    }
}
