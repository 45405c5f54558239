//! The measuring loop of every experiment. Candidates take turns at the same work in each round, so that a change of the
//! machine affects all of them; whoever is first in a round is last in the next one. Warm-ups do not count, a deadline ends
//! the loop where all candidates have equally many samples, and samples from which a hypervisor took CPU time (steal time in
//! `/proc/stat`) are taken again. Knows nothing of the work. `experiment` shows how an experiment uses it.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::case::Case;
use crate::machine::check_stop;
use crate::procfs::line_of;
use crate::statistics::{Figure, Figures, Samples};

/// A quick experiment starts nothing new after this; what runs then ends within a minute in all.
const QUICK: Duration = Duration::from_secs(30);
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

/// How often an experiment measures, for `#[command(flatten)]` in its arguments.
#[derive(Debug, Clone, Copy, Default, Args, Serialize, Deserialize)]
pub(crate) struct RoundOptions {
    /// Rounds; the number of the experiment's case (`describe`) if not given, and fewer with --quick
    #[arg(short = 'c', short_alias = 'i', long, value_name = "N")]
    #[arg(aliases = ["repeat", "iterations"], value_parser = clap::value_parser!(u16).range(1..=10_000))]
    rounds: Option<u16>,
    #[command(flatten)]
    limit: TimeLimit,
}

/// A way to do the work: a program with its options, or a closure of this process.
pub(crate) struct Candidate<'a> {
    name: String,
    is_ours: bool,
    run: Box<dyn FnMut() -> Result<Figures> + 'a>,
}

impl<'a> Candidate<'a> {
    /// One that must not fail. `run` does the work once and answers its figures.
    pub(crate) fn ours(name: impl Into<String>, run: impl FnMut() -> Result<Figures> + 'a) -> Self {
        Self { name: name.into(), is_ours: true, run: Box::new(run) }
    }

    /// One that is left out, with the reason, when it fails.
    pub(crate) fn peer(name: impl Into<String>, run: impl FnMut() -> Result<Figures> + 'a) -> Self {
        Self { is_ours: false, ..Self::ours(name, run) }
    }
}

/// The samples of a candidate.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) name: String,
    /// In the order in which the runs named them.
    pub(crate) figures: Vec<(Figure, Samples)>,
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
            match self.figures.iter_mut().find(|(other, _)| *other == figure) {
                Some((_, samples)) => samples.push(value),
                None => self.figures.push((figure, Samples::from_iter([value]))),
            }
        }
    }

    pub(crate) fn named(&self, name: &str) -> Option<&(Figure, Samples)> {
        self.figures.iter().find(|(figure, _)| figure.name == name)
    }

    pub(crate) fn get(&self, figure: Figure) -> Option<&Samples> {
        self.named(figure.name).map(|(_, samples)| samples)
    }

    /// Empty if it was not measured.
    pub(crate) fn samples(&self, figure: Figure) -> Samples {
        self.get(figure).cloned().unwrap_or_default()
    }

    /// NaN if it was not measured.
    pub(crate) fn median(&self, figure: Figure) -> f64 {
        self.get(figure).map_or(f64::NAN, Samples::median)
    }
}

pub(crate) fn find<'a>(all: &'a [Measured], name: &str) -> Option<&'a Measured> {
    all.iter().find(|one| one.name == name)
}

/// The ratio of medians of two candidates, if both have the figure.
pub(crate) fn ratio(all: &[Measured], figure: Figure, ours: &str, theirs: &str) -> Option<f64> {
    ratio_of(all, figure.name, ours, theirs)
}

/// The same by the name of the figure.
pub(crate) fn ratio_of(all: &[Measured], figure: &str, ours: &str, theirs: &str) -> Option<f64> {
    let of = |name| Some(find(all, name)?.named(figure)?.1.median());
    let ratio = of(ours)? / of(theirs)?;
    ratio.is_finite().then_some(ratio)
}

/// Who failed, and how.
type Failures = Vec<(String, String)>;

/// How often is measured, and until when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schedule {
    rounds: u16,
    warm_ups: u16,
    least_rounds: u16,
    deadline: Deadline,
}

