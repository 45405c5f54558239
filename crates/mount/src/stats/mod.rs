//! What a running mount tells about itself: meters that are always on, the record that carries their values, and the
//! client that asks for it. The way of a record: `ferrofs stats DIR` opens the directory and sends an ioctl, which the
//! kernel passes on as a request like any other; a listener gathers the numbers and replies. So who may read the mount
//! may ask, from any namespace that sees it, and a mount that nobody asks pays for nothing but the meters.

mod ask;
mod client;
mod gather;
mod kind;
mod meters;
mod mount_entry;
mod notices;
mod process;
mod record;
mod top_files;

pub use client::{AskError, MountStats, ask};
pub use kind::Kind;
pub use mount_entry::MountEntry;
pub use record::{
    Cache, Clusters, CpuTime, Memory, Notices as NoticeCounts, OperationRow, Prefetch, Quantiles,
    SessionRow, Summary, TopFile, WorkerRow, WorkerTotals, known,
};

pub(crate) use ask::is_question;
pub(crate) use gather::{Gatherer, answer};
pub(crate) use meters::Meters;
