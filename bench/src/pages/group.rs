//! A memory cgroup of its own for an experiment, version 1 or 2, whichever has the memory controller.
//! Made, limited, and removed again on drop; groups that a killed run left behind are removed first.

use std::fs;
use std::io::{ErrorKind, Write, stderr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::machine::leading_number;

/// Our groups begin with this; the number of the process follows.
const PREFIX: &str = "ferrofs-bench-";

/// Where groups can be made.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Hierarchy {
    One(PathBuf),
    Two(PathBuf),
}

/// Whether groups can be made at all, by somebody who may.
pub(crate) fn has_memory_cgroup() -> bool {
    Hierarchy::find().is_ok()
}

impl Hierarchy {
    /// The one with the memory controller.
    fn find() -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").context("reading the mounts")?;
        let found = mounts.lines().filter_map(Self::of_mount).find(Self::has_memory);
        found.context(
            "this needs a memory cgroup, and no cgroup hierarchy that is mounted has the memory \
             controller (for version 2: echo +memory > cgroup.subtree_control at its root)",
        )
    }

    /// From a line of mountinfo: fields, a dash, type, source, options.
    fn of_mount(line: &str) -> Option<Self> {
        let (fields, kind) = line.split_once(" - ")?;
        let point = PathBuf::from(fields.split(' ').nth(4)?);
        let mut kind = kind.split(' ');
        match kind.next()? {
            "cgroup2" => Some(Self::Two(point)),
            "cgroup" if kind.nth(1)?.split(',').any(|option| option == "memory") => {
                Some(Self::One(point))
            }
            _ => None,
        }
    }

    fn has_memory(&self) -> bool {
        match self {
            Self::One(_) => true,
            Self::Two(root) => fs::read_to_string(root.join("cgroup.subtree_control"))
                .is_ok_and(|text| text.split_whitespace().any(|word| word == "memory")),
        }
    }

    fn root(&self) -> &Path {
        match self {
            Self::One(root) | Self::Two(root) => root,
        }
    }

    const fn limit_file(&self) -> &'static str {
        match self {
            Self::One(_) => "memory.limit_in_bytes",
            Self::Two(_) => "memory.max",
        }
    }

    const fn usage_file(&self) -> &'static str {
        match self {
            Self::One(_) => "memory.usage_in_bytes",
            Self::Two(_) => "memory.current",
        }
    }
}

/// A cgroup with a limit.
#[derive(Debug)]
pub(crate) struct MemoryGroup {
    hierarchy: Hierarchy,
    folder: PathBuf,
    limit_bytes: u64,
}

impl MemoryGroup {
    /// An empty group that may use so much memory.
    ///
    /// # Errors
    /// When there is no memory controller, or we may not make groups; the error says which.
    pub(crate) fn create(limit_bytes: u64) -> Result<Self> {
        let hierarchy = Hierarchy::find()?;
        remove_left_over(hierarchy.root());
        let folder = hierarchy.root().join(format!("{PREFIX}{}", std::process::id()));
        if let Err(error) = fs::create_dir(&folder) {
            let is_denied = error.kind() == ErrorKind::PermissionDenied;
            let needs = if is_denied { " (this experiment needs root)" } else { "" };
            return Err(error).with_context(|| format!("making {}{needs}", folder.display()));
        }
        let group = Self { hierarchy, folder, limit_bytes };
        group.write(group.hierarchy.limit_file(), &limit_bytes.to_string())?;
        Ok(group)
    }

    /// Moves a process into the group. What it used before stays charged where it was.
    ///
    /// # Errors
    /// When the system refuses.
    pub(crate) fn admit(&self, process: u32) -> Result<()> {
        self.write("cgroup.procs", &process.to_string())
    }

    /// What is charged to the group now.
    pub(crate) fn usage_bytes(&self) -> u64 {
        self.read_number(self.hierarchy.usage_file())
    }

    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// How often somebody in the group met the limit.
    pub(crate) fn limit_hits(&self) -> u64 {
        match self.hierarchy {
            Hierarchy::One(_) => self.read_number("memory.failcnt"),
            Hierarchy::Two(_) => {
                let text = fs::read_to_string(self.folder.join("memory.events"));
                let text = text.unwrap_or_default();
                let hits = text.lines().find_map(|line| line.strip_prefix("max "));
                hits.map_or(0, leading_number)
            }
        }
    }

    fn read_number(&self, file: &str) -> u64 {
        leading_number(&fs::read_to_string(self.folder.join(file)).unwrap_or_default())
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.folder.join(file);
        fs::write(&path, text).with_context(|| format!("writing {text} to {}", path.display()))
    }

    /// Whether the group is as full as a group at its limit is: within a sixteenth.
    ///
    /// # Errors
    /// When it is not; what was measured then says nothing.
    pub(crate) fn ensure_full(&self) -> Result<()> {
        let (usage, limit) = (self.usage_bytes(), self.limit_bytes);
        ensure!(
            usage >= limit - limit / 16,
            "the group used {usage} of {limit} bytes: it was not at its limit"
        );
        if self.limit_hits() == 0 {
            bail!("nobody in the group met its limit of {limit} bytes");
        }
        Ok(())
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.folder) {
            let path = self.folder.display();
            // If even stderr is closed there is nobody left to tell.
            writeln!(stderr(), "ferrofs-bench: {path} is left behind: {error}").unwrap_or_default();
        }
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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::Hierarchy;

    #[test]
    fn hierarchies_are_read_off_the_mounts() {
        let one = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory";
        let two =
            "41 31 0:38 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate";
        let cpu = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu";
        let memory = PathBuf::from("/sys/fs/cgroup/memory");
        assert_eq!(Hierarchy::of_mount(one), Some(Hierarchy::One(memory)));
        assert_eq!(Hierarchy::of_mount(two), Some(Hierarchy::Two("/sys/fs/cgroup".into())));
        assert_eq!(Hierarchy::of_mount(cpu), None);
        assert_eq!(Hierarchy::of_mount("nothing"), None);
    }
}
