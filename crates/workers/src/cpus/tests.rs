//! Available CPUs, from files of made-up systems and from the system that runs the tests.
#![allow(clippy::unwrap_used, reason = "a test ends where its world is not as it must be")]

use tempfile::TempDir;

use super::*;

/// A directory that stands for the root of another system.
///
/// Removed when dropped.
#[derive(Debug)]
pub(super) struct FakeRoot(TempDir);

impl FakeRoot {
    /// Files of the given paths and contents, and nothing else.
    pub(super) fn new(files: &[(&str, &str)]) -> Self {
        let fake_root = Self(TempDir::new().unwrap());
        for (path, text) in files {
            fake_root.write(path, text);
        }
        fake_root
    }

    /// Writes or changes a file.
    pub(super) fn write(&self, path: &str, text: &str) {
        self.write_bytes(path, text.as_bytes());
    }

    /// The same for what is not text.
    pub(super) fn write_bytes(&self, path: &str, bytes: &[u8]) {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    pub(super) fn root(&self) -> &Path {
        self.0.path()
    }
}

const MOUNT: (&str, &str) =
    ("proc/self/mountinfo", "35 24 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
const GROUP: (&str, &str) = ("proc/self/cgroup", "0::/a\n");

fn set(list: &str) -> CpuSet {
    CpuSet::parse(list).unwrap()
}

fn granted(affinity: &str, files: &[(&str, &str)]) -> AvailableCpus {
    AvailableCpus::read_below(FakeRoot::new(files).root(), set(affinity))
}

#[test]
fn a_system_that_says_nothing_grants_the_mask_on_one_node() {
    let granted = granted("0-3,8", &[]);
    assert_eq!(granted.cpus(), &set("0-3,8"));
    assert_eq!(granted.quota_millicpus(), None);
    assert_eq!(granted.parallelism(), 5);
    assert_eq!(granted.nodes(), [NumaNode { id: 0, cpus: set("0-3,8") }]);
}

#[test]
fn no_mask_and_no_file_still_grant_one_cpu() {
    let granted = granted("", &[]);
    assert_eq!(granted.cpus().len(), 1);
    assert_eq!(granted.parallelism(), 1);
    assert_eq!(AvailableCpus::fixed(CpuSet::new()).parallelism(), 1);
}

#[test]
fn only_what_mask_and_cpuset_and_machine_all_allow_is_granted() {
    let files = [
        GROUP,
        MOUNT,
        ("sys/fs/cgroup/a/cpuset.cpus.effective", "2-9\n"),
        ("sys/devices/system/cpu/online", "0-4,6-63\n"),
    ];
    assert_eq!(granted("0-7", &files).cpus(), &set("2-4,6-7"));
}

#[test]
fn a_bound_that_leaves_nothing_is_out_of_date() {
    let files = [
        GROUP,
        MOUNT,
        ("sys/fs/cgroup/a/cpuset.cpus.effective", "8-9\n"),
        ("sys/devices/system/cpu/online", "0\n"),
    ];
    assert_eq!(granted("0-3", &files).cpus(), &set("0"));
    assert_eq!(granted("2-3", &files).cpus(), &set("2-3"));
    assert_eq!(granted("", &files).cpus(), &set("8-9"));
}

#[test]
fn a_quota_below_the_cpus_limits_the_threads_and_is_rounded_up() {
    let quotas = [("50000", 1), ("100000", 1), ("100001", 2), ("150000", 2), ("300000", 3)];
    for (quota, threads) in quotas {
        let limit = format!("{quota} 100000\n");
        let files = [GROUP, MOUNT, ("sys/fs/cgroup/a/cpu.max", limit.as_str())];
        let granted = granted("0-7", &files);
        assert_eq!(granted.parallelism(), threads, "{quota}");
        assert_eq!(granted.cpus().len(), 8, "a quota takes no CPU away");
    }
}

#[test]
fn a_quota_above_the_cpus_adds_none() {
    let files = [GROUP, MOUNT, ("sys/fs/cgroup/a/cpu.max", "18446744073709551615 1000\n")];
    let granted = granted("0-7", &files);
    assert_eq!(granted.quota_millicpus(), Some(u64::MAX));
    assert_eq!(granted.parallelism(), 8);
}

// A-D, regression 13: node numbers may be sparse.
#[test]
fn sparse_nodes_keep_their_numbers_and_nodes_without_granted_cpus_are_left_out() {
    let files = [
        ("sys/devices/system/node/has_cpu", "0,2,16\n"),
        ("sys/devices/system/node/online", "0-2,16\n"),
        ("sys/devices/system/node/node0/cpulist", "0-3\n"),
        ("sys/devices/system/node/node1/cpulist", "\n"),
        ("sys/devices/system/node/node2/cpulist", "4-7\n"),
        ("sys/devices/system/node/node16/cpulist", "8-11\n"),
    ];
    let granted = granted("2-3,8-9", &files);
    let nodes = [NumaNode { id: 0, cpus: set("2-3") }, NumaNode { id: 16, cpus: set("8-9") }];
    assert_eq!(granted.nodes(), nodes);
}

#[test]
fn every_cpu_lies_on_exactly_one_node_whatever_the_system_says() {
    let files = [
        ("sys/devices/system/node/has_cpu", "0-3\n"),
        ("sys/devices/system/node/node0/cpulist", "0-3\n"),
        ("sys/devices/system/node/node1/cpulist", "2-5\n"),
        ("sys/devices/system/node/node2/cpulist", "nonsense\n"),
    ];
    let granted = granted("0-7", &files);
    let nodes = [NumaNode { id: 0, cpus: set("0-3,6-7") }, NumaNode { id: 1, cpus: set("4-5") }];
    assert_eq!(granted.nodes(), nodes);
}

#[test]
fn reading_again_sees_what_changed() {
    let fake_root = FakeRoot::new(&[GROUP, MOUNT, ("sys/devices/system/cpu/online", "0-3")]);
    let before = AvailableCpus::read_below(fake_root.root(), set("0-3"));
    assert_eq!(AvailableCpus::read_below(fake_root.root(), set("0-3")), before);
    fake_root.write("sys/devices/system/cpu/online", "0-2");
    assert_eq!(AvailableCpus::read_below(fake_root.root(), set("0-3")).cpus(), &set("0-2"));
    fake_root.write("sys/fs/cgroup/a/cpu.max", "100000 100000");
    let after = AvailableCpus::read_below(fake_root.root(), set("0-3"));
    assert_ne!(after, before);
    assert_eq!(after.parallelism(), 1);
}

#[test]
fn fixed_cpus_are_granted_as_they_are() {
    let granted = AvailableCpus::fixed(set("1,5"));
    assert_eq!(granted.cpus(), &set("1,5"));
    assert_eq!(granted.quota_millicpus(), None);
    assert_eq!(granted.parallelism(), 2);
}

#[test]
fn this_system_grants_no_cpu_that_the_mask_excludes() {
    let granted = AvailableCpus::read();
    assert!(granted.cpus().is_subset(&CpuSet::of_process()), "{granted:?}");
    assert!((1..=granted.cpus().len()).contains(&granted.parallelism()));
    let on_nodes: usize = granted.nodes().iter().map(|node| node.cpus.len()).sum();
    assert_eq!(on_nodes, granted.cpus().len());
}

#[test]
fn numbers_of_a_set_are_those_that_were_put_in() {
    for numbers in [&[][..], &[0], &[63], &[64], &[0, 63, 64, 200], &[1000, 4095, 65_535]] {
        let set: CpuSet = numbers.iter().copied().collect();
        assert!(set.iter().eq(numbers.iter().copied()), "{set:?}");
        assert_eq!(set.len(), numbers.len());
    }
}

#[test]
fn a_union_has_the_numbers_of_both_sets() {
    let sets =
        ["", "0", "1-3", "63-64", "200", "0,200,1000"].map(|list| CpuSet::parse(list).unwrap());
    for one in &sets {
        for other in &sets {
            let union = one.union(other);
            assert_eq!(union, one.iter().chain(other.iter()).collect());
            assert_eq!(union, other.union(one));
        }
    }
}
