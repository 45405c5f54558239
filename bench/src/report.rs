//! The result of an experiment: tables, remarks, judged claims and every sample. `main` prints and writes it; `all`
//! reads the JSON back for its page.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::case::{Case, Limit, Threshold};
use crate::machine::{Machine, load_average};
use crate::plot::Plot;
use crate::rounds::{Measured, Steal, StealDelta, ratio_of};
use crate::statistics::Samples;
use crate::table::{Series, Sheet, Table};

/// The largest steal time of a run. With 5 to 10 % thresholds were met that are also met without steal; with 25 % a
/// cold launch's average wait was 10 % of the unbound one's instead of 4 %.
const MOST_STEAL_PERCENT: f64 = 10.0;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    Met,
    NotMet,
    /// With the reason.
    NotMeasured(String),
}

impl Verdict {
    const fn of(is_met: bool) -> Self {
        if is_met { Self::Met } else { Self::NotMet }
    }
}

/// A threshold, the figure measured here and the verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claim {
    /// The number of the mail that claims it, or the experiment.
    pub(crate) origin: String,
    pub(crate) claim: String,
    /// The figure, such as "-84.1 %".
    pub(crate) figure: String,
    pub(crate) verdict: Verdict,
    /// The known cause where it is not met.
    pub(crate) why_not: Option<String>,
}

impl Claim {
    /// Met if every figure meets the threshold. The figure is the only one, or the least and the most.
    fn of(origin: &str, threshold: &Threshold, judged: &Judged) -> Self {
        let Judged { figures, explanation } = judged;
        let mut sorted: Vec<_> = figures.iter().collect();
        sorted.sort_by(|a, b| a.1.total_cmp(&b.1));
        let missed = figures.iter().filter(|(_, figure)| !threshold.is_met(*figure)).count();
        let worst = if threshold.limit == Limit::Most { sorted.last() } else { sorted.first() };
        let (figure, verdict) = match (sorted.as_slice(), worst) {
            ([(_, only)], _) => (threshold.show(*only), Verdict::of(missed == 0)),
            ([(_, least), .., (_, most)], Some((case, _))) => {
                let (least, most) = (threshold.show(*least), threshold.show(*most));
                let least = least.strip_suffix(&threshold.unit).unwrap_or(&least);
                let range = format!("{} to {most}", least.trim_end());
                let count = figures.len();
                let missed_in = if missed > 0 {
                    format!(", missed in {missed} of {count}")
                } else {
                    String::new()
                };
                (format!("{range} (worst: {case}){missed_in}"), Verdict::of(missed == 0))
            }
            _ if explanation.is_empty() => {
                (String::new(), Verdict::NotMeasured("nothing to compare".to_owned()))
            }
            _ => (String::new(), Verdict::NotMeasured(explanation.clone())),
        };
        let is_explained = verdict == Verdict::NotMet && !explanation.is_empty();
        let why_not = is_explained.then(|| explanation.clone());
        Self { origin: origin.to_owned(), claim: threshold.claim(), figure, verdict, why_not }
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: ", self.origin, self.claim)?;
        match &self.verdict {
            Verdict::Met => write!(f, "{} here, met", self.figure)?,
            Verdict::NotMet => write!(f, "{} here, NOT met", self.figure)?,
            Verdict::NotMeasured(reason) => write!(f, "not measured: {reason}")?,
        }
        self.why_not.iter().try_for_each(|why| write!(f, " ({why})"))
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
#[derive(Debug, Clone, Default)]
struct Judged {
    figures: Vec<(String, f64)>,
    explanation: String,
}

/// The result of one experiment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Report {
    experiment: String,
    #[serde(skip)]
    pub(crate) case: Case,
    #[serde(skip)]
    judged: BTreeMap<String, Judged>,
    pub(crate) command: Vec<String>,
    pub(crate) machine: Machine,
    load_average_after: String,
    /// Steal time during the experiment, in per cent of the CPU time that was wanted.
    steal_percent: f64,
    #[serde(skip)]
    steal_before: Steal,
    settings: serde_json::Value,
    tables: Vec<Table>,
    remarks: Vec<String>,
    pub(crate) claims: Vec<Claim>,
    /// Why the figures are refused.
    pub(crate) noise: Vec<String>,
    left_out: Vec<LeftOut>,
    peer_commands: Vec<PeerCommand>,
    #[serde(skip)]
    plots: Vec<Plot>,
    series: Vec<Series>,
}

impl Report {
    pub(crate) fn new(experiment: &str, settings: &impl Serialize) -> Result<Self> {
        Ok(Self {
            experiment: experiment.to_owned(),
            case: Case::of(experiment)?,
            judged: BTreeMap::new(),
            command: std::env::args().collect(),
            machine: Machine::look(),
            load_average_after: String::new(),
            steal_percent: 0.0,
            steal_before: Steal::now(),
            settings: serde_json::to_value(settings)?,
            tables: Vec::new(),
            remarks: Vec::new(),
            claims: Vec::new(),
            noise: Vec::new(),
            left_out: Vec::new(),
            peer_commands: Vec::new(),
            plots: Vec::new(),
            series: Vec::new(),
        })
    }

