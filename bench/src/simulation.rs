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
use ferrofs_model::faults::{self, Kernel};
use ferrofs_model::machine::{CPUS_MAX, Costs, Shape};
use ferrofs_model::stream::{self, Load, Queue};
use ferrofs_workers::cpus::CpuSet;
use ferrofs_workers::memory::{Mapping, PageSize};
use rustix::thread::{Pid, gettid, sched_setaffinity};
use serde::Serialize;

use crate::experiment::{Context, Experiment};
use crate::page_store::PageStore;
use crate::plot::Plot;
use crate::report::Report;
use crate::rounds::{Candidate, Measured, find, ratio};
use crate::row::{PoolShape, Row};
use crate::rows::{self, RowName};
use crate::statistics::{Figure, Figures, difference_percent};
use crate::table::{Column, Sheet};

/// CPUs of a socket if not given: for queues, and for jobs, half of the 96 of the mail's machine.
const SOCKETS: [usize; 2] = [64, 48];
/// Numbers of CPUs that are run here.
const CPUS: [usize; 2] = [1, 2];
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

/// The queues of the workqueue experiment that the model has.
const QUEUES: [(RowName, Queue); 6] = [
    (RowName::Original, Queue::Original),
    (RowName::Batching, Queue::Batching),
    (RowName::PerThread, Queue::PerThread),
    (RowName::RoundRobin, Queue::RoundRobin),
    (RowName::OursWaiting, Queue::OursWaiting),
    (RowName::Ours, Queue::Ours),
];

/// In the model, and on this machine.
const MODEL: Figure = Figure::new("model", "thousand requests/s", 2);
const HERE: Figure = Figure::new("here", "thousand requests/s", 2);
const MOVES: Figure = Figure::new("cache lines that move", "lines a request", 2);
const UPGRADES: Figure = Figure::new("lines taken from other readers", "lines a request", 2);
const WAKES: Figure = Figure::new("wake-ups by system call", "a request", 3);
const RATIO: Figure = Figure::new("model/here", "", 2);
const FAULTING: Figure = Figure::new("model", "ms", 1);
const FAULTING_HERE: Figure = Figure::new("here", "ms", 1);
const TOOK_PART: Figure = Figure::new("took part", "threads", 0);
const CHUNKS: Figure = Figure::new("chunks", "", 0);
const MOVED: Figure = Figure::new("lines that moved", "lines", 0);

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
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = queue)]
    #[arg(default_value = "original,batching,per-thread,round-robin,ours-waiting,ours")]
    rows: Vec<RowName>,
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
    /// Other costs of the machine, such as near=23: hit, near, far, occupancy, locked, pause, clock, sleep, wake, latency, switch, start, slice
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

fn queue(text: &str) -> Result<RowName, String> {
    let found = QUEUES.iter().find(|(name, _)| name.text() == text);
    found.map(|(name, _)| *name).ok_or_else(|| "the model has no such queue".to_owned())
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
            self.simulate_queues(context)?;
            if !self.no_check {
                self.compare_queues(context)?;
            }
        }
        if self.has(Subject::Jobs) {
            self.simulate_jobs(context)?;
            if !self.no_check {
                self.compare_jobs(context)?;
            }
        }
        Ok(())
    }
}

impl ModelArguments {
    /// A queue in the model.
    fn flow(&self, row: RowName, shape: Shape, costs: Costs, load: Load) -> Result<Figures> {
        let queue =
            QUEUES.iter().find(|(name, _)| *name == row).context("the model has no such queue")?;
        let flow = stream::run(queue.1, shape, costs, load);
        let flow = flow.with_context(|| format!("{} on {} CPUs", row.text(), shape.cpus))?;
        Ok(vec![
            (MODEL, flow.per_second() / 1e3),
            (MOVES, flow.per_request(flow.counts.moves())),
            (UPGRADES, flow.per_request(flow.counts.upgrades())),
            (WAKES, flow.per_request(flow.wakes)),
        ])
    }

