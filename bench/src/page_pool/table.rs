//! The table of the page pool, its plot and its claims. It measures nothing.

use super::inside::Column;
use crate::claim::{Claim, Held};
use crate::plot::Plot;
use crate::report::{Report, Series};
use crate::statistics::{Samples, difference_percent};
use crate::table::Table;

/// What the largest reserve is to save, in per cent.
const SAVED_MARK: f64 = -95.0;
/// What 64 pages are to cover of what is asked for, in per cent.
const COVERED_MARK: f64 = 95.0;
/// The reserve of which the seed says that it is enough nearly always.
const COVERING_PAGES: u32 = 64;

impl Column {
    fn name(&self) -> String {
        format!("{}, {} pages", self.image, self.reserve)
    }

    /// How much of what was asked for the reserve had, in per cent.
    fn covered(&self) -> f64 {
        let sum = |samples: &Samples| samples.values().sum::<f64>();
        let (had, got) = (sum(&self.from_reserve), sum(&self.from_system));
        had / (had + got) * 100.0
    }
}

/// Adds everything.
pub(super) fn add(report: &mut Report, columns: &[Column]) {
    let Some(first) = columns.first() else { return };
    let baseline = first.getting.summary();
    let header =
        ["image, reserve", "mean ms", "diff", "median ms", "max ms", "covered", "launch ms"];
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
            format!("{:.1}", column.launch.median() / 1e6),
        ]);
        let millis: Samples = column.getting.values().map(|nanos| nanos / 1e6).collect();
        plot.add_samples(column.name(), &millis);
        for (case, samples, unit) in [
            ("getting memory in the last launch", &column.getting, "ns"),
            ("pieces from the reserve", &column.from_reserve, "pieces"),
            ("pieces from the system", &column.from_system, "pieces"),
            ("last launch", &column.launch, "ns"),
        ] {
            let samples = samples.clone();
            report.add_series(Series { row: column.name(), case: case.to_owned(), unit, samples });
        }
    }
    report.add_table(table);
    report.add_plot(plot);
    add_claims(report, columns);
}

fn add_claims(report: &mut Report, columns: &[Column]) {
    let Some(first) = columns.first() else { return };
    let of_first = || columns.iter().filter(|column| column.image == first.image);
    if let Some(largest) = of_first().max_by_key(|column| column.reserve)
        && first.reserve == 0
    {
        let average = |column: &Column| column.getting.summary().average;
        let saved = difference_percent(average(first), average(largest));
        report.add_claim(Claim {
            seed: "001",
            claim: format!(
                "a reserve of {} pages saves {} % of the time for getting pages (3434 to 21 ms there)",
                largest.reserve, -SAVED_MARK
            ),
            ours: format!("{saved:+.2} %"),
            held: Held::by(saved <= SAVED_MARK),
            why_not: None,
        });
    }
    if let Some(column) = of_first().find(|column| column.reserve == COVERING_PAGES) {
        let covered = column.covered();
        report.add_claim(Claim {
            seed: "001",
            claim: format!("{COVERING_PAGES} pages cover {COVERED_MARK} % of the demand"),
            ours: format!("{covered:.1} %"),
            held: Held::by(covered >= COVERED_MARK),
            why_not: None,
        });
    }
}