    pub(crate) fn table(&mut self, table: Table) {
        self.tables.push(table);
    }

    pub(crate) fn remark(&mut self, remark: impl Into<String>) {
        self.remarks.push(remark.into());
    }

    pub(crate) fn remark_each(&mut self, things: impl IntoIterator<Item = impl fmt::Display>) {
        self.remarks.extend(things.into_iter().map(|thing| thing.to_string()));
    }

    pub(crate) fn plot(&mut self, plot: Plot) {
        self.plots.push(plot);
    }

    pub(crate) fn series(
        &mut self,
        row: impl Into<String>,
        case: impl Into<String>,
        unit: &str,
        samples: &Samples,
    ) {
        let (row, case, unit) = (row.into(), case.into(), unit.to_owned());
        self.series.push(Series { row, case, unit, samples: samples.clone() });
    }

    pub(crate) fn threshold(&self, name: &str) -> Result<Threshold> {
        self.case.threshold(name).cloned()
    }

    /// Adds the table, plot and samples of a sheet that has rows.
    pub(crate) fn sheet(&mut self, sheet: Sheet) {
        if sheet.has_rows() {
            self.tables.push(sheet.table);
            self.plots.extend(sheet.plot);
            self.series.extend(sheet.series);
            let most = self.case.noise.unwrap_or(f64::INFINITY);
            for (what, samples) in &sheet.repetitions {
                self.judge_noise(what, samples, most);
            }
        }
    }

    /// Keeps all samples of candidates that stand in no sheet.
    pub(crate) fn samples(&mut self, case: &str, all: &[Measured]) {
        self.series.extend(all.iter().flat_map(|one| Series::of(case, one)));
    }

    /// Has a threshold of the case judge a figure, if there is one. Its claim is by the worst of all figures.
    pub(crate) fn judge(&mut self, threshold: &str, case: &str, figure: impl Into<Option<f64>>) {
        let figures = figure.into().filter(|figure| !figure.is_nan());
        let judged = self.judged.entry(threshold.to_owned()).or_default();
        judged.figures.extend(figures.map(|figure| (case.to_owned(), figure)));
    }

    /// Judges the ratios and figures that thresholds of the case name.
    pub(crate) fn judge_all(&mut self, case: &str, all: &[Measured]) {
        for (name, threshold) in self.case.thresholds.clone() {
            if let Some([figure, ours, theirs]) = &threshold.ratio
                && threshold.is_for(case)
            {
                self.judge(&name, case, ratio_of(all, figure, ours, theirs));
            }
            for one in all {
                let found = threshold.figure.as_ref().and_then(|figure| one.named(figure));
                let figure = found.map(|(_, samples)| samples.median());
                self.judge(&name, &format!("{}, {case}", one.name), figure);
            }
        }
    }

    /// Says why a threshold has no figure, or is missed.
    pub(crate) fn explain(&mut self, threshold: &str, explanation: impl Into<String>) {
        self.judged.entry(threshold.to_owned()).or_default().explanation = explanation.into();
    }

    /// A claim for each threshold and each mail that it belongs to.
    fn claim_judged(&mut self) -> Result<()> {
        let mut judged = std::mem::take(&mut self.judged);
        for (name, threshold) in &self.case.thresholds {
            let of = judged.remove(name).unwrap_or_default();
            let own = [self.experiment.clone()];
            let origins = [&threshold.origins, &self.case.origins].map(Vec::as_slice);
            let origins = origins.into_iter().chain([own.as_slice()]).find(|list| !list.is_empty());
            for origin in origins.into_iter().flatten() {
                self.claims.push(Claim::of(origin, threshold, &of));
            }
        }
        let unknown: Vec<_> = judged.into_keys().collect();
        ensure!(unknown.is_empty(), "no such threshold: {}", unknown.join(", "));
        Ok(())
    }

