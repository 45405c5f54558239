//! The jobs experiment: a large piece of memory faulted in by one thread and by more, beside one call
//! of the system over the same range, on all nodes and on each; what that saves when a mount starts; and a job of
//! unequal pieces.

mod imbalance;
mod nodes;
mod start_up;

use std::hint::black_box;
use std::io::Write;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use ferrofs_workers::cpus::AvailableCpus;
use ferrofs_workers::memory::{Mapping, PageSize};

use crate::arguments::JobsArguments;
use crate::deadline::Deadline;
use crate::machine::{field_of, leading_number};
use crate::page_store::PAGE_BYTES;
use crate::plot::Plot;
use crate::report::{Report, Series};
use crate::statistics::{Samples, difference_percent};
use crate::steal::Undisturbed;
use crate::table::Table;
use crate::usage::Usage;
use imbalance::{Imbalance, PIECES_A_THREAD, Slow};

const GIB: usize = 1 << 30;
/// Of a GiB, in a quick run.
const QUICK_BYTES: usize = GIB / 2;
const QUICK_REPEAT: u16 = 3;
/// Memory that must stay free beside what is faulted in, in KiB.
const SPARE_KIB: u64 = 512 << 10;
/// Steps of arithmetic for each page, so that it takes about as long as the page's fault.
const STEPS_A_PAGE: usize = 256;
/// Kinds of pages, with their names in tables.
const KINDS: [(PageSize, &str); 2] =
    [(PageSize::Small, "4 KiB pages"), (PageSize::Huge, "huge pages")];

/// What each kind may take of the time that is left when it begins; then the same on nodes, and starts of a mount.
const KIND_SHARES: [f64; KINDS.len()] = [0.5, 0.4];
/// What ways that fault memory in have of a kind's time, and of so many of their rounds the limits have one.
const FAULTS_SHARE: f64 = 0.75;
const LIMITS_PART: u16 = 3;
const NODES_SHARE: f64 = 0.3;
const STARTS_SHARE: f64 = 0.7;
/// Rounds of what has no samples taken again, no matter how long they take.
const LEAST_ROUNDS: u16 = 3;

/// A line of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// One MADV_POPULATE_WRITE over all of it.
    OneCall,
    /// A job of so many threads.
    Threads(usize),
    /// No fault at all: zeros written by so many threads to memory that is there. What the machine's memory
    /// can do at most, at that moment.
    Resident(usize),
    /// No memory at all: arithmetic in registers by so many threads. What its CPUs can do at most.
    Registers(usize),
}

impl Way {
    fn name(self) -> String {
        match self {
            Self::OneCall => "one call".to_owned(),
            Self::Threads(1) => "1 thread".to_owned(),
            Self::Threads(count) => format!("{count} threads"),
            Self::Resident(1) => "zeroing what is resident, 1 thread".to_owned(),
            Self::Resident(count) => format!("zeroing what is resident, {count} threads"),
            Self::Registers(1) => "arithmetic in registers, 1 thread".to_owned(),
            Self::Registers(count) => format!("arithmetic in registers, {count} threads"),
        }
    }
}

/// What is run.
#[derive(Debug)]
struct Plan {
    bytes: usize,
    repeat: u16,
    /// Those that fault memory in.
    faults: Vec<Way>,
    /// What there is to hold them against.
    limits: Vec<Way>,
    threads_max: usize,
}

/// Milliseconds of one way with one kind of pages: until it was done, and of all its threads on their CPUs, from which
/// what a host took is left out.
#[derive(Debug, Default)]
struct Times {
    wall: Samples,
    cpu: Samples,
}

/// One way, for each kind of pages.
type Line = (Way, [Times; KINDS.len()]);

impl Plan {
    fn new(arguments: &JobsArguments, is_quick: bool) -> Result<Self> {
        let parallelism = AvailableCpus::read().parallelism();
        let mut threads = arguments.threads.clone();
        if threads.is_empty() {
            threads = doubling(parallelism);
        }
        let asked = threads.iter().copied().max().unwrap_or(1);
        ensure!(
            asked <= parallelism,
            "{asked} threads asked, but the system runs {parallelism} at once"
        );
        let bytes = if is_quick { QUICK_BYTES } else { usize::from(arguments.gib) * GIB };
        let (needed, available) = (u64::try_from(bytes / 1024)? + SPARE_KIB, available_kib());
        ensure!(
            available >= needed,
            "this needs {needed} KiB of memory, {available} KiB are available; --gib takes less"
        );
        Ok(Self {
            bytes,
            repeat: if is_quick { arguments.repeat.min(QUICK_REPEAT) } else { arguments.repeat },
            faults: [Way::OneCall]
                .into_iter()
                .chain(threads.iter().copied().map(Way::Threads))
                .collect(),
            limits: threads
                .iter()
                .copied()
                .map(Way::Resident)
                .chain(threads.iter().copied().map(Way::Registers))
                .collect(),
            threads_max: parallelism,
        })
    }
}

