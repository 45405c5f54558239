//! The workqueue experiment: QEMU's threaded-workqueue-bench over several queues. Every repetition runs each row once with
//! each number of threads, so that a neighbour's load and a change of the machine's speed affect all of them alike.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};
use ferrofs_workers::cpus::CpuSet;
use serde::Serialize;

use crate::experiment::{Context, Experiment};
use crate::page_store::{PAGE_BYTES, PAGES_PER_GIB, PageStore};
use crate::plot::Plot;
use crate::procfs::Usage;
use crate::report::{Report, Table};
use crate::rounds::{StealFilter, TimeLimit};
use crate::row::{PassStats, PoolShape};
use crate::rows::{self, RowName};
use crate::statistics::Samples;

const QUICK_PAGES: usize = PAGES_PER_GIB / 8;
const QUICK_REPEAT: u16 = 2;
/// The queues of the mail and the peers that do the same: a stream from one submitter.
const OTHERS: [RowName; 6] = [
    RowName::Original,
    RowName::Batching,
    RowName::PerThread,
    RowName::RoundRobin,
    RowName::Rayon,
    RowName::Crossbeam,
];

/// The letters are those of QEMU's bench.
#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct WorkqueueArguments {
    /// Worker threads, one run for each number; the submitter is extra
    #[arg(short, long, value_name = "N", value_delimiter = ',', default_value = "1,2,4,16,64")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=512))]
    pub(crate) threads: Vec<u16>,
    /// Requests that each worker may have before it
    #[arg(short, long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) requests: u16,
    /// Memory to compress, in GiB, or in MiB with the suffix M; an eighth of a GiB with --quick
    #[arg(short, long = "memory", value_name = "GIB", default_value = "1", value_parser = mebibytes)]
    #[serde(rename = "memory_mib")]
    pub(crate) mebibytes: u32,
    /// Repetitions; 2 at most with --quick
    #[arg(short = 'c', long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) repeat: u16,
    /// Rows to run; all if none is named
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) rows: Vec<RowName>,
    /// Bind every thread to these CPUs, such as "0" or "0-3,8"
    #[arg(long, value_name = "CPUS")]
    pub(crate) pin: Option<String>,
    #[command(flatten)]
    limit: TimeLimit,
}

fn mebibytes(text: &str) -> Result<u32, String> {
    let (digits, unit) = text.strip_suffix('M').map_or((text, 1024), |digits| (digits, 1));
    let count: u32 = digits.parse().map_err(|error| format!("{error}"))?;
    match count.checked_mul(unit) {
        Some(mebibytes @ 1..=0x10_0000) => Ok(mebibytes),
        _ => Err("from 1M to 1024".to_owned()),
    }
}

/// One timed pass.
#[derive(Debug, Clone, Copy)]
struct Pass {
    stats: PassStats,
    wall: Duration,
    usage: Usage,
}

/// All passes of one row with one number of threads.
#[derive(Debug)]
struct Line {
    name: RowName,
    threads: u16,
    passes: Vec<Pass>,
}

impl Line {
    fn samples(&self, of: impl Fn(&Pass) -> f64) -> Samples {
        self.passes.iter().map(of).collect()
    }

    fn walls(&self) -> Samples {
        self.samples(|pass| pass.wall.as_secs_f64())
    }
}

impl Experiment for WorkqueueArguments {
    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        if let Some(list) = &self.pin {
            let cpus = CpuSet::parse(list)?;
            cpus.bind_current_thread().with_context(|| format!("binding to {list}"))?;
        }
        let full = self.mebibytes as usize * (PAGES_PER_GIB / 1024);
        let pages = Arc::new(PageStore::new(if context.is_quick { QUICK_PAGES } else { full })?);
        let is_named = !self.rows.is_empty();
        let names = if is_named { self.rows.clone() } else { RowName::value_variants().to_vec() };
        let lines = self.measure(&names, &pages, context)?;
        let gib = pages.count() as f64 / PAGES_PER_GIB as f64;
        for line in &lines {
            self.print_like_qemu(line, gib, context)?;
        }
        let report = &mut context.report;
        self.add_tables(&names, &lines, gib, report);
        report.plot(plot(&names, &lines, gib));
        let rate = |line: &Line| Rate {
            name: line.name,
            threads: line.threads,
            pages_per_second: pages.count() as f64 / line.walls().median(),
        };
        judge(&lines.iter().map(rate).collect::<Vec<_>>(), report)?;
        for line in &lines {
            if line.name == RowName::Ours {
                let what = format!("ours, {} threads", line.threads);
                report.judge_repetitions(&what, &line.walls())?;
            }
            let (row, case) = (line.name.text(), format!("{} threads", line.threads));
            report.series(row, case, "us", &line.walls().scaled(1e6));
        }
        Ok(())
    }
}

