//! The rows of the workqueue experiment: ways to have the same pages compressed, over the baselines, over our queue, and
//! over rayon and crossbeam. The experiment times a pass; a row reads no clock.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, ensure};
use clap::builder::PossibleValue;
use crossbeam_channel::{Receiver, Sender, bounded};
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSlice;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::baseline::queue;
use crate::ours::{Ours, PassStats, PoolShape, Row};
use crate::page_store::{Deflater, Page, PageStore};
use crate::sync::queue::{ActiveWorkers, DispatchPolicy};
use crate::sync::start;

/// Pages of one task of the parallel iterator.
const PAGES_PER_CHUNK: usize = 256;

/// The rows, and what they are.
const ROWS: [(&str, &str); 11] = [
    ("inline", "One thread and no queue, whatever the number of workers"),
    ("original", "QEMU's version 2: shared bitmaps and event, round robin"),
    ("batching", "The same with batching"),
    (
        "per-thread",
        "Batching, and slots, bitmaps and events of each worker on cache lines of their own",
    ),
    ("round-robin", "QEMU's version 3: the same without batching"),
    ("rayon", "rayon: one spawn a page from one submitter"),
    ("rayon-iter", "rayon: a parallel iterator; no stream, shown for scale"),
    ("crossbeam", "crossbeam-channel: a bounded queue there, another one back"),
    (
        "ours-waiting",
        "Ours with a submitter that only submits, over all workers, as the queues above",
    ),
    ("ours-round-robin", "Ours, whose submitter works, too; without batching"),
    ("ours", "Ours, whose submitter works, too"),
];

pub(crate) fn names() -> Vec<String> {
    ROWS.iter().map(|(name, _)| (*name).to_owned()).collect()
}

/// For the command line.
pub(crate) fn values() -> Vec<PossibleValue> {
    ROWS.iter().map(|(name, help)| PossibleValue::new(*name).help(*help)).collect()
}

/// The row of that name with its threads started.
pub(crate) fn build(name: &str, pages: &Arc<PageStore>, shape: PoolShape) -> Result<Box<dyn Row>> {
    fn boxed<R: Row + 'static>(row: Result<R>) -> Result<Box<dyn Row>> {
        Ok(Box::new(row?))
    }
    let (policy, active) = (DispatchPolicy::RoundRobin, ActiveWorkers::OnePerCpu);
    let built = match name {
        "inline" => boxed(inline(Arc::clone(pages))),
        "rayon" => boxed(spawning(Arc::clone(pages), shape.workers)),
        "rayon-iter" => boxed(iterating(Arc::clone(pages), shape.workers)),
        "crossbeam" => boxed(Channel::new(pages, shape)),
        "ours-round-robin" => boxed(Ours::new(pages, shape, None, policy, active)),
        _ => queue(name, pages, shape, None),
    };
    built.with_context(|| format!("row {name}"))
}

impl<F: FnMut() -> Result<PassStats>> Row for F {
    fn pass(&mut self) -> Result<PassStats> {
        self()
    }
}

/// One thread and no queue.
fn inline(pages: Arc<PageStore>) -> Result<impl FnMut() -> Result<PassStats>> {
    let mut deflater = Deflater::new()?;
    Ok(move || {
        let mut stats = PassStats::default();
        for (number, page) in pages.all().iter().enumerate() {
            pages.touch(number);
            stats.add(deflater.compress(page)?);
        }
        Ok(stats)
    })
}

/// A bounded channel with the pages, another with the results. The submitter never has more in flight than the queues of
/// the other rows have slots, so neither channel is ever full.
#[derive(Debug)]
struct Channel {
    pages: Arc<PageStore>,
    /// None once the row is dropped, which ends the workers.
    requests: Option<Sender<usize>>,
    results: Receiver<u64>,
    in_flight_max: usize,
    threads: Vec<JoinHandle<()>>,
}

