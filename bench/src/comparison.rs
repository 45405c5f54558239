//! Rounds in which programs take turns at the same work, so that changes of the machine meanwhile affect all of them; their
//! table, plot and thresholds. Whoever is first in a round is last in the next one. Knows nothing of the work.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use serde::Serialize;

use crate::case::{Case, Threshold};
use crate::experiment::Context;
use crate::machine::{catch_signals, check_stop};
use crate::plot::Plot;
use crate::process::Cost;
use crate::programs::{Program, ProgramArguments};
use crate::report::{Claim, Table, Verdict};
use crate::rounds::{Deadline, TimeLimit};
use crate::statistics::Samples;
use crate::trees::is_in_memory;

/// A quick experiment starts nothing new after this; what runs then ends within a minute in all.
const QUICK: Duration = Duration::from_secs(30);
/// Repetitions of the same work are refused if they spread by more of their median; fewer samples tell little of noise.
const MOST_SPREAD: f64 = 0.5;
const ENOUGH_SAMPLES: usize = 3;
/// Memory in which everybody may make files, on most systems.
const SHARED_MEMORY: &str = "/dev/shm";

#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct RoundArguments {
    /// Rounds; after one that does not count where nothing is mounted; 2 at most with --quick
    #[arg(short = 'c', long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,
    #[command(flatten)]
    pub(crate) limit: TimeLimit,
    /// Folder for outputs, images and mount points
    #[arg(long, value_name = "DIR")]
    pub(crate) work: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) programs: ProgramArguments,
}

impl RoundArguments {
    /// The folder of this process. From then on a signal does not end the process at once.
    pub(crate) fn folder(&self) -> Result<tempfile::TempDir> {
        catch_signals()?;
        let parent = self.work.clone().unwrap_or_else(std::env::temp_dir);
        let parent = parent.canonicalize().with_context(|| parent.display().to_string())?;
        let folder = tempfile::Builder::new().prefix("ferrofs-bench-").tempdir_in(&parent);
        folder.with_context(|| format!("making a folder in {}", parent.display()))
    }

    /// The same where writing costs no disk, if there is such a place and none was named.
    pub(crate) fn folder_in_memory(&self) -> Result<tempfile::TempDir> {
        let memory = Path::new(SHARED_MEMORY);
        let is_there = self.work.is_none() && is_in_memory(memory);
        let made =
            is_there.then(|| Self { work: Some(memory.to_path_buf()), ..self.clone() }.folder());
        made.and_then(Result::ok).map_or_else(|| self.folder(), Ok)
    }
}

/// For people: what a folder lies on.
pub(crate) fn place_of(folder: &Path) -> String {
    let kind = if is_in_memory(folder) { "a tmpfs" } else { "a disk" };
    format!("{} ({kind})", folder.parent().unwrap_or(folder).display())
}

/// The figures of one run by name; [`figure`] knows the names.
pub(crate) type Figures = BTreeMap<&'static str, f64>;

pub(crate) const WALL: &str = "wall";
pub(crate) const CPU: &str = "CPU";
pub(crate) const DAEMON_CPU: &str = "daemon CPU";
pub(crate) const PEAK: &str = "peak";
pub(crate) const SIZE: &str = "size";

/// The unit of a figure, and the digits behind the point.
fn figure(name: &str) -> (&'static str, usize) {
    match name {
        WALL | CPU | DAEMON_CPU => ("s", 3),
        PEAK | "charged" => ("MiB", 1),
        SIZE => ("bytes", 0),
        "mean" | "p50" => ("us", 1),
        "p99" | "p999" => ("us", 0),
        _ => ("", 2),
    }
}

pub(crate) fn figures_of(cost: Cost) -> Figures {
    let peak = cost.peak_kib as f64 / 1024.0;
    Figures::from([(WALL, cost.wall.as_secs_f64()), (CPU, cost.cpu.as_secs_f64()), (PEAK, peak)])
}

/// How often is measured, and until when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schedule {
    rounds: u16,
    warm_ups: u16,
    deadline: Deadline,
}

