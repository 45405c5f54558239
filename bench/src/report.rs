//! The result of an experiment: tables, remarks, judged claims and every sample. `main` prints and writes it; `all`
//! reads the JSON back for its page.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::case::{Case, Threshold};
use crate::machine::{Steal, StealDelta, describe, load_average};
use crate::statistics::{Measured, Samples};
use crate::table::Table;

/// The largest steal time of a run. With 5 to 10 % thresholds were met that are also met without steal; with 25 % a
/// cold launch's average wait was 10 % of the unbound one's instead of 4 %.
const MOST_STEAL_PERCENT: f64 = 10.0;
/// Fewer ticks of 10 ms are no reason to refuse a run.
const MIN_TICKS: u64 = 11;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CheckOutcome {
    Met,
    NotMet,
    NotMeasured,
}

/// A threshold, the figure measured here and the outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ThresholdCheck {
    /// The number of the mail that claims it, or the experiment.
    pub(crate) origin: String,
    pub(crate) claim: String,
    /// The figure, such as "-84.1 %".
    pub(crate) figure: String,
    pub(crate) verdict: CheckOutcome,
    /// The cause where it is not met or not measured.
    pub(crate) remark: String,
}

impl ThresholdCheck {
    pub(crate) fn unmeasured(origin: &str, claim: &str, remark: &str) -> Self {
        let [origin, claim, remark] = [origin, claim, remark].map(str::to_owned);
        Self { origin, claim, figure: String::new(), verdict: CheckOutcome::NotMeasured, remark }
    }

    /// Met if every figure meets the threshold. The figure is the only one, or the least and the most.
    fn of(origin: &str, threshold: &Threshold, (figures, explanation): &EvaluatedFigures) -> Self {
        let known = if explanation.is_empty() { &threshold.why_not } else { explanation };
        let mut sorted: Vec<_> = figures.iter().collect();
        sorted.sort_by(|a, b| a.1.total_cmp(&b.1));
        let missed = figures.iter().filter(|(_, figure)| !threshold.is_met(*figure)).count();
        let mut figure = match sorted.as_slice() {
            [] => String::new(),
            [(_, only)] => threshold.show(*only),
            [min, .., max] => {
                let (worst, _) = if threshold.is_least { min } else { max };
                let [min, max] = [min, max].map(|(_, figure)| threshold.show(*figure));
                let min = min.strip_suffix(&threshold.unit).unwrap_or(&min);
                format!("{} to {max} (worst: {worst})", min.trim_end())
            }
        };
        if missed > 0 && figures.len() > 1 {
            figure += &format!(", missed in {missed} of {}", figures.len());
        }
        let (verdict, remark) = match (figures.len(), missed) {
            (0, _) if known.is_empty() => (CheckOutcome::NotMeasured, "nothing to compare"),
            (0, _) => (CheckOutcome::NotMeasured, known.as_str()),
            (_, 0) => (CheckOutcome::Met, ""),
            _ => (CheckOutcome::NotMet, known.as_str()),
        };
        let (origin, remark) = (origin.to_owned(), remark.to_owned());
        Self { origin, claim: threshold.claim(), figure, verdict, remark }
    }
}

impl Display for ThresholdCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { origin, claim, figure, verdict, remark } = self;
        write!(f, "{origin}: {claim}: ")?;
        match verdict {
            CheckOutcome::Met => write!(f, "{figure} here, met"),
            CheckOutcome::NotMet if remark.is_empty() => write!(f, "{figure} here, NOT met"),
            CheckOutcome::NotMet => write!(f, "{figure} here, NOT met ({remark})"),
            CheckOutcome::NotMeasured => write!(f, "not measured: {remark}"),
        }
    }
}

/// The command line of a program that an experiment ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct PeerCommand {
    name: String,
    words: Vec<String>,
}

/// A part of an experiment that did not run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct LeftOut {
    what: String,
    why: String,
}

/// The figures that a threshold judges, each with its case, and what explains a missing or missed one.
type EvaluatedFigures = (Vec<(String, f64)>, String);

