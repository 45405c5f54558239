//! How much of its CPU time the process was denied: by quotas of its control groups, and by others who wanted the same
//! CPUs. It only reads; whatever is absent or malformed says nothing.

use std::path::Path;
use std::time::Duration;

use super::{cgroup, file};

/// What kept this process, and those in its control group, from running when they could have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuThrottling {
    /// How often a group of this process, or one above it, had used up its quota; None where no group counts that.
    pub throttled: Option<u64>,
    /// How long CPUs of these groups stood still for that, all of them together.
    pub throttled_time: Option<Duration>,
    /// How long some task was ready and had no CPU; None where the kernel does not keep that account.
    pub stalled_time: Option<Duration>,
    /// Whether that was some task of the whole system, since there is no account of the group alone.
    pub is_stalled_of_system: bool,
}

impl CpuThrottling {
    /// Asks the system, which takes a few files for each group.
    #[must_use]
    pub fn read() -> Self {
        Self::read_below(Path::new("/"))
    }

    fn read_below(root: &Path) -> Self {
        let groups = cgroup::of_cpu_time(root);
        let mut found = Self::default();
        for group in &groups {
            let Some(text) = file::read_text(&group.join("cpu.stat")) else { continue };
            if let Some(times) = value(&text, "nr_throttled ") {
                found.throttled = Some(found.throttled.unwrap_or(0).saturating_add(times));
            }
            if let Some(time) = throttled_time(&text) {
                let sum = found.throttled_time.unwrap_or_default().saturating_add(time);
                found.throttled_time = Some(sum);
            }
        }
        let of_group = groups.iter().find_map(|group| file::read_text(&group.join("cpu.pressure")));
        found.is_stalled_of_system = of_group.is_none();
        let pressure = of_group.or_else(|| file::read_text(&root.join("proc/pressure/cpu")));
        found.stalled_time = pressure.as_deref().and_then(stalled_time);
        found
    }

    /// What came since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let time = |now: Option<Duration>, then: Option<Duration>| {
            now.map(|now| now.saturating_sub(then.unwrap_or_default()))
        };
        let is_same_account = self.is_stalled_of_system == before.is_stalled_of_system;
        Self {
            throttled: self.throttled.map(|now| now.saturating_sub(before.throttled.unwrap_or(0))),
            throttled_time: time(self.throttled_time, before.throttled_time),
            stalled_time: time(self.stalled_time, before.stalled_time).filter(|_| is_same_account),
            is_stalled_of_system: self.is_stalled_of_system,
        }
    }
}

/// The number behind a key at the start of a line.
fn value(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key))?.trim().parse().ok()
}

/// In microseconds in version 2, in nanoseconds in version 1.
fn throttled_time(text: &str) -> Option<Duration> {
    let of_version_2 = value(text, "throttled_usec ").map(Duration::from_micros);
    of_version_2.or_else(|| value(text, "throttled_time ").map(Duration::from_nanos))
}

/// The `total` of the line `some`, in microseconds.
fn stalled_time(text: &str) -> Option<Duration> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    let total = line.split(' ').find_map(|field| field.strip_prefix("total="))?;
    total.trim().parse().ok().map(Duration::from_micros)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::fake_root::FakeRoot;
    use super::*;

    fn read(files: &[(&str, &str)]) -> CpuThrottling {
        CpuThrottling::read_below(FakeRoot::new(files).root())
    }

    #[test]
    fn a_system_that_says_nothing_throttles_nothing() {
        let nothing = CpuThrottling { is_stalled_of_system: true, ..CpuThrottling::default() };
        assert_eq!(read(&[]), nothing);
        let odd = [("proc/self/cgroup", "0::/\n"), ("proc/pressure/cpu", "some avg10=x total=\n")];
        assert_eq!(read(&odd), nothing);
    }

    #[test]
    fn only_what_came_since_counts() {
        let then =
            CpuThrottling { throttled: Some(3), stalled_time: None, ..CpuThrottling::default() };
        let now = CpuThrottling {
            throttled: Some(5),
            throttled_time: Some(Duration::from_millis(1)),
            stalled_time: Some(Duration::from_millis(2)),
            is_stalled_of_system: false,
        };
        assert_eq!(now.since(&then), CpuThrottling { throttled: Some(2), ..now });
        assert_eq!(then.since(&now).throttled, Some(0));
        // Moved to another group meanwhile: the accounts cannot be compared.
        let moved = CpuThrottling { is_stalled_of_system: true, ..then };
        assert_eq!(now.since(&moved).stalled_time, None);
    }

    #[test]
    fn groups_of_version_2_are_added_up() {
        let found = read(&[
            ("proc/self/cgroup", "0::/a/b\n"),
            ("proc/self/mountinfo", "35 24 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
            ("sys/fs/cgroup/a/cpu.stat", "usage_usec 9\nnr_throttled 2\nthrottled_usec 500\n"),
            ("sys/fs/cgroup/a/b/cpu.stat", "nr_throttled 3\nthrottled_usec 1500\n"),
            (
                "sys/fs/cgroup/a/b/cpu.pressure",
                "some avg10=0.00 avg60=0.00 total=77\nfull total=1\n",
            ),
            ("proc/pressure/cpu", "some avg10=0.00 total=99999\n"),
        ]);
        let wanted = CpuThrottling {
            throttled: Some(5),
            throttled_time: Some(Duration::from_millis(2)),
            stalled_time: Some(Duration::from_micros(77)),
            is_stalled_of_system: false,
        };
        assert_eq!(found, wanted);
    }

    #[test]
    fn version_1_counts_in_nanoseconds_and_the_system_stands_in_for_the_group() {
        let found = read(&[
            ("proc/self/cgroup", "4:cpu,cpuacct:/a\n"),
            (
                "proc/self/mountinfo",
                "34 31 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n",
            ),
            (
                "sys/fs/cgroup/cpu/a/cpu.stat",
                "nr_periods 10\nnr_throttled 4\nthrottled_time 3000\n",
            ),
            ("proc/pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=12\n"),
        ]);
        assert_eq!(found.throttled, Some(4));
        assert_eq!(found.throttled_time, Some(Duration::from_micros(3)));
        assert_eq!(found.stalled_time, Some(Duration::from_micros(12)));
        assert!(found.is_stalled_of_system);
    }
}
