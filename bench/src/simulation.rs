//! The model experiment: the queues and the jobs of the other experiments over simulated CPUs, for more CPUs than this
//! machine has. What it has, 1 CPU and 2, is run beside the model, with costs that are measured here first, so that a reader
//! sees how far the two are apart. Every table and plot says that it is a model.

use std::fs;
use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use ferrofs_model::faults::{self, Faulting, Kernel};
use ferrofs_model::machine::{CPUS_MAX, Costs, Shape};
use ferrofs_model::stream::{self, Flow, Load, Queue};
use ferrofs_workers::cpus::CpuSet;
use ferrofs_workers::memory::{Mapping, PageSize};
use rustix::thread::{Pid, gettid, sched_setaffinity};
use serde::Serialize;

use crate::experiment::{Context, Experiment};
use crate::page_store::PageStore;
use crate::plot::Plot;
use crate::report::{Report, Table};
use crate::rounds::{Deadline, StealFilter, rotated};
use crate::row::PoolShape;
use crate::rows::{self, RowName};
use crate::statistics::{Samples, difference_percent};

/// CPUs of a socket if not given: for queues, and for jobs, half of the 96 of the mail's machine.
const SOCKETS: [usize; 2] = [64, 48];
/// Numbers of CPUs that are run here.
const CPUS: [usize; 2] = [1, 2];
const REPEAT: usize = 5;
const QUICK_REPEAT: usize = 2;
const PAGES: usize = 8192;
const QUICK_PAGES: usize = 1024;
const FAULT_BYTES: usize = 1 << 30;
/// Turns of one ping-pong, and ping-pongs, of which the shortest counts: disturbances make them longer.
const TURNS: u64 = 2000;
const ROUNDS: usize = 25;
const APART: &str =
    "the model's CPUs do nothing else and its scheduler is simple; here others run, too";
const FALLS: &str = "where workers outnumber what one submitter can feed, worker queues sleep between their turns and each batch wakes one; nothing is said without the rows that are compared";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Subject {
    /// One submitter and a worker on every other CPU, as in the workqueue experiment
    Workqueue,
    /// Faulting memory in on several threads, as in the jobs experiment
    Jobs,
}

/// A queue of the workqueue experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum ModelRow {
    Original,
    Batching,
    PerThread,
    RoundRobin,
    OursWaiting,
    Ours,
}

impl ModelRow {
    const fn names(self) -> (Queue, RowName) {
        match self {
            Self::Original => (Queue::Original, RowName::Original),
            Self::Batching => (Queue::Batching, RowName::Batching),
            Self::PerThread => (Queue::PerThread, RowName::PerThread),
            Self::RoundRobin => (Queue::RoundRobin, RowName::RoundRobin),
            Self::OursWaiting => (Queue::OursWaiting, RowName::OursWaiting),
            Self::Ours => (Queue::Ours, RowName::Ours),
        }
    }

    fn text(self) -> String {
        self.names().1.text()
    }
}

