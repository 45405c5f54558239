//! The jobs experiment: memory faulted in by one thread and by more, beside one system call over the same range, on all NUMA
//! nodes and on each; the start of a mount that faults its reserve in; and a job with one slow chunk.

use std::convert::Infallible;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use ferrofs_image::{MemoryPool, SyncDecompress};
use ferrofs_workers::cpus::{AvailableCpus, CpuSet};
use ferrofs_workers::jobs::ParallelFor;
use ferrofs_workers::memory::{Mapping, PageSize};

use crate::daemon::{Daemon, ThreadPolicy, listeners, mount_folder};
use crate::experiment::{Candidate, Context, Experiment, RoundOptions, up_to};
use crate::machine::{Requirement, Usage, available_kib, missing};
use crate::page_store::PAGE_BYTES;
use crate::statistics::{Figures, Measured, Samples, difference_percent, find};

const GIB: usize = 1 << 30;
/// Memory that must stay free, in KiB.
const SPARE_KIB: u64 = 512 << 10;
/// Arithmetic for each page, so that it takes about as long as the page's fault.
const STEPS_PER_PAGE: usize = 256;
const KINDS: [(PageSize, &str); 2] =
    [(PageSize::Small, "4 KiB pages"), (PageSize::Huge, "huge pages")];
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
/// Where the slow chunk is, in halves of the job.
const PLACES: [(&str, u64); 3] = [("first", 0), ("in the middle", 1), ("last", 2)];

const TIME: &str = "wall";
/// It leaves out steal time.
const CPU_TIME: &str = "CPU";
const READY: &str = "ready";

#[derive(Debug, Clone, Args)]
pub(crate) struct JobsArguments {
    /// Memory to fault in, in GiB. With --quick, always 1/8 GiB
    #[arg(short, long, value_name = "GIB", default_value_t = 4, value_parser = up_to(u16::MAX))]
    gib: u16,
    /// Numbers of threads; one line for each number [default: 1, 2, 4 and so on, up to the number of CPUs available to
    /// the process]
    #[arg(short, long, value_name = "N", value_delimiter = ',', value_parser = up_to(u16::MAX))]
    threads: Vec<u16>,
    /// Also measure how much time several threads save at the start of a mount of this image (needs root)
    #[arg(long, value_name = "IMAGE")]
    image: Option<PathBuf>,
    #[command(flatten)]
    rounds: RoundOptions,
}

/// A way to pass the time of faulting memory in.
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

impl Experiment for JobsArguments {
    fn requirements(&self) -> Vec<Requirement> {
        self.image.iter().cloned().map(Requirement::File).collect()
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let threads_max = AvailableCpus::read().parallelism();
        let mut threads: Vec<usize> = self.threads.iter().copied().map(usize::from).collect();
        if threads.is_empty() {
            threads = doubling(threads_max);
        }
        let most = threads.iter().copied().max().unwrap_or(1);
        ensure!(most <= threads_max, "{most} threads, but the system runs {threads_max} at once");
        let bytes = if context.is_quick { GIB / 8 } else { usize::from(self.gib) * GIB };
        let (needed, available) = (u64::try_from(bytes / 1024)? + SPARE_KIB, available_kib());
        ensure!(
            available >= needed,
            "this needs {needed} KiB of memory, {available} KiB are available; --gib takes less"
        );
        context.plan(self.rounds, KINDS.len() + AvailableCpus::read().nodes().len() + 2);
        prefault(bytes, &threads, context)?;
        on_nodes(bytes, context)?;
        starts(self.image.as_deref(), threads_max, context)?;
        imbalance(threads_max, context)
    }
}

/// 1, 2, 4 and so on, and the last.
fn doubling(last: usize) -> Vec<usize> {
    let below = std::iter::successors(Some(1), |count| Some(count * 2));
    below.take_while(|&count| count < last).chain([last]).collect()
}

/// Every variant, on a fresh mapping each, for one kind of pages after the other.
fn prefault(bytes: usize, threads: &[usize], context: &mut Context<'_>) -> Result<()> {
    let kinds = [Variant::Threads, Variant::Resident, Variant::Registers];
    let of = kinds.iter().flat_map(|kind| threads.iter().map(move |&count| kind(count)));
    let variants: Vec<Variant> = [Variant::OneCall].into_iter().chain(of).collect();
    let mib = (bytes >> 20).to_string();
    for (pages, case) in KINDS {
        let candidate = |&variant: &Variant| {
            Candidate::ours(variant.name(), move || time(variant, pages, bytes))
        };
        let candidates = variants.iter().map(candidate).collect();
        let all = context.compare(["faults", &mib, case], &[], candidates)?;
        explain(case, &all, context);
    }
    Ok(())
}

