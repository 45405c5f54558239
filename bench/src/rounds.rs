//! When samples are taken: deadlines of an experiment, and samples that are taken again because a hypervisor took CPU
//! time from them (steal time in `/proc/stat`). Knows nothing of what is measured.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::procfs::line_of;

/// A sample counts as it is while steal time is at most this share of the wanted CPU time. Counters have steps of 10 ms,
/// so less cannot be told from nothing in half a second.
const MOST_STEAL: f64 = 0.03;
/// One tick of 10 ms says of a short sample only that there was some steal time.
const MOST_TICKS: u64 = 1;
/// A run is judged by its steal time above this many ticks.
const MOST_TICKS_OF_A_RUN: u64 = 10;
/// Attempts at one sample.
const ATTEMPTS: usize = 4;
/// One in this many samples of each kind may be taken again, so that a busy host does not multiply the run time.
const AGAIN_DIVISOR: usize = 3;
/// First samples may use this share of the time; the rest is for samples that are taken again.
const FIRST_SHARE: f64 = 0.8;
/// Samples of each kind that are taken, however long that takes.
const LEAST_SAMPLES: usize = 3;

#[derive(Debug, Clone, Copy, Default, Args, Serialize, Deserialize)]
pub(crate) struct TimeLimit {
    /// Start nothing new after this many seconds; every part gets its share, and something is measured of each
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) seconds: Option<u32>,
}

impl TimeLimit {
    /// From now on.
    pub(crate) fn deadline(self) -> Deadline {
        Deadline::after(self.seconds.map(|seconds| Duration::from_secs(seconds.into())))
    }
}

/// A moment, or never.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) fn after(time: Option<Duration>) -> Self {
        Self(time.and_then(|time| Instant::now().checked_add(time)))
    }

    pub(crate) fn is_set(self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn is_over(self) -> bool {
        !self.has_time_for(Duration::ZERO)
    }

    pub(crate) fn has_time_for(self, time: Duration) -> bool {
        let then = Instant::now().checked_add(time);
        self.0.is_none_or(|end| then.is_some_and(|then| then < end))
    }

    /// After this share, of 1, of the time that is left.
    pub(crate) fn share(self, share: f64) -> Self {
        let now = Instant::now();
        Self(self.0.map(|end| now + end.saturating_duration_since(now).mul_f64(share)))
    }

    pub(crate) fn earlier(self, other: Self) -> Self {
        Self([self.0, other.0].into_iter().flatten().min())
    }
}

/// CPU ticks since the machine started: stolen by the hypervisor, and wanted, which leaves out idle ones.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Steal {
    stolen: u64,
    wanted: u64,
}

impl Steal {
    pub(crate) fn now() -> Self {
        Self::of(&line_of("/proc/stat"))
    }

    /// From the line of all CPUs: user, nice, system, idle, iowait, irq, softirq, steal.
    pub(crate) fn of(line: &str) -> Self {
        let ticks = line.split_whitespace().skip(1).take(8).map(|word| word.parse().unwrap_or(0));
        let ticks: Vec<u64> = ticks.collect();
        let idle: u64 = ticks.iter().skip(3).take(2).sum();
        let stolen = ticks.get(7).copied().unwrap_or(0);
        Self { stolen, wanted: ticks.iter().sum::<u64>() - idle }
    }

    pub(crate) fn since(self, before: Self) -> StealDelta {
        let ticks = self.stolen.saturating_sub(before.stolen);
        let wanted = self.wanted.saturating_sub(before.wanted);
        let share = if ticks == 0 { 0.0 } else { ticks as f64 / wanted.max(ticks) as f64 };
        StealDelta { ticks, share }
    }
}

/// The steal time of a sample.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StealDelta {
    ticks: u64,
    /// Of the wanted time, of 1.
    share: f64,
}

impl StealDelta {
    pub(crate) fn percent(self) -> f64 {
        self.share * 100.0
    }

    /// Whether it is above that, and more than a few ticks.
    pub(crate) fn is_beyond(self, percent: f64) -> bool {
        self.percent() > percent && self.ticks > MOST_TICKS_OF_A_RUN
    }

    fn is_much(self) -> bool {
        self.share > MOST_STEAL && self.ticks > MOST_TICKS
    }
}

