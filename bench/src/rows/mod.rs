//! The rows of the workqueue experiment: one way each of getting the same pages compressed. Called by
//! the experiment, which times a pass; a row never looks at a clock.

mod channel;
mod inline;
mod ours;
mod pool;

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use anyhow::{Context, Result};
use clap::ValueEnum;
use ferrofs_workers::workqueue as queue;
use queue::DispatchPolicy;
use serde::Serialize;

use crate::baseline::per_thread::PerThreadQueue;
use crate::baseline::shared::SharedQueue;
use crate::baseline::turn::Turn;
use crate::page_store::PageStore;
use ours::{Ours, Submitter};

/// What a row is called on the command line and in tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RowName {
    /// One thread and no queue, whatever the number of workers
    Inline,
    /// QEMU's version 2: shared bitmaps and event, round robin
    Original,
    /// The same with batching
    Batching,
    /// Batching, and slots, bitmaps and events of each worker on lines of their own
    PerThread,
    /// QEMU's version 3: the same without batching
    RoundRobin,
    /// rayon: one spawn a page from one submitter
    Rayon,
    /// rayon: a parallel iterator; no stream, shown for scale
    RayonIter,
    /// crossbeam-channel: a bounded queue there, another one back
    Crossbeam,
    /// Ours with a submitter that only hands out, over all workers, as the queues above
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
    pub(crate) bytes: u64,
}

impl Tally {
    /// A page that became so many bytes; none when it failed.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.pages += u64::from(bytes > 0);
        self.bytes += bytes;
    }

    /// Two tallies as one.
    pub(crate) fn with(self, other: Self) -> Self {
        Self { pages: self.pages + other.pages, bytes: self.bytes + other.bytes }
    }
}

/// A way to have all pages marked, handed out and compressed.
pub(crate) trait Row {
    /// Each page once, in the order of addresses; returns when all are done.
    ///
    /// # Errors
    /// When a page could not be compressed or a thread is gone.
    fn pass(&mut self) -> Result<Tally>;
}

/// The row of that name with its threads started.
pub(crate) fn build(name: RowName, pages: &Arc<PageStore>, crew: Crew) -> Result<Box<dyn Row>> {
    let built: Result<Box<dyn Row>> = match name {
        RowName::Inline => inline::Inline::new(pages).map(boxed),
        RowName::Original => SharedQueue::new(pages, crew, Turn::RoundRobin).map(boxed),
        RowName::Batching => SharedQueue::new(pages, crew, Turn::UntilFull).map(boxed),
        RowName::PerThread => PerThreadQueue::new(pages, crew, Turn::UntilFull).map(boxed),
        RowName::RoundRobin => PerThreadQueue::new(pages, crew, Turn::RoundRobin).map(boxed),
        RowName::Rayon => pool::Spawning::new(pages, crew).map(boxed),
        RowName::RayonIter => pool::Iterating::new(pages, crew).map(boxed),
        RowName::Crossbeam => channel::Channel::new(pages, crew).map(boxed),
        RowName::OursWaiting => {
            Ours::new(pages, (crew, None), DispatchPolicy::FillFirst, Submitter::Waits).map(boxed)
        }
        RowName::OursRoundRobin => {
            Ours::new(pages, (crew, None), DispatchPolicy::RoundRobin, Submitter::Works).map(boxed)
        }
        RowName::Ours => {
            Ours::new(pages, (crew, None), DispatchPolicy::FillFirst, Submitter::Works).map(boxed)
        }
    };
    built.with_context(|| format!("row {}", name.text()))
}

fn boxed<R: Row + 'static>(row: R) -> Box<dyn Row> {
    Box::new(row)
}

/// A thread of a baseline.
pub(crate) fn start(worker: usize, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    Builder::new()
        .name(format!("baseline/{worker}"))
        .spawn(body)
        .with_context(|| format!("starting worker {worker}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: RowName, crew: Crew, count: usize) {
        let pages = Arc::new(PageStore::new(count).unwrap());
        let mut row = build(name, &pages, crew).unwrap();
        let expected = Tally { pages: count as u64, bytes: 46 * count as u64 };
        for pass in 0..3 {
            assert_eq!(row.pass().unwrap(), expected, "{name:?}, {crew:?}, pass {pass}");
        }
    }

    #[test]
    fn every_row_does_every_page_exactly_once_a_pass() {
        for &name in RowName::value_variants() {
            for (workers, slots) in [(1, 1), (1, 4), (2, 4), (3, 5), (5, 64)] {
                check(name, Crew { workers, slots }, 1000);
            }
        }
    }

    #[test]
    fn a_pass_over_fewer_pages_than_slots_ends() {
        for &name in RowName::value_variants() {
            check(name, Crew { workers: 4, slots: 4 }, 1);
            check(name, Crew { workers: 4, slots: 4 }, 0);
        }
    }

    #[test]
    fn shared_bitmaps_take_more_slots_than_a_word_has_bits() {
        check(RowName::Original, Crew { workers: 2, slots: 65 }, 500);
        check(RowName::Batching, Crew { workers: 2, slots: 65 }, 500);
        let pages = Arc::new(PageStore::new(1).unwrap());
        let refused = build(RowName::PerThread, &pages, Crew { workers: 2, slots: 65 });
        assert!(refused.is_err());
    }

    #[test]
    fn a_failed_page_is_not_counted() {
        let mut tally = Tally::default();
        tally.add(46);
        tally.add(0);
        assert_eq!(tally, Tally { pages: 1, bytes: 46 });
    }
}
