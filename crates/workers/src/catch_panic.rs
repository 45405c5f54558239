//! Panics of other people's code. [`catch_panic`] ends one at the edge of a job, so that a bad job never takes
//! a worker along. [`TaskFailure`] carries one as a value to the thread that waits for the job.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// How many panicking payloads are dropped one after the other. A payload that panics when it is dropped may
/// be an accident; a longer chain may never end, so the last one is leaked.
const MAX_PAYLOADS: usize = 4;

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    /// It returned.
    Done,
    /// It panicked; the thread goes on.
    Panicked,
}

/// Runs a job and stops its panic here, with the payload. What the job owns is dropped inside, too.
///
/// The caller makes sure that nobody uses what a panic left half done: it owns it and drops it, or marks it.
pub(crate) fn catch_panic(job: impl FnOnce()) -> CallOutcome {
    let Err(mut payload) = catch_unwind(AssertUnwindSafe(job)) else { return CallOutcome::Done };
    // A payload may panic when it is dropped, with another payload.
    for _ in 0..MAX_PAYLOADS {
        match catch_unwind(AssertUnwindSafe(move || drop(payload))) {
            Ok(()) => return CallOutcome::Panicked,
            Err(next) => payload = next,
        }
    }
    let _leaked = std::mem::ManuallyDrop::new(payload);
    CallOutcome::Panicked
}

/// How a task failed: with its own error, or with a panic that travels to the waiting thread.
pub(crate) enum TaskFailure<E> {
    /// The error that it returned.
    Error(E),
    /// The payload of its panic.
    Panic(Box<dyn Any + Send>),
}

impl<E> TaskFailure<E> {
    /// Runs `body` and returns a panic as a value.
    ///
    /// The panic resumes on the waiting thread when all others are at rest, so whoever catches it there sees
    /// the same state as if nothing had been caught here.
    pub(crate) fn catch<R>(body: impl FnOnce() -> Result<R, E>) -> Result<R, Self> {
        match catch_unwind(AssertUnwindSafe(body)) {
            Ok(result) => result.map_err(TaskFailure::Error),
            Err(payload) => Err(Self::Panic(payload)),
        }
    }

    /// The error. A panic resumes instead, so this does not return.
    pub(crate) fn into_error(self) -> E {
        match self {
            Self::Error(error) => error,
            Self::Panic(payload) => resume_unwind(payload),
        }
    }
}

impl<E> std::fmt::Debug for TaskFailure<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Error(_) => "Error",
            Self::Panic(_) => "Panic",
        })
    }
}
