//! The row of ferrofs-workers' queue: with a submitter that works when all workers that have a CPU are busy, as the engine
//! uses it, and with one that only submits and waits, over all workers, as the other queues do. The model includes it, too.

use std::cell::Cell;
use std::rc::Rc;

use anyhow::{Context, Result};

use crate::page_store::{Deflater, PageStore};
use crate::row::{PassStats, PoolShape, Row};
use crate::sync::Arc;
use crate::sync::queue::{
    ActiveWorkers, DispatchPolicy, Handler, NoHandler, RequestOutcome, WorkQueue, WorkQueueSettings,
};

/// What the submitter does when no worker is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Submitter {
    /// Handles the next request.
    Works,
    Sleeps,
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
    submitter: Submitter,
}

impl Ours {
    /// On this many `cpus`; on the available ones if none is given.
    pub(crate) fn new(
        pages: &Arc<PageStore>,
        shape: PoolShape,
        cpus: Option<usize>,
        dispatch_policy: DispatchPolicy,
        submitter: Submitter,
    ) -> Result<Self> {
        let active_workers = match submitter {
            Submitter::Works => ActiveWorkers::OnePerCpu,
            Submitter::Sleeps => ActiveWorkers::All,
        };
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
        Ok(Self { queue, pages: Arc::clone(pages), stats, submitter })
    }
}

impl Row for Ours {
    fn pass(&mut self) -> Result<PassStats> {
        for page in 0..self.pages.count() {
            self.pages.touch(page);
            let mut slot = match self.submitter {
                Submitter::Works => self.queue.reserve_or_inline(),
                Submitter::Sleeps => self.queue.reserve(),
            };
            slot.request().page = page;
            slot.submit();
        }
        self.queue.wait();
        Ok(self.stats.take())
    }
}
