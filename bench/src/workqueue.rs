//! The workqueue experiment: QEMU's threaded-workqueue-bench over several queues. Every round runs each row once with each
//! number of threads, so that a neighbour's load and a change of the machine's speed affect all of them alike.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};
use ferrofs_workers::cpus::CpuSet;
use serde::Serialize;

use crate::experiment::{Context, Experiment};
use crate::page_store::{PAGE_BYTES, PAGES_PER_GIB, PageStore};
use crate::plot::Plot;
use crate::procfs::Usage;
use crate::report::Report;
use crate::rounds::{Candidate, Measured, RoundOptions, find, ratio};
use crate::row::{PoolShape, Row};
use crate::rows::{self, RowName};
use crate::statistics::{Figure, Figures, WALL};
use crate::table::{Column, Sheet};

const QUICK_PAGES: usize = PAGES_PER_GIB / 8;
/// The queues of the mail and the peers that do the same: a stream from one submitter.
const OTHERS: [RowName; 6] = [
    RowName::Original,
    RowName::Batching,
    RowName::PerThread,
    RowName::RoundRobin,
    RowName::Rayon,
    RowName::Crossbeam,
];

const RATE: Figure = Figure::new("throughput", "GB/s", 3);
/// User and system, all threads.
const CPU: Figure = Figure::new("CPU time", "us a request", 2);
const SLEEPS: Figure = Figure::new("voluntary switches", "a thousand requests", 2);
const SWITCHES: Figure = Figure::new("involuntary switches", "a thousand requests", 2);
const COMPRESSION: Figure = Figure::new("compression", "", 6);

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
    /// Rows to run; all if none is named
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) rows: Vec<RowName>,
    /// Bind every thread to these CPUs, such as "0" or "0-3,8"
    #[arg(long, value_name = "CPUS")]
    pub(crate) pin: Option<String>,
    #[command(flatten)]
    rounds: RoundOptions,
}

fn mebibytes(text: &str) -> Result<u32, String> {
    let (digits, unit) = text.strip_suffix('M').map_or((text, 1024), |digits| (digits, 1));
    let count: u32 = digits.parse().map_err(|error| format!("{error}"))?;
    match count.checked_mul(unit) {
        Some(mebibytes @ 1..=0x10_0000) => Ok(mebibytes),
        _ => Err("from 1M to 1024".to_owned()),
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
        context.plan(&self.rounds, 1);
        let cases = self.measure(&names, &pages, context)?;
        self.print_like_qemu(&cases, &pages, context)?;
        let columns = vec![
            Column::new("GB/s", RATE),
            Column::new("least–most", RATE).range(),
            Column::new("CPU, us a request", CPU),
            Column::new("sleeps a thousand", SLEEPS),
            Column::new("involuntary switches a thousand", SWITCHES),
        ];
        let title = "Throughput of one submitter, medians; switches are of a thousand requests";
        let mut sheet = Sheet::new(title, "threads | queue", columns);
        for (threads, all) in &cases {
            sheet.add(&threads.to_string(), all);
            let own = find(all, &RowName::Ours.text()).map(|ours| ours.samples(WALL));
            let what = format!("ours, {threads} threads");
            context.report.judge_repetitions(&what, &own.unwrap_or_default())?;
        }
        context.report.sheet(sheet);
        context.report.plot(plot(&names, &cases));
        judge(&cases, &mut context.report)
    }
}

/// Each number of threads with all rows.
type Cases = Vec<(u16, Vec<Measured>)>;

impl WorkqueueArguments {
    /// Every row with every number of workers, in turn.
    fn measure(
        &self,
        names: &[RowName],
        pages: &Arc<PageStore>,
        context: &mut Context<'_>,
    ) -> Result<Cases> {
        let mut candidates = Vec::new();
        for &threads in &self.threads {
            let shape = PoolShape { workers: threads.into(), slots: self.requests.into() };
            for &name in names {
                let mut row = rows::build(name, pages, shape)?;
                candidates.push(Candidate::ours(name.text(), move || time(&mut *row, pages)));
            }
        }
        let mut all = context.measure("one submitter", candidates)?;
        let per_case = self.threads.iter().map(|&threads| {
            let rest = all.split_off(names.len().min(all.len()));
            (threads, std::mem::replace(&mut all, rest))
        });
        Ok(per_case.collect())
    }

    /// The lines of threaded-workqueue-bench, after one that names the row.
    fn print_like_qemu(
        &self,
        cases: &Cases,
        pages: &PageStore,
        context: &mut Context<'_>,
    ) -> Result<()> {
        let (count, requests) = (pages.count(), self.requests);
        let gib = count as f64 / PAGES_PER_GIB as f64;
        for (threads, one) in
            cases.iter().flat_map(|(threads, all)| all.iter().map(move |one| (threads, one)))
        {
            let (walls, ratios) = (one.samples(WALL), one.samples(COMPRESSION));
            let repeat = walls.len();
            context.say(format!("row {}", one.name))?;
            context.say(format!(
                "Run the benchmark: threads {threads} requests-per-thread: {requests} memory {gib}G repeat {repeat}."
            ))?;
            for (number, (wall, ratio)) in walls.values().zip(ratios.values()).enumerate() {
                let cost = wall * 1e6;
                context.say(format!(
                    "RUN {number}: Request # {count} Cost {cost:.0} µs, Compression Rate {ratio:.6}."
                ))?;
            }
            let average = walls.summary().average;
            context.say(format!("AVG: Time Cost {:.0} µs", average * 1e6))?;
            context.say(format!("AVG Throughput: {:.6} GB/s", gib / average))?;
        }
        Ok(())
    }
}

