//! What this machine has of the model, 1 CPU and 2, run for real beside it. The costs that differ most from
//! machine to machine are measured first: the work itself, a line's way from CPU to CPU, and the hint in a
//! loop that waits. Threads are bound, since a model's threads have a CPU each.

use std::hint::spin_loop;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use std::{fs, thread};

use anyhow::{Context, Result};
use ferrofs_model::faults::{self, Kernel};
use ferrofs_model::machine::{Costs, Shape};
use ferrofs_model::stream::{self, Load};
use ferrofs_workers::cpus::CpuSet;
use ferrofs_workers::memory::{Mapping, PageSize};
use rustix::thread::{Pid, gettid, sched_setaffinity};

use super::arguments::{ModelArguments, ModelRow};
use crate::deadline::Deadline;
use crate::page_store::PageStore;
use crate::report::Report;
use crate::rows::{self, Crew, Row, RowName};
use crate::statistics::Samples;
use crate::steal::Undisturbed;
use crate::table::Table;

/// CPUs that are looked at.
const CPUS: [usize; 2] = [1, 2];
/// Passes of each queue, and faults of each number of threads.
const REPEAT: usize = 5;
const QUICK_REPEAT: usize = 2;
/// PageSize of a pass.
const PAGES: usize = 8192;
const QUICK_PAGES: usize = 1024;
/// Memory that is faulted in.
const FAULT_BYTES: usize = 1 << 30;
/// Hand-overs of one measurement, and measurements, of which the shortest counts: what disturbs them
/// makes them longer.
const TURNS: u64 = 2000;
const ROUNDS: usize = 25;

/// Runs the queues beside their model.
pub(super) fn compare_queues(
    arguments: &ModelArguments,
    is_quick: bool,
    out: &mut dyn Write,
    report: &mut Report,
) -> Result<()> {
    let home = CpuSet::of_current_thread();
    let costs = measured(&home, arguments.costs.costs())?;
    let header = ["CPUs", "queue", "model", "here", "least–most", "model/here"];
    let title = "Here: thousand requests a second, model and machine";
    let mut table = Table::new(title, header);
    let mut apart = Vec::new();
    for cpus in CPUS {
        if cpus > home.len() {
            report.left_out(format!("the comparison on {cpus} CPUs"), "there is but one");
            continue;
        }
        writeln!(out, "here: the queues on {cpus} CPUs")?;
        let measured = real_rates(&home, cpus, arguments, is_quick);
        home.bind_current_thread().context("giving the CPUs back")?;
        let (request, rates, undisturbed) = measured?;
        report.add_remark(format!("here, queues on {cpus} CPUs: {undisturbed}"));
        report.add_remark(format!("here: a request on {cpus} CPUs takes {request:.0} ns"));
        for (row, rates) in rates {
            let load =
                Load { slots: arguments.requests.into(), request, warm_up: 1000, requests: 4000 };
            let shape = Shape { cpus, cpus_a_socket: cpus };
            let model = stream::run(row.queue(), shape, costs, load)?.per_second() / 1e3;
            let here = rates.summary();
            let ratio = model / here.median;
            apart.push(ratio.max(1.0 / ratio));
            table.add([
                cpus.to_string(),
                row.text(),
                format!("{model:.1}"),
                format!("{:.1}", here.median),
                format!("{:.1}–{:.1}", here.minimum, here.maximum),
                format!("{ratio:.2}"),
            ]);
        }
    }
    report.add_table(table);
    report.add_remark(format!(
        "here: a cache line takes {:.1} ns from CPU to CPU, a hint to wait {:.1} ns; other costs as stated",
        costs.near, costs.pause
    ));
    let most = apart.into_iter().fold(f64::NAN, f64::max);
    report.claim("002", "agrees", &[most], APART)
}