/// 1, 2, 4 and so on, and the last.
fn doubling(last: usize) -> Vec<usize> {
    let below = std::iter::successors(Some(1), |count| Some(count * 2));
    below.take_while(|&count| count < last).chain([last]).collect()
}

fn available_kib() -> u64 {
    leading_number(&field_of("/proc/meminfo", "MemAvailable"))
}

/// Runs the experiment.
///
/// # Errors
/// When there is too little memory or a job does not do what it was told.
pub(crate) fn run(
    arguments: &JobsArguments,
    is_quick: bool,
    out: &mut dyn Write,
) -> Result<Report> {
    let mut report = Report::new("jobs", arguments)?;
    let plan = Plan::new(arguments, is_quick)?;
    let (mib, repeat) = (plan.bytes >> 20, plan.repeat);
    writeln!(out, "faulting in {mib} MiB, {repeat} times in each way")?;
    let deadline = arguments.limit.deadline();
    let mut undisturbed = Undisturbed::default();
    let lines = prefault(&plan, deadline, &mut undisturbed)?;
    add_prefault(&plan, &lines, &mut report)?;
    report.add_remark(undisturbed.to_string());
    writeln!(out, "the same on each node")?;
    nodes::add(&plan, deadline.share(NODES_SHARE), &mut report)?;
    writeln!(out, "starts of a mount")?;
    let starts = deadline.share(STARTS_SHARE);
    start_up::add(&plan, arguments.image.as_deref(), starts, &mut report)?;
    writeln!(out, "a job with one slow piece, {repeat} times in each place")?;
    add_imbalance(&plan, deadline, &mut report)?;
    Ok(report)
}

/// Every way that faults memory in, in turn, on a fresh mapping each, after a round that warms up and does not count; then
/// the limits, which vary less, in fewer rounds. One kind of pages after the other.
fn prefault(plan: &Plan, deadline: Deadline, undisturbed: &mut Undisturbed) -> Result<Vec<Line>> {
    let ways = plan.faults.iter().chain(&plan.limits);
    let mut lines: Vec<Line> = ways.map(|&way| (way, Default::default())).collect();
    let (faults, limits) = lines.split_at_mut(plan.faults.len());
    for (kind, share) in KIND_SHARES.into_iter().enumerate() {
        let share = deadline.share(share);
        let rounds = plan.repeat;
        measure(plan.bytes, kind, rounds, (faults, share.share(FAULTS_SHARE)), undisturbed)?;
        let rounds = rounds.div_ceil(LIMITS_PART);
        measure(plan.bytes, kind, rounds, (limits, share), undisturbed)?;
    }
    Ok(lines)
}

/// So many rounds of some ways with a kind of pages, fewer where the time is over.
fn measure(
    bytes: usize,
    kind: usize,
    rounds: u16,
    (lines, deadline): (&mut [Line], Deadline),
    undisturbed: &mut Undisturbed,
) -> Result<()> {
    let &(pages, _) = KINDS.get(kind).context("no such kind of pages")?;
    let ways: Vec<Way> = lines.iter().map(|(way, _)| *way).collect();
    for way in &ways {
        time(*way, pages, bytes)?;
    }
    let turns = (0..rounds).flat_map(|_| 0..ways.len());
    let found = undisturbed.in_turn(turns, deadline, |turn| {
        time(*ways.get(turn).context("a turn of no way")?, pages, bytes)
    })?;
    for (turn, (wall, cpu)) in found {
        if let Some(times) = lines.get_mut(turn).and_then(|(_, times)| times.get_mut(kind)) {
            times.wall.push(wall);
            times.cpu.push(cpu);
        }
    }
    Ok(())
}

/// Faults so much memory in and frees it, so that what is measured next takes what was just freed: a virtual machine
/// may give memory that lies free for some seconds to its host, and then a fault measures how the host gives it back.
fn warm_up(bytes: usize) -> Result<()> {
    let mut mapping = Mapping::anonymous(bytes, PageSize::Huge).context("mapping memory")?;
    mapping.populate().context("faulting memory in")?;
    Ok(())
}

/// Milliseconds of one way, and of CPU time.
fn time(way: Way, pages: PageSize, bytes: usize) -> Result<(f64, f64)> {
    if matches!(way, Way::OneCall | Way::Threads(_)) {
        warm_up(bytes)?;
    }
    let mut mapping = Mapping::anonymous(bytes, pages).context("mapping memory")?;
    if matches!(way, Way::Resident(_)) {
        mapping.populate().context("faulting memory in")?;
    }
    let (start, before) = (Instant::now(), Usage::now());
    match way {
        Way::OneCall => drop(mapping.populate().context("faulting memory in")?),
        Way::Threads(count) => drop(mapping.prefault(count).context("faulting memory in")?),
        Way::Resident(count) => zero(mapping.bytes_mut(), count),
        Way::Registers(count) => compute(count, bytes / PAGE_BYTES),
    }
    let wall = start.elapsed().as_secs_f64() * 1e3;
    Ok((wall, Usage::now().since(before).cpu.as_secs_f64() * 1e3))
}