/// Times are in nanoseconds.
#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct ModelArguments {
    /// What runs; both if nothing is named
    #[arg(value_enum, value_name = "SUBJECT")]
    subjects: Vec<Subject>,
    /// workqueue: numbers of CPUs; the submitter has one of them
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = cpus)]
    #[arg(default_values_t = [1, 2, 4, 8, 16, 32, 64, 128, 256])]
    cpus: Vec<usize>,
    /// workqueue: queues; all if none is named
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    #[arg(default_values_t = ModelRow::value_variants().to_vec())]
    rows: Vec<ModelRow>,
    /// workqueue: requests that each worker may have before it, 1 to 64
    #[arg(short, long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=64))]
    requests: u8,
    /// workqueue: requests that count for each queue and number of CPUs, after as many that do not; a tenth with --quick
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    count: u32,
    /// workqueue: what a request costs its handler; the default is zlib's level 1 on a page
    #[arg(long, value_name = "NS", default_value_t = 3400.0, value_parser = nanoseconds)]
    request: f64,
    /// jobs: numbers of threads, a CPU each
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = cpus)]
    #[arg(default_values_t = [1, 2, 4, 8, 16, 32, 48, 64, 96])]
    threads: Vec<usize>,
    /// jobs: memory to fault in, in GiB; an eighth with --quick
    #[arg(long, value_name = "GIB", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u16).range(8..=1024))]
    gib: u16,
    /// jobs: a fault of a page of 4 KiB, beside the zone's lock
    #[arg(long, value_name = "NS", default_value_t = 250.0, value_parser = nanoseconds)]
    page: f64,
    /// jobs: how long a zone's lock is held for 63 pages, the batch of Linux
    #[arg(long, value_name = "NS", default_value_t = 1000.0, value_parser = nanoseconds)]
    hold: f64,
    /// jobs: the memory bandwidth of one socket, in GB a second
    #[arg(long, value_name = "GB/s", default_value_t = 150.0, value_parser = nanoseconds)]
    bandwidth: f64,
    /// CPUs that share a socket; 64, but 48 for jobs, if not given
    #[arg(long, value_name = "N", value_parser = cpus)]
    socket: Option<usize>,
    /// Do not run the part that this machine has beside the model
    #[arg(long)]
    no_check: bool,
    /// Other costs of the machine, such as near=23: hit, near, far, occupancy, locked, pause, clock, sleep, wake, latency
    #[arg(long, value_name = "NAME=NS", value_delimiter = ',', value_parser = cost)]
    costs: Vec<(String, f64)>,
}

fn cpus(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=CPUS_MAX) => Ok(count),
        Ok(count) => Err(format!("{count} is not within 1 to {CPUS_MAX}")),
        Err(error) => Err(format!("{error}")),
    }
}

/// What takes no time, or an hour, is a slip.
fn nanoseconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if (0.0..=3.6e12).contains(&number) => Ok(number),
        Ok(number) => Err(format!("{number} is not within 0 to 3.6e12")),
        Err(error) => Err(format!("{error}")),
    }
}

fn cost(text: &str) -> Result<(String, f64), String> {
    let (name, number) = text.split_once('=').ok_or("NAME=NS is wanted")?;
    Costs::default().field(name).ok_or_else(|| format!("{name} is no cost"))?;
    Ok((name.to_owned(), nanoseconds(number)?))
}

impl ModelArguments {
    fn has(&self, subject: Subject) -> bool {
        self.subjects.is_empty() || self.subjects.contains(&subject)
    }

    fn machine_costs(&self) -> Costs {
        let mut costs = Costs::default();
        for (name, number) in &self.costs {
            costs.field(name).into_iter().for_each(|cost| *cost = *number);
        }
        costs
    }

    fn kernel(&self) -> Kernel {
        Kernel { page: self.page, batch: 63, hold: self.hold, bandwidth: self.bandwidth }
    }

    fn shape(&self, cpus: usize, subject: Subject) -> Shape {
        Shape { cpus, cpus_per_socket: self.socket.unwrap_or(SOCKETS[subject as usize]) }
    }
}

impl Experiment for ModelArguments {
    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        context.report.remark(
            "Model: the code of the queues and jobs over simulated CPUs, a MESI directory and the costs in the settings. No figure of it was measured but those marked \"here\".",
        );
        if self.has(Subject::Workqueue) {
            let runs = self.simulate_queues(context)?;
            self.add_queues(&runs, &mut context.report);
            judge_queues(&runs, &mut context.report)?;
            if !self.no_check {
                self.compare_queues(context)?;
            }
        }
        if self.has(Subject::Jobs) {
            let bytes = (u64::from(self.gib) << 30) / if context.is_quick { 8 } else { 1 };
            let mut runs = Vec::new();
            for &threads in &self.threads {
                context
                    .say(format!("model: faulting {} GiB in on {threads} threads", bytes >> 30))?;
                let (shape, costs) = (self.shape(threads, Subject::Jobs), self.machine_costs());
                let faulting = faults::run(shape, costs, self.kernel(), bytes, threads);
                runs.push((threads, faulting.with_context(|| format!("{threads} threads"))?));
            }
            add_jobs(bytes, &runs, &mut context.report)?;
            if !self.no_check {
                self.compare_jobs(context)?;
            }
        }
        Ok(())
    }
}

