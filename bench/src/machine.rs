//! The machine that an experiment runs on: its description, what an experiment requires of it, requests to stop, and what
//! `/proc` tells of it and of this process: CPU time, and CPU time that a hypervisor took (steal time).

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ferrofs_workers::cpus::AvailableCpus;
use procfs::process::Process;
use procfs::{CpuInfo, Current, CurrentSI, KernelStats, LoadAverage, Meminfo};
use rustix::system::uname;
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::cgroup::has_controller;
use crate::page_store::zlib_version;

/// The machine, in a line. What the system does not report is empty.
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
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Requirement {
    Root,
    Fuse,
    /// A hierarchy with this controller.
    Cgroup(String),
    File(PathBuf),
}

pub(crate) fn files(paths: &[PathBuf]) -> Vec<Requirement> {
    paths.iter().cloned().map(Requirement::File).collect()
}

/// The requirements that are not met, in words; none if all are met.
pub(crate) fn missing(requirements: &[Requirement]) -> Option<String> {
    let missing = requirements.iter().filter_map(|requirement| {
        let (is_met, what) = match requirement {
            Requirement::Root => (is_root(), "root".to_owned()),
            Requirement::Cgroup(name) => (has_controller(name), format!("a {name} cgroup")),
            Requirement::Fuse => {
                let opened = File::options().read(true).write(true).open("/dev/fuse");
                (opened.is_ok(), "/dev/fuse, to be opened by this user".to_owned())
            }
            Requirement::File(path) => (path.is_file(), format!("the file {}", path.display())),
        };
        (!is_met).then(|| format!("needs {what}"))
    });
    missing.reduce(|all, next| format!("{all}, {next}"))
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
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

/// CPU ticks since the machine started: stolen by the hypervisor, and wanted, which leaves out idle ones.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Steal {
    stolen: u64,
    wanted: u64,
}

impl Steal {
    pub(crate) fn now() -> Self {
        let Ok(KernelStats { total, .. }) = KernelStats::current() else { return Self::default() };
        let stolen = total.steal.unwrap_or(0);
        let interrupts = total.irq.unwrap_or(0) + total.softirq.unwrap_or(0);
        Self { stolen, wanted: total.user + total.nice + total.system + interrupts + stolen }
    }

    pub(crate) fn since(self, before: Self) -> StealDelta {
        let ticks = self.stolen.saturating_sub(before.stolen);
        let wanted = self.wanted.saturating_sub(before.wanted);
        StealDelta { ticks, share: ticks as f64 / wanted.max(ticks).max(1) as f64 }
    }
}

/// The steal time of a sample or a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StealDelta {
    pub(crate) ticks: u64,
    /// Of the wanted time, of 1.
    pub(crate) share: f64,
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

    use super::*;

    #[test]
    fn a_machine_has_a_kernel_and_memory() {
        let text = describe();
        assert!(text.starts_with("Linux ") && !text.contains("Linux ,"), "{text}");
        assert!(text.contains(" MiB;") && !text.contains(" 0 MiB"), "{text}");
    }

    #[test]
    fn what_is_missing_is_named_and_what_is_there_is_not() {
        let [there, gone] =
            ["stat", "no such thing"].map(|name| Path::new("/proc/self").join(name));
        assert_eq!(missing(&files(std::slice::from_ref(&there))), None);
        let message = missing(&files(&[there, gone]));
        assert_eq!(message.as_deref(), Some("needs the file /proc/self/no such thing"));
    }

    #[test]
    fn steal_time_is_a_share_of_the_wanted_time() {
        let before = Steal { stolen: 10, wanted: 163 };
        let after = Steal { stolen: 30, wanted: 263 };
        assert_eq!([before, after].map(|earlier| after.since(earlier).share), [0.2, 0.0]);
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
