//! Tables, as text and for the page, and the one kind of table that is made of samples: a sheet has a row for each
//! candidate of each case and columns that are described as data. It carries its plot and its samples with it.
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::case::Case;
use crate::plot::Plot;
use crate::rounds::{Measured, find};
use crate::statistics::{Figure, Samples, difference_percent};

/// A Markdown table under a title; it also reads well as plain text. The first column holds names.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Table {
    title: String,
    header: Vec<String>,
    /// A row may be shorter than the header.
    rows: Vec<Vec<String>>,
}

impl Table {
    /// `header` holds the columns, separated by " | ".
    pub(crate) fn new(title: impl Into<String>, header: &str) -> Self {
        let header = header.split(" | ").map(str::to_owned).collect();
        Self { title: title.into(), header, rows: Vec::new() }
    }

    pub(crate) fn add<C: Into<String>>(&mut self, row: impl IntoIterator<Item = C>) {
        self.rows.push(row.into_iter().map(Into::into).collect());
    }
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
    pub(crate) row: String,
    /// What, and under which conditions, such as "4 threads, wall".
    pub(crate) case: String,
    pub(crate) unit: String,
    pub(crate) samples: Samples,
}

impl Series {
    /// All samples of a candidate.
    pub(crate) fn of(case: &str, one: &Measured) -> impl Iterator<Item = Self> {
        one.figures.iter().map(move |(figure, samples)| {
            let parts = [case, figure.name].into_iter().filter(|part| !part.is_empty());
            Self {
                row: one.name.clone(),
                case: parts.collect::<Vec<_>>().join(", "),
                unit: figure.unit.to_owned(),
                samples: samples.clone(),
            }
        })
    }
}

/// The number of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Statistic {
    Mean,
    Median,
    Maximum,
    Deviation,
    Percentile(usize),
    /// The median with minimum and maximum, where there are several samples.
    Spread,
    Range,
}

/// What the number is compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Against {
    Nothing,
    /// As a multiple of the number of this candidate of the same case.
    RatioTo(String),
    /// The number of this candidate as a multiple of it.
    RatioOf(String),
    /// By how many per cent it differs from the number of this candidate.
    DifferenceTo(String),
}

/// A column of a sheet: the median of a figure, unless something else is said.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    title: String,
    /// Its name.
    figure: String,
    statistic: Statistic,
    against: Against,
}

impl Column {
    pub(crate) fn new(title: impl Into<String>, figure: Figure) -> Self {
        let (statistic, against) = (Statistic::Median, Against::Nothing);
        Self { title: title.into(), figure: figure.name.to_owned(), statistic, against }
    }

    /// From the description in a case.
    fn of(words: &[String]) -> Self {
        let word = |place: usize| words.get(place).map_or("", String::as_str).to_owned();
        let (statistic, against) = match word(2).as_str() {
            "spread" => (Statistic::Spread, Against::Nothing),
            "to" => (Statistic::Median, Against::RatioTo(word(3))),
            "of" => (Statistic::Median, Against::RatioOf(word(3))),
            _ => (Statistic::Median, Against::Nothing),
        };
        Self { title: word(0), figure: word(1), statistic, against }
    }

    pub(crate) fn mean(self) -> Self {
        Self { statistic: Statistic::Mean, ..self }
    }

    pub(crate) fn maximum(self) -> Self {
        Self { statistic: Statistic::Maximum, ..self }
    }

    pub(crate) fn deviation(self) -> Self {
        Self { statistic: Statistic::Deviation, ..self }
    }

    /// In thousandths.
    pub(crate) fn percentile(self, thousandths: usize) -> Self {
        Self { statistic: Statistic::Percentile(thousandths), ..self }
    }

    /// "least–most".
    pub(crate) fn range(self) -> Self {
        Self { statistic: Statistic::Range, ..self }
    }

    pub(crate) fn difference_to(self, baseline: impl Into<String>) -> Self {
        Self { against: Against::DifferenceTo(baseline.into()), ..self }
    }

    fn number(&self, one: &Measured) -> Option<f64> {
        let (_, samples) = one.named(&self.figure)?;
        let summary = samples.summary();
        Some(match self.statistic {
            Statistic::Mean => summary.average,
            Statistic::Maximum => summary.maximum,
            Statistic::Deviation => summary.deviation,
            Statistic::Percentile(thousandths) => samples.percentile(thousandths),
            Statistic::Median | Statistic::Spread | Statistic::Range => summary.median,
        })
    }

