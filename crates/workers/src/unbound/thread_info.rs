//! Where a worker's thread sits: its number, the priority_level that it reached, and whether it is where it
//! belongs. Written once by the thread itself; a pool asks from outside, as long as the thread lives.

use rustix::process::Pid;
use rustix::thread::{CpuSet as Mask, gettid, sched_getaffinity, sched_setaffinity};

use crate::cpus::CpuSet;
use crate::priority::PriorityLevel;

/// A living thread of a pool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ThreadInfo {
    pub(crate) priority_level: PriorityLevel,
    pub(crate) thread_id: i32,
}

/// Whether a thread is bound to its CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AffinityCheck {
    /// It is, or the system does not say.
    Bound,
    /// It was not, and is again.
    Rebound,
    /// It is not, and the system does not let it.
    Lost,
}

impl ThreadInfo {
    /// Of the calling thread.
    pub(crate) fn of_current_thread(priority_level: PriorityLevel) -> Self {
        Self { priority_level, thread_id: gettid().as_raw_pid() }
    }

    /// Makes sure that the thread is bound to `cpu` and to no other. The caller knows that it lives.
    pub(crate) fn hold(self, cpu: usize) -> AffinityCheck {
        let thread = Pid::from_raw(self.thread_id);
        // A modelled thread has no CPU, and the masks of larger machines are left to the workers.
        if cfg!(loom) || thread.is_none() || cpu >= Mask::MAX_CPU {
            return AffinityCheck::Bound;
        }
        match sched_getaffinity(thread) {
            Ok(mask) if mask.count() == 1 && mask.is_set(cpu) => AffinityCheck::Bound,
            Ok(_) if self.bind_to(&CpuSet::from_iter([cpu])) => AffinityCheck::Rebound,
            Ok(_) => AffinityCheck::Lost,
            Err(_) => AffinityCheck::Bound,
        }
    }

    /// Lets the thread run on these CPUs and no others; false when the system does not. The caller
    /// knows that the thread lives.
    pub(crate) fn bind_to(self, cpus: &CpuSet) -> bool {
        let thread = Pid::from_raw(self.thread_id);
        if cfg!(loom) || thread.is_none() || cpus.iter().any(|cpu| cpu >= Mask::MAX_CPU) {
            return true;
        }
        let mut mask = Mask::new();
        cpus.iter().for_each(|cpu| mask.set(cpu));
        sched_setaffinity(thread, &mask).is_ok()
    }
}
