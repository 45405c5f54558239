//! The frame of every experiment: arguments that know their requirements and how to measure. `main` checks the
//! requirements, runs the experiment, and prints and writes its report. An experiment names its candidates and figures; its
//! case (`cases/*.toml`) has the tables with their columns and plots, and most thresholds:
//!
//! ```ignore
//! fn run(&self, context: &mut Context<'_>) -> Result<()> {
//!     context.plan(self.rounds, self.threads.len()); // RoundOptions, and the number of `measure` calls
//!     for threads in &self.threads {
//!         let candidates = vec![
//!             Candidate::ours("ours", || pass(threads)), // answers Figures: vec![("wall", 1.5), ("rate", 0.7)]
//!             Candidate::of("qemu", "original", || other(threads)),
//!         ];
//!         // Measures, adds a row for each candidate to the table "rates", and has thresholds of the case evaluate it.
//!         let all = context.compare(["rates", "", &format!("{threads} threads")], &[], candidates)?;
//!         context.report.evaluate("special", &case, own_rule(&all)); // where a threshold needs a rule of its own
//!     }
//!     Ok(()) // each threshold of the case becomes a claim by its worst figure
//! }
//! ```
//!
//! The loop of all experiments is here, too. Candidates take turns at the same work in each round, so that a change of the
//! machine affects all of them; whoever is first in a round is last in the next one. Warm-ups do not count, a deadline ends
//! the loop after a round, and samples from which a hypervisor took CPU time are taken again.

use std::fmt::{self, Debug, Display};
use std::io::{self, Write};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use clap::builder::RangedI64ValueParser;

use crate::case::Case;
use crate::machine::{Requirement, Steal, StealDelta, check_stop};
use crate::report::Report;
use crate::statistics::{Figures, Measured};

/// Our own program.
pub(crate) const OURS: &str = "ferrofs";
/// A quick experiment starts nothing new after this; what runs then ends within a minute in all.
const QUICK: Duration = Duration::from_secs(30);
/// A sample counts as it is while steal time is at most this share of the wanted CPU time. Counters have steps of 10 ms,
/// so less cannot be told from nothing in half a second.
const MOST_STEAL: f64 = 0.03;
/// One tick of 10 ms says of a short sample only that there was some steal time.
const MOST_TICKS: u64 = 1;
/// Attempts at one sample.
const ATTEMPTS: usize = 4;
/// One in this many samples of each candidate may be taken again, so that a busy host does not multiply the run time.
const AGAIN_DIVISOR: usize = 3;
/// Longer than any experiment.
const FOREVER: Duration = Duration::from_secs(1 << 31);
/// First samples may use this share of the time; the rest is for samples that are taken again.
const FIRST_SHARE: f64 = 0.8;

pub(crate) trait Experiment: Debug {
    /// What must be there before it starts, beside what its case requires.
    fn requirements(&self) -> Vec<Requirement> {
        Vec::new()
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()>;
}

/// A number of the command line, from 1 to `most`.
pub(crate) fn up_to(most: u16) -> RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=most.into())
}

