//! The crate's one error: a kind to match, what was requested, and the numbers. It allocates nothing, because it
//! must be made when there is no memory.

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
