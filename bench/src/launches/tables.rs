//! The tables of the seed, and whether its marks were met.

use anyhow::Result;

use super::Decoding;
use super::column::{Column, System};
use crate::plot::Plot;
use crate::report::Report;
use crate::statistics::{Samples, Summary, difference_percent};
use crate::table::Table;

/// Columns of ours; peers stand behind them.
const OURS: usize = 3;

/// Whom a table is about.
type IsMeant = fn(&System) -> bool;
/// What it shows of them.
type Shown = fn(&Column) -> &Samples;

/// What the tables show; the first two are what the marks are for.
const TABLES: [(&str, IsMeant, Shown); 4] = [
    ("Scheduling latency of the daemon's threads", is_daemon, |column| &column.delays),
    ("From submission to start of decode work", is_ours, |column| &column.queued),
    ("The last launch", |_| true, |column| &column.last_launches),
    ("All launches", |_| true, |column| &column.all_launches),
];

/// Where the table of what waits for a worker stands.
const QUEUED: usize = 1;

fn is_ours(system: &System) -> bool {
    matches!(system, System::Ours(..))
}

fn is_daemon(system: &System) -> bool {
    !matches!(system, System::Kernel)
}

/// Adds the tables of one way of decoding; `columns` are in their order.
///
/// # Errors
/// When the case lacks a mark.
pub(super) fn add(report: &mut Report, decoding: Decoding, columns: &[Column]) -> Result<()> {
    let columns = columns.iter().filter(|column| column.system.belongs_to(decoding));
    for (place, (what, is_meant, shown)) in TABLES.into_iter().enumerate() {
        let meant = columns.clone().filter(|column| is_meant(&column.system));
        let summaries: Vec<_> =
            meant.map(|column| (column.system.name(), shown(column).summary())).collect();
        let title = format!("{what}, {}", decoding.title());
        if place == QUEUED && summaries.iter().all(|(_, summary)| summary.maximum <= 0.0) {
            // LZ4 is left to the thread that reads.
            report.add_remark(format!("{title}: nothing was submitted"));
            continue;
        }
        if let [(_, unbound), _, (_, raised), ..] = summaries.as_slice() {
            let is_marked = place < 2;
            let said = judged(report, unbound, raised, is_marked)?;
            report.add_remark(format!("{title}: {said}"));
            // The seed's subject is work that workers do.
            if place == 0 && decoding == Decoding::Workers {
                claim(report, unbound, raised)?;
            }
        }
        if place != QUEUED {
            let mut plot = Plot::cdf(title.clone(), "us").log_x();
            for column in columns.clone().filter(|column| is_meant(&column.system)) {
                plot.add_samples(column.system.name(), shown(column));
            }
            report.add_plot(plot);
        }
        report.add_table(table(title, &summaries));
    }
    for column in columns.filter(|column| is_ours(&column.system)) {
        let (name, title) = (column.system.name(), decoding.title());
        report.add_remark(format!("{name}, {title}: {}", column.workers()));
    }
    Ok(())
}

fn claim(report: &mut Report, unbound: &Summary, raised: &Summary) -> Result<()> {
    let why = "see above which priority the workers reached";
    let average = difference_percent(unbound.average, raised.average);
    report.claim("000", "average", &[average], why)?;
    let deviation = difference_percent(unbound.deviation, raised.deviation);
    report.claim("000", "deviation", &[deviation], why)
}

fn table(title: String, columns: &[(&'static str, Summary)]) -> Table {
    let mut header: Vec<_> = columns.iter().map(|(name, _)| *name).collect();
    header.insert(OURS.min(header.len()), "diff");
    header.insert(0, "");
    let mut table = Table::new(title, header);
    let lines: Vec<_> = columns.iter().map(|(_, summary)| summary.lines()).collect();
    for (line, (name, _)) in Samples::default().summary().lines().iter().enumerate() {
        let values: Vec<f64> = lines.iter().filter_map(|of| Some(of.get(line)?.1)).collect();
        let mut cells: Vec<_> = values.iter().map(|value| format!("{value:.0}")).collect();
        let difference = match values.as_slice() {
            [unbound, _, raised, ..] => difference_percent(*unbound, *raised),
            _ => f64::NAN,
        };
        cells.insert(OURS.min(cells.len()), format!("{difference:+.2} %"));
        cells.insert(0, (*name).to_owned());
        table.add(cells);
    }
    table
}

/// The difference, and which marks it meets if they are for it.
fn judged(report: &Report, unbound: &Summary, raised: &Summary, is_marked: bool) -> Result<String> {
    let part = |name: &str, before, after, mark: &str| -> Result<String> {
        let difference = difference_percent(before, after);
        let verdict = report.mark(mark)?.verdict(&[difference]);
        let verdict = if is_marked { format!(" {verdict}") } else { String::new() };
        Ok(format!("{name} {difference:+.2} %{verdict}"))
    };
    let average = part("average", unbound.average, raised.average, "average")?;
    let deviation = part("standard deviation", unbound.deviation, raised.deviation, "deviation")?;
    Ok(format!("{average}, {deviation}"))
}

#[cfg(test)]
mod tests {
    use super::{judged, table};
    use crate::report::Report;
    use crate::statistics::{Samples, Summary};

    fn of(values: [f64; 2]) -> Summary {
        Samples::from_iter(values).summary()
    }

    #[test]
    fn the_table_has_the_shape_of_the_seed_and_peers_stand_behind_it() {
        let columns = [
            ("unbound", of([90.0, 110.0])),
            ("per-CPU", of([40.0, 60.0])),
            ("per-CPU raised", of([9.0, 11.0])),
            ("kernel", of([3.0, 5.0])),
        ];
        let text = table("t".to_owned(), &columns).to_string();
        assert!(text.contains("| per-CPU raised |     diff | kernel |"), "{text}");
        assert!(text.contains("|             10 | -90.00 % |      4 |"), "{text}");
    }

    #[test]
    fn a_mark_is_judged_by_average_and_deviation() {
        let (unbound, raised) = (of([90.0, 110.0]), of([9.0, 11.0]));
        let report = Report::new("launches", &()).unwrap();
        let text = judged(&report, &unbound, &raised, true).unwrap();
        assert!(text.contains("average -90.00 % (mark -80 %: held)"), "{text}");
        assert!(text.contains("deviation -90.00 % (mark -95 %: NOT held)"), "{text}");
        assert!(!judged(&report, &unbound, &raised, false).unwrap().contains("mark"));
    }
}
