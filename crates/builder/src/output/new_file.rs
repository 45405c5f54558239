//! A file that is written before it has its name. Until then it has none, or a temporary one beside
//! it. The file gets its name when it is complete and durable; without that it is removed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, RenameFlags, Uid};
use rustix::io::Errno;

use super::{OutputPlace, OutputTarget, PreviousFile, TargetName, failed};
use crate::{Error, ErrorKind, Result};

/// Names that are tried for a temporary file before giving up.
const NAMES_TRIED: u32 = 64;

/// Bytes of the output's name that its temporary name has: with the rest it stays below the 255 of
/// the usual file systems.
const NAME_BYTES: usize = 200;

/// A file that has no name yet, or a temporary one.
#[derive(Debug)]
pub struct NewFile {
    file: File,
    /// Removed when this is dropped.
    temporary: Option<OsString>,
    target: TargetName,
    /// As the caller gave it, for messages.
    path: PathBuf,
}

impl OutputTarget {
    /// Creates the file in the directory of `self`; without a name where the file system can do
    /// that. If it is to replace another file, it has the mode and the owner of that file from the
    /// beginning, as far as the caller may set them.
    ///
    /// # Errors
    /// Errors of the host; a target that is written in place.
    pub fn create(self) -> Result<NewFile> {
        let Self { path, place: OutputPlace::Name(target) } = self else {
            return Err(Error::new(ErrorKind::Internal("a file in place is not created")));
        };
        let created = NewFile::create(target, path.clone());
        created.map_err(|source| failed("cannot create", source).at(path))
    }
}

impl NewFile {
    fn create(target: TargetName, path: PathBuf) -> io::Result<Self> {
        let Some(file) = open_unnamed(&target.directory) else {
            return Self::create_named(target, path);
        };
        Self { file, temporary: None, target, path }.with_owner_and_mode()
    }

    /// Creates the file with a temporary name.
    pub(super) fn create_named(target: TargetName, path: PathBuf) -> io::Result<Self> {
        let mode = Mode::from_raw_mode(0o666);
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = |part: &OsStr| rustix::fs::openat(&target.directory, part, flags, mode);
        let (file, part) = target.try_names(open)?;
        Self { file: file.into(), temporary: Some(part), target, path }.with_owner_and_mode()
    }

    fn with_owner_and_mode(self) -> io::Result<Self> {
        if let Some(previous) = &self.target.previous {
            copy_owner_and_mode(&self.file, previous)?;
        }
        Ok(self)
    }

    /// The open file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The path of the output as it was given.
    #[must_use]
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Where the file can be opened now.
    pub(crate) fn readable_path(&self) -> PathBuf {
        match &self.temporary {
            Some(part) if !has_descriptor_path(&self.file) => self.path.with_file_name(part),
            _ => descriptor_path(&self.file),
        }
    }

    /// Makes the file durable, gives it its name, and makes the name durable.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] if something has the name that must not be replaced; errors of the
    /// host. The name then has what it had before.
    pub fn publish(&mut self) -> Result<()> {
        self.prepare()?;
        self.give_name()
    }

    /// Makes the file durable, and checks that its name is free if nothing may be replaced. Names
    /// are not changed.
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub(crate) fn prepare(&self) -> Result<()> {
        let synced = self.file.sync_all();
        synced.map_err(|source| failed("cannot sync", source).at(&self.path))?;
        if !self.target.replaces && self.target.found().is_some() {
            return Err(Error::new(ErrorKind::Exists).at(&self.path));
        }
        Ok(())
    }

    /// Gives a file that is [prepared](Self::prepare) its name, and makes the name durable.
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub(crate) fn give_name(&mut self) -> Result<()> {
        self.try_give_name().map_err(|error| error.at(&self.path))
    }

    fn try_give_name(&mut self) -> Result<()> {
        let named = match self.temporary.clone() {
            Some(part) => self.rename(&part),
            None => self.link(),
        };
        match named {
            Err(Errno::EXIST) => return Err(Error::new(ErrorKind::Exists)),
            named => named
                .map_err(|errno| failed("cannot give the finished file its name", errno.into()))?,
        }
        self.temporary = None;
        let synced = self.target.sync(&self.file);
        synced.map_err(|source| failed("cannot sync its directory", source))
    }

    /// Removes the file that is to be replaced, if it still has the name. A file that another
    /// process has put there since the target was opened stays.
    pub(crate) fn remove_previous(&self) -> io::Result<()> {
        let TargetName { previous, replaces, .. } = &self.target;
        match previous {
            Some(previous) if *replaces => self.unlink((previous.device, previous.inode)),
            _ => Ok(()),
        }
    }

    /// Whether the file has its name.
    pub(crate) fn has_name(&self) -> bool {
        rustix::fs::fstat(&self.file)
            .is_ok_and(|own| self.target.found() == Some((own.st_dev, own.st_ino)))
    }

    /// Takes the name from the file again, if the file has it.
    pub(crate) fn unlink_own(&self) -> io::Result<()> {
        let own = rustix::fs::fstat(&self.file)?;
        self.unlink((own.st_dev, own.st_ino))
    }