/// The samples of one figure of a candidate.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Series {
    /// Who was measured, such as "original".
    row: String,
    /// What, and under which conditions, such as "4 threads, wall".
    case: String,
    unit: String,
    samples: Samples,
}

/// The result of one experiment.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    experiment: String,
    #[serde(skip)]
    pub(crate) case: Case,
    #[serde(skip)]
    evaluated: BTreeMap<String, EvaluatedFigures>,
    pub(crate) command: Vec<String>,
    pub(crate) machine: String,
    /// Over 1, 5 and 15 minutes, before and after.
    load_averages: [String; 2],
    /// Steal time during the experiment, in per cent of the CPU time that was wanted.
    steal_percent: f64,
    #[serde(skip)]
    steal_before: Steal,
    tables: Vec<Table>,
    remarks: Vec<String>,
    pub(crate) claims: Vec<ThresholdCheck>,
    /// Why the figures are refused.
    pub(crate) noise: Vec<String>,
    left_out: Vec<LeftOut>,
    peer_commands: Vec<PeerCommand>,
    series: Vec<Series>,
}

impl Report {
    pub(crate) fn new(experiment: &str) -> Result<Self> {
        Ok(Self {
            experiment: experiment.to_owned(),
            case: Case::of(experiment)?,
            command: std::env::args().collect(),
            machine: describe(),
            load_averages: [load_average(), String::new()],
            steal_before: Steal::now(),
            ..Self::default()
        })
    }

    pub(crate) fn remark(&mut self, remark: impl Into<String>) {
        self.remarks.push(remark.into());
    }

    /// Adds the rows of a case to a table, with their plots and samples. {} in its title stands for `title`. The run is
    /// refused if repetitions that must be steady are not.
    pub(crate) fn add(
        &mut self,
        table: &str,
        title: &str,
        case: &str,
        all: &[Measured],
    ) -> Result<()> {
        if all.is_empty() {
            return Ok(());
        }
        let spec = self.case.tables.get(table).with_context(|| format!("no table {table}"))?;
        let new = Table::new(spec.clone(), title);
        let place = self.tables.iter().position(|table| table.title == new.title);
        let place = place.unwrap_or(self.tables.len());
        if place == self.tables.len() {
            self.tables.push(new);
        }
        self.tables[place].add(&self.case.figures, case, all);
        for one in all {
            for (name, samples) in &one.figures {
                let figure = self.case.figures.get(name);
                let figure = figure.with_context(|| format!("the case has no figure {name}"))?;
                self.series.push(Series {
                    row: one.name.clone(),
                    case: format!("{case}, {name}").trim_start_matches(", ").to_owned(),
                    unit: figure.unit.clone(),
                    samples: samples.clone(),
                });
            }
            let steady = one.samples(&self.tables[place].spec.steady);
            self.evaluate_noise(&format!("{} in {case}", one.name), steady);
        }
        Ok(())
    }

    /// Has a threshold of the case evaluate a figure, if there is one. Its claim is by the worst of all figures.
    pub(crate) fn evaluate(&mut self, threshold: &str, case: &str, figure: impl Into<Option<f64>>) {
        let figures = figure.into().filter(|figure| !figure.is_nan());
        let (all, _) = self.evaluated.entry(threshold.to_owned()).or_default();
        all.extend(figures.map(|figure| (case.to_owned(), figure)));
    }

    /// Judges what the thresholds of the case name, if they are meant for a case of one of these names.
    pub(crate) fn evaluate_all(&mut self, case: &str, names: &[&str], all: &[Measured]) {
        for (name, threshold) in self.case.thresholds.clone() {
            for column in threshold.judges.iter().filter(|_| threshold.is_for(names)) {
                let candidates =
                    all.iter().filter(|one| column.title.is_empty() || column.title == one.name);
                for one in candidates {
                    let own = format!("{}, {case}", one.name);
                    let label = if column.title.is_empty() { &own } else { case };
                    self.evaluate(&name, label, column.number(one, all));
                }
            }
        }
    }

    /// Says why a threshold has no figure, or is missed.
    pub(crate) fn explain(&mut self, threshold: &str, explanation: impl Into<String>) {
        self.evaluated.entry(threshold.to_owned()).or_default().1 = explanation.into();
    }

