//! The jobs experiment: memory faulted in by one thread and by more, beside one system call over the same range, on all NUMA
//! nodes and on each; the start of a mount that faults its reserve in; and a job with one slow chunk.

use std::convert::Infallible;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use ferrofs_image::MemoryPool;
use ferrofs_workers::cpus::{AvailableCpus, CpuSet};
use ferrofs_workers::jobs::ParallelFor;
use ferrofs_workers::memory::{Mapping, PageSize};
use serde::Serialize;

use crate::daemon::{Daemon, DaemonOptions, listeners};
use crate::experiment::{Context, Experiment};
use crate::machine::{Requirement, missing};
use crate::page_store::PAGE_BYTES;
use crate::plot::Plot;
use crate::procfs::{Usage, available_kib};
use crate::report::{Report, Table};
use crate::rounds::{Deadline, StealFilter, TimeLimit};
use crate::statistics::{Samples, difference_percent};

const GIB: usize = 1 << 30;
const QUICK_REPEAT: u16 = 3;
/// Memory that must stay free, in KiB.
const SPARE_KIB: u64 = 512 << 10;
/// Arithmetic for each page, so that it takes about as long as the page's fault.
const STEPS_PER_PAGE: usize = 256;
const KINDS: [(PageSize, &str); 2] =
    [(PageSize::Small, "4 KiB pages"), (PageSize::Huge, "huge pages")];
/// The share of each kind of the rest of the time, that of variants that fault within it, of nodes, and of mounts.
const KIND_SHARES: [f64; KINDS.len()] = [0.5, 0.4];
const FAULTS_SHARE: f64 = 0.75;
const NODES_SHARE: f64 = 0.3;
const STARTS_SHARE: f64 = 0.7;
/// The limits of the machine are measured in one of this many rounds.
const LIMITS_DIVISOR: u16 = 3;
/// Rounds of parts that take no samples again, however long they take.
const LEAST_ROUNDS: u16 = 3;
/// Memory of a mount; the reserve is an eighth of it, as by the command.
const MOUNT_BYTES: u64 = 8 << 30;
const RESERVE_BYTES: u64 = MOUNT_BYTES / 8;
const MOUNT: &str = "the start of a mount";
/// The slow chunk takes this many times as long as the others.
const SLOW_FACTOR: u64 = 8;
/// padata's rule, and the setting for chunks that differ much.
const CHUNKS_PER_THREAD: [u64; 2] = [4, 32];
/// Rounds of computing for each thread, less what the slow chunk adds: some 80 ms.
const THREAD_ROUNDS: u64 = 80_000_000;
const PLACES: [&str; 3] = ["first", "in the middle", "last"];

#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct JobsArguments {
    /// Memory to fault in, in GiB; half of one with --quick
    #[arg(short, long, value_name = "GIB", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    gib: u16,
    /// Threads, one line for each number; 1, 2, 4 and so on up to what the system runs at once if none is named
    #[arg(short, long, value_name = "N", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    threads: Vec<u16>,
    /// Rounds, after one that does not count; 3 at most with --quick
    #[arg(short = 'c', long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeat: u16,
    /// An image, to see what it saves when a mount of it starts (needs root)
    #[arg(long, value_name = "IMAGE")]
    image: Option<PathBuf>,
    #[command(flatten)]
    limit: TimeLimit,
}

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    /// One MADV_POPULATE_WRITE over all of it.
    OneCall,
    Threads(usize),
    /// Zeros written to resident memory: the most that the machine's memory can do at that moment.
    Resident(usize),
    /// Arithmetic in registers: the most that its CPUs can do.
    Registers(usize),
}

impl Variant {
    fn name(self) -> String {
        let threads =
            |count| if count == 1 { "1 thread".to_owned() } else { format!("{count} threads") };
        match self {
            Self::OneCall => "one call".to_owned(),
            Self::Threads(count) => threads(count),
            Self::Resident(count) => format!("zeroing resident memory, {}", threads(count)),
            Self::Registers(count) => format!("arithmetic in registers, {}", threads(count)),
        }
    }
}

/// Milliseconds of wall and CPU time; CPU time leaves out steal time.
#[derive(Debug, Clone, Default)]
struct Times {
    wall: Samples,
    cpu: Samples,
}