    /// Removes the name if the file with this device and inode has it.
    fn unlink(&self, file: (u64, u64)) -> io::Result<()> {
        let TargetName { directory, name, .. } = &self.target;
        if self.target.found() != Some(file) {
            return Ok(());
        }
        match rustix::fs::unlinkat(directory, name.as_os_str(), AtFlags::empty()) {
            Ok(()) => self.target.sync(&self.file),
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether the file may replace another, and something has its name now.
    pub(crate) fn replaces(&self) -> bool {
        self.target.replaces && self.target.found().is_some()
    }

    /// Gives a file without a name its name. A link never replaces a file, so if it is to replace
    /// one, it gets a temporary name first.
    fn link(&mut self) -> rustix::io::Result<()> {
        let from = descriptor_path(&self.file);
        let directory = &self.target.directory;
        let link =
            |to: &OsStr| rustix::fs::linkat(CWD, &from, directory, to, AtFlags::SYMLINK_FOLLOW);
        match link(&self.target.name) {
            Err(Errno::EXIST) if self.target.replaces => {}
            linked => return linked,
        }
        let ((), part) = self.target.try_names(link)?;
        self.temporary = Some(part.clone());
        self.rename(&part)
    }

    fn rename(&self, part: &OsStr) -> rustix::io::Result<()> {
        let TargetName { directory, name, replaces, .. } = &self.target;
        if *replaces {
            return rustix::fs::renameat(directory, part, directory, name);
        }
        match rustix::fs::renameat_with(directory, part, directory, name, RenameFlags::NOREPLACE) {
            // The file system cannot do that; a link replaces nothing, either.
            Err(Errno::INVAL | Errno::NOSYS) => {
                rustix::fs::linkat(directory, part, directory, name, AtFlags::empty())?;
                rustix::fs::unlinkat(directory, part, AtFlags::empty())
            }
            renamed => renamed,
        }
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(part) = &self.temporary {
            // A failure is not reported: an earlier error is, and the name says what it is.
            rustix::fs::unlinkat(&self.target.directory, part, AtFlags::empty()).ok();
        }
    }
}

impl TargetName {
    /// Device and inode of what has the name now; a symlink is not followed.
    fn found(&self) -> Option<(u64, u64)> {
        let Self { directory, name, .. } = self;
        let found = rustix::fs::statat(directory, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW);
        found.ok().map(|found| (found.st_dev, found.st_ino))
    }

    /// Makes the names of the directory durable; `file` lies in it.
    fn sync(&self, file: &File) -> io::Result<()> {
        match rustix::fs::fsync(&self.directory) {
            // Some file systems cannot sync a directory.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            // The directory may be searched, not read: the whole file system is synced.
            Err(Errno::BADF) => Ok(rustix::fs::syncfs(file)?),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Calls `make` with temporary names until one is free.
    fn try_names<T>(
        &self,
        make: impl Fn(&OsStr) -> rustix::io::Result<T>,
    ) -> rustix::io::Result<(T, OsString)> {
        let name = self.name.as_bytes();
        let name = name.get(..NAME_BYTES).unwrap_or(name);
        let mut number = 0;
        loop {
            let mut part = [b".", name].concat();
            part.extend_from_slice(format!(".{}", std::process::id()).as_bytes());
            if number > 0 {
                part.extend_from_slice(format!(".{number}").as_bytes());
            }
            part.extend_from_slice(b".part");
            let part = OsString::from_vec(part);
            match make(&part) {
                Ok(made) => return Ok((made, part)),
                Err(Errno::EXIST) if number < NAMES_TRIED => number += 1,
                // That would mean that the output itself exists.
                Err(Errno::EXIST) => return Err(Errno::BUSY),
                Err(errno) => return Err(errno),
            }
        }
    }
}

fn open_unnamed(directory: &OwnedFd) -> Option<File> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(directory, ".", flags, Mode::from_raw_mode(0o666));
    // Without /proc only root could give it a name later.
    opened.ok().map(File::from).filter(has_descriptor_path)
}

/// Gives a new file the owner and the permissions of the file that it replaces. Set-id bits are
/// left out. An owner that the caller may not set is that of the caller.
fn copy_owner_and_mode(file: &File, previous: &PreviousFile) -> io::Result<()> {
    let own = rustix::fs::fstat(file)?;
    let (uid, gid) = (Uid::from_raw(previous.uid), Gid::from_raw(previous.gid));
    if (own.st_uid, own.st_gid) != (previous.uid, previous.gid)
        && rustix::fs::fchown(file, Some(uid), Some(gid)).is_err()
    {
        rustix::fs::fchown(file, None, Some(gid)).ok();
    }
    if let Err(errno) = rustix::fs::fchmod(file, Mode::from_raw_mode(previous.permissions)) {
        // Some file systems have the same mode for all files.
        if own.st_mode & 0o777 & !previous.permissions != 0 {
            return Err(errno.into());
        }
    }
    Ok(())
}

/// A path to an open file, for system calls that take no descriptor.
pub(crate) fn descriptor_path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Whether the host has such paths.
pub(crate) fn has_descriptor_path(file: &File) -> bool {
    std::fs::symlink_metadata(descriptor_path(file)).is_ok()
}
