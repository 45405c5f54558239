//! Statistics of a running mount: metrics that are always on, the record that carries their values, and the client that
//! reads it (docs/mount-stats.md).
//!
//! `ferrofs stats DIR` opens the directory and sends an ioctl, which the kernel passes to the daemon like any other
//! request. A listener collects the values and replies. So everybody who may read the mount may read its statistics, from
//! any namespace that has the mount, and a mount whose statistics nobody reads pays for the metrics only. This file adds the
//! statistics of several mounts, for the command.

mod client;
mod collector;
mod ioctl;
mod metrics;
mod record;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use record::UNKNOWN;

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

impl StatsSummary {
    /// Adds operations, decoding, cache, readahead, memory and restarts of another mount. Other values stay. Quantiles cannot
    /// be added: the sum has the largest of each, which is never below that of all requests together.
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in self.operations.iter_mut().zip(&other.operations) {
            sum.errors = sum.errors.saturating_add(more.errors);
            sum.bytes = sum.bytes.saturating_add(more.bytes);
            sum.time.add(&more.time);
        }
        let mut decoding = self.clusters.time;
        decoding.add(&other.clusters.time);
        add_numbers(&mut self.clusters, &other.clusters);
        self.clusters.time = decoding;
        add_numbers(&mut self.cache, &other.cache);
        add_numbers(&mut self.prefetch, &other.prefetch);
        add_numbers(&mut self.memory, &other.memory);
        self.session.threads = add_known(self.session.threads, other.session.threads);
        self.process.restarts = self.process.restarts.saturating_add(other.process.restarts);
    }
}

impl LatencyQuantiles {
    fn add(&mut self, other: &Self) {
        self.count = self.count.saturating_add(other.count);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.p50_ns = self.p50_ns.max(other.p50_ns);
        self.p99_ns = self.p99_ns.max(other.p99_ns);
        self.p999_ns = self.p999_ns.max(other.p999_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }
}

/// Adds the fields of a record, which are all `u64`.
fn add_numbers<T>(sum: &mut T, other: &T)
where
    T: FromBytes + IntoBytes + KnownLayout + Immutable,
{
    let others = <[u64]>::ref_from_bytes(other.as_bytes()).unwrap_or_default();
    let Ok(sums) = <[u64]>::mut_from_bytes(sum.as_mut_bytes()) else { return };
    for (sum, more) in sums.iter_mut().zip(others) {
        *sum = add_known(*sum, *more);
    }
}

/// The sum of what is known.
fn add_known(sum: u64, more: u64) -> u64 {
    match (sum, more) {
        (UNKNOWN, other) | (other, UNKNOWN) => other,
        (sum, more) => sum.saturating_add(more).min(UNKNOWN - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_added_and_quantiles_are_bounds() {
        let mut one = StatsSummary::default();
        one.operations[4].time = LatencyQuantiles { count: 2, p99_ns: 9, ..Default::default() };
        one.clusters.decoded = 3;
        one.clusters.time.max_ns = 5;
        one.memory.resident = UNKNOWN;
        let mut other = one;
        other.operations[4].time.p99_ns = 7;
        other.memory.resident = 4096;
        other.process.restarts = 6;
        one.add(&other);
        assert_eq!((one.operations[4].time.count, one.operations[4].time.p99_ns), (4, 9));
        assert_eq!((one.clusters.decoded, one.clusters.time.max_ns), (6, 5));
        assert_eq!((one.memory.resident, one.process.restarts), (4096, 6));
        other.memory.used = u64::MAX - 1;
        one.memory.used = 7;
        one.add(&other);
        assert_eq!(one.memory.used, u64::MAX - 1);
    }
}
