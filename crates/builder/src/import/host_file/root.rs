//! The directory that a tree is imported from: opens what lies below it and never anything else.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, Result};

/// The longest path that one system call takes here. Linux takes 4,095 bytes; a longer one goes in pieces.
const PATH_MAX_BYTES: usize = 4_000;

/// The root of a source, held open as long as anything of it may be read.
pub(in crate::import) struct SourceRoot {
    path: PathBuf,
    fd: OwnedFd,
    resolution: PathResolution,
    directories: OnceLock<Box<[SourceDirectory]>>,
}

/// A directory of the source, by its name in another; number 0 is the root, whose name is empty.
///
/// Files name their directory by its number in a table of these, so that a path is not kept for each
/// of them, and a deep tree costs no more than a flat one.
pub(in crate::import) struct SourceDirectory {
    /// The number of the directory that it lies in, which is smaller than its own.
    pub(in crate::import) parent: u32,
    /// Its name there.
    pub(in crate::import) name: Box<[u8]>,
}

/// Who looks up the parts of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathResolution {
    /// The kernel, in one call (`openat2`, Linux 5.6).
    Kernel,
    /// We, one after the other.
    Parts,
}

impl fmt::Debug for SourceRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceRoot").field("path", &self.path).finish_non_exhaustive()
    }
}

impl SourceRoot {
    /// # Errors
    /// The directory does not open.
    pub(in crate::import) fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        let probe = OFlags::PATH | OFlags::DIRECTORY;
        // A filter of system calls may answer with any error: then by parts, too.
        let resolution = match open_by_kernel(fd.as_fd(), b".", probe) {
            Ok(_) => PathResolution::Kernel,
            Err(_) => PathResolution::Parts,
        };
        Ok(Self { path: path.to_path_buf(), fd, resolution, directories: OnceLock::new() })
    }

    #[cfg(test)]
    pub(super) fn with_resolution(mut self, resolution: PathResolution) -> Self {
        self.resolution = resolution;
        self
    }

    /// Takes the table of directories, which files need before they can be opened.
    pub(in crate::import) fn set_directories(&self, directories: Vec<SourceDirectory>) {
        let was_unset = self.directories.set(directories.into_boxed_slice()).is_ok();
        assert!(was_unset, "a source is imported once");
    }

    pub(in crate::import) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The path of the host for `relative`, for messages.
    pub(in crate::import) fn host_path(&self, relative: &[u8]) -> PathBuf {
        if relative.is_empty() {
            return self.path.clone();
        }
        self.path.join(OsStr::from_bytes(relative))
    }

    /// The path below the root of `name` in the directory of number `directory`.
    pub(super) fn relative(&self, directory: u32, name: &[u8]) -> Vec<u8> {
        let table = self.directories.get().map(Box::as_ref).unwrap_or_default();
        let mut parts = vec![name];
        let mut number = directory;
        // Each number is smaller than the last, so this ends.
        while number != 0 {
            let Some(entry) = table.get(number as usize) else { break };
            parts.push(&entry.name);
            number = entry.parent.min(number.saturating_sub(1));
        }
        parts.reverse();
        parts.join(&b'/')
    }

    /// Opens `relative`, which has no `.` and no `..` in it, below the root and through no symlink. An
    /// empty path is the root.
    ///
    /// # Errors
    /// What the host answers: `ELOOP` or `ENOTDIR` for a symlink on the way or at its end.
    pub(in crate::import) fn open_below(&self, relative: &[u8], flags: OFlags) -> Result<OwnedFd> {
        let mut held: Option<OwnedFd> = None;
        let mut rest = if relative.is_empty() { b"." } else { relative };
        let passing = OFlags::PATH | OFlags::DIRECTORY;
        loop {
            let at = held.as_ref().map_or(self.fd.as_fd(), AsFd::as_fd);
            let piece = match self.resolution {
                PathResolution::Kernel => PATH_MAX_BYTES,
                PathResolution::Parts => 0,
            };
            let Some((head, tail)) = split(rest, piece) else {
                return self.open_piece(at, rest, flags);
            };
            held = Some(self.open_piece(at, head, passing)?);
            rest = tail;
        }
    }

    fn open_piece(&self, at: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
        match self.resolution {
            PathResolution::Kernel => open_by_kernel(at, path, flags),
            PathResolution::Parts => {
                let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                rustix::fs::openat(at, path, flags, Mode::empty())
            }
        }
    }
}

fn open_by_kernel(at: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    loop {
        match rustix::fs::openat2(at, path, flags, Mode::empty(), within) {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

/// Cuts the parts off `path` that go first: as many as fit into `bytes_max`, one at least, but never the
/// last. `None` if all of it goes at once.
fn split(path: &[u8], bytes_max: usize) -> Option<(&[u8], &[u8])> {
    if path.len() <= bytes_max {
        return None;
    }
    let is_slash = |byte: &u8| *byte == b'/';
    let fitting = path.get(..=bytes_max).and_then(|start| start.iter().rposition(is_slash));
    let at = fitting.or_else(|| path.iter().position(is_slash))?;
    Some((path.get(..at)?, path.get(at.checked_add(1)?..)?))
}
