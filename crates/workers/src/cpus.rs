//! What the system grants to this process: CPUs, a quota of their time, nodes. It owns nothing: every
//! call asks the system again, since all of it may change while the process runs. Called by the pools
//! for their sizes and by the per-CPU workers to see CPUs come and go.

mod cgroup;
#[cfg(all(test, not(loom)))]
mod fake_root;
mod file;
mod set;
mod throttling;
mod topology;

pub use set::{CPUS_MAX, CpuSet};
pub use throttling::CpuThrottling;

use rustix::thread::sched_getaffinity;

/// The CPU on which the caller runs now. It may be another one by the time the caller looks, unless
/// its thread is bound.
#[must_use]
pub fn current() -> usize {
    rustix::thread::sched_getcpu()
}

/// Whether the calling thread is bound to `cpu` and to no other: one system call.
///
/// The kernel widens the mask of a thread whose last CPU goes away, silently; a bound worker asks
/// this to find out.
#[must_use]
pub fn is_bound_to(cpu: usize) -> bool {
    match sched_getaffinity(None) {
        Ok(mask) if cpu < rustix::thread::CpuSet::MAX_CPU => mask.count() == 1 && mask.is_set(cpu),
        _ => CpuSet::of_current_thread() == CpuSet::from_iter([cpu]),
    }
}

use std::path::Path;

/// CPUs in a quota are counted in thousandths.
const MILLI: u64 = 1000;

/// A snapshot of what the system grants to this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AvailableCpus {
    cpus: CpuSet,
    quota_millicpus: Option<u64>,
    nodes: Vec<NumaNode>,
}

/// A node of memory and those of its CPUs that are granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumaNode {
    /// The system's number; numbers may be missing between two nodes.
    pub id: usize,
    /// Never empty.
    pub cpus: CpuSet,
}

impl AvailableCpus {
    /// Asks the system. It never fails: a file that is absent, unreadable or malformed limits nothing.
    ///
    /// It opens some ten files, more where control groups are nested: for the start and for a look
    /// now and then, not for every request.
    #[must_use]
    pub fn read() -> Self {
        Self::read_below(Path::new("/"), CpuSet::of_process())
    }

    /// Grants just these CPUs, without a quota and on the nodes where the system has them. Without any
    /// CPU it grants the one on which the caller runs.
    #[must_use]
    pub fn fixed(cpus: CpuSet) -> Self {
        let cpus = if cpus.is_empty() { here() } else { cpus };
        let nodes = topology::nodes(Path::new("/"), &cpus);
        Self { cpus, quota_millicpus: None, nodes }
    }

    /// The CPUs: at least one.
    #[must_use]
    pub const fn cpus(&self) -> &CpuSet {
        &self.cpus
    }

    /// How much CPU time the process gets, in thousandths of a CPU, at least 1, rounded up; None where
    /// nothing limits it. It may be more than all CPUs have.
    #[must_use]
    pub const fn quota_millicpus(&self) -> Option<u64> {
        self.quota_millicpus
    }

    /// How many threads can run at once: the number of CPUs, or the quota rounded up to whole CPUs if
    /// that is less. At least 1.
    #[must_use]
    pub fn parallelism(&self) -> usize {
        let quota = self.quota_millicpus.map_or(u64::MAX, |quota| quota.div_ceil(MILLI));
        let quota = usize::try_from(quota).unwrap_or(usize::MAX);
        self.cpus.len().min(quota).max(1)
    }

    /// The nodes, ascending; every granted CPU lies on exactly one. One node where the system says
    /// nothing of nodes.
    #[must_use]
    pub fn nodes(&self) -> &[NumaNode] {
        &self.nodes
    }

    /// The same with `root` for the root directory, so that other systems than this one can be read.
    fn read_below(root: &Path, affinity: CpuSet) -> Self {
        let limits = cgroup::read(root);
        let cpus = bounded(affinity, limits.cpus);
        let cpus = bounded(cpus, topology::online(root));
        let cpus = if cpus.is_empty() { here() } else { cpus };
        let nodes = topology::nodes(root, &cpus);
        Self { cpus, quota_millicpus: limits.quota_millicpus, nodes }
    }
}

/// These are read one after the other while they change: a bound that leaves nothing is out of date.
/// The mask, which comes first, is the one that rules.
fn bounded(cpus: CpuSet, bound: Option<CpuSet>) -> CpuSet {
    let Some(bound) = bound else { return cpus };
    if cpus.is_empty() {
        return bound;
    }
    let both = cpus.intersection(&bound);
    if both.is_empty() { cpus } else { both }
}

fn here() -> CpuSet {
    CpuSet::from_iter([current()])
}

#[cfg(all(test, not(loom)))]
mod tests;
