//! Entries of the host: a name in an open directory, and what can be created under it. If the name
//! exists, that is an error, or the old entry is replaced. Nothing here follows a symlink.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ferrofs_image::{FileType, Inode};
use rustix::fs::{
    AtFlags, CWD, FileType as HostFileType, Mode, OFlags, RenameFlags, Stat, makedev,
};
use rustix::io::{self, Errno};

use crate::descriptor_path::{DescriptorPathError, has_descriptor_paths, with_path};
use crate::error::{ErrorKind, REMOVE_INCOMPLETE};
use crate::metadata::ForeignAcl;
use crate::open_directory::FileId;
use crate::options::ExistingFiles;
use crate::temporary_name::with_temporary_name;

/// The place of a new entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewEntry<'a> {
    pub(crate) directory: BorrowedFd<'a>,
    pub(crate) name: &'a [u8],
    pub(crate) existing: ExistingFiles,
    /// Whether new entries of the directory inherit an ACL.
    pub(crate) foreign_acl: ForeignAcl,
    /// Whether nobody finds the directory yet, so that files may get their names before they are
    /// whole. To give them their names later takes 4 to 6 µs a file (ext4 and tmpfs), half of the
    /// time of a small one.
    pub(crate) is_staged: bool,
}

const NAME_FILE: &str = "cannot give the file its name";
const CREATE_FILE: &str = "cannot create file";
const EXAMINE_NEW: &str = "cannot examine the new entry";

