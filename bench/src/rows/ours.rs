//! The queue of ferrofs-workers: with a submitter that works when all workers that have a CPU are
//! busy, which is how the engine uses it, and with one that only hands out and waits, over all
//! workers, which is what the queues beside it do. Included by the model, too, as the baselines are.

use std::cell::Cell;
use std::rc::Rc;

use anyhow::{Context, Result};

use super::queue::{
    ActiveWorkers, DispatchPolicy, Handler, NoHandler, RequestOutcome, WorkQueue, WorkQueueSettings,
};
use super::{Crew, Row, Tally};
use crate::deflater::Deflater;
use crate::page_store::PageStore;
use crate::sync::Arc;

/// What the submitter does when no worker is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Submitter {
    /// The next request.
    Works,
    /// Sleeps.
    Waits,
}

/// What a slot holds.
#[derive(Debug, Default)]
struct Request {
    page: usize,
    bytes: u64,
}

/// What a worker has.
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

/// Called back for every request.
type OnDone = Box<dyn FnMut(&mut Request, RequestOutcome)>;

/// The row.
pub(crate) struct Ours {
    queue: WorkQueue<Compressor, OnDone>,
    pages: Arc<PageStore>,
    tally: Rc<Cell<Tally>>,
    submitter: Submitter,
}

impl Ours {
    /// On as many `cpus`; on those that the system grants if nothing is said.
    pub(crate) fn new(
        pages: &Arc<PageStore>,
        (crew, cpus): (Crew, Option<usize>),
        dispatch_policy: DispatchPolicy,
        submitter: Submitter,
    ) -> Result<Self> {
        let active_workers = match submitter {
            Submitter::Works => ActiveWorkers::OnePerCpu,
            Submitter::Waits => ActiveWorkers::All,
        };
        let settings = WorkQueueSettings::new("queue")
            .workers(crew.workers)
            .slots(crew.slots)
            .dispatch_policy(dispatch_policy)
            .active_workers(active_workers);
        let settings = match cpus {
            Some(cpus) => settings.cpus(cpus),
            None => settings,
        };
        let tally = Rc::new(Cell::new(Tally::default()));
        let (counted, own_pages) = (Rc::clone(&tally), Arc::clone(pages));
        let make = move || {
            let deflater = Deflater::new().map_err(|_| NoHandler)?;
            Ok(Compressor { pages: Arc::clone(&own_pages), deflater })
        };
        let on_done: OnDone = Box::new(move |request: &mut Request, outcome| {
            let mut sum = counted.get();
            sum.add(if outcome == RequestOutcome::Done { request.bytes } else { 0 });
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
                Submitter::Works => self.queue.reserve_or_inline(),
                Submitter::Waits => self.queue.reserve(),
            };
            slot.request().page = page;
            slot.submit();
        }
        self.queue.wait();
        Ok(self.tally.take())
    }
}
