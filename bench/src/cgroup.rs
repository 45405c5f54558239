//! Control groups of an experiment, version 1 or 2, whichever has the controller. Made, limited, and removed on drop;
//! groups that a killed run left behind are removed first.

use std::fmt::Display;
use std::fs;
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use procfs::process::Process;

/// Names of groups; the number of the process follows.
const PREFIX: &str = "ferrofs-bench-";
/// The period of a CPU quota, in microseconds.
const PERIOD_US: u32 = 100_000;

/// A mounted hierarchy of groups.
struct Hierarchy {
    is_v2: bool,
    root: PathBuf,
}

pub(crate) fn has_controller(controller: &str) -> bool {
    Hierarchy::find(controller).is_ok()
}

impl Hierarchy {
    fn find(controller: &str) -> Result<Self> {
        let mounts = Process::myself()?.mountinfo().context("reading the mounts")?;
        let has = |text: String| text.split_whitespace().any(|word| word == controller);
        let mut found = mounts.into_iter().filter_map(|mount| {
            let root = mount.mount_point;
            let is_v2 = mount.fs_type == "cgroup2";
            let is_meant = match mount.fs_type.as_str() {
                "cgroup" => mount.super_options.contains_key(controller),
                _ => {
                    is_v2 && fs::read_to_string(root.join("cgroup.subtree_control")).is_ok_and(has)
                }
            };
            is_meant.then_some(Self { is_v2, root })
        });
        found.next().with_context(|| {
            format!(
                "this needs a {controller} cgroup, and no mounted hierarchy has the controller \
                 (for version 2: echo +{controller} > cgroup.subtree_control at its root)"
            )
        })
    }
}

/// A cgroup.
#[derive(Debug)]
pub(crate) struct Group {
    is_v2: bool,
    folder: PathBuf,
    limit_bytes: u64,
}

/// The memory that is charged to a group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Charged {
    pub(crate) usage_bytes: u64,
    pub(crate) limit_bytes: u64,
    /// How often the limit was reached.
    pub(crate) limit_hits: u64,
}

impl Charged {
    /// An error unless usage is within a sixteenth of the limit, and the limit was reached.
    pub(crate) fn ensure_full(&self) -> Result<()> {
        let Self { usage_bytes: usage, limit_bytes: limit, limit_hits } = *self;
        let is_full = usage >= limit - limit / 16;
        ensure!(is_full, "the group used {usage} of {limit} bytes: it was not at its limit");
        ensure!(limit_hits > 0, "the group did not reach its limit of {limit} bytes");
        Ok(())
    }
}

impl Group {
    fn create(controller: &str) -> Result<Self> {
        let Hierarchy { is_v2, root } = Hierarchy::find(controller)?;
        remove_left_over(&root);
        let folder = root.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&folder)
            .with_context(|| format!("making {} (this needs root)", folder.display()))?;
        Ok(Self { is_v2, folder, limit_bytes: u64::MAX })
    }

    /// A group that may use this much memory.
    pub(crate) fn of_memory(limit_bytes: u64) -> Result<Self> {
        let mut group = Self::create("memory")?;
        group.limit_bytes = limit_bytes;
        group.write(["memory.limit_in_bytes", "memory.max"], &limit_bytes)?;
        Ok(group)
    }

    pub(crate) fn forbid_swap(&self) -> Result<()> {
        self.write(["memory.swappiness", "memory.swap.max"], &0)
    }

    /// A group that has the time of one CPU.
    pub(crate) fn of_quota() -> Result<Self> {
        let group = Self::create("cpu")?;
        if group.is_v2 {
            group.write(["", "cpu.max"], &format!("{PERIOD_US} {PERIOD_US}"))?;
        } else {
            group.write(["cpu.cfs_period_us", ""], &PERIOD_US)?;
            group.write(["cpu.cfs_quota_us", ""], &PERIOD_US)?;
        }
        Ok(group)
    }

    /// A group that runs on one CPU.
    pub(crate) fn of_cpu(cpu: usize) -> Result<Self> {
        let group = Self::create("cpuset")?;
        if !group.is_v2 {
            let parent = group.folder.parent().context("the root of the hierarchy")?;
            let nodes = fs::read_to_string(parent.join("cpuset.mems")).context("cpuset.mems")?;
            group.write(["cpuset.mems", ""], &nodes.trim())?;
        }
        group.write(["cpuset.cpus"; 2], &cpu)?;
        Ok(group)
    }

    /// Moves a process into the group. What it used before stays charged where it was.
    pub(crate) fn admit(&self, process: u32) -> Result<()> {
        self.write(["cgroup.procs"; 2], &process)
    }

    /// The command in the group: a small shell enters it and becomes the command, so that everything is charged there.
    pub(crate) fn inside(&self, command: &Command) -> Command {
        let mut shell = Command::new("/bin/sh");
        let script = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.folder.display());
        shell.args(["-c", &script, "sh"]).arg(command.get_program()).args(command.get_args());
        shell
    }

    pub(crate) fn charged(&self) -> Charged {
        let usage_bytes = self.read(["memory.usage_in_bytes", "memory.current"], "");
        let limit_hits = match self.is_v2 {
            true => self.read(["", "memory.events"], "max "),
            false => self.read(["memory.failcnt", ""], ""),
        };
        Charged { usage_bytes, limit_bytes: self.limit_bytes, limit_hits }
    }

    /// The most memory that was charged; 0 on a kernel that does not count it.
    pub(crate) fn peak_bytes(&self) -> u64 {
        self.read(["memory.max_usage_in_bytes", "memory.peak"], "")
    }

    /// Processes that the kernel killed for lack of memory.
    pub(crate) fn killed(&self) -> u64 {
        self.read(["memory.oom_control", "memory.events"], "oom_kill ")
    }

    /// The number behind a name in a file that has a name in version 1, and one in version 2; 0 if there is none.
    fn read(&self, files: [&str; 2], name: &str) -> u64 {
        let text = fs::read_to_string(self.folder.join(files[usize::from(self.is_v2)]));
        let text = text.unwrap_or_default();
        let found = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        found.unwrap_or(0)
    }

    fn write(&self, files: [&str; 2], value: &dyn Display) -> Result<()> {
        let path = self.folder.join(files[usize::from(self.is_v2)]);
        let text = value.to_string();
        fs::write(&path, &text).with_context(|| format!("writing {text} to {}", path.display()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The last process may still be ending.
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            sleep(Duration::from_millis(20));
        }
        let path = self.folder.display();
        // If even stderr is closed nobody can be told.
        writeln!(stderr(), "ferrofs-bench: {path} is left behind").unwrap_or_default();
    }
}

/// Removes groups of runs that were killed.
fn remove_left_over(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        if owner.is_some_and(|owner| !Path::new("/proc").join(owner).exists()) {
            // A process that is still in it keeps it.
            fs::remove_dir(entry.path()).unwrap_or_default();
        }
    }
}
