//! A pool over crossbeam-channel: a bounded channel with the pages, another with what became of them.
//! The submitter never has more under way than the queues of the other rows have slots, so neither
//! channel is ever full and nothing can wait for itself.

use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use crossbeam_channel::{Receiver, Sender, bounded};

use super::{Crew, Row, Tally, start};
use crate::deflater::Deflater;
use crate::page_store::PageStore;

/// The row.
#[derive(Debug)]
pub(crate) struct Channel {
    pages: Arc<PageStore>,
    /// None once the row is dropped, which ends the workers.
    requests: Option<Sender<usize>>,
    results: Receiver<u64>,
    most_under_way: usize,
    threads: Vec<JoinHandle<()>>,
}

impl Channel {
    pub(crate) fn new(pages: &Arc<PageStore>, crew: Crew) -> Result<Self> {
        let most_under_way = crew.workers * crew.slots;
        let (requests, inbox) = bounded(most_under_way);
        let (outbox, results) = bounded(most_under_way);
        let mut threads = Vec::with_capacity(crew.workers);
        for worker in 0..crew.workers {
            let mut deflater = Deflater::new()?;
            let (pages, inbox, outbox) = (Arc::clone(pages), inbox.clone(), outbox.clone());
            threads.push(start(worker, move || work(&pages, &inbox, &outbox, &mut deflater))?);
        }
        Ok(Self {
            pages: Arc::clone(pages),
            requests: Some(requests),
            results,
            most_under_way,
            threads,
        })
    }
}

fn work(pages: &PageStore, inbox: &Receiver<usize>, outbox: &Sender<u64>, deflater: &mut Deflater) {
    for number in inbox {
        let page = pages.page(number);
        let bytes = page.and_then(|page| deflater.compress(page).ok()).unwrap_or(0);
        if outbox.send(bytes).is_err() {
            return;
        }
    }
}

impl Row for Channel {
    fn pass(&mut self) -> Result<Tally> {
        let requests = self.requests.as_ref().context("the channel is closed")?;
        let mut tally = Tally::default();
        let mut under_way = 0;
        for number in 0..self.pages.count() {
            self.pages.mark(number);
            for bytes in self.results.try_iter() {
                tally.add(bytes);
                under_way -= 1;
            }
            if under_way == self.most_under_way {
                tally.add(self.results.recv()?);
                under_way -= 1;
            }
            requests.send(number)?;
            under_way += 1;
        }
        for _ in 0..under_way {
            tally.add(self.results.recv()?);
        }
        Ok(tally)
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