/// One variant, for each kind of pages.
type Line = (Variant, [Times; KINDS.len()]);

/// What is run.
struct Plan {
    bytes: usize,
    repeat: u16,
    threads: Vec<usize>,
    threads_max: usize,
}

impl Experiment for JobsArguments {
    fn requirements(&self) -> Vec<Requirement> {
        self.image.iter().cloned().map(Requirement::File).collect()
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let plan = self.plan(context)?;
        let (mib, repeat) = (plan.bytes >> 20, plan.repeat);
        context.say(format!("faulting in {mib} MiB, {repeat} times in each variant"))?;
        let deadline = self.limit.deadline();
        let mut filter = StealFilter::default();
        let lines = plan.prefault(deadline, &mut filter)?;
        add_prefault(&plan, &lines, &mut context.report)?;
        context.report.remark(filter.to_string());
        context.say("the same on each node")?;
        plan.on_nodes(deadline.share(NODES_SHARE), &mut context.report)?;
        context.say("starts of a mount")?;
        let starts = deadline.share(STARTS_SHARE);
        plan.starts(self.image.as_deref(), starts, &mut context.report)?;
        context.say(format!("a job with one slow chunk, {repeat} times in each place"))?;
        plan.imbalance(deadline, &mut context.report)
    }
}

impl JobsArguments {
    fn plan(&self, context: &Context<'_>) -> Result<Plan> {
        let threads_max = AvailableCpus::read().parallelism();
        let mut threads: Vec<usize> = self.threads.iter().copied().map(usize::from).collect();
        if threads.is_empty() {
            threads = doubling(threads_max);
        }
        let most = threads.iter().copied().max().unwrap_or(1);
        ensure!(most <= threads_max, "{most} threads, but the system runs {threads_max} at once");
        let bytes = if context.is_quick { GIB / 2 } else { usize::from(self.gib) * GIB };
        let (needed, available) = (u64::try_from(bytes / 1024)? + SPARE_KIB, available_kib());
        ensure!(
            available >= needed,
            "this needs {needed} KiB of memory, {available} KiB are available; --gib takes less"
        );
        Ok(Plan { bytes, repeat: context.rounds(self.repeat, QUICK_REPEAT), threads, threads_max })
    }
}

/// 1, 2, 4 and so on, and the last.
fn doubling(last: usize) -> Vec<usize> {
    let below = std::iter::successors(Some(1), |count| Some(count * 2));
    below.take_while(|&count| count < last).chain([last]).collect()
}

impl Plan {
    /// Every variant that faults memory in, in turn, on a fresh mapping each, after a warm-up round; then the limits of the
    /// machine, which vary less, in fewer rounds. One kind of pages after the other.
    fn prefault(&self, deadline: Deadline, filter: &mut StealFilter) -> Result<Vec<Line>> {
        let line = |variant| (variant, Default::default());
        let of = |variant: fn(usize) -> Variant| {
            self.threads.iter().map(move |&count| line(variant(count)))
        };
        let mut faults: Vec<Line> = vec![line(Variant::OneCall)];
        faults.extend(of(Variant::Threads));
        let mut limits: Vec<Line> = of(Variant::Resident).chain(of(Variant::Registers)).collect();
        for (kind, share) in KIND_SHARES.into_iter().enumerate() {
            let share = deadline.share(share);
            let of_faults = share.share(FAULTS_SHARE);
            self.measure(kind, self.repeat, &mut faults, of_faults, filter)?;
            self.measure(kind, self.repeat.div_ceil(LIMITS_DIVISOR), &mut limits, share, filter)?;
        }
        faults.extend(limits);
        Ok(faults)
    }

    fn measure(
        &self,
        kind: usize,
        rounds: u16,
        lines: &mut [Line],
        deadline: Deadline,
        filter: &mut StealFilter,
    ) -> Result<()> {
        let (pages, _) = KINDS[kind];
        let variants: Vec<Variant> = lines.iter().map(|(variant, _)| *variant).collect();
        for variant in &variants {
            time(*variant, pages, self.bytes)?;
        }
        let turns = (0..rounds).flat_map(|_| 0..variants.len());
        let found =
            filter.sample(turns, deadline, |turn| time(variants[turn], pages, self.bytes))?;
        for (turn, (wall, cpu)) in found {
            let times = &mut lines[turn].1[kind];
            times.wall.push(wall);
            times.cpu.push(cpu);
        }
        Ok(())
    }

