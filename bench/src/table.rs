//! Tables, as text and for the page. A sheet is a table of samples: a row for each candidate of each case, and columns that
//! the case of the experiment describes. It carries its plots and its samples with it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::plot::{Plot, PlotKind};
use crate::statistics::{Measured, Samples, Statistic, difference_percent, find};

/// A Markdown table under a title; it also reads well as plain text. The first column holds names.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Table {
    title: String,
    header: Vec<String>,
    /// A row may be shorter than the header.
    rows: Vec<Vec<String>>,
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

/// The samples of one figure in one row.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Series {
    /// Who was measured, such as "original".
    row: String,
    /// What, and under which conditions, such as "4 threads, wall".
    case: String,
    unit: String,
    samples: Samples,
}

impl Series {
    /// All samples of a candidate.
    pub(crate) fn of(case: &str, one: &Measured) -> impl Iterator<Item = Self> {
        one.figures.iter().map(move |(figure, samples)| Self {
            row: one.name.clone(),
            case: if case.is_empty() {
                figure.name.to_owned()
            } else {
                format!("{case}, {}", figure.name)
            },
            unit: figure.unit.to_owned(),
            samples: samples.clone(),
        })
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

/// A column of a sheet, or what a threshold judges. In a case it is a list: title, figure, statistic, comparison, other.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Column {
    /// Of a threshold: the candidate; all of them if it is empty.
    pub(crate) title: String,
    figure: String,
    #[serde(default)]
    statistic: Statistic,
    #[serde(default)]
    pub(crate) against: Against,
    #[serde(default)]
    other: String,
}

impl Column {
    /// None if the figure was not measured, or would be compared with itself.
    pub(crate) fn number(&self, one: &Measured, all: &[Measured]) -> Option<f64> {
        let of = |one: &Measured| Some(one.named(&self.figure)?.1.number(self.statistic));
        let number = of(one)?;
        let other = if self.other.is_empty() { all.first() } else { find(all, &self.other) };
        let is_other =
            |other: &&Measured| self.against == Against::Difference || other.name != one.name;
        let other = || of(other.filter(is_other)?);
        let compared = match self.against {
            Against::Nothing => return Some(number),
            Against::To => number / other()?,
            Against::Of => other()? / number,
            Against::Difference => difference_percent(other()?, number),
        };
        compared.is_finite().then_some(compared)
    }

    fn cell(&self, one: &Measured, all: &[Measured]) -> String {
        let number = self.number(one, all).zip(one.named(&self.figure));
        let Some((number, (figure, samples))) = number else { return String::new() };
        let digits = figure.digits;
        let [least, most] = [Statistic::Least, Statistic::Most].map(|end| samples.number(end));
        match (self.against, self.statistic) {
            (Against::Difference, _) => format!("{number:+.2} %"),
            (Against::To | Against::Of, _) => format!("{number:.3}"),
            (_, Statistic::Range) => format!("{least:.digits$}–{most:.digits$}"),
            (_, Statistic::Spread) if samples.0.len() > 1 => {
                format!("{number:.digits$} ({least:.digits$}...{most:.digits$})")
            }
            _ => format!("{number:.digits$}"),
        }
    }
}

/// A plot of a sheet. In a case it is a list: kind, figure, statistic.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct PlotSpec {
    kind: PlotKind,
    figure: String,
    #[serde(default)]
    statistic: Statistic,
}

/// The description of a sheet in a case.
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
    steady: String,
}

/// A table with its plots and its samples.
#[derive(Debug)]
pub(crate) struct Sheet {
    spec: TableSpec,
    pub(crate) table: Table,
    pub(crate) plots: Vec<Plot>,
    pub(crate) series: Vec<Series>,
    /// Samples that must not spread, and what they are.
    pub(crate) repetitions: Vec<(String, Samples)>,
}

impl Sheet {
    pub(crate) fn new(spec: &TableSpec, title: &str) -> Self {
        let spec = TableSpec { title: spec.title.replace("{}", title), ..spec.clone() };
        let titles = spec.columns.iter().map(|column| column.title.as_str());
        let header = spec.names.split(" | ").chain(titles).map(str::to_owned).collect();
        let table = Table { title: spec.title.clone(), header, rows: Vec::new() };
        let plots = spec.plots.iter().map(|plot| Plot::new(plot.kind, &spec.title)).collect();
        Self { spec, table, plots, series: Vec::new(), repetitions: Vec::new() }
    }

