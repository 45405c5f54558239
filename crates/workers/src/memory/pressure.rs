//! Looks at what the system says about memory, now and then, so that best effort gives way before
//! somebody has to wait. It owns the places to look at and the time of the last look; it never runs by
//! itself: whoever has a moment calls `look`. The budget remembers the answer.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::budget::Budget;
use crate::sync::{AtomicU64, Ordering};

/// Files of cgroups and of pressure are a few lines; `memory.stat` is about two KiB.
const MOST_BYTES_OF_A_FILE: u64 = 64 << 10;
/// Cgroups above each other: more than any system nests.
const MOST_LEVELS: usize = 64;

/// Where to look, how often, and what counts as short.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PressureSettings {
    /// Looks closer together than this are answered from memory.
    pub interval: Duration,
    /// Short when less than this is left below any limit of the process's cgroups.
    pub margin_bytes: u64,
    /// Short when some task stalled on memory for at least this share of the last ten seconds, in
    /// hundredths of a percent; `None` looks at limits only.
    pub stalled_share: Option<u32>,
    /// Where cgroups are mounted: `/sys/fs/cgroup`.
    pub cgroup_root: PathBuf,
    /// Which cgroups the process is in: `/proc/self/cgroup`.
    pub cgroup_of_process: PathBuf,
    /// The system's memory pressure: `/proc/pressure/memory`. A cgroup's own file goes before it.
    pub system_pressure: PathBuf,
}

impl Default for PressureSettings {
    /// A look a second at most, a margin of 16 MiB, 10 % of stalled time, the usual places.
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            margin_bytes: 16 << 20,
            stalled_share: Some(1000),
            cgroup_root: PathBuf::from("/sys/fs/cgroup"),
            cgroup_of_process: PathBuf::from("/proc/self/cgroup"),
            system_pressure: PathBuf::from("/proc/pressure/memory"),
        }
    }
}

/// A watcher that looks when it is asked to.
#[derive(Debug)]
pub struct Pressure {
    settings: PressureSettings,
    budget: Budget,
    began: Instant,
    /// Nanoseconds after `began` before which no look is due.
    next_look: AtomicU64,
}

impl Pressure {
    /// A watcher whose answers `budget` acts on: while the system is short, requests that may fail
    /// are refused.
    #[must_use]
    pub fn new(budget: &Budget, settings: PressureSettings) -> Self {
        let budget = budget.clone();
        Self { settings, budget, began: Instant::now(), next_look: AtomicU64::new(0) }
    }

    /// Looks, unless it was done within the interval or another thread is at it; says whether the
    /// system is short of memory. A file that is not there says nothing.
    pub fn look(&self) -> bool {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let now = nanos(self.began.elapsed());
        let due = self.next_look.load(Ordering::Relaxed);
        let next = now.saturating_add(nanos(self.settings.interval));
        // Relaxed: who wins looks; nothing else hangs on it.
        let wins = now >= due
            && self
                .next_look
                .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if wins {
            self.budget.set_pressed(self.is_short());
        }
        self.budget.is_pressed()
    }

    fn is_short(&self) -> bool {
        let memberships = read(&self.settings.cgroup_of_process).unwrap_or_default();
        let own = Group::of_process(&memberships, &self.settings.cgroup_root);
        let is_near_limit = own.as_ref().is_some_and(|group| {
            group
                .upwards(&self.settings.cgroup_root)
                .any(|directory| group.version.is_near_limit(directory, self.settings.margin_bytes))
        });
        is_near_limit || self.is_stalled(own.as_ref())
    }

    fn is_stalled(&self, own: Option<&Group>) -> bool {
        let Some(threshold) = self.settings.stalled_share else {
            return false;
        };
        let of_group = own.and_then(|group| read(&group.directory.join("memory.pressure")));
        let text = of_group.or_else(|| read(&self.settings.system_pressure)).unwrap_or_default();
        stalled_share(&text).is_some_and(|share| share >= threshold)
    }
}

impl Drop for Pressure {
    /// Nobody looks any more: best effort is free again.
    fn drop(&mut self) {
        self.budget.set_pressed(false);
    }
}

/// The cgroup that accounts this process's memory.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    version: Version,
    directory: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Group {
    /// Finds it by the lines of `/proc/self/cgroup`: the memory controller of version 1 if it is in
    /// use, otherwise the one hierarchy of version 2.
    fn of_process(memberships: &str, root: &Path) -> Option<Self> {
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
            Some(path) => (Version::One, root.join("memory"), path),
            None => (Version::Two, root.to_owned(), find(str::is_empty)?),
        };
        // In a container the path may be one of outside; what is mounted then is its own group.
        let inside = base.join(path);
        let directory = if inside.join(version.usage_file()).exists() { inside } else { base };
        Some(Self { version, directory })
    }

    /// Its directory and those above, up to the root of the mount.
    fn upwards<'path>(&'path self, root: &'path Path) -> impl Iterator<Item = &'path Path> {
        let is_inside = move |directory: &&Path| directory.starts_with(root);
        self.directory.ancestors().take_while(is_inside).take(MOST_LEVELS)
    }
}

impl Version {
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

    /// Whether less than `margin` is left below a limit of this one group.
    ///
    /// File pages that nobody used lately are not counted as used: they go at once when memory is
    /// wanted, and whoever reads files fills any group with them up to its limit, for good.
    fn is_near_limit(self, directory: &Path, margin: u64) -> bool {
        let number = |name: &str| read(&directory.join(name))?.trim().parse::<u64>().ok();
        let limit = self.limit_files().iter().filter_map(|name| number(name)).min();
        let (Some(usage), Some(limit)) = (number(self.usage_file()), limit) else {
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

/// The `some avg10` of a file of pressure, in hundredths of a percent.
fn stalled_share(text: &str) -> Option<u32> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    let value = line.split(' ').find_map(|field| field.strip_prefix("avg10="))?;
    let (whole, part) = value.split_once('.').unwrap_or((value, "0"));
    let part =
        part.get(..2).map_or_else(|| part.parse::<u32>().map(|tenths| tenths * 10), str::parse);
    whole.parse::<u32>().ok()?.checked_mul(100)?.checked_add(part.ok()?)
}

/// A small file as text; none when it cannot be read.
fn read(path: &Path) -> Option<String> {
    let file = std::fs::File::open(path).ok()?;
    let mut text = String::new();
    file.take(MOST_BYTES_OF_A_FILE).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(all(test, not(loom)))]
mod tests;