    /// The text of the cell; empty if the figure was not measured, or would be compared with itself.
    pub(crate) fn cell(&self, one: &Measured, all: &[Measured]) -> String {
        let Some(number) = self.number(one) else { return String::new() };
        let other = |name: &String| find(all, name).and_then(|other| self.number(other));
        let compared = match &self.against {
            Against::RatioTo(name) | Against::RatioOf(name) if *name == one.name => None,
            Against::RatioTo(name) => other(name).map(|other| format!("{:.3}", number / other)),
            Against::RatioOf(name) => other(name).map(|other| format!("{:.3}", other / number)),
            Against::DifferenceTo(name) => {
                let difference = other(name).map(|other| difference_percent(other, number));
                let finite = difference.filter(|difference| difference.is_finite());
                finite.map(|difference| format!("{difference:+.2} %"))
            }
            Against::Nothing => one
                .named(&self.figure)
                .map(|(figure, samples)| self.plain(*figure, number, samples)),
        };
        compared.unwrap_or_default()
    }

    fn plain(&self, figure: Figure, number: f64, samples: &Samples) -> String {
        let (summary, digits) = (samples.summary(), figure.digits);
        let (least, most) = (summary.minimum, summary.maximum);
        match self.statistic {
            Statistic::Range => format!("{least:.digits$}–{most:.digits$}"),
            Statistic::Spread if summary.count > 1 => {
                format!("{number:.digits$} ({least:.digits$}...{most:.digits$})")
            }
            _ => format!("{number:.digits$}"),
        }
    }
}

/// How a sheet is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Drawing {
    Bars(Figure),
    Distribution(Figure),
}

/// A table with a row for each candidate of each case, its plot and its samples.
#[derive(Debug)]
pub(crate) struct Sheet {
    columns: Vec<Column>,
    has_cases: bool,
    drawing: Option<Drawing>,
    steady: Option<Figure>,
    pub(crate) table: Table,
    pub(crate) plot: Option<Plot>,
    pub(crate) series: Vec<Series>,
    /// Samples that must not spread, and what they are.
    pub(crate) repetitions: Vec<(String, Samples)>,
}

impl Sheet {
    /// `names` are the titles of the columns before those of figures: "case | program", or "program" if there is one case.
    pub(crate) fn new(title: impl Into<String>, names: &str, columns: Vec<Column>) -> Self {
        let titles = columns.iter().map(|column| column.title.as_str());
        let header: Vec<&str> = names.split(" | ").chain(titles).collect();
        Self {
            has_cases: names.contains(" | "),
            table: Table::new(title, &header.join(" | ")),
            columns,
            drawing: None,
            steady: None,
            plot: None,
            series: Vec::new(),
            repetitions: Vec::new(),
        }
    }

    /// With the names and columns of the case.
    pub(crate) fn of(case: &Case, title: &str) -> Self {
        Self::new(title, &case.names, case.columns.iter().map(|words| Column::of(words)).collect())
    }

    /// Draws medians as bars, a group for each case.
    pub(crate) fn bars(mut self, figure: Figure) -> Self {
        let label = format!("{}, {}, median, and least to most", figure.name, figure.unit);
        self.plot = Some(Plot::bars(&self.table.title, &label));
        Self { drawing: Some(Drawing::Bars(figure)), ..self }
    }

    /// Draws the distribution of all samples.
    pub(crate) fn distribution(mut self, figure: Figure) -> Self {
        let label = format!("{}, {}", figure.name, figure.unit);
        self.plot = Some(Plot::cdf(&self.table.title, &label).log_x());
        Self { drawing: Some(Drawing::Distribution(figure)), ..self }
    }

    /// The run is refused if repetitions of this figure spread by more than the case allows.
    pub(crate) fn steady(self, figure: Figure) -> Self {
        Self { steady: Some(figure), ..self }
    }

    /// Adds the rows of a case.
    pub(crate) fn add(&mut self, case: &str, all: &[Measured]) {
        for one in all {
            let names = [Some(case).filter(|_| self.has_cases), Some(one.name.as_str())];
            let names = names.into_iter().flatten().map(str::to_owned);
            let cells = self.columns.iter().map(|column| column.cell(one, all));
            self.table.add(names.chain(cells));
            self.keep(case, one);
        }
    }

