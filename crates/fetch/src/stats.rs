//! Counters of the fetcher. Relaxed throughout: they are read for display only.

use std::sync::atomic::{AtomicU64, Ordering};

use ferrofs_remote::protocol::FetchStats;

/// The counters; [`FetchStats`] says what each means.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub(crate) requests: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) received_bytes: AtomicU64,
    pub(crate) requested_bytes: AtomicU64,
    pub(crate) wasted_bytes: AtomicU64,
    pub(crate) verified_bytes: AtomicU64,
    pub(crate) cache_hits: AtomicU64,
    pub(crate) latency_us: AtomicU64,
    pub(crate) token_requests: AtomicU64,
    pub(crate) mirror_requests: AtomicU64,
    in_flight: AtomicU64,
}

/// A request that is counted as in flight while this lives.
#[derive(Debug)]
pub(crate) struct InFlightGuard<'s>(&'s Stats);

impl Stats {
    pub(crate) fn add(counter: &AtomicU64, value: u64) {
        counter.fetch_add(value, Ordering::Relaxed);
    }

    pub(crate) fn in_flight(&self) -> InFlightGuard<'_> {
        Self::add(&self.in_flight, 1);
        InFlightGuard(self)
    }

    pub(crate) fn snapshot(&self) -> FetchStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut stats = FetchStats::default();
        stats.requests = read(&self.requests);
        stats.retries = read(&self.retries);
        stats.received_bytes = read(&self.received_bytes);
        stats.requested_bytes = read(&self.requested_bytes);
        stats.wasted_bytes = read(&self.wasted_bytes);
        stats.verified_bytes = read(&self.verified_bytes);
        stats.cache_hits = read(&self.cache_hits);
        stats.latency_us = read(&self.latency_us);
        stats.token_requests = read(&self.token_requests);
        stats.mirror_requests = read(&self.mirror_requests);
        stats.in_flight = read(&self.in_flight);
        stats
    }
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}
