//! Two rows over rayon: a stream of spawns from one submitter, which is what the other rows do, and a
//! parallel iterator, which is not a stream at all.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSlice;
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::{Crew, Row, Tally};
use crate::deflater::Deflater;
use crate::page_store::{Page, PageStore};

/// Pages that the iterator hands out at a time.
const PAGES_PER_CHUNK: usize = 256;

thread_local! {
    static DEFLATER: RefCell<Option<Deflater>> = const { RefCell::new(None) };
}

/// What one worker counted, on lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Counted {
    pages: AtomicU64,
    bytes: AtomicU64,
}

impl Counted {
    /// By its worker. Relaxed: the end of the scope publishes it.
    fn add(&self, bytes: u64) {
        let pages = self.pages.load(Ordering::Relaxed) + u64::from(bytes > 0);
        self.pages.store(pages, Ordering::Relaxed);
        self.bytes.store(self.bytes.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    }

    fn take(&self) -> Tally {
        Tally {
            pages: self.pages.swap(0, Ordering::Relaxed),
            bytes: self.bytes.swap(0, Ordering::Relaxed),
        }
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

/// The bytes a page became on a worker; 0 when it failed.
fn compress_here(page: &Page) -> u64 {
    DEFLATER.with_borrow_mut(|own| own.as_mut()?.compress(page).ok()).unwrap_or(0)
}

/// One spawn a page.
#[derive(Debug)]
pub(crate) struct Spawning {
    pages: Arc<PageStore>,
    pool: ThreadPool,
    counted: Box<[Counted]>,
}

impl Spawning {
    pub(crate) fn new(pages: &Arc<PageStore>, crew: Crew) -> Result<Self> {
        Ok(Self {
            pages: Arc::clone(pages),
            pool: start_pool(crew.workers)?,
            counted: (0..crew.workers).map(|_| Counted::default()).collect(),
        })
    }
}

impl Row for Spawning {
    fn pass(&mut self) -> Result<Tally> {
        let counted = &self.counted;
        self.pool.in_place_scope(|scope| {
            for (number, page) in self.pages.all().iter().enumerate() {
                self.pages.mark(number);
                scope.spawn(move |_| {
                    let own = rayon::current_thread_index().and_then(|index| counted.get(index));
                    if let Some(own) = own {
                        own.add(compress_here(page));
                    }
                });
            }
        });
        Ok(self.counted.iter().fold(Tally::default(), |sum, own| sum.with(own.take())))
    }
}

/// One parallel iterator.
#[derive(Debug)]
pub(crate) struct Iterating {
    pages: Arc<PageStore>,
    pool: ThreadPool,
}

impl Iterating {
    pub(crate) fn new(pages: &Arc<PageStore>, crew: Crew) -> Result<Self> {
        Ok(Self { pages: Arc::clone(pages), pool: start_pool(crew.workers)? })
    }
}

impl Row for Iterating {
    fn pass(&mut self) -> Result<Tally> {
        let chunks = self.pages.all().par_chunks(PAGES_PER_CHUNK).enumerate();
        let tally = self.pool.install(|| {
            chunks
                .map(|(chunk, pages)| compress_chunk(&self.pages, chunk * PAGES_PER_CHUNK, pages))
                .reduce(Tally::default, Tally::with)
        });
        Ok(tally)
    }
}

fn compress_chunk(store: &PageStore, first: usize, pages: &[Page]) -> Tally {
    let mut tally = Tally::default();
    for (number, page) in (first..).zip(pages) {
        store.mark(number);
        tally.add(compress_here(page));
    }
    tally
}