/// One run of a queue in the model.
#[derive(Debug, Clone, Copy)]
struct QueueRun {
    row: ModelRow,
    cpus: usize,
    flow: Flow,
}

fn find(runs: &[QueueRun], row: ModelRow, cpus: usize) -> Option<&Flow> {
    runs.iter().find(|run| run.row == row && run.cpus == cpus).map(|run| &run.flow)
}

impl ModelArguments {
    fn simulate_queues(&self, context: &mut Context<'_>) -> Result<Vec<QueueRun>> {
        let count = usize::try_from(self.count)? / if context.is_quick { 10 } else { 1 };
        let (slots, request) = (self.requests.into(), self.request);
        let load = Load { slots, request, warm_up: count, requests: count };
        let mut runs = Vec::new();
        for &cpus in &self.cpus {
            context.say(format!("model: the queues on {cpus} CPUs"))?;
            for &row in &self.rows {
                let shape = self.shape(cpus, Subject::Workqueue);
                let flow = stream::run(row.names().0, shape, self.machine_costs(), load);
                let flow = flow.with_context(|| format!("{} on {cpus} CPUs", row.text()))?;
                runs.push(QueueRun { row, cpus, flow });
            }
        }
        Ok(runs)
    }

    fn add_queues(&self, runs: &[QueueRun], report: &mut Report) {
        let names: Vec<String> = self.rows.iter().map(|row| row.text()).collect();
        let header = format!("CPUs | {}", names.join(" | "));
        type Figure = fn(&Flow) -> f64;
        let thousands: Figure = |flow| flow.per_second() / 1e3;
        let moves: Figure = |flow| flow.per_request(flow.counts.moves());
        let tables: [(&str, usize, Figure); 4] = [
            ("thousand requests a second", 0, thousands),
            ("cache lines that move for a request", 2, moves),
            ("cache lines taken from other readers for a request", 2, |flow| {
                flow.per_request(flow.counts.upgrades())
            }),
            ("wake-ups by system call for a request", 3, |flow| flow.per_request(flow.wakes)),
        ];
        for (title, digits, figure) in tables {
            let mut table = Table::new(format!("Model: {title}"), &header);
            for &cpus in &self.cpus {
                let cell = |row: &ModelRow| {
                    let flow = find(runs, *row, cpus);
                    flow.map_or_else(String::new, |flow| format!("{:.digits$}", figure(flow)))
                };
                table.add([cpus.to_string()].into_iter().chain(self.rows.iter().map(cell)));
            }
            report.table(table);
        }
        for (title, unit, figure) in [
            ("Model: throughput of one submitter", "thousand requests a second", thousands),
            ("Model: cache lines that move", "lines a request", moves),
        ] {
            let mut plot = Plot::lines(title, "CPUs (model)", unit).log_x();
            for &row in &self.rows {
                let point = |&cpus: &usize| Some((cpus as f64, figure(find(runs, row, cpus)?)));
                plot.line(row.text(), self.cpus.iter().filter_map(point).collect());
            }
            report.plot(plot);
        }
        for run in runs {
            let samples = [run.flow.per_second()].into_iter().collect();
            let case = format!("model, {} CPUs", run.cpus);
            report.series(run.row.text(), case, "requests/s", &samples);
        }
    }