    fn keep(&mut self, case: &str, one: &Measured) {
        self.series.extend(Series::of(case, one));
        if let Some(plot) = &mut self.plot {
            match self.drawing {
                Some(Drawing::Bars(figure)) => {
                    plot.median_bar(case, &one.name, &one.samples(figure));
                }
                Some(Drawing::Distribution(figure)) => {
                    plot.samples(&one.name, &one.samples(figure));
                }
                None => {}
            }
        }
        if let Some(figure) = self.steady {
            self.repetitions.push((format!("{} in {case}", one.name), one.samples(figure)));
        }
    }

    pub(crate) fn has_rows(&self) -> bool {
        !self.table.rows.is_empty()
    }
}

/// The table of a latency as the mails have it: a row for each statistic, a column for each candidate, and behind `after`
/// by how much that differs from the first.
pub(crate) fn statistics_table(
    title: &str,
    figure: Figure,
    all: &[Measured],
    after: usize,
) -> Table {
    let behind = |after: usize| (after + 1).min(all.len());
    let mut header: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
    header.insert(behind(after), "diff");
    let mut table = Table::new(title, &format!(" | {}", header.join(" | ")));
    let column = |title: &str| Column::new(format!("{title} ({})", figure.unit), figure);
    for column in [
        column("Average").mean(),
        column("Median"),
        column("Minimum").percentile(0),
        column("Maximum").maximum(),
        column("Standard deviation").deviation(),
    ] {
        let mut cells: Vec<String> = all.iter().map(|one| column.cell(one, all)).collect();
        let first = all.first().map_or("", |one| one.name.as_str());
        let difference =
            all.get(after).map(|one| column.clone().difference_to(first).cell(one, all));
        cells.insert(behind(after), difference.unwrap_or_default());
        cells.insert(0, column.title);
        table.add(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::{CPU, WALL};

    fn measured(name: &str, walls: &[f64]) -> Measured {
        Measured::new(name, walls.iter().map(|wall| (WALL, *wall)).collect())
    }

    #[test]
    fn columns_are_padded_and_short_rows_are_filled() {
        let mut table = Table::new("GB/s", "threads | ours");
        table.add(["1", "0.77"]);
        table.add(["16"]);
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
        let column = || Column::new("", WALL);
        let of = |words: &[&str]| {
            Column::of(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
        };
        for (column, ours, theirs) in [
            (column(), "2.000", "4.000"),
            (of(&["", "wall", "spread"]), "2.000 (1.000...3.000)", "4.000"),
            (column().range(), "1.000–3.000", "4.000–4.000"),
            (column().maximum(), "3.000", "4.000"),
            (column().percentile(990), "3.000", "4.000"),
            (of(&["", "wall", "to", "theirs"]), "0.500", ""),
            (of(&["", "wall", "of", "ours"]), "", "0.500"),
            (column().mean().difference_to("ours"), "+0.00 %", "+100.00 %"),
            (of(&["", "wall", "to", "nobody"]), "", ""),
            (Column::new("", CPU), "", ""),
        ] {
            let cells = all.each_ref().map(|one| column.cell(one, &all));
            assert_eq!(cells, [ours, theirs], "{column:?}");
        }
    }

    #[test]
    fn a_sheet_has_rows_samples_and_a_plot() {
        let columns = vec![Column::new("wall, s", WALL), Column::new("largest", WALL).maximum()];
        let mut sheet = Sheet::new("t", "case | program", columns).bars(WALL).steady(WALL);
        sheet.add("lz4", &[measured("a", &[1.0]), measured("b", &[2.0])]);
        let text = sheet.table.to_string();
        assert!(text.contains("| lz4  |       b |   2.000 |   2.000 |"), "{text}");
        assert_eq!(sheet.series[1].case, "lz4, wall");
        assert_eq!(sheet.repetitions[0].0, "a in lz4");
        assert!(sheet.plot.unwrap().svg().unwrap().contains("lz4"));
    }

    #[test]
    fn the_table_of_a_latency_has_the_shape_of_the_mail_and_peers_follow() {
        let all = [
            measured("unbound", &[90.0, 110.0]),
            measured("per-CPU", &[40.0, 60.0]),
            measured("per-CPU raised", &[9.0, 11.0]),
            measured("kernel", &[3.0, 5.0]),
        ];
        let text = statistics_table("t", Figure::new("wall", "s", 3), &all, 2).to_string();
        assert!(text.contains("| per-CPU raised |     diff | kernel |"), "{text}");
        assert!(text.contains("| Average (s)            | 100.000 |  50.000 |         10.000 | -90.00 % |  4.000 |"), "{text}");
    }
}
