//! The frame of every experiment: arguments that know their requirements and how to measure. `main` checks the
//! requirements, runs the experiment, and prints and writes its report. An experiment names its candidates and figures,
//! and leaves the rest to the measuring loop, the tables and the thresholds of its case. Where the case has the columns and
//! ratios, `Sheet::of` and `context.compare` take the place of the columns, of `sheet.add` and of `judge`:
//!
//! ```ignore
//! const RATE: Figure = Figure::new("throughput", "GB/s", 3);
//!
//! fn run(&self, context: &mut Context<'_>) -> Result<()> {
//!     context.plan(&self.rounds, self.threads.len())?; // RoundOptions, and the number of `measure` calls
//!     let columns = vec![
//!         Column::new("GB/s", RATE),
//!         Column::new("least–most", RATE).range(),
//!         Column::new("diff", RATE).difference_to("original"),
//!     ];
//!     let mut sheet = Sheet::new("Throughput", "threads | queue", columns).bars(RATE).steady(WALL);
//!     for threads in &self.threads {
//!         let candidates = vec![
//!             Candidate::ours("ours", || pass(threads)), // answers Figures: vec![(WALL, 1.5), (RATE, 0.7)]
//!             Candidate::peer("original", || other(threads)),
//!         ];
//!         let case = format!("{threads} threads");
//!         let all = context.measure(&case, candidates)?; // Vec<Measured>, in the order of the candidates
//!         sheet.add(&case, &all); // a row for each candidate; every sample goes to the JSON
//!         context.report.judge("ahead", &case, ratio(&all, RATE, "ours", "original"));
//!     }
//!     context.report.sheet(sheet); // table, plot, samples
//!     Ok(()) // each threshold of the case becomes a claim by its worst figure
//! }
//! ```

use std::fmt::Display;
use std::io::Write;

use anyhow::Result;
use serde::Serialize;

use crate::machine::Requirement;
use crate::report::Report;
use crate::rounds::{Candidate, Measured, RoundOptions, Schedule, StealFilter};
use crate::table::Sheet;

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
    /// Set by `plan`.
    pub(crate) schedule: Schedule,
    /// Calls of `measure` that are left, which share the time.
    parts: usize,
    filter: StealFilter,
}

impl<'a> Context<'a> {
    pub(crate) fn new(report: Report, is_quick: bool, out: &'a mut dyn Write) -> Self {
        let schedule = Schedule::new(&RoundOptions::default(), &report.case, is_quick);
        Self { report, is_quick, out, schedule, parts: 1, filter: StealFilter::default() }
    }

    /// Prints a line of progress.
    pub(crate) fn say(&mut self, line: impl Display) -> Result<()> {
        Ok(writeln!(self.out, "{line}")?)
    }

    /// The number of rounds, at most `most` in a quick run.
    pub(crate) fn rounds(&self, rounds: u16, most: u16) -> u16 {
        if self.is_quick { rounds.min(most) } else { rounds }
    }

    /// Says how often is measured. The time from now on is shared by this many calls of `measure`.
    pub(crate) fn plan(&mut self, rounds: &RoundOptions, parts: usize) {
        self.schedule = Schedule::new(rounds, &self.report.case, self.is_quick);
        self.parts = parts;
        self.report.remark(self.schedule.to_string());
    }

    /// Measures the candidates in turn, in the rounds of the schedule. Peers that fail are left out, with the reason. Empty
    /// if there is no time left.
    pub(crate) fn measure(
        &mut self,
        case: &str,
        mut candidates: Vec<Candidate<'_>>,
    ) -> Result<Vec<Measured>> {
        let part = self.schedule.part(self.parts);
        self.parts = self.parts.saturating_sub(1);
        if self.schedule.deadline().is_over() {
            self.report.leave_out(case, "there was no time left for it");
            return Ok(Vec::new());
        }
        self.say(case)?;
        let (all, failed) = part.measure(&mut candidates, &mut self.filter)?;
        for (name, error) in failed {
            self.report.leave_out(format!("{name} in {case}"), error);
        }
        Ok(all)
    }

    /// The same, with rows in the sheet and the ratios that thresholds of the case name.
    pub(crate) fn compare(
        &mut self,
        case: &str,
        candidates: Vec<Candidate<'_>>,
        sheet: &mut Sheet,
    ) -> Result<Vec<Measured>> {
        let all = self.measure(case, candidates)?;
        sheet.add(case, &all);
        self.report.judge_all(case, &all);
        Ok(all)
    }

    /// The report, complete.
    pub(crate) fn finish(mut self) -> Result<Report> {
        if self.filter.has_samples() {
            self.report.remark(self.filter.to_string());
        }
        self.report.finish()?;
        Ok(self.report)
    }
}