    /// Adds the rows of a case.
    pub(crate) fn add(&mut self, case: &str, all: &[Measured]) {
        let has_cases = self.spec.names.contains(" | ");
        if !self.spec.latency.is_empty() && !all.is_empty() {
            self.add_latency(all);
        }
        for one in all {
            if self.spec.latency.is_empty() {
                let names = [Some(case).filter(|_| has_cases), Some(one.name.as_str())];
                let names = names.into_iter().flatten().map(str::to_owned);
                let cells = self.spec.columns.iter().map(|column| column.cell(one, all));
                self.table.rows.push(names.chain(cells).collect());
            }
            for (plot, spec) in self.plots.iter_mut().zip(&self.spec.plots) {
                if let Some((figure, samples)) = one.named(&spec.figure) {
                    let names = if has_cases { [case, &one.name] } else { [&one.name, ""] };
                    plot.add(names, *figure, samples, spec.statistic);
                }
            }
            self.series.extend(Series::of(case, one));
            if let Some((_, samples)) = one.named(&self.spec.steady) {
                self.repetitions.push((format!("{} in {case}", one.name), samples.clone()));
            }
        }
    }

    fn add_latency(&mut self, all: &[Measured]) {
        let TableSpec { latency, raised, .. } = &self.spec;
        let unit = all[0].named(latency).map_or("", |(figure, _)| figure.unit);
        let place = all.iter().position(|one| one.name == *raised).unwrap_or(all.len() - 1);
        self.table.header = all.iter().map(|one| one.name.clone()).collect();
        self.table.header.insert(place + 1, "diff".to_owned());
        self.table.header.insert(0, String::new());
        for (title, statistic) in [
            ("Average", Statistic::Mean),
            ("Median", Statistic::Median),
            ("Minimum", Statistic::Least),
            ("Maximum", Statistic::Most),
            ("Standard deviation", Statistic::Deviation),
        ] {
            let (title, figure, other) =
                (format!("{title} ({unit})"), latency.clone(), String::new());
            let column = Column { title, figure, statistic, against: Against::Nothing, other };
            let mut cells: Vec<String> = all.iter().map(|one| column.cell(one, all)).collect();
            let difference = Column { against: Against::Difference, ..column.clone() };
            cells.insert(place + 1, difference.cell(&all[place], all));
            cells.insert(0, column.title);
            self.table.rows.push(cells);
        }
    }

    pub(crate) fn has_rows(&self) -> bool {
        !self.table.rows.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::WALL;

    fn measured(name: &str, walls: &[f64]) -> Measured {
        Measured::new(name, walls.iter().map(|wall| (WALL, *wall)).collect())
    }

    fn sheet(spec: &str, case: &str, all: &[Measured]) -> Sheet {
        let mut sheet = Sheet::new(&toml::from_str(spec).unwrap(), "x");
        sheet.add(case, all);
        sheet
    }

    #[test]
    fn columns_are_padded_and_short_rows_are_filled() {
        let text = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let rows = vec![text(&["1", "0.77"]), text(&["16"])];
        let table = Table { title: "GB/s".to_owned(), header: text(&["threads", "ours"]), rows };
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
            let sheet = sheet(&format!("names = 'of'\ncolumns = [{column}]"), "", &all);
            assert_eq!(
                [&sheet.table.rows[0][1], &sheet.table.rows[1][1]],
                [ours, theirs],
                "{column}"
            );
        }
    }

    #[test]
    fn a_sheet_has_rows_samples_and_a_plot() {
        let spec = "title = 'of {}'\nnames = 'case | program'\ncolumns = [['wall, s', 'wall']]\n\
            plots = [['bars', 'wall']]\nsteady = 'wall'";
        let sheet = sheet(spec, "lz4", &[measured("a", &[1.0]), measured("b", &[2.0])]);
        let text = sheet.table.to_string();
        assert!(
            text.contains("**of x**") && text.contains("| lz4  |       b |   2.000 |"),
            "{text}"
        );
        assert_eq!(
            (sheet.series[1].case.as_str(), sheet.repetitions[0].0.as_str()),
            ("lz4, wall", "a in lz4")
        );
        assert!(sheet.plots[0].svg().unwrap().contains("lz4"));
    }

    #[test]
    fn the_table_of_a_latency_has_the_shape_of_the_mail_and_peers_follow() {
        let all = [
            measured("unbound", &[90.0, 110.0]),
            measured("per-CPU", &[40.0, 60.0]),
            measured("per-CPU raised", &[9.0, 11.0]),
            measured("kernel", &[3.0, 5.0]),
        ];
        let text = sheet("latency = 'wall'\nraised = 'per-CPU raised'", "", &all).table.to_string();
        assert!(text.contains("| per-CPU raised |     diff | kernel |"), "{text}");
        assert!(text.contains("| Average (s)            | 100.000 |  50.000 |         10.000 | -90.00 % |  4.000 |"), "{text}");
    }
}
