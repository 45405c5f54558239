//! Control groups of an experiment, version 1 or 2, whichever has the controller. Made, limited, and removed on drop;
//! groups that a killed run left behind are removed first. [`FullGroup`] is one that this process is in, and fills.

use std::cell::Cell;
use std::fmt::Display;
use std::fs::{self, File};
use std::hint::black_box;
use std::io::{Write, stderr};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use procfs::ProcessCGroup;
use procfs::process::Process;

/// Names of groups; the number of the process follows.
const PREFIX: &str = "ferrofs-bench-";
/// The period of the CPU quota of a new group, in microseconds, in both versions.
const PERIOD_US: u32 = 100_000;
/// The file whose pages fill a group, and what is written to it before a measurement, so that the group is full again.
const FILE_BYTES: u64 = 128 << 20;
const REFILL_BYTES: u64 = 4 << 20;
const BLOCK_BYTES: usize = 256 << 10;

pub(crate) fn has_controller(controller: &str) -> bool {
    hierarchy_of(controller).is_ok()
}

/// Where the hierarchy with a controller is mounted, and whether it is of version 2.
fn hierarchy_of(controller: &str) -> Result<(PathBuf, bool)> {
    let mounts = Process::myself()?.mountinfo().context("reading the mounts")?;
    let has = |text: String| text.split_whitespace().any(|word| word == controller);
    let mut found = mounts.into_iter().filter_map(|mount| {
        let root = mount.mount_point;
        let is_v2 = mount.fs_type == "cgroup2";
        let is_meant = match mount.fs_type.as_str() {
            "cgroup" => mount.super_options.contains_key(controller),
            _ => is_v2 && fs::read_to_string(root.join("cgroup.subtree_control")).is_ok_and(has),
        };
        is_meant.then_some((root, is_v2))
    });
    found.next().with_context(|| {
        format!(
            "this needs a {controller} cgroup, and no mounted hierarchy has the controller \
             (for version 2: echo +{controller} > cgroup.subtree_control at its root)"
        )
    })
}

#[derive(Debug)]
pub(crate) struct Cgroup {
    is_v2: bool,
    folder: PathBuf,
    /// Where this process was before it entered.
    home: Option<PathBuf>,
}

impl Cgroup {
    fn create(controller: &str) -> Result<Self> {
        let (root, is_v2) = hierarchy_of(controller)?;
        remove_left_over(&root);
        let folder = root.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&folder)
            .with_context(|| format!("making {} (this needs root)", folder.display()))?;
        Ok(Self { is_v2, folder, home: None })
    }

    pub(crate) fn of_memory(limit_bytes: u64) -> Result<Self> {
        let group = Self::create("memory")?;
        group.write(["memory.limit_in_bytes", "memory.max"], &limit_bytes)?;
        Ok(group)
    }

    pub(crate) fn forbid_swap(&self) -> Result<()> {
        self.write(["memory.swappiness", "memory.swap.max"], &0)
    }

    /// A group that has the time of one CPU.
    pub(crate) fn of_quota() -> Result<Self> {
        let group = Self::create("cpu")?;
        group.write(["cpu.cfs_quota_us", "cpu.max"], &PERIOD_US)?;
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

    /// Moves this process into the group until it is dropped. What the process used before stays charged where it was.
    fn enter(&mut self, controller: &str) -> Result<()> {
        let groups = Process::myself()?.cgroups().context("the groups of this process")?;
        let is_meant = |of: &ProcessCGroup| match self.is_v2 {
            true => of.hierarchy == 0,
            false => of.controllers.iter().any(|name| name == controller),
        };
        let own = groups.into_iter().find(is_meant).context("a process without a group")?;
        let root = self.folder.parent().context("the root of the hierarchy")?;
        let home = root.join(own.pathname.trim_start_matches('/'));
        // In a container the path may be that of the host.
        self.home = Some(if home.exists() { home } else { root.to_owned() });
        self.write(["cgroup.procs"; 2], &std::process::id())
    }

    /// The command in the group: a small shell enters it and becomes the command, so that everything is charged there.
    pub(crate) fn inside(&self, command: &Command) -> Command {
        let mut shell = Command::new("/bin/sh");
        let script = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.folder.display());
        shell.args(["-c", &script, "sh"]).arg(command.get_program()).args(command.get_args());
        shell
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

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            // If it is refused, the group is left behind, and that is said below.
            fs::write(home.join("cgroup.procs"), std::process::id().to_string())
                .unwrap_or_default();
        }
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

/// A memory cgroup at its limit, in which this process is. Dirty anonymous memory, which cannot be taken away without swap,
/// and dirty page cache fill it, so that every page more needs another to go.
#[derive(Debug)]
pub(crate) struct FullGroup {
    anonymous: Vec<u8>,
    /// Without a name, in the folder for temporary files; it is written over and over.
    file: File,
    offset: Cell<u64>,
    limit_bytes: u64,
    group: Cgroup,
}

impl FullGroup {
    pub(crate) fn enter(limit_bytes: u64, anonymous_bytes: usize) -> Result<Self> {
        let mut group = Cgroup::of_memory(limit_bytes)?;
        group.enter("memory")?;
        let anonymous = black_box(vec![1_u8; anonymous_bytes]);
        let file = tempfile::tempfile().context("a temporary file")?;
        Ok(Self { anonymous, file, offset: Cell::new(0), limit_bytes, group })
    }

    /// Makes this many more bytes of the page cache dirty.
    pub(crate) fn write(&self, bytes: u64) -> Result<()> {
        // Bytes of the program would be page cache of the group that can be taken away.
        let block = self.anonymous.get(..BLOCK_BYTES).unwrap_or_default();
        let end = self.offset.get() + bytes;
        while self.offset.get() < end {
            let offset = self.offset.replace(self.offset.get() + BLOCK_BYTES as u64);
            let written = self.file.write_all_at(block, offset % FILE_BYTES);
            written.context("writing to fill a group")?;
        }
        Ok(())
    }

    pub(crate) fn fill(&self) -> Result<()> {
        self.write(FILE_BYTES)
    }

    /// What is done before each measurement.
    pub(crate) fn refill(&self) -> Result<()> {
        self.write(REFILL_BYTES)
    }

    /// Leaves and removes the group: its usage in bytes, and how often it reached its limit. An error unless it is within
    /// a sixteenth of its limit, and reached it.
    pub(crate) fn end(self) -> Result<[u64; 2]> {
        let (limit, group) = (self.limit_bytes, &self.group);
        let usage = group.read(["memory.usage_in_bytes", "memory.current"], "");
        let limit_hits = match group.is_v2 {
            true => group.read(["", "memory.events"], "max "),
            false => group.read(["memory.failcnt", ""], ""),
        };
        black_box(&self.anonymous);
        let is_full = usage >= limit - limit / 16;
        ensure!(is_full, "the group used {usage} of {limit} bytes: it was not at its limit");
        ensure!(limit_hits > 0, "the group did not reach its limit of {limit} bytes");
        Ok([usage, limit_hits])
    }
}
