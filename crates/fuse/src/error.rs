//! Why a session could not begin.

use std::fmt;

use rustix::io::Errno;

/// Why a session could not begin.
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
    /// What came first was no greeting.
    Protocol,
    /// The mount was gone before FUSE_INIT.
    Unmounted,
    /// The device fails.
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
                    "the kernel speaks FUSE {major}.{minor}; 7.23 is the oldest that serves (Linux 4.18 has it)"
                )
            }
            Self::Protocol => f.write_str("the kernel's first request is no FUSE_INIT"),
            Self::Unmounted => f.write_str("it was unmounted before it was ready"),
            Self::Device(errno) => write!(f, "/dev/fuse: {errno}"),
            Self::Thread(cause) => write!(f, "a thread cannot be started: {cause}"),
        }
    }
}

impl std::error::Error for SessionError {}
