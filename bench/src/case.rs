//! What an experiment is about: what is measured, which shape is expected and why, and the marks that its figures
//! are held against. Written in `cases/*.toml`, which are part of the program.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;

use anyhow::{Context, Result};
use serde::Deserialize;

/// The cases, in the order in which `all` runs them.
const CASES: [(&str, &str); 7] = [
    ("workqueue", include_str!("../cases/workqueue.toml")),
    ("scheduling", include_str!("../cases/scheduling.toml")),
    ("launches", include_str!("../cases/launches.toml")),
    ("pages", include_str!("../cases/pages.toml")),
    ("windows", include_str!("../cases/windows.toml")),
    ("jobs", include_str!("../cases/jobs.toml")),
    ("reads", include_str!("../cases/reads.toml")),
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
    /// By name.
    #[serde(default)]
    pub(crate) marks: BTreeMap<String, Mark>,
}

/// A number that a figure is held against.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mark {
    pub(crate) value: f64,
    /// What the number is of, such as "%".
    pub(crate) unit: String,
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
