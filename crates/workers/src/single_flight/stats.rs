//! What single_flight came to, in numbers. It owns the numbers alone; `CacheTable` stats under its lock.

/// What [`SingleFlight`](super::SingleFlight) counted since they were made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SingleFlightStats {
    /// Demands that found the value kept.
    pub hits: u64,
    /// Demands that met somebody who computes it, and were told to wait.
    pub waited: u64,
    /// Values that were computed: published, or used by the one who computed it and nobody else.
    pub computed: u64,
    /// Flights that ended without a value: a failure, a panic, a prefetch that gave way.
    pub abandoned: u64,
    /// Flights that a demand took out of a queue.
    pub taken_over: u64,
    /// Prefetches on their way that a demand joined.
    pub upgraded: u64,
    /// Values computed by prefetches, upgraded ones among them.
    pub prefetched: u64,
    /// Of these, those that a demand joined or found.
    pub prefetch_used: u64,
    /// Of these, those that nobody demanded before they went.
    pub prefetch_wasted: u64,
    /// Prefetches that ended without a value.
    pub prefetch_dropped: u64,
}