    /// The queues on this machine beside their model.
    fn compare_queues(&self, context: &mut Context<'_>) -> Result<()> {
        let home = CpuSet::of_current_thread();
        let costs = measured_costs(&home, self.machine_costs())?;
        let title = "Here: thousand requests a second, model and machine";
        let mut table = Table::new(title, "CPUs | queue | model | here | least–most | model/here");
        let mut most = f64::NAN;
        for cpus in CPUS {
            if cpus > home.len() {
                context
                    .report
                    .leave_out(format!("the comparison on {cpus} CPUs"), "there is but one");
                continue;
            }
            context.say(format!("here: the queues on {cpus} CPUs"))?;
            let measured = self.measure_queues(&home, cpus, context);
            home.bind_current_thread().context("unbinding the submitter")?;
            let (request, rates) = measured?;
            for (row, rates) in self.rows.iter().zip(rates) {
                let load =
                    Load { slots: self.requests.into(), request, warm_up: 1000, requests: 4000 };
                let shape = Shape { cpus, cpus_per_socket: cpus };
                let model = stream::run(row.names().0, shape, costs, load)?.per_second() / 1e3;
                let ratio = model / rates.median();
                most = most.max(ratio.max(1.0 / ratio));
                table
                    .add([cpus.to_string(), row.text()].into_iter().chain(compared(model, &rates)));
            }
        }
        context.report.table(table);
        let Costs { near, pause, .. } = costs;
        context.report.remark(format!(
            "here: a cache line takes {near:.1} ns from CPU to CPU, a hint to wait {pause:.1} ns; other costs as stated"
        ));
        context.report.claim("002", "agrees", &[most], APART)
    }

    /// The nanoseconds of a request without a queue, and thousands of requests a second of all queues, in turn.
    fn measure_queues(
        &self,
        home: &CpuSet,
        cpus: usize,
        context: &mut Context<'_>,
    ) -> Result<(f64, Vec<Samples>)> {
        let is_quick = context.is_quick;
        let pages = Arc::new(PageStore::new(if is_quick { QUICK_PAGES } else { PAGES })?);
        let shape = PoolShape { workers: (cpus - 1).max(1), slots: self.requests.into() };
        let own = home.iter().next().context("no CPU")?;
        let others = home.iter().nth(1).filter(|_| cpus > 1).unwrap_or(own);
        if cpus == 1 {
            // Before the queues are made, so that they know how many CPUs there are.
            CpuSet::from_iter([own]).bind_current_thread().context("binding the submitter")?;
        }
        let names = self.rows.iter().map(|row| row.names().1);
        let names = [RowName::Inline].into_iter().chain(names);
        let mut lines =
            names.map(|name| rows::build(name, &pages, shape)).collect::<Result<Vec<_>>>()?;
        for row in &mut lines {
            row.pass()?;
        }
        CpuSet::from_iter([own]).bind_current_thread().context("binding the submitter")?;
        bind_others(others)?;
        let mut filter = StealFilter::default();
        let kinds = rotated(if is_quick { QUICK_REPEAT } else { REPEAT }, lines.len());
        let mut samples = vec![Samples::default(); lines.len()];
        let found = filter.sample(kinds, Deadline::default(), |kind| {
            let start = Instant::now();
            lines[kind].pass()?;
            Ok(pages.count() as f64 / start.elapsed().as_secs_f64() / 1e3)
        })?;
        found.into_iter().for_each(|(kind, rate)| samples[kind].push(rate));
        let request = 1e6 / samples.remove(0).median();
        context.report.remark(format!("here, queues on {cpus} CPUs: {filter}"));
        context.report.remark(format!("here: a request on {cpus} CPUs takes {request:.0} ns"));
        Ok((request, samples))
    }

