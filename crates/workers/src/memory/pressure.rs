//! Looks at what the system says about memory, now and then, so that best effort gives way before
//! somebody has to wait. It owns the places to look at and the time of the last look; it never runs by
//! itself: whoever has a moment calls `look`. The budget remembers the answer.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::budget::Budget;
use super::cgroup::{MemoryCgroup, read};
use crate::sync::{AtomicU64, Ordering};

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
        let own = MemoryCgroup::of_process(&memberships, &self.settings.cgroup_root);
        let is_near_limit = own.as_ref().is_some_and(|group| {
            group
                .upwards(&self.settings.cgroup_root)
                .any(|directory| group.version.is_near_limit(directory, self.settings.margin_bytes))
        });
        is_near_limit || self.is_stalled(own.as_ref())
    }

    fn is_stalled(&self, own: Option<&MemoryCgroup>) -> bool {
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

/// The `some avg10` of a file of pressure, in hundredths of a percent.
fn stalled_share(text: &str) -> Option<u32> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    let value = line.split(' ').find_map(|field| field.strip_prefix("avg10="))?;
    let (whole, part) = value.split_once('.').unwrap_or((value, "0"));
    let part =
        part.get(..2).map_or_else(|| part.parse::<u32>().map(|tenths| tenths * 10), str::parse);
    whole.parse::<u32>().ok()?.checked_mul(100)?.checked_add(part.ok()?)
}

#[cfg(all(test, not(loom)))]
mod tests;
