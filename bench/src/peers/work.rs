//! The folder in which an experiment keeps what it makes: images, mount points, what programs say. It goes at the end with
//! all that is in it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::statfs;

use crate::interruption;

/// `TMPFS_MAGIC` of linux/magic.h.
const TMPFS: u64 = 0x0102_1994;
/// Memory in which everybody may make files, on most systems.
const SHARED_MEMORY: &str = "/dev/shm";

/// A folder of this process.
#[derive(Debug)]
pub(super) struct Work(PathBuf);

impl Work {
    /// Makes one in the folder, or in the system's temporary folder. From then on a signal does not end the process at once.
    pub(super) fn make(parent: Option<&Path>) -> Result<Self> {
        interruption::watch()?;
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let parent = parent.canonicalize().with_context(|| parent.display().to_string())?;
        let path = parent.join(format!("ferrofs-bench-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Self(path))
    }

    /// Makes one where writing costs no disk, if there is such a place; else as `make` does.
    pub(super) fn make_in_memory(parent: Option<&Path>) -> Result<Self> {
        let memory = Path::new(SHARED_MEMORY);
        let there = parent.is_none() && is_in_memory(memory);
        let made = there.then(|| Self::make(Some(memory))).and_then(Result::ok);
        made.map_or_else(|| Self::make(parent), Ok)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.0
    }

    /// What it lies on, for people.
    pub(super) fn place(&self) -> String {
        let kind = if is_in_memory(&self.0) { "a tmpfs" } else { "a disk" };
        format!("{} ({kind})", self.0.parent().unwrap_or(&self.0).display())
    }

    pub(super) fn is_in_memory(&self) -> bool {
        is_in_memory(&self.0)
    }
}

fn is_in_memory(folder: &Path) -> bool {
    statfs(folder).is_ok_and(|found| u64::try_from(found.f_type) == Ok(TMPFS))
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            writeln!(std::io::stderr(), "ferrofs-bench: {} is left: {error}", self.0.display())
                .unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Work;

    #[test]
    fn a_folder_goes_with_all_that_is_in_it() {
        let parent = tempfile::tempdir().unwrap();
        let work = Work::make(Some(parent.path())).unwrap();
        std::fs::create_dir(work.path("deep")).unwrap();
        std::fs::write(work.path("deep").join("file"), b"x").unwrap();
        assert!(work.place().starts_with(&parent.path().display().to_string()));
        Work::make(Some(parent.path())).unwrap_err();
        drop(work);
        assert_eq!(parent.path().read_dir().unwrap().count(), 0);
    }
}