impl Schedule {
    /// By the case of the experiment. A quick one has no warm-up, few rounds, and a limited time from now on.
    pub(crate) fn new(options: &RoundOptions, case: &Case, is_quick: bool) -> Self {
        let (rounds, deadline) = (options.rounds.unwrap_or(case.rounds), options.limit.deadline());
        let usual =
            Self { rounds, warm_ups: case.warm_ups, least_rounds: case.least_rounds, deadline };
        let quick = Self {
            rounds: rounds.min(case.quick_rounds),
            warm_ups: 0,
            least_rounds: 1,
            deadline: Deadline::after(Some(QUICK)).earlier(deadline),
        };
        if is_quick { quick } else { usual }
    }

    pub(crate) const fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// One of this many parts that are left, which share the time.
    pub(crate) fn part(self, parts: usize) -> Self {
        Self { deadline: self.deadline.share(1.0 / parts.max(1) as f64), ..self }
    }

    /// Runs all candidates in every round.
    pub(crate) fn measure(
        self,
        candidates: &mut [Candidate<'_>],
        filter: &mut StealFilter,
    ) -> Result<(Vec<Measured>, Failures)> {
        let mut failures: Vec<Option<String>> = vec![None; candidates.len()];
        let measured = |one: &Candidate<'_>| Measured::new(&one.name, Figures::new());
        let mut all: Vec<Measured> = candidates.iter().map(measured).collect();
        let count = all.len();
        let mut run = |place: usize| -> Result<Option<Figures>> {
            let (one, failure) = (&mut candidates[place], &mut failures[place]);
            if failure.is_some() {
                return Ok(None);
            }
            let figures = (one.run)();
            // The same signal may have ended it.
            check_stop()?;
            match figures {
                Err(error) if one.is_ours => Err(error).context(one.name.clone()),
                Err(error) => {
                    *failure = Some(format!("{error:#}"));
                    Ok(None)
                }
                Ok(figures) => Ok(Some(figures)),
            }
        };
        for place in rotated(self.warm_ups.into(), count) {
            run(place)?;
        }
        (filter.least, filter.kinds) = (self.least_rounds.into(), count);
        // Warm-ups took the first turns.
        let turns = (0..self.rounds).flat_map(|round| turn((round + self.warm_ups).into(), count));
        let run = |place| {
            let before = Steal::now();
            let figures = run(place)?;
            Ok((figures, Steal::now().since(before)))
        };
        for (place, figures) in filter.sample(turns, self.deadline, run)? {
            all[place].add(figures.unwrap_or_default());
        }
        let (mut found, mut failed) = (Vec::new(), Vec::new());
        for (one, failure) in all.into_iter().zip(failures) {
            match failure {
                Some(error) => failed.push((one.name, error)),
                None => found.push(one),
            }
        }
        Ok((found, failed))
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = if self.deadline.is_set() { ", fewer where time runs out" } else { "" };
        write!(f, "rounds: {} after {} warm-ups, in turn{limit}", self.rounds, self.warm_ups)
    }
}

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
fn rotated(repeat: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..repeat).flat_map(move |round| turn(round, count))
}

/// One round over `count` kinds.
fn turn(round: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |place| (round + place) % count)
}

