//! A stream of requests from one submitter to workers on all other CPUs, through one queue or another:
//! how many it gets done, and how many cache lines move for each. Called by the `model workqueue`
//! experiment.

use anyhow::{Context, Result, ensure};

use crate::machine::{self, Costs, Counts, Shape, picoseconds};
use crate::page_store::PageStore;
use crate::queues::{self, PoolShape};
use crate::sync::Arc;

/// The queues.
pub const QUEUES: [&str; 6] =
    ["original", "batching", "per-thread", "round-robin", "ours-waiting", "ours"];

/// What goes through one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Requests that each worker may have before it.
    pub slots: usize,
    /// What a request costs who handles it, in nanoseconds.
    pub request: f64,
    /// Requests before those that are looked at.
    pub warm_up: usize,
    /// Requests that are looked at.
    pub requests: usize,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Flow {
    /// Requests that were looked at.
    pub requests: usize,
    /// The simulated time from the first to the last of them, in nanoseconds.
    pub nanoseconds: f64,
    /// Accesses in that time.
    pub counts: Counts,
    /// Wake-ups by system call in that time.
    pub wakes: u64,
}

impl Flow {
    /// Requests a second.
    pub fn per_second(&self) -> f64 {
        self.requests as f64 * 1e9 / self.nanoseconds
    }

    /// So much for each request.
    pub fn per_request(&self, count: u64) -> f64 {
        count as f64 / self.requests as f64
    }
}

/// Sends a load through a queue: a worker on each CPU but the submitter's, and one beside it where
/// there is but one CPU.
///
/// # Errors
/// When the machine is impossible, or a request was lost or doubled.
pub fn run(queue: &'static str, shape: Shape, costs: Costs, load: Load) -> Result<Flow> {
    ensure!(load.requests > 0 && load.slots > 0, "no requests or no slots: nothing to look at");
    machine::run(shape, costs, move || {
        // One more, whose turn ends the part.
        let count = load.warm_up + load.requests + 1;
        let part = load.warm_up..load.warm_up + load.requests;
        let pages = Arc::new(PageStore::new(count, picoseconds(load.request), part));
        let pool = PoolShape { workers: (shape.cpus - 1).max(1), slots: load.slots };
        let mut row = queues::queue(queue, &pages, pool, Some(shape.cpus))?;
        let stats = row()?;
        drop(row);
        ensure!(stats.pages == count as u64, "{} requests done, {count} were sent", stats.pages);
        let part = pages.part().context("the pass ended before the part that is looked at");
        let (begin, end) = part?;
        let (nanoseconds, counts, wakes) = end.since(&begin);
        Ok(Flow { requests: load.requests, nanoseconds, counts, wakes })
    })?
}
