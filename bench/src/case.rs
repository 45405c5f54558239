//! The description of each experiment: what it measures, the expected result and why, and the thresholds of its
//! figures. Read from `cases/*.toml`, which are compiled in.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;

use anyhow::{Context, Result};
use serde::Deserialize;

macro_rules! cases {
    ($($name:literal),+ $(,)?) => {
        [$(($name, include_str!(concat!("../cases/", $name, ".toml")))),+]
    };
}

/// The cases, in the order in which `all` runs them.
const CASES: [(&str, &str); 18] = cases![
    "workqueue",
    "scheduling",
    "launches",
    "pages",
    "page-pool",
    "windows",
    "jobs",
    "reads",
    "extract",
    "check",
    "mount",
    "random",
    "build",
    "memory",
    "mount-memory",
    "quota",
    "decodes",
    "model",
];

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    pub(crate) title: String,
    /// Numbers of the mails whose results it reproduces; empty for other experiments.
    pub(crate) origins: Vec<String>,
    /// Rounds that are measured, at most so many in a quick run, and warm-ups before them.
    #[serde(default = "rounds")]
    pub(crate) rounds: u16,
    #[serde(default = "quick_rounds")]
    pub(crate) quick_rounds: u16,
    #[serde(default)]
    pub(crate) warm_ups: u16,
    /// Rounds that are measured however long they take.
    #[serde(default = "least_rounds")]
    pub(crate) least_rounds: u16,
    pub(crate) measures: String,
    pub(crate) shape: String,
    pub(crate) why: String,
    /// The largest spread of repetitions as a share of their median; none where the distribution itself is measured.
    pub(crate) noise: Option<f64>,
    /// Whether claims are about time, so that steal time by a hypervisor invalidates the run.
    #[serde(rename = "clocked", default = "clocked")]
    pub(crate) is_clocked: bool,
    /// Arguments that `all` adds; braces hold the names of inputs.
    #[serde(default)]
    pub(crate) run: Vec<String>,
    /// Arguments added where a requirement is not met, which reduce what is required.
    #[serde(default)]
    pub(crate) otherwise: Vec<String>,
    /// The titles of the columns with names, such as "image | program", and those with figures: a title, a figure, a
    /// statistic ("spread"; the median if none is named), and "to" or "of" with the candidate that it is compared with.
    #[serde(default)]
    pub(crate) names: String,
    #[serde(default)]
    pub(crate) columns: Vec<Vec<String>>,
    /// The commands that are compared.
    #[serde(default)]
    pub(crate) commands: Vec<CaseCommand>,
    /// Values of names in the words of the commands, a run of all commands with each.
    #[serde(default)]
    pub(crate) variants: Vec<CaseVariant>,
    #[serde(default)]
    pub(crate) thresholds: BTreeMap<String, Threshold>,
}

/// A command of a case. Names in braces stand for inputs, outputs and options.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CaseCommand {
    pub(crate) name: String,
    pub(crate) program: String,
    /// The name that the program is called by, if that is another one.
    pub(crate) called: Option<String>,
    pub(crate) words: Vec<String>,
    /// The variants of which it is a part; all if none is named.
    #[serde(default)]
    pub(crate) only: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct CaseVariant {
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) values: Values,
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
    /// Its words for a variant; None if it is no part of it, or an input is not there.
    pub(crate) fn fill(&self, variant: &str, values: &Values) -> Option<Vec<String>> {
        let is_meant = self.only.is_empty() || self.only.iter().any(|only| only == variant);
        let words = self.words.iter().map(|word| fill(word, values));
        Some(words.collect::<Result<Vec<_>, _>>().ok().filter(|_| is_meant)?.concat())
    }
}

const fn clocked() -> bool {
    true
}

const fn rounds() -> u16 {
    5
}

const fn quick_rounds() -> u16 {
    2
}

const fn least_rounds() -> u16 {
    1
}

