//! What an experiment needs of the machine, looked at before it starts, so that what is missing is named at once.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use crate::machine::line_of;
use crate::pages::has_memory_cgroup;

/// A need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Need {
    Root,
    /// A memory cgroup that groups can be made in.
    MemoryCgroup,
    Fuse,
    KernelErofs,
    /// A file, such as an image.
    File(PathBuf),
    /// A program in a folder.
    Program(PathBuf),
}

impl Need {
    /// Why the need is not met; nothing if it is.
    pub(crate) fn missing(&self) -> Option<String> {
        let is_met = match self {
            Self::Root => rustix::process::geteuid().is_root(),
            Self::MemoryCgroup => has_memory_cgroup(),
            Self::Fuse => fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok(),
            Self::KernelErofs => knows_erofs(),
            Self::File(path) | Self::Program(path) => path.is_file(),
        };
        (!is_met).then(|| self.to_string())
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => write!(f, "needs root"),
            Self::MemoryCgroup => write!(f, "needs a memory cgroup"),
            Self::Fuse => write!(f, "needs /dev/fuse, to be opened by this user"),
            Self::KernelErofs => write!(f, "needs a kernel with EROFS"),
            Self::File(path) => write!(f, "needs the file {}", path.display()),
            Self::Program(path) => write!(f, "needs the program {}", path.display()),
        }
    }
}

/// What of these needs is missing, in words; nothing if all are met.
pub(crate) fn missing(needs: &[Need]) -> Option<String> {
    let missing: Vec<String> = needs.iter().filter_map(Need::missing).collect();
    (!missing.is_empty()).then(|| missing.join(", "))
}

/// What is no module yet is loaded by the first mount.
fn knows_erofs() -> bool {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let modules = format!("/lib/modules/{}/modules.dep", line_of("/proc/sys/kernel/osrelease"));
    let is_module =
        |line: &str| line.split(':').next().is_some_and(|path| path.contains("/erofs.ko"));
    known.lines().any(|line| line.split_whitespace().last() == Some("erofs"))
        || fs::read_to_string(modules).unwrap_or_default().lines().any(is_module)
}

#[cfg(test)]
mod tests {
    use super::{Need, missing};

    #[test]
    fn what_is_missing_is_named_and_what_is_there_is_not() {
        let there = Need::File("/proc/self/stat".into());
        let gone = Need::Program("/proc/self/no such thing".into());
        assert_eq!(missing(std::slice::from_ref(&there)), None);
        let said = missing(&[there, gone]);
        assert_eq!(said.as_deref(), Some("needs the program /proc/self/no such thing"));
    }

    #[test]
    fn a_cgroup_is_looked_for_where_the_system_has_it() {
        let has = Need::MemoryCgroup.missing().is_none();
        let lists = std::fs::read_to_string("/proc/cgroups").unwrap_or_default();
        // A kernel without the controller cannot have the group.
        assert!(!has || lists.lines().any(|line| line.starts_with("memory")), "{lists}");
    }
}