/// Kinds of samples in turn: `repeat` rounds over `count` kinds, each round beginning with the next kind.
pub(crate) fn rotated(repeat: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..repeat).flat_map(move |round| (0..count).map(move |place| (round + place) % count))
}

/// Takes samples, again where steal time was high, and counts how often.
#[derive(Debug, Default)]
pub(crate) struct StealFilter {
    samples: usize,
    /// Samples that the deadline left out.
    left_out: usize,
    again: usize,
    /// The highest steal time of the samples that count.
    worst: f64,
}

struct Sample<T> {
    kind: usize,
    value: T,
    steal: StealDelta,
    attempts: usize,
}

impl StealFilter {
    /// Takes samples of several kinds in this order, and then those with most steal time again, the worst first, of each
    /// kind at most a third. Of each sample the attempt with least steal time counts. Answers kinds and values, in order. At
    /// the deadline it ends where every kind has as many samples as any other.
    pub(crate) fn sample<T>(
        &mut self,
        kinds: impl IntoIterator<Item = usize>,
        deadline: Deadline,
        mut run: impl FnMut(usize) -> Result<T>,
    ) -> Result<Vec<(usize, T)>> {
        self.sample_by(kinds, deadline, |kind| {
            let before = Steal::now();
            let value = run(kind)?;
            Ok((value, Steal::now().since(before)))
        })
    }

    /// The same where `run` answers the steal time.
    pub(crate) fn sample_by<T>(
        &mut self,
        kinds: impl IntoIterator<Item = usize>,
        deadline: Deadline,
        mut run: impl FnMut(usize) -> Result<(T, StealDelta)>,
    ) -> Result<Vec<(usize, T)>> {
        let first = deadline.share(FIRST_SHARE);
        let mut samples = Vec::new();
        // Samples of each kind, and then how many of them may be taken again.
        let mut allowed: Vec<usize> = Vec::new();
        for kind in kinds {
            if first.is_over() && is_even(&allowed) {
                self.left_out += 1;
                continue;
            }
            let (value, steal) = run(kind)?;
            samples.push(Sample { kind, value, steal, attempts: 1 });
            allowed.resize(allowed.len().max(kind + 1), 0);
            allowed[kind] += 1;
        }
        allowed.iter_mut().for_each(|count| *count = count.div_ceil(AGAIN_DIVISOR));
        loop {
            let may_again = |sample: &&mut Sample<T>| {
                sample.steal.is_much() && sample.attempts < ATTEMPTS && allowed[sample.kind] > 0
            };
            let worst = samples.iter_mut().filter(may_again);
            let worst = worst.max_by(|a, b| a.steal.share.total_cmp(&b.steal.share));
            let Some(worst) = worst.filter(|_| !deadline.is_over()) else { break };
            let (value, steal) = run(worst.kind)?;
            worst.attempts += 1;
            allowed[worst.kind] -= 1;
            self.again += 1;
            if steal.share < worst.steal.share {
                (worst.value, worst.steal) = (value, steal);
            }
        }
        self.samples += samples.len();
        self.worst = samples.iter().map(|sample| sample.steal.share).fold(self.worst, f64::max);
        Ok(samples.into_iter().map(|sample| (sample.kind, sample.value)).collect())
    }
}

/// Whether every kind has as many samples as any other, and enough.
fn is_even(counts: &[usize]) -> bool {
    let is_enough = |count: &usize| *count >= LEAST_SAMPLES && Some(count) == counts.first();
    !counts.is_empty() && counts.iter().all(is_enough)
}

