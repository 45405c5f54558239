//! How the command ends: the result of a verb, the errors that select an exit status, and its
//! number. Called by `main`, and by the daemon of a mount, which sends its error to its starter.

use std::fmt;

use crate::output::{self, OutputClosed};
use crate::signals::{Signal, Stopped};

/// How a verb ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandStatus {
    /// Success.
    Success,
    /// The image or the output is bad; each problem has been reported.
    Failure,
    /// The arguments make no sense; this has been reported.
    UsageError,
    /// A signal ended the work.
    Stopped(Signal),
    /// A number that another program gives a failure; it has been reported.
    Number(u8),
}

impl CommandStatus {
    /// Success if there was no failure.
    pub(crate) fn from_failures(count: u64) -> Self {
        if count == 0 { Self::Success } else { Self::Failure }
    }

    /// What an error means for the exit status. An output that nobody reads is a failure here: only the verb knows
    /// whether its work is done by then, and says so with [`after_output`](Self::after_output).
    pub(crate) fn of_error(error: &anyhow::Error) -> Self {
        if let Some(Stopped(signal)) = error.chain().find_map(|cause| cause.downcast_ref()) {
            return Self::Stopped(*signal);
        }
        if error.chain().any(|cause| cause.is::<UsageError>()) {
            return Self::UsageError;
        }
        Self::Failure
    }

    /// This status, after `written`, the result of writing to standard output what is left of the work: a reader
    /// that closed it wants no more output, but the failures before that are still failures.
    ///
    /// # Errors
    /// Those of `written`, except for a reader that is gone.
    pub(crate) fn after_output<E: Into<anyhow::Error>>(
        self,
        written: Result<(), E>,
    ) -> anyhow::Result<Self> {
        match written.map_err(Into::into) {
            Err(error) if !OutputClosed::caused(&error) => Err(error),
            _ => Ok(self),
        }
    }

    /// The exit status: 0, 1, 2, 128 and the number of the signal, as shells have it, or the
    /// number of another program.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failure => 1,
            Self::UsageError => 2,
            Self::Stopped(signal) => signal.exit_status(),
            Self::Number(number) => number,
        }
    }
}

/// The status of a verb that has returned; prints its error, if there is one to print.
pub(crate) fn conclude(ended: anyhow::Result<CommandStatus>) -> CommandStatus {
    ended.unwrap_or_else(|error| {
        output::print_message(format_args!("{error:#}"));
        CommandStatus::of_error(&error)
    })
}

/// Arguments that are wrong in a way that the parser of the command line cannot see.
#[derive(Debug)]
pub(crate) struct UsageError(String);

/// An error that ends the command with the exit status of wrong usage.
pub(crate) fn usage_error(text: impl fmt::Display) -> anyhow::Error {
    UsageError(text.to_string()).into()
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

#[cfg(test)]
mod tests {
    use std::io;

    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn an_error_keeps_its_exit_status_below_a_context() {
        let code = |error: anyhow::Error| CommandStatus::of_error(&error.context("x")).code();
        assert_eq!(code(anyhow!("bad")), 1);
        assert_eq!(code(usage_error("--memory")), 2);
        assert_eq!(code(Stopped(Signal(15)).into()), 143);
        assert_eq!(code(io::Error::from(OutputClosed).into()), 1);
        // Of a connection, for example.
        assert_eq!(code(io::Error::from(io::ErrorKind::BrokenPipe).into()), 1);
        let nested = Err::<(), _>(usage_error("y")).context("z").unwrap_err();
        assert_eq!(code(nested), 2);
    }

    #[test]
    fn a_closed_output_hides_no_failure() {
        let closed = || Err(io::Error::from(OutputClosed)).context("cannot write");
        let full = || Err(io::Error::from(io::ErrorKind::StorageFull)).context("cannot write");
        for status in [CommandStatus::Success, CommandStatus::Failure] {
            assert_eq!(status.after_output(anyhow::Ok(())).unwrap(), status);
            assert_eq!(status.after_output(closed()).unwrap(), status);
            assert_eq!(status.after_output(full()).unwrap_err().to_string(), "cannot write");
        }
    }
}