    fn simulate_queues(&self, context: &mut Context<'_>) -> Result<()> {
        let count = usize::try_from(self.count)? / if context.is_quick { 10 } else { 1 };
        let (slots, request) = (self.requests.into(), self.request);
        let load = Load { slots, request, warm_up: count, requests: count };
        let columns = [MODEL, MOVES, UPGRADES, WAKES];
        let columns = columns.map(|of| Column::new(format!("{}, {}", of.name, of.unit), of));
        let mut sheet = Sheet::new("Model: one submitter", "CPUs | queue", columns.into());
        let mut cases: Vec<(usize, Vec<Measured>)> = Vec::new();
        for &cpus in &self.cpus {
            context.say(format!("model: the queues on {cpus} CPUs"))?;
            let shape = self.shape(cpus, Subject::Workqueue);
            let simulate = |row: &RowName| {
                let flow = self.flow(*row, shape, self.machine_costs(), load)?;
                anyhow::Ok(Measured::new(row.text(), flow))
            };
            let all = self.rows.iter().map(simulate).collect::<Result<Vec<_>>>()?;
            sheet.add(&cpus.to_string(), &all);
            cases.push((cpus, all));
        }
        context.report.sheet(sheet);
        for (title, figure) in
            [("Model: throughput of one submitter", MODEL), ("Model: cache lines that move", MOVES)]
        {
            let mut plot = Plot::lines(title, "CPUs (model)", figure.unit).log_x();
            for name in self.rows.iter().map(|row| row.text()) {
                let point = |(cpus, all): &(usize, Vec<Measured>)| {
                    Some((*cpus as f64, find(all, &name)?.median(figure)))
                };
                plot.line(&name, cases.iter().filter_map(point).collect());
            }
            context.report.plot(plot);
        }
        judge_queues(&cases, &mut context.report);
        Ok(())
    }

    /// The queues on this machine beside their model.
    fn compare_queues(&self, context: &mut Context<'_>) -> Result<()> {
        let home = CpuSet::of_current_thread();
        let costs = measured_costs(&home, self.machine_costs())?;
        let title = "Here: thousand requests a second, model and machine";
        let mut sheet = Sheet::new(title, "CPUs | queue", comparison(MODEL, HERE));
        for cpus in CPUS {
            if cpus > home.len() {
                let what = format!("the comparison on {cpus} CPUs");
                context.report.leave_out(what, "there is but one");
                continue;
            }
            let measured = self.measure_queues(&home, cpus, context);
            home.bind_current_thread().context("unbinding the submitter")?;
            let mut measured = measured?.into_iter();
            let request = 1e6 / measured.next().map_or(f64::NAN, |inline| inline.median(HERE));
            context.report.remark(format!("here: a request on {cpus} CPUs takes {request:.0} ns"));
            let load = Load { slots: self.requests.into(), request, warm_up: 1000, requests: 4000 };
            let mut all: Vec<Measured> = measured.collect();
            for (row, one) in self.rows.iter().zip(&mut all) {
                let shape = Shape { cpus, cpus_per_socket: cpus };
                one.add(self.flow(*row, shape, costs, load)?);
                compare(one, MODEL, HERE, &mut context.report);
            }
            sheet.add(&cpus.to_string(), &all);
        }
        context.report.sheet(sheet);
        let Costs { near, pause, .. } = costs;
        context.report.remark(format!(
            "here: a cache line takes {near:.1} ns from CPU to CPU, a hint to wait {pause:.1} ns; other costs as stated"
        ));
        Ok(())
    }

    /// Thousands of requests a second without a queue, and of all queues, in turn.
    fn measure_queues(
        &self,
        home: &CpuSet,
        cpus: usize,
        context: &mut Context<'_>,
    ) -> Result<Vec<Measured>> {
        let count = if context.is_quick { QUICK_PAGES } else { PAGES };
        let pages = Arc::new(PageStore::new(count)?);
        let shape = PoolShape { workers: (cpus - 1).max(1), slots: self.requests.into() };
        let own = home.iter().next().context("no CPU")?;
        let others = home.iter().nth(1).filter(|_| cpus > 1).unwrap_or(own);
        if cpus == 1 {
            // Before the queues are made, so that they know how many CPUs there are.
            CpuSet::from_iter([own]).bind_current_thread().context("binding the submitter")?;
        }
        let names = [RowName::Inline].into_iter().chain(self.rows.iter().copied());
        let rows = names.map(|name| Ok((name, rows::build(name, &pages, shape)?)));
        let mut rows = rows.collect::<Result<Vec<_>>>()?;
        for (_, row) in &mut rows {
            row.pass()?;
        }
        CpuSet::from_iter([own]).bind_current_thread().context("binding the submitter")?;
        bind_others(others)?;
        let candidate = |(name, mut row): (RowName, Box<dyn Row>)| {
            Candidate::ours(name.text(), move || {
                let start = Instant::now();
                row.pass()?;
                Ok(vec![(HERE, count as f64 / start.elapsed().as_secs_f64() / 1e3)])
            })
        };
        let candidates = rows.into_iter().map(candidate).collect();
        context.measure(&format!("here: the queues on {cpus} CPUs"), candidates)
    }

