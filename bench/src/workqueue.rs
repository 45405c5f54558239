//! The workqueue experiment: QEMU's threaded-workqueue-bench over several queues. Every round runs each row once with each
//! number of threads, so that a neighbour's load and a change of the machine's speed affect all of them alike. A row is a way
//! to have the same pages compressed: over the queues to beat, over our queue, and over rayon and crossbeam.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use clap::builder::PossibleValue;
use crossbeam_channel::bounded;
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSlice;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::experiment::{Candidate, Context, Experiment, RoundOptions, up_to};
use crate::machine::Usage;
use crate::page_store::{Deflater, PAGE_BYTES, PAGES_PER_GIB, Page, PageStore};
use crate::queues::{PassStats, PoolShape, Row, queue};
use crate::report::Report;
use crate::statistics::{Figures, Measured, find};
use crate::sync::start;

const QUICK_PAGES: usize = PAGES_PER_GIB / 8;
/// The queues of the mail and the peers that do the same: a stream from one submitter.
const OTHERS: [&str; 6] =
    ["original", "batching", "per-thread", "round-robin", "rayon", "crossbeam"];

const RATE: &str = "throughput";
const COMPRESSION: &str = "compression";

#[derive(Debug, Clone, Args)]
pub(crate) struct WorkqueueArguments {
    /// Numbers of worker threads, without the submitter; one run for each number
    #[arg(short, long, value_name = "N", value_delimiter = ',', default_value = "1,2,4,16,64")]
    #[arg(value_parser = up_to(512))]
    threads: Vec<u16>,
    /// Queue depth: the maximum number of requests that wait for each worker
    #[arg(short, long, value_name = "N", default_value_t = 4, value_parser = up_to(1024))]
    requests: u16,
    /// Memory whose pages are compressed, in GiB, or in MiB with the suffix M; each request is one
    /// page. With --quick, always 1/8 GiB
    #[arg(short, long = "memory", value_name = "GIB", default_value = "1", value_parser = mebibytes)]
    mebibytes: u32,
    /// The queues to measure, one row of the table for each [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    #[arg(value_parser = ROWS.map(|(name, help)| PossibleValue::new(name).help(help)))]
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
        let is_meant =
            |name: &&str| self.rows.is_empty() || self.rows.iter().any(|row| row == name);
        let names: Vec<&str> = ROWS.iter().map(|(name, _)| *name).filter(is_meant).collect();
        context.plan(self.rounds, 1);
        let mut candidates = Vec::new();
        for &threads in &self.threads {
            let shape = PoolShape { workers: threads.into(), slots: self.requests.into() };
            for &name in &names {
                let (mut row, pages) = (build(name, &pages, shape)?, &pages);
                candidates.push(Candidate::ours(name, move || time(&mut row, pages)));
            }
        }
        let all = context.measure("one submitter", candidates)?;
        let cases = self.threads.iter().copied().zip(all.chunks(names.len()));
        let cases: Vec<(u16, &[Measured])> = cases.collect();
        let (count, requests) = (pages.count(), self.requests);
        let gib = count as f64 / PAGES_PER_GIB as f64;
        for (threads, all) in &cases {
            // The lines of threaded-workqueue-bench, after one that names the row.
            for one in *all {
                let (walls, ratios) = (one.samples("wall"), one.samples(COMPRESSION));
                let (repeat, average) = (walls.0.len(), walls.mean());
                context.say(format!(
                    "row {}\nRun the benchmark: threads {threads} requests-per-thread: {requests} memory {gib}G repeat {repeat}.",
                    one.name
                ))?;
                for (number, (wall, ratio)) in walls.0.iter().zip(&ratios.0).enumerate() {
                    let cost = wall * 1e6;
                    context.say(format!(
                        "RUN {number}: Request # {count} Cost {cost:.0} µs, Compression Rate {ratio:.6}."
                    ))?;
                }
                let (cost, rate) = (average * 1e6, gib / average);
                context
                    .say(format!("AVG: Time Cost {cost:.0} µs\nAVG Throughput: {rate:.6} GB/s"))?;
            }
            context.report.add("throughput", "", &threads.to_string(), all)?;
            if let Some(ours) = find(all, "ours") {
                let what = format!("ours, {threads} threads");
                context.report.evaluate_noise(&what, ours.samples("wall"));
            }
        }
        evaluate(&cases, &mut context.report);
        Ok(())
    }
}