    /// Faults memory in beside the model. One thread here gives the cost of a page; two are compared.
    fn compare_jobs(&self, context: &mut Context<'_>) -> Result<()> {
        if CpuSet::of_current_thread().len() < 2 {
            context.report.leave_out("the comparison of jobs", "there is but one CPU");
            return Ok(());
        }
        context.say(format!("here: faulting {} MiB in", FAULT_BYTES >> 20))?;
        let nanos = |kind: usize| {
            let mut mapping = Mapping::anonymous(FAULT_BYTES, PageSize::Small)?;
            let start = Instant::now();
            mapping.prefault(CPUS[kind]).context("faulting memory in")?;
            anyhow::Ok(start.elapsed().as_secs_f64() * 1e9)
        };
        // A warm-up round.
        nanos(0).and(nanos(1))?;
        let repeat = if context.is_quick { QUICK_REPEAT } else { REPEAT };
        let turns = (0..repeat).flat_map(|_| 0..CPUS.len());
        let (mut filter, mut times) =
            (StealFilter::default(), [Samples::default(), Samples::default()]);
        for (kind, nanos) in filter.sample(turns, Deadline::default(), nanos)? {
            times[kind].push(nanos / 1e6);
        }
        context.report.remark(format!("here, faulting in: {filter}"));
        let [alone, both] = times;
        let pages = FAULT_BYTES as f64 / faults::PAGE_BYTES as f64;
        let stated = self.kernel();
        let page = alone.median() * 1e6 / pages - stated.hold / f64::from(stated.batch);
        let kernel = Kernel { page: page.max(0.0), ..stated };
        let shape = Shape { cpus: 2, cpus_per_socket: 2 };
        let model = faults::run(shape, self.machine_costs(), kernel, FAULT_BYTES as u64, 2)?;
        let model = model.nanoseconds / 1e6;
        let title = format!("Here: faulting {} MiB in, ms, model and machine", FAULT_BYTES >> 20);
        let mut table = Table::new(title, "threads | model | here | least–most | model/here");
        let name = "1, which sets the model's cost of a page".to_owned();
        table.add([name].into_iter().chain(compared(alone.median(), &alone)));
        table.add(["2".to_owned()].into_iter().chain(compared(model, &both)));
        context.report.table(table);
        let ratio = model / both.median();
        context.report.claim("003", "agrees", &[ratio.max(1.0 / ratio)], APART)
    }
}

/// The cells of a comparison with this machine.
fn compared(model: f64, here: &Samples) -> [String; 4] {
    let summary = here.summary();
    [
        format!("{model:.1}"),
        format!("{:.1}", summary.median),
        format!("{:.1}–{:.1}", summary.minimum, summary.maximum),
        format!("{:.2}", model / summary.median),
    ]
}

fn judge_queues(runs: &[QueueRun], report: &mut Report) -> Result<()> {
    let ours: Vec<&QueueRun> = runs.iter().filter(|run| run.row == ModelRow::Ours).collect();
    let least = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::NAN, f64::min);
    let best = |until: usize| {
        let rates = ours.iter().filter(|run| run.cpus <= until).map(|run| run.flow.per_second());
        rates.fold(f64::NAN, f64::max)
    };
    // The more CPUs, the more are used, until the submitter is what limits; from then on nothing may fall.
    let kept = least(&mut ours.iter().map(|run| run.flow.per_second() / best(run.cpus)));
    report.claim("002", "flat", &[kept], FALLS)?;
    let ahead = least(&mut ours.iter().filter_map(|run| {
        let original = find(runs, ModelRow::Original, run.cpus)?;
        Some(run.flow.per_second() / original.per_second())
    }));
    report.claim("002", "ahead", &[ahead], FALLS)?;
    let moves = ours.iter().map(|run| run.flow.per_request(run.flow.counts.moves()));
    report.claim("002", "lines", &[moves.fold(f64::NAN, f64::max)], "ours is not among the rows")
}