/// Faulting in on each NUMA node by its CPUs, which places the memory there.
fn on_nodes(bytes: usize, context: &mut Context<'_>) -> Result<()> {
    let home = CpuSet::of_current_thread();
    let mib = (bytes >> 20).to_string();
    for node in AvailableCpus::read().nodes() {
        let case = format!("{}: {}", node.id, node.cpus.len());
        let bound = node.cpus.bind_current_thread();
        bound.with_context(|| format!("binding to node {}", node.id))?;
        let candidate = |(name, threads): (&str, usize)| {
            let variant = Variant::Threads(threads);
            Candidate::ours(name, move || time(variant, PageSize::Small, bytes))
        };
        let ways = [("1 thread", 1), ("one thread a CPU", node.cpus.len())];
        let measured = context.measure(&case, ways.map(candidate).into());
        home.bind_current_thread().context("unbinding from a node")?;
        context.report.add("nodes", &mib, &case, &measured?)?;
    }
    Ok(())
}

/// The start of a mount that faults its reserve in, as `ferrofs mount --memory 8g --prefault` does: not at all, by one
/// thread, and by as many as the system runs at once.
fn starts(image: Option<&Path>, most: usize, context: &mut Context<'_>) -> Result<()> {
    let needed = RESERVE_BYTES / 1024 + SPARE_KIB;
    let is_short = available_kib() < needed;
    let missing_requirement = missing(&[Requirement::Root, Requirement::Fuse])
        .or(is_short.then(|| format!("it takes {needed} KiB of memory")));
    let (image, missing_requirement) = match image {
        None => (Path::new(""), Some("no image was named: --image".to_owned())),
        Some(image) => (image, missing_requirement),
    };
    if let Some(why) = missing_requirement {
        context.report.leave_out(MOUNT, why);
        return Ok(());
    }
    let directory = mount_folder()?;
    let mut ways =
        vec![("nothing faulted in".to_owned(), None), ("by 1 thread".to_owned(), Some(1))];
    ways.extend((most > 1).then(|| (format!("by {most} threads"), Some(most))));
    let candidates = ways.iter().map(|(name, threads)| {
        Candidate::ours(name, || start_mount(*threads, image, directory.path()))
    });
    let all = context.measure(MOUNT, candidates.collect())?;
    context.report.add("starts", &(MOUNT_BYTES >> 30).to_string(), "", &all)?;
    let saved = all.iter().skip(1).map(|one| one.median(READY)).collect::<Vec<_>>();
    if let [alone, .., together] = saved[..] {
        let saved = difference_percent(alone, together);
        let text = "more than one thread change the start of a mount by";
        context.report.remark(format!("{text} {saved:+.1} %"));
    }
    Ok(())
}

fn imbalance(threads: usize, context: &mut Context<'_>) -> Result<()> {
    if threads < 2 {
        let why = "the system runs only one thread at once";
        context.report.leave_out("a job with one slow chunk", why);
        return Ok(());
    }
    let ways = CHUNKS_PER_THREAD.iter().flat_map(|&chunks| PLACES.map(|place| (chunks, place)));
    let candidates = ways.map(|(chunks, (name, halves))| {
        let run = move || Ok(vec![("of the ideal", run_imbalanced(halves, threads, chunks)?)]);
        Candidate::ours(format!("{chunks} chunks per thread, slow chunk {name}"), run)
    });
    let case = format!("a job with one slow chunk, {threads} threads");
    context.compare(["imbalance", &threads.to_string(), &case], &[], candidates.collect())?;
    Ok(())
}

