//! The model experiment: the queues and the jobs of the other experiments over simulated CPUs, for more CPUs than this
//! machine has. What it has, 1 CPU and 2, is run beside the model, with costs that are measured here first, so that a reader
//! sees how far the two are apart. Every table and plot says that it is a model.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::Args;
use ferrofs_model::cached_reads::{self, PARTS};
use ferrofs_model::faults::{self, KERNEL, Kernel};
use ferrofs_model::machine::{CPUS_MAX, Costs, Shape};
use ferrofs_model::stream::{self, Flow, Load, QUEUES};
use ferrofs_workers::cpus::CpuSet;
use ferrofs_workers::memory::{Mapping, PageSize};
use procfs::process::Process;
use rustix::thread::{Pid, gettid, sched_setaffinity};

use crate::experiment::{Candidate, Context, Experiment, up_to};
use crate::page_store::PageStore;
use crate::queues::{PoolShape, Row};
use crate::statistics::{Figures, Measured, difference_percent, find};
use crate::workqueue;

/// CPUs of a socket: for queues, and for jobs, half of the 96 of the mail's machine.
const SOCKET_OF_QUEUES: usize = 64;
const SOCKET_OF_JOBS: usize = 48;
/// Requests that each worker may have before it, and what a request costs its handler in the model: zlib's level 1 on a page.
const SLOTS: usize = 4;
const REQUEST_NS: f64 = 3400.0;
/// Numbers of CPUs that read cached clusters, for so many nanoseconds, a fifth in a quick run. A read costs what its two
/// system calls and two copies of 4 KiB take, in nanoseconds: assumptions.
const READERS: [usize; 5] = [1, 2, 16, 32, 64];
const READING_NS: f64 = 1e6;
const READ_NS: f64 = 3000.0;
/// Threads that fault memory in, a CPU each, and how much, in GiB; an eighth in a quick run.
const THREADS: [usize; 9] = [1, 2, 4, 8, 16, 32, 48, 64, 96];
const GIB: u64 = 64;
/// Numbers of CPUs that are run here.
const CPUS: [usize; 2] = [1, 2];
const PAGES: usize = 8192;
const QUICK_PAGES: usize = 1024;
const FAULT_BYTES: usize = 1 << 30;
/// Turns of one ping-pong, and ping-pongs, of which the shortest counts: disturbances make them longer.
const TURNS: u64 = 2000;
const ROUNDS: usize = 25;

/// In the model, and on this machine.
const MODEL: &str = "model";
const HERE: &str = "here";
const FAULTING: &str = "time in the model";
const FAULTING_HERE: &str = "time here";

#[derive(Debug, Clone, Args)]
pub(crate) struct ModelArguments {
    /// What to simulate. workqueue: one submitter, and a worker on each of the other CPUs, as in
    /// the experiment of this name. reads: reads of cached data on every CPU. jobs: several threads
    /// fault memory in, as in the experiment of this name [default: all]
    #[arg(value_name = "SUBJECT", value_parser = ["workqueue", "reads", "jobs"])]
    subjects: Vec<String>,
    /// For workqueue: numbers of CPUs, of which the submitter has one; one run for each number
    #[arg(long, value_name = "N", value_delimiter = ',')]
    #[arg(default_value = "1,2,4,8,16,32,64,128,256")]
    #[arg(value_parser = up_to(u16::try_from(CPUS_MAX).unwrap_or(u16::MAX)))]
    cpus: Vec<u16>,
    /// For workqueue: number of requests to measure, for each queue with each number of CPUs. The
    /// same number of requests runs first, as a warm-up. With --quick, a tenth
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    count: u32,
}