/// Writes to standard output, where it is no failure that the reader is gone, as in `describe | head`.
pub(crate) fn print(out: &mut dyn Write, text: impl Display) -> io::Result<()> {
    match write!(out, "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// What an experiment gets and fills.
pub(crate) struct Context<'a> {
    pub(crate) report: Report,
    /// Fewer and smaller runs.
    pub(crate) is_quick: bool,
    out: &'a mut dyn Write,
    /// Set by `plan`.
    pub(crate) schedule: Schedule,
    /// Calls of `measure` that are left, which share the time.
    parts: usize,
    filter: StealFilter,
}

impl<'a> Context<'a> {
    pub(crate) fn new(report: Report, is_quick: bool, out: &'a mut dyn Write) -> Self {
        let schedule = Schedule::new(RoundOptions::default(), &report.case, is_quick);
        Self { report, is_quick, out, schedule, parts: 1, filter: StealFilter::default() }
    }

    pub(crate) fn say(&mut self, line: impl Display) -> Result<()> {
        Ok(print(self.out, format_args!("{line}\n"))?)
    }

    /// Says how often is measured. The time from now on is shared by this many calls of `measure`.
    pub(crate) fn plan(&mut self, options: RoundOptions, parts: usize) {
        self.schedule = Schedule::new(options, &self.report.case, self.is_quick);
        self.parts = parts;
        let Schedule { rounds, warm_ups, deadline, .. } = self.schedule;
        let limit = if deadline.is_some() { ", fewer where time runs out" } else { "" };
        let remark = format!("rounds: {rounds} after {warm_ups} warm-ups, in turn{limit}");
        self.report.remark(remark);
    }

    /// Measures the candidates in turn, in the rounds of the schedule. Peers that fail are left out, with the reason. Empty
    /// if there is no time left.
    pub(crate) fn measure(
        &mut self,
        case: &str,
        candidates: Vec<Candidate<'_>>,
    ) -> Result<Vec<Measured>> {
        // The parts that are left share the time.
        let part = self.schedule.share(1.0 / self.parts.max(1) as f64);
        self.parts = self.parts.saturating_sub(1);
        if self.schedule.left().is_zero() {
            self.report.leave_out(case, "there was no time left for it");
            return Ok(Vec::new());
        }
        self.say(case)?;
        let mut all = Vec::new();
        for (one, failure) in part.measure(candidates, &mut self.filter)? {
            match failure {
                None => all.push(one),
                Some(error) => self.report.leave_out(format!("{} in {case}", one.name), error),
            }
        }
        Ok(all)
    }

    /// The same, with rows in a table, and judged by thresholds, which know the case by one of these names, too.
    pub(crate) fn compare(
        &mut self,
        [table, title, case]: [&str; 3],
        names: &[&str],
        candidates: Vec<Candidate<'_>>,
    ) -> Result<Vec<Measured>> {
        let all = self.measure(case, candidates)?;
        self.report.add(table, title, case, &all)?;
        self.report.evaluate_all(case, &[names, &[case]].concat(), &all);
        Ok(all)
    }

    pub(crate) fn finish(mut self) -> Result<Report> {
        if self.filter.samples > 0 {
            self.report.remark(self.filter.to_string());
        }
        self.report.finish()?;
        Ok(self.report)
    }
}

/// How often an experiment measures, for `#[command(flatten)]` in its arguments.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct RoundOptions {
    /// Number of rounds; in each round, everything that is compared is measured once [default:
    /// fixed for each experiment, smaller with --quick; the report states it]
    #[arg(short = 'c', short_alias = 'i', long, value_name = "N", alias = "iterations")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=10_000))]
    rounds: Option<u16>,
    /// Begin no further measurement after this number of seconds. All parts of the experiment share this time; a part
    /// that gets none of it is left out. With --quick, at most 30 seconds [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: Option<u32>,
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

    /// One that runs this program, ours or a peer. A peer that fails is left out, with the reason.
    pub(crate) fn of(
        program: &str,
        name: impl Into<String>,
        run: impl FnMut() -> Result<Figures> + 'a,
    ) -> Self {
        Self { is_ours: program == OURS, ..Self::ours(name, run) }
    }
}

/// How often is measured, and until when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schedule {
    pub(crate) rounds: u16,
    warm_ups: u16,
    pub(crate) least_rounds: u16,
    /// None without a limit.
    deadline: Option<Instant>,
}

impl Schedule {
    /// By the case of the experiment. A quick one has no warm-up, few rounds, and a limited time from now on.
    fn new(options: RoundOptions, case: &Case, is_quick: bool) -> Self {
        let rounds = options.rounds.unwrap_or(case.rounds);
        let (warm_ups, least_rounds) = (case.warm_ups, case.least_rounds);
        let seconds = options.seconds.map(|seconds| Duration::from_secs(seconds.into()));
        let after = |time| Some(Instant::now() + time);
        if is_quick {
            let deadline = after(seconds.unwrap_or(QUICK).min(QUICK));
            let rounds = rounds.min(case.quick_rounds);
            return Self { rounds, warm_ups: 0, least_rounds: 1, deadline };
        }
        Self { rounds, warm_ups, least_rounds, deadline: seconds.and_then(after) }
    }

    pub(crate) fn left(self) -> Duration {
        self.deadline.map_or(FOREVER, |end| end.saturating_duration_since(Instant::now()))
    }

    /// With this share, of 1, of the time that is left.
    fn share(self, share: f64) -> Self {
        let deadline = self.deadline.map(|_| Instant::now() + self.left().mul_f64(share));
        Self { deadline, ..self }
    }

