//! What the process may use of the machine's memory, and calls to the heap of the C library. It
//! owns nothing and remembers nothing: every call reads the system again.
#![allow(
    unsafe_code,
    reason = "malloc_trim, mallopt, and madvise below the stack have no safe binding"
)]

use std::fs::File;
use std::io::Read as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Files of /proc and of cgroups are a few lines.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Nested cgroups: more than any system has.
const LEVELS_MAX: usize = 64;
/// What is assumed where the system tells nothing.
const FALLBACK_BYTES: u64 = 1 << 30;
/// Heap blocks of this length or more get a mapping of their own.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MMAP_THRESHOLD_BYTES: std::ffi::c_int = 1 << 20;

/// The memory that this process may use, in bytes: that of the machine, or the lowest limit of its
/// control groups if that is less. 1 GiB where the system tells nothing.
#[must_use]
pub fn available_memory_bytes() -> u64 {
    available_below(Path::new("/"))
}

/// Gives unused pages of the process's heap back to the system. It takes milliseconds, during which
/// other threads may wait to allocate, so it is not for a read path. It does nothing with another C
/// library than GNU's.
///
/// Threads free what other threads allocated, so that most of a burst's memory stays with the
/// process until this is called.
pub fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn malloc_trim(kept: usize) -> std::ffi::c_int;
        }
        // SAFETY: the declaration is that of malloc.h, any number is allowed, and any thread may
        // call the function. It changes no byte of an allocated block.
        let _has_trimmed = unsafe { malloc_trim(0) };
    }
}

/// Gives the pages of the first thread's stack back that deeper calls have used before. Does nothing in another thread, or
/// if the kernel does not show where the stack is.
pub fn trim_stack() {
    let Some(maps) = read(Path::new("/proc/self/maps")) else { return };
    let Some(stack) = stack_of(&maps) else { return };
    let marker = 0_u8;
    let here = std::ptr::from_ref(&marker).addr();
    if !stack.contains(&here) {
        return;
    }
    let page_bytes = rustix::param::page_size();
    let unused = here.saturating_sub(STACK_RESERVE_BYTES) / page_bytes * page_bytes;
    let Some(length) = unused.checked_sub(stack.start) else { return };
    let start = std::ptr::with_exposed_provenance_mut(stack.start);
    // SAFETY: the range is a part of this thread's own stack, from its first page to at least 16 KiB below the frame of this
    // function. No frame that will return lies there: `marker` is in the frame of this function, and those of the call
    // below are smaller. The kernel keeps the range mapped, and later calls find zeroes in it.
    unsafe { rustix::mm::madvise(start, length, rustix::mm::Advice::LinuxDontNeed).ok() };
}

/// Left below the frame that asks: more than the frames of one system call, and of a signal handler on top of it.
const STACK_RESERVE_BYTES: usize = 16 << 10;

/// The addresses of the first thread's stack.
fn stack_of(maps: &str) -> Option<Range<usize>> {
    let line = maps.lines().find(|line| line.ends_with(" [stack]"))?;
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    let address = |digits| usize::from_str_radix(digits, 16).ok();
    Some(address(start)?..address(end)?)
}

/// Makes the heap map each block of 1 MiB or more on its own, for good. Called once, before threads
/// that pass large buffers to each other start.
///
/// The GNU C library stops doing so at the first large block that is freed. From then on large
/// blocks lie among the small ones of a thread, and leave gaps that no other thread can use.
pub fn set_mmap_threshold() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn mallopt(parameter: std::ffi::c_int, value: std::ffi::c_int) -> std::ffi::c_int;
        }
        /// The number of malloc.h.
        const M_MMAP_THRESHOLD: std::ffi::c_int = -3;
        // SAFETY: the declaration and the number are those of malloc.h, where the value is a length
        // in bytes. The function takes its own lock and changes only where later blocks come from.
        let _is_set = unsafe { mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES) };
    }
}

/// [`available_memory_bytes`] with `root` for the root directory.
fn available_below(root: &Path) -> u64 {
    let machine = read(&root.join("proc/meminfo")).and_then(|text| total_bytes(&text));
    let cgroups = root.join("sys/fs/cgroup");
    let memberships = read(&root.join("proc/self/cgroup")).unwrap_or_default();
    let limit = MemoryCgroup::of_process(&memberships, &cgroups)
        .and_then(|cgroup| cgroup.limit_bytes(&cgroups));
    machine.into_iter().chain(limit).min().unwrap_or(FALLBACK_BYTES)
}

/// `MemTotal` of a meminfo file, in bytes.
fn total_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The control group that accounts this process's memory.
#[derive(Debug, PartialEq, Eq)]
struct MemoryCgroup {
    version: CgroupVersion,
    directory: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CgroupVersion {
    One,
    Two,
}

impl MemoryCgroup {
    /// Finds it by the lines of `/proc/self/cgroup`: in the memory controller of version 1 if that
    /// is in use, otherwise in the one hierarchy of version 2.
    fn of_process(memberships: &str, root: &Path) -> Option<Self> {
        let find = |wanted: fn(&str) -> bool| {
            memberships.lines().find_map(|line| {
                let mut fields = line.splitn(3, ':').skip(1);
                let controllers = fields.next()?;
                let path = fields.next()?;
                wanted(controllers).then(|| path.trim_start_matches('/').to_owned())
            })
        };
        let is_memory = |controllers: &str| controllers.split(',').any(|name| name == "memory");
        let (version, base, path) = match find(is_memory) {
            Some(path) => (CgroupVersion::One, root.join("memory"), path),
            None => (CgroupVersion::Two, root.to_owned(), find(str::is_empty)?),
        };
        // In a container the path may be that of the host; the group that is mounted is the own
        // one.
        let inside = base.join(path);
        let directory = if inside.join(version.usage_file()).exists() { inside } else { base };
        Some(Self { version, directory })
    }

