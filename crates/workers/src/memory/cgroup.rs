//! The control group that accounts this process's memory: where it is, what it may use, what it uses.
//! It reads and remembers nothing; [`Pressure`](super::Pressure) and [`available_memory_bytes`] ask it.

use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Files of cgroups and of pressure are a few lines; `memory.stat` is about two KiB.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Cgroups above each other: more than any system nests.
const LEVELS_MAX: usize = 64;

/// What this process may use at most, in bytes: the memory of the machine, or the lowest limit of its
/// control groups where that is less. 1 GiB where the system says nothing.
#[must_use]
pub fn available_memory_bytes() -> u64 {
    let whole = read(Path::new("/proc/meminfo")).and_then(|text| total_of(&text));
    let root = Path::new("/sys/fs/cgroup");
    let memberships = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let limit = MemoryCgroup::of_process(&memberships, root).and_then(|group| {
        group.upwards(root).filter_map(|directory| group.version.limit(directory)).min()
    });
    whole.into_iter().chain(limit).min().unwrap_or(1 << 30)
}

/// `MemTotal` of a meminfo file, in bytes.
fn total_of(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The cgroup that accounts this process's memory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MemoryCgroup {
    pub(super) version: CgroupVersion,
    pub(super) directory: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CgroupVersion {
    One,
    Two,
}

impl MemoryCgroup {
    /// Finds it by the lines of `/proc/self/cgroup`: the memory controller of version 1 if it is in
    /// use, otherwise the one hierarchy of version 2.
    pub(super) fn of_process(memberships: &str, root: &Path) -> Option<Self> {
        let find = |wanted: fn(&str) -> bool| {
            memberships.lines().find_map(|line| {
                let mut fields = line.splitn(3, ':').skip(1);
                let controllers = fields.next()?;
                let path = fields.next()?;
                wanted(controllers).then(|| path.trim_start_matches('/').to_owned())
            })
        };
        let of_one = |controllers: &str| controllers.split(',').any(|name| name == "memory");
        let (version, base, path) = match find(of_one) {
            Some(path) => (CgroupVersion::One, root.join("memory"), path),
            None => (CgroupVersion::Two, root.to_owned(), find(str::is_empty)?),
        };
        // In a container the path may be one of outside; what is mounted then is its own group.
        let inside = base.join(path);
        let directory = if inside.join(version.usage_file()).exists() { inside } else { base };
        Some(Self { version, directory })
    }

    /// Its directory and those above, up to the root of the mount.
    pub(super) fn upwards<'path>(
        &'path self,
        root: &'path Path,
    ) -> impl Iterator<Item = &'path Path> {
        let is_inside = move |directory: &&Path| directory.starts_with(root);
        self.directory.ancestors().take_while(is_inside).take(LEVELS_MAX)
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

    /// The line of `memory.stat` for file pages that nobody used lately.
    fn idle_cache_line(self) -> &'static str {
        match self {
            Self::One => "total_inactive_file",
            Self::Two => "inactive_file",
        }
    }

    /// The lowest limit of this one group.
    fn limit(self, directory: &Path) -> Option<u64> {
        let number = |name: &&str| read(&directory.join(name))?.trim().parse::<u64>().ok();
        self.limit_files().iter().filter_map(number).min()
    }

    /// Whether less than `margin` is left below a limit of this one group.
    ///
    /// File pages that nobody used lately are not counted as used: they go at once when memory is
    /// wanted, and whoever reads files fills any group with them up to its limit, for good.
    pub(super) fn is_near_limit(self, directory: &Path, margin: u64) -> bool {
        let number = |name: &str| read(&directory.join(name))?.trim().parse::<u64>().ok();
        let (Some(usage), Some(limit)) = (number(self.usage_file()), self.limit(directory)) else {
            return false;
        };
        let is_near = |usage: u64| usage >= limit.saturating_sub(margin);
        is_near(usage) && is_near(usage.saturating_sub(self.idle_cache(directory)))
    }

    fn idle_cache(self, directory: &Path) -> u64 {
        let text = read(&directory.join("memory.stat")).unwrap_or_default();
        let value = |line: &str| {
            let (name, value) = line.split_once(' ')?;
            (name == self.idle_cache_line()).then(|| value.trim().parse().ok())?
        };
        text.lines().find_map(value).unwrap_or(0)
    }
}

/// A small file as text; none when it cannot be read.
pub(super) fn read(path: &Path) -> Option<String> {
    let file = std::fs::File::open(path).ok()?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{available_memory_bytes, total_of};

    #[test]
    fn the_memory_of_a_machine_is_read_in_bytes() {
        assert_eq!(total_of("MemTotal:       2048 kB\nMemFree: 1 kB\n"), Some(2 << 20));
        assert_eq!(total_of("MemFree: 1 kB\n"), None);
        assert_eq!(total_of("MemTotal: many kB\n"), None);
    }

    #[test]
    fn what_is_granted_is_no_more_than_the_machine_has() {
        let whole = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_of(&text));
        assert!(
            available_memory_bytes() > 0
                && whole.is_none_or(|whole| available_memory_bytes() <= whole)
        );
    }
}
