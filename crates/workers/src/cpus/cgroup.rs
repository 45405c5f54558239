//! What control groups do to this process's CPUs: limits and throttling, version 1 and 2, nested,
//! mixed, and seen from inside of a container. It keeps nothing. What is absent or malformed limits
//! nothing.

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::{CpuSet, read_text};

/// The limits of the groups of this process.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CgroupLimits {
    /// The lowest quota of a group or one above it, in thousandths of a CPU, rounded up.
    pub(super) quota_millicpus: Option<u64>,
    /// The CPUs that the group may use.
    pub(super) cpus: Option<CpuSet>,
}

/// Reads the limits of this process; `root` stands for the root directory.
pub(super) fn read(root: &Path) -> CgroupLimits {
    let memberships = read_text(&root.join("proc/self/cgroup")).unwrap_or_default();
    let mounts = read_text(&root.join("proc/self/mountinfo")).unwrap_or_default();
    let mounts: Vec<CgroupMount<'_>> = mounts.lines().filter_map(CgroupMount::parse).collect();
    let mut limits = CgroupLimits::default();
    for membership in memberships.lines().filter_map(CgroupMembership::parse) {
        if membership.has("cpu") {
            let groups = membership.groups(root, &mounts, "cpu");
            let quotas = groups.iter().filter_map(|group| quota_of(group));
            limits.quota_millicpus = quotas.chain(limits.quota_millicpus).min();
        }
        if membership.has("cpuset") {
            let groups = membership.groups(root, &mounts, "cpuset");
            // A group without the controller uses what the next one above it uses.
            limits.cpus = groups.iter().find_map(|group| cpus_of(group)).or(limits.cpus);
        }
    }
    limits
}

/// The directories of the groups that limit this process's CPU time, its own first, then those
/// above it.
fn cpu_cgroups(root: &Path) -> Vec<PathBuf> {
    let memberships = read_text(&root.join("proc/self/cgroup")).unwrap_or_default();
    let mounts = read_text(&root.join("proc/self/mountinfo")).unwrap_or_default();
    let mounts: Vec<CgroupMount<'_>> = mounts.lines().filter_map(CgroupMount::parse).collect();
    let of_cpu =
        memberships.lines().filter_map(CgroupMembership::parse).filter(|one| one.has("cpu"));
    of_cpu.flat_map(|membership| membership.groups(root, &mounts, "cpu")).collect()
}

/// A line of /proc/self/cgroup: `4:cpu,cpuacct:/some/group`, or `0::/some/group` of version 2.
struct CgroupMembership<'a> {
    /// Empty for version 2, which has all controllers.
    controllers: &'a str,
    path: &'a Path,
}

impl<'a> CgroupMembership<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        Some(Self { controllers, path: Path::new(fields.next()?) })
    }

    fn has(&self, controller: &str) -> bool {
        self.controllers.is_empty() || self.controllers.split(',').any(|name| name == controller)
    }

    /// The visible directories of the group and of those above it, the group first.
    fn groups(&self, root: &Path, mounts: &[CgroupMount<'_>], controller: &str) -> Vec<PathBuf> {
        let of_controller = mounts.iter().filter(|mount| {
            if self.controllers.is_empty() {
                mount.kind == "cgroup2"
            } else {
                mount.kind == "cgroup" && mount.options.split(',').any(|name| name == controller)
            }
        });
        // If a hierarchy is mounted more than once, use the mount that shows most of what is above
        // the group. A group that no mount shows (its path is that of the host) counts as the top
        // of the mount.
        let best = of_controller.min_by_key(|mount| match self.path.strip_prefix(&mount.root) {
            Ok(_) => mount.root.as_os_str().len(),
            Err(_) => usize::MAX,
        });
        let Some(mount) = best else { return Vec::new() };
        let below = self.path.strip_prefix(&mount.root).unwrap_or(Path::new(""));
        let is_plain = below.components().all(|part| matches!(part, Component::Normal(_)));
        let below = if is_plain { below } else { Path::new("") };
        let point = mount.point.strip_prefix("/").unwrap_or(&mount.point);
        let top = root.join(point);
        below.ancestors().map(|group| top.join(group)).collect()
    }
}

