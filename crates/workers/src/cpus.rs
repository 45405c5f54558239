//! The CPUs that are available to this process: CPUs, a quota of their time, NUMA nodes. It owns
//! nothing: every call reads the system again, since all of it may change while the process runs.
//! Thread pools call it for their sizes, and the per-CPU workers to follow CPUs that come and go.

mod cgroup;
mod set;

pub use cgroup::CpuThrottling;
pub use set::{CPUS_MAX, CpuSet};

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use rustix::thread::sched_getaffinity;

/// More than any file of /proc or /sys that holds a list or a number: a list of 8192 CPUs, every
/// other one set, has 20 KB. A table of mounts with more than 20 000 lines is too long.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// A quota counts CPUs in thousandths.
const MILLI: u64 = 1000;

/// A snapshot of the CPUs that are available to this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AvailableCpus {
    cpus: CpuSet,
    quota_millicpus: Option<u64>,
    nodes: Vec<NumaNode>,
}

/// A NUMA node and those of its CPUs that are available.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumaNode {
    /// The system's number; numbers may be missing between two nodes.
    pub id: usize,
    /// Never empty.
    pub cpus: CpuSet,
}

impl AvailableCpus {
    /// Reads them from the system. It never fails: a file that is absent, unreadable or malformed
    /// limits nothing.
    ///
    /// It opens some ten files, more where control groups are nested: call it at the start and from
    /// time to time, not for every request.
    #[must_use]
    pub fn read() -> Self {
        Self::read_below(Path::new("/"), CpuSet::of_process())
    }

    /// Just these CPUs, without a quota, on the nodes where the system has them. For the empty set,
    /// the CPU on which the caller runs.
    #[must_use]
    pub fn fixed(cpus: CpuSet) -> Self {
        let cpus = if cpus.is_empty() { here() } else { cpus };
        let nodes = numa_nodes(Path::new("/"), &cpus);
        Self { cpus, quota_millicpus: None, nodes }
    }

    /// The available CPUs: at least one.
    #[must_use]
    pub const fn cpus(&self) -> &CpuSet {
        &self.cpus
    }

    /// The CPU time that the process gets, in thousandths of a CPU, rounded up, at least 1; None if
    /// nothing limits it. It may be more than all CPUs have.
    #[must_use]
    pub const fn quota_millicpus(&self) -> Option<u64> {
        self.quota_millicpus
    }

    /// How many threads can run at once: the number of CPUs, or the quota rounded up to whole CPUs
    /// if that is less. At least 1.
    #[must_use]
    pub fn parallelism(&self) -> usize {
        let quota = self.quota_millicpus.map_or(u64::MAX, |quota| quota.div_ceil(MILLI));
        let quota = usize::try_from(quota).unwrap_or(usize::MAX);
        self.cpus.len().min(quota).max(1)
    }

    /// The nodes, ascending; each available CPU is on exactly one. One node where the system knows
    /// none.
    #[must_use]
    pub fn nodes(&self) -> &[NumaNode] {
        &self.nodes
    }

    /// [`read`](Self::read) with `root` for the root directory, so that tests can read other
    /// systems.
    fn read_below(root: &Path, affinity: CpuSet) -> Self {
        let limits = cgroup::read(root);
        let cpus = bounded(affinity, limits.cpus);
        let cpus = bounded(cpus, online(root));
        let cpus = if cpus.is_empty() { here() } else { cpus };
        let nodes = numa_nodes(root, &cpus);
        Self { cpus, quota_millicpus: limits.quota_millicpus, nodes }
    }
}

/// The CPUs within a bound. Mask and bounds are read one after the other and may change meanwhile:
/// a bound that leaves nothing is out of date, and the mask, which is read first, decides.
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

/// The CPU on which the caller runs now. Unless the thread is bound, it may be another one by the
/// time the caller looks.
#[must_use]
pub fn current() -> usize {
    rustix::thread::sched_getcpu()
}

/// Whether the calling thread is bound to `cpu` and to no other. One system call.
///
/// When the last CPU of a thread's mask goes offline, the kernel silently widens the mask; a bound
/// worker calls this to notice it.
#[must_use]
pub fn is_bound_to(cpu: usize) -> bool {
    match sched_getaffinity(None) {
        Ok(mask) if cpu < rustix::thread::CpuSet::MAX_CPU => mask.count() == 1 && mask.is_set(cpu),
        _ => CpuSet::of_current_thread() == CpuSet::from_iter([cpu]),
    }
}

/// The CPUs that are online; None if the system does not say.
fn online(root: &Path) -> Option<CpuSet> {
    cpu_list(&root.join("sys/devices/system/cpu/online"))
}

/// Divides `cpus` among the nodes, so that each is on exactly one: nodes ascending, none without a
/// CPU, with the system's numbers. A CPU that no node names is on the first.
fn numa_nodes(root: &Path, cpus: &CpuSet) -> Vec<NumaNode> {
    let base = root.join("sys/devices/system/node");
    let mut rest = cpus.clone();
    let mut nodes = Vec::new();
    for id in cpu_list(&base.join("has_cpu")).unwrap_or_default().iter() {
        let local = cpu_list(&base.join(format!("node{id}/cpulist"))).unwrap_or_default();
        let local = local.intersection(&rest);
        if !local.is_empty() {
            rest = rest.difference(&local);
            nodes.push(NumaNode { id, cpus: local });
        }
    }
    match nodes.first_mut() {
        Some(first) => first.cpus = first.cpus.union(&rest),
        None => nodes.push(NumaNode { id: 0, cpus: rest }),
    }
    nodes
}

fn cpu_list(path: &Path) -> Option<CpuSet> {
    CpuSet::parse(&read_text(path)?).ok().filter(|set| !set.is_empty())
}

/// The text of a small file of the kernel. None if it is absent, unreadable or too long. Bytes that
/// are not UTF-8 are replaced: one odd name among the mounts must not hide the others.
fn read_text(path: &Path) -> Option<String> {
    // These files are short; a buffer that grows from nothing takes several reads for each.
    let mut bytes = Vec::with_capacity(4096);
    let length = File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let is_whole = u64::try_from(length).ok()? < FILE_BYTES_MAX;
    is_whole.then(|| String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(all(test, not(loom)))]
mod tests;