/// Remarks and noise for one kind of pages, where the variants were run.
fn explain(case: &str, all: &[Measured], context: &mut Context<'_>) {
    let samples = |variant: Variant, figure| {
        find(all, &variant.name()).map_or_else(Samples::default, |one| one.samples(figure).clone())
    };
    let differ = |before, after, figure| {
        difference_percent(samples(before, figure).median(), samples(after, figure).median())
    };
    let [one, two] = [1, 2].map(Variant::Threads);
    for variant in [one, two] {
        let what = format!("{}, {case}", variant.name());
        context.report.evaluate_noise(&what, &samples(variant, TIME));
    }
    let both = differ(one, two, TIME);
    if both.is_nan() {
        return;
    }
    // A change of the machine from round to round is in both times of a round.
    let (alone, together) = (samples(one, TIME), samples(two, TIME));
    let rounds = alone.0.iter().zip(&together.0);
    let by_rounds: Samples = rounds.map(|(one, two)| difference_percent(*one, *two)).collect();
    let limits = format!(
        "zeroing resident memory: {:+.1} %; arithmetic in registers: {:+.1} %; CPU time: {:+.1} %",
        differ(Variant::Resident(1), Variant::Resident(2), TIME),
        differ(Variant::Registers(1), Variant::Registers(2), TIME),
        differ(one, two, CPU_TIME),
    );
    context.report.explain("two-threads", format!("{case}, two threads against one: {limits}"));
    context.report.remark(format!(
        "{case}, 2 threads against 1: {both:+.1} %, by the median of the rounds' own differences {:+.1} % ({limits})",
        by_rounds.median()
    ));
}

/// Faults memory in and frees it, so that the next sample gets memory that was just freed: a virtual machine may return
/// memory that is free for some seconds to its host, and then a fault measures the host.
fn warm_up(bytes: usize) -> Result<()> {
    let mut mapping = Mapping::anonymous(bytes, PageSize::Huge).context("mapping memory")?;
    mapping.populate().context("faulting memory in")?;
    Ok(())
}

fn time(variant: Variant, pages: PageSize, bytes: usize) -> Result<Figures> {
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
    let (wall, cpu) = (start.elapsed(), Usage::now().since(before).cpu);
    Ok(vec![(TIME, wall.as_secs_f64() * 1e3), (CPU_TIME, cpu.as_secs_f64() * 1e3)])
}

/// Page by page, as the kernel does it.
fn zero(bytes: &mut [u8], threads: usize) {
    let part = bytes.len().div_ceil(threads.max(1)).next_multiple_of(PAGE_BYTES);
    thread::scope(|scope| {
        for part in bytes.chunks_mut(part) {
            scope.spawn(move || {
                part.chunks_mut(PAGE_BYTES).for_each(|page| black_box(page).fill(0));
            });
        }
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
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(compute))));
}

/// Until a mount is ready, and what of that faulting memory in takes.
fn start_mount(threads: Option<usize>, image: &Path, directory: &Path) -> Result<Figures> {
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
    let (threads, mode) = (ThreadPolicy::Raised, SyncDecompress::Auto);
    let daemon = Daemon::start(image, directory, threads, mode, &memory)?;
    let ready = begin.elapsed();
    daemon.end()?;
    Ok(vec![(READY, ready.as_secs_f64() * 1e3), ("faulting in", faulting.as_secs_f64() * 1e3)])
}

/// Wall time as a multiple of the ideal: all work spread evenly, but no less than the slow chunk. The cost of an ordinary
/// chunk is measured beside it, since a shared machine's speed changes.
fn run_imbalanced(halves: u64, threads: usize, chunks_per_thread: u64) -> Result<f64> {
    let chunks = u64::try_from(threads)? * chunks_per_thread;
    let slow = (chunks * halves / 2).min(chunks - 1);
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
    let Ok(report) = job.run(|range| {
        for chunk in range {
            compute(if chunk == slow { SLOW_FACTOR * rounds } else { rounds });
        }
        Ok::<(), Infallible>(())
    });
    let wall = start.elapsed();
    let chunk: Duration = (before + time_chunk()) / 2;
    ensure!(report.chunks == chunks, "{} chunks of {chunks}", report.chunks);
    let even = (chunks - 1 + SLOW_FACTOR) as f64 / threads as f64;
    Ok(wall.as_secs_f64() / (chunk.as_secs_f64() * even.max(SLOW_FACTOR as f64)))
}

#[cfg(test)]
mod tests {
    use super::doubling;

    #[test]
    fn thread_counts_double_up_to_the_last() {
        assert_eq!([doubling(1), doubling(2)], [vec![1], vec![1, 2]]);
        assert_eq!(doubling(6), [1, 2, 4, 6]);
    }
}
