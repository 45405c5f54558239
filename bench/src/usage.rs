//! What this process has cost the system so far: CPU time, switches and faults of all its threads,
//! asked before and after a measurement. Threads that ended in between take their switches along.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::machine::{leading_number, line_of};

/// Position of the minor faults behind the name in `/proc/self/stat`.
const MINOR_FAULTS_FIELD: usize = 7;

/// Costs, since the process began or between two looks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    /// User and system time of all threads.
    pub(crate) cpu: Duration,
    /// How often a thread gave its CPU up to wait.
    pub(crate) voluntary_switches: u64,
    /// How often a thread lost its CPU to another.
    pub(crate) involuntary_switches: u64,
    /// Page faults that needed no disk.
    pub(crate) minor_faults: u64,
}

impl Usage {
    /// Looks.
    pub(crate) fn now() -> Self {
        let (voluntary_switches, involuntary_switches) = switches();
        Self {
            cpu: cpu_time(),
            voluntary_switches,
            involuntary_switches,
            minor_faults: minor_faults(),
        }
    }

    /// What was added since `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            voluntary_switches: self.voluntary_switches.saturating_sub(earlier.voluntary_switches),
            involuntary_switches: self
                .involuntary_switches
                .saturating_sub(earlier.involuntary_switches),
            minor_faults: self.minor_faults.saturating_sub(earlier.minor_faults),
        }
    }
}

/// CPU time of the process, to the nanosecond.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

/// Minor faults of the process.
pub(crate) fn minor_faults() -> u64 {
    let stat = line_of("/proc/self/stat");
    // The name may hold anything, but it ends at the last parenthesis.
    let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    behind_name.split_whitespace().nth(MINOR_FAULTS_FIELD).map_or(0, leading_number)
}

/// Voluntary and involuntary switches of all threads that live.
fn switches() -> (u64, u64) {
    let mut sum = (0, 0);
    for task in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        // A thread may end between the listing and the look.
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        for (key, value) in status.lines().filter_map(|line| line.split_once(':')) {
            match key {
                "voluntary_ctxt_switches" => sum.0 += leading_number(value),
                "nonvoluntary_ctxt_switches" => sum.1 += leading_number(value),
                _ => {}
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::Usage;

    #[test]
    fn touching_fresh_memory_faults_and_costs_time() {
        let before = Usage::now();
        let fresh = vec![1_u8; 64 << 20];
        assert_eq!(std::hint::black_box(&fresh).first(), Some(&1));
        let cost = Usage::now().since(before);
        assert!(cost.minor_faults > 0);
        assert!(cost.cpu.as_nanos() > 0);
        assert_eq!(before.since(before), Usage::default());
    }
}