/// The stated costs with those that are measured here.
fn measured(home: &CpuSet, stated: Costs) -> Result<Costs> {
    let shortest = |measure: &dyn Fn() -> Result<f64>| -> Result<f64> {
        (0..ROUNDS).try_fold(f64::INFINITY, |least, _| Ok(measure()?.min(least)))
    };
    let pause = shortest(&|| {
        let start = Instant::now();
        (0..TURNS).for_each(|_| spin_loop());
        Ok(start.elapsed().as_secs_f64() * 1e9 / TURNS as f64)
    })?;
    let Some((first, second)) = two_of(home) else { return Ok(Costs { pause, ..stated }) };
    let turn = shortest(&|| ping_pong(first, second));
    home.bind_current_thread().context("giving the CPUs back")?;
    // A turn takes the line from its readers and fetches it: twice the way, and two looks.
    let near = ((turn? - 2.0 * stated.hit) / 2.0).max(stated.hit);
    Ok(Costs { pause, near, ..stated })
}

fn two_of(cpus: &CpuSet) -> Option<(usize, usize)> {
    let mut cpus = cpus.iter();
    cpus.next().zip(cpus.next())
}

/// Why the two may be apart.
const APART: &str =
    "the model's CPUs do nothing else and its scheduler is simple; here others run, too";

/// Nanoseconds of one turn; the model's twin is `ferrofs_model::ping_pong`.
fn ping_pong(first: usize, second: usize) -> Result<f64> {
    /// A word on a line of its own.
    #[repr(align(128))]
    struct Word(AtomicU64);

    let word = Word(AtomicU64::new(0));
    // Acquire and Release: as in the twin, though nothing else is handed over.
    let wait_for = |value| while word.0.load(Ordering::Acquire) != value {};
    CpuSet::from_iter([first]).bind_current_thread()?;
    thread::scope(|scope| {
        scope.spawn(|| {
            // Not bound, it is slower, and the shortest measurement counts.
            CpuSet::from_iter([second]).bind_current_thread().ok();
            for turn in (1..=TURNS + 2).step_by(2) {
                wait_for(turn);
                word.0.store(turn + 1, Ordering::Release);
            }
        });
        // The first two turns wait for the thread.
        word.0.store(1, Ordering::Release);
        wait_for(2);
        let start = Instant::now();
        for turn in (2..TURNS + 2).step_by(2) {
            word.0.store(turn + 1, Ordering::Release);
            wait_for(turn + 2);
        }
        Ok(start.elapsed().as_secs_f64() * 1e9 / TURNS as f64)
    })
}

/// A queue and its thousands of requests a second, one sample a pass.
type Rates = Vec<(ModelRow, Samples)>;

/// What a request costs without a queue, in nanoseconds, the rates of all queues, in turn, and what the
/// host did to them.
fn real_rates(
    home: &CpuSet,
    cpus: usize,
    arguments: &ModelArguments,
    is_quick: bool,
) -> Result<(f64, Rates, Undisturbed)> {
    let pages = Arc::new(PageStore::new(if is_quick { QUICK_PAGES } else { PAGES })?);
    let crew = Crew { workers: (cpus - 1).max(1), slots: arguments.requests.into() };
    let mut numbers = home.iter();
    let own = numbers.next().context("no CPU")?;
    let others = numbers.next().filter(|_| cpus > 1).unwrap_or(own);
    if cpus == 1 {
        // Before the queues are made, so that they know how many CPUs there are.
        CpuSet::from_iter([own]).bind_current_thread().context("binding the submitter")?;
    }
    // What has no queue is the first.
    let names = std::iter::once(RowName::Inline).chain(arguments.rows.iter().copied().map(name_of));
    let mut lines = Vec::new();
    for name in names {
        lines.push((rows::build(name, &pages, crew)?, Samples::default()));
    }
    for (row, _) in &mut lines {
        row.pass()?;
    }
    CpuSet::from_iter([own]).bind_current_thread().context("binding the submitter")?;
    bind_others(others)?;
    let mut undisturbed = Undisturbed::default();
    let (count, repeat) = (lines.len(), if is_quick { QUICK_REPEAT } else { REPEAT });
    let turns = (0..repeat).flat_map(|round| (0..count).map(move |place| (round + place) % count));
    let found = undisturbed.in_turn(turns, Deadline::default(), |turn| {
        rate(lines.get_mut(turn).context("a turn of no row")?.0.as_mut(), &pages)
    })?;
    for (turn, rate) in found {
        lines.get_mut(turn).context("a turn of no row")?.1.push(rate);
    }
    let mut rates = lines.into_iter().map(|(_, samples)| samples);
    let inline = rates.next().context("no row")?;
    let rates = arguments.rows.iter().copied().zip(rates).collect();
    Ok((1e6 / inline.median(), rates, undisturbed))
}

