//! How the command ends: the result of a verb, the errors that select an exit status, and its
//! number. Called by `main`, and by the daemon of a mount, which sends its error to its starter.

use std::fmt;
use std::io;

use crate::output;
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

    /// What an error means for the exit status. A reader that closed the pipe has read all it
    /// wanted.
    pub(crate) fn of_error(error: &anyhow::Error) -> Self {
        if let Some(Stopped(signal)) = error.chain().find_map(|cause| cause.downcast_ref()) {
            return Self::Stopped(*signal);
        }
        if error.chain().any(|cause| cause.is::<UsageError>()) {
            return Self::UsageError;
        }
        if is_broken_pipe(error) { Self::Success } else { Self::Failure }
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
        let status = CommandStatus::of_error(&error);
        if status != CommandStatus::Success {
            output::print_message(format_args!("{error:#}"));
        }
        status
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

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    })
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn an_error_keeps_its_exit_status_below_a_context() {
        let code = |error: anyhow::Error| CommandStatus::of_error(&error.context("x")).code();
        assert_eq!(code(anyhow!("bad")), 1);
        assert_eq!(code(usage_error("--memory")), 2);
        assert_eq!(code(Stopped(Signal(15)).into()), 143);
        assert_eq!(code(io::Error::from(io::ErrorKind::BrokenPipe).into()), 0);
        let nested = Err::<(), _>(usage_error("y")).context("z").unwrap_err();
        assert_eq!(code(nested), 2);
    }
}
