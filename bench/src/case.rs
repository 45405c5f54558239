//! The description of each experiment: what it measures, the expected result and why, its tables, and the thresholds of its
//! figures. Read from `cases/*.toml`, which are compiled in.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::machine::Requirement;
use crate::statistics::Figure;
use crate::table::{Column, TableSpec};

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Case {
    pub(crate) title: String,
    /// Numbers of the mails whose results it reproduces; empty for other experiments.
    pub(crate) origins: Vec<String>,
    /// Rounds that are measured, at most so many in a quick run, and warm-ups before them.
    pub(crate) rounds: u16,
    pub(crate) quick_rounds: u16,
    pub(crate) warm_ups: u16,
    /// Rounds that are measured however long they take.
    pub(crate) least_rounds: u16,
    pub(crate) measures: String,
    pub(crate) shape: String,
    pub(crate) why: String,
    /// The largest spread of repetitions as a share of their median; none where the distribution itself is measured.
    pub(crate) noise: Option<f64>,
    /// Whether no claim is about time, so that steal time by a hypervisor does not invalidate the run.
    pub(crate) is_untimed: bool,
    /// What it requires beside the requirements of its arguments.
    pub(crate) requires: Vec<Requirement>,
    /// Arguments that `all` adds; braces hold the names of inputs.
    pub(crate) run: Vec<String>,
    /// Arguments added where a requirement is not met, which reduce what is required.
    pub(crate) otherwise: Vec<String>,
    pub(crate) figures: BTreeMap<String, Figure>,
    pub(crate) tables: BTreeMap<String, TableSpec>,
    /// The commands that are compared.
    pub(crate) commands: Vec<CaseCommand>,
    /// Values of names in the words of the commands, a run of all commands with each.
    pub(crate) variants: Vec<CaseVariant>,
    /// Programs of an image, with their arguments, that are launched in turn.
    pub(crate) programs: Vec<Vec<String>>,
    pub(crate) thresholds: BTreeMap<String, Threshold>,
}

/// A command of a case. Names in braces stand for inputs, outputs and options.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CaseCommand {
    pub(crate) name: String,
    pub(crate) program: String,
    /// The name that the program is called by, if that is another one.
    pub(crate) called: Option<String>,
    words: Vec<String>,
    /// The variants of which it is a part; all if none is named.
    only: Vec<String>,
    /// The memory that its words allow it: it runs once more in a cgroup of that size, without swap.
    pub(crate) limit_mib: Option<u32>,
    /// Whether it must extract what the first such command extracts.
    pub(crate) is_compared: bool,
    pub(crate) counts_threads: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct CaseVariant {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) confine: Confinement,
    /// What this user or system must have for it.
    #[serde(default)]
    pub(crate) requires: Vec<Requirement>,
    #[serde(flatten)]
    pub(crate) values: Values,
}

/// How one CPU is made available to a command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Confinement {
    #[default]
    Free,
    Affinity,
    Cpuset,
    Quota,
}

/// Values of names in braces.
pub(crate) type Values = BTreeMap<String, Vec<String>>;

/// Replaces a name in braces. A word that is nothing but the name becomes all of its values. An option without a value is
/// dropped; another name without a value is the error.
pub(crate) fn fill(word: &str, values: &Values) -> Result<Vec<String>, String> {
    let inside = word.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let Some((name, _)) = inside else { return Ok(vec![word.to_owned()]) };
    let braces = format!("{{{name}}}");
    match values.get(name).map(Vec::as_slice) {
        Some(all) if word == braces => Ok(all.to_vec()),
        Some([value, ..]) => Ok(vec![word.replace(&braces, value)]),
        _ if word.starts_with('-') => Ok(Vec::new()),
        _ => Err(name.to_owned()),
    }
}

impl CaseCommand {
    /// Whether it starts as many threads as `--jobs` says.
    pub(crate) fn takes_jobs(&self) -> bool {
        self.words.iter().any(|word| word.contains("{jobs}") || word == "{processors}")
    }