impl WorkqueueArguments {
    /// Every row with every number of workers, in turn; which begins changes from one repetition to the next.
    fn measure(
        &self,
        names: &[RowName],
        pages: &Arc<PageStore>,
        context: &mut Context<'_>,
    ) -> Result<Vec<Line>> {
        let mut rows = Vec::new();
        for &threads in &self.threads {
            let shape = PoolShape { workers: threads.into(), slots: self.requests.into() };
            for &name in names {
                let line = Line { name, threads, passes: Vec::new() };
                rows.push((line, rows::build(name, pages, shape)?));
            }
        }
        let expected = u64::try_from(pages.count())?;
        let repeat = usize::from(context.rounds(self.repeat, QUICK_REPEAT));
        let count = rows.len();
        context.say(format!("{count} rows, {repeat} times each in turn"))?;
        let next = names.len() + 1;
        let kinds = (0..repeat)
            .flat_map(|round| (0..count).map(move |place| (round * next + place) % count));
        let mut filter = StealFilter::default();
        let passes = filter.sample(kinds, self.limit.deadline(), |kind| {
            let (line, row) = &mut rows[kind];
            let (before, start) = (Usage::now(), Instant::now());
            let stats = row.pass().with_context(|| line.name.text())?;
            let wall = start.elapsed();
            let (name, done) = (line.name.text(), stats.pages);
            ensure!(done == expected, "{name}: {done} requests done, {expected} were submitted");
            Ok(Pass { stats, wall, usage: Usage::now().since(before) })
        })?;
        passes.into_iter().for_each(|(kind, pass)| rows[kind].0.passes.push(pass));
        context.report.remark(filter.to_string());
        let mut lines: Vec<Line> = rows.into_iter().map(|(line, _)| line).collect();
        lines.sort_by_key(|line| (line.threads, line.name));
        Ok(lines)
    }

    /// The lines of threaded-workqueue-bench, after one that names the row.
    fn print_like_qemu(&self, line: &Line, gib: f64, context: &mut Context<'_>) -> Result<()> {
        let (repeat, requests, threads) = (line.passes.len(), self.requests, line.threads);
        context.say(format!("row {}", line.name.text()))?;
        context.say(format!(
            "Run the benchmark: threads {threads} requests-per-thread: {requests} memory {gib}G repeat {repeat}."
        ))?;
        for (number, Pass { stats, wall, .. }) in line.passes.iter().enumerate() {
            let ratio = (stats.pages * PAGE_BYTES as u64) as f64 / stats.bytes as f64;
            let (pages, cost) = (stats.pages, wall.as_micros());
            context.say(format!(
                "RUN {number}: Request # {pages} Cost {cost} µs, Compression Rate {ratio:.6}."
            ))?;
        }
        let total: u128 = line.passes.iter().map(|pass| pass.wall.as_micros()).sum();
        let throughput = gib * repeat as f64 * 1e6 / total as f64;
        context.say(format!("AVG: Time Cost {} µs", total / repeat.max(1) as u128))?;
        context.say(format!("AVG Throughput: {throughput:.6} GB/s"))
    }

    /// Tables with a column for each row of the experiment and a line for each number of threads.
    fn add_tables(&self, names: &[RowName], lines: &[Line], gib: f64, report: &mut Report) {
        let texts: Vec<String> = names.iter().map(|name| name.text()).collect();
        let header = format!("threads | {}", texts.join(" | "));
        let mut add = |title: &str, cell: &dyn Fn(&Line) -> String| {
            let mut table = Table::new(title, &header);
            for &threads in &self.threads {
                let of = |name: &RowName| find(lines, *name, threads).map_or(String::new(), cell);
                table.add([threads.to_string()].into_iter().chain(names.iter().map(of)));
            }
            report.table(table);
        };
        let thousands = gib * PAGES_PER_GIB as f64 / 1e3;
        add("GB/s, median", &|line| format!("{:.3}", gib / line.walls().median()));
        add("GB/s, least to most", &|line| {
            let walls = line.walls().summary();
            format!("{:.3}–{:.3}", gib / walls.maximum, gib / walls.minimum)
        });
        add("CPU time (user and system, all threads), us a request, median", &|line| {
            let cpu = line.samples(|pass| pass.usage.cpu.as_secs_f64());
            format!("{:.2}", cpu.median() * 1e3 / thousands)
        });
        add("voluntary switches (sleeps) a thousand requests, median", &|line| {
            let switches = line.samples(|pass| pass.usage.voluntary_switches as f64);
            format!("{:.2}", switches.median() / thousands)
        });
        add("involuntary switches a thousand requests, median", &|line| {
            let switches = line.samples(|pass| pass.usage.involuntary_switches as f64);
            format!("{:.2}", switches.median() / thousands)
        });
    }
}

fn find(lines: &[Line], name: RowName, threads: u16) -> Option<&Line> {
    lines.iter().find(|line| line.name == name && line.threads == threads)
}