    /// Keeps the exact command line of a program, once.
    pub(crate) fn peer_command(&mut self, name: impl Into<String>, words: Vec<String>) {
        let command = PeerCommand { name: name.into(), words };
        if !self.peer_commands.contains(&command) {
            self.peer_commands.push(command);
        }
    }

    /// Names something that was not measured, once.
    pub(crate) fn leave_out(&mut self, what: impl Display, why: impl Display) {
        let entry = LeftOut { what: what.to_string(), why: format!("{why:#}") };
        if !self.left_out.contains(&entry) {
            self.left_out.push(entry);
        }
    }

    /// Refuses the run if samples of the same work spread by more of their median than the case allows.
    pub(crate) fn evaluate_noise(&mut self, what: &str, samples: &Samples) {
        let (spread, most) = (samples.spread() * 100.0, self.case.noise.unwrap_or(f64::INFINITY));
        let percent = most * 100.0;
        if spread > percent {
            self.noise.push(format!(
                "too noisy: {what} spreads by {spread:.0} % of its median (at most {percent:.0} %)"
            ));
        }
    }

    /// Takes load and steal time at the end, before printing and writing. Refuses a run with too much steal time.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.load_averages[1] = load_average();
        let steal = Steal::now().since(self.steal_before);
        self.steal_percent = steal.share * 100.0;
        if !self.case.is_untimed {
            self.evaluate_steal(steal);
        }
        // A claim for each threshold and each mail that it belongs to.
        let mut evaluated = std::mem::take(&mut self.evaluated);
        for (name, threshold) in &self.case.thresholds {
            let of = evaluated.remove(name).unwrap_or_default();
            let own = vec![self.experiment.clone()];
            let origins = [&threshold.origins, &self.case.origins, &own];
            let origins = origins.into_iter().find(|list| !list.is_empty());
            for origin in origins.into_iter().flatten() {
                self.claims.push(ThresholdCheck::of(origin, threshold, &of));
            }
        }
        let unknown: Vec<_> = evaluated.into_keys().collect();
        ensure!(unknown.is_empty(), "no such threshold: {}", unknown.join(", "));
        Ok(())
    }

    fn evaluate_steal(&mut self, steal: StealDelta) {
        let percent = steal.share * 100.0;
        if percent > MOST_STEAL_PERCENT && steal.ticks >= MIN_TICKS {
            self.noise.push(format!(
                "too noisy: steal time {percent:.1} % of CPU time (at most {MOST_STEAL_PERCENT:.0} %)"
            ));
        }
    }

    /// Writes `EXPERIMENT.json` with every sample, `EXPERIMENT.md` and its plots into a folder.
    pub(crate) fn write_folder(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        let (name, json) = (&self.experiment, serde_json::to_string_pretty(self)?);
        let mut files =
            vec![(format!("{name}.json"), json), (format!("{name}.md"), self.to_string())];
        for (index, plot) in self.tables.iter().flat_map(|table| &table.plots).enumerate() {
            files.push((plot_name(name, index), plot.svg()?));
        }
        for (file, text) in files {
            fs::write(folder.join(&file), text).with_context(|| format!("writing {file}"))?;
        }
        Ok(())
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n# {}\n\n{}\n", self.experiment, self.machine)?;
        self.tables.iter().try_for_each(|table| writeln!(f, "{table}"))?;
        self.remarks.iter().try_for_each(|remark| writeln!(f, "{remark}"))?;
        for LeftOut { what, why } in &self.left_out {
            writeln!(f, "left out: {what}: {why}")?;
        }
        let ([before, after], steal) = (&self.load_averages, self.steal_percent);
        writeln!(
            f,
            "load average: {before}, afterwards {after}; steal time {steal:.1} % of CPU time"
        )?;
        self.noise.iter().try_for_each(|noise| writeln!(f, "{noise}"))?;
        self.claims.iter().try_for_each(|claim| writeln!(f, "{claim}"))
    }
}