    /// Faulting in on each NUMA node by its CPUs, which places the memory there.
    fn on_nodes(&self, deadline: Deadline, report: &mut Report) -> Result<()> {
        let home = CpuSet::of_current_thread();
        let nodes = AvailableCpus::read().nodes().to_vec();
        let title =
            format!("Faulting in {} MiB on each node, 4 KiB pages, median", self.bytes >> 20);
        let mut table = Table::new(title, "node | CPUs | 1 thread, ms | one a CPU, ms | diff");
        let measured = nodes.iter().enumerate().map(|(place, node)| {
            let share = deadline.share(1.0 / (nodes.len() - place) as f64);
            node.cpus
                .bind_current_thread()
                .with_context(|| format!("binding to node {}", node.id))?;
            let mut samples = [Samples::default(), Samples::default()];
            for round in 0..=self.repeat {
                if round > LEAST_ROUNDS && share.is_over() {
                    break;
                }
                for (samples, threads) in samples.iter_mut().zip([1, node.cpus.len()]) {
                    let (wall, _) = time(Variant::Threads(threads), PageSize::Small, self.bytes)?;
                    if round > 0 {
                        samples.push(wall);
                    }
                }
            }
            Ok(samples)
        });
        let measured: Result<Vec<_>> = measured.collect();
        home.bind_current_thread().context("unbinding from a node")?;
        for (node, [alone, together]) in nodes.iter().zip(measured?) {
            let (one, all) = (alone.median(), together.median());
            let diff = format!("{:+.1} %", difference_percent(one, all));
            let times = [one, all].map(|time| format!("{time:.1}"));
            let names = [node.id.to_string(), node.cpus.len().to_string()];
            table.add(names.into_iter().chain(times).chain([diff]));
            for (row, samples) in [("1 thread", alone), ("one thread a CPU", together)] {
                report.series(row, format!("node {}", node.id), "ms", &samples);
            }
        }
        report.table(table);
        Ok(())
    }

    /// The start of a mount that faults its reserve in, as `ferrofs mount --memory 8g --prefault` does: not at all, by one
    /// thread, and by as many as the system runs at once.
    fn starts(&self, image: Option<&Path>, deadline: Deadline, report: &mut Report) -> Result<()> {
        let needed = RESERVE_BYTES / 1024 + SPARE_KIB;
        let Some(image) = image else {
            report.leave_out(MOUNT, "no image was named: --image");
            return Ok(());
        };
        let why = missing(&[Requirement::Root, Requirement::Fuse]);
        let is_short = available_kib() < needed;
        if let Some(why) = why.or(is_short.then(|| format!("it takes {needed} KiB of memory"))) {
            report.leave_out(MOUNT, why);
            return Ok(());
        }
        let directory = tempfile::Builder::new().prefix("ferrofs-launches-").tempdir()?;
        let mut threads = vec![None, Some(1), Some(self.threads_max)];
        threads.dedup();
        // A warm-up round.
        for &count in &threads {
            start_mount(count, image, directory.path())?;
        }
        let mut samples = vec![[Samples::default(), Samples::default()]; threads.len()];
        let mut filter = StealFilter::default();
        let turns = (0..self.repeat).flat_map(|_| 0..threads.len());
        let start = |turn: usize| start_mount(threads[turn], image, directory.path());
        for (turn, times) in filter.sample(turns, deadline, start)? {
            samples[turn].iter_mut().zip(times).for_each(|(samples, time)| samples.push(time));
        }
        add_starts(&threads, &samples, report);
        report.remark(format!("starts of a mount: {filter}"));
        Ok(())
    }

