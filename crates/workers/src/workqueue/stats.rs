//! What a queue has counted, as plain numbers.

use super::worker_queue::QueueCounters;
use crate::counters::HistogramSnapshot;

/// What a queue has counted since it was made.
#[derive(Debug, Clone, Default)]
pub struct WorkQueueStats {
    /// Requests submitted.
    pub submitted: u64,
    /// Of these, handled by the submitter when it submitted them.
    pub handled_inline: u64,
    /// Of these, handled by the submitter while it waited.
    pub handled_helping: u64,
    /// Handlers that panicked on the submitter.
    pub panics_on_submitter: u64,
    /// System calls that woke a worker.
    pub wake_calls: u64,
    /// Times that the submitter had nothing to do but to spin or sleep.
    pub waits: u64,
    /// Workers that the system gave no thread for.
    pub refused_threads: u64,
    /// One for each worker.
    pub workers: Vec<WorkerQueueStats>,
}

/// What one worker has counted.
#[derive(Debug, Clone, Default)]
pub struct WorkerQueueStats {
    /// Requests handled.
    pub handled: u64,
    /// Handlers that panicked.
    pub panics: u64,
    /// Times that the worker slept.
    pub sleeps: u64,
    /// From submission to start: every request that woke the worker, one in 16 of the others.
    pub start_delay: HistogramSnapshot,
}

impl WorkerQueueStats {
    pub(super) fn of(counters: &QueueCounters) -> Self {
        Self {
            handled: counters.handled.value(),
            panics: counters.panics.value(),
            sleeps: counters.sleeps.value(),
            start_delay: counters.start_delay.snapshot(),
        }
    }
}