impl Channel {
    fn new(pages: &Arc<PageStore>, shape: PoolShape) -> Result<Self> {
        let in_flight_max = shape.workers * shape.slots;
        let (requests, inbox) = bounded::<usize>(in_flight_max);
        let (outbox, results) = bounded(in_flight_max);
        let mut threads = Vec::with_capacity(shape.workers);
        for worker in 0..shape.workers {
            let mut deflater = Deflater::new()?;
            let (pages, inbox, outbox) = (Arc::clone(pages), inbox.clone(), outbox.clone());
            let body = move || {
                for number in inbox {
                    let page = pages.page(number);
                    let bytes = page.and_then(|page| deflater.compress(page).ok()).unwrap_or(0);
                    if outbox.send(bytes).is_err() {
                        return;
                    }
                }
            };
            threads.push(start(worker, body)?);
        }
        let (pages, requests) = (Arc::clone(pages), Some(requests));
        Ok(Self { pages, requests, results, in_flight_max, threads })
    }
}

impl Row for Channel {
    fn pass(&mut self) -> Result<PassStats> {
        let requests = self.requests.as_ref().context("the channel is closed")?;
        let (mut stats, mut in_flight) = (PassStats::default(), 0);
        for number in 0..self.pages.count() {
            self.pages.touch(number);
            for bytes in self.results.try_iter() {
                stats.add(bytes);
                in_flight -= 1;
            }
            if in_flight == self.in_flight_max {
                stats.add(self.results.recv()?);
                in_flight -= 1;
            }
            requests.send(number)?;
            in_flight += 1;
        }
        for _ in 0..in_flight {
            stats.add(self.results.recv()?);
        }
        Ok(stats)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.requests = None;
        for thread in self.threads.drain(..) {
            // A worker that panicked has left its pages uncounted, which the pass reported.
            thread.join().unwrap_or_default();
        }
    }
}

thread_local! {
    static DEFLATER: RefCell<Option<Deflater>> = const { RefCell::new(None) };
}

/// Pages and bytes of one rayon worker, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct WorkerStats([AtomicU64; 2]);

fn start_pool(workers: usize) -> Result<ThreadPool> {
    let pool = ThreadPoolBuilder::new().num_threads(workers).build()?;
    let has_deflater = pool.broadcast(|_| {
        let made = Deflater::new().ok();
        DEFLATER.with_borrow_mut(|own| own.insert(made?).compress(&Page::default()).ok())
    });
    ensure!(has_deflater.iter().all(Option::is_some), "a worker has no stream");
    Ok(pool)
}

/// The bytes that a page became on a worker; 0 when it failed.
fn compress_here(page: &Page) -> u64 {
    DEFLATER.with_borrow_mut(|own| own.as_mut()?.compress(page).ok()).unwrap_or(0)
}

fn sum(one: PassStats, other: PassStats) -> PassStats {
    PassStats { pages: one.pages + other.pages, bytes: one.bytes + other.bytes }
}

/// rayon: one spawn a page.
fn spawning(pages: Arc<PageStore>, workers: usize) -> Result<impl FnMut() -> Result<PassStats>> {
    let pool = start_pool(workers)?;
    let stats: Box<[WorkerStats]> = (0..workers).map(|_| WorkerStats::default()).collect();
    Ok(move || {
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
    })
}

/// rayon: one parallel iterator.
fn iterating(pages: Arc<PageStore>, workers: usize) -> Result<impl FnMut() -> Result<PassStats>> {
    let pool = start_pool(workers)?;
    Ok(move || {
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
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, [workers, slots]: [usize; 2], count: usize) {
        let pages = Arc::new(PageStore::new(count).unwrap());
        let mut row = build(name, &pages, PoolShape { workers, slots }).unwrap();
        let expected = PassStats { pages: count as u64, bytes: 46 * count as u64 };
        for pass in 0..3 {
            assert_eq!(row.pass().unwrap(), expected, "{name}, {workers}, {slots}, pass {pass}");
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