impl Schedule {
    /// A quick one has at most two rounds, no warm-up, and a limited time from now on.
    pub(crate) fn new(arguments: &RoundArguments, warm_ups: u16, is_quick: bool) -> Self {
        let RoundArguments { rounds, limit, .. } = arguments;
        let quick = Self {
            rounds: (*rounds).min(2),
            warm_ups: 0,
            deadline: Deadline::after(Some(QUICK)).earlier(limit.deadline()),
        };
        let usual = Self { rounds: *rounds, warm_ups, deadline: limit.deadline() };
        if is_quick { quick } else { usual }
    }

    pub(crate) fn at_most(self, rounds: u16) -> Self {
        Self { rounds: self.rounds.min(rounds), ..self }
    }

    /// An equal part for the first of the cases that are left: what it does not use, the others have.
    fn part(self, cases: usize) -> Self {
        Self { deadline: self.deadline.share(1.0 / cases.max(1) as f64), ..self }
    }

    fn sentence(self) -> String {
        let limit = if self.deadline.is_set() { ", fewer where time runs out" } else { "" };
        format!("rounds: {} after {} warm-ups, in turn{limit}", self.rounds, self.warm_ups)
    }
}

/// A program, or a way to call it, that takes part.
pub(crate) struct Candidate<'a> {
    pub(crate) name: String,
    /// Ours must not fail; a peer that fails is left out.
    pub(crate) is_ours: bool,
    pub(crate) run: Box<dyn FnMut() -> Result<Figures> + 'a>,
}

/// The samples of a candidate.
#[derive(Debug, Clone, Default)]
pub(crate) struct Measured {
    pub(crate) name: String,
    pub(crate) figures: BTreeMap<&'static str, Samples>,
}

impl Measured {
    pub(crate) fn median(&self, name: &str) -> Option<f64> {
        self.figures.get(name).map(Samples::median)
    }

    /// The median, with minimum and maximum where there are several samples and `is_spread`.
    fn cell(&self, name: &str, is_spread: bool) -> String {
        let Some(samples) = self.figures.get(name) else { return String::new() };
        let (summary, (_, digits)) = (samples.summary(), figure(name));
        let middle = format!("{:.digits$}", summary.median);
        if summary.count < 2 || !is_spread {
            return middle;
        }
        format!("{middle} ({:.digits$}...{:.digits$})", summary.minimum, summary.maximum)
    }
}

/// The ratio of medians of two candidates, if both have the figure.
pub(crate) fn ratio(all: &[Measured], name: &str, ours: &str, theirs: &str) -> Option<f64> {
    let of = |who: &str| all.iter().find(|one| one.name == who)?.median(name);
    let (ours, theirs) = (of(ours)?, of(theirs)?);
    (theirs > 0.0).then_some(ours / theirs)
}

/// Whoever failed, and how.
pub(crate) type Failures = Vec<(String, String)>;

