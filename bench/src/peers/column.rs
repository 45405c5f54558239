//! What was measured of one contestant: its figures, each with a sample for every round, and the cells of tables that say
//! them. Owns samples only.

use std::collections::BTreeMap;

use crate::statistics::Samples;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Figure {
    /// Seconds from start to end.
    Wall,
    /// CPU seconds of the program, or of the readers.
    Cpu,
    /// CPU seconds of the daemon meanwhile.
    DaemonCpu,
    /// Peak memory of the program, or of the daemon, in MiB.
    Peak,
    /// Bytes of an image.
    Bytes,
    /// Latencies in microseconds.
    Mean,
    P50,
    P99,
    P999,
}

impl Figure {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Wall => "wall",
            Self::Cpu => "CPU",
            Self::DaemonCpu => "daemon CPU",
            Self::Peak => "peak",
            Self::Bytes => "size",
            Self::Mean => "mean",
            Self::P50 => "p50",
            Self::P99 => "p99",
            Self::P999 => "p999",
        }
    }

    pub(super) const fn unit(self) -> &'static str {
        match self {
            Self::Wall | Self::Cpu | Self::DaemonCpu => "s",
            Self::Peak => "MiB",
            Self::Bytes => "bytes",
            Self::Mean | Self::P50 | Self::P99 | Self::P999 => "us",
        }
    }

    const fn digits(self) -> usize {
        match self {
            Self::Wall | Self::Cpu | Self::DaemonCpu => 3,
            Self::Peak | Self::Mean | Self::P50 => 1,
            Self::Bytes | Self::P99 | Self::P999 => 0,
        }
    }
}

/// The figures of one run.
pub(super) type Sample = BTreeMap<Figure, f64>;

/// A contestant's runs.
#[derive(Debug, Clone, Default)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) figures: BTreeMap<Figure, Samples>,
}

impl Column {
    pub(super) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), figures: BTreeMap::new() }
    }

    pub(super) fn push(&mut self, sample: &Sample) {
        for (figure, value) in sample {
            self.figures.entry(*figure).or_default().push(*value);
        }
    }

    pub(super) fn median(&self, figure: Figure) -> Option<f64> {
        self.figures.get(&figure).map(Samples::median)
    }

    /// The median, with minimum and maximum where there are several samples; empty where there is none.
    pub(super) fn spread(&self, figure: Figure) -> String {
        let Some(samples) = self.figures.get(&figure) else { return String::new() };
        let (summary, digits) = (samples.summary(), figure.digits());
        let middle = format!("{:.digits$}", summary.median);
        if summary.count < 2 {
            return middle;
        }
        format!("{middle} ({:.digits$}...{:.digits$})", summary.minimum, summary.maximum)
    }

    /// The median alone.
    pub(super) fn middle(&self, figure: Figure) -> String {
        let digits = figure.digits();
        self.median(figure).map_or_else(String::new, |value| format!("{value:.digits$}"))
    }
}

/// The ratio of medians of two contestants, if both have the figure.
pub(super) fn ratio(columns: &[Column], figure: Figure, ours: &str, theirs: &str) -> Option<f64> {
    let of = |name: &str| columns.iter().find(|column| column.name == name)?.median(figure);
    let (ours, theirs) = (of(ours)?, of(theirs)?);
    (theirs > 0.0).then_some(ours / theirs)
}

#[cfg(test)]
mod tests {
    use super::{Column, Figure, Sample, ratio};

    fn column(name: &str, walls: &[f64]) -> Column {
        let mut column = Column::new(name);
        for wall in walls {
            column.push(&Sample::from([(Figure::Wall, *wall)]));
        }
        column
    }

    #[test]
    fn a_cell_has_the_median_and_how_far_it_spreads() {
        assert_eq!(column("a", &[0.3, 0.1, 0.2]).spread(Figure::Wall), "0.200 (0.100...0.300)");
        assert_eq!(column("a", &[0.5]).spread(Figure::Wall), "0.500");
        assert_eq!(column("a", &[0.5]).spread(Figure::Cpu), "");
        assert_eq!(column("a", &[0.5]).middle(Figure::Wall), "0.500");
    }

    #[test]
    fn a_ratio_needs_both() {
        let columns = [column("ours", &[1.0, 3.0]), column("theirs", &[4.0])];
        assert_eq!(ratio(&columns, Figure::Wall, "ours", "theirs"), Some(0.5));
        assert_eq!(ratio(&columns, Figure::Wall, "ours", "kernel"), None);
        assert_eq!(ratio(&columns, Figure::Cpu, "ours", "theirs"), None);
    }
}
