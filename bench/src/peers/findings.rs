//! What an experiment with peers found, on its way into the report: columns become rows and series, ratios are held against
//! the marks of the case, and whoever did not take part is named.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::column::{Column, Figure};
use super::interleave::{Contest, Pace};
use super::program::Program;
use crate::case::{Case, Mark};
use crate::claim::{Claim, Held};
use crate::plot::Plot;
use crate::report::{Report, Series};

/// Repetitions of the same work are refused if they are further apart, as a share of their median.
const MOST_SPREAD: f64 = 0.5;
/// Fewer samples tell little of noise.
const ENOUGH_SAMPLES: usize = 3;

/// What stands in the report's settings.
#[derive(Debug, Serialize)]
struct Settings<'a, S> {
    arguments: &'a S,
    /// Where they are and which versions.
    programs: &'a [Program],
}

/// A report that is being filled.
#[derive(Debug)]
pub(super) struct Findings {
    pub(super) report: Report,
    pub(super) case: Case,
    experiment: &'static str,
    left_out: Vec<String>,
}

impl Findings {
    pub(super) fn new(
        experiment: &'static str,
        arguments: &impl Serialize,
        programs: &[Program],
    ) -> Result<Self> {
        let mut report = Report::new(experiment, &Settings { arguments, programs })?;
        for Program { name, path, version } in programs {
            report.add_remark(format!("{name}: {version}, {}", path.display()));
        }
        Ok(Self { report, case: Case::of(experiment)?, experiment, left_out: Vec::new() })
    }

    /// Names what did not take part, once.
    pub(super) fn leave_out(&mut self, what: impl Into<String>, why: impl Into<String>) {
        let (what, why) = (what.into(), why.into());
        let both = format!("{what}: {why}");
        if !self.left_out.contains(&both) {
            self.left_out.push(both);
            self.report.left_out(what, why);
        }
    }

    /// What is there; what is not is named.
    pub(super) fn present<T>(&mut self, what: &str, found: Result<T, String>) -> Option<T> {
        found.map_err(|why| self.leave_out(what, why)).ok()
    }

    /// Whether there is time for more; if not, it is named as left out.
    pub(super) fn has_time(&mut self, pace: Pace, what: &str) -> bool {
        let has_time = pace.has_time_for(Duration::ZERO);
        if !has_time {
            self.leave_out(what, "there was no time left for it");
        }
        has_time
    }

    /// Keeps every sample, and names who failed.
    pub(super) fn keep(&mut self, case: &str, contest: &Contest) {
        for (name, error) in &contest.failed {
            self.leave_out(format!("{name} in {case}"), error);
        }
        for column in &contest.columns {
            for (figure, samples) in &column.figures {
                self.report.add_series(Series {
                    row: column.name.clone(),
                    case: format!("{case}, {}", figure.name()),
                    unit: figure.unit(),
                    samples: samples.clone(),
                });
            }
            let walls = column.figures.get(&Figure::Wall);
            if let Some(walls) = walls.filter(|walls| walls.values().count() >= ENOUGH_SAMPLES) {
                let what = format!("{} in {case}", column.name);
                self.report.judge_noise(what, walls, MOST_SPREAD);
            }
        }
    }

    /// Marks of the case, to be held against.
    pub(super) fn verdict(&self, mark: &str) -> Result<Verdict> {
        let mark = self.case.mark(mark)?.clone();
        Ok(Verdict { experiment: self.experiment, mark, ratios: Vec::new() })
    }

    pub(super) fn judge(&mut self, verdicts: impl IntoIterator<Item = Verdict>) {
        verdicts.into_iter().for_each(|verdict| self.report.add_claim(verdict.claim()));
    }
}

/// Adds the bars of a group.
pub(super) fn add_bars(plot: &mut Plot, group: &str, columns: &[Column], figure: Figure) {
    for column in columns {
        if let Some(samples) = column.figures.get(&figure) {
            let summary = samples.summary();
            let (value, min, max) = (summary.median, summary.minimum, summary.maximum);
            plot.add_bar(group, column.name.clone(), value, min, max);
        }
    }
}

/// Ratios that are held against one mark.
#[derive(Debug)]
pub(super) struct Verdict {
    experiment: &'static str,
    mark: Mark,
    ratios: Vec<(String, f64)>,
}

impl Verdict {
    /// Adds the ratio of a case, if there is one.
    pub(super) fn add(&mut self, case: impl Into<String>, ratio: Option<f64>) {
        self.ratios.extend(ratio.map(|ratio| (case.into(), ratio)));
    }

    /// Held if every ratio is at most the mark.
    pub(super) fn claim(self) -> Claim {
        let claim = |ours: String, held| Claim {
            seed: self.experiment,
            claim: self.mark.claim(),
            ours,
            held,
            why_not: None,
        };
        let values = self.ratios.iter().map(|(_, ratio)| *ratio);
        let (least, most) = (
            values.clone().fold(f64::INFINITY, f64::min),
            values.fold(f64::NEG_INFINITY, f64::max),
        );
        let Some((worst, _)) = self.ratios.iter().find(|(_, ratio)| *ratio >= most) else {
            return claim(String::new(), Held::NotMeasured("nothing to compare".to_owned()));
        };
        if self.ratios.len() == 1 {
            return claim(format!("{most:.3}"), Held::by(most <= self.mark.value));
        }
        let missed = self.ratios.iter().filter(|(_, ratio)| *ratio > self.mark.value).count();
        let mut ours = format!("{least:.3} to {most:.3} (most: {worst})");
        if missed > 0 {
            ours = format!("{ours}, missed in {missed} of {}", self.ratios.len());
        }
        claim(ours, Held::by(missed == 0))
    }
}

#[cfg(test)]
mod tests {
    use super::Verdict;
    use crate::case::{Limit, Mark};

    fn sentence(ratios: &[(&str, f64)]) -> String {
        let mark = Mark {
            value: 0.7,
            unit: "of the peer".to_owned(),
            limit: Limit::Most,
            says: "at most {}".to_owned(),
        };
        let mut verdict = Verdict { experiment: "mount", mark, ratios: Vec::new() };
        for (case, ratio) in ratios {
            verdict.add(*case, Some(*ratio));
        }
        verdict.add("not there", None);
        verdict.claim().to_string()
    }

    #[test]
    fn a_verdict_names_its_worst_case() {
        assert_eq!(
            sentence(&[("lz4", 0.4), ("zstd", 0.7)]),
            "mount: at most 0.7 of the peer: 0.400 to 0.700 (most: zstd) here, held"
        );
        assert!(
            sentence(&[("lz4", 0.71), ("zstd", 0.7)])
                .ends_with("0.700 to 0.710 (most: lz4), missed in 1 of 2 here, NOT held")
        );
        assert!(sentence(&[("lz4", 0.5)]).ends_with(": 0.500 here, held"));
        assert!(sentence(&[]).ends_with("not measured: nothing to compare"));
    }
}