impl Experiment for ModelArguments {
    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        context.report.remark(
            "Model: the code of the queues, jobs and caches over simulated CPUs, a MESI directory and the costs in bench/model/src/cache_lines.rs. No figure of it was measured but those marked \"here\".",
        );
        let subjects = &self.subjects;
        let has = |name| subjects.is_empty() || subjects.iter().any(|subject| subject == name);
        if has("workqueue") {
            self.simulate_queues(context)?;
            compare_queues(context)?;
        }
        if has("reads") {
            simulate_reads(context)?;
        }
        if has("jobs") {
            simulate_jobs(context)?;
            compare_jobs(context)?;
        }
        Ok(())
    }
}

fn flow(queue: &'static str, shape: Shape, costs: Costs, load: Load) -> Result<Figures> {
    let flow = stream::run(queue, shape, costs, load);
    Ok(figures(flow.with_context(|| format!("{queue} on {} CPUs", shape.cpus))?))
}

fn figures(flow: Flow) -> Figures {
    vec![
        (MODEL, flow.per_second() / 1e3),
        ("cache lines that move", flow.per_request(flow.counts.moves)),
        ("lines taken from other readers", flow.per_request(flow.counts.upgrades)),
        ("wake-ups by system call", flow.per_request(flow.wakes)),
    ]
}

impl ModelArguments {
    fn simulate_queues(&self, context: &mut Context<'_>) -> Result<()> {
        let count = usize::try_from(self.count)? / if context.is_quick { 10 } else { 1 };
        let load = Load { slots: SLOTS, request: REQUEST_NS, warm_up: count, requests: count };
        let mut best = f64::NAN;
        for &cpus in &self.cpus {
            context.say(format!("model: the queues on {cpus} CPUs"))?;
            let shape = Shape { cpus: cpus.into(), cpus_per_socket: SOCKET_OF_QUEUES };
            let simulate =
                |queue| Ok(Measured::new(queue, flow(queue, shape, Costs::default(), load)?));
            let all = QUEUES.into_iter().map(simulate).collect::<Result<Vec<_>>>()?;
            context.report.add("queues", "", &cpus.to_string(), &all)?;
            let case = format!("{cpus} CPUs");
            context.report.evaluate_all(&case, &["queues"], &all);
            // The more CPUs, the more are used, until the submitter is what limits; from then on nothing may fall.
            let own = find(&all, "ours").map_or(f64::NAN, |ours| ours.median(MODEL));
            best = best.max(own);
            context.report.evaluate("flat", &case, own / best);
        }
        Ok(())
    }
}

/// The queues on this machine beside their model.
fn compare_queues(context: &mut Context<'_>) -> Result<()> {
    let home = CpuSet::of_current_thread();
    let costs = measured_costs(&home)?;
    for cpus in CPUS {
        if cpus > home.len() {
            let what = format!("the comparison on {cpus} CPUs");
            context.report.leave_out(what, "there is but one");
            continue;
        }
        let measured = measure_queues(&home, cpus, context);
        home.bind_current_thread().context("unbinding the submitter")?;
        let mut measured = measured?.into_iter();
        let request = 1e6 / measured.next().map_or(f64::NAN, |inline| inline.median(HERE));
        context.report.remark(format!("here: a request on {cpus} CPUs takes {request:.0} ns"));
        let load = Load { slots: SLOTS, request, warm_up: 1000, requests: 4000 };
        let mut all: Vec<Measured> = measured.collect();
        for (queue, one) in QUEUES.into_iter().zip(&mut all) {
            let shape = Shape { cpus, cpus_per_socket: cpus };
            one.add(flow(queue, shape, costs, load)?);
            compare(one, MODEL, HERE, context);
        }
        context.report.add("queues-here", "", &cpus.to_string(), &all)?;
    }
    let Costs { near, pause, .. } = costs;
    context.report.remark(format!(
        "here: a cache line takes {near:.1} ns from CPU to CPU, a hint to wait {pause:.1} ns; other costs as stated"
    ));
    Ok(())
}