    /// Keeps the exact command line of a program, once.
    pub(crate) fn peer_command(&mut self, name: impl Into<String>, words: Vec<String>) {
        let command = PeerCommand { name: name.into(), words };
        if !self.peer_commands.contains(&command) {
            self.peer_commands.push(command);
        }
    }

    /// Names something that was not measured, once.
    pub(crate) fn leave_out(&mut self, what: impl Into<String>, why: impl Into<String>) {
        let entry = LeftOut { what: what.into(), why: why.into() };
        if !self.left_out.contains(&entry) {
            self.left_out.push(entry);
        }
    }

    /// Refuses the run if samples of the same work spread by more than `most` of their median.
    pub(crate) fn judge_noise(&mut self, what: &str, samples: &Samples, most: f64) {
        let (spread, percent) = (samples.spread() * 100.0, most * 100.0);
        if spread > percent {
            self.noise.push(format!(
                "too noisy: {what} spreads by {spread:.0} % of its median (at most {percent:.0} %)"
            ));
        }
    }

    /// The same with the limit of the case.
    pub(crate) fn judge_repetitions(&mut self, what: &str, samples: &Samples) -> Result<()> {
        let most = self.case.noise.unwrap_or(f64::INFINITY);
        self.judge_noise(what, samples, most);
        Ok(())
    }

    pub(crate) fn is_too_noisy(&self) -> bool {
        !self.noise.is_empty()
    }

    /// Prints only the reasons why the run is refused.
    pub(crate) fn print_noise(&self, out: &mut dyn Write) -> Result<()> {
        self.noise.iter().try_for_each(|noise| Ok(writeln!(out, "{noise}")?))
    }

    pub(crate) fn print(&self, out: &mut dyn Write) -> Result<()> {
        writeln!(out, "\n# {}\n\n{}\n", self.experiment, self.machine)?;
        self.tables.iter().try_for_each(|table| writeln!(out, "{table}"))?;
        self.remarks.iter().try_for_each(|remark| writeln!(out, "{remark}"))?;
        for LeftOut { what, why } in &self.left_out {
            writeln!(out, "left out: {what}: {why}")?;
        }
        let (load, steal) = (&self.load_average_after, self.steal_percent);
        writeln!(out, "load average afterwards: {load}; steal time {steal:.1} % of CPU time")?;
        self.print_noise(out)?;
        Ok(self.claims.iter().try_for_each(|claim| writeln!(out, "{claim}"))?)
    }

    /// Takes load and steal time at the end, before printing and writing. Refuses a run with too much steal time.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.load_average_after = load_average();
        let steal = Steal::now().since(self.steal_before);
        self.steal_percent = steal.percent();
        if self.case.is_clocked {
            self.judge_steal(steal);
        }
        self.claim_judged()
    }

    fn judge_steal(&mut self, steal: StealDelta) {
        if steal.is_beyond(MOST_STEAL_PERCENT) {
            let percent = steal.percent();
            self.noise.push(format!(
                "too noisy: steal time {percent:.1} % of CPU time (at most {MOST_STEAL_PERCENT:.0} %)"
            ));
        }
    }

    /// Writes everything, samples included, as JSON.
    pub(crate) fn write_json(&self, path: &Path) -> Result<()> {
        let what = || format!("writing {}", path.display());
        let mut file = BufWriter::new(File::create(path).with_context(what)?);
        serde_json::to_writer_pretty(&mut file, self).with_context(what)?;
        file.write_all(b"\n").and_then(|()| file.flush()).with_context(what)
    }

