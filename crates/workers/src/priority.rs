//! The ladder of priority: real-time FIFO 1, else nice -19, else normal. It owns no state: it asks the
//! system for a priority_level on the calling thread, asks again what holds, and reports that. Called by
//! [`crate::thread`] for every worker, and by whoever prints which priority_level was reached.

use std::fmt;

use rustix::process::{Resource, getpriority_process, getrlimit, setpriority_process};
use rustix::thread::gettid;

use crate::sys;

/// The lowest real-time priority: above every ordinary thread, below everybody else's real-time ones.
const FIFO_PRIORITY: i32 = 1;
/// The nice value of the second priority_level; -20 is left to those who must come before it.
const NICE: i32 = -19;

/// The switch: whether a thread asks for more than it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PriorityRequest {
    /// Touch nothing.
    #[default]
    Normal,
    /// As high on the ladder as the system allows.
    Raised,
    /// The same share of time as others, but a thread that wakes up waits for its turn: it never
    /// takes the CPU from the one that woke it. For workers whose submitter works, too.
    Batch,
}

/// A priority_level of the ladder that a thread stands on, as the system says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PriorityLevel {
    /// A real-time policy; [`apply`] asks for FIFO at priority 1.
    RealTime,
    /// An ordinary policy at nice -19 (or -20).
    Nice,
    /// Anything below.
    Normal,
    /// `SCHED_BATCH`, at a nice value above -19.
    Batch,
}

impl fmt::Display for PriorityLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RealTime => "fifo 1",
            Self::Nice => "nice -19",
            Self::Normal => "normal",
            Self::Batch => "batch",
        })
    }
}

/// Brings the calling thread as high as `wanted` and the system allow, and says what holds then.
///
/// It never fails: what is refused means the next priority_level down. [`PriorityRequest::Normal`] changes nothing, and
/// [`PriorityRequest::Batch`] needs no privilege. A raised thread never passes its priority on to threads and processes that it starts.
///
/// A raised thread must block when it is idle: at FIFO it keeps every ordinary thread off its CPU.
pub fn apply(wanted: PriorityRequest) -> PriorityLevel {
    match wanted {
        PriorityRequest::Normal => {}
        PriorityRequest::Raised => {
            if !raise_to_real_time() {
                raise_to_nice();
            }
        }
        // Refused, the thread stays what it is, and the caller asks what holds.
        PriorityRequest::Batch => sys::set_scheduler(sys::POLICY_BATCH, 0).unwrap_or_default(),
    }
    of_current_thread()
}

/// The priority_level on which the calling thread stands, as `sched_getscheduler` and `getpriority` say.
#[must_use]
pub fn of_current_thread() -> PriorityLevel {
    match sys::scheduler() {
        Ok(sys::POLICY_FIFO | sys::POLICY_ROUND_ROBIN | sys::POLICY_DEADLINE) => {
            PriorityLevel::RealTime
        }
        Ok(sys::POLICY_BATCH) => rung_of_nice(PriorityLevel::Batch),
        Ok(sys::POLICY_OTHER) | Err(_) => rung_of_nice(PriorityLevel::Normal),
        // SCHED_IDLE and whatever may come: their nice value is not worth what it says.
        Ok(_) => PriorityLevel::Normal,
    }
}

fn rung_of_nice(otherwise: PriorityLevel) -> PriorityLevel {
    match getpriority_process(Some(gettid())) {
        Ok(nice) if nice <= NICE => PriorityLevel::Nice,
        _ => otherwise,
    }
}

/// Says whether a real-time policy holds afterwards: one that was there before is never taken away.
fn raise_to_real_time() -> bool {
    // Under this limit the kernel ends the process (SIGXCPU) when a real-time thread computes for
    // longer without sleeping, which is just what a decoder does.
    if getrlimit(Resource::Rttime).current.is_none() {
        let policy = sys::POLICY_FIFO | sys::RESET_ON_FORK;
        sys::set_scheduler(policy, FIFO_PRIORITY).ok();
    }
    of_current_thread() == PriorityLevel::RealTime
}

fn raise_to_nice() {
    // Its children do not inherit the nice value. Refused or not, the next call may still succeed,
    // and the caller asks what holds.
    sys::set_scheduler(sys::POLICY_OTHER | sys::RESET_ON_FORK, 0).ok();
    setpriority_process(Some(gettid()), NICE).ok();
}

#[cfg(all(test, not(loom)))]
mod tests;