/// Takes samples, again where steal time was high, and counts how often.
#[derive(Debug, Default)]
pub(crate) struct StealFilter {
    /// Samples of each kind that are taken, however long that takes, and the number of kinds.
    least: usize,
    kinds: usize,
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
    /// the deadline it ends where every kind has as many samples as any other. `run` answers a value and the steal time.
    fn sample<T>(
        &mut self,
        kinds: impl IntoIterator<Item = usize>,
        deadline: Deadline,
        mut run: impl FnMut(usize) -> Result<(T, StealDelta)>,
    ) -> Result<Vec<(usize, T)>> {
        let first = deadline.share(FIRST_SHARE);
        let (mut samples, mut longest) = (Vec::new(), Duration::ZERO);
        // Samples of each kind, and then how many of them may be taken again.
        let mut allowed: Vec<usize> = Vec::new();
        for kind in kinds {
            if !first.has_time_for(longest) && self.has_enough(&allowed) {
                self.left_out += 1;
                continue;
            }
            let begin = Instant::now();
            let (value, steal) = run(kind)?;
            longest = longest.max(begin.elapsed());
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

    pub(crate) const fn has_samples(&self) -> bool {
        self.samples > 0
    }

    /// Whether every kind has as many samples as any other, and enough.
    fn has_enough(&self, counts: &[usize]) -> bool {
        let is_enough = |count: &usize| *count >= self.least && Some(count) == counts.first();
        counts.len() >= self.kinds && counts.iter().all(is_enough)
    }
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
    use std::cell::RefCell;

    use anyhow::ensure;

    use super::*;
    use crate::statistics::WALL;

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
        filter.sample(kinds, Deadline::default(), |_| Ok(coming.next().unwrap())).unwrap()
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
        single.sample([0], Deadline::default(), tick).unwrap();
        assert_eq!(single.again, 0);
    }

    #[test]
    fn at_the_deadline_every_kind_has_as_many_samples() {
        let mut filter = StealFilter { least: 3, kinds: 3, ..StealFilter::default() };
        let much = |_| Ok(((), StealDelta { ticks: 9, share: 0.5 }));
        let found = filter.sample(rotated(5, 3), limited(1).share(0.0), much).unwrap();
        let of_kind = |kind| found.iter().filter(|(of, ())| *of == kind).count();
        assert_eq!((of_kind(0), of_kind(1), of_kind(2), filter.again), (3, 3, 3, 0));
        let said = filter.to_string();
        assert!(
            said.starts_with("9 samples, 6 fewer than requested, as the time was over; 0 taken"),
            "{said}"
        );
    }

    fn schedule(rounds: u16, warm_ups: u16, deadline: Deadline) -> Schedule {
        Schedule { rounds, warm_ups, least_rounds: 1, deadline }
    }

    /// Three candidates, of which only `ours` must not fail.
    fn measure(
        run: &dyn Fn(&str) -> Result<f64>,
        schedule: Schedule,
    ) -> Result<(Vec<Measured>, Failures)> {
        let mut candidates = ["a", "b", "ours"].map(|name| {
            let run = move || Ok(vec![(WALL, run(name)?)]);
            if name == "ours" { Candidate::ours(name, run) } else { Candidate::peer(name, run) }
        });
        schedule.measure(&mut candidates, &mut StealFilter::default())
    }

    #[test]
    fn the_first_of_a_round_rotates_and_warm_ups_do_not_count() {
        let turns = RefCell::new(String::new());
        let run = |name: &str| {
            turns.borrow_mut().push_str(&name[..1]);
            Ok(turns.borrow().len() as f64)
        };
        let (all, _) = measure(&run, schedule(2, 1, Deadline::default())).unwrap();
        assert_eq!(all[0].samples(WALL).values().collect::<Vec<_>>(), [6.0, 8.0]);
        assert_eq!(turns.into_inner(), "aboboaoab");
    }

    #[test]
    fn a_peer_that_fails_is_left_out_and_ours_must_not_fail() {
        let calls = RefCell::new(0);
        let run = |name: &str| {
            *calls.borrow_mut() += u32::from(name == "b");
            ensure!(name != "b", "refused");
            Ok(1.0)
        };
        let (all, failed) = measure(&run, schedule(3, 0, Deadline::default())).unwrap();
        assert_eq!((all.len(), *calls.borrow()), (2, 1));
        assert_eq!(failed, [("b".to_owned(), "refused".to_owned())]);
        let broken = |name: &str| {
            ensure!(name != "ours", "broken");
            Ok(1.0)
        };
        let error = measure(&broken, schedule(1, 0, Deadline::default())).unwrap_err();
        assert_eq!(format!("{error:#}"), "ours: broken");
    }

    #[test]
    fn a_part_has_its_share_of_the_time_and_is_measured_at_least_once() {
        for (parts, fits, not) in [(0, 99, 101), (1, 99, 101), (4, 24, 26), (100, 0, 2)] {
            let part = schedule(1000, 0, limited(100)).part(parts).deadline;
            assert!(part.has_time_for(Duration::from_secs(fits)), "{parts}");
            assert!(!part.has_time_for(Duration::from_secs(not)), "{parts}");
        }
        let over = schedule(1000, 0, limited(100).share(0.0));
        let (all, _) = measure(&|_| Ok(1.0), over).unwrap();
        assert_eq!(all.iter().map(|one| one.samples(WALL).len()).collect::<Vec<_>>(), [1, 1, 1]);
        let some = |name| find(&all, name).map(|one| one.median(WALL));
        assert_eq!((ratio(&all, WALL, "ours", "a"), some("c")), (Some(1.0), None));
    }
}