/// One timed pass.
fn time(row: &mut dyn Row, pages: &PageStore) -> Result<Figures> {
    let (before, start) = (Usage::now(), Instant::now());
    let stats = row.pass()?;
    let wall = start.elapsed().as_secs_f64();
    let usage = Usage::now().since(before);
    let (done, count) = (stats.pages, pages.count());
    ensure!(done == count as u64, "{done} requests done, {count} were submitted");
    let thousands = count as f64 / 1e3;
    Ok(vec![
        (WALL, wall),
        (RATE, count as f64 / PAGES_PER_GIB as f64 / wall),
        (CPU, usage.cpu.as_secs_f64() * 1e3 / thousands),
        (SLEEPS, usage.voluntary_switches as f64 / thousands),
        (SWITCHES, usage.involuntary_switches as f64 / thousands),
        (COMPRESSION, (done * PAGE_BYTES as u64) as f64 / stats.bytes as f64),
    ])
}

/// Throughput against threads, as in the mail; the row without a queue is not drawn.
fn plot(names: &[RowName], cases: &Cases) -> Plot {
    let title = "Throughput of one submitter";
    let mut plot = Plot::lines(title, "worker threads", "GB/s, median").log_x();
    for name in names.iter().filter(|name| **name != RowName::Inline).map(|name| name.text()) {
        let point = |(threads, all): &(u16, Vec<Measured>)| {
            Some((f64::from(*threads), find(all, &name)?.median(RATE)))
        };
        plot.line(&name, cases.iter().filter_map(point).collect());
    }
    plot
}

/// Has thresholds judge the rows that were run, and compares with the fastest other stream.
fn judge(cases: &Cases, report: &mut Report) -> Result<()> {
    let ours = RowName::Ours.text();
    let rate = |all: &[Measured]| find(all, &ours).map_or(f64::NAN, |one| one.median(RATE));
    let best = cases.iter().map(|(_, all)| rate(all)).fold(f64::NAN, f64::max);
    for (threads, all) in cases {
        let case = format!("{threads} workers");
        if cases.len() > 1 {
            report.judge("flat", &case, rate(all) / best);
        }
        report.judge("ahead", &case, ratio(all, RATE, &ours, &RowName::Original.text()));
        let others = OTHERS.iter().filter_map(|name| find(all, &name.text()));
        let speed = |one: &&Measured| one.median(RATE);
        let fastest = others.max_by(|a, b| speed(a).total_cmp(&speed(b)));
        if let Some(other) = fastest.filter(|_| !rate(all).is_nan()) {
            let (ratio, name) = (rate(all) / speed(&other), &other.name);
            report.remark(format!(
                "ours with {case}: {ratio:.2} times the fastest other stream, {name}"
            ));
        }
        let inline = find(all, &RowName::Inline.text()).filter(|_| *threads == 1);
        if let Some(inline) = inline.map(speed_of_an_item) {
            // Together: an item takes what it takes inline by the share, and the microseconds beside that.
            let own = find(all, &ours).map_or(f64::NAN, speed_of_an_item);
            let [share, micros] =
                ["inline-share", "inline-micros"].map(|name| report.threshold(name));
            report.judge("inline-share", &case, (own - micros?.value) / inline);
            report.judge("inline-micros", &case, own - share?.value * inline);
            report.remark(format!("ours with 1 worker: {own:.2} us an item, inline {inline:.2}"));
        }
    }
    Ok(())
}

/// Microseconds of one item.
fn speed_of_an_item(one: &Measured) -> f64 {
    1e6 / (one.median(RATE) * PAGES_PER_GIB as f64)
}

#[cfg(test)]
mod tests {
    use super::{RATE, judge};
    use crate::page_store::PAGES_PER_GIB;
    use crate::report::Report;
    use crate::rounds::Measured;

    #[test]
    fn each_threshold_judges_its_figure() {
        let rate = |name: &str, thousands: f64| {
            Measured::new(name, vec![(RATE, thousands * 1e3 / PAGES_PER_GIB as f64)])
        };
        let cases = vec![
            (1, vec![rate("inline", 200.0), rate("ours", 200.0), rate("rayon", 100.0)]),
            (2, vec![rate("ours", 100.0), rate("original", 200.0)]),
        ];
        let mut report = Report::new("workqueue", &()).unwrap();
        judge(&cases, &mut report).unwrap();
        report.finish().unwrap();
        let mut text = Vec::new();
        report.print(&mut text).unwrap();
        let said = String::from_utf8(text).unwrap();
        for line in [
            "ours with 1 worker: 5.00 us an item, inline 5.00",
            "ours with 1 workers: 2.00 times the fastest other stream, rayon",
            "ours with 2 workers: 0.50 times the fastest other stream, original",
            "002: one worker takes 1.05 times the work at most, beside what the hand-over may cost: 0.80 times the work here, met",
            "002: handing an item over costs 1 us at most: -0.25 us here, met",
            "(worst: 2 workers), missed in 1 of 2 here, NOT met",
            "002: with every number of workers ours is 1 times the original or faster: 0.50 times the original here, NOT met",
        ] {
            assert!(said.contains(line), "{line} is missing in {said}");
        }
    }
}
