//! What a running mount tells about itself: metrics that are always on, the record that carries their values, and the
//! client that asks for it. The way of a record: `ferrofs stats DIR` opens the directory and sends an ioctl, which the
//! kernel passes on as a request like any other; a listener gathers the numbers and replies. So who may read the mount
//! may query, from any namespace that sees it, and a mount that nobody asks pays for nothing but the metrics.

mod client;
mod collector;
mod ioctl;
mod kind;
mod log_events;
mod metrics;
mod mount_entry;
mod process;
mod record;
mod top_files;

pub use client::{MountStats, StatsError, query};
pub use kind::OperationKind;
pub use mount_entry::MountEntry;
pub use record::{
    CacheRecord, CpuRecord, DecodeRecord, LatencyQuantiles, LogEventRecord, MemoryRecord,
    OperationRecord, PrefetchRecord, SessionRecord, StatsSummary, TopFileRecord, WorkerRecord,
    WorkersRecord, known,
};

pub(crate) use collector::{StatsCollector, respond};
pub(crate) use ioctl::is_stats_ioctl;
pub(crate) use metrics::MountMetrics;
