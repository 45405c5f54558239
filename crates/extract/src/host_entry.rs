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
use rustix::fs::{AtFlags, CWD, FileType as HostFileType, Mode, OFlags, Stat, makedev};
use rustix::io::Errno;

use crate::descriptor_path::{PathError, has_descriptor_paths, with_path};
use crate::error::{ErrorKind, REMOVE_INCOMPLETE};
use crate::metadata::ForeignAcl;
use crate::options::ExistingFiles;

/// The place of a new entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewEntry<'a> {
    pub(crate) directory: BorrowedFd<'a>,
    pub(crate) name: &'a [u8],
    pub(crate) existing: ExistingFiles,
    /// Whether new entries of the directory inherit an ACL.
    pub(crate) foreign_acl: ForeignAcl,
}

/// A process that is killed leaves no part of a larger file under its name. That takes 6 µs a file (ext4 and tmpfs), which
/// would be half of the time of a small one; such a file is written by few calls, in microseconds.
const UNNAMED_BYTES: u64 = 128 << 10;

const EXAMINE_NEW: &str = "cannot examine the new entry";

impl NewEntry<'_> {
    /// Creates an empty regular file, open for writing, with permissions `mode` less the umask. A file that will have more
    /// than [`UNNAMED_BYTES`] gets its name when it is whole, where the file system and `/proc` allow that.
    pub(crate) fn create_file(self, mode: u32, bytes: u64) -> Result<NewFile, ErrorKind> {
        let unnamed = if bytes > UNNAMED_BYTES { self.create_unnamed(mode)? } else { None };
        match unnamed {
            Some(file) => Ok(NewFile { file, is_named: false }),
            None => Ok(NewFile { file: self.create_named(mode)?, is_named: true }),
        }
    }

    /// A file without a name; `None` if it could not be made, or could not get its name later.
    fn create_unnamed(self, mode: u32) -> Result<Option<File>, ErrorKind> {
        if !has_descriptor_paths() {
            return Ok(None);
        }
        let stat = rustix::fs::statat(self.directory, self.name, AtFlags::SYMLINK_NOFOLLOW);
        if let Ok(stat) = stat {
            if self.existing != ExistingFiles::Replace {
                return Err(ErrorKind::Exists);
            }
            if HostFileType::from_raw_mode(stat.st_mode) == HostFileType::Directory {
                return Err(ErrorKind::DirectoryInTheWay);
            }
        }
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode);
        // Any error leads to one of the call that makes a file with a name.
        Ok(rustix::fs::openat(self.directory, c".", flags, mode).ok().map(File::from))
    }

    /// Gives a whole file its name, unless it has one.
    pub(crate) fn publish(self, file: NewFile) -> Result<File, ErrorKind> {
        let NewFile { file, is_named } = file;
        if is_named {
            return Ok(file);
        }
        let link = |path: &[u8]| {
            let flags = AtFlags::SYMLINK_FOLLOW;
            rustix::fs::linkat(CWD, path, self.directory, self.name, flags)
        };
        let linked = self.create(|| match with_path(file.as_fd(), link) {
            Err(PathError::Call(errno)) => Err(errno),
            Err(PathError::NoProc) => Err(Errno::NOSYS),
            Ok(()) => Ok(()),
        })?;
        linked.map_err(ErrorKind::output("cannot give the file its name"))?;
        Ok(file)
    }

    fn create_named(self, mode: u32) -> Result<File, ErrorKind> {
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
    pub(crate) fn create_symlink(self, target: &[u8]) -> Result<PinnedEntry, ErrorKind> {
        self.create(|| rustix::fs::symlinkat(target, self.directory, self.name))?
            .map_err(ErrorKind::output("cannot create symlink"))?;
        self.pin(HostFileType::Symlink, 0)
    }

    /// Creates a device node, FIFO or socket; `None` if the caller may not.
    pub(crate) fn create_special(self, inode: &Inode) -> Result<Option<PinnedEntry>, ErrorKind> {
        let kind = match inode.file_type() {
            FileType::CharDevice => HostFileType::CharacterDevice,
            FileType::BlockDevice => HostFileType::BlockDevice,
            FileType::Fifo => HostFileType::Fifo,
            _ => HostFileType::Socket,
        };
        let mode = Mode::RUSR | Mode::WUSR;
        let (major, minor) = inode.device().unwrap_or((0, 0));
        let number = makedev(major, minor);
        match self.create(|| rustix::fs::mknodat(self.directory, self.name, kind, mode, number))? {
            Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP) => return Ok(None),
            made => made.map_err(ErrorKind::output("cannot create special file"))?,
        }
        let is_device = matches!(inode.file_type(), FileType::CharDevice | FileType::BlockDevice);
        self.pin(kind, if is_device { number } else { 0 }).map(Some)
    }

    /// Opens the entry that was created under this name. Another process may have put something
    /// else there, so it must be of the same kind and have no other name: then nothing that existed
    /// before gets an owner, a mode or a time.
    pub(crate) fn pin(self, kind: HostFileType, device: u64) -> Result<PinnedEntry, ErrorKind> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(self.directory, self.name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Err(ErrorKind::Replaced),
            opened => opened.map_err(ErrorKind::output("cannot open the new entry"))?,
        };
        let stat = rustix::fs::fstat(&fd).map_err(ErrorKind::output(EXAMINE_NEW))?;
        let is_same = HostFileType::from_raw_mode(stat.st_mode) == kind
            && (device == 0 || stat.st_rdev == device)
            && stat.st_nlink < 2;
        if is_same { Ok(PinnedEntry { fd, stat }) } else { Err(ErrorKind::Replaced) }
    }

    /// The identity of what has this name now.
    pub(crate) fn file_id(self) -> Result<FileId, ErrorKind> {
        let stat = rustix::fs::statat(self.directory, self.name, AtFlags::SYMLINK_NOFOLLOW);
        Ok(FileId::of(&stat.map_err(ErrorKind::output(EXAMINE_NEW))?))
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

/// A new symlink, device node, FIFO or socket, held by a descriptor.
#[derive(Debug)]
pub(crate) struct PinnedEntry {
    pub(crate) fd: OwnedFd,
    pub(crate) stat: Stat,
}

/// Why a hard link was not created.
#[derive(Debug)]
pub(crate) enum LinkError {
    /// The host allows no hard link here; the caller writes a copy.
    Copy,
    Failed(ErrorKind),
}

/// A regular file that is being written.
#[derive(Debug)]
pub(crate) struct NewFile {
    pub(crate) file: File,
    is_named: bool,
}

impl NewFile {
    /// Removes a file that is not whole. One without a name ends with its last descriptor.
    pub(crate) fn remove(self, place: NewEntry<'_>) -> Result<(), ErrorKind> {
        if self.is_named { place.remove() } else { Ok(()) }
    }
}

/// The name of a file that is not whole yet. It is removed when this is dropped, after a panic too,
/// unless it is kept. A file without a name ends with its last descriptor.
#[derive(Debug)]
pub(crate) struct IncompleteFile<'a> {
    place: NewEntry<'a>,
    is_decided: bool,
}

