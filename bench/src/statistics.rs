//! Measured quantities, their samples and summaries. Values are few and kept exactly: a histogram with buckets would round
//! the medians of five samples that tables show.

use serde::{Deserialize, Deserializer, Serialize};

/// A quantity: its name in series, its unit, and the digits that tables show behind the point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) digits: usize,
}

impl Figure {
    pub(crate) const fn new(name: &'static str, unit: &'static str, digits: usize) -> Self {
        Self { name, unit, digits }
    }
}

impl<'de> Deserialize<'de> for Figure {
    /// A child process answers a few figures, once: their names are kept for as long as this process lives.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Owned {
            name: String,
            unit: String,
            digits: usize,
        }
        let Owned { name, unit, digits } = Owned::deserialize(from)?;
        Ok(Self::new(name.leak(), unit.leak(), digits))
    }
}

pub(crate) const WALL: Figure = Figure::new("wall", "s", 3);
/// User and system time of all threads.
pub(crate) const CPU: Figure = Figure::new("CPU", "s", 3);
/// The largest resident set.
pub(crate) const PEAK: Figure = Figure::new("peak", "MiB", 1);

/// What one run measured. A figure that occurs several times gives several samples.
pub(crate) type Figures = Vec<(Figure, f64)>;

/// Measured values of one kind, in the order of measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Samples(Vec<f64>);

/// The numbers of a latency table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Summary {
    pub(crate) count: usize,
    pub(crate) average: f64,
    pub(crate) median: f64,
    pub(crate) minimum: f64,
    pub(crate) maximum: f64,
    /// Of the sample (n - 1).
    pub(crate) deviation: f64,
}

impl Samples {
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// In the order of measurement.
    pub(crate) fn values(&self) -> impl Iterator<Item = f64> {
        self.0.iter().copied()
    }

    pub(crate) fn sum(&self) -> f64 {
        self.0.iter().sum()
    }

    /// The same samples in another unit.
    pub(crate) fn scaled(&self, factor: f64) -> Self {
        self.values().map(|value| value * factor).collect()
    }

    pub(crate) fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    /// The smallest sample that this many thousandths of all samples do not exceed; NaN without samples.
    pub(crate) fn percentile(&self, thousandths: usize) -> f64 {
        let rank = (self.0.len() * thousandths).div_ceil(1000).max(1);
        self.sorted().get(rank - 1).copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn median(&self) -> f64 {
        self.summary().median
    }

    /// The interquartile range as a share of the median; with fewer than four samples the full range; 0 with fewer
    /// than two.
    pub(crate) fn spread(&self) -> f64 {
        let summary = self.summary();
        let range = match summary.count {
            0 | 1 => return 0.0,
            2 | 3 => summary.maximum - summary.minimum,
            _ => self.percentile(750) - self.percentile(250),
        };
        range / summary.median.abs()
    }

    /// NaN where there are no samples.
    pub(crate) fn summary(&self) -> Summary {
        let sorted = self.sorted();
        let count = sorted.len();
        let average = sorted.iter().sum::<f64>() / count as f64;
        let squares: f64 = sorted.iter().map(|value| (value - average).powi(2)).sum();
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        Summary {
            count,
            average,
            median: f64::midpoint(at(count.saturating_sub(1) / 2), at(count / 2)),
            minimum: at(0),
            maximum: at(count.saturating_sub(1)),
            deviation: if count > 1 { (squares / (count - 1) as f64).sqrt() } else { 0.0 },
        }
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

/// By how many per cent `after` differs from `before`.
pub(crate) fn difference_percent(before: f64, after: f64) -> f64 {
    (after - before) / before * 100.0
}

#[cfg(test)]
mod tests {
    use super::{Samples, difference_percent};

    fn samples(values: &[f64]) -> Samples {
        values.iter().copied().collect()
    }

    #[test]
    fn summaries_of_known_values() {
        let summary = samples(&[4.0, 2.0, 9.0, 5.0]).summary();
        assert_eq!((summary.count, summary.average, summary.median), (4, 5.0, 4.5));
        assert_eq!((summary.minimum, summary.maximum), (2.0, 9.0));
        assert!((summary.deviation - 2.943_920_288_775_949).abs() < 1e-12);
        assert_eq!(samples(&[3.0]).summary().deviation, 0.0);
        assert_eq!(samples(&[3.0]).median(), 3.0);
        assert!(samples(&[]).median().is_nan() && samples(&[]).percentile(990).is_nan());
        assert_eq!(difference_percent(200.0, 50.0), -75.0);
    }

    #[test]
    fn percentiles_are_measured_values() {
        let hundred: Samples = (1..=100).map(f64::from).collect();
        let found = [500, 990, 1000, 0].map(|thousandths| hundred.percentile(thousandths));
        assert_eq!(found, [50.0, 99.0, 100.0, 1.0]);
    }

    #[test]
    fn one_outlier_does_not_make_many_samples_spread() {
        for (values, spread) in [
            (&[][..], 0.0),
            (&[7.0], 0.0),
            (&[9.0, 10.0, 12.0], 0.3),
            (&[10.0, 10.0, 10.0, 10.0, 900.0], 0.0),
            (&[8.0, 9.0, 11.0, 12.0], 0.3),
        ] {
            assert_eq!(samples(values).spread(), spread);
        }
    }
}