    /// Its words for a variant; None if it is no part of it, or an input is not there.
    pub(crate) fn fill(&self, variant: &str, values: &Values) -> Option<Vec<String>> {
        let is_meant = self.only.is_empty() || self.only.iter().any(|only| only == variant);
        let words = self.words.iter().map(|word| fill(word, values));
        Some(words.collect::<Result<Vec<_>, _>>().ok().filter(|_| is_meant)?.concat())
    }
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Threshold {
    /// What it judges in each case: numbers of the candidate that stands in the place of a title, or of all candidates.
    /// None where the experiment judges.
    pub(crate) judges: Vec<Column>,
    /// The cases, by names that the experiment gives them, for which it is meant, and those for which it is not.
    cases: Vec<String>,
    not_cases: Vec<String>,
    /// Mails that claim it; those of the case if none is named.
    pub(crate) origins: Vec<String>,
    pub(crate) value: f64,
    /// Whether it is the least that a figure must be, not the most.
    pub(crate) is_least: bool,
    /// Such as "%".
    pub(crate) unit: String,
    /// The claim in words; {} stands for value and unit.
    says: String,
    /// The known cause where it is missed or not measured.
    pub(crate) why_not: String,
}

impl Threshold {
    pub(crate) fn is_for(&self, names: &[&str]) -> bool {
        let has = |list: &[String]| list.iter().any(|one| names.contains(&one.as_str()));
        (self.cases.is_empty() || has(&self.cases)) && !has(&self.not_cases)
    }

    /// NaN never meets it.
    pub(crate) fn is_met(&self, figure: f64) -> bool {
        if self.is_least { figure >= self.value } else { figure <= self.value }
    }

    pub(crate) fn show(&self, figure: f64) -> String {
        match self.unit.as_str() {
            "%" if self.value < 0.0 => format!("{figure:+.1} %"),
            unit => format!("{figure:.2} {unit}"),
        }
    }

    pub(crate) fn claim(&self) -> String {
        self.says.replace("{}", &format!("{} {}", self.value, self.unit))
    }
}

impl Case {
    pub(crate) fn of(experiment: &str) -> Result<Self> {
        let case = crate::EXPERIMENTS.iter().find(|(name, _)| *name == experiment);
        let (_, text) = case.with_context(|| format!("{experiment} has no case"))?;
        toml::from_str(text).with_context(|| format!("reading cases/{experiment}.toml"))
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.title)?;
        if !self.origins.is_empty() {
            writeln!(f, "Origins: {}\n", self.origins.join(", "))?;
        }
        let texts = [("Measured", &self.measures), ("Expected", &self.shape), ("Why", &self.why)];
        texts.iter().try_for_each(|(what, text)| writeln!(f, "{what}: {}\n", text.trim()))?;
        for (name, threshold) in &self.thresholds {
            writeln!(f, "  {name}: {}", threshold.claim())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Case;
    use crate::EXPERIMENTS;

    #[test]
    fn every_case_is_complete() {
        for (name, _) in EXPERIMENTS {
            let case = Case::of(name).unwrap();
            assert!(case.rounds > 0 && case.quick_rounds > 0 && case.least_rounds > 0);
            for text in [&case.title, &case.measures, &case.shape, &case.why] {
                assert!(!text.trim().is_empty(), "{}", name);
            }
            for threshold in case.thresholds.values() {
                assert!(threshold.says.contains("{}"), "{}: {}", name, threshold.says);
            }
        }
        let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/cases")).unwrap();
        assert_eq!(files.count(), EXPERIMENTS.len());
        Case::of("nothing").unwrap_err();
    }

    #[test]
    fn a_figure_is_judged_by_the_side_of_its_threshold() {
        let case = Case::of("pages").unwrap();
        let [min, max] = ["demand", "together"].map(|name| &case.thresholds[name]);
        assert!(min.is_met(95.0) && !min.is_met(94.9));
        assert!(max.is_met(-50.0) && !max.is_met(-49.9) && !max.is_met(f64::NAN));
        assert_eq!(max.claim(), "both together change it by -50 % or more");
        assert_eq!(max.show(-52.14), "-52.1 %");
    }
}
