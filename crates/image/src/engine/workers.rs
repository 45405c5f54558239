//! The per-CPU workers that decode: one set for the process, started by the first read that can use
//! it, and there until the process ends. An image may have a set of its own instead.

use std::sync::{Arc, OnceLock};

use ferrofs_workers::cpus::{self, AvailableCpus, CpuSet};
use ferrofs_workers::percpu::{PerCpuPool, PerCpuSettings, PerCpuStats};

/// Workers on which an image decodes. Clones are handles of one set.
#[derive(Clone, Debug)]
pub struct DecodeWorkers(Arc<WorkersInner>);

#[derive(Debug)]
struct WorkersInner {
    pool: PerCpuPool,
    /// The CPUs that were granted when the set was made, as targets for work that is spread.
    cpus: Box<[usize]>,
    parallelism: usize,
}

impl DecodeWorkers {
    /// The set of the process: a worker `erofs_worker/N` for each granted CPU N, at raised priority
    /// where the system allows. No thread exists before its first use; they stay until the end.
    #[must_use]
    pub fn global() -> Self {
        static PROCESS: OnceLock<DecodeWorkers> = OnceLock::new();
        PROCESS.get_or_init(|| Self::new(PerCpuSettings::new("erofs_worker"))).clone()
    }

    /// A set of its own, which ends with the last handle and image.
    #[must_use]
    pub fn new(settings: PerCpuSettings) -> Self {
        let granted = AvailableCpus::read();
        Self(Arc::new(WorkersInner {
            pool: PerCpuPool::new(settings),
            cpus: granted.cpus().iter().collect(),
            parallelism: granted.parallelism(),
        }))
    }

    /// A set of its own on the first `most` of the granted CPUs, at least one.
    #[must_use]
    pub fn with_max_threads(most: usize, settings: PerCpuSettings) -> Self {
        let granted = AvailableCpus::read();
        let cpus: CpuSet = granted.cpus().iter().take(most.max(1)).collect();
        Self(Arc::new(WorkersInner {
            cpus: cpus.iter().collect(),
            parallelism: granted.parallelism().min(most).max(1),
            pool: PerCpuPool::new(settings.cpus(cpus)),
        }))
    }

    /// No workers: everything is decoded on the threads that read.
    #[must_use]
    pub fn none() -> Self {
        let pool = PerCpuPool::new(PerCpuSettings::new("erofs_worker"));
        Self(Arc::new(WorkersInner { pool, cpus: Box::default(), parallelism: 1 }))
    }

    /// The pool, to look at and to steer.
    #[must_use]
    pub fn pool(&self) -> &PerCpuPool {
        &self.0.pool
    }

    /// What the workers did.
    #[must_use]
    pub fn snapshot(&self) -> PerCpuStats {
        self.0.pool.snapshot()
    }

    /// Whether there is nobody but those who read.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.cpus.is_empty()
    }

    /// How many threads can really run at a time.
    pub(crate) fn parallelism(&self) -> usize {
        self.0.parallelism
    }

    /// Has `work` run on another CPU than the caller's where there is one; `turn` spreads several
    /// pieces of work over them.
    pub(crate) fn submit_to_other_cpu(&self, turn: usize, work: impl FnOnce() + Send + 'static) {
        let own = cpus::current();
        let others = || self.0.cpus.iter().copied().filter(|cpu| *cpu != own);
        let place = turn.checked_rem(others().count()).unwrap_or(0);
        self.0.pool.submit_to(others().nth(place).unwrap_or(own), work);
    }
}
