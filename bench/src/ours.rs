//! What a row of the workqueue experiment is, and the row of ferrofs-workers' queue: with a submitter that works when all
//! workers that have a CPU are busy, as the engine uses it, and with one that only submits and waits, over all workers, as the
//! other queues do. The model includes this file, too.

use std::cell::Cell;
use std::rc::Rc;

use anyhow::{Context, Result};

use crate::page_store::{Deflater, PageStore};
use crate::sync::Arc;
use crate::sync::queue::{
    ActiveWorkers, DispatchPolicy, Handler, NoHandler, RequestOutcome, WorkQueue, WorkQueueSettings,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolShape {
    pub(crate) workers: usize,
    /// Requests that each worker may have before it.
    pub(crate) slots: usize,
}

/// What the done-callbacks saw.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PassStats {
    pub(crate) pages: u64,
    pub(crate) bytes: u64,
}

impl PassStats {
    /// A page that became this many bytes; none when it failed.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.pages += u64::from(bytes > 0);
        self.bytes += bytes;
    }
}

/// A way to have all pages touched, submitted and compressed.
pub(crate) trait Row {
    /// Each page once, in the order of addresses; returns when all are done.
    fn pass(&mut self) -> Result<PassStats>;
}

#[derive(Debug, Default)]
struct PageRequest {
    page: usize,
    bytes: u64,
}

/// The state of a worker.
#[derive(Debug)]
struct Compressor {
    pages: Arc<PageStore>,
    deflater: Deflater,
}

impl Handler for Compressor {
    type Request = PageRequest;

    fn handle(&mut self, request: &mut PageRequest) {
        let page = self.pages.page(request.page);
        request.bytes = page.and_then(|page| self.deflater.compress(page).ok()).unwrap_or(0);
    }
}

type OnDone = Box<dyn FnMut(&mut PageRequest, RequestOutcome)>;

pub(crate) struct Ours {
    queue: WorkQueue<Compressor, OnDone>,
    pages: Arc<PageStore>,
    stats: Rc<Cell<PassStats>>,
    active_workers: ActiveWorkers,
}

impl Ours {
    /// On this many `cpus`; on the available ones if none is given. The submitter works if not all workers are active.
    pub(crate) fn new(
        pages: &Arc<PageStore>,
        shape: PoolShape,
        cpus: Option<usize>,
        dispatch_policy: DispatchPolicy,
        active_workers: ActiveWorkers,
    ) -> Result<Self> {
        let settings = WorkQueueSettings::new("queue")
            .workers(shape.workers)
            .slots(shape.slots)
            .dispatch_policy(dispatch_policy)
            .active_workers(active_workers);
        let settings = match cpus {
            Some(cpus) => settings.cpus(cpus),
            None => settings,
        };
        let stats = Rc::new(Cell::new(PassStats::default()));
        let (counted, own_pages) = (Rc::clone(&stats), Arc::clone(pages));
        let make = move || {
            let deflater = Deflater::new().map_err(|_| NoHandler)?;
            Ok(Compressor { pages: Arc::clone(&own_pages), deflater })
        };
        let on_done: OnDone = Box::new(move |request: &mut PageRequest, outcome| {
            let mut sum = counted.get();
            sum.add(if outcome == RequestOutcome::Done { request.bytes } else { 0 });
            counted.set(sum);
        });
        let queue = WorkQueue::new(&settings, PageRequest::default, make, on_done);
        let queue = queue.context("making a queue")?;
        Ok(Self { queue, pages: Arc::clone(pages), stats, active_workers })
    }
}

impl Row for Ours {
    fn pass(&mut self) -> Result<PassStats> {
        for page in 0..self.pages.count() {
            self.pages.touch(page);
            let mut slot = match self.active_workers {
                ActiveWorkers::All => self.queue.reserve(),
                _ => self.queue.reserve_or_inline(),
            };
            slot.request().page = page;
            slot.submit();
        }
        self.queue.wait();
        Ok(self.stats.take())
    }
}
