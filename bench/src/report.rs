//! What an experiment found: its tables for people, every sample for programs. Called by `main`, which
//! says where the JSON goes.

use std::fmt;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::case::{Case, Mark};
use crate::claim::{Claim, Held};
use crate::machine::{self, Machine};
use crate::plot::Plot;
use crate::statistics::Samples;
use crate::steal::{Loss, Steal};
use crate::table::Table;

/// The samples of one row of a table.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Series {
    /// What was measured, such as "original".
    pub(crate) row: String,
    /// Under which conditions, such as "4 threads".
    pub(crate) case: String,
    pub(crate) unit: &'static str,
    pub(crate) samples: Samples,
}

/// A program that an experiment started beside ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PeerCommand {
    pub(crate) name: String,
    /// Every word as it was given, the program first.
    pub(crate) words: Vec<String>,
}

/// Something that an experiment did not do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeftOut {
    pub(crate) what: String,
    pub(crate) why: String,
}

/// What the host may take of the CPUs' time during an experiment. With 5 to 10 % marks held that also hold where it takes
/// nothing; with 25 % a cold launch's average wait was 10 % of the unbound one's instead of 4 %.
const MOST_TAKEN_PERCENT: f64 = 10.0;

/// Why figures are refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Noise {
    /// Samples are too far apart for what is said of them: as `Samples::spread` has it, and the most that was allowed.
    Spread { what: String, spread: f64, most: f64 },
    /// The host of a virtual machine took too much of the CPUs' time, and the most that was allowed.
    Taken { taken_percent: f64, most_percent: f64 },
}

impl fmt::Display for Noise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spread { what, spread, most } => {
                let (spread, most) = (spread * 100.0, most * 100.0);
                write!(
                    f,
                    "too noisy: {what} spreads by {spread:.0} % of its median (at most {most:.0} %)"
                )
            }
            Self::Taken { taken_percent, most_percent } => write!(
                f,
                "too noisy: the host took {taken_percent:.1} % of the CPUs' time (at most {most_percent:.0} %)"
            ),
        }
    }
}

/// What an experiment found.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Report {
    experiment: &'static str,
    command: Vec<String>,
    machine: Machine,
    load_average_after: String,
    /// What the host of a virtual machine took of the CPUs' time meanwhile, in per cent of what was wanted.
    stolen_percent: f64,
    #[serde(skip)]
    steal_before: Steal,
    settings: serde_json::Value,
    tables: Vec<Table>,
    /// Sentences under the tables: whether a mark was met, and what was left out.
    remarks: Vec<String>,
    claims: Vec<Claim>,
    noise: Vec<Noise>,
    left_out: Vec<LeftOut>,
    peer_commands: Vec<PeerCommand>,
    #[serde(skip)]
    plots: Vec<Plot>,
    series: Vec<Series>,
}

