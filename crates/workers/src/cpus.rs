//! The CPUs that are available to this process: CPUs, a quota of their time, NUMA nodes. It owns
//! nothing: every call reads the system again, since all of it may change while the process runs.
//! Thread pools call it for their sizes, and the per-CPU workers to follow CPUs that come and go.

mod cgroup;
mod set;

pub use cgroup::CpuThrottling;
pub use set::{CPUS_MAX, CpuSet};

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use rustix::thread::sched_getaffinity;

/// More than any file of /proc or /sys that holds a list or a number: a list of 8192 CPUs, every
/// other one set, has 20 KB. A table of mounts with more than 20 000 lines is too long.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// A quota counts CPUs in thousandths.
const MILLI: u64 = 1000;

/// A snapshot of the CPUs that are available to this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AvailableCpus {
    cpus: CpuSet,
    quota_millicpus: Option<u64>,
    nodes: Vec<NumaNode>,
}

/// A NUMA node and those of its CPUs that are available.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumaNode {
    /// The system's number; numbers may be missing between two nodes.
    pub id: usize,
    /// Never empty.
    pub cpus: CpuSet,
}

impl AvailableCpus {
    /// Reads them from the system. It never fails: a file that is absent, unreadable or malformed
    /// limits nothing.
    ///
    /// It opens some ten files, more where control groups are nested: call it at the start and from
    /// time to time, not for every request.
    #[must_use]
    pub fn read() -> Self {
        Self::read_below(Path::new("/"), CpuSet::of_process())
    }

    /// Just these CPUs, without a quota, on the nodes where the system has them. For the empty set,
    /// the CPU on which the caller runs.
    #[must_use]
    pub fn fixed(cpus: CpuSet) -> Self {
        let cpus = if cpus.is_empty() { current_cpu_set() } else { cpus };
        let nodes = numa_nodes(Path::new("/"), &cpus);
        Self { cpus, quota_millicpus: None, nodes }
    }

    /// The available CPUs: at least one.
    #[must_use]
    pub const fn cpus(&self) -> &CpuSet {
        &self.cpus
    }

    /// The CPU time that the process gets, in thousandths of a CPU, rounded up, at least 1; None if
    /// nothing limits it. It may be more than all CPUs have.
    #[must_use]
    pub const fn quota_millicpus(&self) -> Option<u64> {
        self.quota_millicpus
    }

    /// How many threads can run at once: the number of CPUs, or the quota rounded up to whole CPUs
    /// if that is less. At least 1.
    #[must_use]
    pub fn parallelism(&self) -> usize {
        let quota = self.quota_millicpus.map_or(u64::MAX, |quota| quota.div_ceil(MILLI));
        let quota = usize::try_from(quota).unwrap_or(usize::MAX);
        self.cpus.len().min(quota).max(1)
    }

    /// The nodes, ascending; each available CPU is on exactly one. One node where the system knows
    /// none.
    #[must_use]
    pub fn nodes(&self) -> &[NumaNode] {
        &self.nodes
    }

    /// [`read`](Self::read) with `root` for the root directory, so that tests can read other
    /// systems.
    fn read_below(root: &Path, affinity: CpuSet) -> Self {
        let limits = cgroup::read(root);
        let cpus = bounded(affinity, limits.cpus);
        // The kernel leaves CPUs that are offline out of the mask, and a container may show other numbers.
        let cpus = if cpus.is_empty() { online(root).unwrap_or_default() } else { cpus };
        let cpus = if cpus.is_empty() { current_cpu_set() } else { cpus };
        let nodes = numa_nodes(root, &cpus);
        Self { cpus, quota_millicpus: limits.quota_millicpus, nodes }
    }
}

/// The CPUs within a bound. Mask and bounds are read one after the other and may change meanwhile:
/// a bound that leaves nothing is out of date, and the mask, which is read first, decides.
fn bounded(cpus: CpuSet, bound: Option<CpuSet>) -> CpuSet {
    let Some(bound) = bound else { return cpus };
    if cpus.is_empty() {
        return bound;
    }
    let both = cpus.intersection(&bound);
    if both.is_empty() { cpus } else { both }
}

