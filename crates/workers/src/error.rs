//! How work fails: [`Error`], the crate's one error, and panics of other people's code, which end at the edge of a job.
//!
//! An error is a kind to match, what was requested, and the numbers. It allocates nothing, because it must be made
//! when there is no memory. [`catch_panic`] keeps a bad job from taking a worker along; [`TaskFailure`] carries an
//! error or a panic as a value to the thread that waits for the job.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use rustix::io::Errno;

/// What went wrong, for callers to match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A setting is outside its range; `amount` is the request, `limit` the bound.
    InvalidSetting,
    /// The system gives no further thread.
    NoThread,
    /// A best-effort request that cannot be met now without waiting. A later one may succeed, so do not cache this.
    NotNow,
    /// The hard limit: waiting and reclaiming did not help, or the request is larger than the limit.
    OutOfMemory,
    /// A job panicked; its worker goes on.
    Panicked,
    /// A system call failed; `source` has its error.
    System,
}

/// An error of this crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    what: &'static str,
    amount: Option<u64>,
    limit: Option<u64>,
    errno: Option<Errno>,
}

impl Error {
    /// `what` names the thing as a message does: "slots a worker", "mapping the arena".
    pub(crate) const fn new(kind: ErrorKind, what: &'static str) -> Self {
        Self { kind, what, amount: None, limit: None, errno: None }
    }

    pub(crate) const fn with_amount(mut self, amount: u64, limit: u64) -> Self {
        self.amount = Some(amount);
        self.limit = Some(limit);
        self
    }

    pub(crate) const fn with_errno(mut self, errno: Errno) -> Self {
        self.errno = Some(errno);
        self
    }

    /// What callers match.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The number that was requested, if the error is about one.
    #[must_use]
    pub const fn amount(&self) -> Option<u64> {
        self.amount
    }

    /// The bound that the request exceeds.
    #[must_use]
    pub const fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// The system's own error number.
    #[must_use]
    pub fn raw_os_error(&self) -> Option<i32> {
        self.errno.map(Errno::raw_os_error)
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            ErrorKind::InvalidSetting => "out of range",
            ErrorKind::NoThread => "the system cannot create a thread",
            ErrorKind::NotNow => "not available without waiting",
            ErrorKind::OutOfMemory => "out of memory",
            ErrorKind::Panicked => "panicked",
            ErrorKind::System => "refused by the system",
        };
        write!(f, "{}: {kind}", self.what)?;
        if let (Some(amount), Some(limit)) = (self.amount, self.limit) {
            write!(f, ", {amount} requested, the limit is {limit}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.errno.as_ref().map(|errno| errno as &(dyn std::error::Error + 'static))
    }
}

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
