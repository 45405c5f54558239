//! What one worker counts while it works. Only its own thread adds, so that nothing is shared; anyone
//! may read.

use std::time::Duration;

use crate::cache_padded::CachePadded;
#[cfg(not(loom))]
use crate::counters::Histogram as WaitHistogram;
use crate::counters::{Counter, HistogramSnapshot};
use crate::priority::PriorityLevel;

use super::thread_info::ThreadInfo;

/// One worker's counters. They outlive the thread and go on with the next one on the same CPU.
#[derive(Debug)]
pub(crate) struct WorkerCounters {
    numbers: CachePadded<Numbers>,
    waits: WaitHistogram,
}

#[derive(Debug, Default)]
struct Numbers {
    items: Counter,
    inline: Counter,
    panics: Counter,
    sleeps: Counter,
    handed_over: Counter,
    rebound: Counter,
}

impl WorkerCounters {
    pub(crate) fn new() -> Self {
        Self { numbers: CachePadded::default(), waits: WaitHistogram::new() }
    }

    /// A queued item starts that waited this long.
    pub(crate) fn began(&self, waited: Duration) {
        self.numbers.items.add(1);
        self.waits.record(waited);
    }

    /// An item was submitted by an item of this worker and ran inside of it.
    pub(crate) fn ran_inline(&self) {
        self.numbers.inline.add(1);
    }

    pub(crate) fn panicked(&self) {
        self.numbers.panics.add(1);
    }

    pub(crate) fn slept(&self) {
        self.numbers.sleeps.add(1);
    }

    /// Items that it had taken went to the fallback, because its CPU goes.
    pub(crate) fn handed_over(&self, items: u64) {
        self.numbers.handed_over.add(items);
    }

    /// It found itself off its CPU and is back.
    pub(crate) fn rebound(&self) {
        self.numbers.rebound.add(1);
    }

    /// The counters in words, for a worker on this thread_info.
    pub(crate) fn snapshot(
        &self,
        cpu: Option<usize>,
        thread_info: Option<ThreadInfo>,
    ) -> WorkerStats {
        let numbers = &self.numbers;
        WorkerStats {
            cpu,
            thread_id: thread_info.map(|thread_info| thread_info.thread_id),
            priority_level: thread_info.map(|thread_info| thread_info.priority_level),
            items: numbers.items.value(),
            inline: numbers.inline.value(),
            panics: numbers.panics.value(),
            sleeps: numbers.sleeps.value(),
            wake_ups: 0,
            handed_over: numbers.handed_over.value(),
            rebound: numbers.rebound.value(),
            waits: self.waits.snapshot(),
        }
    }
}

/// What one worker did, until about now.
#[derive(Debug, Clone)]
pub struct WorkerStats {
    /// The CPU that it is bound to; None for a worker that is bound to none.
    pub cpu: Option<usize>,
    /// The system's number of its thread; None when it has no thread at the moment.
    pub thread_id: Option<i32>,
    /// The priority_level of priority that its thread reached, as the system said; None as above.
    pub priority_level: Option<PriorityLevel>,
    /// Queued items that it ran.
    pub items: u64,
    /// Items that its own items submitted, which it ran inside of them.
    pub inline: u64,
    /// Those of both that panicked.
    pub panics: u64,
    /// Times that it went to sleep.
    pub sleeps: u64,
    /// Times that a submitter woke it by a system call. Always 0 for a worker bound to no CPU.
    pub wake_ups: u64,
    /// Items that it had taken and handed to the fallback when its CPU went away.
    pub handed_over: u64,
    /// Times that it found itself off its CPU and bound itself again.
    pub rebound: u64,
    /// From submission to start of every queued item.
    pub waits: HistogramSnapshot,
}

/// A model has no clock, and hundreds of modelled atomics would only slow it down.
#[cfg(loom)]
#[derive(Debug)]
struct WaitHistogram;

#[cfg(loom)]
impl WaitHistogram {
    fn new() -> Self {
        Self
    }

    fn record(&self, _waited: Duration) {}

    fn snapshot(&self) -> HistogramSnapshot {
        HistogramSnapshot::default()
    }
}
