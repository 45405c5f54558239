//! The edge of a job: a panic stops here, its payload too. Every thread that runs what others hand it
//! goes through this, so that one bad job never takes a worker along.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Payloads of panics that are dropped one after the other, each of which panics: two are an accident,
/// more are a program that never ends. The last one is left alone.
const PAYLOADS_MAX: usize = 4;

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    /// It returned.
    Done,
    /// It panicked; whoever ran it goes on.
    Panicked,
}

/// Runs a job and stops its panic at its edge. What the job owns is dropped inside, too.
///
/// The caller makes sure that nobody takes for whole what a panic left half done: by owning it and
/// dropping it, or by marking it.
pub(crate) fn catch_panic(job: impl FnOnce()) -> CallOutcome {
    let Err(mut payload) = catch_unwind(AssertUnwindSafe(job)) else { return CallOutcome::Done };
    // A payload may panic when it is dropped, with another payload.
    for _ in 0..PAYLOADS_MAX {
        match catch_unwind(AssertUnwindSafe(move || drop(payload))) {
            Ok(()) => return CallOutcome::Panicked,
            Err(next) => payload = next,
        }
    }
    let _leaked = std::mem::ManuallyDrop::new(payload);
    CallOutcome::Panicked
}
