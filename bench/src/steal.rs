//! What the host of a virtual machine took: time in which a CPU had something to run and did not run, as `/proc/stat`
//! counts it. A sample that lost much of it measures the neighbours; those that lost most are taken
//! again at the end, and that they were says the report.
//! On a machine that is nobody's guest nothing is ever taken.

use std::fmt;

use anyhow::Result;

use crate::deadline::Deadline;
use crate::machine::line_of;

/// A sample counts as it is while the host took no more than this part of the time that was wanted. The counters have
/// steps of 10 ms, so less could not be told from nothing in a sample of half a second.
const MOST: f64 = 0.03;
/// And no more than one tick of 10 ms, which says of a short sample no more than that there was some.
const TICKS_MOST: u64 = 1;
/// A run is judged by its loss if that is more than so many, 0.1 s.
const TICKS_OF_A_RUN: u64 = 10;
/// How often a sample is taken at most.
const ATTEMPTS: usize = 4;
/// One in so many samples of a thing may be taken again, rounded up, so that a busy host does not multiply the time of
/// a run.
const AGAIN_PART: usize = 3;
/// Of the time that there is, what first samples may take; the rest is for those that are taken again.
const FIRST_SHARE: f64 = 0.8;
/// Samples of each thing that are taken, no matter how long that takes.
const LEAST_SAMPLES: usize = 3;

/// Ticks of all CPUs since the machine began: taken by the host, and wanted altogether, which leaves idle ones out.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Steal {
    taken: u64,
    wanted: u64,
}

impl Steal {
    /// Looks.
    pub(crate) fn now() -> Self {
        Self::of(&line_of("/proc/stat"))
    }

    /// Of the line for all CPUs: user, nice, system, idle, iowait, irq, softirq, steal; what follows is in the first
    /// two as well.
    pub(crate) fn of(line: &str) -> Self {
        let ticks = line.split_whitespace().skip(1).take(8).map(|word| word.parse().unwrap_or(0));
        let ticks: Vec<u64> = ticks.collect();
        let idle: u64 = ticks.iter().skip(3).take(2).sum();
        let taken = ticks.get(7).copied().unwrap_or(0);
        Self { taken, wanted: ticks.iter().sum::<u64>() - idle }
    }

    /// What the host took since then.
    pub(crate) fn since(self, before: Self) -> Loss {
        let ticks = self.taken.saturating_sub(before.taken);
        let wanted = self.wanted.saturating_sub(before.wanted);
        let share = if ticks == 0 { 0.0 } else { ticks as f64 / wanted.max(ticks) as f64 };
        Loss { ticks, share }
    }
}

/// What the host took of a sample.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Loss {
    ticks: u64,
    /// Of the time that was wanted, of 1.
    share: f64,
}

impl Loss {
    /// Of the time that was wanted, in percent.
    pub(crate) fn percent(self) -> f64 {
        self.share * 100.0
    }

    /// Whether it is more than that, by more than a few ticks.
    pub(crate) fn is_beyond(self, percent: f64) -> bool {
        self.percent() > percent && self.ticks > TICKS_OF_A_RUN
    }

    fn is_much(self) -> bool {
        self.share > MOST && self.ticks > TICKS_MOST
    }
}

/// Takes samples, again where the host took too much; it counts how often.
#[derive(Debug, Default)]
pub(crate) struct Undisturbed {
    samples: usize,
    /// Samples that were asked for and that there was no time for.
    left_out: usize,
    again: usize,
    /// Of the samples that count.
    worst: f64,
}

/// One of several things, measured once, or again.
struct Sample<T> {
    turn: usize,
    found: T,
    loss: Loss,
    attempts: usize,
}

impl Undisturbed {
    /// Measures several things in the order of `turns`, and then those once more that lost most, the worst first, of
    /// each thing no more than a third of its samples: that of a short one is not spared what that of a long one is
    /// not. Of each sample the attempt counts that lost least. What was found stands with its turn, in that order. When
    /// the time is over it ends behind a turn that leaves every thing with as many samples as any other.
    ///
    /// # Errors
    /// What `run` fails with.
    pub(crate) fn in_turn<T>(
        &mut self,
        turns: impl IntoIterator<Item = usize>,
        deadline: Deadline,
        mut run: impl FnMut(usize) -> Result<T>,
    ) -> Result<Vec<(usize, T)>> {
        self.in_turn_by(turns, deadline, |turn| {
            let before = Steal::now();
            let found = run(turn)?;
            Ok((found, Steal::now().since(before)))
        })
    }

    /// The same where `run` says itself what the host took.
    ///
    /// # Errors
    /// What `run` fails with.
    pub(crate) fn in_turn_by<T>(
        &mut self,
        turns: impl IntoIterator<Item = usize>,
        deadline: Deadline,
        mut run: impl FnMut(usize) -> Result<(T, Loss)>,
    ) -> Result<Vec<(usize, T)>> {
        let first = deadline.share(FIRST_SHARE);
        let mut samples = Vec::new();
        // How many samples of each thing there are, and how many more may be taken.
        let mut allowed: Vec<usize> = Vec::new();
        for turn in turns {
            if first.is_over() && is_even(&allowed) {
                self.left_out += 1;
                continue;
            }
            let (found, loss) = run(turn)?;
            samples.push(Sample { turn, found, loss, attempts: 1 });
            allowed.resize(allowed.len().max(turn + 1), 0);
            allowed[turn] += 1;
        }
        allowed.iter_mut().for_each(|count| *count = count.div_ceil(AGAIN_PART));
        loop {
            let may_again = |sample: &&mut Sample<T>| {
                sample.loss.is_much() && sample.attempts < ATTEMPTS && allowed[sample.turn] > 0
            };
            let worst = samples.iter_mut().filter(may_again);
            let worst = worst.max_by(|a, b| a.loss.share.total_cmp(&b.loss.share));
            let Some(worst) = worst.filter(|_| !deadline.is_over()) else { break };
            let (found, loss) = run(worst.turn)?;
            worst.attempts += 1;
            allowed[worst.turn] -= 1;
            self.again += 1;
            if loss.share < worst.loss.share {
                (worst.found, worst.loss) = (found, loss);
            }
        }
        self.samples += samples.len();
        self.worst = samples.iter().map(|sample| sample.loss.share).fold(self.worst, f64::max);
        Ok(samples.into_iter().map(|sample| (sample.turn, sample.found)).collect())
    }
}

