//! What the host of a virtual machine took: time in which a CPU had something to run and did not run, as `/proc/stat`
//! counts it. A sample that lost much of it measures the neighbours; those that lost most are taken
//! again at the end, and that they were says the report.
//! On a machine that is nobody's guest nothing is ever taken.

use std::fmt;

use anyhow::Result;

use crate::machine::line_of;

/// A sample counts as it is while the host took no more than this part of the time that was wanted. The counters have
/// steps of 10 ms, so less could not be told from nothing in a sample of half a second.
const MOST: f64 = 0.03;
/// How often a sample is taken at most.
const ATTEMPTS: usize = 4;
/// Beyond so many, a third of all may be taken again, so that a busy host does not multiply the time of a run.
const AGAIN_FREE: usize = 3;

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
    fn of(line: &str) -> Self {
        let ticks = line.split_whitespace().skip(1).take(8).map(|word| word.parse().unwrap_or(0));
        let ticks: Vec<u64> = ticks.collect();
        let idle: u64 = ticks.iter().skip(3).take(2).sum();
        let taken = ticks.get(7).copied().unwrap_or(0);
        Self { taken, wanted: ticks.iter().sum::<u64>() - idle }
    }

    /// The part of the time wanted since then that the host took, of 1.
    pub(crate) fn share_since(self, before: Self) -> f64 {
        let taken = self.taken.saturating_sub(before.taken);
        let wanted = self.wanted.saturating_sub(before.wanted);
        if taken == 0 { 0.0 } else { taken as f64 / wanted.max(taken) as f64 }
    }
}

/// Takes samples, again where the host took too much; it counts how often.
#[derive(Debug, Default)]
pub(crate) struct Undisturbed {
    samples: usize,
    again: usize,
    /// Of the samples that count.
    worst: f64,
}

/// One of several things, measured once, or again.
struct Sample<T> {
    turn: usize,
    found: T,
    /// What the host took, of 1.
    share: f64,
    attempts: usize,
}

impl Undisturbed {
    /// Measures several things in the order of `turns`, and then those once more that lost most, the worst first: of
    /// each the attempt counts that lost least. What was found stands with its turn, in that order.
    ///
    /// # Errors
    /// What `run` fails with.
    pub(crate) fn in_turn<T>(
        &mut self,
        turns: impl IntoIterator<Item = usize>,
        mut run: impl FnMut(usize) -> Result<T>,
    ) -> Result<Vec<(usize, T)>> {
        self.in_turn_by(turns, |turn| {
            let before = Steal::now();
            let found = run(turn)?;
            Ok((found, Steal::now().share_since(before)))
        })
    }

    /// The same where `run` says itself what part of the time was taken, of 1.
    ///
    /// # Errors
    /// What `run` fails with.
    pub(crate) fn in_turn_by<T>(
        &mut self,
        turns: impl IntoIterator<Item = usize>,
        mut run: impl FnMut(usize) -> Result<(T, f64)>,
    ) -> Result<Vec<(usize, T)>> {
        let mut samples = Vec::new();
        for turn in turns {
            let (found, share) = run(turn)?;
            samples.push(Sample { turn, found, share, attempts: 1 });
        }
        let disturbed = |sample: &&mut Sample<T>| sample.share > MOST && sample.attempts < ATTEMPTS;
        for _ in 0..AGAIN_FREE + samples.len() / 3 {
            let worst = samples.iter_mut().filter(disturbed);
            let Some(worst) = worst.max_by(|a, b| a.share.total_cmp(&b.share)) else { break };
            let (found, share) = run(worst.turn)?;
            worst.attempts += 1;
            self.again += 1;
            if share < worst.share {
                (worst.found, worst.share) = (found, share);
            }
        }
        self.samples += samples.len();
        self.worst = samples.iter().map(|sample| sample.share).fold(self.worst, f64::max);
        Ok(samples.into_iter().map(|sample| (sample.turn, sample.found)).collect())
    }
}

impl fmt::Display for Undisturbed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (most, worst) = (MOST * 100.0, self.worst * 100.0);
        write!(
            f,
            "{} samples; {} more were taken instead of some in which the host took over {most:.0} % of the CPUs' time; \
             of those that count it took {worst:.1} % at most",
            self.samples, self.again
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{Steal, Undisturbed};

    #[test]
    fn what_was_taken_is_a_part_of_what_was_wanted() {
        let before = Steal::of("cpu  100 0 50 9000 7 1 2 10 55 0");
        let after = Steal::of("cpu  150 10 70 9900 9 1 2 30 60 0");
        assert!((after.share_since(before) - 0.2).abs() < 1e-9);
        assert!(after.share_since(after).abs() < 1e-9);
        // Kernels that do not count it, and no such file.
        assert!(Steal::of("cpu  1 2 3 4").share_since(Steal::of("")).abs() < 1e-9);
    }

    /// Samples in which the host took such parts, numbered as they come.
    fn numbered(
        undisturbed: &mut Undisturbed,
        turns: usize,
        shares: &[f64],
    ) -> Vec<(usize, usize)> {
        let mut coming = shares.iter().copied().enumerate();
        undisturbed.in_turn_by(0..turns, |_| Ok(coming.next().unwrap())).unwrap()
    }

    #[test]
    fn the_worst_samples_are_taken_again_and_the_least_disturbed_count() {
        let mut undisturbed = Undisturbed::default();
        assert_eq!(numbered(&mut undisturbed, 2, &[0.01, 0.03]), [(0, 0), (1, 1)]);
        let found = numbered(&mut undisturbed, 3, &[0.05, 0.2, 0.0, 0.3, 0.1, 0.02, 0.04]);
        // The second twice in vain or nearly so, then well; the first with what is left.
        assert_eq!(found, [(0, 6), (1, 5), (2, 2)]);
        let said = undisturbed.to_string();
        assert!(said.starts_with("5 samples; 4 more") && said.ends_with("4.0 % at most"), "{said}");
    }

    #[test]
    fn a_busy_host_does_not_multiply_the_time_of_a_run() {
        let mut undisturbed = Undisturbed::default();
        assert_eq!(numbered(&mut undisturbed, 30, &[0.5; 60]).len(), 30);
        assert_eq!(undisturbed.again, 13);
        // And none is tried for ever.
        let mut undisturbed = Undisturbed::default();
        numbered(&mut undisturbed, 1, &[0.5; 60]);
        assert_eq!(undisturbed.again, 3);
    }
}