/// Page by page, as the kernel does it.
fn zero(bytes: &mut [u8], threads: usize) {
    let part = bytes.len().div_ceil(threads.max(1)).next_multiple_of(PAGE_BYTES);
    thread::scope(|scope| {
        let mut parts = bytes.chunks_mut(part);
        let own = parts.next();
        for part in parts {
            scope.spawn(|| zero_pages(part));
        }
        own.map(zero_pages);
    });
}

/// Arithmetic that has nothing to do with memory, divided among the threads.
fn compute(threads: usize, pages: usize) {
    let steps = pages / threads.max(1) * STEPS_A_PAGE;
    thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(|| step(steps))));
        step(steps);
    });
}

/// Each step needs the one before.
fn step(steps: usize) {
    let mut value = black_box(1_u64);
    for _ in 0..steps {
        value ^= value << 13;
        value ^= value >> 7;
        value ^= value << 17;
    }
    black_box(value);
}

fn zero_pages(bytes: &mut [u8]) {
    for page in bytes.chunks_mut(PAGE_BYTES) {
        black_box(page).fill(0);
    }
}

fn add_prefault(plan: &Plan, lines: &[Line], report: &mut Report) -> Result<()> {
    let kinds = KINDS.iter().flat_map(|(_, name)| {
        [format!("{name}, ms"), "diff".to_owned(), "least–most".to_owned(), "CPU ms".to_owned()]
    });
    let header = std::iter::once(String::new()).chain(kinds);
    let mut table = Table::new(format!("Faulting in {} MiB, median", plan.bytes >> 20), header);
    let alone = median_of(lines, Way::Threads(1));
    for (way, times) in lines {
        let mut row = vec![way.name()];
        for (times, alone) in times.iter().zip(alone) {
            let summary = times.wall.summary();
            row.push(format!("{:.1}", summary.median));
            row.push(format!("{:+.1} %", difference_percent(alone, summary.median)));
            row.push(format!("{:.1}–{:.1}", summary.minimum, summary.maximum));
            row.push(format!("{:.1}", times.cpu.median()));
        }
        table.add(row);
        for ((_, kind), Times { wall, cpu }) in KINDS.iter().zip(times) {
            for (case, samples) in [((*kind).to_owned(), wall), (format!("{kind}, CPU"), cpu)] {
                let samples = samples.clone();
                report.add_series(Series { row: way.name(), case, unit: "ms", samples });
            }
        }
    }
    report.add_table(table);
    report.add_plot(plot(plan, lines));
    for kind in 0..KINDS.len() {
        for way in [Way::Threads(1), Way::Threads(2)] {
            let line = lines.iter().find(|(other, _)| *other == way);
            if let Some((times, (_, name))) =
                line.and_then(|(_, of)| of.get(kind)).zip(KINDS.get(kind))
            {
                report.judge_repetitions(format!("{}, {name}", way.name()), &times.wall)?;
            }
        }
    }
    judge(lines, report)
}

/// Every way, for both kinds of pages.
fn plot(plan: &Plan, lines: &[Line]) -> Plot {
    let title = format!("Faulting in {} MiB", plan.bytes >> 20);
    let mut plot = Plot::bars(title, "ms, median, and least to most");
    for (kind, (_, name)) in KINDS.iter().enumerate() {
        for (way, times) in lines {
            if let Some(summary) = times.get(kind).map(|times| times.wall.summary()) {
                plot.add_bar(*name, way.name(), summary.median, summary.minimum, summary.maximum);
            }
        }
    }
    plot
}

/// The medians of one way, NaN if it was not run.
fn median_of(lines: &[Line], way: Way) -> [f64; KINDS.len()] {
    medians(lines, way, |times| &times.wall)
}

fn medians(lines: &[Line], way: Way, of: impl Fn(&Times) -> &Samples) -> [f64; KINDS.len()] {
    let line = lines.iter().find(|(other, _)| *other == way);
    line.map_or([f64::NAN; KINDS.len()], |(_, times)| {
        times.each_ref().map(|times| of(times).median())
    })
}