/// Runs all candidates in every round. Answers the samples, and who failed and how.
pub(crate) fn interleave(
    candidates: &mut [Candidate<'_>],
    schedule: Schedule,
) -> Result<(Vec<Measured>, Failures)> {
    let measured = |one: &Candidate<'_>| Measured { name: one.name.clone(), ..Measured::default() };
    let samples: Vec<_> = candidates.iter().map(|one| (measured(one), None)).collect();
    let mut columns: Vec<_> = candidates.iter_mut().zip(samples).collect();
    let mut longest = Duration::ZERO;
    for round in 0..schedule.warm_ups.saturating_add(schedule.rounds) {
        // The first round that counts is always run, so that there is a figure.
        if round > schedule.warm_ups && !schedule.deadline.has_time_for(longest) {
            break;
        }
        let begin = Instant::now();
        let first = usize::from(round) % columns.len().max(1);
        let (late, early) = columns.split_at_mut(first);
        for (one, (measured, failure)) in early.iter_mut().chain(late) {
            if failure.is_some() {
                continue;
            }
            let figures = (one.run)();
            // The same signal may have ended it.
            check_stop()?;
            match figures {
                Ok(figures) if round >= schedule.warm_ups => {
                    for (name, value) in figures {
                        measured.figures.entry(name).or_default().push(value);
                    }
                }
                Ok(_) => {}
                Err(error) if one.is_ours => return Err(error).context(one.name.clone()),
                Err(error) => *failure = Some(format!("{error:#}")),
            }
        }
        longest = longest.max(begin.elapsed());
    }
    let (mut all, mut failed) = (Vec::new(), Vec::new());
    for (one, (measured, failure)) in columns {
        match failure {
            Some(error) => failed.push((one.name.clone(), error)),
            None => all.push(measured),
        }
    }
    Ok((all, failed))
}

/// A column of a sheet.
#[derive(Debug, Clone)]
pub(crate) enum Cell {
    Spread(&'static str),
    Median(&'static str),
    /// The ratio of the row's figure to that of this candidate.
    To(&'static str, String),
    /// The ratio of this candidate's figure to that of the row.
    Of(&'static str, &'static str),
}

/// A table with a row for each case and candidate, and its plot.
pub(crate) struct Sheet {
    cells: Vec<Cell>,
    table: Table,
    plot: Plot,
    plotted: &'static str,
}

impl Sheet {
    /// `header` holds the columns behind case and candidate.
    pub(crate) fn new(title: &str, header: &str, cells: Vec<Cell>, plotted: &'static str) -> Self {
        let label = format!("{plotted}, {}", figure(plotted).0);
        let table = Table::new(title, &format!("case | program | {header}"));
        Self { cells, table, plot: Plot::bars(title, &label), plotted }
    }

    fn add(&mut self, case: &str, all: &[Measured]) {
        for one in all {
            let shown =
                |ratio: Option<f64>| ratio.map_or_else(String::new, |ratio| format!("{ratio:.3}"));
            let cell = |cell: &Cell| match cell {
                Cell::Spread(name) => one.cell(name, true),
                Cell::Median(name) => one.cell(name, false),
                Cell::To(name, peer) if *peer != one.name => {
                    shown(ratio(all, name, &one.name, peer))
                }
                Cell::Of(name, ours) if *ours != one.name => {
                    shown(ratio(all, name, ours, &one.name))
                }
                Cell::To(..) | Cell::Of(..) => String::new(),
            };
            let names = [case.to_owned(), one.name.clone()];
            self.table.add(names.into_iter().chain(self.cells.iter().map(cell)));
            if let Some(samples) = one.figures.get(self.plotted) {
                self.plot.median_bar(case, &one.name, samples);
            }
        }
    }
}

/// An experiment with peers on the way into its report.
pub(crate) struct Comparison<'c, 'w> {
    pub(crate) context: &'c mut Context<'w>,
    name: &'static str,
    schedule: Schedule,
    /// Cases that are left, which share the time.
    cases: usize,
    ratios: BTreeMap<String, Vec<(String, f64)>>,
}

impl<'c, 'w> Comparison<'c, 'w> {
    pub(crate) fn new(
        context: &'c mut Context<'w>,
        name: &'static str,
        schedule: Schedule,
        cases: usize,
    ) -> Self {
        context.report.remark(schedule.sentence());
        Self { context, name, schedule, cases, ratios: BTreeMap::new() }
    }

    /// Names programs and their versions in the report.
    pub(crate) fn programs<'p>(&mut self, programs: impl IntoIterator<Item = &'p Program>) {
        for Program { name, path, version } in programs {
            self.context.report.remark(format!("{name}: {version}, {}", path.display()));
        }
    }

    /// A peer that is there; a missing one is named in the report.
    pub(crate) fn present<T>(&mut self, what: &str, found: Result<T, String>) -> Option<T> {
        found.map_err(|why| self.context.report.leave_out(what, why)).ok()
    }

    /// Measures a case: samples go to the report and into the sheet. Nothing if there is no time.
    pub(crate) fn run(
        &mut self,
        case: &str,
        mut candidates: Vec<Candidate<'_>>,
        sheet: &mut Sheet,
        agree: impl FnOnce(&mut Vec<Measured>, &mut Failures),
    ) -> Result<Vec<Measured>> {
        let part = self.schedule.part(self.cases);
        self.cases = self.cases.saturating_sub(1);
        if self.schedule.deadline.is_over() {
            self.context.report.leave_out(case, "there was no time left for it");
            return Ok(Vec::new());
        }
        self.context.say(case)?;
        let (mut all, mut failed) = interleave(&mut candidates, part)?;
        agree(&mut all, &mut failed);
        let report = &mut self.context.report;
        for (name, error) in failed {
            report.leave_out(format!("{name} in {case}"), error);
        }
        for Measured { name, figures } in &all {
            for (what, samples) in figures {
                report.series(name, format!("{case}, {what}"), figure(what).0, samples);
            }
            if let Some(walls) = figures.get(WALL).filter(|walls| walls.len() >= ENOUGH_SAMPLES) {
                report.judge_noise(&format!("{name} in {case}"), walls, MOST_SPREAD);
            }
        }
        sheet.add(case, &all);
        Ok(all)
    }

    /// Adds the ratio of a case to those of a threshold, if there is one.
    pub(crate) fn judge(&mut self, threshold: &str, case: &str, ratio: Option<f64>) {
        let ratios = self.ratios.entry(threshold.to_owned()).or_default();
        ratios.extend(ratio.map(|ratio| (case.to_owned(), ratio)));
    }

    pub(crate) fn add(&mut self, sheet: Sheet) {
        if sheet.table.has_rows() {
            self.context.report.table(sheet.table);
            self.context.report.plot(sheet.plot);
        }
    }

    /// Judges every threshold of the case.
    pub(crate) fn finish(mut self) -> Result<()> {
        for (name, threshold) in Case::of(self.name)?.thresholds {
            let ratios = self.ratios.remove(&name).unwrap_or_default();
            self.context.report.add_claim(claim(self.name, &threshold, &ratios));
        }
        Ok(())
    }
}

/// Met if every ratio is at most the threshold.
fn claim(origin: &str, threshold: &Threshold, ratios: &[(String, f64)]) -> Claim {
    let worst = ratios.iter().max_by(|a, b| a.1.total_cmp(&b.1));
    let least = ratios.iter().map(|(_, ratio)| *ratio).fold(f64::INFINITY, f64::min);
    let missed = ratios.iter().filter(|(_, ratio)| !threshold.is_met(*ratio)).count();
    let (figure, verdict) = match worst {
        None => (String::new(), Verdict::NotMeasured("nothing to compare".to_owned())),
        Some((case, most)) => {
            let several = format!("{least:.3} to {most:.3} (most: {case})");
            let figure = match (ratios.len(), missed) {
                (1, _) => format!("{most:.3}"),
                (_, 0) => several,
                (count, missed) => format!("{several}, missed in {missed} of {count}"),
            };
            (figure, if missed == 0 { Verdict::Met } else { Verdict::NotMet })
        }
    };
    let (origin, claim) = (origin.to_owned(), threshold.claim());
    Claim { origin, claim, figure, verdict, why_not: None }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::Duration;

    use anyhow::{Result, ensure};

    use super::*;
    use crate::case::Limit;

    fn schedule(rounds: u16, warm_ups: u16) -> Schedule {
        Schedule { rounds, warm_ups, deadline: Deadline::default() }
    }

    fn candidates<'a>(run: &'a dyn Fn(&str) -> Result<f64>) -> Vec<Candidate<'a>> {
        let candidate = |name: &'static str| Candidate {
            name: name.to_owned(),
            is_ours: name == "ours",
            run: Box::new(move || Ok(Figures::from([(WALL, run(name)?)]))),
        };
        ["a", "b", "ours"].map(candidate).into()
    }

    #[test]
    fn the_first_of_a_round_rotates_and_warm_ups_do_not_count() {
        let turns = RefCell::new(String::new());
        let run = |name: &str| {
            turns.borrow_mut().push_str(&name[..1]);
            Ok(turns.borrow().len() as f64)
        };
        let (all, _) = interleave(&mut candidates(&run), schedule(2, 1)).unwrap();
        assert_eq!(all[0].figures[WALL].values().collect::<Vec<_>>(), [6.0, 8.0]);
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
        let (all, failed) = interleave(&mut candidates(&run), schedule(3, 0)).unwrap();
        assert_eq!((all.len(), *calls.borrow()), (2, 1));
        assert_eq!(failed, [("b".to_owned(), "refused".to_owned())]);
        let broken = |name: &str| {
            ensure!(name != "ours", "broken");
            Ok(1.0)
        };
        let error = interleave(&mut candidates(&broken), schedule(1, 0)).unwrap_err();
        assert_eq!(format!("{error:#}"), "ours: broken");
    }

    #[test]
    fn a_case_has_its_part_of_the_time_and_is_measured_at_least_once() {
        let deadline = TimeLimit { seconds: Some(100) }.deadline();
        for (cases, fits, not) in [(0, 99, 101), (1, 99, 101), (4, 24, 26), (100, 0, 2)] {
            let part = Schedule { deadline, ..schedule(1000, 0) }.part(cases).deadline;
            assert!(part.has_time_for(Duration::from_secs(fits)), "{cases}");
            assert!(!part.has_time_for(Duration::from_secs(not)), "{cases}");
        }
        let over = Schedule { deadline: deadline.share(0.0), ..schedule(1000, 0) };
        let (all, _) = interleave(&mut candidates(&|_| Ok(1.0)), over).unwrap();
        assert_eq!(all.iter().map(|one| one.figures[WALL].len()).collect::<Vec<_>>(), [1, 1, 1]);
    }

    #[test]
    fn cells_have_medians_and_ratios() {
        let measured = |name: &str, walls: &[f64]| Measured {
            name: name.to_owned(),
            figures: BTreeMap::from([(WALL, walls.iter().copied().collect())]),
        };
        let all = [measured("ours", &[1.0, 3.0]), measured("theirs", &[4.0])];
        assert_eq!(measured("a", &[0.3, 0.1, 0.2]).cell(WALL, true), "0.200 (0.100...0.300)");
        assert_eq!([all[1].cell(WALL, true), all[0].cell(CPU, true)], ["4.000", ""]);
        assert_eq!(ratio(&all, WALL, "ours", "theirs"), Some(0.5));
        assert_eq!(
            [ratio(&all, WALL, "ours", "kernel"), ratio(&all, CPU, "ours", "theirs")],
            [None; 2]
        );
        let cells =
            vec![Cell::Spread(WALL), Cell::To(WALL, "theirs".to_owned()), Cell::Of(WALL, "ours")];
        let mut sheet = Sheet::new("t", "wall | wall / theirs | ours / it", cells, WALL);
        sheet.add("lz4", &all);
        let text = sheet.table.to_string();
        assert!(text.contains("| 2.000 (1.000...3.000) |         0.500 |           |"), "{text}");
        assert!(text.contains("|                 4.000 |               |     0.500 |"), "{text}");
    }

    #[test]
    fn a_claim_names_its_worst_case() {
        let (unit, says) = ("of the peer".to_owned(), "at most {}".to_owned());
        let threshold = Threshold { value: 0.7, unit, limit: Limit::Most, says };
        let said = |ratios: &[(&str, f64)]| {
            let ratios: Vec<_> =
                ratios.iter().map(|(case, ratio)| ((*case).to_owned(), *ratio)).collect();
            claim("mount", &threshold, &ratios).to_string()
        };
        let met = "mount: at most 0.7 of the peer: 0.400 to 0.700 (most: zstd) here, met";
        assert_eq!(said(&[("lz4", 0.4), ("zstd", 0.7)]), met);
        let missed = said(&[("lz4", 0.71), ("zstd", 0.7)]);
        assert!(missed.ends_with("0.700 to 0.710 (most: lz4), missed in 1 of 2 here, NOT met"));
        assert!(said(&[("lz4", 0.5)]).ends_with(": 0.500 here, met"));
        assert!(said(&[]).ends_with("not measured: nothing to compare"));
    }
}
