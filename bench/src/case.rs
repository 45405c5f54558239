//! What an experiment is about: what is measured, which shape is expected and why, and the marks that its figures
//! are held against. Written in `cases/*.toml`, which are part of the program.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;

use anyhow::{Context, Result};
use serde::Deserialize;

/// The cases, in the order in which `all` runs them.
const CASES: [(&str, &str); 14] = [
    ("workqueue", include_str!("../cases/workqueue.toml")),
    ("scheduling", include_str!("../cases/scheduling.toml")),
    ("launches", include_str!("../cases/launches.toml")),
    ("pages", include_str!("../cases/pages.toml")),
    ("page-pool", include_str!("../cases/page-pool.toml")),
    ("windows", include_str!("../cases/windows.toml")),
    ("jobs", include_str!("../cases/jobs.toml")),
    ("reads", include_str!("../cases/reads.toml")),
    ("extract", include_str!("../cases/extract.toml")),
    ("check", include_str!("../cases/check.toml")),
    ("mount", include_str!("../cases/mount.toml")),
    ("random", include_str!("../cases/random.toml")),
    ("build", include_str!("../cases/build.toml")),
    ("model", include_str!("../cases/model.toml")),
];

/// A case.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    /// Its title.
    pub(crate) title: String,
    /// Numbers of the seeds that it reproduces; none if it is about something else.
    pub(crate) seeds: Vec<String>,
    pub(crate) measures: String,
    pub(crate) shape: String,
    pub(crate) why: String,
    /// How far repetitions of the same work may be apart, as a share of their median; where the distribution is what
    /// is measured there is no such limit.
    pub(crate) noise: Option<f64>,
    /// Whether its claims are about time on this machine's CPUs, so that the host must leave them alone.
    #[serde(rename = "clocked", default = "clocked")]
    pub(crate) is_clocked: bool,
    /// Words that `all` adds to the name of the experiment; in braces stand images and folders.
    #[serde(default)]
    pub(crate) run: Vec<String>,
    /// Words in their place where there is time left at the end and those are for a quick run.
    #[serde(default)]
    pub(crate) at_length: Vec<String>,
    /// Words that it adds where something that the experiment needs is missing, so that it needs less.
    #[serde(default)]
    pub(crate) otherwise: Vec<String>,
    /// By name.
    #[serde(default)]
    pub(crate) marks: BTreeMap<String, Mark>,
}

const fn clocked() -> bool {
    true
}

/// On which side of a mark a figure must be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Limit {
    /// At most.
    #[default]
    Most,
    /// At least.
    Least,
}

/// A number that a figure is held against.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mark {
    pub(crate) value: f64,
    /// What the number is of, such as "%".
    pub(crate) unit: String,
    #[serde(default)]
    pub(crate) limit: Limit,
    /// The claim in words, in which {} stands for the number.
    pub(crate) says: String,
}

impl Case {
    /// The case of an experiment.
    ///
    /// # Errors
    /// When there is none, or it cannot be understood.
    pub(crate) fn of(experiment: &str) -> Result<Self> {
        let found = CASES.iter().find(|(name, _)| *name == experiment);
        let (_, text) = found.with_context(|| format!("{experiment} has no case"))?;
        toml::from_str(text).with_context(|| format!("reading cases/{experiment}.toml"))
    }

    /// Every experiment that has a case.
    pub(crate) fn experiments() -> impl Iterator<Item = &'static str> {
        CASES.iter().map(|(name, _)| *name)
    }

    /// The mark of that name.
    ///
    /// # Errors
    /// When the case has none.
    pub(crate) fn mark(&self, name: &str) -> Result<&Mark> {
        self.marks.get(name).with_context(|| format!("{} has no mark {name}", self.title))
    }
}

/// Prints the cases of these experiments, or all.
///
/// # Errors
/// When a case cannot be understood, or printed.
pub(crate) fn describe(experiments: &[String], out: &mut dyn Write) -> Result<()> {
    for name in Case::experiments() {
        if experiments.is_empty() || experiments.iter().any(|wanted| wanted == name) {
            writeln!(out, "# {name}: {}", Case::of(name)?)?;
        }
    }
    Ok(())
}

impl Mark {
    /// Whether a figure meets it; one that is not a number does not.
    pub(crate) fn is_met(&self, figure: f64) -> bool {
        match self.limit {
            Limit::Most => figure <= self.value,
            Limit::Least => figure >= self.value,
        }
    }

    /// A figure of the mark's unit.
    pub(crate) fn show(&self, figure: f64) -> String {
        match self.unit.as_str() {
            "%" if self.value < 0.0 => format!("{figure:+.1} %"),
            "%" => format!("{figure:.2} %"),
            unit => format!("{figure:.2} {unit}"),
        }
    }

    /// The mark, and whether figures meet it, for the end of a remark.
    pub(crate) fn verdict(&self, figures: &[f64]) -> String {
        let both = if figures.len() > 1 { " for both" } else { "" };
        let is_met = figures.iter().all(|figure| self.is_met(*figure));
        let held = if is_met { "held" } else { "NOT held" };
        format!("(mark {} {}{both}: {held})", self.value, self.unit)
    }

    /// The claim in words.
    pub(crate) fn claim(&self) -> String {
        self.says.replace("{}", &format!("{} {}", self.value, self.unit))
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.title)?;
        if !self.seeds.is_empty() {
            writeln!(f, "Seeds: {}\n", self.seeds.join(", "))?;
        }
        writeln!(f, "Measured: {}\n", self.measures.trim())?;
        writeln!(f, "Expected: {}\n", self.shape.trim())?;
        writeln!(f, "Why: {}", self.why.trim())?;
        if !self.marks.is_empty() {
            writeln!(f, "\nMarks:")?;
        }
        for (name, mark) in &self.marks {
            writeln!(f, "  {name}: {}", mark.claim())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Case, describe};

    #[test]
    fn every_case_can_be_read_and_says_what_its_marks_are() {
        for name in Case::experiments() {
            let case = Case::of(name).unwrap();
            for text in [&case.title, &case.measures, &case.shape, &case.why] {
                assert!(!text.trim().is_empty(), "{name}");
            }
            for mark in case.marks.values() {
                assert!(mark.says.contains("{}"), "{name}: {}", mark.says);
            }
        }
        Case::of("nothing").unwrap_err();
    }

    #[test]
    fn a_figure_is_held_against_the_side_of_its_mark() {
        let case = Case::of("pages").unwrap();
        let (least, most) = (case.mark("demand").unwrap(), case.mark("together").unwrap());
        assert!(least.is_met(95.0) && !least.is_met(94.9));
        assert!(most.is_met(-50.0) && !most.is_met(-49.9) && !most.is_met(f64::NAN));
        assert_eq!(most.claim(), "both together change it by -50 % or more");
        assert_eq!(most.show(-52.14), "-52.1 %");
        assert_eq!(most.verdict(&[-60.0, -40.0]), "(mark -50 % for both: NOT held)");
        case.mark("nothing").unwrap_err();
    }

    #[test]
    fn one_case_is_told_without_the_others() {
        let mut text = Vec::new();
        describe(&["jobs".to_owned()], &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with("# jobs: "), "{text}");
        assert!(text.contains("Seeds: 003") && !text.contains("Seeds: 002"), "{text}");
        assert!(text.contains("  two-threads: 2 threads change"), "{text}");
    }
}
