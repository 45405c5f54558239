//! What an experiment found: its tables for people, every sample for programs. Called by `main`, which
//! says where the JSON goes.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::machine::{self, Machine};
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

    /// Prints the tables and the sentences.
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
        writeln!(out, "load average afterwards: {}", self.load_average_after)?;
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

    /// Writes `EXPERIMENT.json` and `EXPERIMENT.md` into a folder, which is made if need be.
    ///
    /// # Errors
    /// When they cannot be written.
    pub(crate) fn write_folder(&mut self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        self.write_json(&folder.join(self.experiment).with_extension("json"))?;
        let mut text = Vec::new();
        self.print(&mut text)?;
        let path = folder.join(self.experiment).with_extension("md");
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::{Report, Series};
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
    }
}