    /// Runs all candidates in every round. Answers why a peer failed, too.
    fn measure(
        self,
        mut candidates: Vec<Candidate<'_>>,
        filter: &mut StealFilter,
    ) -> Result<Vec<(Measured, Option<String>)>> {
        let count = candidates.len();
        let measured = |one: &Candidate<'_>| Measured::new(&one.name, Figures::new());
        let mut all: Vec<(Measured, Option<String>)> =
            candidates.iter().map(|one| (measured(one), None)).collect();
        let samples = self.sample(count, filter, |place| {
            let (one, failure) = (&mut candidates[place], &mut all[place].1);
            let before = Steal::now();
            let figures = if failure.is_some() { Ok(Figures::new()) } else { (one.run)() };
            // The same signal may have ended it.
            check_stop()?;
            let figures = match figures {
                Err(error) if one.is_ours => return Err(error).context(one.name.clone()),
                Err(error) => {
                    *failure = Some(format!("{error:#}"));
                    Figures::new()
                }
                Ok(figures) => figures,
            };
            Ok((figures, Steal::now().since(before)))
        })?;
        samples.into_iter().for_each(|(place, figures)| all[place].0.add(figures));
        Ok(all)
    }

    /// Takes a sample of each candidate in each round, and then those with most steal time again, the worst first, of each
    /// candidate at most a third. Of each sample the attempt with least steal time counts. `run` answers a value and the
    /// steal time.
    fn sample<T>(
        self,
        count: usize,
        filter: &mut StealFilter,
        mut run: impl FnMut(usize) -> Result<(T, StealDelta)>,
    ) -> Result<Vec<(usize, T)>> {
        let first = self.share(FIRST_SHARE);
        let (mut samples, mut longest, mut rounds) = (Vec::new(), Duration::ZERO, 0);
        for round in 0..usize::from(self.warm_ups) + usize::from(self.rounds) {
            let is_warm_up = round < self.warm_ups.into();
            if rounds >= usize::from(self.least_rounds) && first.left() <= longest {
                filter.left_out += (usize::from(self.rounds) - rounds) * count;
                break;
            }
            rounds += usize::from(!is_warm_up);
            for place in (0..count).map(|place| (round + place) % count) {
                let begin = Instant::now();
                let (value, steal) = run(place)?;
                if !is_warm_up {
                    longest = longest.max(begin.elapsed());
                    samples.push(Sample { place, value, steal, attempts: 1 });
                }
            }
        }
        let mut allowed = vec![rounds.div_ceil(AGAIN_DIVISOR); count];
        while !self.left().is_zero() {
            let may_again = |sample: &&mut Sample<T>| {
                let StealDelta { ticks, share } = sample.steal;
                let is_much = share > MOST_STEAL && ticks > MOST_TICKS;
                is_much && sample.attempts < ATTEMPTS && allowed[sample.place] > 0
            };
            let worst = samples.iter_mut().filter(may_again);
            let worst = worst.max_by(|a, b| a.steal.share.total_cmp(&b.steal.share));
            let Some(worst) = worst else { break };
            let (value, steal) = run(worst.place)?;
            worst.attempts += 1;
            allowed[worst.place] -= 1;
            filter.again += 1;
            if steal.share < worst.steal.share {
                (worst.value, worst.steal) = (value, steal);
            }
        }
        filter.samples += samples.len();
        filter.worst = samples.iter().map(|sample| sample.steal.share).fold(filter.worst, f64::max);
        Ok(samples.into_iter().map(|sample| (sample.place, sample.value)).collect())
    }
}

struct Sample<T> {
    place: usize,
    value: T,
    steal: StealDelta,
    attempts: usize,
}

/// How many samples were taken, and taken again where steal time was high.
#[derive(Debug, Default)]
struct StealFilter {
    samples: usize,
    /// Samples that the deadline left out.
    left_out: usize,
    again: usize,
    /// The highest steal time of the samples that count.
    worst: f64,
}

impl Display for StealFilter {
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

    fn schedule(rounds: u16, warm_ups: u16, seconds: Option<u64>) -> Schedule {
        let deadline = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
        Schedule { rounds, warm_ups, least_rounds: 1, deadline }
    }

