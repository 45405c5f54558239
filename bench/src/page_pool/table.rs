//! The table of the page pool, its plot and its claims. It measures nothing.

use anyhow::Result;

use super::inside::Column;
use crate::plot::Plot;
use crate::report::{Report, Series};
use crate::statistics::{Samples, difference_percent};
use crate::table::Table;

/// What is known of the cause where a mark is missed.
const BEYOND: &str = "the rest came from the system: in other lengths than lay idle, or more at a time than the reserve has";
/// The reserve of which the seed says that it is enough nearly always.
const COVERING_PAGES: u32 = 64;

impl Column {
    fn name(&self) -> String {
        format!("{}, {} pages", self.image, self.reserve)
    }

    /// How much of what was asked for the reserve had, in per cent: pieces for extents, requests and input.
    fn covered(&self) -> f64 {
        share(&self.from_reserve, &self.from_system)
    }

    /// The same of the frames of windows; none if no window was needed.
    fn frames_covered(&self) -> Option<f64> {
        let covered = share(&self.frames_from_reserve, &self.frames_from_system);
        (!covered.is_nan()).then_some(covered)
    }
}

/// What the first are of both together, in per cent.
fn share(had: &Samples, got: &Samples) -> f64 {
    let sum = |samples: &Samples| samples.values().sum::<f64>();
    sum(had) / (sum(had) + sum(got)) * 100.0
}

/// Adds everything.
/// # Errors
/// When the case lacks a mark.
pub(super) fn add(report: &mut Report, columns: &[Column]) -> Result<()> {
    let Some(first) = columns.first() else { return Ok(()) };
    let baseline = first.getting.summary();
    let header = [
        "image, reserve",
        "mean ms",
        "diff",
        "median ms",
        "max ms",
        "covered",
        "frames covered",
        "launch ms",
    ];
    let title =
        "Getting memory to decode into, in the last of 16 launches at the limit of a memory cgroup";
    let mut table = Table::new(title, header);
    let mut plot = Plot::cdf(title, "ms in the last launch");
    for column in columns {
        let getting = column.getting.summary();
        table.add([
            column.name(),
            format!("{:.3}", getting.average / 1e6),
            format!("{:+.2} %", difference_percent(baseline.average, getting.average)),
            format!("{:.3}", getting.median / 1e6),
            format!("{:.3}", getting.maximum / 1e6),
            format!("{:.1} %", column.covered()),
            column
                .frames_covered()
                .map_or("none taken".to_owned(), |share| format!("{share:.1} %")),
            format!("{:.1}", column.launch.median() / 1e6),
        ]);
        let millis: Samples = column.getting.values().map(|nanos| nanos / 1e6).collect();
        plot.add_samples(column.name(), &millis);
        for (case, samples, unit) in [
            ("getting memory in the last launch", &column.getting, "ns"),
            ("pieces from the reserve", &column.from_reserve, "pieces"),
            ("pieces from the system", &column.from_system, "pieces"),
            ("frames from the reserve", &column.frames_from_reserve, "frames"),
            ("frames from the system", &column.frames_from_system, "frames"),
            ("last launch", &column.launch, "ns"),
        ] {
            let samples = samples.clone();
            report.add_series(Series { row: column.name(), case: case.to_owned(), unit, samples });
        }
    }
    report.add_table(table);
    report.add_plot(plot);
    add_claims(report, columns)
}

fn add_claims(report: &mut Report, columns: &[Column]) -> Result<()> {
    let of_first = || columns.iter().filter(|column| column.image == columns[0].image);
    let average = |column: &Column| column.getting.summary().average;
    let without = of_first().find(|column| column.reserve == 0).map(average);
    let with = of_first().max_by_key(|column| column.reserve).map(average);
    let saved = without.zip(with).map(|(without, with)| difference_percent(without, with));
    let why = |is_known| if is_known { BEYOND } else { "no row for it" };
    report.claim("001", "reserve", saved.as_slice(), why(saved.is_some()))?;
    let covering = of_first().find(|column| column.reserve == COVERING_PAGES);
    let covered = covering.map(Column::covered);
    report.claim("001", "demand", covered.as_slice(), why(covered.is_some()))
}
