//! The workqueue experiment: QEMU's threaded-workqueue-bench over several queues. Every round runs each row once with each
//! number of threads, so that a neighbour's load and a change of the machine's speed affect all of them alike.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;

use crate::experiment::{Context, Experiment};
use crate::machine::Usage;
use crate::ours::{PoolShape, Row};
use crate::page_store::{PAGE_BYTES, PAGES_PER_GIB, PageStore};
use crate::report::Report;
use crate::rounds::{Candidate, RoundOptions};
use crate::rows;
use crate::statistics::{Figures, Measured, find};

const QUICK_PAGES: usize = PAGES_PER_GIB / 8;
/// The queues of the mail and the peers that do the same: a stream from one submitter.
const OTHERS: [&str; 6] =
    ["original", "batching", "per-thread", "round-robin", "rayon", "crossbeam"];

const RATE: &str = "throughput";
const COMPRESSION: &str = "compression";

#[derive(Debug, Clone, Args)]
pub(crate) struct WorkqueueArguments {
    /// Worker threads, one run for each number; the submitter is extra
    #[arg(short, long, value_name = "N", value_delimiter = ',', default_value = "1,2,4,16,64")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=512))]
    threads: Vec<u16>,
    /// Requests that each worker may have before it
    #[arg(short, long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    requests: u16,
    /// Memory to compress, in GiB, or in MiB with the suffix M; an eighth of a GiB with --quick
    #[arg(short, long = "memory", value_name = "GIB", default_value = "1", value_parser = mebibytes)]
    mebibytes: u32,
    /// Rows to run; all if none is named
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = rows::values())]
    rows: Vec<String>,
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
        let full = self.mebibytes as usize * (PAGES_PER_GIB / 1024);
        let pages = Arc::new(PageStore::new(if context.is_quick { QUICK_PAGES } else { full })?);
        let names = if self.rows.is_empty() { rows::names() } else { self.rows.clone() };
        context.plan(self.rounds, 1);
        let mut candidates = Vec::new();
        for &threads in &self.threads {
            let shape = PoolShape { workers: threads.into(), slots: self.requests.into() };
            for name in &names {
                let (mut row, pages) = (rows::build(name, &pages, shape)?, &pages);
                candidates.push(Candidate::ours(name, move || time(&mut *row, pages)));
            }
        }
        let all = context.measure("one submitter", candidates)?;
        let cases = self.threads.iter().copied().zip(all.chunks(names.len()));
        let cases: Vec<(u16, &[Measured])> = cases.collect();
        for (threads, all) in &cases {
            self.print_like_qemu(*threads, all, pages.count(), context)?;
            context.report.add("throughput", "", &threads.to_string(), all)?;
            if let Some(ours) = find(all, "ours") {
                let what = format!("ours, {threads} threads");
                context.report.judge_noise(&what, ours.samples("wall"));
            }
        }
        judge(&cases, &mut context.report);
        Ok(())
    }
}

impl WorkqueueArguments {
    /// The lines of threaded-workqueue-bench, after one that names the row.
    fn print_like_qemu(
        &self,
        threads: u16,
        all: &[Measured],
        count: usize,
        context: &mut Context<'_>,
    ) -> Result<()> {
        let (gib, requests) = (count as f64 / PAGES_PER_GIB as f64, self.requests);
        for one in all {
            let (walls, ratios) = (one.samples("wall"), one.samples(COMPRESSION));
            let repeat = walls.0.len();
            context.say(format!("row {}", one.name))?;
            context.say(format!(
                "Run the benchmark: threads {threads} requests-per-thread: {requests} memory {gib}G repeat {repeat}."
            ))?;
            for (number, (wall, ratio)) in walls.0.iter().zip(&ratios.0).enumerate() {
                let cost = wall * 1e6;
                context.say(format!(
                    "RUN {number}: Request # {count} Cost {cost:.0} µs, Compression Rate {ratio:.6}."
                ))?;
            }
            let average = walls.mean();
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
        ("wall", wall),
        (RATE, count as f64 / PAGES_PER_GIB as f64 / wall),
        ("CPU time", usage.cpu.as_secs_f64() * 1e3 / thousands),
        ("voluntary switches", usage.voluntary_switches as f64 / thousands),
        ("involuntary switches", usage.involuntary_switches as f64 / thousands),
        (COMPRESSION, (done * PAGE_BYTES as u64) as f64 / stats.bytes as f64),
    ])
}

/// Has thresholds judge the rows that were run, and compares with the fastest other stream.
fn judge(cases: &[(u16, &[Measured])], report: &mut Report) {
    let rate =
        |all: &[Measured], name: &str| find(all, name).map_or(f64::NAN, |one| one.median(RATE));
    // Microseconds of one item.
    let item = |all: &[Measured], name: &str| 1e6 / (rate(all, name) * PAGES_PER_GIB as f64);
    let best = cases.iter().map(|(_, all)| rate(all, "ours")).fold(f64::NAN, f64::max);
    for (threads, all) in cases {
        let (case, own) = (format!("{threads} workers"), rate(all, "ours"));
        report.judge_all(&case, &[], all);
        if cases.len() > 1 {
            report.judge("flat", &case, own / best);
        }
        let others = OTHERS.iter().filter_map(|name| find(all, name));
        let fastest = others.max_by(|a, b| a.median(RATE).total_cmp(&b.median(RATE)));
        if let Some(other) = fastest.filter(|_| !own.is_nan()) {
            let (ratio, name) = (own / other.median(RATE), &other.name);
            report.remark(format!(
                "ours with {case}: {ratio:.2} times the fastest other stream, {name}"
            ));
        }
        let (own, inline) = (item(all, "ours"), item(all, "inline"));
        if *threads == 1 && !inline.is_nan() {
            // Together: an item takes what it takes inline by the share, and the microseconds beside that.
            let value =
                |name: &str| report.case.thresholds.get(name).map_or(f64::NAN, |of| of.value);
            let (share, micros) = (value("inline-share"), value("inline-micros"));
            report.judge("inline-share", &case, (own - micros) / inline);
            report.judge("inline-micros", &case, own - share * inline);
            report.remark(format!("ours with 1 worker: {own:.2} us an item, inline {inline:.2}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{RATE, judge, mebibytes};
    use crate::page_store::PAGES_PER_GIB;
    use crate::report::Report;
    use crate::statistics::Measured;

    #[test]
    fn each_threshold_judges_its_figure() {
        let rate = |name: &str, thousands: f64| {
            Measured::new(name, vec![(RATE, thousands * 1e3 / PAGES_PER_GIB as f64)])
        };
        let one = [rate("inline", 200.0), rate("ours", 200.0), rate("rayon", 100.0)];
        let two = [rate("ours", 100.0), rate("original", 200.0)];
        let mut report = Report::new("workqueue").unwrap();
        judge(&[(1, &one), (2, &two)], &mut report);
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

    #[test]
    fn memory_is_in_gib_or_has_a_suffix() {
        let sizes = ["2", "256M", "1024"].map(|text| mebibytes(text).unwrap());
        assert_eq!(sizes, [2048, 256, 1 << 20]);
        for text in ["0", "0M", "1025", "-1", "4194304", "M", "1G"] {
            mebibytes(text).unwrap_err();
        }
    }
}
