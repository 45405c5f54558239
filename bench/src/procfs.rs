//! What `/proc` tells: lines and fields of its files, and the resources that this process used.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Position of the minor faults behind the name in `/proc/self/stat`.
const MINOR_FAULTS_FIELD: usize = 7;

/// The first line of a file.
pub(crate) fn line_of(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}

/// The value of `name:` in a file of such lines.
pub(crate) fn field_of(path: &str, name: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let found = fields.find(|(key, _)| key.trim() == name);
    found.map_or_else(String::new, |(_, value)| value.trim().to_owned())
}

/// The number at the start of a field such as "23 kB", or 0.
pub(crate) fn leading_number(text: &str) -> u64 {
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

pub(crate) fn available_kib() -> u64 {
    leading_number(&field_of("/proc/meminfo", "MemAvailable"))
}

/// Resources that all threads of this process used, since it started or between two looks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// User and system time, to the nanosecond.
    pub(crate) cpu: Duration,
    pub(crate) voluntary_switches: u64,
    pub(crate) involuntary_switches: u64,
    pub(crate) minor_faults: u64,
}

impl Usage {
    pub(crate) fn now() -> Self {
        let (voluntary_switches, involuntary_switches) = switches();
        let stat = line_of("/proc/self/stat");
        // The name may hold anything, but it ends at the last parenthesis.
        let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let faults = behind_name.split_whitespace().nth(MINOR_FAULTS_FIELD);
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        Self {
            cpu: Duration::try_from(cpu).unwrap_or_default(),
            voluntary_switches,
            involuntary_switches,
            minor_faults: faults.map_or(0, leading_number),
        }
    }

    pub(crate) fn since(self, earlier: Self) -> Self {
        let less = u64::saturating_sub;
        Self {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            voluntary_switches: less(self.voluntary_switches, earlier.voluntary_switches),
            involuntary_switches: less(self.involuntary_switches, earlier.involuntary_switches),
            minor_faults: less(self.minor_faults, earlier.minor_faults),
        }
    }
}

/// Voluntary and involuntary switches of all living threads; those of a thread that ended are lost.
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
    use super::{Usage, leading_number};

    #[test]
    fn a_number_is_read_from_the_start_of_a_field() {
        assert_eq!((leading_number("23 kB"), leading_number("none")), (23, 0));
    }

    #[test]
    fn touching_fresh_memory_faults_and_costs_time() {
        let before = Usage::now();
        let fresh = vec![1_u8; 64 << 20];
        assert_eq!(std::hint::black_box(&fresh).first(), Some(&1));
        let cost = Usage::now().since(before);
        assert!(cost.minor_faults > 0 && cost.cpu.as_nanos() > 0);
        assert_eq!(before.since(before), Usage::default());
    }
}
