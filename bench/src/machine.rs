//! The machine that an experiment runs on: its description, what an experiment requires of it, requests to stop, and what
//! `/proc` tells of it and of this process.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use std::{fmt, fs};

use anyhow::{Context, Result, ensure};
use ferrofs_workers::cpus::AvailableCpus;
use procfs::process::Process;
use procfs::{CpuInfo, Current, LoadAverage, Meminfo};
use rustix::system::uname;
use rustix::time::{ClockId, clock_gettime};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::cgroup::has_controller;
use crate::page_store::zlib_version;

/// The machine, in a line. What the system does not tell is empty.
pub(crate) fn describe() -> String {
    let (available, version) = (AvailableCpus::read(), env!("CARGO_PKG_VERSION"));
    let cpus = CpuInfo::current().ok();
    format!(
        "Linux {}, {}, CPUs {} ({} at once), {} MiB; ferrofs-bench {version}, zlib {}",
        uname().release().to_string_lossy(),
        cpus.as_ref().and_then(|cpus| cpus.model_name(0)).unwrap_or_default(),
        available.cpus(),
        available.parallelism(),
        Meminfo::current().map_or(0, |memory| memory.mem_total >> 20),
        zlib_version()
    )
}

/// The load of the last 1, 5 and 15 minutes.
pub(crate) fn load_average() -> String {
    let text = |load: LoadAverage| format!("{:.2} {:.2} {:.2}", load.one, load.five, load.fifteen);
    LoadAverage::current().map_or_else(|_| String::new(), text)
}

/// Something that an experiment needs and that is checked before it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Requirement<'a> {
    Root,
    /// A hierarchy with this controller.
    Cgroup(&'a str),
    Fuse,
    KernelErofs,
    File(&'a Path),
}

impl Requirement<'_> {
    fn is_met(&self) -> bool {
        match self {
            Self::Root => is_root(),
            Self::Cgroup(controller) => has_controller(controller),
            Self::Fuse => fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok(),
            Self::KernelErofs => knows_erofs(),
            Self::File(path) => path.is_file(),
        }
    }
}

impl fmt::Display for Requirement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => write!(f, "needs root"),
            Self::Cgroup(controller) => write!(f, "needs a {controller} cgroup"),
            Self::Fuse => write!(f, "needs /dev/fuse, to be opened by this user"),
            Self::KernelErofs => write!(f, "needs a kernel with EROFS"),
            Self::File(path) => write!(f, "needs the file {}", path.display()),
        }
    }
}

pub(crate) fn files(paths: &[PathBuf]) -> impl Iterator<Item = Requirement<'_>> {
    paths.iter().map(|path| Requirement::File(path))
}

/// The requirements that are not met, in words; none if all are met.
pub(crate) fn missing(requirements: &[Requirement<'_>]) -> Option<String> {
    let missing = requirements.iter().filter(|one| !one.is_met()).map(ToString::to_string);
    let missing = missing.collect::<Vec<_>>().join(", ");
    (!missing.is_empty()).then_some(missing)
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Built in, or a module that the first mount loads.
fn knows_erofs() -> bool {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let modules = format!("/lib/modules/{}/modules.dep", uname().release().to_string_lossy());
    let modules = fs::read_to_string(modules).unwrap_or_default();
    known.lines().any(|line| line.split_whitespace().last() == Some("erofs"))
        || modules.lines().any(|line| line.split(':').next().unwrap_or("").contains("/erofs.ko"))
}

/// Set by SIGINT and SIGTERM once they are caught.
static STOP: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// From now on SIGINT and SIGTERM only set a flag, so that mounts and folders are removed before the process ends.
pub(crate) fn catch_signals() -> Result<()> {
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&STOP)).context("catching signals")?;
    }
    Ok(())
}

/// An error once a signal was caught.
pub(crate) fn check_stop() -> Result<()> {
    ensure!(!STOP.load(Ordering::Relaxed), "interrupted");
    Ok(())
}

pub(crate) fn available_kib() -> u64 {
    let memory = Meminfo::current().ok();
    memory.and_then(|memory| memory.mem_available).unwrap_or(0) / 1024
}

/// Resources that all threads of this process used, since it started or between two looks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// User and system time, to the nanosecond.
    pub(crate) cpu: Duration,
    /// Of all living threads; those of a thread that ended are lost.
    pub(crate) voluntary_switches: u64,
    pub(crate) involuntary_switches: u64,
    pub(crate) minor_faults: u64,
}

impl Usage {
    pub(crate) fn now() -> Self {
        let cpu = Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default();
        let process = Process::myself().ok();
        let stat = process.as_ref().and_then(|process| process.stat().ok());
        let minor_faults = stat.map_or(0, |stat| stat.minflt);
        let mut usage = Self { cpu, minor_faults, ..Self::default() };
        // A thread may end between the listing and the look.
        let tasks = process.into_iter().filter_map(|process| process.tasks().ok()).flatten();
        for status in tasks.filter_map(|task| task.ok()?.status().ok()) {
            usage.voluntary_switches += status.voluntary_ctxt_switches.unwrap_or(0);
            usage.involuntary_switches += status.nonvoluntary_ctxt_switches.unwrap_or(0);
        }
        usage
    }

    pub(crate) fn since(self, earlier: Self) -> Self {
        let less = u64::saturating_sub;
        Self {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            voluntary_switches: less(self.voluntary_switches, earlier.voluntary_switches),
            involuntary_switches: less(self.involuntary_switches, earlier.involuntary_switches),
            minor_faults: less(self.minor_faults, earlier.minor_faults),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Requirement, Usage, describe, missing};

    #[test]
    fn a_machine_has_a_kernel_and_memory() {
        let text = describe();
        assert!(text.starts_with("Linux ") && !text.contains("Linux ,"), "{text}");
        assert!(text.contains(" MiB;") && !text.contains(" 0 MiB"), "{text}");
    }

    #[test]
    fn what_is_missing_is_named_and_what_is_there_is_not() {
        let there = Requirement::File(Path::new("/proc/self/stat"));
        let gone = Requirement::File(Path::new("/proc/self/no such thing"));
        assert_eq!(missing(&[there]), None);
        let said = missing(&[there, gone]);
        assert_eq!(said.as_deref(), Some("needs the file /proc/self/no such thing"));
    }

    #[test]
    fn touching_fresh_memory_faults_and_costs_time() {
        let before = Usage::now();
        let fresh = vec![1_u8; 64 << 20];
        assert_eq!(std::hint::black_box(&fresh).first(), Some(&1));
        let cost = Usage::now().since(before);
        assert!(cost.minor_faults > 0 && cost.cpu.as_nanos() > 0);
        assert_eq!(before.since(before), Usage::default());
    }
}
