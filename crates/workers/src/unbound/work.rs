//! One piece of work that waits for a thread. It owns all that it touches, and a panic in it ends
//! here. Made by submitters, run by workers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use super::tally::Tally;

/// Payloads of panics that are dropped one after the other, each of which panics: two are an accident,
/// more are a program that never ends. The last one is left alone.
const PAYLOADS_MAX: usize = 4;

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It returned.
    Done,
    /// It panicked; whoever ran it goes on.
    Panicked,
}

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

/// Runs a job and stops its panic at its edge. What the job owns is dropped inside, too.
pub(crate) fn contained(job: impl FnOnce()) -> Outcome {
    // Unwinding leaves nothing half done: the job owns all that it touches, and it is gone afterwards.
    let Err(mut payload) = catch_unwind(AssertUnwindSafe(job)) else { return Outcome::Done };
    // A payload may panic when it is dropped, with another payload.
    for _ in 0..PAYLOADS_MAX {
        match catch_unwind(AssertUnwindSafe(move || drop(payload))) {
            Ok(()) => return Outcome::Panicked,
            Err(next) => payload = next,
        }
    }
    let _leaked = std::mem::ManuallyDrop::new(payload);
    Outcome::Panicked
}