/// Whether every thing has as many samples as any other, and enough.
fn is_even(counts: &[usize]) -> bool {
    counts.iter().all(|count| *count >= LEAST_SAMPLES && Some(count) == counts.first())
        && !counts.is_empty()
}

impl fmt::Display for Undisturbed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (most, worst) = (MOST * 100.0, self.worst * 100.0);
        write!(f, "{} samples", self.samples)?;
        if self.left_out > 0 {
            write!(f, ", {} fewer than asked for, as the time was over", self.left_out)?;
        }
        write!(
            f,
            "; {} more were taken instead of some in which the host took over {most:.0} % of the CPUs' time; \
             of those that count it took {worst:.1} % at most",
            self.again
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{Loss, Steal, Undisturbed};
    use crate::deadline::{Deadline, TimeLimit};

    #[test]
    fn what_was_taken_is_a_part_of_what_was_wanted() {
        let before = Steal::of("cpu  100 0 50 9000 7 1 2 10 55 0");
        let after = Steal::of("cpu  150 10 70 9900 9 1 2 30 60 0");
        assert!((after.since(before).percent() - 20.0).abs() < 1e-9);
        assert!(after.since(after).percent().abs() < 1e-9);
        // Kernels that do not count it, and no such file.
        assert!(Steal::of("cpu  1 2 3 4").since(Steal::of("")).percent().abs() < 1e-9);
    }

    /// Samples in which the host took such parts, numbered as they come.
    fn numbered(
        undisturbed: &mut Undisturbed,
        turns: &[usize],
        shares: &[f64],
    ) -> Vec<(usize, usize)> {
        let mut coming = shares.iter().map(|&share| Loss { ticks: 9, share }).enumerate();
        let turns = turns.iter().copied();
        let never = Deadline::default();
        undisturbed.in_turn_by(turns, never, |_| Ok(coming.next().unwrap())).unwrap()
    }

    #[test]
    fn the_worst_samples_are_taken_again_and_the_least_disturbed_count() {
        let mut undisturbed = Undisturbed::default();
        assert_eq!(numbered(&mut undisturbed, &[0, 1], &[0.01, 0.03]), [(0, 0), (1, 1)]);
        // Of four samples two may be taken again: the worst, and what is then the worst.
        let shares = [0.05, 0.2, 0.0, 0.3, 0.1, 0.02];
        let found = numbered(&mut undisturbed, &[0; 4], &shares);
        assert_eq!(found, [(0, 0), (0, 5), (0, 2), (0, 4)]);
        let said = undisturbed.to_string();
        assert!(
            said.starts_with("6 samples; 2 more") && said.ends_with("10.0 % at most"),
            "{said}"
        );
    }

    #[test]
    fn every_thing_has_as_many_samples_taken_again() {
        let mut undisturbed = Undisturbed::default();
        let turns: Vec<usize> = (0..30).map(|turn| turn % 2).collect();
        // Those of the first thing lose most, and take no chance from the other.
        let shares: Vec<f64> = turns.iter().map(|turn| 0.5 - 0.2 * *turn as f64).collect();
        let shares: Vec<f64> = shares.into_iter().chain([0.0; 60]).collect();
        let found = numbered(&mut undisturbed, &turns, &shares);
        let again = |thing| found.iter().filter(|(turn, at)| *turn == thing && *at >= 30).count();
        assert_eq!((again(0), again(1), undisturbed.again), (5, 5, 10));
        // And none is tried for ever.
        let mut busy = Undisturbed::default();
        numbered(&mut busy, &[0; 30], &[0.5; 60]);
        assert_eq!(busy.again, 10);
    }

    #[test]
    fn a_single_tick_is_no_reason() {
        let mut undisturbed = Undisturbed::default();
        let single = |_| Ok(((), Loss { ticks: 1, share: 0.5 }));
        undisturbed.in_turn_by([0], Deadline::default(), single).unwrap();
        assert_eq!(undisturbed.again, 0);
    }

    #[test]
    fn when_the_time_is_over_every_thing_has_as_many_samples() {
        let over = TimeLimit::of_seconds(1).deadline().share(0.0);
        let mut undisturbed = Undisturbed::default();
        // Five rounds, of which each begins with another thing.
        let turns = (0..5).flat_map(|round| (0..3).map(move |place| (round + place) % 3));
        let much = |_| Ok(((), Loss { ticks: 9, share: 0.5 }));
        let found = undisturbed.in_turn_by(turns, over, much).unwrap();
        let of_thing = |thing| found.iter().filter(|(turn, ())| *turn == thing).count();
        assert_eq!((of_thing(0), of_thing(1), of_thing(2), undisturbed.again), (3, 3, 3, 0));
        let said = undisturbed.to_string();
        assert!(
            said.starts_with("9 samples, 6 fewer than asked for, as the time was over; 0 more"),
            "{said}"
        );
    }
}
