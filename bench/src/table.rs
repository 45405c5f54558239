//! Tables, as text and for the page: a row for each candidate of each case, and columns that the case of the experiment
//! describes. A table carries its plots with it.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::plot::{Plot, PlotKind};
use crate::statistics::{Figure, Measured, Statistic, difference_percent, find};

/// A Markdown table under a title; it also reads well as plain text. The first column holds names.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Table {
    pub(crate) title: String,
    header: Vec<String>,
    /// A row may be shorter than the header.
    rows: Vec<Vec<String>>,
    #[serde(skip)]
    pub(crate) spec: TableSpec,
    #[serde(skip)]
    pub(crate) plots: Vec<Plot>,
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            let cells = self.rows.iter().chain([&self.header]).filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0).max(3)
        };
        let dashes = (0..self.header.len()).map(|column| match column {
            0 => "-".repeat(width(column)),
            _ => format!("{}:", "-".repeat(width(column) - 1)),
        });
        let dashes: Vec<String> = dashes.collect();
        writeln!(f, "**{}**\n", self.title)?;
        for row in [&self.header, &dashes].into_iter().chain(&self.rows) {
            for column in 0..self.header.len() {
                let (cell, width) = (row.get(column).map_or("", String::as_str), width(column));
                match column {
                    0 => write!(f, "| {cell:<width$} ")?,
                    _ => write!(f, "| {cell:>width$} ")?,
                }
            }
            writeln!(f, "|")?;
        }
        Ok(())
    }
}

/// What a number is compared with: the number of another candidate of the same case, the first if none is named.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Against {
    #[default]
    Nothing,
    /// As a multiple of the other.
    To,
    /// The other as a multiple of it.
    Of,
    /// By how many per cent it differs from the other.
    Difference,
}

/// A column of a table, or what a threshold judges. In a case it is a list: title, figure, statistic, comparison, other.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Column {
    /// Of a threshold: the candidate; all of them if it is empty.
    pub(crate) title: String,
    figure: String,
    statistic: Statistic,
    pub(crate) against: Against,
    other: String,
}

impl Column {
    /// None if the figure was not measured, or would be compared with itself.
    pub(crate) fn number(&self, one: &Measured, all: &[Measured]) -> Option<f64> {
        let of = |one: &Measured| one.samples(&self.figure).number(self.statistic);
        let other = if self.other.is_empty() { all.first() } else { find(all, &self.other) };
        let is_other =
            |other: &&Measured| self.against == Against::Difference || other.name != one.name;
        let (number, other) = (of(one), other.filter(is_other).map_or(f64::NAN, of));
        let compared = match self.against {
            Against::Nothing => number,
            Against::To => number / other,
            Against::Of => other / number,
            Against::Difference => difference_percent(other, number),
        };
        compared.is_finite().then_some(compared)
    }

    fn cell(&self, one: &Measured, all: &[Measured], digits: usize) -> String {
        let Some(number) = self.number(one, all) else { return String::new() };
        let samples = one.samples(&self.figure);
        let [min, max] = [Statistic::Least, Statistic::Most].map(|end| samples.number(end));
        match (self.against, self.statistic) {
            (Against::Difference, _) => format!("{number:+.2} %"),
            (Against::To | Against::Of, _) => format!("{number:.3}"),
            (_, Statistic::Range) => format!("{min:.digits$}–{max:.digits$}"),
            (_, Statistic::Spread) if samples.0.len() > 1 => {
                format!("{number:.digits$} ({min:.digits$}...{max:.digits$})")
            }
            _ => format!("{number:.digits$}"),
        }
    }
}

/// A plot of a table. In a case it is a list: kind, figure, statistic.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct PlotSpec {
    kind: PlotKind,
    figure: String,
    #[serde(default)]
    statistic: Statistic,
}

/// The description of a table in a case.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TableSpec {
    /// {} stands for what the experiment knows.
    title: String,
    /// The titles of the columns before those of figures: "case | program", or "program" if rows do not name the case.
    names: String,
    columns: Vec<Column>,
    /// Instead of columns, as the mails have it: the statistics of this figure in rows, and the candidates in columns.
    latency: String,
    /// Of a table of latencies: the candidate that is compared with the first.
    raised: String,
    plots: Vec<PlotSpec>,
    /// The run is refused if repetitions of this figure spread by more than the case allows.
    pub(crate) steady: String,
}

impl Table {
    /// Without rows. {} in the title of the description stands for `title`.
    pub(crate) fn new(spec: TableSpec, title: &str) -> Self {
        let title = spec.title.replace("{}", title);
        let titles = spec.columns.iter().map(|column| column.title.as_str());
        let header = spec.names.split(" | ").chain(titles).map(str::to_owned).collect();
        let plots = spec.plots.iter().map(|plot| Plot::new(plot.kind, &title)).collect();
        Self { title, header, rows: Vec::new(), spec, plots }
    }

