//! How long threads were ready to run and did not: the kernel's own count, the second number of
//! `/proc/PID/task/TID/schedstat`. It is what the seed calls scheduling latency.

use std::collections::HashMap;
use std::fs;

use anyhow::{Context, Result};

/// What the threads of a process have waited for a CPU since each of them began.
#[derive(Debug, Default)]
pub(super) struct RunDelays(HashMap<String, Thread>);

#[derive(Debug)]
struct Thread {
    name: String,
    nanoseconds: u64,
}

impl RunDelays {
    /// Looks at the threads of `process`, which is a number or `self`.
    pub(super) fn of(process: &str) -> Result<Self> {
        let folder = format!("/proc/{process}/task");
        let mut threads = HashMap::new();
        for entry in fs::read_dir(&folder).with_context(|| folder.clone())? {
            let id = entry?.file_name().to_string_lossy().into_owned();
            // One that ended in between has nothing more to say.
            let Ok(name) = fs::read_to_string(format!("{folder}/{id}/comm")) else { continue };
            let Ok(times) = fs::read_to_string(format!("{folder}/{id}/schedstat")) else {
                continue;
            };
            let delay = times.split_whitespace().nth(1).and_then(|word| word.parse().ok());
            let nanoseconds = delay.with_context(|| format!("schedstat of a thread: {times}"))?;
            threads.insert(id, Thread { name: name.trim_end().to_owned(), nanoseconds });
        }
        Ok(Self(threads))
    }

    /// What the threads whose name begins so have waited since `before`, in us.
    pub(super) fn since(&self, before: &Self, prefixes: &[&str]) -> f64 {
        let is_meant = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix));
        let meant = self.0.iter().filter(|(_, thread)| is_meant(&thread.name));
        let waited = meant.map(|(id, thread)| {
            let earlier = before.0.get(id).map_or(0, |thread| thread.nanoseconds);
            thread.nanoseconds.saturating_sub(earlier)
        });
        waited.sum::<u64>() as f64 / 1000.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{RunDelays, Thread};

    fn delays(threads: &[(&str, &str, u64)]) -> RunDelays {
        let of = |&(id, name, nanoseconds): &(&str, &str, u64)| {
            (id.to_owned(), Thread { name: name.to_owned(), nanoseconds })
        };
        RunDelays(threads.iter().map(of).collect::<HashMap<_, _>>())
    }

    #[test]
    fn threads_are_told_by_their_names_and_new_ones_count_from_their_beginning() {
        let before = delays(&[("1", "fuse-0", 5_000), ("2", "bench", 1_000)]);
        let after = delays(&[("1", "fuse-0", 7_000), ("2", "bench", 90_000), ("3", "fuse-1", 500)]);
        assert_eq!(after.since(&before, &["fuse-"]), 2.5);
        assert_eq!(after.since(&before, &[""]), 91.5);
        assert_eq!(after.since(&before, &["erofs_"]), 0.0);
    }

    #[test]
    fn the_system_tells_what_the_own_threads_waited() {
        let now = RunDelays::of("self").unwrap();
        assert!(!now.0.is_empty());
    }
}
