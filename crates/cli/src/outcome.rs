//! How a verb ended, and the exit status that says so.

use std::process::ExitCode;

/// How a verb ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All is well.
    Good,
    /// The image or the output is bad; each problem has been named.
    Bad,
    /// The arguments make no sense; this has been said.
    Misused,
}

impl Outcome {
    /// Good if there was no problem.
    pub(crate) fn of_problems(count: u64) -> Self {
        if count == 0 { Self::Good } else { Self::Bad }
    }
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        Self::from(match outcome {
            Outcome::Good => 0,
            Outcome::Bad => 1,
            Outcome::Misused => 2,
        })
    }
}
