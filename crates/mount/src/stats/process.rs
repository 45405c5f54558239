//! What the system says of this process. Read when somebody asks; a line that is not there says nothing.

use super::record::UNKNOWN;

/// From `/proc/self/status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcessStatus {
    pub(super) resident_bytes: u64,
    pub(super) resident_peak_bytes: u64,
    pub(super) threads: u64,
}

impl ProcessStatus {
    pub(super) fn read() -> Self {
        Self::parse(&std::fs::read_to_string("/proc/self/status").unwrap_or_default())
    }

    fn parse(status: &str) -> Self {
        let value = |key| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        let bytes = |key| {
            let kilobytes: u64 = value(key)?.strip_suffix("kB")?.trim().parse().ok()?;
            kilobytes.checked_mul(1024)
        };
        let threads = value("Threads:").and_then(|count| count.parse().ok());
        Self {
            resident_bytes: bytes("VmRSS:").unwrap_or(UNKNOWN),
            resident_peak_bytes: bytes("VmHWM:").unwrap_or(UNKNOWN),
            threads: threads.unwrap_or(UNKNOWN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ProcessStatus, UNKNOWN};

    #[test]
    fn numbers_are_found_by_their_names() {
        let status = "Name:\tferrofs\nVmHWM:\t    1200 kB\nVmRSS:\t    1000 kB\nThreads:\t5\n";
        let read = ProcessStatus::parse(status);
        assert_eq!((read.resident_bytes, read.resident_peak_bytes), (1_024_000, 1_228_800));
        assert_eq!(read.threads, 5);
    }

    #[test]
    fn what_is_missing_or_odd_is_unknown() {
        let read = ProcessStatus::parse("VmHWM: 99999999999999999999 kB\nThreads: x\n");
        let nothing = ProcessStatus {
            resident_bytes: UNKNOWN,
            resident_peak_bytes: UNKNOWN,
            threads: UNKNOWN,
        };
        assert_eq!(read, nothing);
    }
}
