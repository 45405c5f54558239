//! The machine that an experiment runs on: its description, what an experiment requires of it, and requests to stop.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::{fmt, fs};

use anyhow::{Context, Result, bail};
use ferrofs_workers::cpus::AvailableCpus;
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::cgroup::has_controller;
use crate::page_store::zlib_version;
use crate::procfs::{field_of, leading_number, line_of};

/// The machine at the start of a run. What the system does not tell is empty.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Machine {
    kernel: String,
    processor: String,
    available_cpus: String,
    /// Threads that run at once: CPUs, or the quota of their time.
    parallelism: usize,
    memory_kib: u64,
    /// Over 1, 5 and 15 minutes.
    load_average: String,
    bench_version: String,
    zlib_version: String,
}

impl Machine {
    pub(crate) fn look() -> Self {
        let available = AvailableCpus::read();
        Self {
            kernel: line_of("/proc/sys/kernel/osrelease"),
            processor: field_of("/proc/cpuinfo", "model name"),
            available_cpus: available.cpus().to_string(),
            parallelism: available.parallelism(),
            memory_kib: leading_number(&field_of("/proc/meminfo", "MemTotal")),
            load_average: load_average(),
            bench_version: env!("CARGO_PKG_VERSION").to_owned(),
            zlib_version: zlib_version(),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = self.memory_kib / 1024;
        write!(f, "Linux {}, {}, CPUs {} ", self.kernel, self.processor, self.available_cpus)?;
        write!(f, "({} at once), {memory} MiB, load {}; ", self.parallelism, self.load_average)?;
        write!(f, "ferrofs-bench {}, zlib {}", self.bench_version, self.zlib_version)
    }
}

/// The load of the last 1, 5 and 15 minutes.
pub(crate) fn load_average() -> String {
    line_of("/proc/loadavg").split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

/// Something that an experiment needs and that is checked before it starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Requirement {
    Root,
    /// A hierarchy with this controller.
    Cgroup(&'static str),
    Fuse,
    KernelErofs,
    File(PathBuf),
    Program(PathBuf),
}

impl Requirement {
    fn is_met(&self) -> bool {
        match self {
            Self::Root => rustix::process::geteuid().is_root(),
            Self::Cgroup(controller) => has_controller(controller),
            Self::Fuse => fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok(),
            Self::KernelErofs => knows_erofs(),
            Self::File(path) | Self::Program(path) => path.is_file(),
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => write!(f, "needs root"),
            Self::Cgroup(controller) => write!(f, "needs a {controller} cgroup"),
            Self::Fuse => write!(f, "needs /dev/fuse, to be opened by this user"),
            Self::KernelErofs => write!(f, "needs a kernel with EROFS"),
            Self::File(path) => write!(f, "needs the file {}", path.display()),
            Self::Program(path) => write!(f, "needs the program {}", path.display()),
        }
    }
}

/// The requirements that are not met, in words; none if all are met.
pub(crate) fn missing(requirements: &[Requirement]) -> Option<String> {
    let missing = requirements.iter().filter(|one| !one.is_met()).map(ToString::to_string);
    let missing = missing.collect::<Vec<_>>().join(", ");
    (!missing.is_empty()).then_some(missing)
}

/// Built in, or a module that the first mount loads.
fn knows_erofs() -> bool {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let modules = format!("/lib/modules/{}/modules.dep", line_of("/proc/sys/kernel/osrelease"));
    let modules = fs::read_to_string(modules).unwrap_or_default();
    known.lines().any(|line| line.split_whitespace().last() == Some("erofs"))
        || modules.lines().any(|line| line.split(':').next().unwrap_or("").contains("/erofs.ko"))
}

/// Set by SIGINT and SIGTERM.
static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on SIGINT and SIGTERM only set a flag, so that mounts and folders are removed before the process ends.
pub(crate) fn catch_signals() -> Result<()> {
    let flag = STOP.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(flag)).context("catching signals")?;
    }
    Ok(())
}

/// An error once a signal was caught.
pub(crate) fn check_stop() -> Result<()> {
    if STOP.get().is_some_and(|flag| flag.load(Ordering::Relaxed)) {
        bail!("interrupted");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Machine, Requirement, missing};

    #[test]
    fn a_machine_has_a_kernel_and_memory() {
        let machine = Machine::look();
        assert!(!machine.kernel.is_empty() && machine.memory_kib > 0 && machine.parallelism >= 1);
    }

    #[test]
    fn what_is_missing_is_named_and_what_is_there_is_not() {
        let there = Requirement::File("/proc/self/stat".into());
        let gone = Requirement::Program("/proc/self/no such thing".into());
        assert_eq!(missing(std::slice::from_ref(&there)), None);
        let said = missing(&[there, gone]);
        assert_eq!(said.as_deref(), Some("needs the program /proc/self/no such thing"));
    }

    #[test]
    fn a_cgroup_needs_its_controller() {
        let has = missing(&[Requirement::Cgroup("memory")]).is_none();
        let lists = std::fs::read_to_string("/proc/cgroups").unwrap_or_default();
        // A kernel without the controller cannot have the group.
        assert!(!has || lists.lines().any(|line| line.starts_with("memory")), "{lists}");
    }
}