/// The side of a threshold on which a figure must be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Limit {
    #[default]
    Most,
    Least,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Threshold {
    /// What it judges: a figure as the ratio of two candidates, or a figure of every candidate that has it. Neither where
    /// the experiment judges.
    pub(crate) ratio: Option<[String; 3]>,
    pub(crate) figure: Option<String>,
    /// The cases for which it is meant, and those for which it is not.
    #[serde(default)]
    pub(crate) cases: Vec<String>,
    #[serde(default)]
    pub(crate) not_cases: Vec<String>,
    /// Mails that claim it; those of the case if none is named.
    #[serde(default)]
    pub(crate) origins: Vec<String>,
    pub(crate) value: f64,
    /// Such as "%".
    pub(crate) unit: String,
    #[serde(default)]
    pub(crate) limit: Limit,
    /// The claim in words; {} stands for value and unit.
    pub(crate) says: String,
}

impl Case {
    pub(crate) fn of(experiment: &str) -> Result<Self> {
        let found = CASES.iter().find(|(name, _)| *name == experiment);
        let (_, text) = found.with_context(|| format!("{experiment} has no case"))?;
        toml::from_str(text).with_context(|| format!("reading cases/{experiment}.toml"))
    }

    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        CASES.iter().map(|(name, _)| *name)
    }

    /// The names of the variants. They are a part of the command line, which lives as long as the program.
    pub(crate) fn variants_of(experiment: &str) -> Vec<&'static str> {
        let variants = Self::of(experiment).map(|case| case.variants).unwrap_or_default();
        variants.into_iter().map(|variant| &*variant.name.leak()).collect()
    }

    pub(crate) fn threshold(&self, name: &str) -> Result<&Threshold> {
        self.thresholds.get(name).with_context(|| format!("{} has no threshold {name}", self.title))
    }
}

/// Prints the cases of these experiments, or all.
pub(crate) fn describe(experiments: &[String], out: &mut dyn Write) -> Result<()> {
    for name in Case::names() {
        if experiments.is_empty() || experiments.iter().any(|wanted| wanted == name) {
            writeln!(out, "# {name}: {}", Case::of(name)?)?;
        }
    }
    Ok(())
}

impl Threshold {
    pub(crate) fn is_for(&self, case: &str) -> bool {
        let has = |list: &[String]| list.iter().any(|one| one == case);
        (self.cases.is_empty() || has(&self.cases)) && !has(&self.not_cases)
    }

    /// NaN never meets it.
    pub(crate) fn is_met(&self, figure: f64) -> bool {
        match self.limit {
            Limit::Most => figure <= self.value,
            Limit::Least => figure >= self.value,
        }
    }

    pub(crate) fn show(&self, figure: f64) -> String {
        match self.unit.as_str() {
            "%" if self.value < 0.0 => format!("{figure:+.1} %"),
            "%" => format!("{figure:.2} %"),
            unit => format!("{figure:.2} {unit}"),
        }
    }

    pub(crate) fn claim(&self) -> String {
        self.says.replace("{}", &format!("{} {}", self.value, self.unit))
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
    use super::{Case, describe};

    #[test]
    fn every_case_is_complete() {
        for name in Case::names() {
            let case = Case::of(name).unwrap();
            for text in [&case.title, &case.measures, &case.shape, &case.why] {
                assert!(!text.trim().is_empty(), "{name}");
            }
            for threshold in case.thresholds.values() {
                assert!(threshold.says.contains("{}"), "{name}: {}", threshold.says);
            }
        }
        Case::of("nothing").unwrap_err();
    }

    #[test]
    fn a_figure_is_judged_by_the_side_of_its_threshold() {
        let case = Case::of("pages").unwrap();
        let [least, most] = ["demand", "together"].map(|name| case.threshold(name).unwrap());
        assert!(least.is_met(95.0) && !least.is_met(94.9));
        assert!(most.is_met(-50.0) && !most.is_met(-49.9) && !most.is_met(f64::NAN));
        assert_eq!(most.claim(), "both together change it by -50 % or more");
        assert_eq!(most.show(-52.14), "-52.1 %");
        case.threshold("nothing").unwrap_err();
    }

    #[test]
    fn one_case_is_described_without_the_others() {
        let mut text = Vec::new();
        describe(&["jobs".to_owned()], &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with("# jobs: "), "{text}");
        assert!(text.contains("Origins: 003") && !text.contains("Origins: 002"), "{text}");
        assert!(text.contains("  two-threads: 2 threads change"), "{text}");
    }
}
