//! What the system grants to this process: CPUs, a quota of their time, nodes. It owns nothing: every
//! call asks the system again, since all of it may change while the process runs. Called by the pools
//! for their sizes and by the per-CPU workers to see CPUs come and go.

mod available;
mod cgroup;
#[cfg(all(test, not(loom)))]
mod fake_root;
mod file;
mod set;
mod throttling;
mod topology;

pub use available::{AvailableCpus, NumaNode};
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