    fn imbalance(&self, deadline: Deadline, report: &mut Report) -> Result<()> {
        let threads = self.threads_max;
        if threads < 2 {
            report
                .leave_out("a job with one slow chunk", "the system runs only one thread at once");
            return Ok(());
        }
        let title = format!("One chunk takes 8 times as long, {threads} threads");
        let header = "chunks per thread | the slow chunk is | wall, as a multiple of the ideal | least | most";
        let mut table = Table::new(title, header);
        let cases =
            CHUNKS_PER_THREAD.iter().flat_map(|&chunks| PLACES.map(|place| (chunks, place)));
        let mut cases: Vec<_> = cases.map(|case| (case, Samples::default())).collect();
        for round in 0..self.repeat {
            if round >= LEAST_ROUNDS && deadline.is_over() {
                break;
            }
            for ((chunks, place), samples) in &mut cases {
                samples.push(run_imbalanced(place, threads, *chunks)?);
            }
        }
        for ((chunks, place), samples) in cases {
            let summary = samples.summary();
            let numbers = [summary.median, summary.minimum, summary.maximum];
            let numbers = numbers.map(|number| format!("{number:.3}"));
            table.add([chunks.to_string(), place.to_owned()].into_iter().chain(numbers));
            let text = format!("{chunks} chunks per thread, slow chunk {place}");
            let text = format!("{text}: {:.2} times the ideal", summary.median);
            report.judged_remark(&text, "imbalance", &[summary.median])?;
            let case = format!("{threads} threads, {chunks} chunks each");
            report.series(format!("slow chunk {place}"), case, "of the ideal", &samples);
        }
        report.table(table);
        Ok(())
    }
}

/// Faults memory in and frees it, so that the next sample gets memory that was just freed: a virtual machine may return
/// memory that is free for some seconds to its host, and then a fault measures the host.
fn warm_up(bytes: usize) -> Result<()> {
    let mut mapping = Mapping::anonymous(bytes, PageSize::Huge).context("mapping memory")?;
    mapping.populate().context("faulting memory in")?;
    Ok(())
}

/// Milliseconds of wall and CPU time.
fn time(variant: Variant, pages: PageSize, bytes: usize) -> Result<(f64, f64)> {
    if matches!(variant, Variant::OneCall | Variant::Threads(_)) {
        warm_up(bytes)?;
    }
    let mut mapping = Mapping::anonymous(bytes, pages).context("mapping memory")?;
    if matches!(variant, Variant::Resident(_)) {
        mapping.populate().context("faulting memory in")?;
    }
    let (start, before) = (Instant::now(), Usage::now());
    match variant {
        Variant::OneCall => drop(mapping.populate().context("faulting memory in")?),
        Variant::Threads(count) => drop(mapping.prefault(count).context("faulting memory in")?),
        Variant::Resident(count) => zero(mapping.bytes_mut(), count),
        Variant::Registers(count) => compute_on(count, bytes / PAGE_BYTES),
    }
    let wall = start.elapsed().as_secs_f64() * 1e3;
    Ok((wall, Usage::now().since(before).cpu.as_secs_f64() * 1e3))
}

/// Page by page, as the kernel does it.
fn zero(bytes: &mut [u8], threads: usize) {
    let zero_pages = |bytes: &mut [u8]| {
        bytes.chunks_mut(PAGE_BYTES).for_each(|page| black_box(page).fill(0));
    };
    let part = bytes.len().div_ceil(threads.max(1)).next_multiple_of(PAGE_BYTES);
    thread::scope(|scope| {
        let mut parts = bytes.chunks_mut(part);
        let own = parts.next();
        for part in parts {
            scope.spawn(move || zero_pages(part));
        }
        own.map(zero_pages);
    });
}

/// Arithmetic that has nothing to do with memory, divided among the threads. Each step needs the one before.
fn compute_on(threads: usize, pages: usize) {
    let steps = pages / threads.max(1) * STEPS_PER_PAGE;
    let compute = move || {
        let mut value = black_box(1_u64);
        for _ in 0..steps {
            value ^= value << 13;
            value ^= value >> 7;
            value ^= value << 17;
        }
        black_box(value);
    };
    thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(compute)));
        compute();
    });
}

fn times_of(lines: &[Line], variant: Variant, kind: usize) -> Times {
    let line = lines.iter().find(|(other, _)| *other == variant);
    line.map_or_else(Times::default, |(_, times)| times[kind].clone())
}

