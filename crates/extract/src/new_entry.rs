//! A name in an open directory, and the entries that can be created there. A name that is taken is
//! an error, or its owner is removed first; nothing here follows a symlink.

use std::fs::File;
use std::os::fd::BorrowedFd;

use ferrofs_image::{FileType, Inode};
use rustix::fs::{AtFlags, Mode, OFlags, makedev};
use rustix::io::Errno;

use crate::error::{ErrorKind, REMOVE_INCOMPLETE};
use crate::options::ExistingFiles;

/// Where an entry is created.
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

    /// Creates a further name for `from`.
    pub(crate) fn create_link(self, from: (BorrowedFd<'_>, &[u8])) -> Result<(), LinkError> {
        let made = self.create(|| {
            rustix::fs::linkat(from.0, from.1, self.directory, self.name, AtFlags::empty())
        });
        match made.map_err(LinkError::Failed)? {
            // The first four: no more or no hard links here. ACCESS: not to another's file.
            Err(Errno::MLINK | Errno::PERM | Errno::OPNOTSUPP | Errno::XDEV | Errno::ACCESS) => {
                Err(LinkError::Copy)
            }
            other => other.map_err(|errno| {
                LinkError::Failed(ErrorKind::output("cannot create hard link")(errno))
            }),
        }
    }

    /// Removes what was created under this name.
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
                return Err(ErrorKind::output("cannot remove what is in the way")(errno));
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
    /// The host has no hard link for this; a copy does.
    Copy,
    Failed(ErrorKind),
}

/// A file that is not whole yet: unless it is kept, it does not stay, not even after a panic.
#[derive(Debug)]
pub(crate) struct IncompleteFile<'a> {
    place: NewEntry<'a>,
    is_decided: bool,
}

impl<'a> IncompleteFile<'a> {
    pub(crate) fn new(place: NewEntry<'a>) -> Self {
        Self { place, is_decided: false }
    }

    /// It is whole.
    pub(crate) fn keep(mut self) {
        self.is_decided = true;
    }

    /// It never will be.
    pub(crate) fn remove(mut self) -> Result<(), ErrorKind> {
        self.is_decided = true;
        self.place.remove()
    }
}

impl Drop for IncompleteFile<'_> {
    fn drop(&mut self) {
        if !self.is_decided {
            // Who unwinds cannot be told; the failure that led here is.
            self.place.remove().ok();
        }
    }
}
