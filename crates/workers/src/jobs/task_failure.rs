//! How a chunk of work failed: by its own error, or by a panic that is carried to the caller. Made
//! where work runs, on whatever thread; ends at the caller, who returns the one and resumes the other.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// What a body left instead of success.
pub(super) enum TaskFailure<E> {
    /// The error that it returned.
    Error(E),
    /// What it panicked with.
    Panic(Box<dyn Any + Send>),
}

impl<E> TaskFailure<E> {
    /// Runs `body` and keeps a panic as a value.
    ///
    /// The panic is resumed on the caller's thread once all others are at rest, so what the body
    /// left half done is seen by whoever catches it there, as if nothing had been caught here.
    pub(super) fn catch<R>(body: impl FnOnce() -> Result<R, E>) -> Result<R, Self> {
        match catch_unwind(AssertUnwindSafe(body)) {
            Ok(outcome) => outcome.map_err(TaskFailure::Error),
            Err(payload) => Err(Self::Panic(payload)),
        }
    }

    /// The error, or the panic itself: this does not return from a panic.
    pub(super) fn into_error(self) -> E {
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
