//! Where an axis begins and ends, and which of its values are named: round ones.

/// Names on a linear axis, about.
const TICKS: f64 = 6.0;
/// The value up to which a logarithmic axis names powers of two, as one of threads does.
const POWERS_OF_TWO_MAX: f64 = 1024.0;

/// An axis.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Axis {
    pub(super) is_log: bool,
    pub(super) from: f64,
    pub(super) to: f64,
    /// The values that are named.
    pub(super) ticks: Vec<f64>,
}

impl Axis {
    /// An axis for such values; one that is not logarithmic starts at zero unless some are below.
    pub(super) fn of(values: impl Iterator<Item = f64> + Clone, is_log: bool) -> Self {
        let usable = values.filter(|value| value.is_finite() && !(is_log && *value <= 0.0));
        let least = usable.clone().fold(f64::INFINITY, f64::min);
        let most = usable.fold(f64::NEG_INFINITY, f64::max);
        match (is_log, least <= most) {
            (true, true) => Self::logarithmic(least, most),
            (true, false) => Self::logarithmic(1.0, 10.0),
            (false, true) => Self::linear(least.min(0.0), most.max(0.0)),
            (false, false) => Self::linear(0.0, 1.0),
        }
    }

    fn linear(least: f64, most: f64) -> Self {
        let span = if most > least { most - least } else { 1.0 };
        let raw = span / TICKS;
        let magnitude = 10.0_f64.powf(raw.log10().floor());
        let factor = [1.0, 2.0, 2.5, 5.0].into_iter().find(|factor| factor * magnitude >= raw);
        let step = magnitude * factor.unwrap_or(10.0);
        let (first, last) = ((least / step).floor(), (least + span) / step);
        let ticks: Vec<f64> = steps(first).take_while(|tick| *tick < last + 1.0).collect();
        let ticks: Vec<f64> = ticks.into_iter().map(|tick| tick * step).collect();
        let to = ticks.last().copied().unwrap_or(1.0);
        Self { is_log: false, from: first * step, to, ticks }
    }

    fn logarithmic(least: f64, most: f64) -> Self {
        let base: f64 = if most <= POWERS_OF_TWO_MAX && least >= 1.0 { 2.0 } else { 10.0 };
        // What rounding adds to a power must not cost a whole step.
        let first = (least.ln() / base.ln() + 1e-9).floor();
        let last = (most.ln() / base.ln() - 1e-9).ceil().max(first + 1.0);
        let powers = steps(first).take_while(|power| *power <= last + 0.5);
        let ticks: Vec<f64> = powers.map(|power| base.powf(power)).collect();
        Self { is_log: true, from: base.powf(first), to: base.powf(last), ticks }
    }

    /// Whether the axis has a place for the value.
    pub(super) fn has(&self, value: f64) -> bool {
        value.is_finite() && !(self.is_log && value <= 0.0)
    }

    /// How far along the axis a value lies, from 0 to 1.
    pub(super) fn share(&self, value: f64) -> f64 {
        if self.is_log {
            (value / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        }
    }
}

fn steps(first: f64) -> impl Iterator<Item = f64> {
    std::iter::successors(Some(first), |step| Some(step + 1.0))
}

/// A number with as many digits as it needs, and no more than three that count.
pub(super) fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let magnitude = value.abs().log10().floor();
    if magnitude >= 6.0 {
        return format!("{}M", number(value / 1e6));
    }
    if magnitude >= 4.0 {
        return format!("{}k", number(value / 1e3));
    }
    let digits = (0..6_u32).find(|digits| f64::from(*digits) >= 2.0 - magnitude).unwrap_or(6);
    let text = format!("{value:.*}", digits as usize);
    if digits == 0 {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::{Axis, number};

    fn axis(values: &[f64], is_log: bool) -> Axis {
        Axis::of(values.iter().copied(), is_log)
    }

    #[test]
    fn a_linear_axis_starts_at_zero_and_ends_round_behind_the_last() {
        let axis = axis(&[3.0, 47.0], false);
        assert_eq!((axis.from, axis.to), (0.0, 50.0));
        assert_eq!(axis.ticks, [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]);
        assert_eq!(axis.share(25.0), 0.5);
    }

    #[test]
    fn values_below_zero_have_a_place() {
        let axis = axis(&[-30.0, 60.0], false);
        assert!(axis.from <= -30.0 && axis.to >= 60.0 && axis.ticks.contains(&0.0), "{axis:?}");
    }

    #[test]
    fn threads_are_named_by_powers_of_two_and_times_by_powers_of_ten() {
        assert_eq!(axis(&[1.0, 64.0], true).ticks, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]);
        let times = axis(&[0.3, 40_000.0], true);
        assert_eq!((times.from, times.ticks.len()), (0.1, 7));
        assert!((times.to - 100_000.0).abs() < 1e-6);
        assert_eq!(axis(&[1.0, 64.0], true).share(8.0), 0.5);
        assert_eq!(axis(&[130.0, 9_000.0], true).ticks.len(), 3);
    }

    #[test]
    fn what_has_no_place_is_known() {
        let log = axis(&[0.0, -1.0, f64::NAN], true);
        assert!(!log.has(0.0) && !log.has(f64::NAN) && log.has(3.0));
        assert!(axis(&[], false).has(0.0));
    }

    #[test]
    fn numbers_are_short() {
        let texts = [0.0, 0.25, 1.0, 1.256, 12.34, 1234.5, -80.0, 10_000.0, 123_456.0].map(number);
        assert_eq!(texts, ["0", "0.25", "1", "1.26", "12.3", "1234", "-80", "10k", "123k"]);
        assert_eq!(number(2_500_000.0), "2.5M");
    }
}