    fn simulate_jobs(&self, context: &mut Context<'_>) -> Result<()> {
        let bytes = (u64::from(self.gib) << 30) / if context.is_quick { 8 } else { 1 };
        let gib = bytes >> 30;
        let mut all = Vec::new();
        for &threads in &self.threads {
            context.say(format!("model: faulting {gib} GiB in on {threads} threads"))?;
            let (shape, costs) = (self.shape(threads, Subject::Jobs), self.machine_costs());
            let run = faults::run(shape, costs, self.kernel(), bytes, threads);
            let run = run.with_context(|| format!("{threads} threads"))?;
            let figures = vec![
                (FAULTING, run.nanoseconds / 1e6),
                (TOOK_PART, run.threads as f64),
                (CHUNKS, run.chunks as f64),
                (MOVED, run.moves as f64),
            ];
            all.push(Measured::new(threads.to_string(), figures));
        }
        let columns = vec![
            Column::new("took part", TOOK_PART),
            Column::new("chunks", CHUNKS),
            Column::new("ms", FAULTING),
            Column::new("diff", FAULTING).difference_to("1"),
            Column::new("lines that moved", MOVED),
        ];
        let title = format!("Model: faulting {gib} GiB in");
        let mut sheet = Sheet::new(&title, "threads", columns);
        sheet.add("model", &all);
        context.report.sheet(sheet);
        let millis = |one: &Measured| one.median(FAULTING);
        let threads = self.threads.iter().map(|&threads| threads as f64);
        let mut plot = Plot::lines(title, "threads (model)", "ms").log_x().log_y();
        plot.line("ours", threads.zip(all.iter().map(millis)).collect());
        context.report.plot(plot);
        let alone = find(&all, "1").map_or(f64::NAN, millis);
        let saved = all.iter().filter(|one| one.name != "1");
        let saved = saved.map(|one| difference_percent(alone, millis(one)));
        context.report.judge("saved", "", saved.fold(f64::NAN, f64::min));
        let why =
            "one thread and more are needed, and memory and locks as stated bound what is saved";
        context.report.explain("saved", why);
        Ok(())
    }

    /// Faults memory in beside the model. One thread here gives the cost of a page; two are compared.
    fn compare_jobs(&self, context: &mut Context<'_>) -> Result<()> {
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
        let mut all =
            context.measure(&format!("here: faulting {mib} MiB in"), candidates.into())?;
        let [alone, both] = &mut all[..] else { return Ok(()) };
        let (pages, stated) = (FAULT_BYTES as f64 / faults::PAGE_BYTES as f64, self.kernel());
        let page =
            alone.median(FAULTING_HERE) * 1e6 / pages - stated.hold / f64::from(stated.batch);
        let kernel = Kernel { page: page.max(0.0), ..stated };
        let shape = Shape { cpus: 2, cpus_per_socket: 2 };
        let model = faults::run(shape, self.machine_costs(), kernel, FAULT_BYTES as u64, 2)?;
        // One thread sets the model's cost of a page.
        alone.add(vec![(FAULTING, alone.median(FAULTING_HERE))]);
        both.add(vec![(FAULTING, model.nanoseconds / 1e6)]);
        compare(both, FAULTING, FAULTING_HERE, &mut context.report);
        let title = format!(
            "Here: faulting {mib} MiB in, ms, model and machine; 1 thread sets the model's cost of a page"
        );
        let mut sheet = Sheet::new(title, "threads", comparison(FAULTING, FAULTING_HERE));
        sheet.add("here", &all);
        context.report.sheet(sheet);
        Ok(())
    }
}

/// The columns of a comparison with this machine.
fn comparison(model: Figure, here: Figure) -> Vec<Column> {
    vec![
        Column::new("model", model),
        Column::new("here", here),
        Column::new("least–most", here).range(),
        Column::new("model/here", RATIO),
    ]
}

/// Adds the ratio, and has it judged, whichever of both is larger.
fn compare(one: &mut Measured, model: Figure, here: Figure, report: &mut Report) {
    let ratio = one.median(model) / one.median(here);
    one.add(vec![(RATIO, ratio)]);
    report.judge("agrees", &one.name, ratio.max(1.0 / ratio));
    report.explain("agrees", APART);
}

fn judge_queues(cases: &[(usize, Vec<Measured>)], report: &mut Report) {
    let (ours, original) = (RowName::Ours.text(), RowName::Original.text());
    let mut best = f64::NAN;
    for (cpus, all) in cases {
        let case = format!("{cpus} CPUs");
        if let Some(own) = find(all, &ours) {
            // The more CPUs, the more are used, until the submitter is what limits; from then on nothing may fall.
            best = best.max(own.median(MODEL));
            report.judge("flat", &case, own.median(MODEL) / best);
            report.judge("lines", &case, own.median(MOVES));
        }
        report.judge("ahead", &case, ratio(all, MODEL, &ours, &original));
    }
    report.explain("flat", FALLS);
    report.explain("ahead", FALLS);
    report.explain("lines", "ours is not among the rows");
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