fn add_prefault(plan: &Plan, lines: &[Line], report: &mut Report) -> Result<()> {
    let header =
        KINDS.map(|(_, name)| format!(" | {name}, ms | diff | least–most | CPU ms")).concat();
    let mib = plan.bytes >> 20;
    let mut table = Table::new(format!("Faulting in {mib} MiB, median"), &header);
    let mut plot = Plot::bars(format!("Faulting in {mib} MiB"), "ms, median, and least to most");
    for (variant, times) in lines {
        let mut row = vec![variant.name()];
        for (kind, Times { wall, cpu }) in times.iter().enumerate() {
            let summary = wall.summary();
            let alone = times_of(lines, Variant::Threads(1), kind).wall.median();
            row.push(format!("{:.1}", summary.median));
            row.push(format!("{:+.1} %", difference_percent(alone, summary.median)));
            row.push(format!("{:.1}–{:.1}", summary.minimum, summary.maximum));
            row.push(format!("{:.1}", cpu.median()));
            let (_, name) = KINDS[kind];
            report.series(variant.name(), name, "ms", wall);
            report.series(variant.name(), format!("{name}, CPU"), "ms", cpu);
        }
        table.add(row);
    }
    for (kind, (_, name)) in KINDS.iter().enumerate() {
        for (variant, times) in lines {
            plot.median_bar(*name, variant.name(), &times[kind].wall);
            if matches!(variant, Variant::Threads(1 | 2)) {
                let what = format!("{}, {name}", variant.name());
                report.judge_repetitions(&what, &times[kind].wall)?;
            }
        }
    }
    report.table(table);
    report.plot(plot);
    (0..KINDS.len()).try_for_each(|kind| judge(lines, kind, report))
}

/// Remarks and the claim for one kind of pages, where the variants were run.
fn judge(lines: &[Line], kind: usize, report: &mut Report) -> Result<()> {
    let times = |variant| times_of(lines, variant, kind);
    let wall = |variant| times(variant).wall.median();
    let (alone, two) = (times(Variant::Threads(1)), times(Variant::Threads(2)));
    let (_, name) = KINDS[kind];
    let one = difference_percent(wall(Variant::OneCall), alone.wall.median());
    if !one.is_nan() {
        let text = format!("{name}, 1 thread against one call: {one:+.1} %");
        report.judged_remark(&text, "one-thread", &[one])?;
    }
    let both = difference_percent(alone.wall.median(), two.wall.median());
    let zeroing = difference_percent(wall(Variant::Resident(1)), wall(Variant::Resident(2)));
    let registers = difference_percent(wall(Variant::Registers(1)), wall(Variant::Registers(2)));
    let cpu = difference_percent(alone.cpu.median(), two.cpu.median());
    let mut why =
        "1 and 2 threads were not both run, or the system runs only one at once".to_owned();
    if !both.is_nan() {
        // A change of the machine from round to round is in both times of a round.
        let rounds = alone.wall.values().zip(two.wall.values());
        let by_rounds: Samples =
            rounds.map(|(alone, two)| difference_percent(alone, two)).collect();
        let by_rounds = by_rounds.median();
        let limits = format!(
            "zeroing resident memory: {zeroing:+.1} %; arithmetic in registers: {registers:+.1} %; CPU time: {cpu:+.1} %"
        );
        let text = format!(
            "{name}, 2 threads against 1: {both:+.1} %, by the median of the rounds' own differences {by_rounds:+.1} % ({limits})"
        );
        report.judged_remark(&text, "two-threads", &[both])?;
        why = format!("{name}, two threads against one: {limits}");
    }
    report.claim("003", "two-threads", &[both], &why)
}

/// Milliseconds until a mount is ready, and those for faulting memory in.
fn start_mount(threads: Option<usize>, image: &Path, directory: &Path) -> Result<[f64; 2]> {
    warm_up(usize::try_from(RESERVE_BYTES)?)?;
    let begin = Instant::now();
    let pages = u32::try_from(RESERVE_BYTES / PAGE_BYTES as u64)?;
    let memory = MemoryPool::with_reserve(MOUNT_BYTES, pages, listeners());
    let memory = memory.context("memory of a mount")?;
    let before = Instant::now();
    if let Some(threads) = threads {
        let got = memory.prefault(threads).context("faulting memory in")?;
        ensure!(got > 0, "no memory was faulted in");
    }
    let faulting = before.elapsed();
    let daemon = Daemon::start(image, directory, DaemonOptions::default(), &memory)?;
    let ready = begin.elapsed();
    daemon.end()?;
    Ok([ready, faulting].map(|time| time.as_secs_f64() * 1e3))
}

