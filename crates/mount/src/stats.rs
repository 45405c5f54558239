//! Statistics of a running mount: metrics that are always on, the record that carries their values, and the client that
//! reads it (docs/mount-stats.md).
//!
//! `ferrofs stats DIR` opens the directory and sends an ioctl, which the kernel passes to the daemon like any other
//! request. A listener collects the values and replies. So everybody who may read the mount may read its statistics, from
//! any namespace that has the mount, and a mount whose statistics nobody reads pays for the metrics only.

mod client;
mod collector;
mod ioctl;
mod metrics;
mod record;
mod total;

pub use client::{MountStats, StatsError, query};
pub use ferrofs_fuse::attach::MountEntry;
pub use record::{
    CacheRecord, CpuRecord, DecodeRecord, LatencyQuantiles, LogEventRecord, MemoryRecord,
    OperationKind, OperationRecord, PrefetchRecord, ProcessRecord, RemoteRecord, SessionRecord,
    StatsSummary, TopFileRecord, WorkerRecord, WorkersRecord, known,
};

#[cfg(feature = "fuzzing")]
pub use client::parse_page;
pub(crate) use collector::{StatsCollector, respond};
pub(crate) use ioctl::is_stats_ioctl;
pub(crate) use metrics::MountMetrics;