fn current_cpu_set() -> CpuSet {
    CpuSet::from_iter([Some(current()).filter(|cpu| *cpu < CPUS_MAX).unwrap_or(0)])
}

/// The CPU on which the caller runs now. Unless the thread is bound, it may be another one by the
/// time the caller looks. `usize::MAX`, the number of no CPU, if the system does not say.
#[must_use]
pub fn current() -> usize {
    // There the vDSO answers, which no filter refuses.
    if cfg!(target_arch = "x86_64") {
        rustix::thread::sched_getcpu()
    } else {
        sys::current_cpu().unwrap_or(usize::MAX)
    }
}

/// Whether the calling thread is bound to `cpu` and to no other. One system call.
///
/// When the last CPU of a thread's mask goes offline, the kernel silently widens the mask; a bound
/// worker calls this to notice it.
#[must_use]
pub fn is_bound_to(cpu: usize) -> bool {
    match sched_getaffinity(None) {
        Ok(mask) if cpu < rustix::thread::CpuSet::MAX_CPU => mask.count() == 1 && mask.is_set(cpu),
        _ => CpuSet::of_current_thread() == CpuSet::from_iter([cpu]),
    }
}

/// The CPUs that are online; None if the system does not say.
fn online(root: &Path) -> Option<CpuSet> {
    cpu_list(&root.join("sys/devices/system/cpu/online"))
}

/// Divides `cpus` among the nodes, so that each is on exactly one: nodes ascending, none without a
/// CPU, with the system's numbers. A CPU that no node names is on the first.
fn numa_nodes(root: &Path, cpus: &CpuSet) -> Vec<NumaNode> {
    let base = root.join("sys/devices/system/node");
    let mut rest = cpus.clone();
    let mut nodes = Vec::new();
    for id in cpu_list(&base.join("has_cpu")).unwrap_or_default().iter() {
        let local = cpu_list(&base.join(format!("node{id}/cpulist"))).unwrap_or_default();
        let local = local.intersection(&rest);
        if !local.is_empty() {
            rest = rest.difference(&local);
            nodes.push(NumaNode { id, cpus: local });
        }
    }
    match nodes.first_mut() {
        Some(first) => first.cpus = first.cpus.union(&rest),
        None => nodes.push(NumaNode { id: 0, cpus: rest }),
    }
    nodes
}

fn cpu_list(path: &Path) -> Option<CpuSet> {
    CpuSet::parse(&read_text(path)?).ok().filter(|set| !set.is_empty())
}