fn add_starts(threads: &[Option<usize>], samples: &[[Samples; 2]], report: &mut Report) {
    let title =
        format!("A mount with {} GiB of memory: until it is ready, median", MOUNT_BYTES >> 30);
    let mut plot = Plot::bars(title.clone(), "ms, median, and least to most");
    let header = "an eighth of it is faulted in | ready, ms | faulting, ms | diff";
    let mut table = Table::new(title, header);
    let ready_by = |wanted: Option<usize>| {
        let mut all = threads.iter().zip(samples);
        all.find(|(threads, _)| **threads == wanted).map_or(f64::NAN, |(_, of)| of[0].median())
    };
    let alone = ready_by(Some(1));
    for (threads, [ready, faulting]) in threads.iter().zip(samples) {
        let name = match threads {
            None => "nothing faulted in".to_owned(),
            Some(1) => "by 1 thread".to_owned(),
            Some(count) => format!("by {count} threads"),
        };
        let times = [ready, faulting].map(|samples| format!("{:.1}", samples.median()));
        let diff = format!("{:+.1} %", difference_percent(alone, ready.median()));
        table.add([name.clone()].into_iter().chain(times).chain([diff]));
        plot.median_bar("ready", &name, ready);
        report.series(&name, "ready", "ms", ready);
        report.series(&name, "faulting in", "ms", faulting);
    }
    report.table(table);
    report.plot(plot);
    let saved = difference_percent(alone, ready_by(threads.iter().copied().max().flatten()));
    report.remark(format!("more than one thread change the start of a mount by {saved:+.1} %"));
}

fn slow_chunk(place: &str, chunks: u64) -> u64 {
    match place {
        "first" => 0,
        "last" => chunks - 1,
        _ => chunks / 2,
    }
}

/// Wall time as a multiple of the ideal: all work spread evenly, but no less than the slow chunk. The cost of an ordinary
/// chunk is measured beside it, since a shared machine's speed changes.
fn run_imbalanced(place: &str, threads: usize, chunks_per_thread: u64) -> Result<f64> {
    let chunks = u64::try_from(threads)? * chunks_per_thread;
    let slow = slow_chunk(place, chunks);
    let rounds = THREAD_ROUNDS / chunks_per_thread;
    let compute = |rounds: u64| {
        black_box((0..rounds).fold(1_u64, |value, round| black_box(value ^ round).rotate_left(7)));
    };
    let time_chunk = || {
        let start = Instant::now();
        compute(rounds);
        start.elapsed()
    };
    let before = time_chunk();
    let start = Instant::now();
    let job =
        ParallelFor::over(0..chunks).max_threads(threads).chunks_per_thread(chunks_per_thread);
    let outcome: Result<_, Infallible> = job.run(|range| {
        for chunk in range {
            compute(if chunk == slow { SLOW_FACTOR * rounds } else { rounds });
        }
        Ok(())
    });
    let wall = start.elapsed();
    let Ok(report) = outcome;
    let chunk: Duration = (before + time_chunk()) / 2;
    ensure!(report.chunks == chunks, "{} chunks of {chunks}", report.chunks);
    let even = (chunks - 1 + SLOW_FACTOR) as f64 / threads as f64;
    Ok(wall.as_secs_f64() / (chunk.as_secs_f64() * even.max(SLOW_FACTOR as f64)))
}

#[cfg(test)]
mod tests {
    use super::{PLACES, Variant, doubling, slow_chunk};

    #[test]
    fn thread_counts_double_up_to_the_last() {
        assert_eq!([doubling(1), doubling(2)], [vec![1], vec![1, 2]]);
        assert_eq!(doubling(6), [1, 2, 4, 6]);
    }

    #[test]
    fn variants_and_slow_chunks_are_where_their_names_say() {
        assert_eq!(Variant::Threads(1).name(), "1 thread");
        assert_eq!(Variant::Threads(4).name(), "4 threads");
        assert_eq!(PLACES.map(|place| slow_chunk(place, 8)), [0, 4, 7]);
    }
}