impl NewEntry<'_> {
    /// Creates an empty regular file, open for writing, with permissions `mode` less the umask. In a
    /// directory that others may look into it gets its name when it is whole. Until then nobody else
    /// can open it: its owner and its group are not yet those that `mode` is for.
    pub(crate) fn create_file(self, mode: u32) -> Result<NewHostFile, ErrorKind> {
        let mode = Mode::from_raw_mode(mode);
        if self.is_staged {
            let file = self.create(|name| self.open_new(name, mode))?;
            let file = file.map_err(ErrorKind::output(CREATE_FILE))?;
            return Ok(NewHostFile { file, name: FileName::Final });
        }
        self.check_name()?;
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        if has_descriptor_paths()
            && let Ok(file) = rustix::fs::openat(self.directory, c".", flags, mode)
        {
            return Ok(NewHostFile { file: file.into(), name: FileName::None });
        }
        // Any error of the call above leads to one of this call.
        self.create_named_file(mode)
    }

    /// As `create_file`, with a temporary name.
    pub(crate) fn create_named_file(self, mode: Mode) -> Result<NewHostFile, ErrorKind> {
        let mode = mode & (Mode::RUSR | Mode::WUSR);
        let (file, temporary) = with_temporary_name(|name| self.open_new(name, mode))
            .map_err(ErrorKind::output(CREATE_FILE))?;
        Ok(NewHostFile { file, name: FileName::Temporary(temporary) })
    }

    fn open_new(self, name: &[u8], mode: Mode) -> io::Result<File> {
        let flags = OFlags::WRONLY
            | OFlags::CREATE
            | OFlags::EXCL
            | OFlags::NOFOLLOW
            | OFlags::CLOEXEC
            | OFlags::NOCTTY;
        rustix::fs::openat(self.directory, name, flags, mode).map(File::from)
    }

    /// Refuses a name that exists already and may not be replaced, before its contents are written.
    fn check_name(self) -> Result<(), ErrorKind> {
        if self.existing == ExistingFiles::Refuse {
            // The destination was empty. A name that came meanwhile is noticed in the end.
            return Ok(());
        }
        let stat = rustix::fs::statat(self.directory, self.name, AtFlags::SYMLINK_NOFOLLOW);
        match stat.map(|stat| HostFileType::from_raw_mode(stat.st_mode)) {
            Ok(_) if self.existing != ExistingFiles::Replace => Err(ErrorKind::Exists),
            Ok(HostFileType::Directory) => Err(ErrorKind::DirectoryInTheWay),
            _ => Ok(()),
        }
    }

    /// Gives a whole file its name, unless it has one. An entry that it replaces is there until
    /// then.
    pub(crate) fn publish(self, new: &NewHostFile) -> Result<(), ErrorKind> {
        match &new.name {
            FileName::Final => Ok(()),
            FileName::Temporary(temporary) => self.rename(temporary),
            FileName::None => match self.link(&new.file, self.name) {
                Err(Errno::EXIST) if self.existing == ExistingFiles::Replace => {
                    let link = with_temporary_name(|name| self.link(&new.file, name));
                    let ((), temporary) = link.map_err(ErrorKind::output(NAME_FILE))?;
                    let renamed = self.rename(&temporary);
                    if renamed.is_err() {
                        self.remove_name(&temporary)?;
                    }
                    renamed
                }
                Err(Errno::EXIST) => Err(ErrorKind::Exists),
                linked => linked.map_err(ErrorKind::output(NAME_FILE)),
            },
        }
    }

    /// Gives an open file without a name one.
    fn link(self, file: &File, name: &[u8]) -> io::Result<()> {
        let directory = self.directory;
        // Before Linux 6.10 this needs a capability.
        match rustix::fs::linkat(file, c"", directory, name, AtFlags::EMPTY_PATH) {
            Err(Errno::EXIST) => return Err(Errno::EXIST),
            Err(_) => {}
            Ok(()) => return Ok(()),
        }
        let flags = AtFlags::SYMLINK_FOLLOW;
        let linked =
            with_path(file.as_fd(), |path| rustix::fs::linkat(CWD, path, directory, name, flags));
        linked.map_err(|error| match error {
            DescriptorPathError::Call(errno) => errno,
            DescriptorPathError::NoProc => Errno::NOSYS,
        })
    }

    /// Gives a file with a temporary name its own.
    fn rename(self, temporary: &[u8]) -> Result<(), ErrorKind> {
        let (directory, name) = (self.directory, self.name);
        let renamed = if self.existing == ExistingFiles::Replace {
            rustix::fs::renameat(directory, temporary, directory, name)
        } else {
            let flags = RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(directory, temporary, directory, name, flags) {
                // The kernel or the file system does not have the flag.
                Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                    self.rename_without_flags(temporary)
                }
                renamed => renamed,
            }
        };
        match renamed {
            Err(Errno::EXIST) => Err(ErrorKind::Exists),
            Err(Errno::ISDIR) => Err(ErrorKind::DirectoryInTheWay),
            renamed => renamed.map_err(ErrorKind::output(NAME_FILE)),
        }
    }

    /// As a rename that replaces nothing, on a file system that has no such call.
    fn rename_without_flags(self, temporary: &[u8]) -> io::Result<()> {
        let (directory, name, flags) = (self.directory, self.name, AtFlags::empty());
        match rustix::fs::linkat(directory, temporary, directory, name, flags) {
            Err(errno) if has_no_links(errno) => self.rename_over_empty_file(temporary),
            linked => linked.and_then(|()| rustix::fs::unlinkat(directory, temporary, flags)),
        }
    }

    /// The same without hard links: an empty file takes the name first. SIGKILL in between leaves it.
    /// A file that another process puts in its place meanwhile is replaced, or removed after a failure.
    fn rename_over_empty_file(self, temporary: &[u8]) -> io::Result<()> {
        let (directory, name) = (self.directory, self.name);
        drop(self.open_new(name, Mode::RUSR | Mode::WUSR)?);
        rustix::fs::renameat(directory, temporary, directory, name).inspect_err(|_| {
            rustix::fs::unlinkat(directory, name, AtFlags::empty()).ok();
        })
    }

    /// Creates a symlink.
    pub(crate) fn create_symlink(self, target: &[u8]) -> Result<PinnedEntry, ErrorKind> {
        self.create(|name| rustix::fs::symlinkat(target, self.directory, name))?
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
        match self.create(|name| rustix::fs::mknodat(self.directory, name, kind, mode, number))? {
            Err(errno) if has_no_special_files(errno) => return Ok(None),
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
        let made = self.create(|name| {
            let flags = AtFlags::empty();
            rustix::fs::linkat(first_directory, first_name, self.directory, name, flags)
        });
        match made.map_err(LinkError::Failed)? {
            Err(errno) if has_no_links(errno) => Err(LinkError::Copy),
            other => other.map_err(|errno| {
                LinkError::Failed(ErrorKind::output("cannot create hard link")(errno))
            }),
        }
    }

    /// Removes the entry that was created under this name.
    pub(crate) fn remove(self) -> Result<(), ErrorKind> {
        self.remove_name(self.name)
    }

    fn remove_name(self, name: &[u8]) -> Result<(), ErrorKind> {
        match rustix::fs::unlinkat(self.directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(ErrorKind::output(REMOVE_INCOMPLETE)(errno)),
        }
    }

    /// Calls `make` with the name. If an existing entry is to be replaced, `make` gets a temporary
    /// name, so that the old entry stays if it fails.
    fn create<T>(self, make: impl Fn(&[u8]) -> io::Result<T>) -> Result<io::Result<T>, ErrorKind> {
        match make(self.name) {
            Err(Errno::EXIST) if self.existing == ExistingFiles::Replace => {}
            Err(Errno::EXIST) => return Err(ErrorKind::Exists),
            other => return Ok(other),
        }
        let (made, temporary) = match with_temporary_name(make) {
            Ok(made) => made,
            Err(errno) => return Ok(Err(errno)),
        };
        let renamed = self.rename(&temporary);
        // It is still there after an error, and if both were names of one file.
        self.remove_name(&temporary)?;
        renamed.map(|()| Ok(made))
    }
}

