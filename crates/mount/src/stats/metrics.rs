//! What a mount counts while it serves. Each group of listeners has numbers of its own (see
//! [`Sharded`](ferrofs_workers::counters::Sharded)), so that counting makes nobody wait. Written by `image_fs`,
//! read by `collector`.
//!
//! It takes 2.6 KiB for each kind of operation that was ever asked for and a group, of which there is one a listener
//! and 16 at most: 550 KiB in all on a large machine, 70 KiB on two CPUs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ferrofs_fuse::{Errno, ReplyOutcome};
use ferrofs_workers::counters::{Histogram, HistogramSnapshot, Sharded};
use ferrofs_workers::cpus::CpuThrottling;

use super::kind::OperationKind;
use super::log_events::LogEventCounters;
use super::record;
use super::top_files::{FileCount, TopFilesSketch};
use crate::settings::MountLogEvent;

/// The metrics of a mount.
#[derive(Debug)]
pub(crate) struct MountMetrics {
    began: Instant,
    /// What the system had counted by then.
    throttled_before: CpuThrottling,
    shards: Sharded<MetricsShard>,
    log_events: LogEventCounters,
}

/// What a group of listeners counts. All of it is relaxed: the numbers order nothing.
#[derive(Debug, Default)]
struct MetricsShard {
    operations: [OperationMetrics; OperationKind::ALL.len()],
    stores: AtomicU64,
    stored_bytes: AtomicU64,
    top_files: Mutex<TopFilesSketch>,
}

#[derive(Debug, Default)]
struct OperationMetrics {
    times: OnceLock<Histogram>,
    errors: AtomicU64,
    bytes: AtomicU64,
}

/// What the metrics of one kind of operation say.
#[derive(Debug, Default)]
pub(super) struct OperationTimes {
    pub(super) times: HistogramSnapshot,
    pub(super) errors: u64,
    pub(super) bytes: u64,
}

impl MountMetrics {
    /// For so many listeners.
    pub(crate) fn new(listeners: usize) -> Self {
        let shards = Sharded::new(listeners, MetricsShard::default);
        let throttled_before = CpuThrottling::read();
        Self {
            began: Instant::now(),
            throttled_before,
            shards,
            log_events: LogEventCounters::default(),
        }
    }

    /// A request has been answered. One that nobody has answered by now panicked, and is counted as that.
    pub(crate) fn record_reply(&self, kind: OperationKind, node: u64, outcome: &ReplyOutcome) {
        let Some(sent) = outcome.sent() else { return };
        let shard = self.shards.local();
        let Some(meter) = shard.operations.get(kind.index()) else { return };
        meter.times.get_or_init(Histogram::new).record(sent.elapsed);
        if sent.errno.is_some_and(is_failure) {
            meter.errors.fetch_add(1, Ordering::Relaxed);
        }
        let bytes = u64::try_from(sent.bytes).unwrap_or(0);
        meter.bytes.fetch_add(bytes, Ordering::Relaxed);
        // Whoever asks for the numbers at this moment is not waited for.
        if kind == OperationKind::Read
            && let Ok(mut files) = shard.top_files.try_lock()
        {
            files.read(node, bytes);
        }
    }

    /// So many bytes were put into the kernel's page cache unasked.
    pub(crate) fn record_store(&self, bytes: usize) {
        let shard = self.shards.local();
        shard.stores.fetch_add(1, Ordering::Relaxed);
        shard.stored_bytes.fetch_add(u64::try_from(bytes).unwrap_or(0), Ordering::Relaxed);
    }

    /// Something was told to the log.
    pub(crate) fn record_event(&self, event: &MountLogEvent<'_>) {
        self.log_events.add(event);
    }

    pub(super) fn uptime(&self) -> Duration {
        self.began.elapsed()
    }

    pub(super) fn throttling(&self) -> CpuThrottling {
        CpuThrottling::read().since(&self.throttled_before)
    }

    pub(super) fn log_events(&self) -> record::LogEventRecord {
        self.log_events.read()
    }

    pub(super) fn operation(&self, kind: OperationKind) -> OperationTimes {
        let mut all = OperationTimes::default();
        for meter in self.shards.iter().filter_map(|shard| shard.operations.get(kind.index())) {
            if let Some(times) = meter.times.get() {
                all.times.merge(&times.snapshot());
            }
            all.errors = all.errors.wrapping_add(meter.errors.load(Ordering::Relaxed));
            all.bytes = all.bytes.wrapping_add(meter.bytes.load(Ordering::Relaxed));
        }
        all
    }

    /// How often bytes were put into the page cache, and how many.
    pub(super) fn stores(&self) -> (u64, u64) {
        self.shards.iter().fold((0, 0), |(stores, bytes): (u64, u64), shard| {
            let more = (&shard.stores, &shard.stored_bytes);
            (
                stores.wrapping_add(more.0.load(Ordering::Relaxed)),
                bytes.wrapping_add(more.1.load(Ordering::Relaxed)),
            )
        })
    }

    /// The most read files, by node.
    pub(super) fn top_files(&self) -> Vec<FileCount> {
        let copy = |shard: &MetricsShard| {
            shard.top_files.lock().unwrap_or_else(PoisonError::into_inner).clone()
        };
        TopFilesSketch::merged(&self.shards.iter().map(copy).collect::<Vec<_>>())
    }
}

/// Whether an error says that something is broken. The others are answers: what was asked for is not there, or is not
/// done here.
fn is_failure(errno: Errno) -> bool {
    !matches!(
        errno,
        Errno::NOSYS
            | Errno::NODATA
            | Errno::RANGE
            | Errno::OPNOTSUPP
            | Errno::NXIO
            | Errno::NOTTY
            | Errno::INVAL
            | Errno::NOTDIR
    )
}

#[cfg(test)]
mod tests;
