//! What an experiment found: its tables for people, every sample for programs. Called by `main`, which
//! says where the JSON goes.

use std::fmt;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::claim::Claim;
use crate::machine::{self, Machine};
use crate::plot::Plot;
use crate::statistics::Samples;
use crate::table::Table;

/// What stands behind a mark.
pub(crate) const fn held(is_held: bool) -> &'static str {
    if is_held { "held" } else { "NOT held" }
}

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

/// Samples that are too far apart for what is said of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Noise {
    pub(crate) what: String,
    /// As `Samples::spread` has it.
    pub(crate) spread: f64,
    /// The most that was allowed.
    pub(crate) most: f64,
}

impl fmt::Display for Noise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (spread, most) = (self.spread * 100.0, self.most * 100.0);
        write!(
            f,
            "too noisy: {} spreads by {spread:.0} % of its median (at most {most:.0} %)",
            self.what
        )
    }
}

/// What an experiment found.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Report {
    experiment: &'static str,
    command: Vec<String>,
    machine: Machine,
    load_average_after: String,
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
            self.noise.push(Noise { what: what.into(), spread, most });
        }
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
        self.load_average_after = machine::load_average();
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
        writeln!(out, "load average afterwards: {}", self.load_average_after)?;
        self.print_noise(out)?;
        for claim in &self.claims {
            writeln!(out, "{claim}")?;
        }
        Ok(())
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
    use super::{Report, Series};
    use crate::claim::{Claim, Held};
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
}
