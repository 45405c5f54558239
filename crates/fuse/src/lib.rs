//! FUSE for read-only file systems: the protocol, the device, mounting, and sessions in which a request that hangs
//! does not hang the others.
//!
//! [`attach::attach`] mounts and returns the device. [`NegotiatedSession`] answers the kernel's FUSE_INIT on it, and
//! [`NegotiatedSession::start`] starts the threads of a [`Session`]. They pass each [`Request`] to a [`FileSystem`],
//! which answers through a [`Reply`].
//!
//! The crate guarantees to a file system:
//!
//! * Every request is answered exactly once. A [`Reply`] that is dropped, by a panic or by mistake, answers `EIO`.
//! * A request that hangs blocks no other request. It fails after a time limit, and earlier if its caller is killed.
//! * Node numbers need no state: FORGET needs no work.
//! * Requests that would change something are refused with `EROFS` before the file system sees them.
//!
//! `docs/dependencies.md` says why this is not one of the existing FUSE crates.
//!
//! ```
//! use ferrofs_fuse::{Errno, FileSystem, NodeAttributes, Operation, Reply, Request};
//!
//! /// An empty directory.
//! struct Empty;
//!
//! impl FileSystem for Empty {
//!     fn handle(&self, request: &Request<'_>, reply: Reply<'_>) {
//!         match request.operation {
//!             Operation::GetAttr => {
//!                 let mode = 0o040_555;
//!                 reply.attributes(&NodeAttributes { ino: 1, mode, links: 2, ..NodeAttributes::default() });
//!             }
//!             Operation::Lookup { .. } => reply.error(Errno::NOENT),
//!             Operation::ReadDir { .. } => reply.bytes(&[]),
//!             _ => reply.error(Errno::NOSYS),
//!         }
//!     }
//! }
//! ```

pub mod attach;
mod init;
mod journal;
mod reply;
mod request;
mod request_slot;
mod session;

pub use init::{Capabilities, InitParameters, InitRequest, SessionError};
pub use journal::{RequestJournal, ServerEnd};
pub use reply::{
    DirentBuffer, DirentName, NodeAttributes, NodeEntry, Reply, ReplyOutcome, SentReply, Statfs,
};
pub use request::{Operation, Request};
pub use rustix::io::Errno;
#[cfg(all(feature = "fuzzing", not(loom)))]
pub use session::fuzzing;
pub use session::{
    FileSystem, ListenerGrowth, NegotiatedSession, Notifier, Session, SessionEvent, SessionOptions,
    SessionStats, Succession, fault_point,
};

/// The atomics and locks of protocols R and S (docs/workers.md); loom's own when a model runs.
mod sync {
    #[cfg(loom)]
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
    #[cfg(loom)]
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
    #[cfg(not(loom))]
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
    #[cfg(not(loom))]
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
