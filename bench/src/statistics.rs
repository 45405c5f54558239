//! Measured quantities, their samples and what is read off them. Values are few and kept exactly: a histogram with buckets
//! would round the medians of five samples that tables show.

use serde::{Deserialize, Serialize};

/// Bytes of one.
pub(crate) const MIB: f64 = 1_048_576.0;

/// How a quantity is shown: its unit, and the digits behind the point. In a case it is a list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Figure {
    pub(crate) unit: String,
    pub(crate) digits: usize,
}

/// What one run measured, by the names of the case. A figure that occurs several times gives several samples.
pub(crate) type Figures = Vec<(&'static str, f64)>;

/// A number that describes samples. Cells show a spread and a range with the least and the most; their number is the median.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Statistic {
    #[default]
    Median,
    Mean,
    Least,
    Most,
    Deviation,
    P99,
    Spread,
    Range,
}

/// Measured values of one kind, in the order of measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Samples(pub(crate) Vec<f64>);

impl Samples {
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

    pub(crate) fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len() as f64
    }

    pub(crate) fn median(&self) -> f64 {
        let (sorted, count) = (self.sorted(), self.0.len());
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        f64::midpoint(at(count.saturating_sub(1) / 2), at(count / 2))
    }

    /// Of the sample (n - 1).
    fn deviation(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.0.iter().map(|value| (value - mean).powi(2)).sum();
        if self.0.len() > 1 { (squares / (self.0.len() - 1) as f64).sqrt() } else { 0.0 }
    }

    /// NaN without samples.
    pub(crate) fn number(&self, statistic: Statistic) -> f64 {
        match statistic {
            Statistic::Mean => self.mean(),
            Statistic::Least => self.percentile(0),
            Statistic::Most => self.percentile(1000),
            Statistic::Deviation => self.deviation(),
            Statistic::P99 => self.percentile(990),
            Statistic::Median | Statistic::Spread | Statistic::Range => self.median(),
        }
    }

    /// The interquartile range as a share of the median; with fewer than four samples the full range; 0 with fewer
    /// than two.
    pub(crate) fn spread(&self) -> f64 {
        let [min, max] = match self.0.len() {
            0 | 1 => return 0.0,
            2 | 3 => [0, 1000],
            _ => [250, 750],
        };
        (self.percentile(max) - self.percentile(min)) / self.median().abs()
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

/// The samples of a candidate.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) name: String,
    /// In the order in which the runs named them.
    pub(crate) figures: Vec<(String, Samples)>,
}

impl Measured {
    pub(crate) fn new(name: impl Into<String>, figures: Figures) -> Self {
        let mut new = Self { name: name.into(), figures: Vec::new() };
        new.add(figures);
        new
    }

    /// Adds the figures of a run.
    pub(crate) fn add(&mut self, figures: Figures) {
        for (figure, value) in figures {
            match self.figures.iter_mut().find(|(other, _)| other == figure) {
                Some((_, samples)) => samples.0.push(value),
                None => self.figures.push((figure.to_owned(), Samples(vec![value]))),
            }
        }
    }

    /// Empty if it was not measured.
    pub(crate) fn samples(&self, figure: &str) -> &Samples {
        static NONE: Samples = Samples(Vec::new());
        self.figures.iter().find(|(name, _)| name == figure).map_or(&NONE, |(_, samples)| samples)
    }

    /// NaN if it was not measured.
    pub(crate) fn median(&self, figure: &str) -> f64 {
        self.samples(figure).median()
    }
}

pub(crate) fn find<'a>(all: &'a [Measured], name: &str) -> Option<&'a Measured> {
    all.iter().find(|one| one.name == name)
}

/// With one figure, and without those of which it was not measured.
pub(crate) fn only(all: &[Measured], figure: &str) -> Vec<Measured> {
    let mut all = all.to_vec();
    all.iter_mut().for_each(|one| one.figures.retain(|(name, _)| name == figure));
    all.retain(|one| !one.figures.is_empty());
    all
}

/// By how many per cent `after` differs from `before`.
pub(crate) fn difference_percent(before: f64, after: f64) -> f64 {
    (after - before) / before * 100.0
}

#[cfg(test)]
mod tests {
    use super::{Samples, Statistic, difference_percent};

    #[test]
    fn statistics_of_known_values() {
        use Statistic::{Deviation, Least, Mean, Median, Most, P99};
        let hundred: Samples = (1..=100).map(f64::from).collect();
        let found = [Median, Mean, Least, Most, P99].map(|statistic| hundred.number(statistic));
        assert_eq!(found, [50.5, 50.5, 1.0, 100.0, 99.0]);
        let few = Samples(vec![4.0, 2.0, 9.0, 5.0]);
        assert!((few.number(Deviation) - 2.943_920_288_775_949).abs() < 1e-12);
        assert_eq!((few.median(), Samples(vec![3.0]).number(Deviation)), (4.5, 0.0));
        let none = Samples::default();
        assert!([Median, Mean, Most].into_iter().all(|statistic| none.number(statistic).is_nan()));
        assert_eq!(difference_percent(200.0, 50.0), -75.0);
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
            assert_eq!(Samples(values.to_vec()).spread(), spread);
        }
    }
}