/// Throughput against threads, as in the mail; the row without a queue is not drawn.
fn plot(names: &[RowName], lines: &[Line], gib: f64) -> Plot {
    let title = "Throughput of one submitter";
    let mut plot = Plot::lines(title, "worker threads", "GB/s, median").log_x();
    for &name in names.iter().filter(|name| **name != RowName::Inline) {
        let own = lines.iter().filter(|line| line.name == name);
        let point = |line: &Line| (f64::from(line.threads), gib / line.walls().median());
        plot.line(name.text(), own.map(point).collect());
    }
    plot
}

/// The speed of one row with one number of workers.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Rate {
    name: RowName,
    threads: u16,
    pages_per_second: f64,
}

/// Adds remarks and claims; only those whose rows were run have figures.
fn judge(rates: &[Rate], report: &mut Report) -> Result<()> {
    let ours: Vec<&Rate> = rates.iter().filter(|rate| rate.name == RowName::Ours).collect();
    let best = ours.iter().map(|rate| rate.pages_per_second).fold(f64::NAN, f64::max);
    let find =
        |name, threads| rates.iter().find(|rate| rate.name == name && rate.threads == threads);
    for own in &ours {
        let (rate, threads) = (own.pages_per_second, own.threads);
        if let (1, Some(inline)) = (threads, find(RowName::Inline, threads)) {
            against_inline(rate, inline.pages_per_second, report)?;
        }
        if ours.len() > 1 {
            let share = rate / best;
            let text = format!("ours with {threads} workers: {share:.2} of its best");
            report.judged_remark(&text, "flat", &[share])?;
        }
        let others = OTHERS.into_iter().filter_map(|name| find(name, threads));
        let fastest = others.max_by(|a, b| a.pages_per_second.total_cmp(&b.pages_per_second));
        if let Some(other) = fastest {
            let (ratio, name) = (rate / other.pages_per_second, other.name.text());
            report.remark(format!(
                "ours with {threads} workers: {ratio:.2} times the fastest other stream, {name}"
            ));
        }
    }
    let shares = ours.iter().filter(|_| ours.len() > 1);
    let shares = shares.map(|own| (own.pages_per_second / best, own.threads));
    let reason = "ours was not run with several numbers of workers";
    claim_least(report, "flat", shares, reason)?;
    let ratios = ours.iter().filter_map(|own| {
        let original = find(RowName::Original, own.threads)?;
        Some((own.pages_per_second / original.pages_per_second, own.threads))
    });
    claim_least(report, "ahead", ratios, "ours or the original was not run")
}

/// Claims the least of some figures, which stand with their number of workers.
fn claim_least(
    report: &mut Report,
    threshold: &str,
    figures: impl Iterator<Item = (f64, u16)>,
    otherwise: &str,
) -> Result<()> {
    match figures.min_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((figure, threads)) => {
            report.claim("002", threshold, &[figure], &format!("least with {threads} workers"))
        }
        None => report.claim("002", threshold, &[], otherwise),
    }
}

fn against_inline(own: f64, inline: f64, report: &mut Report) -> Result<()> {
    let (own, inline) = (1e6 / own, 1e6 / inline);
    let [share, micros] = ["inline-share", "inline-micros"].map(|name| report.threshold(name));
    let most = inline * share?.value + micros?.value;
    let met = if own <= most { "met" } else { "NOT met" };
    report.remark(format!(
        "ours with 1 worker: {own:.2} us an item, inline {inline:.2} (threshold {most:.2}: {met})"
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Rate, judge};
    use crate::report::Report;
    use crate::rows::RowName;

    fn rate(name: RowName, threads: u16, pages_per_second: f64) -> Rate {
        Rate { name, threads, pages_per_second }
    }

    fn said(rates: &[Rate]) -> String {
        let mut report = Report::new("workqueue", &()).unwrap();
        judge(rates, &mut report).unwrap();
        let mut text = Vec::new();
        report.print(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn each_threshold_has_its_sentence() {
        let said = said(&[
            rate(RowName::Inline, 1, 200_000.0),
            rate(RowName::Ours, 1, 200_000.0),
            rate(RowName::Rayon, 1, 100_000.0),
            rate(RowName::Ours, 2, 100_000.0),
            rate(RowName::Original, 2, 200_000.0),
        ]);
        for line in [
            "ours with 1 worker: 5.00 us an item, inline 5.00 (threshold 6.25: met)",
            "ours with 1 workers: 1.00 of its best (threshold 0.9 of its best: met)",
            "ours with 1 workers: 2.00 times the fastest other stream, rayon",
            "ours with 2 workers: 0.50 of its best (threshold 0.9 of its best: NOT met)",
            "ours with 2 workers: 0.50 times the fastest other stream, original",
            "0.50 of its best here, NOT met (least with 2 workers)",
            "0.50 times the original here, NOT met (least with 2 workers)",
        ] {
            assert!(said.contains(line), "{line} is missing in {said}");
        }
    }

    #[test]
    fn without_our_row_nothing_is_judged() {
        let said = said(&[rate(RowName::Rayon, 1, 1.0)]);
        assert_eq!(said.matches("not measured: ours").count(), 2, "{said}");
        assert!(!said.contains("(threshold"), "{said}");
    }
}
