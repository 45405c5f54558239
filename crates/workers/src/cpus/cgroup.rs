//! The limits that control groups set on CPUs, version 1 and 2, nested, mixed, and seen from inside a
//! container. It keeps nothing, and whatever is absent or malformed limits nothing. Called by
//! [`super::AvailableCpus`] and [`super::CpuThrottling`].

use std::path::{Component, Path, PathBuf};

use super::{CpuSet, file};

/// What the groups of this process limit.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CgroupLimits {
    /// The least CPU time that a group or one above it leaves, in thousandths of a CPU, rounded up.
    pub(super) quota_millicpus: Option<u64>,
    /// The CPUs that the group may use.
    pub(super) cpus: Option<CpuSet>,
}

/// Reads the limits of this process below `root`, which stands for the root directory.
pub(super) fn read(root: &Path) -> CgroupLimits {
    let memberships = file::read_text(&root.join("proc/self/cgroup")).unwrap_or_default();
    let mounts = file::read_text(&root.join("proc/self/mountinfo")).unwrap_or_default();
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

/// The directories of the groups that govern this process's CPU time, its own first, then those above it.
pub(super) fn of_cpu_time(root: &Path) -> Vec<PathBuf> {
    let memberships = file::read_text(&root.join("proc/self/cgroup")).unwrap_or_default();
    let mounts = file::read_text(&root.join("proc/self/mountinfo")).unwrap_or_default();
    let mounts: Vec<CgroupMount<'_>> = mounts.lines().filter_map(CgroupMount::parse).collect();
    let of_cpu =
        memberships.lines().filter_map(CgroupMembership::parse).filter(|one| one.has("cpu"));
    of_cpu.flat_map(|membership| membership.groups(root, &mounts, "cpu")).collect()
}

/// A line of /proc/self/cgroup: `4:cpu,cpuacct:/some/group`, or `0::/some/group` of version 2.
struct CgroupMembership<'a> {
    /// Empty: version 2, which has all of them.
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

    /// The directories of the group and of those above it that can be seen, the group itself first.
    fn groups(&self, root: &Path, mounts: &[CgroupMount<'_>], controller: &str) -> Vec<PathBuf> {
        let of_controller = mounts.iter().filter(|mount| {
            if self.controllers.is_empty() {
                mount.kind == "cgroup2"
            } else {
                mount.kind == "cgroup" && mount.options.split(',').any(|name| name == controller)
            }
        });
        // Where a hierarchy is mounted more than once, the mount that shows most of what lies above
        // the group. A group that no mount shows (its path is told from outside of this container)
        // is taken for the top of the mount.
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
    /// The directory within the hierarchy that is shown.
    root: PathBuf,
    /// Where it is shown.
    point: PathBuf,
    kind: &'a str,
    /// Of the hierarchy: the names of its controllers are among them.
    options: &'a str,
}

impl<'a> CgroupMount<'a> {
    /// None for what is no control group, too.
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
    let (quota, period) = match file::read_text(&group.join("cpu.max")) {
        Some(text) => {
            let (quota, period) = text.trim().split_once(' ')?;
            (quota.parse().ok()?, period.parse().ok()?)
        }
        None => {
            let number = |name| file::read_text(&group.join(name))?.trim().parse().ok();
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
        let set = CpuSet::parse(&file::read_text(&group.join(name))?).ok()?;
        (!set.is_empty()).then_some(set)
    })
}

#[cfg(all(test, not(loom)))]
#[path = "cgroup_tests.rs"]
mod tests;