/// Whether no hard link is possible here, after this error of linkat(2). ACCESS: the file belongs to
/// another user. NOSYS: FUSE servers without the call.
fn has_no_links(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::MLINK | Errno::PERM | Errno::OPNOTSUPP | Errno::XDEV | Errno::ACCESS | Errno::NOSYS
    )
}

/// Whether the caller or the file system cannot have a special file here, after this error of
/// mknodat(2).
fn has_no_special_files(errno: Errno) -> bool {
    matches!(errno, Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::NOSYS)
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
pub(crate) struct NewHostFile {
    pub(crate) file: File,
    name: FileName,
}

/// The name of a file that is being written.
#[derive(Debug)]
enum FileName {
    /// The name that it is to have.
    Final,
    Temporary(Box<[u8]>),
    /// It ends with its last descriptor.
    None,
}

/// Removes the name of a file that is not whole, or has not got its own name, when this is dropped,
/// after a panic too, unless it is kept.
#[derive(Debug)]
pub(crate) struct IncompleteFile<'a> {
    new_entry: NewEntry<'a>,
    /// The name that is to be removed.
    name: Option<&'a [u8]>,
}

impl<'a> IncompleteFile<'a> {
    pub(crate) fn new(new_entry: NewEntry<'a>, new: &'a NewHostFile) -> Self {
        let name = match &new.name {
            FileName::Final => Some(new_entry.name),
            FileName::Temporary(temporary) => Some(&**temporary),
            FileName::None => None,
        };
        Self { new_entry, name }
    }

    /// Guards only a temporary name: the contents are whole.
    pub(crate) fn whole(new_entry: NewEntry<'a>, new: &'a NewHostFile) -> Self {
        let name = match &new.name {
            FileName::Temporary(temporary) => Some(&**temporary),
            FileName::Final | FileName::None => None,
        };
        Self { new_entry, name }
    }

    /// Keeps the file.
    pub(crate) fn keep(mut self) {
        self.name = None;
    }

    /// Removes the file.
    pub(crate) fn remove(mut self) -> Result<(), ErrorKind> {
        self.name.take().map_or(Ok(()), |name| self.new_entry.remove_name(name))
    }
}

impl Drop for IncompleteFile<'_> {
    fn drop(&mut self) {
        if let Some(name) = self.name {
            // A panic is unwinding, and is reported; this second failure cannot be.
            self.new_entry.remove_name(name).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    fn names(folder: &TempDir) -> Vec<String> {
        let entries = fs::read_dir(folder.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    fn new_entry(directory: &File) -> NewEntry<'_> {
        NewEntry {
            directory: directory.as_fd(),
            name: b"name",
            existing: ExistingFiles::Keep,
            foreign_acl: ForeignAcl::None,
            is_staged: false,
        }
    }

    #[test]
    fn without_the_flag_of_rename_a_file_gets_a_free_name_and_replaces_none() {
        for has_links in [true, false] {
            let folder = TempDir::new().unwrap();
            let path = |name: &str| folder.path().join(name);
            let directory = File::open(folder.path()).unwrap();
            let rename = |temporary: &[u8]| match has_links {
                true => new_entry(&directory).rename_without_flags(temporary),
                false => new_entry(&directory).rename_over_empty_file(temporary),
            };
            fs::write(path("first"), "first").unwrap();
            rename(b"first").unwrap();
            assert_eq!(names(&folder), ["name"]);
            fs::write(path("second"), "second").unwrap();
            assert_eq!(rename(b"second"), Err(Errno::EXIST));
            assert_eq!(names(&folder), ["name", "second"]);
            assert_eq!(fs::read(path("name")).unwrap(), b"first");
            fs::remove_file(path("name")).unwrap();
            assert_eq!(rename(b"gone"), Err(Errno::NOENT));
            assert_eq!(names(&folder), ["second"]);
        }
    }

    #[test]
    fn what_cannot_be_linked_is_renamed_over_an_empty_file() {
        let folder = TempDir::new().unwrap();
        fs::create_dir(folder.path().join("directory")).unwrap();
        let directory = File::open(folder.path()).unwrap();
        // A directory cannot be linked, nor take the place of a file: this error is of the second call.
        let renamed = new_entry(&directory).rename_without_flags(b"directory");
        assert_eq!(renamed, Err(Errno::NOTDIR));
        assert_eq!(names(&folder), ["directory"]);
    }

    #[test]
    fn errors_of_calls_that_are_missing_are_told_from_others() {
        for errno in [Errno::PERM, Errno::OPNOTSUPP, Errno::NOSYS] {
            assert!(has_no_links(errno) && has_no_special_files(errno), "{errno}");
        }
        for errno in [Errno::NOSPC, Errno::EXIST, Errno::NOENT] {
            assert!(!has_no_links(errno) && !has_no_special_files(errno), "{errno}");
        }
    }
}
