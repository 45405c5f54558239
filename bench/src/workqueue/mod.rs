//! The workqueue experiment: QEMU's threaded-workqueue-bench over several queues. Every repetition
//! runs each row once with each number of threads, so that a neighbour's load, and a machine that gets faster or
//! slower with the minute, meet all of them alike.

mod marks;

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use ferrofs_workers::cpus::CpuSet;

use crate::arguments::WorkqueueArguments;
use crate::deadline::TimeLimit;
use crate::page_store::{PAGE_BYTES, PAGES_PER_GIB, PageStore};
use crate::plot::Plot;
use crate::report::{Report, Series};
use crate::rows::{self, Crew, Row, RowName, Tally};
use crate::statistics::Samples;
use crate::steal::Undisturbed;
use crate::table::Table;
use crate::usage::Usage;

/// Of a GiB, in a quick run.
const QUICK_PAGES: usize = PAGES_PER_GIB / 8;
/// Repetitions of a quick run.
const QUICK_REPEAT: u16 = 2;

/// One timed pass.
#[derive(Debug, Clone, Copy)]
struct Run {
    tally: Tally,
    wall: Duration,
    usage: Usage,
}

/// All passes of one row with one number of threads.
#[derive(Debug)]
struct Line {
    name: RowName,
    threads: u16,
    runs: Vec<Run>,
}

/// What is asked of every row.
#[derive(Debug)]
struct Plan {
    pages: Arc<PageStore>,
    rows: Vec<RowName>,
    requests: u16,
    repeat: u16,
    limit: TimeLimit,
}

impl Plan {
    fn new(arguments: &WorkqueueArguments, is_quick: bool) -> Result<Self> {
        let full = arguments.mebibytes as usize * (PAGES_PER_GIB / 1024);
        let named = !arguments.rows.is_empty();
        Ok(Self {
            pages: Arc::new(PageStore::new(if is_quick { QUICK_PAGES } else { full })?),
            rows: if named { arguments.rows.clone() } else { RowName::value_variants().to_vec() },
            requests: arguments.requests,
            repeat: if is_quick { arguments.repeat.min(QUICK_REPEAT) } else { arguments.repeat },
            limit: arguments.limit,
        })
    }

    /// Pages a second, by the median of each line.
    fn rates(&self, lines: &[Line]) -> Vec<marks::Rate> {
        let pages = self.pages.count() as f64;
        let rate = |line: &Line| pages / line.walls().median();
        lines
            .iter()
            .map(|line| marks::Rate {
                name: line.name,
                threads: line.threads,
                pages_per_second: rate(line),
            })
            .collect()
    }

    fn gib(&self) -> f64 {
        self.pages.count() as f64 / PAGES_PER_GIB as f64
    }
}

/// Runs the experiment and prints QEMU's lines as it goes.
///
/// # Errors
/// When a row loses or doubles a page, or the system lacks memory or threads.
pub(crate) fn run(
    arguments: &WorkqueueArguments,
    is_quick: bool,
    out: &mut dyn Write,
) -> Result<Report> {
    let mut report = Report::new("workqueue", arguments)?;
    if let Some(list) = &arguments.pin {
        CpuSet::parse(list)?.bind_current_thread().with_context(|| format!("pinning to {list}"))?;
    }
    let plan = Plan::new(arguments, is_quick)?;
    let mut undisturbed = Undisturbed::default();
    let lines = measure(&plan, &arguments.threads, &mut undisturbed, out)?;
    for line in &lines {
        print_like_qemu(&plan, line, out)?;
    }
    add_tables(&plan, &arguments.threads, &lines, &mut report);
    report.add_plot(plot(&plan, &lines));
    report.add_remark(undisturbed.to_string());
    marks::judge(&plan.rates(&lines), &mut report)?;
    for line in &lines {
        if line.name == RowName::Ours {
            report.judge_repetitions(format!("ours, {} threads", line.threads), &line.walls())?;
        }
        report.add_series(Series {
            row: line.name.text(),
            case: format!("{} threads", line.threads),
            unit: "us",
            samples: line.runs.iter().map(|run| run.wall.as_secs_f64() * 1e6).collect(),
        });
    }
    Ok(report)
}

/// Every row with every number of workers, in turn; which begins changes from one repetition to the next.
fn measure(
    plan: &Plan,
    threads: &[u16],
    undisturbed: &mut Undisturbed,
    out: &mut dyn Write,
) -> Result<Vec<Line>> {
    let mut rows = Vec::new();
    for &threads in threads {
        let crew = Crew { workers: threads.into(), slots: plan.requests.into() };
        for &name in &plan.rows {
            let line = Line { name, threads, runs: Vec::new() };
            rows.push((line, rows::build(name, &plan.pages, crew)?));
        }
    }
    let expected = u64::try_from(plan.pages.count())?;
    let (count, repeat) = (rows.len(), usize::from(plan.repeat));
    writeln!(out, "{count} rows, {repeat} times each in turn")?;
    let next = plan.rows.len() + 1;
    let turns =
        (0..repeat).flat_map(|round| (0..count).map(move |place| (round * next + place) % count));
    let runs = undisturbed.in_turn(turns, plan.limit.deadline(), |turn| {
        let (line, row) = rows.get_mut(turn).context("a turn of no row")?;
        let name = line.name.text();
        let run = time(row.as_mut()).with_context(|| name.clone())?;
        let done = run.tally.pages;
        ensure!(done == expected, "{name}: {done} requests done, {expected} were submitted");
        Ok(run)
    })?;
    for (turn, run) in runs {
        rows.get_mut(turn).context("a turn of no row")?.0.runs.push(run);
    }
    let mut lines: Vec<Line> = rows.into_iter().map(|(line, _)| line).collect();
    lines.sort_by_key(|line| (line.threads, line.name));
    Ok(lines)
}

