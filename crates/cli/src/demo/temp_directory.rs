//! A directory for temporary files that is removed in the end, read-only subdirectories included.

use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{io, process};

/// Attempts to find a name that is not taken.
const ATTEMPTS_MAX: u32 = 100;

/// A new directory that only the caller can enter.
#[derive(Debug)]
pub(super) struct TempDirectory {
    path: PathBuf,
    is_removed: bool,
}

impl TempDirectory {
    pub(super) fn new() -> io::Result<Self> {
        let parent = std::env::temp_dir();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        for attempt in 0..ATTEMPTS_MAX {
            let unique = now.subsec_nanos().wrapping_add(attempt);
            let path = parent.join(format!("ferrofs-demo-{}-{unique:x}", process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path, is_removed: false }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the directory and everything in it.
    pub(super) fn remove(mut self) -> io::Result<()> {
        self.is_removed = true;
        remove(&self.path)
    }
}

impl Drop for TempDirectory {
    fn drop(&mut self) {
        if !self.is_removed {
            // Some other error is on its way already.
            remove(&self.path).unwrap_or_default();
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
        done => return done,
    }
    // Directories that their owner may not change or enter were unpacked as they are.
    let mut directories = vec![path.to_owned()];
    while let Some(directory) = directories.pop() {
        fs::set_permissions(&directory, Permissions::from_mode(0o700))?;
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                directories.push(entry.path());
            }
        }
    }
    fs::remove_dir_all(path)
}