/// A line of /proc/self/mountinfo.
struct CgroupMount<'a> {
    /// The directory within the hierarchy that is mounted.
    root: PathBuf,
    /// Where it is mounted.
    point: PathBuf,
    kind: &'a str,
    /// Of the hierarchy: the names of its controllers are among them.
    options: &'a str,
}

impl<'a> CgroupMount<'a> {
    /// None also for a mount that is no control group.
    fn parse(line: &'a str) -> Option<Self> {
        let (place, hierarchy) = line.split_once(" - ")?;
        let mut hierarchy = hierarchy.split(' ');
        let kind = hierarchy.next().filter(|kind| kind.starts_with("cgroup"))?;
        let options = hierarchy.nth(1).unwrap_or_default();
        let mut place = place.split(' ').skip(3);
        Some(Self {
            root: unescaped(place.next()?),
            point: unescaped(place.next()?),
            kind,
            options,
        })
    }
}

/// Undoes the kernel's escapes of space, tab, line feed and backslash: three octal digits each.
fn unescaped(field: &str) -> PathBuf {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    // The backslash comes last, so that one which stood there is not taken for the next escape.
    PathBuf::from(
        escapes.iter().fold(field.to_owned(), |path, (code, sign)| path.replace(code, sign)),
    )
}

/// The group's own quota, in thousandths of a CPU.
fn quota_of(group: &Path) -> Option<u64> {
    let (quota, period) = match read_text(&group.join("cpu.max")) {
        Some(text) => {
            let (quota, period) = text.trim().split_once(' ')?;
            (quota.parse().ok()?, period.parse().ok()?)
        }
        None => {
            let number = |name| read_text(&group.join(name))?.trim().parse().ok();
            (number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?)
        }
    };
    millicpus(quota, period)
}

/// "max" and -1 are no numbers above zero: no limit.
fn millicpus(quota_us: u64, period_us: u64) -> Option<u64> {
    if quota_us == 0 || period_us == 0 {
        return None;
    }
    u64::try_from((u128::from(quota_us) * 1000).div_ceil(u128::from(period_us))).ok()
}

/// The CPUs that the group may really use, by the name of version 2, of version 1, and of version 1
/// where it is mounted without prefixes.
fn cpus_of(group: &Path) -> Option<CpuSet> {
    const NAMES: [&str; 5] =
        ["cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus", "effective_cpus", "cpus"];
    NAMES.iter().find_map(|name| {
        let set = CpuSet::parse(&read_text(&group.join(name))?).ok()?;
        (!set.is_empty()).then_some(set)
    })
}

/// What kept this process, and others of its control group, from running although they were ready.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuThrottling {
    /// How often a group of this process, or one above it, had used up its quota; None if no group
    /// counts that.
    pub throttled: Option<u64>,
    /// How long these groups were throttled for that, all CPUs together.
    pub throttled_time: Option<Duration>,
    /// How long some task was ready and had no CPU; None if the kernel does not count it.
    pub stalled_time: Option<Duration>,
    /// Whether `stalled_time` is that of the whole system, since the group's is not counted.
    pub is_stalled_of_system: bool,
}

impl CpuThrottling {
    /// Reads it from the system: a few files for each group.
    #[must_use]
    pub fn read() -> Self {
        Self::read_below(Path::new("/"))
    }

    fn read_below(root: &Path) -> Self {
        let groups = cpu_cgroups(root);
        let mut found = Self::default();
        for group in &groups {
            let Some(text) = read_text(&group.join("cpu.stat")) else { continue };
            if let Some(times) = value(&text, "nr_throttled ") {
                found.throttled = Some(found.throttled.unwrap_or(0).saturating_add(times));
            }
            if let Some(time) = throttled_time(&text) {
                let sum = found.throttled_time.unwrap_or_default().saturating_add(time);
                found.throttled_time = Some(sum);
            }
        }
        let of_group = groups.iter().find_map(|group| read_text(&group.join("cpu.pressure")));
        found.is_stalled_of_system = of_group.is_none();
        let pressure = of_group.or_else(|| read_text(&root.join("proc/pressure/cpu")));
        found.stalled_time = pressure.as_deref().and_then(stalled_time);
        found
    }

    /// The difference since `before`.
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
#[path = "cgroup_tests.rs"]
mod tests;

#[cfg(all(test, not(loom)))]
mod throttling_tests {
    use super::super::tests::FakeRoot;
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
