//! A Markdown table that also reads well as plain text.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A table under a title.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Table {
    title: String,
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// The first column holds names, the others numbers.
    pub(crate) fn new<H: Into<String>>(
        title: impl Into<String>,
        header: impl IntoIterator<Item = H>,
    ) -> Self {
        Self {
            title: title.into(),
            header: header.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn add<C: Into<String>>(&mut self, row: impl IntoIterator<Item = C>) {
        self.rows.push(row.into_iter().map(Into::into).collect());
    }

    pub(crate) fn title(&self) -> &str {
        &self.title
    }

    pub(crate) fn header(&self) -> &[String] {
        &self.header
    }

    /// Some may be shorter than the header.
    pub(crate) fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().chain([&self.header]).filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0).max(3)
    }

    fn write_row(&self, f: &mut fmt::Formatter<'_>, row: &[String]) -> fmt::Result {
        for column in 0..self.header.len() {
            let cell = row.get(column).map_or("", String::as_str);
            let width = self.width(column);
            if column == 0 {
                write!(f, "| {cell:<width$} ")?;
            } else {
                write!(f, "| {cell:>width$} ")?;
            }
        }
        writeln!(f, "|")
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "**{}**\n", self.title)?;
        self.write_row(f, &self.header)?;
        for column in 0..self.header.len() {
            let dashes = "-".repeat(self.width(column));
            if column == 0 {
                write!(f, "| {dashes} ")?;
            } else {
                write!(f, "| {}: ", dashes.get(1..).unwrap_or_default())?;
            }
        }
        writeln!(f, "|")?;
        self.rows.iter().try_for_each(|row| self.write_row(f, row))
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn columns_are_padded_and_numbers_stand_right() {
        let mut table = Table::new("GB/s", ["threads", "ours"]);
        table.add(["1", "0.77"]);
        table.add(["16", "10.5"]);
        let expected = "**GB/s**\n\n\
            | threads | ours |\n\
            | ------- | ---: |\n\
            | 1       | 0.77 |\n\
            | 16      | 10.5 |\n";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn a_short_row_is_filled_up() {
        let mut table = Table::new("t", ["a", "b", "c"]);
        table.add(["1"]);
        assert!(table.to_string().ends_with("| 1   |     |     |\n"));
    }
}