impl fmt::Display for StealFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} samples", self.samples)?;
        if self.left_out > 0 {
            write!(f, ", {} fewer than requested, as the time was over", self.left_out)?;
        }
        let (most, worst) = (MOST_STEAL * 100.0, self.worst * 100.0);
        write!(f, "; {} taken again for steal time above {most:.0} %; ", self.again)?;
        write!(f, "the samples that count had {worst:.1} % at most")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Deadline, Steal, StealDelta, StealFilter, TimeLimit, rotated};

    fn limited(seconds: u32) -> Deadline {
        TimeLimit { seconds: Some(seconds) }.deadline()
    }

    #[test]
    fn a_share_is_of_the_time_that_is_left() {
        let half = limited(100).share(0.5);
        assert!(half.has_time_for(Duration::from_secs(49)));
        assert!(!half.has_time_for(Duration::from_secs(51)));
        assert!(!limited(100).is_over() && limited(100).share(0.0).is_over());
        assert!(!half.earlier(limited(200)).has_time_for(Duration::from_secs(51)));
    }

    #[test]
    fn without_the_option_there_is_no_deadline() {
        let never = TimeLimit::default().deadline();
        assert!(!never.is_over() && !never.share(0.0).is_over() && !never.is_set());
    }

    #[test]
    fn steal_time_is_a_share_of_the_wanted_time() {
        let before = Steal::of("cpu  100 0 50 9000 7 1 2 10 55 0");
        let after = Steal::of("cpu  150 10 70 9900 9 1 2 30 60 0");
        assert!((after.since(before).percent() - 20.0).abs() < 1e-9);
        assert!(after.since(after).percent().abs() < 1e-9);
        // Kernels that do not count it, and no such file.
        assert!(Steal::of("cpu  1 2 3 4").since(Steal::of("")).percent().abs() < 1e-9);
    }

    /// Samples with these steal times, numbered in order.
    fn numbered(filter: &mut StealFilter, kinds: &[usize], shares: &[f64]) -> Vec<(usize, usize)> {
        let mut coming = shares.iter().map(|&share| StealDelta { ticks: 9, share }).enumerate();
        let kinds = kinds.iter().copied();
        filter.sample_by(kinds, Deadline::default(), |_| Ok(coming.next().unwrap())).unwrap()
    }

    #[test]
    fn the_worst_samples_are_taken_again_and_the_least_disturbed_count() {
        let mut filter = StealFilter::default();
        assert_eq!(numbered(&mut filter, &[0, 1], &[0.01, 0.03]), [(0, 0), (1, 1)]);
        // Of four samples two may be taken again: the worst, and the one that is then the worst.
        let shares = [0.05, 0.2, 0.0, 0.3, 0.1, 0.02];
        let found = numbered(&mut filter, &[0; 4], &shares);
        assert_eq!(found, [(0, 0), (0, 5), (0, 2), (0, 4)]);
        let said = filter.to_string();
        assert!(
            said.starts_with("6 samples; 2 taken") && said.ends_with("10.0 % at most"),
            "{said}"
        );
    }

    #[test]
    fn every_kind_has_as_many_samples_taken_again() {
        let mut filter = StealFilter::default();
        let kinds: Vec<usize> = (0..30).map(|index| index % 2).collect();
        // Those of the first kind lose most, and take no chance from the other.
        let shares = kinds.iter().map(|kind| 0.5 - 0.2 * *kind as f64).chain([0.0; 60]);
        let found = numbered(&mut filter, &kinds, &shares.collect::<Vec<_>>());
        let again = |kind| found.iter().filter(|(of, at)| *of == kind && *at >= 30).count();
        assert_eq!((again(0), again(1), filter.again), (5, 5, 10));
        // And none is tried for ever.
        let mut busy = StealFilter::default();
        numbered(&mut busy, &[0; 30], &[0.5; 60]);
        assert_eq!(busy.again, 10);
        let mut single = StealFilter::default();
        let tick = |_| Ok(((), StealDelta { ticks: 1, share: 0.5 }));
        single.sample_by([0], Deadline::default(), tick).unwrap();
        assert_eq!(single.again, 0);
    }

    #[test]
    fn at_the_deadline_every_kind_has_as_many_samples() {
        let mut filter = StealFilter::default();
        let much = |_| Ok(((), StealDelta { ticks: 9, share: 0.5 }));
        let found = filter.sample_by(rotated(5, 3), limited(1).share(0.0), much).unwrap();
        let of_kind = |kind| found.iter().filter(|(of, ())| *of == kind).count();
        assert_eq!((of_kind(0), of_kind(1), of_kind(2), filter.again), (3, 3, 3, 0));
        let said = filter.to_string();
        assert!(
            said.starts_with("9 samples, 6 fewer than requested, as the time was over; 0 taken"),
            "{said}"
        );
    }
}
