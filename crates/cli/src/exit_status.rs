//! How a verb ended, and the exit status that says so.

use std::process::ExitCode;

/// How a verb ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandStatus {
    /// All is well.
    Success,
    /// The image or the output is bad; each problem has been named.
    Failure,
    /// The arguments make no sense; this has been said.
    UsageError,
}

impl CommandStatus {
    /// Success if there was no problem.
    pub(crate) fn from_failures(count: u64) -> Self {
        if count == 0 { Self::Success } else { Self::Failure }
    }
}

impl From<CommandStatus> for ExitCode {
    fn from(outcome: CommandStatus) -> Self {
        Self::from(match outcome {
            CommandStatus::Success => 0,
            CommandStatus::Failure => 1,
            CommandStatus::UsageError => 2,
        })
    }
}