/// Thousands of requests a second in one pass.
fn rate(row: &mut dyn Row, pages: &PageStore) -> Result<f64> {
    let start = Instant::now();
    row.pass()?;
    Ok(pages.count() as f64 / start.elapsed().as_secs_f64() / 1e3)
}

/// Binds all threads of this process but the caller's.
fn bind_others(cpu: usize) -> Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    for entry in fs::read_dir("/proc/self/task").context("listing the threads")? {
        let number = entry?.file_name().to_str().and_then(|name| name.parse().ok());
        let thread = number.and_then(Pid::from_raw).filter(|thread| *thread != gettid());
        if let Some(thread) = thread {
            // One that has just ended needs no CPU.
            sched_setaffinity(Some(thread), &set).unwrap_or(());
        }
    }
    Ok(())
}

const fn name_of(row: ModelRow) -> RowName {
    match row {
        ModelRow::Original => RowName::Original,
        ModelRow::Batching => RowName::Batching,
        ModelRow::PerThread => RowName::PerThread,
        ModelRow::RoundRobin => RowName::RoundRobin,
        ModelRow::OursWaiting => RowName::OursWaiting,
        ModelRow::Ours => RowName::Ours,
    }
}

/// Faults memory in beside its model. One thread here says what a page costs; two are compared.
pub(super) fn compare_jobs(
    arguments: &ModelArguments,
    is_quick: bool,
    out: &mut dyn Write,
    report: &mut Report,
) -> Result<()> {
    let cpus = CpuSet::of_current_thread().len();
    if cpus < 2 {
        report.left_out("the comparison of jobs", "there is but one CPU");
        return Ok(());
    }
    writeln!(out, "here: faulting {} MiB in", FAULT_BYTES >> 20)?;
    let mut times: [Samples; 2] = Default::default();
    let mut undisturbed = Undisturbed::default();
    let nanos = |turn: usize| {
        let threads = *CPUS.get(turn).context("a turn of no number of CPUs")?;
        let mut mapping = Mapping::anonymous(FAULT_BYTES, PageSize::Small)?;
        let start = Instant::now();
        mapping.prefault(threads).context("faulting memory in")?;
        anyhow::Ok(start.elapsed().as_secs_f64() * 1e9)
    };
    // One round that warms up and does not count.
    for turn in 0..CPUS.len() {
        nanos(turn)?;
    }
    let repeat = if is_quick { QUICK_REPEAT } else { REPEAT };
    let turns = (0..repeat).flat_map(|_| 0..CPUS.len());
    for (turn, nanos) in undisturbed.in_turn(turns, Deadline::default(), nanos)? {
        times.get_mut(turn).context("a turn of no number of CPUs")?.push(nanos);
    }
    report.add_remark(format!("here, faulting in: {undisturbed}"));
    let [alone, both] = times.map(|samples| samples.summary());
    let pages = FAULT_BYTES as f64 / faults::PAGE_BYTES as f64;
    let stated = arguments.kernel();
    let held = stated.hold / f64::from(stated.batch);
    let kernel = Kernel { page: (alone.median / pages - held).max(0.0), ..stated };
    let shape = Shape { cpus: 2, cpus_a_socket: 2 };
    let model = faults::run(shape, arguments.costs.costs(), kernel, FAULT_BYTES as u64, 2)?;
    let ratio = model.nanoseconds / both.median;
    let title = format!("Here: faulting {} MiB in, ms, model and machine", FAULT_BYTES >> 20);
    let mut table = Table::new(title, ["threads", "model", "here", "least–most", "model/here"]);
    let row = |threads: &str, model: f64, here: crate::statistics::Summary| {
        [
            threads.to_owned(),
            format!("{:.1}", model / 1e6),
            format!("{:.1}", here.median / 1e6),
            format!("{:.1}–{:.1}", here.minimum / 1e6, here.maximum / 1e6),
            format!("{:.2}", model / here.median),
        ]
    };
    table.add(row("1, which sets the model's cost of a page", alone.median, alone));
    table.add(row("2", model.nanoseconds, both));
    report.add_table(table);
    report.claim("003", "agrees", &[ratio.max(1.0 / ratio)], APART)
}
