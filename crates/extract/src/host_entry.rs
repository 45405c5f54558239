//! Entries of the host: a name in an open directory, what can be created under it, and the open
//! directory itself. If the name exists, that is an error, or the old entry is removed first.
//! Nothing here follows a symlink.
//!
//! Every task holds the directory that it writes into. The last holder of a directory that the walk
//! has left sets its metadata: no thread waits for another, and nothing is created in a complete
//! directory.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use ferrofs_image::{FileType, Inode, WalkEntry};
use rustix::fs::{AtFlags, Mode, OFlags, Stat, makedev};
use rustix::io::Errno;

use crate::error::{ErrorKind, REMOVE_INCOMPLETE};
use crate::options::ExistingFiles;

/// The place of a new entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewEntry<'a> {
    pub(crate) directory: BorrowedFd<'a>,
    pub(crate) name: &'a [u8],
    pub(crate) existing: ExistingFiles,
}

impl NewEntry<'_> {
    /// Creates an empty regular file, open for writing, with permissions `mode` less the umask.
    pub(crate) fn create_file(self, mode: u32) -> Result<File, ErrorKind> {
        let flags = OFlags::WRONLY
            | OFlags::CREATE
            | OFlags::EXCL
            | OFlags::NOFOLLOW
            | OFlags::CLOEXEC
            | OFlags::NOCTTY;
        let mode = Mode::from_raw_mode(mode);
        self.create(|| rustix::fs::openat(self.directory, self.name, flags, mode))?
            .map(File::from)
            .map_err(ErrorKind::output("cannot create file"))
    }

    /// Creates a symlink.
    pub(crate) fn create_symlink(self, target: &[u8]) -> Result<(), ErrorKind> {
        self.create(|| rustix::fs::symlinkat(target, self.directory, self.name))?
            .map_err(ErrorKind::output("cannot create symlink"))
    }

    /// Creates a device node, FIFO or socket; `false` if the caller may not.
    pub(crate) fn create_special(self, inode: &Inode) -> Result<bool, ErrorKind> {
        let kind = match inode.file_type() {
            FileType::CharDevice => rustix::fs::FileType::CharacterDevice,
            FileType::BlockDevice => rustix::fs::FileType::BlockDevice,
            FileType::Fifo => rustix::fs::FileType::Fifo,
            _ => rustix::fs::FileType::Socket,
        };
        let mode = Mode::RUSR | Mode::WUSR;
        let (major, minor) = inode.device().unwrap_or((0, 0));
        let number = makedev(major, minor);
        match self.create(|| rustix::fs::mknodat(self.directory, self.name, kind, mode, number))? {
            Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP) => Ok(false),
            made => made.map(|()| true).map_err(ErrorKind::output("cannot create special file")),
        }
    }

    /// Creates a further name of the file `first_name`.
    pub(crate) fn create_link(
        self,
        first_directory: BorrowedFd<'_>,
        first_name: &[u8],
    ) -> Result<(), LinkError> {
        let made = self.create(|| {
            let (directory, name) = (self.directory, self.name);
            rustix::fs::linkat(first_directory, first_name, directory, name, AtFlags::empty())
        });
        match made.map_err(LinkError::Failed)? {
            // ACCESS: the file belongs to another user. The others: no hard link is possible here.
            Err(Errno::MLINK | Errno::PERM | Errno::OPNOTSUPP | Errno::XDEV | Errno::ACCESS) => {
                Err(LinkError::Copy)
            }
            other => other.map_err(|errno| {
                LinkError::Failed(ErrorKind::output("cannot create hard link")(errno))
            }),
        }
    }

    /// Removes the entry that was created under this name.
    pub(crate) fn remove(self) -> Result<(), ErrorKind> {
        match rustix::fs::unlinkat(self.directory, self.name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(ErrorKind::output(REMOVE_INCOMPLETE)(errno)),
        }
    }

    fn create<T>(
        self,
        make: impl Fn() -> rustix::io::Result<T>,
    ) -> Result<rustix::io::Result<T>, ErrorKind> {
        match make() {
            Err(Errno::EXIST) if self.existing == ExistingFiles::Replace => {}
            Err(Errno::EXIST) => return Err(ErrorKind::Exists),
            other => return Ok(other),
        }
        match rustix::fs::unlinkat(self.directory, self.name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR) => return Err(ErrorKind::DirectoryInTheWay),
            Err(errno) => {
                return Err(ErrorKind::output("cannot remove the existing entry")(errno));
            }
        }
        match make() {
            Err(Errno::EXIST) => Err(ErrorKind::Exists),
            other => Ok(other),
        }
    }
}

/// Why a hard link was not created.
#[derive(Debug)]
pub(crate) enum LinkError {
    /// The host allows no hard link here; the caller writes a copy.
    Copy,
    Failed(ErrorKind),
}

/// A file that is not whole yet. It is removed when this is dropped, after a panic too, unless it
/// is kept.
#[derive(Debug)]
pub(crate) struct IncompleteFile<'a> {
    place: NewEntry<'a>,
    is_decided: bool,
}

impl<'a> IncompleteFile<'a> {
    pub(crate) fn new(place: NewEntry<'a>) -> Self {
        Self { place, is_decided: false }
    }

    /// Keeps the file: it is whole.
    pub(crate) fn keep(mut self) {
        self.is_decided = true;
    }

    /// Removes the file.
    pub(crate) fn remove(mut self) -> Result<(), ErrorKind> {
        self.is_decided = true;
        self.place.remove()
    }
}

impl Drop for IncompleteFile<'_> {
    fn drop(&mut self) {
        if !self.is_decided {
            // A panic is unwinding, and is reported; this second failure cannot be.
            self.place.remove().ok();
        }
    }
}

/// The identity of a file of the host.
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
    /// Its status when it was opened.
    stat: Stat,
    left: OnceLock<FinalMetadata>,
}

/// The metadata that a directory gets when all its entries have been written.
#[derive(Debug)]
pub(crate) struct FinalMetadata {
    pub(crate) node: WalkEntry,
    /// The permissions; the final ones may be set later.
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

    /// Called by the walk, once, when it leaves the directory: there will be no further holder.
    pub(crate) fn leave(&self, left: FinalMetadata) {
        // A second value would be the same: a walk enters no directory twice.
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

/// Releases a directory. Returns it if this was the last holder and its metadata is to be set.
pub(crate) fn release(directory: Arc<OpenDirectory>) -> Option<OpenDirectory> {
    Arc::into_inner(directory).filter(|directory| directory.left.get().is_some())
}
