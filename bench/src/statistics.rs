//! Samples and what is said of them. Called by every experiment.

use serde::{Deserialize, Serialize};

/// Measured values of one kind, in the order they came.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Samples(Vec<f64>);

/// The five numbers of the seeds' tables.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) count: usize,
    pub(crate) average: f64,
    pub(crate) median: f64,
    pub(crate) minimum: f64,
    pub(crate) maximum: f64,
    /// Of the sample (n - 1).
    pub(crate) deviation: f64,
}

impl Summary {
    /// The lines of the seeds' tables, which are in us.
    pub(crate) fn lines(&self) -> [(&'static str, f64); 5] {
        [
            ("Average (us)", self.average),
            ("Median (us)", self.median),
            ("Minimum (us)", self.minimum),
            ("Maximum (us)", self.maximum),
            ("Standard deviation (us)", self.deviation),
        ]
    }
}

impl Samples {
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// In the order they came.
    pub(crate) fn values(&self) -> impl Iterator<Item = f64> {
        self.0.iter().copied()
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    /// The smallest value that so many thousandths of all do not exceed; NaN of nothing.
    pub(crate) fn percentile(&self, thousandths: usize) -> f64 {
        let sorted = self.sorted();
        let rank = (sorted.len() * thousandths).div_ceil(1000).max(1);
        sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
    }

    /// The middle; of an even number, the mean of the two in the middle.
    pub(crate) fn median(&self) -> f64 {
        self.summary().median
    }

    /// How far the middle half of the values is apart, as a share of the median; of fewer than four values, how far
    /// all are. 0 of fewer than two.
    pub(crate) fn spread(&self) -> f64 {
        let summary = self.summary();
        let apart = match summary.count {
            0 | 1 => return 0.0,
            2 | 3 => summary.maximum - summary.minimum,
            _ => self.percentile(750) - self.percentile(250),
        };
        apart / summary.median.abs()
    }

    /// All five numbers; NaN where there is nothing to say.
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
    fn five_numbers_of_known_values() {
        let summary = samples(&[4.0, 2.0, 9.0, 5.0]).summary();
        assert_eq!(summary.count, 4);
        assert_eq!((summary.average, summary.median), (5.0, 4.5));
        assert_eq!((summary.minimum, summary.maximum), (2.0, 9.0));
        assert!((summary.deviation - 2.943_920_288_775_949).abs() < 1e-12);
    }

    #[test]
    fn one_value_does_not_deviate_and_none_says_nothing() {
        assert_eq!(samples(&[3.0]).summary().deviation, 0.0);
        assert_eq!(samples(&[3.0]).median(), 3.0);
        assert!(samples(&[]).median().is_nan());
        assert!(samples(&[]).percentile(990).is_nan());
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let hundred: Samples = (1..=100).map(f64::from).collect();
        assert_eq!(hundred.percentile(500), 50.0);
        assert_eq!(hundred.percentile(990), 99.0);
        assert_eq!(hundred.percentile(1000), 100.0);
        assert_eq!(hundred.percentile(0), 1.0);
    }

    #[test]
    fn one_value_far_off_does_not_make_many_spread() {
        assert_eq!(samples(&[]).spread(), 0.0);
        assert_eq!(samples(&[7.0]).spread(), 0.0);
        assert_eq!(samples(&[9.0, 10.0, 12.0]).spread(), 0.3);
        assert_eq!(samples(&[10.0, 10.0, 10.0, 10.0, 900.0]).spread(), 0.0);
        assert_eq!(samples(&[8.0, 9.0, 11.0, 12.0]).spread(), 0.3);
    }

    #[test]
    fn a_fall_is_negative() {
        assert_eq!(difference_percent(200.0, 50.0), -75.0);
    }
}