impl<'a> IncompleteFile<'a> {
    pub(crate) fn new(place: NewEntry<'a>, new: &NewFile) -> Self {
        Self { place, is_decided: !new.is_named }
    }

    /// Keeps the file.
    pub(crate) fn keep(mut self) {
        self.is_decided = true;
    }

    /// Removes the file.
    pub(crate) fn remove(mut self) -> Result<(), ErrorKind> {
        match std::mem::replace(&mut self.is_decided, true) {
            true => Ok(()),
            false => self.place.remove(),
        }
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

/// Where a directory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectoryOrigin {
    /// The extraction created it; nobody else may enter it until it is complete.
    New,
    /// It existed, so its mode and its ACLs stay until it is complete. What is created in it may
    /// inherit an ACL.
    Existing { has_default_acl: bool },
}

impl DirectoryOrigin {
    /// Whether new entries inherit an ACL.
    pub(crate) fn acl_of_entries(self) -> ForeignAcl {
        match self {
            Self::Existing { has_default_acl: true } => ForeignAcl::Possible,
            _ => ForeignAcl::None,
        }
    }

    /// Whether the directory may have an ACL that is not the image's.
    pub(crate) fn own_acl(self) -> ForeignAcl {
        match self {
            Self::New => ForeignAcl::None,
            Self::Existing { .. } => ForeignAcl::Possible,
        }
    }
}

/// An open directory.
#[derive(Debug)]
pub(crate) struct OpenDirectory {
    fd: OwnedFd,
    /// Its status when it was opened.
    stat: Stat,
    pub(crate) origin: DirectoryOrigin,
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
    pub(crate) fn new(fd: OwnedFd, stat: Stat, origin: DirectoryOrigin) -> Self {
        Self { fd, stat, origin, left: OnceLock::new() }
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
