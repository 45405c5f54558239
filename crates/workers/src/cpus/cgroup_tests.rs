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