/// What two threads change in the time of one, for each round by itself, and of that the median: what changes on the
/// machine from round to round is in both.
fn by_rounds(lines: &[Line], kind: usize) -> f64 {
    let of = |way| {
        let line = lines.iter().find(|(other, _)| *other == way);
        line.and_then(|(_, times)| times.get(kind))
            .into_iter()
            .flat_map(|times| times.wall.values())
    };
    let rounds = of(Way::Threads(1)).zip(of(Way::Threads(2)));
    rounds.map(|(alone, two)| difference_percent(alone, two)).collect::<Samples>().median()
}

/// Says which marks were met, where both ways of a mark were run.
fn judge(lines: &[Line], report: &mut Report) -> Result<()> {
    let of = |way| median_of(lines, way);
    let (call, alone, two) = (of(Way::OneCall), of(Way::Threads(1)), of(Way::Threads(2)));
    let (one_mark, two_mark) = (report.mark("one-thread")?, report.mark("two-threads")?);
    for (kind, (_, name)) in KINDS.iter().enumerate() {
        let at = |medians: &[f64; KINDS.len()]| medians.get(kind).copied().unwrap_or(f64::NAN);
        let one = difference_percent(at(&call), at(&alone));
        let both = difference_percent(at(&alone), at(&two));
        let zeroing = difference_percent(at(&of(Way::Resident(1))), at(&of(Way::Resident(2))));
        let registers = difference_percent(at(&of(Way::Registers(1))), at(&of(Way::Registers(2))));
        let cpu = |way| at(&medians(lines, way, |times| &times.cpu));
        let cpu_time = difference_percent(cpu(Way::Threads(1)), cpu(Way::Threads(2)));
        if !one.is_nan() {
            let verdict = one_mark.verdict(&[one]);
            report.add_remark(format!("{name}, 1 thread against one call: {one:+.1} % {verdict}"));
        }
        if !both.is_nan() {
            report.add_remark(format!(
                "{name}, 2 threads against 1: {both:+.1} % {} (zeroing what is resident: {zeroing:+.1} %; \
                 arithmetic in registers: {registers:+.1} %; CPU time: {cpu_time:+.1} %); by the median of the \
                 rounds' own differences {:+.1} %",
                two_mark.verdict(&[both]),
                by_rounds(lines, kind),
            ));
        }
        let why = if both.is_nan() {
            "1 and 2 threads were not both run, or the system runs only one at once".to_owned()
        } else {
            format!(
                "{name}: two threads that zero what is resident change it by {zeroing:+.1} %, two that only calculate \
                 by {registers:+.1} %; both together need {cpu_time:+.1} % of CPU time beside one"
            )
        };
        report.claim("003", "two-threads", &[both], &why)?;
    }
    Ok(())
}

fn add_imbalance(plan: &Plan, deadline: Deadline, report: &mut Report) -> Result<()> {
    let threads = plan.threads_max;
    if threads < 2 {
        report.left_out("a job with one slow piece", "the system runs only one thread at once");
        return Ok(());
    }
    let mark = report.mark("imbalance")?;
    let mut table = Table::new(
        format!("One piece takes 8 times as long, {threads} threads"),
        [
            "pieces a thread",
            "the slow piece is",
            "wall, as a multiple of the ideal",
            "least",
            "most",
        ],
    );
    let cases = PIECES_A_THREAD.iter().flat_map(|&pieces| Slow::ALL.map(|slow| (pieces, slow)));
    let mut cases: Vec<_> = cases.map(|case| (case, Imbalance::default())).collect();
    for round in 0..plan.repeat {
        if round >= LEAST_ROUNDS && deadline.is_over() {
            break;
        }
        for ((pieces, slow), imbalance) in &mut cases {
            imbalance.run(*slow, threads, *pieces)?;
        }
    }
    for ((pieces, slow), imbalance) in cases {
        let summary = imbalance.multiples.summary();
        let numbers = [summary.median, summary.minimum, summary.maximum];
        let numbers = numbers.map(|number| format!("{number:.3}"));
        table.add([pieces.to_string(), slow.name().to_owned()].into_iter().chain(numbers));
        report.add_remark(format!(
            "{pieces} pieces a thread, slow piece {}: {:.2} times the ideal {}",
            slow.name(),
            summary.median,
            mark.verdict(&[summary.median])
        ));
        report.add_series(Series {
            row: format!("slow piece {}", slow.name()),
            case: format!("{threads} threads, {pieces} pieces each"),
            unit: "of the ideal",
            samples: imbalance.multiples,
        });
    }
    report.add_table(table);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Way, doubling};

    #[test]
    fn thread_counts_double_up_to_what_there_is() {
        assert_eq!(doubling(1), [1]);
        assert_eq!(doubling(2), [1, 2]);
        assert_eq!(doubling(6), [1, 2, 4, 6]);
    }

    #[test]
    fn ways_have_names() {
        assert_eq!(Way::Threads(1).name(), "1 thread");
        assert_eq!(Way::Threads(4).name(), "4 threads");
    }
}
