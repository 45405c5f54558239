//! The frame of every experiment: arguments that know their requirements and how to measure. `main` checks the
//! requirements, runs the experiment, and prints and writes its report. An experiment names its candidates and figures; its
//! case (`cases/*.toml`) has the tables with their columns and plots, and most thresholds:
//!
//! ```ignore
//! fn run(&self, context: &mut Context<'_>) -> Result<()> {
//!     context.plan(self.rounds, self.threads.len()); // RoundOptions, and the number of `measure` calls
//!     for threads in &self.threads {
//!         let candidates = vec![
//!             Candidate::ours("ours", || pass(threads)), // answers Figures: vec![("wall", 1.5), ("rate", 0.7)]
//!             Candidate::peer("original", || other(threads)),
//!         ];
//!         // Measures, adds a row for each candidate to the table "rates", and has thresholds of the case judge.
//!         let all = context.compare(["rates", "", &format!("{threads} threads")], candidates)?;
//!         context.report.judge("special", &case, own_rule(&all)); // where a threshold needs a rule of its own
//!     }
//!     Ok(()) // each threshold of the case becomes a claim by its worst figure
//! }
//! ```

use std::fmt::{Debug, Display};
use std::io::Write;

use anyhow::Result;
use clap::builder::RangedI64ValueParser;

use crate::machine::Requirement;
use crate::report::Report;
use crate::rounds::{Candidate, RoundOptions, Schedule, StealFilter};
use crate::statistics::Measured;

pub(crate) trait Experiment: Debug {
    /// What must be there before it starts.
    fn requirements(&self) -> Vec<Requirement<'_>> {
        Vec::new()
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()>;
}

/// A number of the command line, from 1 to `most`.
pub(crate) fn up_to(most: u16) -> RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=most.into())
}

/// What an experiment gets and fills.
pub(crate) struct Context<'a> {
    pub(crate) report: Report,
    /// Fewer and smaller runs.
    pub(crate) is_quick: bool,
    pub(crate) out: &'a mut dyn Write,
    /// Set by `plan`.
    pub(crate) schedule: Schedule,
    /// Calls of `measure` that are left, which share the time.
    parts: usize,
    filter: StealFilter,
}

impl<'a> Context<'a> {
    pub(crate) fn new(report: Report, is_quick: bool, out: &'a mut dyn Write) -> Self {
        let schedule = Schedule::new(RoundOptions::default(), &report.case, is_quick);
        Self { report, is_quick, out, schedule, parts: 1, filter: StealFilter::default() }
    }

    /// Prints a line of progress.
    pub(crate) fn say(&mut self, line: impl Display) -> Result<()> {
        Ok(writeln!(self.out, "{line}")?)
    }

    /// Says how often is measured. The time from now on is shared by this many calls of `measure`.
    pub(crate) fn plan(&mut self, rounds: RoundOptions, parts: usize) {
        self.schedule = Schedule::new(rounds, &self.report.case, self.is_quick);
        self.parts = parts;
        self.report.remark(self.schedule.to_string());
    }

    /// Measures the candidates in turn, in the rounds of the schedule. Peers that fail are left out, with the reason. Empty
    /// if there is no time left.
    pub(crate) fn measure(
        &mut self,
        case: &str,
        candidates: Vec<Candidate<'_>>,
    ) -> Result<Vec<Measured>> {
        let part = self.schedule.part(self.parts);
        self.parts = self.parts.saturating_sub(1);
        if self.schedule.deadline.is_over() {
            self.report.leave_out(case, "there was no time left for it");
            return Ok(Vec::new());
        }
        self.say(case)?;
        let (all, failed) = part.measure(candidates, &mut self.filter)?;
        for (name, error) in failed {
            self.report.leave_out(format!("{name} in {case}"), error);
        }
        Ok(all)
    }

    /// The same, with rows in a table, and judged by thresholds.
    pub(crate) fn compare(
        &mut self,
        [table, title, case]: [&str; 3],
        candidates: Vec<Candidate<'_>>,
    ) -> Result<Vec<Measured>> {
        let all = self.measure(case, candidates)?;
        self.report.add(table, title, case, &all)?;
        self.report.judge_all(case, &[case], &all);
        Ok(all)
    }

    /// The report, complete.
    pub(crate) fn finish(mut self) -> Result<Report> {
        if self.filter.samples > 0 {
            self.report.remark(self.filter.to_string());
        }
        self.report.finish()?;
        Ok(self.report)
    }
}
