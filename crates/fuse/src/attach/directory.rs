//! The directory to mount on: held by a descriptor, so that what was checked is what is mounted on even
//! if somebody renames it meanwhile. It never looks at what the directory holds. `attach` opens it.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, PROC_SUPER_MAGIC, fstatfs, open, readlink};
use rustix::io::Errno;

use super::AttachError;

/// An open directory and its one true name.
#[derive(Debug)]
pub(super) struct MountDirectory {
    handle: OwnedFd,
    path: PathBuf,
}

impl MountDirectory {
    pub(super) fn open(given: &Path) -> Result<Self, AttachError> {
        // O_PATH asks a file system that may be mounted there for nothing.
        let handle = open(given, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|cause| open_error(given, cause))?;
        // NodeAttributes may come out of a cache long after the server has died; this never does.
        match fstatfs(&handle) {
            Err(Errno::NOTCONN) => {
                return Err(AttachError::Stale { directory: given.to_path_buf() });
            }
            // This process asks /proc about the mount, and would wait for its own answer there.
            Ok(found) if found.f_type == PROC_SUPER_MAGIC => {
                return Err(AttachError::InProc { directory: given.to_path_buf() });
            }
            Ok(_) | Err(_) => {}
        }
        let path = readlink(proc_path(&handle), Vec::new()).map_err(|cause| match cause {
            Errno::NOENT => AttachError::NoProc,
            cause => open_error(given, cause),
        })?;
        let path = PathBuf::from(OsString::from_vec(path.into_bytes()));
        if !path.is_absolute() {
            return Err(AttachError::DirectoryUnusable {
                directory: given.to_path_buf(),
                cause: Errno::NOENT,
            });
        }
        Ok(Self { handle, path })
    }

    /// Its absolute path without symlinks, as of opening.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A path that leads to this very directory whatever its name is by now.
    pub(super) fn exact_path(&self) -> String {
        proc_path(&self.handle)
    }
}

/// The path of an open file of this process.
pub(super) fn proc_path(handle: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", handle.as_raw_fd())
}

fn open_error(given: &Path, cause: Errno) -> AttachError {
    let directory = given.to_path_buf();
    match cause {
        Errno::NOENT => AttachError::DirectoryMissing { directory },
        Errno::NOTDIR => AttachError::NotADirectory { directory },
        Errno::NOTCONN => AttachError::Stale { directory },
        cause => AttachError::DirectoryUnusable { directory, cause },
    }
}