    /// The lowest limit of the group and of those above it, up to the root of the mount.
    fn limit_bytes(&self, root: &Path) -> Option<u64> {
        let is_inside = |directory: &&Path| directory.starts_with(root);
        let directories = self.directory.ancestors().take_while(is_inside).take(LEVELS_MAX);
        directories.filter_map(|directory| self.version.limit_bytes(directory)).min()
    }
}

impl CgroupVersion {
    fn usage_file(self) -> &'static str {
        match self {
            Self::One => "memory.usage_in_bytes",
            Self::Two => "memory.current",
        }
    }

    fn limit_files(self) -> &'static [&'static str] {
        match self {
            Self::One => &["memory.limit_in_bytes"],
            Self::Two => &["memory.high", "memory.max"],
        }
    }

    /// The lowest limit of this one group. "max" is none.
    fn limit_bytes(self, directory: &Path) -> Option<u64> {
        let number = |name: &&str| read(&directory.join(name))?.trim().parse::<u64>().ok();
        self.limit_files().iter().filter_map(number).min()
    }
}

/// A small file as text; none if it cannot be read.
fn read(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

    use super::*;

    const MIB: u64 = 1 << 20;
    const MACHINE: (&str, &str) = ("proc/meminfo", "MemTotal: 262144 kB\nMemFree: 1 kB\n");

    /// What is available on a system of these files.
    fn available(files: &[(&str, &str)]) -> u64 {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        available_below(root.path())
    }

    #[test]
    fn the_memory_of_a_machine_is_read_in_bytes() {
        assert_eq!(total_bytes("MemTotal:       2048 kB\nMemFree: 1 kB\n"), Some(2 << 20));
        assert_eq!(total_bytes("MemFree: 1 kB\n"), None);
        assert_eq!(total_bytes("MemTotal: many kB\n"), None);
    }

    #[test]
    fn what_is_available_is_no_more_than_the_machine_has() {
        let machine = std::fs::read_to_string("/proc/meminfo").ok();
        let machine = machine.and_then(|text| total_bytes(&text));
        let available = available_memory_bytes();
        assert!(available > 0 && machine.is_none_or(|machine| available <= machine));
    }

    #[test]
    fn the_stack_is_found_and_what_is_in_use_stays() {
        let maps = "00400000-00452000 r-xp 00000000 08:02 173521 /bin/a\n7ffd1000-7ffd3000 rw-p 0 0:0 0 [stack]\n";
        assert_eq!(stack_of(maps), Some(0x7ffd_1000..0x7ffd_3000));
        assert_eq!(stack_of("x [stack]"), None);
        let bytes = std::hint::black_box([7_u8; 2048]);
        trim_stack();
        assert_eq!(std::hint::black_box(bytes), [7; 2048]);
    }

    #[test]
    fn without_any_file_a_gibibyte_is_assumed() {
        assert_eq!(available(&[]), FALLBACK_BYTES);
        assert_eq!(available(&[MACHINE]), 256 * MIB);
    }

    #[test]
    fn the_lower_limit_of_version_two_counts() {
        for (high, max, expected) in [
            ("max", "max", 256 * MIB),
            ("max", "134217728", 128 * MIB),
            ("113246208", "134217728", 108 * MIB),
            ("113246208", "max", 108 * MIB),
        ] {
            let found = available(&[
                MACHINE,
                ("proc/self/cgroup", "0::/a/b\n"),
                ("sys/fs/cgroup/a/b/memory.current", "1000\n"),
                ("sys/fs/cgroup/a/b/memory.high", high),
                ("sys/fs/cgroup/a/b/memory.max", max),
            ]);
            assert_eq!(found, expected, "{high} {max}");
        }
    }

    #[test]
    fn the_limit_of_a_group_above_counts_too() {
        let found = available(&[
            MACHINE,
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.current", "1000\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/memory.max", "134217728\n"),
        ]);
        assert_eq!(found, 128 * MIB);
    }

    #[test]
    fn version_one_is_read_where_it_accounts_memory() {
        for (limit, expected) in [("134217728", 128 * MIB), ("9223372036854771712", 256 * MIB)] {
            let found = available(&[
                MACHINE,
                ("proc/self/cgroup", "4:cpu,memory:/job\n0::/\n"),
                ("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1000\n"),
                ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", limit),
            ]);
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn in_a_container_the_mounted_group_is_the_own() {
        let found = available(&[
            MACHINE,
            ("proc/self/cgroup", "0::/path/of/the/host\n"),
            ("sys/fs/cgroup/memory.current", "1000\n"),
            ("sys/fs/cgroup/memory.max", "134217728\n"),
        ]);
        assert_eq!(found, 128 * MIB);
    }

    #[test]
    fn damaged_files_limit_nothing() {
        for text in ["", "\n", "-1\n", "99999999999999999999999\n", "many\n", "\u{0}\u{ff}"] {
            let cgroup = ("proc/self/cgroup", "0::/\n");
            let found = available(&[MACHINE, cgroup, ("sys/fs/cgroup/memory.max", text)]);
            assert_eq!(found, 256 * MIB, "{text:?}");
            assert_eq!(available(&[MACHINE, ("proc/self/cgroup", text)]), 256 * MIB, "{text:?}");
        }
    }
}
