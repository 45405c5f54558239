//! What control groups do to this process's CPUs: limits and throttling, version 1 and 2, nested,
//! mixed, and seen from inside of a container. It keeps nothing. What is absent or malformed limits
//! nothing.
#![forbid(unsafe_code)]

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
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
        if membership.contains("cpu") {
            let groups = membership.groups(root, &mounts, "cpu");
            let quotas = groups.iter().filter_map(|group| quota_of(group));
            limits.quota_millicpus = quotas.chain(limits.quota_millicpus).min();
        }
        if membership.contains("cpuset") {
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
        memberships.lines().filter_map(CgroupMembership::parse).filter(|one| one.contains("cpu"));
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

    fn contains(&self, controller: &str) -> bool {
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
    /// Names the groups whose counters these are.
    account: u64,
}

impl CpuThrottling {
    /// Reads it from the system: a few files for each group.
    #[must_use]
    pub fn read() -> Self {
        Self::read_below(Path::new("/"))
    }

    fn read_below(root: &Path) -> Self {
        let groups = cpu_cgroups(root);
        let mut hasher = DefaultHasher::new();
        groups.hash(&mut hasher);
        let mut found = Self { account: hasher.finish(), ..Self::default() };
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

    /// The difference since `before`. None for what was not counted then, and for all that groups count if the process
    /// has moved to other ones meanwhile.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let is_same = self.account == before.account;
        let time = |now: Option<Duration>, then: Option<Duration>| Some(now?.saturating_sub(then?));
        let is_system = self.is_stalled_of_system && before.is_stalled_of_system;
        let is_group = !self.is_stalled_of_system && !before.is_stalled_of_system && is_same;
        let throttled = self.throttled.zip(before.throttled);
        Self {
            throttled: throttled.filter(|_| is_same).map(|(now, then)| now.saturating_sub(then)),
            throttled_time: time(self.throttled_time, before.throttled_time).filter(|_| is_same),
            stalled_time: time(self.stalled_time, before.stalled_time)
                .filter(|_| is_system || is_group),
            ..*self
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
    //! Control groups from fixtures: versions 1 and 2, mixed, nested, in containers, missing,
    //! malformed.
    #![allow(clippy::unwrap_used, reason = "a test ends where its world is not as it must be")]

    use proptest::prelude::*;

    use super::super::tests::FakeRoot;
    use super::*;

    /// As systemd mounts version 2 alone.
    const V2_MOUNT: &str = "\
24 1 254:1 / / rw,relatime shared:1 - ext4 /dev/root rw
25 24 0:22 / /proc rw,nosuid shared:5 - proc proc rw
35 24 0:30 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate
";

    /// As systemd mounts version 1, here with version 2 beside it that has no controllers.
    const HYBRID_MOUNTS: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw,nsdelegate
33 31 0:30 / /sys/fs/cgroup/systemd rw shared:11 - cgroup cgroup rw,xattr,name=systemd
34 31 0:31 / /sys/fs/cgroup/cpu,cpuacct rw shared:15 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/cpuset rw shared:16 - cgroup cgroup rw,cpuset
";

    fn quota(files: &[(&str, &str)]) -> Option<u64> {
        read(FakeRoot::new(files).root()).quota_millicpus
    }

    fn cpus(files: &[(&str, &str)]) -> Option<String> {
        read(FakeRoot::new(files).root()).cpus.map(|set| set.to_string())
    }

    #[test]
    fn a_system_without_control_groups_limits_nothing() {
        assert_eq!(read(FakeRoot::new(&[]).root()), CgroupLimits::default());
    }

    #[test]
    fn memberships_without_any_mount_limit_nothing() {
        let files = [("proc/self/cgroup", "4:cpu:/a\n3:cpuset:/a\n0::/a\n")];
        assert_eq!(read(FakeRoot::new(&files).root()), CgroupLimits::default());
    }

    #[test]
    fn version_2_takes_the_least_quota_of_all_groups_above() {
        let mut files = vec![
            ("proc/self/cgroup", "0::/a.slice/b.service/leaf\n"),
            ("proc/self/mountinfo", V2_MOUNT),
            ("sys/fs/cgroup/a.slice/cpu.max", "400000 100000\n"),
            ("sys/fs/cgroup/a.slice/b.service/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/a.slice/b.service/leaf/cpu.max", "max 100000\n"),
        ];
        assert_eq!(quota(&files), Some(1500));
        files.push(("sys/fs/cgroup/a.slice/cpu.max", "50000 100000\n"));
        assert_eq!(quota(&files), Some(500));
        files.push(("sys/fs/cgroup/a.slice/b.service/leaf/cpu.max", "20000 100000\n"));
        assert_eq!(quota(&files), Some(200));
    }

    #[test]
    fn version_2_without_a_quota_anywhere_limits_nothing() {
        let files = [
            ("proc/self/cgroup", "0::/a\n"),
            ("proc/self/mountinfo", V2_MOUNT),
            ("sys/fs/cgroup/a/cpu.max", "max 100000\n"),
        ];
        assert_eq!(quota(&files), None);
    }

    #[test]
    fn version_2_takes_the_cpuset_of_the_nearest_group_that_has_one() {
        let mut files = vec![
            ("proc/self/cgroup", "0::/a/b\n"),
            ("proc/self/mountinfo", V2_MOUNT),
            ("sys/fs/cgroup/cpuset.cpus.effective", "0-7\n"),
            ("sys/fs/cgroup/a/cpuset.cpus.effective", "2-3\n"),
        ];
        assert_eq!(cpus(&files).as_deref(), Some("2-3"));
        // What was asked for is not what was given.
        files.push(("sys/fs/cgroup/a/b/cpuset.cpus", "3,9\n"));
        files.push(("sys/fs/cgroup/a/b/cpuset.cpus.effective", "3\n"));
        assert_eq!(cpus(&files).as_deref(), Some("3"));
    }

    #[test]
    fn version_1_has_a_hierarchy_for_each_controller() {
        let mut files = vec![
            ("proc/self/cgroup", "9:name=systemd:/\n4:cpuset:/sets/one\n3:cpu,cpuacct:/time/one\n"),
            ("proc/self/mountinfo", HYBRID_MOUNTS),
            ("sys/fs/cgroup/cpu,cpuacct/time/cpu.cfs_quota_us", "250000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/time/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/time/one/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu,cpuacct/time/one/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpuset/sets/one/cpuset.cpus", "0-5\n"),
        ];
        assert_eq!(quota(&files), Some(2500));
        assert_eq!(cpus(&files).as_deref(), Some("0-5"));
        files.push(("sys/fs/cgroup/cpuset/sets/one/cpuset.effective_cpus", "0-1,5\n"));
        assert_eq!(cpus(&files).as_deref(), Some("0-1,5"));
        files.push(("sys/fs/cgroup/cpu,cpuacct/time/one/cpu.cfs_quota_us", "100000\n"));
        assert_eq!(quota(&files), Some(1000));
    }

    #[test]
    fn a_mixed_system_obeys_the_version_that_has_the_controller() {
        let mut files = vec![
            ("proc/self/cgroup", "4:cpuset:/one\n3:cpu,cpuacct:/one\n1:name=systemd:/u\n0::/u\n"),
            ("proc/self/mountinfo", HYBRID_MOUNTS),
            ("sys/fs/cgroup/unified/u/cgroup.controllers", ""),
            ("sys/fs/cgroup/cpu,cpuacct/one/cpu.cfs_quota_us", "300000"),
            ("sys/fs/cgroup/cpu,cpuacct/one/cpu.cfs_period_us", "100000"),
            ("sys/fs/cgroup/cpuset/one/cpuset.cpus", "1"),
        ];
        assert_eq!(quota(&files), Some(3000));
        assert_eq!(cpus(&files).as_deref(), Some("1"));
        // And the other way round: the time in version 2, the set in version 1.
        files.retain(|(path, _)| !path.contains("cpu,cpuacct"));
        files.push(("sys/fs/cgroup/unified/u/cpu.max", "70000 100000"));
        assert_eq!(quota(&files), Some(700));
        assert_eq!(cpus(&files).as_deref(), Some("1"));
    }

    #[test]
    fn a_container_that_sees_its_subtree_only_reads_that_subtree() {
        let mounts = "\
40 1 0:31 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu
41 1 0:32 /docker/abc /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset
";
        let files = [
            ("proc/self/cgroup", "3:cpuset:/docker/abc/sub\n2:cpu:/docker/abc/sub\n"),
            ("proc/self/mountinfo", mounts),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000"),
            ("sys/fs/cgroup/cpu/sub/cpu.cfs_quota_us", "-1"),
            ("sys/fs/cgroup/cpu/sub/cpu.cfs_period_us", "100000"),
            ("sys/fs/cgroup/cpuset/cpuset.cpus", "4-5"),
            // Paths as they would be read if the mount's root were overlooked.
            ("sys/fs/cgroup/cpu/docker/abc/sub/cpu.cfs_quota_us", "1000"),
            ("sys/fs/cgroup/cpu/docker/abc/sub/cpu.cfs_period_us", "100000"),
        ];
        assert_eq!(quota(&files), Some(500));
        assert_eq!(cpus(&files).as_deref(), Some("4-5"));
    }

    #[test]
    fn a_group_that_no_mount_shows_is_the_top_of_the_mount() {
        for path in ["/../../other", "/outside/of/it", "/a/../../etc"] {
            let membership = format!("0::{path}\n");
            let mounts = V2_MOUNT.replace("0:30 / ", "0:30 /inside ");
            let files = [
                ("proc/self/cgroup", membership.as_str()),
                ("proc/self/mountinfo", &mounts),
                ("sys/fs/cgroup/cpu.max", "30000 100000"),
                ("sys/fs/other/cpu.max", "10000 100000"),
                ("etc/cpu.max", "10000 100000"),
            ];
            assert_eq!(quota(&files), Some(300), "{path}");
        }
    }

    #[test]
    fn a_path_that_climbs_stays_within_the_mount() {
        let files = [
            ("proc/self/cgroup", "0::/../../../etc\n"),
            ("proc/self/mountinfo", V2_MOUNT),
            ("sys/fs/cgroup/cpu.max", "30000 100000"),
            ("etc/cpu.max", "10000 100000"),
        ];
        assert_eq!(quota(&files), Some(300));
    }

    #[test]
    fn of_two_mounts_the_one_that_shows_more_groups_is_read() {
        let mounts = "\
40 1 0:31 /a/b /inner rw - cgroup2 none rw
41 1 0:31 / /whole rw - cgroup2 none rw
42 1 0:31 /elsewhere /other rw - cgroup2 none rw
";
        let files = [
            ("proc/self/cgroup", "0::/a/b\n"),
            ("proc/self/mountinfo", mounts),
            ("inner/cpu.max", "900000 100000"),
            ("other/cpu.max", "10000 100000"),
            ("whole/a/b/cpu.max", "900000 100000"),
            ("whole/a/cpu.max", "200000 100000"),
        ];
        assert_eq!(quota(&files), Some(2000));
    }

    #[test]
    fn escaped_mount_points_are_found() {
        let mounts = "40 1 0:31 / /odd\\040place\\134040\\011x rw - cgroup2 none rw\n";
        let files = [
            ("proc/self/cgroup", "0::/with space:and colon\n"),
            ("proc/self/mountinfo", mounts),
            ("odd place\\040\tx/with space:and colon/cpu.max", "100000 100000"),
        ];
        assert_eq!(quota(&files), Some(1000));
    }

    #[test]
    fn one_mount_that_is_not_text_does_not_hide_the_others() {
        let fake_root = FakeRoot::new(&[
            ("proc/self/cgroup", "0::/a\n"),
            ("sys/fs/cgroup/a/cpu.max", "100000 100000"),
        ]);
        let mut mounts = b"39 1 0:9 / /odd\xff\xfe rw - ext4 /dev/x rw\n".to_vec();
        mounts.extend_from_slice(V2_MOUNT.as_bytes());
        fake_root.write_bytes("proc/self/mountinfo", &mounts);
        assert_eq!(read(fake_root.root()).quota_millicpus, Some(1000));
    }

    #[test]
    fn version_1_without_prefixes_is_understood() {
        let mounts = "40 1 0:31 / /dev/cpuset rw - cgroup none rw,cpuset,noprefix\n";
        let files = [
            ("proc/self/cgroup", "3:cpuset:/top-app\n"),
            ("proc/self/mountinfo", mounts),
            ("dev/cpuset/top-app/cpus", "0-7"),
            ("dev/cpuset/top-app/effective_cpus", "0-3"),
        ];
        assert_eq!(cpus(&files).as_deref(), Some("0-3"));
    }

    #[test]
    fn a_malformed_quota_is_no_quota() {
        let texts = [
            "",
            "\n",
            "max",
            "100000",
            "100000 ",
            " 100000",
            "x 100000",
            "-1 100000",
            "100000 0",
            "0 100000",
            "100000 -5",
            "1e5 100000",
            "100000 100000 100000",
            "18446744073709551616 1",
            "18446744073709551615 1",
            "\0\0\0",
            "100000\t100000",
        ];
        for text in texts {
            let files = [
                ("proc/self/cgroup", "0::/a\n"),
                ("proc/self/mountinfo", V2_MOUNT),
                ("sys/fs/cgroup/a/cpu.max", text),
            ];
            assert_eq!(quota(&files), None, "{text:?}");
        }
    }

    #[test]
    fn quotas_are_rounded_up_and_cannot_overflow() {
        assert_eq!(millicpus(100_001, 100_000), Some(1001));
        assert_eq!(millicpus(1, u64::MAX), Some(1));
        assert_eq!(millicpus(u64::MAX, u64::MAX), Some(1000));
        assert_eq!(millicpus(u64::MAX, 1000), Some(u64::MAX));
        assert_eq!(millicpus(u64::MAX, 999), None);
    }

    #[test]
    fn a_malformed_cpuset_limits_nothing() {
        for text in ["", "\n", "all", "3-1", "0-99999999999", "-", "0,,1", "+1"] {
            let files = [
                ("proc/self/cgroup", "0::/a\n"),
                ("proc/self/mountinfo", V2_MOUNT),
                ("sys/fs/cgroup/a/cpuset.cpus.effective", text),
            ];
            assert_eq!(cpus(&files), None, "{text:?}");
        }
    }

    #[test]
    fn a_directory_in_the_place_of_a_file_is_no_answer() {
        let files = [
            ("proc/self/cgroup", "0::/a\n"),
            ("proc/self/mountinfo", V2_MOUNT),
            ("sys/fs/cgroup/a/cpu.max/x", "100000 100000"),
            ("sys/fs/cgroup/a/cpuset.cpus.effective/x", "1"),
        ];
        assert_eq!(read(FakeRoot::new(&files).root()), CgroupLimits::default());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_text_whatever_makes_the_reader_panic(
            membership in "([0-9]?:[a-z,=]*:[/.a ]{0,9}\n|\\PC{0,30}\n){0,4}",
            mounts in "([0-9 :/]{0,9} / /[a-c\\\\0-9]{0,5} rw - cgroup2? x rw,cpu\n|\\PC{0,40}\n){0,4}",
            limit in "(max|[0-9]{0,25}) [0-9]{0,25}|\\PC{0,20}",
        ) {
            let fake_root = FakeRoot::new(&[
                ("proc/self/cgroup", &membership),
                ("proc/self/mountinfo", &mounts),
                ("cpu.max", &limit),
                ("a/cpu.max", &limit),
                ("a/cpuset.cpus", &limit),
            ]);
            let limits = read(fake_root.root());
            prop_assert_ne!(limits.quota_millicpus, Some(0));
            prop_assert!(limits.cpus.is_none_or(|cpus| !cpus.is_empty()));
        }
    }

    /// What is read of throttling on a system of these files.
    fn throttling(files: &[(&str, &str)]) -> CpuThrottling {
        CpuThrottling::read_below(FakeRoot::new(files).root())
    }

    #[test]
    fn a_system_that_says_nothing_throttles_nothing() {
        let nothing = CpuThrottling { is_stalled_of_system: true, ..CpuThrottling::default() };
        let found = throttling(&[]);
        assert_eq!(found, CpuThrottling { account: found.account, ..nothing });
        let odd = [("proc/self/cgroup", "0::/\n"), ("proc/pressure/cpu", "some avg10=x total=\n")];
        let found = throttling(&odd);
        assert_eq!(found, CpuThrottling { account: found.account, ..nothing });
    }

    #[test]
    fn only_what_came_since_counts() {
        let milli = |count| Some(Duration::from_millis(count));
        let counted = |throttled, stalled| CpuThrottling {
            throttled: Some(throttled),
            throttled_time: milli(throttled),
            stalled_time: milli(stalled),
            ..CpuThrottling::default()
        };
        let (then, now) = (counted(3, 10), counted(5, 30));
        assert_eq!(now.since(&then), counted(2, 20));
        assert_eq!(then.since(&now), counted(0, 0));
        // What was not counted then began at an unknown number.
        assert_eq!(now.since(&CpuThrottling::default()), CpuThrottling::default());
        // Moved to another group meanwhile: the accounts cannot be compared, but for that of the system.
        let moved = CpuThrottling { account: 1, ..then };
        assert_eq!(now.since(&moved), CpuThrottling::default());
        let system = |account, one| CpuThrottling { is_stalled_of_system: true, account, ..one };
        let since = system(0, now).since(&system(1, then));
        assert_eq!((since.throttled, since.stalled_time), (None, milli(20)));
        assert_eq!(now.since(&system(0, then)).stalled_time, None);
    }

    #[test]
    fn groups_of_version_2_are_added_up() {
        let found = throttling(&[
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
            account: found.account,
        };
        assert_eq!(found, wanted);
    }

    #[test]
    fn version_1_counts_in_nanoseconds_and_the_system_stands_in_for_the_group() {
        let found = throttling(&[
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