fn time(row: &mut dyn Row) -> Result<Run> {
    let before = Usage::now();
    let start = Instant::now();
    let tally = row.pass()?;
    let wall = start.elapsed();
    Ok(Run { tally, wall, usage: Usage::now().since(before) })
}

impl Line {
    fn walls(&self) -> Samples {
        self.runs.iter().map(|run| run.wall.as_secs_f64()).collect()
    }

    fn total_micros(&self) -> u128 {
        self.runs.iter().map(|run| run.wall.as_micros()).sum()
    }
}

/// The lines of threaded-workqueue-bench, after one that names the row.
fn print_like_qemu(plan: &Plan, line: &Line, out: &mut dyn Write) -> Result<()> {
    let (gib, repeat) = (plan.gib(), line.runs.len());
    writeln!(out, "row {}", line.name.text())?;
    writeln!(
        out,
        "Run the benchmark: threads {} requests-per-thread: {} memory {gib}G repeat {repeat}.",
        line.threads, plan.requests
    )?;
    for (number, run) in line.runs.iter().enumerate() {
        let rate = (run.tally.pages * PAGE_BYTES as u64) as f64 / run.tally.bytes as f64;
        writeln!(
            out,
            "RUN {number}: Request # {} Cost {} µs, Compression Rate {rate:.6}.",
            run.tally.pages,
            run.wall.as_micros()
        )?;
    }
    let total = line.total_micros();
    let throughput = gib * repeat as f64 * 1e6 / total as f64;
    writeln!(out, "AVG: Time Cost {} µs", total / repeat.max(1) as u128)?;
    writeln!(out, "AVG Throughput: {throughput:.6} GB/s")?;
    out.flush()?;
    Ok(())
}

/// A table with a column for each row of the experiment and a line for each number of threads.
fn tabulate(
    title: &str,
    plan: &Plan,
    threads: &[u16],
    lines: &[Line],
    cell: impl Fn(&Line) -> String,
) -> Table {
    let names = plan.rows.iter().map(|name| name.text());
    let mut table = Table::new(title, std::iter::once("threads".to_owned()).chain(names));
    for &count in threads {
        let find = |&name: &RowName| {
            lines
                .iter()
                .find(|line| line.name == name && line.threads == count)
                .map_or(String::new(), &cell)
        };
        table.add(std::iter::once(count.to_string()).chain(plan.rows.iter().map(find)));
    }
    table
}

fn add_tables(plan: &Plan, threads: &[u16], lines: &[Line], report: &mut Report) {
    let gib = plan.gib();
    let pages = plan.pages.count() as f64;
    let mut add = |title: &str, cell: &dyn Fn(&Line) -> String| {
        report.add_table(tabulate(title, plan, threads, lines, cell));
    };
    add("GB/s, median", &|line| format!("{:.3}", gib / line.walls().median()));
    add("GB/s, least to most", &|line| {
        let walls = line.walls().summary();
        format!("{:.3}–{:.3}", gib / walls.maximum, gib / walls.minimum)
    });
    add("CPU time (user and system, all threads), us a request, median", &|line| {
        let cpu: Samples = line.runs.iter().map(|run| run.usage.cpu.as_secs_f64()).collect();
        format!("{:.2}", cpu.median() * 1e6 / pages)
    });
    add("voluntary switches (sleeps) a thousand requests, median", &|line| {
        switches(line, pages, |usage| usage.voluntary_switches)
    });
    add("involuntary switches a thousand requests, median", &|line| {
        switches(line, pages, |usage| usage.involuntary_switches)
    });
}

/// Throughput against threads, as in the mail; what is done without any queue is no line.
fn plot(plan: &Plan, lines: &[Line]) -> Plot {
    let mut plot =
        Plot::lines("Throughput of one submitter", "worker threads", "GB/s, median").log_x();
    for &name in plan.rows.iter().filter(|name| **name != RowName::Inline) {
        let own = lines.iter().filter(|line| line.name == name);
        let point = |line: &Line| (f64::from(line.threads), plan.gib() / line.walls().median());
        plot.add_line(name.text(), own.map(point).collect());
    }
    plot
}

fn switches(line: &Line, pages: f64, of: impl Fn(&Usage) -> u64) -> String {
    let counts: Samples = line.runs.iter().map(|run| of(&run.usage) as f64).collect();
    format!("{:.2}", counts.median() * 1e3 / pages)
}
