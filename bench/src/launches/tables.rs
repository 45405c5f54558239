//! The tables of the seed, and whether its marks were met.

use super::Decoding;
use super::column::{Column, System};
use crate::report::{Report, held};
use crate::statistics::{Samples, Summary, difference_percent};
use crate::table::Table;

/// What the seeds say of the average and of the deviation of scheduling latency beside hogs, in per cent.
const AVERAGE_MARK: f64 = -80.0;
const DEVIATION_MARK: f64 = -95.0;
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

fn is_ours(system: &System) -> bool {
    matches!(system, System::Ours(..))
}

fn is_daemon(system: &System) -> bool {
    !matches!(system, System::Kernel)
}

/// Adds the tables of one way of decoding; `columns` are in their order.
pub(super) fn add(report: &mut Report, decoding: Decoding, columns: &[Column]) {
    let columns = columns.iter().filter(|column| column.system.belongs_to(decoding));
    for (place, (what, is_meant, shown)) in TABLES.into_iter().enumerate() {
        let meant = columns.clone().filter(|column| is_meant(&column.system));
        let summaries: Vec<_> =
            meant.map(|column| (column.system.name(), shown(column).summary())).collect();
        let title = format!("{what}, {}", decoding.title());
        if let [(_, unbound), _, (_, raised), ..] = summaries.as_slice() {
            let is_marked = place < 2;
            report.add_remark(format!("{title}: {}", judged(unbound, raised, is_marked)));
        }
        report.add_table(table(title, &summaries));
    }
    for column in columns.filter(|column| is_ours(&column.system)) {
        let (name, title) = (column.system.name(), decoding.title());
        report.add_remark(format!("{name}, {title}: {}", column.workers()));
    }
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
fn judged(unbound: &Summary, raised: &Summary, is_marked: bool) -> String {
    let part = |name: &str, before, after, mark: f64| {
        let difference = difference_percent(before, after);
        let verdict = held(difference <= mark);
        let mark = if is_marked { format!(" (mark {mark} %: {verdict})") } else { String::new() };
        format!("{name} {difference:+.2} %{mark}")
    };
    let average = part("average", unbound.average, raised.average, AVERAGE_MARK);
    let deviation = part("standard deviation", unbound.deviation, raised.deviation, DEVIATION_MARK);
    format!("{average}, {deviation}")
}

#[cfg(test)]
mod tests {
    use super::{judged, table};
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
        let text = judged(&unbound, &raised, true);
        assert!(text.contains("average -90.00 % (mark -80 %: held)"), "{text}");
        assert!(text.contains("deviation -90.00 % (mark -95 %: NOT held)"), "{text}");
        assert!(!judged(&unbound, &raised, false).contains("mark"));
    }
}