/// Thousands of requests a second without a queue, and of all queues, in turn.
fn measure_queues(home: &CpuSet, cpus: usize, context: &mut Context<'_>) -> Result<Vec<Measured>> {
    let count = if context.is_quick { QUICK_PAGES } else { PAGES };
    let pages = Arc::new(PageStore::new(count)?);
    let shape = PoolShape { workers: (cpus - 1).max(1), slots: SLOTS };
    let own = home.iter().next().context("no CPU")?;
    let others = home.iter().nth(1).filter(|_| cpus > 1).unwrap_or(own);
    if cpus == 1 {
        // Before the queues are made, so that they know how many CPUs there are.
        CpuSet::from_iter([own]).bind_current_thread().context("binding the submitter")?;
    }
    let names = ["inline"].into_iter().chain(QUEUES);
    let rows = names.map(|name| Ok((name, workqueue::build(name, &pages, shape)?)));
    let mut rows = rows.collect::<Result<Vec<_>>>()?;
    for (_, row) in &mut rows {
        row()?;
    }
    CpuSet::from_iter([own]).bind_current_thread().context("binding the submitter")?;
    bind_others(others)?;
    let candidate = |(name, mut row): (&str, Row)| {
        Candidate::ours(name, move || {
            let start = Instant::now();
            row()?;
            Ok(vec![(HERE, count as f64 / start.elapsed().as_secs_f64() / 1e3)])
        })
    };
    let candidates = rows.into_iter().map(candidate).collect();
    context.measure(&format!("here: the queues on {cpus} CPUs"), candidates)
}

fn simulate_reads(context: &mut Context<'_>) -> Result<()> {
    let measured = READING_NS / if context.is_quick { 5.0 } else { 1.0 };
    for cpus in READERS {
        context.say(format!("model: reads of cached clusters on {cpus} CPUs"))?;
        let run = |part, cpus| {
            let shape = Shape { cpus, cpus_per_socket: SOCKET_OF_QUEUES };
            cached_reads::run(part, shape, Costs::default(), READ_NS, measured)
        };
        let simulate = |part| {
            let (flow, alone) = (run(part, cpus)?, run(part, 1)?);
            let scaling = flow.per_second() / alone.per_second() / cpus as f64;
            let mut one = Measured::new(part, figures(flow));
            one.add(vec![("scaling", scaling)]);
            Ok(one)
        };
        let all = PARTS.into_iter().map(simulate).collect::<Result<Vec<_>>>()?;
        context.report.add("reads", "", &cpus.to_string(), &all)?;
        context.report.evaluate_all(&format!("{cpus} CPUs"), &["reads"], &all);
    }
    Ok(())
}

fn simulate_jobs(context: &mut Context<'_>) -> Result<()> {
    let gib = GIB / if context.is_quick { 8 } else { 1 };
    let mut all = Vec::new();
    for threads in THREADS {
        context.say(format!("model: faulting {gib} GiB in on {threads} threads"))?;
        let shape = Shape { cpus: threads, cpus_per_socket: SOCKET_OF_JOBS };
        let run = faults::run(shape, Costs::default(), KERNEL, gib << 30, threads);
        let run = run.with_context(|| format!("{threads} threads"))?;
        let figures = vec![
            (FAULTING, run.nanoseconds / 1e6),
            ("took part", run.threads as f64),
            ("chunks", run.chunks as f64),
            ("lines that moved", run.moves as f64),
        ];
        all.push(Measured::new(threads.to_string(), figures));
    }
    context.report.add("jobs", &gib.to_string(), "model", &all)?;
    let millis = all.iter().map(|one| one.median(FAULTING));
    let alone = all.first().map_or(f64::NAN, |one| one.median(FAULTING));
    let saved = millis.skip(1).map(|together| difference_percent(alone, together));
    context.report.evaluate("saved", "", saved.fold(f64::NAN, f64::min));
    Ok(())
}