    #[test]
    fn a_part_has_its_share_of_the_time() {
        for (share, fits, not) in [(1.0, 99, 101), (0.25, 24, 26), (0.01, 0, 2)] {
            let left = schedule(1000, 0, Some(100)).share(share).left();
            assert!(left > Duration::from_secs(fits), "{share}");
            assert!(left <= Duration::from_secs(not), "{share}");
        }
        assert!(!schedule(1, 0, None).share(0.5).left().is_zero());
    }

    #[test]
    fn the_worst_samples_are_taken_again_and_the_least_disturbed_count() {
        for (count, shares, expected, again) in [
            (2, &[0.01, 0.03][..], &[(0, 0), (1, 1)][..], 0),
            // Of four samples two may be taken again: the worst, and the one that is then the worst.
            (1, &[0.05, 0.2, 0.0, 0.3, 0.1, 0.02], &[(0, 0), (0, 5), (0, 2), (0, 4)], 2),
            // The second candidate loses most, and takes no chance from the first.
            (2, &[0.1, 0.5, 0.0, 0.0], &[(0, 3), (1, 2)], 2),
        ] {
            let mut filter = StealFilter::default();
            let rounds = u16::try_from(expected.len() / count).unwrap();
            let mut coming = shares.iter().map(|&share| StealDelta { ticks: 9, share }).enumerate();
            let taken = schedule(rounds, 0, None)
                .sample(count, &mut filter, |_| Ok(coming.next().unwrap()));
            assert_eq!((taken.unwrap().as_slice(), filter.again), (expected, again));
        }
        for (ticks, again) in [(9, 10), (1, 0)] {
            let mut busy = StealFilter::default();
            let run = |_| Ok(((), StealDelta { ticks, share: 0.5 }));
            schedule(30, 0, None).sample(1, &mut busy, run).unwrap();
            assert_eq!(busy.again, again, "none is tried for ever, and a single tick says nothing");
        }
    }

    #[test]
    fn at_the_deadline_every_candidate_has_as_many_samples() {
        let mut filter = StealFilter::default();
        let over = Schedule { least_rounds: 3, ..schedule(5, 0, Some(0)) };
        let found =
            over.sample(3, &mut filter, |_| Ok(((), StealDelta { ticks: 9, share: 0.5 }))).unwrap();
        let of_place = |place| found.iter().filter(|(of, ())| *of == place).count();
        assert_eq!([0, 1, 2].map(of_place), [3, 3, 3]);
        let text = filter.to_string();
        assert!(
            text.starts_with("9 samples, 6 fewer than requested, as the time was over; 0 taken"),
            "{text}"
        );
    }

    fn measure(
        run: &dyn Fn(&str) -> Result<f64>,
        schedule: Schedule,
    ) -> Result<Vec<(Measured, Option<String>)>> {
        let candidates = ["a", "b", "ours"].map(|name| {
            let run = move || Ok(vec![("wall", run(name)?)]);
            Candidate { is_ours: name == "ours", ..Candidate::ours(name, run) }
        });
        schedule.measure(candidates.into(), &mut StealFilter::default())
    }

    #[test]
    fn the_first_of_a_round_rotates_and_warm_ups_do_not_count() {
        let turns = RefCell::new(String::new());
        let run = |name: &str| {
            turns.borrow_mut().push_str(&name[..1]);
            Ok(turns.borrow().len() as f64)
        };
        let all = measure(&run, schedule(2, 1, None)).unwrap();
        assert_eq!(all[0].0.samples("wall").0, [6.0, 8.0]);
        assert_eq!(turns.into_inner(), "aboboaoab");
    }

    #[test]
    fn a_peer_that_fails_is_left_out_and_ours_must_not_fail() {
        let calls = RefCell::new(0);
        let failing = |who: &'static str| {
            let calls = &calls;
            move |name: &str| {
                *calls.borrow_mut() += u32::from(name == "b");
                ensure!(name != who, "refused");
                Ok(1.0)
            }
        };
        let all = measure(&failing("b"), schedule(3, 0, None)).unwrap();
        let failures =
            all.into_iter().map(|(one, failure)| (one.name, failure.unwrap_or_default()));
        let wanted = [("a", ""), ("b", "refused"), ("ours", "")];
        assert_eq!(failures.collect::<Vec<_>>(), wanted.map(|(a, b)| (a.to_owned(), b.to_owned())));
        assert_eq!(*calls.borrow(), 1);
        let error = measure(&failing("ours"), schedule(1, 0, None)).unwrap_err();
        assert_eq!(format!("{error:#}"), "ours: refused");
    }
}
