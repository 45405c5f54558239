//! What the host of a virtual machine took: time in which a CPU had something to run and did not run, as `/proc/stat`
//! counts it. A sample that lost much of it measures the neighbours, and is taken again; that it was says the report.
//! On a machine that is nobody's guest nothing is ever taken.

use std::fmt;

use anyhow::Result;

use crate::machine::line_of;

/// A sample counts as it is while the host took no more than this part of the time that was wanted. The counters have
/// steps of 10 ms, so less could not be told from nothing in a sample of half a second.
const MOST: f64 = 0.03;
/// How often a sample is taken at most; then the one that lost least counts.
const ATTEMPTS: usize = 4;
/// Beyond so many, one sample in three may be taken again, so that a busy host does not multiply the time of a run.
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

impl Undisturbed {
    /// One sample: the first that lost next to nothing, or of some the one that lost least.
    ///
    /// # Errors
    /// What `run` fails with.
    pub(crate) fn sample<T>(&mut self, mut run: impl FnMut() -> Result<T>) -> Result<T> {
        self.sample_by(|| {
            let before = Steal::now();
            let found = run()?;
            Ok((found, Steal::now().share_since(before)))
        })
    }

    /// The same of something that says itself what part of the time was taken.
    ///
    /// # Errors
    /// What `run` fails with.
    pub(crate) fn sample_by<T>(&mut self, mut run: impl FnMut() -> Result<(T, f64)>) -> Result<T> {
        self.samples += 1;
        let (mut best, mut least) = run()?;
        for _ in 1..ATTEMPTS {
            if least <= MOST || self.again >= AGAIN_FREE + self.samples / 3 {
                break;
            }
            self.again += 1;
            let (found, share) = run()?;
            if share < least {
                (best, least) = (found, share);
            }
        }
        self.worst = self.worst.max(least);
        Ok(best)
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

    #[test]
    fn a_disturbed_sample_is_taken_again_and_the_least_disturbed_counts() {
        let mut undisturbed = Undisturbed::default();
        let mut from = |samples: &[(u32, f64)]| {
            let mut samples = samples.iter().copied();
            undisturbed.sample_by(|| Ok(samples.next().unwrap())).unwrap()
        };
        assert_eq!(from(&[(1, 0.01)]), 1);
        assert_eq!(from(&[(1, 0.2), (2, 0.0)]), 2);
        assert_eq!(from(&[(1, 0.2), (2, 0.3), (3, 0.1), (4, 0.4)]), 3);
        let said = undisturbed.to_string();
        assert!(
            said.starts_with("3 samples; 4 more") && said.ends_with("10.0 % at most"),
            "{said}"
        );
        let mut busy = Undisturbed::default();
        for _ in 0..30 {
            busy.sample_by(|| Ok(((), 0.5))).unwrap();
        }
        assert!((10..=13).contains(&busy.again), "{busy}");
    }
}