/// The text of a small file of the kernel. None if it is absent, unreadable or too long. Bytes that
/// are not UTF-8 are replaced: one odd name among the mounts must not hide the others.
fn read_text(path: &Path) -> Option<String> {
    // These files are short; a buffer that grows from nothing takes several reads for each.
    let mut bytes = Vec::with_capacity(4096);
    let length = File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let is_whole = u64::try_from(length).ok()? < FILE_BYTES_MAX;
    is_whole.then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// The system calls that no safe binding covers: scheduling policy, affinity masks wider than 1024 CPUs, and calls that may
/// fail although bindings take them for infallible. Called here and by `priority`.
pub(crate) mod sys {
    #![allow(unsafe_code, reason = "these calls have no safe binding")]

    use std::ffi::{c_int, c_long, c_uint};

    use rustix::io::Errno;

    /// `SCHED_OTHER`.
    pub(crate) const POLICY_OTHER: c_int = 0;
    /// `SCHED_FIFO`.
    pub(crate) const POLICY_FIFO: c_int = 1;
    /// `SCHED_RR`.
    pub(crate) const POLICY_ROUND_ROBIN: c_int = 2;
    /// `SCHED_BATCH`.
    pub(crate) const POLICY_BATCH: c_int = 3;
    /// `SCHED_IDLE`.
    pub(crate) const POLICY_IDLE: c_int = 5;
    /// `SCHED_DEADLINE`.
    pub(crate) const POLICY_DEADLINE: c_int = 6;
    /// `SCHED_RESET_ON_FORK`: threads and processes that this thread starts begin as ordinary ones.
    pub(crate) const RESET_ON_FORK: c_int = 0x4000_0000;

    /// `RLIMIT_RTTIME`.
    const RTTIME: c_long = 15;
    /// `RLIM64_INFINITY`.
    const UNLIMITED: u64 = u64::MAX;

    /// The numbers of `sched_setscheduler`, `sched_getscheduler`, `sched_getparam`, `sched_setaffinity`, `prlimit64` and
    /// `getcpu`.
    #[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
    const NUMBERS: Option<[c_long; 6]> = Some([144, 145, 143, 203, 302, 309]);
    #[cfg(any(target_arch = "aarch64", target_arch = "riscv64", target_arch = "loongarch64"))]
    const NUMBERS: Option<[c_long; 6]> = Some([119, 120, 121, 122, 261, 168]);
    #[cfg(not(any(
        all(target_arch = "x86_64", target_pointer_width = "64"),
        target_arch = "aarch64",
        target_arch = "riscv64",
        target_arch = "loongarch64"
    )))]
    const NUMBERS: Option<[c_long; 6]> = None;

    unsafe extern "C" {
        // The C library's own sched_setscheduler answers ENOSYS in musl, so it is not the one to call.
        fn syscall(number: c_long, ...) -> c_long;
    }

    /// Gives the calling thread `policy` (with flags) at `priority`.
    pub(crate) fn set_scheduler(policy: c_int, priority: c_int) -> Result<(), Errno> {
        let [number, ..] = NUMBERS.ok_or(Errno::NOSYS)?;
        // The kernel's struct sched_param is this one int.
        let parameter: c_int = priority;
        // SAFETY: the number is this architecture's sched_setscheduler(pid, policy, *const sched_param)
        // (NUMBERS); the kernel reads one int through the pointer, which is to a local that outlives the
        // call, and writes nothing.
        let result = unsafe {
            syscall(number, c_long::from(0_u8), c_long::from(policy), &raw const parameter)
        };
        checked(result).map(drop)
    }

    /// The calling thread's policy without its flags.
    pub(crate) fn scheduler() -> Result<c_int, Errno> {
        let [_, number, ..] = NUMBERS.ok_or(Errno::NOSYS)?;
        // SAFETY: the number is this architecture's sched_getscheduler(pid) (NUMBERS), which takes no
        // pointer.
        let result = unsafe { syscall(number, c_long::from(0_u8)) };
        let policy = c_int::try_from(checked(result)?).map_err(|_| Errno::RANGE)?;
        Ok(policy & !RESET_ON_FORK)
    }

    /// The calling thread's real-time priority; 0 under an ordinary policy.
    pub(crate) fn real_time_priority() -> Result<c_int, Errno> {
        let [_, _, number, ..] = NUMBERS.ok_or(Errno::NOSYS)?;
        let mut priority: c_int = 0;
        // SAFETY: the number is this architecture's sched_getparam(pid, *mut sched_param) (NUMBERS); the kernel writes
        // struct sched_param, which is one int, to a local that outlives the call.
        let result = unsafe { syscall(number, c_long::from(0_u8), &raw mut priority) };
        checked(result)?;
        Ok(priority)
    }

    /// The CPU on which the calling thread runs. A binding that takes the call for infallible would return what was on the
    /// stack where a system call filter refuses it.
    pub(crate) fn current_cpu() -> Result<usize, Errno> {
        let [.., number] = NUMBERS.ok_or(Errno::NOSYS)?;
        let mut cpu: c_uint = 0;
        let nothing = std::ptr::null_mut::<c_uint>();
        // SAFETY: the number is this architecture's getcpu(*mut cpu, *mut node, *mut cache) (NUMBERS); the kernel writes one
        // unsigned int to a local that outlives the call, and nothing through null pointers.
        let result = unsafe { syscall(number, &raw mut cpu, nothing, nothing) };
        checked(result)?;
        usize::try_from(cpu).map_err(|_| Errno::RANGE)
    }

    /// Restricts the calling thread to the CPUs whose bits are set, CPU 0 in the lowest bit of the first
    /// word. Bits past the kernel's own limit are ignored by it.
    pub(crate) fn set_affinity(mask: &[u64]) -> Result<(), Errno> {
        let [_, _, _, number, ..] = NUMBERS.ok_or(Errno::NOSYS)?;
        // SAFETY: the number is this architecture's sched_setaffinity(pid, length in bytes, *const mask)
        // (NUMBERS; all of them have 64-bit words); the kernel reads at most size_of_val(mask) bytes
        // through the pointer, which is to a slice borrowed over the call, and writes nothing.
        let result =
            unsafe { syscall(number, c_long::from(0_u8), size_of_val(mask), mask.as_ptr()) };
        checked(result).map(drop)
    }

    /// Whether the process has a limit on the time that a real-time thread computes without sleeping. A binding that takes
    /// reading it for infallible would return what was on the stack where a system call filter refuses the call.
    pub(crate) fn has_real_time_limit() -> Result<bool, Errno> {
        let [_, _, _, _, number, _] = NUMBERS.ok_or(Errno::NOSYS)?;
        let mut limits = [UNLIMITED; 2];
        // SAFETY: the number is this architecture's prlimit64(pid, resource, *const new, *mut old) (NUMBERS); without new
        // limits it changes nothing, and the kernel writes struct rlimit64, two words, to a local that outlives the call.
        let result = unsafe {
            syscall(
                number,
                c_long::from(0_u8),
                RTTIME,
                std::ptr::null::<u64>(),
                limits.as_mut_ptr(),
            )
        };
        checked(result)?;
        Ok(limits.first() != Some(&UNLIMITED))
    }

    /// The C library's convention: -1, and the number in errno.
    fn checked(result: c_long) -> Result<c_long, Errno> {
        if result >= 0 {
            return Ok(result);
        }
        let number = std::io::Error::last_os_error().raw_os_error();
        Err(number.map_or(Errno::NOSYS, Errno::from_raw_os_error))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
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

    fn available(affinity: &str, files: &[(&str, &str)]) -> AvailableCpus {
        AvailableCpus::read_below(FakeRoot::new(files).root(), set(affinity))
    }

    #[test]
    fn a_system_that_says_nothing_grants_the_mask_on_one_node() {
        let available = available("0-3,8", &[]);
        assert_eq!(available.cpus(), &set("0-3,8"));
        assert_eq!(available.quota_millicpus(), None);
        assert_eq!(available.parallelism(), 5);
        assert_eq!(available.nodes(), [NumaNode { id: 0, cpus: set("0-3,8") }]);
    }

    #[test]
    fn no_mask_and_no_file_still_grant_one_cpu() {
        let available = available("", &[]);
        assert_eq!(available.cpus().len(), 1);
        assert_eq!(available.parallelism(), 1);
        assert_eq!(AvailableCpus::fixed(CpuSet::new()).parallelism(), 1);
    }

    #[test]
    fn only_what_mask_and_cpuset_both_allow_is_available() {
        let files = [
            GROUP,
            MOUNT,
            ("sys/fs/cgroup/a/cpuset.cpus.effective", "2-9\n"),
            // The numbers of a container, of no account: the mask is the kernel's.
            ("sys/devices/system/cpu/online", "0-1\n"),
        ];
        assert_eq!(available("0-7", &files).cpus(), &set("2-7"));
        assert_eq!(available("", &files).cpus(), &set("2-9"));
        assert_eq!(available("", &files[3..]).cpus(), &set("0-1"));
    }

    #[test]
    fn a_bound_that_leaves_nothing_is_out_of_date() {
        let files = [GROUP, MOUNT, ("sys/fs/cgroup/a/cpuset.cpus.effective", "8-9\n")];
        assert_eq!(available("2-3", &files).cpus(), &set("2-3"));
        assert_eq!(available("", &files).cpus(), &set("8-9"));
    }

    #[test]
    fn a_quota_below_the_cpus_limits_the_threads_and_is_rounded_up() {
        let quotas = [("50000", 1), ("100000", 1), ("100001", 2), ("150000", 2), ("300000", 3)];
        for (quota, threads) in quotas {
            let limit = format!("{quota} 100000\n");
            let files = [GROUP, MOUNT, ("sys/fs/cgroup/a/cpu.max", limit.as_str())];
            let available = available("0-7", &files);
            assert_eq!(available.parallelism(), threads, "{quota}");
            assert_eq!(available.cpus().len(), 8, "a quota takes no CPU away");
        }
    }

    #[test]
    fn a_quota_above_the_cpus_adds_none() {
        let files = [GROUP, MOUNT, ("sys/fs/cgroup/a/cpu.max", "18446744073709551615 1000\n")];
        let available = available("0-7", &files);
        assert_eq!(available.quota_millicpus(), Some(u64::MAX));
        assert_eq!(available.parallelism(), 8);
    }

    // Node numbers may be sparse.
    #[test]
    fn sparse_nodes_keep_their_numbers_and_nodes_without_available_cpus_are_left_out() {
        let files = [
            ("sys/devices/system/node/has_cpu", "0,2,16\n"),
            ("sys/devices/system/node/online", "0-2,16\n"),
            ("sys/devices/system/node/node0/cpulist", "0-3\n"),
            ("sys/devices/system/node/node1/cpulist", "\n"),
            ("sys/devices/system/node/node2/cpulist", "4-7\n"),
            ("sys/devices/system/node/node16/cpulist", "8-11\n"),
        ];
        let available = available("2-3,8-9", &files);
        let nodes = [NumaNode { id: 0, cpus: set("2-3") }, NumaNode { id: 16, cpus: set("8-9") }];
        assert_eq!(available.nodes(), nodes);
    }

    #[test]
    fn every_cpu_lies_on_exactly_one_node_whatever_the_system_says() {
        let files = [
            ("sys/devices/system/node/has_cpu", "0-3\n"),
            ("sys/devices/system/node/node0/cpulist", "0-3\n"),
            ("sys/devices/system/node/node1/cpulist", "2-5\n"),
            ("sys/devices/system/node/node2/cpulist", "nonsense\n"),
        ];
        let available = available("0-7", &files);
        let nodes =
            [NumaNode { id: 0, cpus: set("0-3,6-7") }, NumaNode { id: 1, cpus: set("4-5") }];
        assert_eq!(available.nodes(), nodes);
    }

    #[test]
    fn reading_again_sees_what_changed() {
        let cpus = "sys/fs/cgroup/a/cpuset.cpus.effective";
        let fake_root = FakeRoot::new(&[GROUP, MOUNT, (cpus, "0-3")]);
        let before = AvailableCpus::read_below(fake_root.root(), set("0-3"));
        assert_eq!(AvailableCpus::read_below(fake_root.root(), set("0-3")), before);
        fake_root.write(cpus, "0-2");
        assert_eq!(AvailableCpus::read_below(fake_root.root(), set("0-3")).cpus(), &set("0-2"));
        fake_root.write("sys/fs/cgroup/a/cpu.max", "100000 100000");
        let after = AvailableCpus::read_below(fake_root.root(), set("0-3"));
        assert_ne!(after, before);
        assert_eq!(after.parallelism(), 1);
    }

    #[test]
    fn fixed_cpus_are_available_as_they_are() {
        let available = AvailableCpus::fixed(set("1,5"));
        assert_eq!(available.cpus(), &set("1,5"));
        assert_eq!(available.quota_millicpus(), None);
        assert_eq!(available.parallelism(), 2);
    }

    #[test]
    fn this_system_grants_no_cpu_that_the_mask_excludes() {
        let available = AvailableCpus::read();
        assert!(available.cpus().is_subset(&CpuSet::of_process()), "{available:?}");
        assert!((1..=available.cpus().len()).contains(&available.parallelism()));
        let on_nodes: usize = available.nodes().iter().map(|node| node.cpus.len()).sum();
        assert_eq!(on_nodes, available.cpus().len());
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
}