fn add_jobs(bytes: u64, runs: &[(usize, Faulting)], report: &mut Report) -> Result<()> {
    let title = format!("Model: faulting {} GiB in", bytes >> 30);
    let header = "threads | took part | chunks | ms | diff | lines that moved";
    let mut table = Table::new(&title, header);
    let alone = runs.iter().find(|(threads, _)| *threads == 1);
    let alone = alone.map_or(f64::NAN, |(_, run)| run.nanoseconds);
    let (mut points, mut saved) = (Vec::new(), f64::NAN);
    for (threads, run) in runs {
        let (millis, diff) = (run.nanoseconds / 1e6, difference_percent(alone, run.nanoseconds));
        table.add([
            threads.to_string(),
            run.threads.to_string(),
            run.chunks.to_string(),
            format!("{millis:.1}"),
            if diff.is_nan() { String::new() } else { format!("{diff:+.1} %") },
            run.moves.to_string(),
        ]);
        points.push((*threads as f64, millis));
        if *threads > 1 {
            saved = saved.min(diff);
        }
        let samples = [millis].into_iter().collect();
        report.series("jobs", format!("model, {threads} threads"), "ms", &samples);
    }
    report.table(table);
    let mut plot = Plot::lines(title, "threads (model)", "ms").log_x().log_y();
    plot.line("ours", points);
    report.plot(plot);
    let why = "one thread and more are needed, and memory and locks as stated bound what is saved";
    report.claim("003", "saved", &[saved], why)
}

/// The stated costs with those that are measured here.
fn measured_costs(home: &CpuSet, stated: Costs) -> Result<Costs> {
    let shortest = |measure: &dyn Fn() -> Result<f64>| -> Result<f64> {
        (0..ROUNDS).try_fold(f64::INFINITY, |least, _| Ok(measure()?.min(least)))
    };
    let pause = shortest(&|| {
        let start = Instant::now();
        (0..TURNS).for_each(|_| spin_loop());
        Ok(start.elapsed().as_secs_f64() * 1e9 / TURNS as f64)
    })?;
    let mut cpus = home.iter();
    let Some((first, second)) = cpus.next().zip(cpus.next()) else {
        return Ok(Costs { pause, ..stated });
    };
    let turn = shortest(&|| ping_pong(first, second));
    home.bind_current_thread().context("unbinding a thread")?;
    // A turn takes the line from its readers and fetches it: twice the way, and two looks.
    let near = ((turn? - 2.0 * stated.hit) / 2.0).max(stated.hit);
    Ok(Costs { pause, near, ..stated })
}

/// Nanoseconds of one turn; the model's twin is `ferrofs_model::ping_pong`.
fn ping_pong(first: usize, second: usize) -> Result<f64> {
    /// A word on a cache line of its own.
    #[repr(align(128))]
    struct Word(AtomicU64);

    let word = Word(AtomicU64::new(0));
    // Acquire and Release: as in the twin, though nothing else is published.
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

#[cfg(test)]
mod tests {
    use clap::{Args, Command, FromArgMatches};
    use ferrofs_model::machine::Costs;

    use super::{ModelArguments, Subject};

    fn parse(words: &str) -> Result<ModelArguments, clap::Error> {
        let command = ModelArguments::augment_args(Command::new("model"));
        let words = std::iter::once("model").chain(words.split_whitespace());
        ModelArguments::from_arg_matches(&command.try_get_matches_from(words)?)
    }

    #[test]
    fn costs_have_defaults_and_can_be_set() {
        let parsed = parse("").unwrap();
        assert_eq!(parsed.machine_costs(), Costs::default());
        assert!(parsed.has(Subject::Workqueue) && parsed.has(Subject::Jobs));
        assert_eq!(parsed.cpus.last(), Some(&256));
        let parsed = parse("jobs --costs near=23 --threads 1,96 --socket 48").unwrap();
        assert!(!parsed.has(Subject::Workqueue));
        assert_eq!((&parsed.threads, parsed.socket), (&vec![1, 96], Some(48)));
        assert_eq!(parsed.machine_costs(), Costs { near: 23.0, ..Costs::default() });
    }

    #[test]
    fn what_no_machine_has_is_refused() {
        for words in
            ["--cpus 0", "--cpus 513", "--costs near=-1", "--costs x=1", "--page inf", "memory"]
        {
            assert!(parse(words).is_err(), "{words}");
        }
    }
}
