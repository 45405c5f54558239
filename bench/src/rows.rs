//! The rows of the workqueue experiment: ways to have the same pages compressed, over the baselines, over our queue, and
//! over rayon and crossbeam. The experiment times a pass; a row reads no clock.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use crossbeam_channel::{Receiver, Sender, bounded};
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSlice;
use rayon::{ThreadPool, ThreadPoolBuilder};
use serde::Serialize;

use crate::baseline::{Assignment, BaselineQueue, PerThreadState, SharedState};
use crate::ours::{Ours, Submitter};
use crate::page_store::{Deflater, Page, PageStore};
use crate::row::{PassStats, PoolShape, Row};
use crate::sync::queue::DispatchPolicy;
use crate::sync::start;

/// Pages of one task of the parallel iterator.
const PAGES_PER_CHUNK: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RowName {
    /// One thread and no queue, whatever the number of workers
    Inline,
    /// QEMU's version 2: shared bitmaps and event, round robin
    Original,
    /// The same with batching
    Batching,
    /// Batching, and slots, bitmaps and events of each worker on cache lines of their own
    PerThread,
    /// QEMU's version 3: the same without batching
    RoundRobin,
    /// rayon: one spawn a page from one submitter
    Rayon,
    /// rayon: a parallel iterator; no stream, shown for scale
    RayonIter,
    /// crossbeam-channel: a bounded queue there, another one back
    Crossbeam,
    /// Ours with a submitter that only submits, over all workers, as the queues above
    OursWaiting,
    /// Ours, whose submitter works, too; without batching
    OursRoundRobin,
    /// Ours, whose submitter works, too
    Ours,
}

impl RowName {
    /// As on the command line.
    pub(crate) fn text(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// The row of that name with its threads started.
pub(crate) fn build(
    name: RowName,
    pages: &Arc<PageStore>,
    shape: PoolShape,
) -> Result<Box<dyn Row>> {
    fn boxed<R: Row + 'static>(row: Result<R>) -> Result<Box<dyn Row>> {
        Ok(Box::new(row?))
    }
    let shared = |assignment| boxed(BaselineQueue::<SharedState>::new(pages, shape, assignment));
    let own = |assignment| boxed(BaselineQueue::<PerThreadState>::new(pages, shape, assignment));
    let ours = |batching, submitter| boxed(Ours::new(pages, shape, None, batching, submitter));
    let built = match name {
        RowName::Inline => boxed(inline(Arc::clone(pages))),
        RowName::Original => shared(Assignment::RoundRobin),
        RowName::Batching => shared(Assignment::UntilFull),
        RowName::PerThread => own(Assignment::UntilFull),
        RowName::RoundRobin => own(Assignment::RoundRobin),
        RowName::Rayon => boxed(spawning(Arc::clone(pages), shape.workers)),
        RowName::RayonIter => boxed(iterating(Arc::clone(pages), shape.workers)),
        RowName::Crossbeam => boxed(Channel::new(pages, shape)),
        RowName::OursWaiting => ours(DispatchPolicy::FillFirst, Submitter::Sleeps),
        RowName::OursRoundRobin => ours(DispatchPolicy::RoundRobin, Submitter::Works),
        RowName::Ours => ours(DispatchPolicy::FillFirst, Submitter::Works),
    };
    built.with_context(|| format!("row {}", name.text()))
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

/// Counters of one rayon worker, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct WorkerStats {
    pages: AtomicU64,
    bytes: AtomicU64,
}

impl WorkerStats {
    /// By its worker. Relaxed: the end of the scope publishes it.
    fn add(&self, bytes: u64) {
        let pages = self.pages.load(Ordering::Relaxed) + u64::from(bytes > 0);
        self.pages.store(pages, Ordering::Relaxed);
        self.bytes.store(self.bytes.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    }

    /// Relaxed: after the end of the scope.
    fn take(&self) -> PassStats {
        let [pages, bytes] = [&self.pages, &self.bytes].map(|one| one.swap(0, Ordering::Relaxed));
        PassStats { pages, bytes }
    }
}

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
                    own.into_iter().for_each(|own| own.add(compress_here(page)));
                });
            }
        });
        Ok(stats.iter().fold(PassStats::default(), |sum, own| sum.with(own.take())))
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
        Ok(pool.install(|| chunks.map(compress).reduce(PassStats::default, PassStats::with)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: RowName, [workers, slots]: [usize; 2], count: usize) {
        let pages = Arc::new(PageStore::new(count).unwrap());
        let mut row = build(name, &pages, PoolShape { workers, slots }).unwrap();
        let expected = PassStats { pages: count as u64, bytes: 46 * count as u64 };
        for pass in 0..3 {
            assert_eq!(row.pass().unwrap(), expected, "{name:?}, {workers}, {slots}, pass {pass}");
        }
    }

    #[test]
    fn every_row_handles_every_page_exactly_once_a_pass() {
        for &name in RowName::value_variants() {
            for shape in [[1, 1], [1, 4], [2, 4], [3, 5], [5, 64]] {
                check(name, shape, 1000);
            }
            // Fewer pages than slots.
            check(name, [4, 4], 1);
            check(name, [4, 4], 0);
        }
    }

    #[test]
    fn shared_bitmaps_take_more_slots_than_a_word_has_bits() {
        check(RowName::Original, [2, 65], 500);
        check(RowName::Batching, [2, 65], 500);
        let pages = Arc::new(PageStore::new(1).unwrap());
        assert!(build(RowName::PerThread, &pages, PoolShape { workers: 2, slots: 65 }).is_err());
    }

    #[test]
    fn a_failed_page_is_not_counted() {
        let mut stats = PassStats::default();
        stats.add(46);
        stats.add(0);
        assert_eq!(stats, PassStats { pages: 1, bytes: 46 });
    }
}
