//! What a figure was measured on. Stands above every report and in its JSON.

use std::fmt;
use std::fs;

use ferrofs_workers::cpus::AvailableCpus;
use serde::{Deserialize, Serialize};

use crate::deflater::zlib_version;

/// Facts about the machine at the start of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Machine {
    kernel: String,
    processor: String,
    granted_cpus: String,
    /// Threads that run at once: CPUs, or the quota of their time.
    parallelism: usize,
    memory_kib: u64,
    /// Over 1, 5 and 15 minutes.
    pub(crate) load_average: String,
    bench_version: String,
    zlib_version: String,
}

impl Machine {
    /// Looks. What the system does not say is left empty.
    pub(crate) fn look() -> Self {
        let granted = AvailableCpus::read();
        Self {
            kernel: line_of("/proc/sys/kernel/osrelease"),
            processor: field_of("/proc/cpuinfo", "model name"),
            granted_cpus: granted.cpus().to_string(),
            parallelism: granted.parallelism(),
            memory_kib: leading_number(&field_of("/proc/meminfo", "MemTotal")),
            load_average: load_average(),
            bench_version: env!("CARGO_PKG_VERSION").to_owned(),
            zlib_version: zlib_version(),
        }
    }

    /// All of it but the load, by name.
    pub(crate) fn facts(&self) -> [(&'static str, String); 6] {
        [
            ("Kernel", format!("Linux {}", self.kernel)),
            ("Processor", self.processor.clone()),
            ("CPUs", format!("{} ({} at once)", self.granted_cpus, self.parallelism)),
            ("Memory", format!("{} MiB", self.memory_kib / 1024)),
            ("ferrofs-bench", self.bench_version.clone()),
            ("zlib", self.zlib_version.clone()),
        ]
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Linux {}, {}, CPUs {} ({} at once), {} MiB, load {}; ferrofs-bench {}, zlib {}",
            self.kernel,
            self.processor,
            self.granted_cpus,
            self.parallelism,
            self.memory_kib / 1024,
            self.load_average,
            self.bench_version,
            self.zlib_version
        )
    }
}

/// The load of the last 1, 5 and 15 minutes.
pub(crate) fn load_average() -> String {
    line_of("/proc/loadavg").split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

/// The first line of a file.
pub(crate) fn line_of(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}

/// What stands behind `name:` in a file of such lines.
pub(crate) fn field_of(path: &str, name: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    let found = fields.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim()).next();
    found.unwrap_or_default().to_owned()
}

/// The number that a field such as "23 kB" begins with, or 0.
pub(crate) fn leading_number(text: &str) -> u64 {
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{Machine, leading_number};

    #[test]
    fn a_machine_has_a_kernel_and_memory() {
        let machine = Machine::look();
        assert!(!machine.kernel.is_empty());
        assert!(machine.memory_kib > 0);
        assert!(machine.parallelism >= 1);
        assert_eq!(leading_number("none"), 0);
    }
}