    /// Adds the rows of a case, and what they show in the plots.
    pub(crate) fn add(&mut self, figures: &BTreeMap<String, Figure>, case: &str, all: &[Measured]) {
        let has_cases = self.spec.names.contains(" | ");
        let digits = |figure: &str| figures.get(figure).map_or(0, |figure| figure.digits);
        if !self.spec.latency.is_empty() {
            self.add_latency(figures, all);
        }
        for one in all {
            if self.spec.latency.is_empty() {
                let names = [Some(case).filter(|_| has_cases), Some(one.name.as_str())];
                let names = names.into_iter().flatten().map(str::to_owned);
                let cells = self.spec.columns.iter();
                let cells = cells.map(|column| column.cell(one, all, digits(&column.figure)));
                self.rows.push(names.chain(cells).collect());
            }
            for (plot, spec) in self.plots.iter_mut().zip(&self.spec.plots) {
                let samples = one.samples(&spec.figure);
                if let Some(figure) = figures.get(&spec.figure).filter(|_| !samples.0.is_empty()) {
                    plot.label = format!("{}, {}", spec.figure, figure.unit);
                    let names = if has_cases { [case, &one.name] } else { [&one.name, ""] };
                    plot.add(names, samples, spec.statistic);
                }
            }
        }
    }

    /// Statistics in rows, and the candidates in columns, with the difference of one of them.
    fn add_latency(&mut self, figures: &BTreeMap<String, Figure>, all: &[Measured]) {
        let TableSpec { latency, raised, .. } = &self.spec;
        let Figure { unit, digits } = figures.get(latency).cloned().unwrap_or_default();
        let place = all.iter().position(|one| one.name == *raised).unwrap_or(all.len() - 1);
        self.header = all.iter().map(|one| one.name.clone()).collect();
        self.header.insert(place + 1, "diff".to_owned());
        self.header.insert(0, String::new());
        for (title, statistic) in [
            ("Average", Statistic::Mean),
            ("Median", Statistic::Median),
            ("Minimum", Statistic::Least),
            ("Maximum", Statistic::Most),
            ("Standard deviation", Statistic::Deviation),
        ] {
            let column = Column { figure: latency.clone(), statistic, ..Column::default() };
            let cell = |one| column.cell(one, all, digits);
            let mut cells: Vec<String> = all.iter().map(cell).collect();
            let difference = Column { against: Against::Difference, ..column.clone() };
            cells.insert(place + 1, difference.cell(&all[place], all, digits));
            cells.insert(0, format!("{title} ({unit})"));
            self.rows.push(cells);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(name: &str, walls: &[f64]) -> Measured {
        Measured::new(name, walls.iter().map(|wall| ("wall", *wall)).collect())
    }

    fn table(spec: &str, case: &str, all: &[Measured]) -> Table {
        let figures = [("wall".to_owned(), Figure { unit: "s".to_owned(), digits: 3 })];
        let mut table = Table::new(toml::from_str(spec).unwrap(), "x");
        table.add(&figures.into(), case, all);
        table
    }

    #[test]
    fn columns_are_padded_and_short_rows_are_filled() {
        let text = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let (title, header) = ("GB/s".to_owned(), text(&["threads", "ours"]));
        let rows = vec![text(&["1", "0.77"]), text(&["16"])];
        let table = Table { title, header, rows, ..Table::default() };
        let expected = "**GB/s**\n\n\
            | threads | ours |\n\
            | ------- | ---: |\n\
            | 1       | 0.77 |\n\
            | 16      |      |\n";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn cells_have_statistics_and_comparisons() {
        let all = [measured("ours", &[1.0, 3.0]), measured("theirs", &[4.0])];
        for (column, ours, theirs) in [
            (r#"["", "wall"]"#, "2.000", "4.000"),
            (r#"["", "wall", "spread"]"#, "2.000 (1.000...3.000)", "4.000"),
            (r#"["", "wall", "range"]"#, "1.000–3.000", "4.000–4.000"),
            (r#"["", "wall", "most"]"#, "3.000", "4.000"),
            (r#"["", "wall", "median", "to", "theirs"]"#, "0.500", ""),
            (r#"["", "wall", "median", "of", "ours"]"#, "", "0.500"),
            (r#"["", "wall", "mean", "difference"]"#, "+0.00 %", "+100.00 %"),
            (r#"["", "wall", "median", "to", "nobody"]"#, "", ""),
            (r#"["", "CPU"]"#, "", ""),
        ] {
            let spec = "title = 'of {}'\nnames = 'case | program'\nplots = [['bars', 'wall']]";
            let table = table(&format!("{spec}\ncolumns = [{column}]"), "lz4", &all);
            let row = ["lz4", "theirs", theirs].map(str::to_owned);
            assert_eq!((&*table.rows[0][2], &table.rows[1][..]), (ours, &row[..]), "{column}");
            let plot = table.plots[0].svg().unwrap();
            assert!(table.title == "of x" && plot.contains("lz4") && plot.contains("wall, s"));
        }
    }

    #[test]
    fn the_table_of_a_latency_has_the_shape_of_the_mail_and_peers_follow() {
        let all = [
            measured("unbound", &[90.0, 110.0]),
            measured("per-CPU", &[40.0, 60.0]),
            measured("per-CPU raised", &[9.0, 11.0]),
            measured("kernel", &[3.0, 5.0]),
        ];
        let text = table("latency = 'wall'\nraised = 'per-CPU raised'", "", &all).to_string();
        assert!(text.contains("| per-CPU raised |     diff | kernel |"), "{text}");
        assert!(text.contains("| Average (s)            | 100.000 |  50.000 |         10.000 | -90.00 % |  4.000 |"), "{text}");
    }
}
