//! What the per-CPU workers did, in numbers. It reads and stops nobody, so the numbers of one moment
//! need not add up while work goes on.

use super::pool::PerCpuShared;
use crate::counters::HistogramSnapshot;
use crate::cpus::CpuSet;
use crate::sync::lock;
use crate::unbound::{UnboundStats, WorkerStats};

/// What a pool of per-CPU workers did, until about now.
#[derive(Debug, Clone)]
pub struct PerCpuStats {
    /// One for every CPU that ever had a worker, ascending.
    pub workers: Vec<WorkerStats>,
    /// The CPUs whose worker takes work.
    pub serving: CpuSet,
    /// The threads of the fallback, and what ran on submitters because there was none.
    pub unbound: UnboundStats,
    /// Items that were submitted to a CPU without a worker and went to the fallback.
    pub fallback: u64,
    /// Items that ran on the submitter because too many waited for the CPU's worker.
    pub full: u64,
    /// Those of them that panicked.
    pub full_panics: u64,
    /// Items that had been queued for a CPU and went to the fallback when it went away.
    pub handed_over: u64,
    /// Workers that were found off their CPU and brought back, by a refresh or by themselves.
    pub rebound: u64,
    /// Looks at the system that may have changed the workers.
    pub refreshes: u64,
    /// Workers that the system refused a thread.
    pub refused_threads: u64,
}

impl PerCpuStats {
    pub(super) fn of(shared: &PerCpuShared) -> Self {
        let (rows, serving) = {
            let registry = lock(&shared.registry);
            (registry.rows(), registry.serving())
        };
        let workers = rows.into_iter().map(|(cpu, thread_info, counters)| {
            let mut worker = counters.snapshot(Some(cpu), thread_info);
            worker.wake_ups =
                shared.cpu_queues.get(cpu).map_or(0, super::cpu_queue::CpuQueue::wake_ups);
            worker
        });
        let counters = &shared.counters;
        let workers: Vec<_> = workers.collect();
        Self {
            rebound: counters.rebound.value()
                + workers.iter().map(|worker| worker.rebound).sum::<u64>(),
            workers,
            serving,
            unbound: shared.fallback.snapshot(),
            fallback: counters.fallback.value(),
            full: counters.full.value(),
            full_panics: counters.inline_panics.value(),
            handed_over: counters.handed_over.value(),
            refreshes: counters.refreshes.value(),
            refused_threads: counters.refused_threads.value(),
        }
    }

    /// Items that ran out of a queue, on workers and on the fallback.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.workers.iter().map(|worker| worker.items).sum::<u64>() + self.unbound.items()
    }

    /// Items that ran on their submitter.
    #[must_use]
    pub fn inline(&self) -> u64 {
        let nested = |workers: &[WorkerStats]| workers.iter().map(|one| one.inline).sum::<u64>();
        nested(&self.workers) + nested(&self.unbound.threads) + self.unbound.inline + self.full
    }

    /// Items that panicked.
    #[must_use]
    pub fn panics(&self) -> u64 {
        let queued = |workers: &[WorkerStats]| workers.iter().map(|one| one.panics).sum::<u64>();
        queued(&self.workers)
            + queued(&self.unbound.threads)
            + self.unbound.inline_panics
            + self.full_panics
    }

    /// From submission to start of all items that ran on a CPU's worker.
    #[must_use]
    pub fn waits(&self) -> HistogramSnapshot {
        let mut times = HistogramSnapshot::default();
        self.workers.iter().for_each(|worker| times.merge(&worker.waits));
        times
    }
}
