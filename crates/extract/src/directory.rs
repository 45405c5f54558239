//! A directory of the host that entries are made in. Whoever makes one holds it; the last to let go
//! of a directory that the walk has left sets its metadata, so nobody waits for anybody and nothing
//! is made in a directory that is complete. Called by `directory_stack`, which makes them, and by
//! `batch` and `large_file`, which hold them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use ferrofs_image::WalkEntry;
use rustix::fs::Stat;

/// What tells one file of the host from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    pub(crate) fn of(stat: &Stat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino }
    }
}

/// An open directory.
#[derive(Debug)]
pub(crate) struct OpenDirectory {
    fd: OwnedFd,
    /// What it was like when it was opened.
    stat: Stat,
    left: OnceLock<FinalMetadata>,
}

/// What a directory gets when everything in it has been made.
#[derive(Debug)]
pub(crate) struct FinalMetadata {
    pub(crate) node: WalkEntry,
    /// The permissions; the final ones may come later.
    pub(crate) mode: u32,
}

impl OpenDirectory {
    pub(crate) fn new(fd: OwnedFd, stat: Stat) -> Self {
        Self { fd, stat, left: OnceLock::new() }
    }

    pub(crate) fn file_id(&self) -> FileId {
        FileId::of(&self.stat)
    }

    pub(crate) fn stat(&self) -> &Stat {
        &self.stat
    }

    /// The walk has left it; no further holder comes. Only the walk says so, once.
    pub(crate) fn leave(&self, left: FinalMetadata) {
        // A second answer would be the same: a walk enters no directory twice.
        self.left.get_or_init(|| left);
    }

    pub(crate) fn left(&self) -> Option<&FinalMetadata> {
        self.left.get()
    }
}

impl AsFd for OpenDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Lets go of a directory; answers it if this was the last holder and it is to be completed.
pub(crate) fn release(directory: Arc<OpenDirectory>) -> Option<OpenDirectory> {
    Arc::into_inner(directory).filter(|directory| directory.left.get().is_some())
}