/// Faults memory in beside the model. One thread here gives the cost of a page; two are compared.
fn compare_jobs(context: &mut Context<'_>) -> Result<()> {
    if CpuSet::of_current_thread().len() < 2 {
        context.report.leave_out("the comparison of jobs", "there is but one CPU");
        return Ok(());
    }
    let candidates = CPUS.map(|threads| {
        Candidate::ours(threads.to_string(), move || {
            let mut mapping = Mapping::anonymous(FAULT_BYTES, PageSize::Small)?;
            let start = Instant::now();
            mapping.prefault(threads).context("faulting memory in")?;
            Ok(vec![(FAULTING_HERE, start.elapsed().as_secs_f64() * 1e3)])
        })
    });
    let mib = FAULT_BYTES >> 20;
    let mut all = context.measure(&format!("here: faulting {mib} MiB in"), candidates.into())?;
    let [alone, both] = &mut all[..] else { return Ok(()) };
    let pages = FAULT_BYTES as f64 / faults::PAGE_BYTES as f64;
    let page = alone.median(FAULTING_HERE) * 1e6 / pages - KERNEL.hold / f64::from(KERNEL.batch);
    let kernel = Kernel { page: page.max(0.0), ..KERNEL };
    let shape = Shape { cpus: 2, cpus_per_socket: 2 };
    let model = faults::run(shape, Costs::default(), kernel, FAULT_BYTES as u64, 2)?;
    // One thread sets the model's cost of a page.
    alone.add(vec![(FAULTING, alone.median(FAULTING_HERE))]);
    both.add(vec![(FAULTING, model.nanoseconds / 1e6)]);
    compare(both, FAULTING, FAULTING_HERE, context);
    context.report.add("jobs-here", &mib.to_string(), "here", &all)?;
    Ok(())
}

/// Adds the ratio, and has it judged, whichever of both is larger.
fn compare(one: &mut Measured, model: &str, here: &str, context: &mut Context<'_>) {
    let ratio = one.median(model) / one.median(here);
    one.add(vec![("model/here", ratio)]);
    context.report.evaluate("agrees", &one.name, ratio.max(1.0 / ratio));
}

/// The stated costs with those that are measured here.
fn measured_costs(home: &CpuSet) -> Result<Costs> {
    let shortest = |measure: &dyn Fn() -> Result<f64>| -> Result<f64> {
        (0..ROUNDS).try_fold(f64::INFINITY, |min, _| Ok(measure()?.min(min)))
    };
    let pause = shortest(&|| {
        let start = Instant::now();
        (0..TURNS).for_each(|_| spin_loop());
        Ok(start.elapsed().as_secs_f64() * 1e9 / TURNS as f64)
    })?;
    let (stated, mut cpus) = (Costs::default(), home.iter());
    let Some((first, second)) = cpus.next().zip(cpus.next()) else {
        return Ok(Costs { pause, ..stated });
    };
    let turn = shortest(&|| ping_pong(first, second));
    home.bind_current_thread().context("unbinding a thread")?;
    // A turn takes the line from its readers and fetches it: twice the way, and two looks.
    let near = ((turn? - 2.0 * stated.hit) / 2.0).max(stated.hit);
    Ok(Costs { pause, near, ..stated })
}

/// Nanoseconds of one turn, in which two threads hand a word to each other.
fn ping_pong(first: usize, second: usize) -> Result<f64> {
    /// A word on a cache line of its own.
    #[repr(align(128))]
    struct Word(AtomicU64);

    let word = Word(AtomicU64::new(0));
    // Acquire and Release, though nothing else is published.
    let wait_for = |value| while word.0.load(Ordering::Acquire) != value {};
    CpuSet::from_iter([first]).bind_current_thread()?;
    thread::scope(|scope| {
        scope.spawn(|| {
            // Unbound it is slower, and the shortest measurement counts.
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

/// Binds all threads of this process but the caller's.
fn bind_others(cpu: usize) -> Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    for task in Process::myself()?.tasks().context("listing the threads")? {
        if let Some(thread) = Pid::from_raw(task?.tid).filter(|thread| *thread != gettid()) {
            // One that has just ended needs no CPU.
            sched_setaffinity(Some(thread), &set).unwrap_or(());
        }
    }
    Ok(())
}
