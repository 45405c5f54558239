//! A directory in which something is made before it gets its name beside it. Nobody else can change
//! what is in it.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

/// How many names are tried. Only what a process of the same number has left has one.
const NAMES_TRIED: u32 = 1000;

/// The directory. It is not removed when this is dropped.
#[derive(Debug)]
pub(super) struct StagingDirectory {
    path: PathBuf,
    directory: OwnedFd,
}

impl StagingDirectory {
    /// Makes a directory beside `target`, with a name that does not depend on it.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn beside(target: &Path) -> io::Result<Self> {
        let above = target.parent().unwrap_or(Path::new(""));
        for number in 0..NAMES_TRIED {
            let path = above.join(format!(".ferrofs-{}.{number}.part", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
                Ok(()) => return Self::open(path),
            }
        }
        Err(Errno::BUSY.into())
    }

    fn open(path: PathBuf) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(directory) => Ok(Self { path, directory }),
            Err(errno) => {
                // The first error says more than a second one would.
                fs::remove_dir(&path).ok();
                Err(errno.into())
            }
        }
    }

    /// A path that leads to this directory, also if somebody renames it, provided that there is
    /// `/proc`.
    pub(super) fn path(&self) -> PathBuf {
        let path = PathBuf::from(format!("/proc/self/fd/{}", self.directory.as_raw_fd()));
        if path.is_dir() { path } else { self.path.clone() }
    }

    /// Moves what has the name `name` in it to `target`.
    ///
    /// # Errors
    /// It cannot be moved; [`io::ErrorKind::AlreadyExists`] if there is something that must not be
    /// replaced.
    pub(super) fn move_out(&self, name: &[u8], target: &Path, replaces: bool) -> io::Result<()> {
        let from = &self.directory;
        if replaces {
            return Ok(rustix::fs::renameat(from, name, CWD, target)?);
        }
        match rustix::fs::renameat_with(from, name, CWD, target, RenameFlags::NOREPLACE) {
            // The kernel or the file system does not have the flag. A link replaces nothing, either;
            // the other name is removed with the directory.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                Ok(rustix::fs::linkat(from, name, CWD, target, AtFlags::empty())?)
            }
            moved => Ok(moved?),
        }
    }

    /// Removes the directory and what is left in it.
    ///
    /// # Errors
    /// It cannot be removed; the text names it.
    pub(super) fn remove(self) -> io::Result<()> {
        fs::remove_dir_all(&self.path).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot remove {}: {error}", self.path.display()))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn what_appears_meanwhile_is_replaced_only_on_request() {
        let dir = TempDir::new().unwrap();
        let target = dir.path().join("target");
        let folder = StagingDirectory::beside(&target).unwrap();
        fs::write(folder.path().join("new"), "new").unwrap();
        fs::write(&target, "old").unwrap();
        let refused = folder.move_out(b"new", &target, false).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&target).unwrap(), b"old");
        folder.move_out(b"new", &target, true).unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"new");
        folder.remove().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_is_closed_to_others_and_found_under_another_name() {
        let dir = TempDir::new().unwrap();
        let target = dir.path().join("x".repeat(255));
        let [first, second] = [(); 2].map(|()| StagingDirectory::beside(&target).unwrap());
        assert_ne!(first.path, second.path);
        let mode = fs::metadata(first.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
        if !first.path().starts_with("/proc") {
            return;
        }
        fs::rename(&first.path, dir.path().join("moved")).unwrap();
        fs::write(first.path().join("new"), "new").unwrap();
        first.move_out(b"new", &target, false).unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"new");
        second.remove().unwrap();
    }
}