fn time(row: &mut Row, pages: &PageStore) -> Result<Figures> {
    let (before, start) = (Usage::now(), Instant::now());
    let stats = row()?;
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

/// Has thresholds evaluate the rows that were run, and compares with the fastest other stream.
fn evaluate(cases: &[(u16, &[Measured])], report: &mut Report) {
    let rate =
        |all: &[Measured], name: &str| find(all, name).map_or(f64::NAN, |one| one.median(RATE));
    // Microseconds of one item.
    let item = |all: &[Measured], name: &str| 1e6 / (rate(all, name) * PAGES_PER_GIB as f64);
    let best = cases.iter().map(|(_, all)| rate(all, "ours")).fold(f64::NAN, f64::max);
    for (threads, all) in cases {
        let (case, own) = (format!("{threads} workers"), rate(all, "ours"));
        report.evaluate_all(&case, &[], all);
        if cases.len() > 1 {
            report.evaluate("flat", &case, own / best);
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
            report.evaluate("inline-share", &case, (own - micros) / inline);
            report.evaluate("inline-micros", &case, own - share * inline);
            report.remark(format!("ours with 1 worker: {own:.2} us an item, inline {inline:.2}"));
        }
    }
}

/// Pages of one task of the parallel iterator.
const PAGES_PER_CHUNK: usize = 256;

/// The rows, and what they are.
const ROWS: [(&str, &str); 11] = [
    ("inline", "One thread without a queue, whatever the number of workers"),
    ("original", "QEMU's threaded workqueue, version 2: shared bitmaps and event; round robin"),
    ("batching", "As original, but fills all slots (--requests) of one worker before the next"),
    ("per-thread", "As batching; slots, bitmaps and event of each worker on separate cache lines"),
    ("round-robin", "QEMU's threaded workqueue, version 3: as per-thread, but round robin"),
    ("rayon", "rayon: one submitter spawns a task for each page"),
    (
        "rayon-iter",
        "rayon: a parallel iterator over all pages, so no submitter sends requests one by one",
    ),
    ("crossbeam", "crossbeam-channel: one bounded queue to the workers, another one for results"),
    ("ours-waiting", "The queue of ferrofs; the submitter never compresses, but waits for workers"),
    ("ours-round-robin", "As ours, but round robin"),
    ("ours", "The queue of ferrofs; the submitter also compresses if the workers are busy"),
];

/// The row of that name with its threads started.
pub(crate) fn build(name: &str, pages: &Arc<PageStore>, shape: PoolShape) -> Result<Row> {
    let built = match name {
        "inline" => inline(Arc::clone(pages)),
        "rayon" => spawning(Arc::clone(pages), shape.workers),
        "rayon-iter" => iterating(Arc::clone(pages), shape.workers),
        "crossbeam" => channels(Arc::clone(pages), shape),
        _ => queue(name, pages, shape, None),
    };
    built.with_context(|| format!("row {name}"))
}

fn inline(pages: Arc<PageStore>) -> Result<Row> {
    let mut deflater = Deflater::new()?;
    Ok(Box::new(move || {
        let mut stats = PassStats::default();
        for (number, page) in pages.all().iter().enumerate() {
            pages.touch(number);
            stats.add(deflater.compress(page)?);
        }
        Ok(stats)
    }))
}

/// A bounded channel with the pages, another with the results. The submitter never has more in flight than the queues of
/// the other rows have slots, so neither channel is ever full.
fn channels(pages: Arc<PageStore>, shape: PoolShape) -> Result<Row> {
    let in_flight_max = shape.workers * shape.slots;
    let (requests, inbox) = bounded::<usize>(in_flight_max);
    let (outbox, results) = bounded(in_flight_max);
    // In this order: without the channel the threads end, and are waited for.
    let mut workers = (requests, Vec::new());
    for worker in 0..shape.workers {
        let mut deflater = Deflater::new()?;
        let (pages, inbox, outbox) = (Arc::clone(&pages), inbox.clone(), outbox.clone());
        let body = move || {
            for number in inbox {
                let page = pages.page(number);
                let bytes = page.and_then(|page| deflater.compress(page).ok()).unwrap_or(0);
                if outbox.send(bytes).is_err() {
                    return;
                }
            }
        };
        workers.1.push(start(worker, body)?);
    }
    Ok(Box::new(move || {
        // The closure owns the threads as well.
        let (requests, _) = &workers;
        let (mut stats, mut in_flight) = (PassStats::default(), 0);
        for number in 0..pages.count() {
            pages.touch(number);
            for bytes in results.try_iter() {
                stats.add(bytes);
                in_flight -= 1;
            }
            if in_flight == in_flight_max {
                stats.add(results.recv()?);
                in_flight -= 1;
            }
            requests.send(number)?;
            in_flight += 1;
        }
        for _ in 0..in_flight {
            stats.add(results.recv()?);
        }
        Ok(stats)
    }))
}

thread_local! {
    static DEFLATER: RefCell<Option<Deflater>> = RefCell::new(Deflater::new().ok());
}

/// Pages and bytes of one rayon worker, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct WorkerStats([AtomicU64; 2]);

/// Every worker has its stream when this returns.
fn start_pool(workers: usize) -> Result<ThreadPool> {
    let pool = ThreadPoolBuilder::new().num_threads(workers).build()?;
    pool.broadcast(|_| compress_here(&Page::default()));
    Ok(pool)
}

/// The bytes that a page became on a worker; 0 when it failed.
fn compress_here(page: &Page) -> u64 {
    DEFLATER.with_borrow_mut(|own| own.as_mut()?.compress(page).ok()).unwrap_or(0)
}

fn sum(one: PassStats, other: PassStats) -> PassStats {
    PassStats { pages: one.pages + other.pages, bytes: one.bytes + other.bytes }
}

fn spawning(pages: Arc<PageStore>, workers: usize) -> Result<Row> {
    let pool = start_pool(workers)?;
    let stats: Box<[WorkerStats]> = (0..workers).map(|_| WorkerStats::default()).collect();
    Ok(Box::new(move || {
        let stats = &stats;
        pool.in_place_scope(|scope| {
            for (number, page) in pages.all().iter().enumerate() {
                pages.touch(number);
                scope.spawn(move |_| {
                    let own = rayon::current_thread_index().and_then(|index| stats.get(index));
                    let bytes = compress_here(page);
                    if let Some(WorkerStats([pages_done, bytes_made])) = own {
                        // Relaxed, as below: the end of the scope publishes them.
                        pages_done.fetch_add(u64::from(bytes > 0), Ordering::Relaxed);
                        bytes_made.fetch_add(bytes, Ordering::Relaxed);
                    }
                });
            }
        });
        let taken =
            stats.iter().map(|own| own.0.each_ref().map(|one| one.swap(0, Ordering::Relaxed)));
        let taken = taken.map(|[pages, bytes]| PassStats { pages, bytes });
        Ok(taken.fold(PassStats::default(), sum))
    }))
}

fn iterating(pages: Arc<PageStore>, workers: usize) -> Result<Row> {
    let pool = start_pool(workers)?;
    Ok(Box::new(move || {
        let chunks = pages.all().par_chunks(PAGES_PER_CHUNK).enumerate();
        let compress = |(chunk, part): (usize, &[Page])| {
            let mut stats = PassStats::default();
            for (number, page) in (chunk * PAGES_PER_CHUNK..).zip(part) {
                pages.touch(number);
                stats.add(compress_here(page));
            }
            stats
        };
        Ok(pool.install(|| chunks.map(compress).reduce(PassStats::default, sum)))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_threshold_judges_its_figure() {
        let rate = |name: &str, thousands: f64| {
            Measured::new(name, vec![(RATE, thousands * 1e3 / PAGES_PER_GIB as f64)])
        };
        let one = [rate("inline", 200.0), rate("ours", 200.0), rate("rayon", 100.0)];
        let two = [rate("ours", 100.0), rate("original", 200.0)];
        let mut report = Report::new("workqueue").unwrap();
        evaluate(&[(1, &one), (2, &two)], &mut report);
        report.finish().unwrap();
        let text = report.to_string();
        for line in [
            "ours with 1 worker: 5.00 us an item, inline 5.00",
            "ours with 1 workers: 2.00 times the fastest other stream, rayon",
            "ours with 2 workers: 0.50 times the fastest other stream, original",
            "002: one worker takes 1.05 times the work at most, beside what the hand-over may cost: 0.80 times the work here, met",
            "002: handing an item over costs 1 us at most: -0.25 us here, met",
            "(worst: 2 workers), missed in 1 of 2 here, NOT met",
            "002: with every number of workers ours is 1 times the original or faster: 0.50 times the original here, NOT met",
        ] {
            assert!(text.contains(line), "{line} is missing in {text}");
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

    fn check(name: &str, [workers, slots]: [usize; 2], count: usize) {
        let pages = Arc::new(PageStore::new(count).unwrap());
        let mut row = build(name, &pages, PoolShape { workers, slots }).unwrap();
        let expected = PassStats { pages: count as u64, bytes: 46 * count as u64 };
        for pass in 0..3 {
            assert_eq!(row().unwrap(), expected, "{name}, {workers}, {slots}, pass {pass}");
        }
    }

    #[test]
    fn every_row_handles_every_page_exactly_once_a_pass() {
        for (name, _) in ROWS {
            for shape in [[1, 1], [1, 4], [2, 4], [3, 5], [5, 64]] {
                check(name, shape, 1000);
            }
            // Fewer pages than slots.
            check(name, [4, 4], 1);
            check(name, [4, 4], 0);
        }
        // Shared bitmaps take more slots than a word has bits.
        check("original", [2, 65], 500);
        check("batching", [2, 65], 500);
        let pages = Arc::new(PageStore::new(1).unwrap());
        assert!(build("per-thread", &pages, PoolShape { workers: 2, slots: 65 }).is_err());
    }
}
