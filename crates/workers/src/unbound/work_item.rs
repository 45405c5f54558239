//! One piece of work that waits for a thread. It owns all that it touches, and a panic in it ends
//! here. Made by submitters, run by workers.

use std::time::{Duration, Instant};

use super::worker_counters::WorkerCounters;
use crate::catch_panic::{CallOutcome, catch_panic};

/// A job and the moment at which it was submitted.
pub(crate) struct WorkItem {
    job: Box<dyn FnOnce() + Send>,
    submitted: Instant,
}

impl WorkItem {
    pub(crate) fn new(job: impl FnOnce() + Send + 'static, submitted: Instant) -> Self {
        Self { job: Box::new(job), submitted }
    }

    /// Runs the job on one of a pool's own threads and writes into its counters. Says when it started.
    pub(crate) fn run(self, counters: &WorkerCounters) -> Instant {
        let started = Instant::now();
        counters.began(started.saturating_duration_since(self.submitted));
        if catch_panic(self.job) == CallOutcome::Panicked {
            counters.panicked();
        }
        started
    }

    /// Runs the job on a thread that is not the pool's.
    pub(crate) fn run_inline(self) -> CallOutcome {
        catch_panic(self.job)
    }
}

impl std::fmt::Debug for WorkItem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let age: Duration = self.submitted.elapsed();
        f.debug_struct("WorkItem").field("age", &age).finish_non_exhaustive()
    }
}
