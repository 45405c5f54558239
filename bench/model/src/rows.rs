//! What a row of the workqueue experiment is, by the names that the baselines use, and our own row.

use std::cell::Cell;
use std::rc::Rc;

use anyhow::{Context, Result};

use crate::deflater::Deflater;
use crate::machine::Wakes;
use crate::page_store::PageStore;
use crate::sync::Arc;
use crate::sync::thread::JoinHandle;
use crate::workqueue::{Handler, NoHandler, Outcome, Settings, Spread, WorkQueue};

/// How many workers, and how many requests each may have before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Crew {
    pub(crate) workers: usize,
    pub(crate) slots: usize,
}

/// What the done-callbacks saw.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) pages: u64,
}

impl Tally {
    /// A page that became so many bytes; none when it failed.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.pages += u64::from(bytes > 0);
    }
}

/// A way to have all pages marked, handed out and compressed.
pub(crate) trait Row {
    /// Each page once; returns when all are done.
    fn pass(&mut self) -> Result<Tally>;
}

/// A thread of a baseline.
pub(crate) fn start(_worker: usize, body: impl FnOnce() + 'static) -> Result<JoinHandle<()>> {
    JoinHandle::start(body, Wakes::Preempting)
}

/// What the submitter does when no worker is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Submitter {
    /// The next request.
    Works,
    /// Sleeps.
    Waits,
}

#[derive(Debug, Default)]
struct Request {
    page: usize,
    bytes: u64,
}

#[derive(Debug)]
struct Compressor {
    pages: Arc<PageStore>,
    deflater: Deflater,
}

impl Handler for Compressor {
    type Request = Request;

    fn handle(&mut self, request: &mut Request) {
        let page = self.pages.page(request.page);
        request.bytes = page.and_then(|page| self.deflater.compress(page).ok()).unwrap_or(0);
    }
}

type OnDone = Box<dyn FnMut(&mut Request, Outcome)>;

/// Our row, as in the bench.
pub(crate) struct Ours {
    queue: WorkQueue<Compressor, OnDone>,
    pages: Arc<PageStore>,
    tally: Rc<Cell<Tally>>,
    submitter: Submitter,
}

impl Ours {
    pub(crate) fn new(
        pages: &Arc<PageStore>,
        crew: Crew,
        cpus: usize,
        submitter: Submitter,
    ) -> Result<Self> {
        let spread = match submitter {
            Submitter::Works => Spread::Granted,
            Submitter::Waits => Spread::Every,
        };
        let settings = Settings {
            workers: Some(crew.workers),
            slots: Some(crew.slots),
            spread,
            cpus: Some(cpus),
            ..Settings::default()
        };
        let tally = Rc::new(Cell::new(Tally::default()));
        let (counted, own_pages) = (Rc::clone(&tally), Arc::clone(pages));
        let make = move || {
            let deflater = Deflater::new().map_err(|_| NoHandler)?;
            Ok(Compressor { pages: Arc::clone(&own_pages), deflater })
        };
        let on_done: OnDone = Box::new(move |request: &mut Request, outcome| {
            let mut sum = counted.get();
            sum.add(if outcome == Outcome::Done { request.bytes } else { 0 });
            counted.set(sum);
        });
        let queue = WorkQueue::new(&settings, Request::default, make, on_done);
        let queue = queue.context("making a queue")?;
        Ok(Self { queue, pages: Arc::clone(pages), tally, submitter })
    }
}

impl Row for Ours {
    fn pass(&mut self) -> Result<Tally> {
        for page in 0..self.pages.count() {
            self.pages.mark(page);
            let mut slot = match self.submitter {
                Submitter::Works => self.queue.get_or_inline(),
                Submitter::Waits => self.queue.get(),
            };
            slot.request().page = page;
            slot.submit();
        }
        self.queue.wait();
        Ok(self.tally.take())
    }
}
