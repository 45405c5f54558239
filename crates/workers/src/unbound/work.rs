//! One piece of work that waits for a thread. It owns all that it touches, and a panic in it ends
//! here. Made by submitters, run by workers.

use std::time::{Duration, Instant};

use super::tally::Tally;
use crate::contained::{Outcome, contained};

/// A job and the moment at which it was submitted.
pub(crate) struct Work {
    job: Box<dyn FnOnce() + Send>,
    submitted: Instant,
}

impl Work {
    pub(crate) fn new(job: impl FnOnce() + Send + 'static, submitted: Instant) -> Self {
        Self { job: Box::new(job), submitted }
    }

    /// Runs the job on one of a pool's own threads and writes into its tally. Says when it started.
    pub(crate) fn run(self, tally: &Tally) -> Instant {
        let started = Instant::now();
        tally.began(started.saturating_duration_since(self.submitted));
        if contained(self.job) == Outcome::Panicked {
            tally.panicked();
        }
        started
    }

    /// Runs the job on a thread that is not the pool's.
    pub(crate) fn run_here(self) -> Outcome {
        contained(self.job)
    }
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let age: Duration = self.submitted.elapsed();
        f.debug_struct("Work").field("age", &age).finish_non_exhaustive()
    }
}
