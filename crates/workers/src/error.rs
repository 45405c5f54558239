//! The crate's one error: a kind to match on, what was asked, and the numbers. It allocates nothing,
//! since it must be made when there is no memory.

use rustix::io::Errno;

/// What went wrong, for callers to match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A setting is outside its range; `amount` is what was asked, `limit` the bound.
    InvalidSetting,
    /// The system does not give another thread.
    NoThread,
    /// Best effort only: it could not be had now without waiting. Never to be remembered.
    NotNow,
    /// The hard limit: waiting and reclaiming did not help, or more was asked than the limit allows.
    OutOfMemory,
    /// A job panicked; its worker lives on.
    Panicked,
    /// A system call failed; `source` says how.
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
    /// `what` names the thing in the words of a message: "slots a worker", "mapping the arena".
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

    /// What was asked for, where a number is the matter.
    #[must_use]
    pub const fn amount(&self) -> Option<u64> {
        self.amount
    }

    /// The bound that it met.
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
            ErrorKind::NoThread => "no thread to be had",
            ErrorKind::NotNow => "not to be had without waiting",
            ErrorKind::OutOfMemory => "out of memory",
            ErrorKind::Panicked => "panicked",
            ErrorKind::System => "refused by the system",
        };
        write!(f, "{}: {kind}", self.what)?;
        if let (Some(amount), Some(limit)) = (self.amount, self.limit) {
            write!(f, ", {amount} asked, {limit} is the limit")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.errno.as_ref().map(|errno| errno as &(dyn std::error::Error + 'static))
    }
}