/// The file of a plot, counted from 0: `EXPERIMENT.svg`, then `EXPERIMENT-2.svg` and so on.
pub(crate) fn plot_name(experiment: &str, index: usize) -> String {
    match index {
        0 => format!("{experiment}.svg"),
        _ => format!("{experiment}-{}.svg", index + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_by_the_worst_of_its_figures() {
        let message = |figures: &[(&str, f64)]| {
            let mut report = Report::new("mount").unwrap();
            for (case, figure) in figures {
                report.evaluate("tree-erofsfuse", case, *figure);
            }
            report.explain("tree-erofsfuse", "slow");
            report.finish().unwrap();
            let all = report.claims.iter().map(ToString::to_string);
            all.filter(|text| text.contains("a tree takes")).collect::<Vec<_>>().join("")
        };
        for (figures, wanted) in [
            (
                &[("lz4", 0.4), ("zstd", 0.7)][..],
                "0.40 to 0.70 of erofsfuse's time (worst: zstd) here, met",
            ),
            (
                &[("lz4", 0.71), ("zstd", 0.7), ("lzma", f64::NAN)],
                "(worst: lz4), missed in 1 of 2 here, NOT met (slow)",
            ),
            (&[], "not measured: slow"),
        ] {
            let message = message(figures);
            assert!(
                message.starts_with("mount: a tree takes at most 0.7 of erofsfuse's time: "),
                "{message}"
            );
            assert!(message.ends_with(wanted), "{message}");
        }
        let mut report = Report::new("mount").unwrap();
        report.evaluate("no such threshold", "", 1.0);
        report.finish().unwrap_err();
        report.finish().unwrap();
        assert!(report.claims[0].to_string().ends_with("not measured: nothing to compare"));
    }

    #[test]
    fn a_report_is_written_as_text_json_and_plots() {
        let mut report = Report::new("pages").unwrap();
        report.remark("a remark");
        let spec =
            "names = 'of'\ncolumns = [['ns', 'pair']]\nplots = [['bars', 'pair'], ['cdf', 'pair']]";
        report.case.tables.insert("pair".to_owned(), toml::from_str(spec).unwrap());
        let reserve = Measured::new("reserve", vec![("pair", 1.0), ("pair", 2.0)]);
        report.add("pair", "", "", &[reserve]).unwrap();
        for _ in 0..2 {
            report.peer_command("cat", vec!["cat".to_owned(), "a b".to_owned()]);
            report.leave_out("mount", "no /dev/fuse");
        }
        report.evaluate("reserve", "", -97.0);
        report.finish().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("new");
        report.write_folder(&inner).unwrap();
        let json = fs::read(inner.join("pages.json")).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(value["series"][0]["samples"][1], 2.0);
        let text = fs::read_to_string(inner.join("pages.md")).unwrap();
        assert!(text.contains("| reserve | 1.5 |") && text.contains("a remark"), "{text}");
        assert_eq!(text.matches("left out: mount: no /dev/fuse").count(), 1, "{text}");
        assert!(text.contains("-95 % or more: -97.0 % here, met\n"), "{text}");
        let claims = value["claims"].as_array().unwrap();
        assert_eq!(claims.iter().filter(|claim| claim["verdict"] == "met").count(), 1);
        assert_eq!(value["peer_commands"].as_array().unwrap().len(), 1);
        assert!(inner.join("pages.svg").exists() && inner.join("pages-2.svg").exists());
    }

    #[test]
    fn a_run_that_spreads_too_far_or_lost_much_time_is_refused() {
        let refusal = |noise, ticks, share| {
            let mut report = Report::new("jobs").unwrap();
            report.case.noise = Some(noise);
            report.evaluate_noise("ours", &Samples(vec![10.0, 20.0, 12.0]));
            report.evaluate_steal(StealDelta { ticks, share });
            report.noise.join("")
        };
        assert_eq!(refusal(0.9, 100, 0.1), "");
        let message = "too noisy: ours spreads by 83 % of its median (at most 25 %)";
        // The second is hardly any time at all.
        assert_eq!(refusal(0.25, 9, 0.75), message);
        let message = "too noisy: steal time 30.0 % of CPU time (at most 10 %)";
        assert_eq!(refusal(0.9, 300, 0.3), message);
    }
}