    /// Writes `EXPERIMENT.json`, `EXPERIMENT.md` and its plots into a folder.
    pub(crate) fn write_folder(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        let name = &self.experiment;
        self.write_json(&folder.join(format!("{name}.json")))?;
        let mut text = Vec::new();
        self.print(&mut text)?;
        let plots = self.plots.iter().enumerate();
        let plots = plots
            .map(|(index, plot)| anyhow::Ok((plot_name(name, index), plot.svg()?.into_bytes())));
        for file in std::iter::once(Ok((format!("{name}.md"), text))).chain(plots) {
            let (file, bytes): (String, Vec<u8>) = file?;
            fs::write(folder.join(&file), bytes).with_context(|| format!("writing {file}"))?;
        }
        Ok(())
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
    use super::{Report, Steal};
    use crate::plot::Plot;
    use crate::statistics::Samples;
    use crate::table::Table;

    #[test]
    fn a_claim_is_by_the_worst_of_its_figures() {
        let said = |name: &str, figures: &[(&str, f64)]| {
            let mut report = Report::new("mount", &()).unwrap();
            for (case, figure) in figures {
                report.judge(name, case, *figure);
            }
            report.explain(name, "slow");
            report.finish().unwrap();
            let all = report.claims.iter().map(ToString::to_string);
            all.filter(|text| text.contains("a tree takes")).collect::<Vec<_>>().join("")
        };
        let met = said("tree-erofsfuse", &[("lz4", 0.4), ("zstd", 0.7)]);
        let claim = "mount: a tree takes at most 0.7 of erofsfuse's time: ";
        assert!(met.starts_with(claim), "{met}");
        let range = "0.40 to 0.70 of erofsfuse's time (worst: zstd) here, met";
        assert!(met.ends_with(range), "{met}");
        let missed = said("tree-erofsfuse", &[("lz4", 0.71), ("zstd", 0.7), ("lzma", f64::NAN)]);
        assert!(
            missed.ends_with("(worst: lz4), missed in 1 of 2 here, NOT met (slow)"),
            "{missed}"
        );
        assert!(said("tree-erofsfuse", &[]).ends_with("not measured: slow"));
        let mut report = Report::new("mount", &()).unwrap();
        report.judge("no such threshold", "", 1.0);
        report.finish().unwrap_err();
        report.finish().unwrap();
        assert!(report.claims[0].to_string().ends_with("not measured: nothing to compare"));
    }

    #[test]
    fn a_report_is_written_as_text_json_and_plots() {
        let mut report = Report::new("pages", &serde_json::json!({ "quick": true })).unwrap();
        report.table(Table::new("t", "a | b"));
        report.remark("a remark");
        report.series("reserve", "alone", "ns", &Samples::from_iter([1.0, 2.0]));
        for _ in 0..2 {
            let mut plot = Plot::lines("p", "x", "y");
            plot.line("ours", vec![(1.0, 1.0)]);
            report.plot(plot);
            report.peer_command("cat", vec!["cat".to_owned(), "a b".to_owned()]);
            report.leave_out("mount", "no /dev/fuse");
        }
        report.judge("reserve", "", -97.0);
        report.claim_judged().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("new");
        report.write_folder(&inner).unwrap();
        let json = std::fs::read(inner.join("pages.json")).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(value["series"][0]["samples"][1], 2.0);
        assert_eq!(value["settings"]["quick"], true);
        let text = std::fs::read_to_string(inner.join("pages.md")).unwrap();
        assert!(text.contains("| a   |   b |") && text.contains("a remark"), "{text}");
        assert_eq!(text.matches("left out: mount: no /dev/fuse").count(), 1, "{text}");
        assert!(text.contains("-95 % or more: -97.0 % here, met\n"), "{text}");
        let claims = value["claims"].as_array().unwrap();
        assert_eq!(claims.iter().filter(|claim| claim["verdict"] == "met").count(), 1);
        assert_eq!(value["peer_commands"].as_array().unwrap().len(), 1);
        assert_eq!(value["peer_commands"][0]["words"][1], "a b");
        assert!(inner.join("pages.svg").exists() && inner.join("pages-2.svg").exists());
    }

    #[test]
    fn a_run_that_spreads_too_far_is_refused_by_name() {
        let mut report = Report::new("pages", &()).unwrap();
        let samples = Samples::from_iter([10.0, 20.0, 12.0]);
        report.judge_noise("ours", &samples, 0.9);
        assert!(!report.is_too_noisy());
        report.judge_noise("ours", &samples, 0.25);
        assert_eq!(report.noise, ["too noisy: ours spreads by 83 % of its median (at most 25 %)"]);
    }

    #[test]
    fn a_run_with_much_steal_time_is_refused() {
        let before = Steal::of("cpu  0 0 0 0 0 0 0 0");
        let refusal = |line: &str| {
            let mut report = Report::new("jobs", &()).unwrap();
            report.judge_steal(Steal::of(line).since(before));
            report.noise.join("")
        };
        assert_eq!(refusal("cpu  900 0 0 9000 0 0 0 100"), "");
        let said = "too noisy: steal time 30.0 % of CPU time (at most 10 %)";
        assert_eq!(refusal("cpu  700 0 0 9000 0 0 0 300"), said);
        // Hardly any time at all.
        assert_eq!(refusal("cpu  3 0 0 9000 0 0 0 9"), "");
    }
}
