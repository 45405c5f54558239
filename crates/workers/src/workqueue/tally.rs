//! What a queue has counted, as plain numbers.

use super::lane::Tally;
use crate::counters::Times;

/// What a queue has counted since it was made.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
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
    pub lanes: Vec<LaneTally>,
}

/// What one worker has counted.
#[derive(Debug, Clone, Default)]
pub struct LaneTally {
    /// Requests handled.
    pub handled: u64,
    /// Handlers that panicked.
    pub panics: u64,
    /// Times that the worker slept.
    pub sleeps: u64,
    /// From submission to start: every request that woke the worker, one in 16 of the others.
    pub start_delay: Times,
}

impl LaneTally {
    pub(super) fn of(tally: &Tally) -> Self {
        Self {
            handled: tally.handled.value(),
            panics: tally.panics.value(),
            sleeps: tally.sleeps.value(),
            start_delay: tally.start_delay.snapshot(),
        }
    }
}
