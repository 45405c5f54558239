//! The frame of every experiment: arguments that know their requirements and how to measure. `main` checks the
//! requirements, runs the experiment, and prints and writes its report.

use std::fmt::Display;
use std::io::Write;

use anyhow::Result;
use serde::Serialize;

use crate::machine::Requirement;
use crate::report::Report;

/// The arguments of an experiment as they stand in the report.
pub(crate) trait Settings {
    fn settings(&self) -> serde_json::Result<serde_json::Value>;
}

impl<T: Serialize> Settings for T {
    fn settings(&self) -> serde_json::Result<serde_json::Value> {
        serde_json::to_value(self)
    }
}

pub(crate) trait Experiment: Settings {
    /// What must be there before it starts.
    fn requirements(&self) -> Vec<Requirement> {
        Vec::new()
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()>;
}

/// What an experiment gets and fills.
pub(crate) struct Context<'a> {
    pub(crate) report: Report,
    /// Fewer and smaller runs.
    pub(crate) is_quick: bool,
    pub(crate) out: &'a mut dyn Write,
}

impl Context<'_> {
    /// Prints a line of progress.
    pub(crate) fn say(&mut self, line: impl Display) -> Result<()> {
        Ok(writeln!(self.out, "{line}")?)
    }

    /// The number of rounds, at most `most` in a quick run.
    pub(crate) fn rounds(&self, rounds: u16, most: u16) -> u16 {
        if self.is_quick { rounds.min(most) } else { rounds }
    }
}