impl Report {
    /// An empty report on this machine.
    ///
    /// # Errors
    /// When the settings are no JSON.
    pub(crate) fn new(experiment: &'static str, settings: &impl Serialize) -> Result<Self> {
        Ok(Self {
            experiment,
            command: std::env::args().collect(),
            machine: Machine::look(),
            load_average_after: String::new(),
            stolen_percent: 0.0,
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

    pub(crate) fn add_table(&mut self, table: Table) {
        self.tables.push(table);
    }

    pub(crate) fn add_remark(&mut self, remark: impl Into<String>) {
        self.remarks.push(remark.into());
    }

    pub(crate) fn add_series(&mut self, series: Series) {
        self.series.push(series);
    }

    /// A plot, in a file of its own beside the others.
    pub(crate) fn add_plot(&mut self, plot: Plot) {
        self.plots.push(plot);
    }

    /// What a seed says, and what was found: a sentence at the end.
    pub(crate) fn add_claim(&mut self, claim: Claim) {
        self.claims.push(claim);
    }

    /// The mark of that name in the experiment's case.
    ///
    /// # Errors
    /// When the case has none.
    pub(crate) fn mark(&self, name: &str) -> Result<Mark> {
        Case::of(self.experiment)?.mark(name).cloned()
    }

    /// Holds figures against a mark of the experiment's case. `otherwise` says why there are none, or what is known
    /// of the cause where they miss it.
    ///
    /// # Errors
    /// When the case has no such mark.
    pub(crate) fn claim(
        &mut self,
        seed: &'static str,
        mark: &str,
        figures: &[f64],
        otherwise: &str,
    ) -> Result<()> {
        let mark = self.mark(mark)?;
        let is_known = !figures.is_empty() && figures.iter().all(|figure| !figure.is_nan());
        let is_held = figures.iter().all(|figure| mark.is_met(*figure));
        let held =
            if is_known { Held::by(is_held) } else { Held::NotMeasured(otherwise.to_owned()) };
        let shown: Vec<String> = figures.iter().map(|figure| mark.show(*figure)).collect();
        let why_not =
            (held == Held::NotHeld && !otherwise.is_empty()).then(|| otherwise.to_owned());
        let ours = if is_known { shown.join(" and ") } else { String::new() };
        self.add_claim(Claim { seed, claim: mark.claim(), ours, held, why_not });
        Ok(())
    }

    /// The exact words with which a peer was started. Words that were there already are not kept twice.
    pub(crate) fn add_peer_command(&mut self, name: impl Into<String>, words: Vec<String>) {
        let command = PeerCommand { name: name.into(), words };
        if !self.peer_commands.contains(&command) {
            self.peer_commands.push(command);
        }
    }

    /// Something that was not done, and why.
    pub(crate) fn left_out(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.left_out.push(LeftOut { what: what.into(), why: why.into() });
    }

    /// Refuses the run if the samples are further apart than `most` of their median. For repetitions of the same
    /// work only: where the distribution is what is measured, as with latencies, it is not noise.
    pub(crate) fn judge_noise(&mut self, what: impl Into<String>, samples: &Samples, most: f64) {
        let spread = samples.spread();
        if spread > most {
            self.noise.push(Noise::Spread { what: what.into(), spread, most });
        }
    }

    /// The same with the limit that the experiment's case has for repetitions.
    ///
    /// # Errors
    /// When there is no case.
    pub(crate) fn judge_repetitions(
        &mut self,
        what: impl Into<String>,
        samples: &Samples,
    ) -> Result<()> {
        let most = Case::of(self.experiment)?.noise.unwrap_or(f64::INFINITY);
        self.judge_noise(what, samples, most);
        Ok(())
    }

    /// Whether the run is refused.
    pub(crate) fn is_too_noisy(&self) -> bool {
        !self.noise.is_empty()
    }

    /// Prints nothing but why the run is refused.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn print_noise(&self, out: &mut dyn Write) -> Result<()> {
        for noise in &self.noise {
            writeln!(out, "{noise}")?;
        }
        Ok(())
    }

    /// Prints the tables and the sentences, those on the claims last.
    ///
    /// # Errors
    /// When they cannot be written.
    pub(crate) fn print(&mut self, out: &mut dyn Write) -> Result<()> {
        writeln!(out, "\n# {}\n\n{}\n", self.experiment, self.machine)?;
        for table in &self.tables {
            writeln!(out, "{table}")?;
        }
        for remark in &self.remarks {
            writeln!(out, "{remark}")?;
        }
        for LeftOut { what, why } in &self.left_out {
            writeln!(out, "left out: {what}: {why}")?;
        }
        writeln!(
            out,
            "load average afterwards: {}; the host took {:.1} % of the CPUs' time",
            self.load_average_after, self.stolen_percent
        )?;
        self.print_noise(out)?;
        for claim in &self.claims {
            writeln!(out, "{claim}")?;
        }
        Ok(())
    }

    /// What the machine had beside this, until now: to be called before it is printed or written. Refuses the run if the
    /// host took so much that times say more of the neighbours than of what was measured.
    ///
    /// # Errors
    /// When there is no case.
    pub(crate) fn look_again(&mut self) -> Result<()> {
        self.load_average_after = machine::load_average();
        let loss = Steal::now().since(self.steal_before);
        self.stolen_percent = loss.percent();
        if Case::of(self.experiment)?.is_clocked {
            self.judge_host(loss);
        }
        Ok(())
    }

    fn judge_host(&mut self, loss: Loss) {
        if loss.is_beyond(MOST_TAKEN_PERCENT) {
            self.noise.push(Noise::Taken {
                taken_percent: loss.percent(),
                most_percent: MOST_TAKEN_PERCENT,
            });
        }
    }

    /// Writes everything as JSON.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn write_json(&self, path: &Path) -> Result<()> {
        let what = || format!("writing {}", path.display());
        let mut file = BufWriter::new(File::create(path).with_context(what)?);
        serde_json::to_writer_pretty(&mut file, self).with_context(what)?;
        file.write_all(b"\n").and_then(|()| file.flush()).with_context(what)
    }

    /// Writes `EXPERIMENT.json`, `EXPERIMENT.md` and its plots into a folder, which is made if need be:
    /// `EXPERIMENT.svg`, and behind it `EXPERIMENT-2.svg` and so on.
    ///
    /// # Errors
    /// When they cannot be written, or a plot cannot be drawn.
    pub(crate) fn write_folder(&mut self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        self.write_json(&folder.join(self.experiment).with_extension("json"))?;
        let mut text = Vec::new();
        self.print(&mut text)?;
        let path = folder.join(self.experiment).with_extension("md");
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        for (index, plot) in self.plots.iter().enumerate() {
            let path = folder.join(plot_name(self.experiment, index));
            let svg = plot.to_svg().with_context(|| format!("drawing {}", path.display()))?;
            fs::write(&path, svg).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
    }
}

/// The file of a plot, counted from 0.
pub(crate) fn plot_name(experiment: &str, index: usize) -> String {
    match index {
        0 => format!("{experiment}.svg"),
        _ => format!("{experiment}-{}.svg", index + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::{Claim, Held, Report, Series, Steal};
    use crate::plot::Plot;
    use crate::table::Table;

    #[test]
    fn a_report_is_written_for_people_and_for_programs() {
        let mut report = Report::new("pages", &serde_json::json!({ "quick": true })).unwrap();
        report.add_table(Table::new("t", ["a", "b"]));
        report.add_remark("held");
        report.add_series(Series {
            row: "reserve".to_owned(),
            case: "alone".to_owned(),
            unit: "ns",
            samples: [1.0, 2.0].into_iter().collect(),
        });
        for _ in 0..2 {
            let mut plot = Plot::lines("p", "x", "y");
            plot.add_line("ours", vec![(1.0, 1.0)]);
            report.add_plot(plot);
            report.add_peer_command("cat", vec!["cat".to_owned(), "a b".to_owned()]);
        }
        report.left_out("mount", "no /dev/fuse");
        report.add_claim(Claim {
            seed: "001",
            claim: "the wait is 95 % shorter".to_owned(),
            ours: "-97.0 %".to_owned(),
            held: Held::Held,
            why_not: None,
        });
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("new");
        report.write_folder(&inner).unwrap();
        let json = std::fs::read(inner.join("pages.json")).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(value["series"][0]["samples"][1], 2.0);
        assert_eq!(value["settings"]["quick"], true);
        let text = std::fs::read_to_string(inner.join("pages.md")).unwrap();
        assert!(text.contains("| a   |   b |"));
        assert!(text.contains("held"));
        assert!(text.contains("left out: mount: no /dev/fuse"));
        assert!(text.ends_with("001: the wait is 95 % shorter: -97.0 % here, held\n"), "{text}");
        assert_eq!(value["claims"][0]["held"], "held");
        assert_eq!(value["peer_commands"].as_array().unwrap().len(), 1);
        assert_eq!(value["peer_commands"][0]["words"][1], "a b");
        assert!(inner.join("pages.svg").exists() && inner.join("pages-2.svg").exists());
    }

    #[test]
    fn figures_are_held_against_marks_and_missing_ones_are_not_measured() {
        let mut report = Report::new("jobs", &serde_json::json!({})).unwrap();
        report.claim("003", "two-threads", &[-48.0, -46.0], "").unwrap();
        report.claim("003", "two-threads", &[-48.0, -40.0], "memory is slow").unwrap();
        report.claim("003", "two-threads", &[f64::NAN], "one CPU").unwrap();
        report.claim("003", "no such mark", &[0.0], "").unwrap_err();
        let said: Vec<String> = report.claims.iter().map(ToString::to_string).collect();
        assert!(said[0].ends_with(" or more: -48.0 % and -46.0 % here, held"), "{said:?}");
        assert!(said[1].ends_with("-40.0 % here, NOT held (memory is slow)"), "{said:?}");
        assert!(said[2].ends_with("not measured: one CPU"), "{said:?}");
    }

    #[test]
    fn a_run_that_spreads_too_far_is_refused_by_name() {
        let mut report = Report::new("pages", &serde_json::json!({})).unwrap();
        let samples = [10.0, 20.0, 12.0].into_iter().collect();
        report.judge_noise("ours", &samples, 0.9);
        assert!(!report.is_too_noisy());
        report.judge_noise("ours", &samples, 0.25);
        assert!(report.is_too_noisy());
        let mut text = Vec::new();
        report.print_noise(&mut text).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "too noisy: ours spreads by 83 % of its median (at most 25 %)\n"
        );
    }

    #[test]
    fn a_run_of_which_the_host_took_much_is_refused() {
        let before = Steal::of("cpu  0 0 0 0 0 0 0 0");
        let refusal = |line: &str| {
            let mut report = Report::new("jobs", &()).unwrap();
            report.judge_host(Steal::of(line).since(before));
            let mut text = Vec::new();
            report.print_noise(&mut text).unwrap();
            String::from_utf8(text).unwrap()
        };
        assert_eq!(refusal("cpu  900 0 0 9000 0 0 0 100"), "");
        assert_eq!(
            refusal("cpu  700 0 0 9000 0 0 0 300"),
            "too noisy: the host took 30.0 % of the CPUs' time (at most 10 %)\n"
        );
        // Hardly any time at all.
        assert_eq!(refusal("cpu  3 0 0 9000 0 0 0 9"), "");
    }
}
