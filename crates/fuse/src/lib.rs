//! FUSE for read-only file systems in user space: the protocol, the device, mounting, and sessions in which no reader
//! can be hung by a file system that hangs.
//!
//! A [`FileSystem`] answers [`Request`]s through [`Reply`]s, on several threads at a time. What it may rely on:
//! every request is answered exactly once, also when it panics or forgets; a request that hangs holds up nobody
//! else, is given up on when whoever waits for it is killed, and fails after a time limit; nodes need no state, and
//! forgetting them needs no work. Whatever would change something is refused before it gets here.
//!
//! This is a crate of its own and not the one that most Rust file systems use because of those promises; see
//! `docs/dependencies.md`.

pub mod attach;
mod attributes;
mod capability;
mod channel;
mod error;
mod event;
mod fatal;
mod listener;
mod listing;
mod negotiate;
mod notifier;
mod operation;
mod reply;
mod request_slot;
mod session;
mod sync;
mod watchdog;
mod wire;

pub use attributes::{Entry, NodeAttributes};
pub use capability::Capabilities;
pub use error::SessionError;
pub use event::SessionEvent;
pub use listing::{DirentBuffer, DirentName};
pub use negotiate::{InitParameters, InitRequest};
pub use notifier::Notifier;
pub use operation::{Operation, Request};
pub use reply::{Reply, ReplyOutcome, SentReply, Statfs};
pub use rustix::io::Errno;
pub use session::{FileSystem, NegotiatedSession, Session, SessionOptions, SessionStats};
