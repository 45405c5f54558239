//! What a source has done, for `ferrofs stats`. Relaxed throughout: the numbers are shown only.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ferrofs_image::{FetcherTotals, RemoteStats};

use crate::protocol::FetchStats;

/// The counters of one source; [`RemoteStats`] says what each means.
#[derive(Debug, Default)]
pub(crate) struct SourceCounters {
    fetches: AtomicU64,
    repeated: AtomicU64,
    fetched_bytes: AtomicU64,
    fetched_chunks: AtomicU64,
    reads: AtomicU64,
    waited_ns: AtomicU64,
    longest_ns: AtomicU64,
}

impl SourceCounters {
    /// A part of a chunk was read.
    pub(crate) fn count_read(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    /// A reader has waited for chunks.
    pub(crate) fn count_fetch(&self, chunks: u64, bytes: u64, waited: Duration) {
        let waited = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        self.fetches.fetch_add(1, Ordering::Relaxed);
        self.fetched_chunks.fetch_add(chunks, Ordering::Relaxed);
        self.fetched_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.waited_ns.fetch_add(waited, Ordering::Relaxed);
        self.longest_ns.fetch_max(waited, Ordering::Relaxed);
    }

    /// A request is repeated.
    pub(crate) fn count_repetition(&self) {
        self.repeated.fetch_add(1, Ordering::Relaxed);
    }

    /// The numbers now.
    pub(crate) fn snapshot(&self, reconnects: u64, fetcher: Option<&FetchStats>) -> RemoteStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut stats = RemoteStats::default();
        stats.fetches = read(&self.fetches);
        stats.repeated = read(&self.repeated);
        stats.fetched_bytes = read(&self.fetched_bytes);
        stats.hits = read(&self.reads).saturating_sub(read(&self.fetched_chunks));
        stats.waited_ns = read(&self.waited_ns);
        stats.longest_ns = read(&self.longest_ns);
        stats.reconnects = reconnects;
        stats.fetcher = fetcher.map(totals);
        stats
    }
}

fn totals(stats: &FetchStats) -> FetcherTotals {
    let mut totals = FetcherTotals::default();
    totals.requests = stats.requests;
    totals.retries = stats.retries;
    totals.in_flight = stats.in_flight;
    totals.token_requests = stats.token_requests;
    totals.mirror_requests = stats.mirror_requests;
    totals.received_bytes = stats.received_bytes;
    totals.requested_bytes = stats.requested_bytes;
    totals.wasted_bytes = stats.wasted_bytes;
    totals.verified_bytes = stats.verified_bytes;
    totals.cache_hits = stats.cache_hits;
    totals.latency_us = stats.latency_us;
    totals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_after_a_fetch_is_no_hit() {
        let counters = SourceCounters::default();
        counters.count_fetch(2, 2 << 20, Duration::from_millis(5));
        counters.count_fetch(1, 100, Duration::from_millis(7));
        counters.count_repetition();
        (0..10).for_each(|_| counters.count_read());
        let stats = counters.snapshot(3, None);
        assert_eq!((stats.fetches, stats.fetched_bytes), (2, (2 << 20) + 100));
        assert_eq!((stats.hits, stats.repeated, stats.reconnects), (7, 1, 3));
        assert_eq!((stats.waited_ns, stats.longest_ns), (12_000_000, 7_000_000));
        assert_eq!(stats.fetcher, None);
    }
}
