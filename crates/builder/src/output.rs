//! The place of an output: a name in a directory that is opened once and held, or a file that is
//! written in place and pinned by its descriptor. Symlinks are followed only here, before anything
//! is written, and not against the rules for directories that everyone can write to. Called by
//! `build` for images and blobs, and by the command for archives and logs.

mod new_file;

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

pub use self::new_file::NewFile;
pub(crate) use self::new_file::{descriptor_path, has_descriptor_path};
use crate::{Error, ErrorKind, Result};

/// Symlinks that are followed in a row, as many as the kernel follows.
const LINKS_MAX: u32 = 40;

/// Everyone may create entries in such a directory, but remove only their own.
const SHARED_DIRECTORY: u32 = 0o1002;

/// What happens to a file that has the output's name already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExistingOutput {
    /// Nothing may have the name, neither now nor when the output is complete.
    Refuse,
    /// A regular file is replaced when the output is complete; the new one gets its mode and owner.
    /// A block device is written in place.
    Replace,
    /// A regular file is emptied and written in place, so that it stays the same inode. A block
    /// device is written in place, too. A name that is free now must be free at the end.
    Rewrite,
}

/// The place of an output.
#[derive(Debug)]
pub struct OutputTarget {
    /// As the caller gave it, for messages.
    pub(crate) path: PathBuf,
    pub(crate) place: OutputPlace,
}

#[derive(Debug)]
pub(crate) enum OutputPlace {
    /// The output gets this name when it is complete.
    Name(TargetName),
    InPlace(InPlaceFile),
}

/// A name in a directory.
#[derive(Debug)]
pub(crate) struct TargetName {
    directory: OwnedFd,
    name: OsString,
    /// The regular file that has the name.
    previous: Option<PreviousFile>,
    replaces: bool,
}

/// The regular file that is replaced.
#[derive(Debug)]
struct PreviousFile {
    /// It is held, so that no other file gets its inode number.
    _pinned: Option<OwnedFd>,
    device: u64,
    inode: u64,
    uid: u32,
    gid: u32,
    permissions: u32,
}

impl PreviousFile {
    fn new(stat: &Stat, pinned: Option<OwnedFd>) -> Self {
        Self {
            _pinned: pinned,
            device: stat.st_dev,
            inode: stat.st_ino,
            uid: stat.st_uid,
            gid: stat.st_gid,
            permissions: stat.st_mode & 0o777,
        }
    }
}

/// A file that is written in place.
#[derive(Debug)]
pub(crate) struct InPlaceFile {
    pub(crate) file: File,
    /// It is a regular file without other contents than the output.
    pub(crate) is_emptied: bool,
}

/// An entry of a directory that is held open.
#[derive(Debug)]
struct TargetEntry {
    directory: OwnedFd,
    name: OsString,
    /// What has the name, for examination only.
    pinned: Option<OwnedFd>,
    kind: TargetKind,
}

#[derive(Debug)]
enum TargetKind {
    Missing,
    Found(Stat),
    /// A link of /proc, whose text is not the way to its file.
    Magic,
}

impl OutputTarget {
    /// Opens the place of an output that is to be known as `path`. Nothing is created or changed.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`]; [`ErrorKind::InvalidOptions`] for a directory, a character device, a
    /// FIFO or a socket; errors of the host. In a directory that is sticky and writable for
    /// everyone, a symlink or a file of another user is refused, as the kernel does with
    /// `protected_symlinks` and `protected_regular`, unless the owner of the directory made it.
    pub fn open(path: &Path, existing: ExistingOutput) -> Result<Self> {
        let entry = match existing {
            ExistingOutput::Refuse => TargetEntry::at(path),
            ExistingOutput::Replace | ExistingOutput::Rewrite => TargetEntry::behind_links(path),
        };
        let place = entry.and_then(|entry| entry.into_place(existing));
        let place = place.map_err(|error| error.at(path))?;
        Ok(Self { path: path.to_owned(), place })
    }

    /// Opens a file or device that is there to write to it in place; nothing of it is removed.
    ///
    /// # Errors
    /// Errors of the host.
    pub fn in_place(path: &Path) -> Result<Self> {
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
        let opened = OpenOptions::new().write(true).custom_flags(flags).open(path);
        let file = opened.map_err(|source| failed("cannot open", source).at(path))?;
        let place = OutputPlace::InPlace(InPlaceFile { file, is_emptied: false });
        Ok(Self { path: path.to_owned(), place })
    }

    /// The path as it was given.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the output is written into a file that is there.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        matches!(self.place, OutputPlace::InPlace(_))
    }

    /// Whether the output is written into a block device.
    #[must_use]
    pub fn is_block_device(&self) -> bool {
        let OutputPlace::InPlace(InPlaceFile { file, .. }) = &self.place else { return false };
        file.metadata().is_ok_and(|found| found.file_type().is_block_device())
    }

    /// Whether `path` leads to the file that is replaced or written in place.
    #[must_use]
    pub fn is_file(&self, path: &Path) -> bool {
        let Ok(other) = std::fs::metadata(path) else { return false };
        self.file_id() == Some((other.dev(), other.ino()))
    }

    /// Whether both outputs have the same name in the same directory, or replace or are written into the same file.
    #[must_use]
    pub fn is_same_place(&self, other: &Self) -> bool {
        let has_same_file = self.file_id().is_some_and(|id| other.file_id() == Some(id));
        let has_same_name = match (&self.place, &other.place) {
            (OutputPlace::Name(one), OutputPlace::Name(other)) => {
                let id = |name: &TargetName| {
                    rustix::fs::fstat(&name.directory).ok().map(|stat| (stat.st_dev, stat.st_ino))
                };
                one.name == other.name && id(one).is_some_and(|own| id(other) == Some(own))
            }
            _ => false,
        };
        has_same_file || has_same_name
    }

    /// Device and inode of the file that is replaced or written in place.
    fn file_id(&self) -> Option<(u64, u64)> {
        match &self.place {
            OutputPlace::Name(name) => {
                name.previous.as_ref().map(|previous| (previous.device, previous.inode))
            }
            OutputPlace::InPlace(InPlaceFile { file, .. }) => {
                file.metadata().ok().map(|found| (found.dev(), found.ino()))
            }
        }
    }

    /// Empties a regular file that is written in place: from here on it holds no image until
    /// another one is complete.
    ///
    /// # Errors
    /// Errors of the host.
    pub fn begin(&self) -> Result<()> {
        match &self.place {
            OutputPlace::InPlace(in_place) => in_place.empty(),
            OutputPlace::Name(_) => Ok(()),
        }
        .map_err(|source| failed("cannot empty", source).at(&self.path))
    }
}

impl InPlaceFile {
    /// Empties the file, if it is one that holds nothing else.
    pub(crate) fn empty(&self) -> io::Result<()> {
        if self.is_emptied {
            self.file.set_len(0)?;
            self.file.sync_all()?;
        }
        Ok(())
    }
}

impl TargetEntry {
    /// What has the name `path`, which may be a symlink.
    fn at(path: &Path) -> Result<Self> {
        Self::open(CWD, path)
    }

    /// What is at the end of the symlinks that begin at `path`.
    fn behind_links(path: &Path) -> Result<Self> {
        let mut entry = Self::open(CWD, path)?;
        for _ in 0..LINKS_MAX {
            let TargetKind::Found(stat) = entry.kind else { return Ok(entry) };
            let kind = FileType::from_raw_mode(stat.st_mode);
            let (FileType::Symlink, Some(link)) = (kind, &entry.pinned) else {
                if kind == FileType::RegularFile {
                    check_shared(&entry.directory, &stat, FOREIGN_FILE)?;
                }
                return Ok(entry);
            };
            check_shared(&entry.directory, &stat, FOREIGN_LINK)?;
            let place = rustix::fs::fstatfs(&entry.directory).map_err(examine_failed)?;
            if place.f_type == rustix::fs::PROC_SUPER_MAGIC {
                return Ok(Self { kind: TargetKind::Magic, ..entry });
            }
            let text = rustix::fs::readlinkat(link, "", Vec::new()).map_err(examine_failed)?;
            let text = PathBuf::from(OsString::from_vec(text.into_bytes()));
            entry = Self::open(entry.directory.as_fd(), &text)?;
        }
        Err(failed("cannot follow the symlinks", Errno::LOOP.into()))
    }

    /// Opens the directory of `path`, and the entry for examination only.
    fn open(base: impl AsFd, path: &Path) -> Result<Self> {
        let (parent, name) = split(path)?;
        let directory = open_directory(base, parent)
            .map_err(|errno| failed("cannot open its directory", errno.into()))?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (pinned, kind) = match rustix::fs::openat(&directory, name, flags, Mode::empty()) {
            Ok(pinned) => {
                let stat = rustix::fs::fstat(&pinned).map_err(examine_failed)?;
                (Some(pinned), TargetKind::Found(stat))
            }
            Err(Errno::NOENT) => (None, TargetKind::Missing),
            Err(errno) => return Err(examine_failed(errno)),
        };
        Ok(Self { directory, name: name.to_owned(), pinned, kind })
    }

    fn into_place(self, existing: ExistingOutput) -> Result<OutputPlace> {
        let Self { directory, name, pinned, kind } = self;
        let replaces = existing == ExistingOutput::Replace;
        let stat = match kind {
            TargetKind::Missing => {
                let name = TargetName { directory, name, previous: None, replaces };
                return Ok(OutputPlace::Name(name));
            }
            _ if existing == ExistingOutput::Refuse => return Err(Error::new(ErrorKind::Exists)),
            TargetKind::Found(stat) => Some(stat),
            TargetKind::Magic if replaces => {
                return Err(refused("is a link of /proc; give the name of the file itself"));
            }
            TargetKind::Magic => None,
        };
        match stat.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            Some(FileType::RegularFile) if replaces => {
                let previous = stat.map(|stat| PreviousFile::new(&stat, pinned));
                Ok(OutputPlace::Name(TargetName { directory, name, previous, replaces }))
            }
            Some(FileType::RegularFile | FileType::BlockDevice) | None => {
                Ok(OutputPlace::InPlace(open_in_place(&directory, &name, stat.as_ref())?))
            }
            Some(FileType::Directory) => Err(refused("is the name of a directory")),
            Some(_) => Err(refused("is the name of a special file")),
        }
    }
}

/// Opens the file that was found as `expected`; without that, what a link of /proc leads to.
fn open_in_place(
    directory: &OwnedFd,
    name: &OsStr,
    expected: Option<&Stat>,
) -> Result<InPlaceFile> {
    let mut flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    flags.set(OFlags::NOFOLLOW, expected.is_some());
    let opened = rustix::fs::openat(directory, name, flags, Mode::empty());
    let file = File::from(opened.map_err(|errno| failed("cannot open", errno.into()))?);
    let found = rustix::fs::fstat(&file).map_err(examine_failed)?;
    let id = |stat: &Stat| (stat.st_dev, stat.st_ino);
    if expected.is_some_and(|expected| id(expected) != id(&found)) {
        let replaced = io::Error::other("another process replaced it");
        return Err(failed("cannot open", replaced));
    }
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => Ok(InPlaceFile { file, is_emptied: true }),
        FileType::BlockDevice => Ok(InPlaceFile { file, is_emptied: false }),
        _ => Err(refused("is the name of a special file")),
    }
}

const FOREIGN_LINK: &str =
    "is a symlink of another user in a directory that all may write to; use another directory";
const FOREIGN_FILE: &str =
    "is a file of another user in a directory that all may write to; use another directory";

/// Refuses an entry of another user in a directory that is sticky and writable for everyone, unless
/// the owner of the directory made it: its user may have put it there to misuse this process.
fn check_shared(directory: &OwnedFd, entry: &Stat, refusal: &'static str) -> Result<()> {
    let parent = rustix::fs::fstat(directory).map_err(examine_failed)?;
    if is_foreign(&parent, entry) {
        return Err(failed(refusal, Errno::ACCESS.into()));
    }
    Ok(())
}

/// Whether an entry of a directory that all users share was made by another user than the caller
/// and the owner of the directory.
fn is_foreign(directory: &Stat, entry: &Stat) -> bool {
    let is_shared = directory.st_mode & SHARED_DIRECTORY == SHARED_DIRECTORY;
    let caller = rustix::process::geteuid().as_raw();
    is_shared && entry.st_uid != caller && entry.st_uid != directory.st_uid
}

/// Opens `path` for appending; it is created if it is missing.
///
/// # Errors
/// A symlink, a FIFO, a socket or a directory; a file of another user in a directory that all
/// share, as in [`OutputTarget::open`]; errors of the host.
pub fn open_log(path: &Path) -> Result<File> {
    let open = || {
        let (parent, name) = split(path)?;
        let directory = open_directory(CWD, parent)
            .map_err(|errno| failed("cannot open its directory", errno.into()))?;
        let flags = OFlags::WRONLY
            | OFlags::APPEND
            | OFlags::CREATE
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::NOCTTY
            | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&directory, name, flags, Mode::from_raw_mode(0o666));
        let file = match opened {
            Err(Errno::LOOP) => return Err(refused("is a symlink; give the file it leads to")),
            // Nobody reads from the FIFO, or it is a socket.
            Err(Errno::NXIO) => return Err(refused("is the name of a FIFO or a socket")),
            opened => opened.map_err(|errno| failed("cannot open", errno.into()))?,
        };
        let found = rustix::fs::fstat(&file).map_err(examine_failed)?;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => check_shared(&directory, &found, FOREIGN_FILE)?,
            FileType::CharacterDevice => {}
            _ => return Err(refused("is neither a file nor a terminal")),
        }
        Ok(File::from(file))
    };
    open().map_err(|error: Error| error.at(path))
}

/// The directory and the last name of a path.
fn split(path: &Path) -> Result<(&Path, &OsStr)> {
    let bytes = path.as_os_str().as_bytes();
    let (parent, name) = match bytes.iter().rposition(|byte| *byte == b'/') {
        None => (b".".as_slice(), bytes),
        Some(0) => (b"/".as_slice(), &bytes[1..]),
        Some(slash) => (&bytes[..slash], &bytes[slash + 1..]),
    };
    if matches!(name, b"" | b"." | b"..") {
        return Err(refused("is the name of a directory"));
    }
    Ok((Path::new(OsStr::from_bytes(parent)), OsStr::from_bytes(name)))
}

/// Opens a directory to look up and create names in it.
fn open_directory(base: impl AsFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::openat(&base, path, flags, Mode::empty()) {
        // It may be searched, though not read.
        Err(Errno::ACCESS) => rustix::fs::openat(&base, path, flags | OFlags::PATH, Mode::empty()),
        opened => opened,
    }
}

fn examine_failed(errno: Errno) -> Error {
    failed("cannot examine", errno.into())
}

#[cold]
fn failed(operation: &'static str, source: io::Error) -> Error {
    Error::new(ErrorKind::Output { operation, source })
}

#[cold]
fn refused(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOptions(what.to_owned()))
}

/// Names that change between the steps of a build: every test puts something in the way by hand, where another process
/// could.
#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use tempfile::TempDir;

    use super::*;

    const ALL: [ExistingOutput; 3] =
        [ExistingOutput::Refuse, ExistingOutput::Replace, ExistingOutput::Rewrite];

    fn names(directory: &TempDir) -> Vec<String> {
        let name =
            |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<_> = fs::read_dir(directory.path()).unwrap().map(name).collect();
        names.sort();
        names
    }

    fn written(target: OutputTarget) -> NewFile {
        let new = target.create().unwrap();
        let mut file = new.file();
        file.write_all(b"new").unwrap();
        new
    }

    /// As on a file system that cannot make files without names.
    fn written_under_a_temporary_name(target: OutputTarget) -> NewFile {
        let OutputPlace::Name(name) = target.place else { panic!("in place") };
        let new = NewFile::create_named(name, target.path).unwrap();
        let mut file = new.file();
        file.write_all(b"new").unwrap();
        new
    }

    fn mode_of(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_link_made_during_the_build_is_not_followed_and_not_replaced() {
        for existing in [ExistingOutput::Refuse, ExistingOutput::Rewrite] {
            for write in [written, written_under_a_temporary_name] {
                let directory = TempDir::new().unwrap();
                let (victim, path) =
                    (directory.path().join("victim"), directory.path().join("image"));
                fs::write(&victim, "precious").unwrap();
                let target = OutputTarget::open(&path, existing).unwrap();
                symlink(&victim, &path).unwrap();
                let mut new = write(target);
                let error = new.publish().unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::Exists), "{error}");
                assert_eq!(error.path(), path);
                drop(new);
                assert_eq!(fs::read(&victim).unwrap(), b"precious");
                assert!(fs::symlink_metadata(&path).unwrap().is_symlink());
                assert_eq!(names(&directory), ["image", "victim"]);
            }
        }
    }

    #[test]
    fn a_link_made_during_a_forced_build_is_replaced_and_not_followed() {
        for write in [written, written_under_a_temporary_name] {
            let directory = TempDir::new().unwrap();
            let (victim, path) = (directory.path().join("victim"), directory.path().join("image"));
            fs::write(&victim, "precious").unwrap();
            let target = OutputTarget::open(&path, ExistingOutput::Replace).unwrap();
            symlink(&victim, &path).unwrap();
            write(target).publish().unwrap();
            assert_eq!(fs::read(&victim).unwrap(), b"precious");
            assert!(fs::symlink_metadata(&path).unwrap().is_file());
            assert_eq!(fs::read(&path).unwrap(), b"new");
            assert_eq!(names(&directory), ["image", "victim"]);
        }
    }

    #[test]
    fn a_directory_swapped_during_the_build_changes_nothing() {
        for existing in ALL {
            let directory = TempDir::new().unwrap();
            let [real, moved, other] =
                ["real", "moved", "other"].map(|it| directory.path().join(it));
            fs::create_dir(&real).unwrap();
            fs::create_dir(&other).unwrap();
            fs::write(other.join("image"), "precious").unwrap();
            let target = OutputTarget::open(&real.join("image"), existing).unwrap();
            fs::rename(&real, &moved).unwrap();
            symlink(&other, &real).unwrap();
            written(target).publish().unwrap();
            assert_eq!(fs::read(moved.join("image")).unwrap(), b"new");
            assert_eq!(fs::read(other.join("image")).unwrap(), b"precious");
        }
    }

    #[test]
    fn a_file_in_place_that_was_swapped_is_not_the_one_that_is_written() {
        let directory = TempDir::new().unwrap();
        let [path, moved, victim] =
            ["image", "moved", "victim"].map(|it| directory.path().join(it));
        fs::write(&victim, "precious").unwrap();
        fs::write(&path, "former").unwrap();
        let target = OutputTarget::open(&path, ExistingOutput::Rewrite).unwrap();
        fs::rename(&path, &moved).unwrap();
        symlink(&victim, &path).unwrap();
        target.begin().unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        assert_eq!(fs::read(&moved).unwrap(), b"");
    }

    /// Of the entries of other users in a directory that all share, only those of its owner are used.
    #[test]
    fn entries_of_other_users_in_a_shared_directory_are_foreign() {
        let folder = TempDir::new().unwrap();
        let caller = rustix::process::geteuid().as_raw();
        let stat = rustix::fs::stat(folder.path()).unwrap();
        let shared = |mode, owner| {
            let mut directory = stat;
            (directory.st_mode, directory.st_uid) = (mode, owner);
            directory
        };
        let entry = |owner| shared(0o100_644, owner);
        assert!(is_foreign(&shared(0o041_777, caller), &entry(caller + 1)));
        assert!(is_foreign(&shared(0o041_777, caller + 2), &entry(caller + 1)));
        assert!(!is_foreign(&shared(0o041_777, caller + 1), &entry(caller + 1)));
        assert!(!is_foreign(&shared(0o041_777, caller + 1), &entry(caller)));
        assert!(!is_foreign(&shared(0o040_777, caller), &entry(caller + 1)));
        assert!(!is_foreign(&shared(0o041_775, caller), &entry(caller + 1)));
    }

    #[test]
    fn an_output_that_exists_is_refused_whatever_it_is() {
        let directory = TempDir::new().unwrap();
        let path = |name| directory.path().join(name);
        fs::write(path("file"), "former").unwrap();
        symlink(path("file"), path("link")).unwrap();
        symlink(path("nothing"), path("dangling")).unwrap();
        for name in ["file", "link", "dangling"] {
            let error = OutputTarget::open(&path(name), ExistingOutput::Refuse).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Exists), "{name}: {error}");
        }
    }

    #[test]
    fn links_are_followed_one_after_the_other_from_their_own_directories() {
        let directory = TempDir::new().unwrap();
        let path = |name| directory.path().join(name);
        fs::create_dir(path("d")).unwrap();
        symlink("d/second", path("first")).unwrap();
        symlink("../real", path("d/second")).unwrap();
        for existing in [ExistingOutput::Replace, ExistingOutput::Rewrite] {
            written(OutputTarget::open(&path("first"), existing).unwrap()).publish().unwrap();
            assert_eq!(fs::read(path("real")).unwrap(), b"new");
            assert!(fs::symlink_metadata(path("first")).unwrap().is_symlink());
            fs::remove_file(path("real")).unwrap();
        }
        symlink("loop", path("loop")).unwrap();
        let error = OutputTarget::open(&path("loop"), ExistingOutput::Replace).unwrap_err();
        assert!(error.to_string().contains("cannot follow the symlinks"), "{error}");
    }

    #[test]
    fn a_file_that_is_replaced_passes_on_its_mode_and_its_other_names_stay() {
        for write in [written, written_under_a_temporary_name] {
            let directory = TempDir::new().unwrap();
            let [path, other] = ["image", "other"].map(|it| directory.path().join(it));
            fs::write(&path, "former").unwrap();
            fs::hard_link(&path, &other).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o4610)).unwrap();
            let mut new = write(OutputTarget::open(&path, ExistingOutput::Replace).unwrap());
            assert_eq!(new.file().metadata().unwrap().permissions().mode() & 0o7777, 0o610);
            new.publish().unwrap();
            assert_eq!(mode_of(&path), 0o610);
            assert_eq!(fs::read(&other).unwrap(), b"former");
        }
    }

    #[test]
    fn a_file_that_is_rewritten_is_emptied_and_stays_the_same() {
        let directory = TempDir::new().unwrap();
        let [path, other] = ["image", "other"].map(|it| directory.path().join(it));
        fs::write(&path, "former").unwrap();
        fs::hard_link(&path, &other).unwrap();
        let target = OutputTarget::open(&path, ExistingOutput::Rewrite).unwrap();
        assert!(target.is_in_place() && !target.is_block_device() && target.is_file(&other));
        assert_eq!(fs::read(&path).unwrap(), b"former");
        target.begin().unwrap();
        assert_eq!(fs::metadata(&other).unwrap().len(), 0);
        assert_eq!(fs::metadata(&path).unwrap().ino(), fs::metadata(&other).unwrap().ino());
    }

    #[test]
    fn outputs_have_the_same_place_by_their_name_or_by_their_file() {
        let directory = TempDir::new().unwrap();
        let path = |name| directory.path().join(name);
        fs::create_dir(path("d")).unwrap();
        fs::write(path("file"), "").unwrap();
        fs::hard_link(path("file"), path("other")).unwrap();
        symlink("file", path("link")).unwrap();
        symlink("d", path("e")).unwrap();
        for existing in [ExistingOutput::Replace, ExistingOutput::Rewrite] {
            let open = |name| OutputTarget::open(&path(name), existing).unwrap();
            for (one, other, is_same) in [
                ("new", "new", true),
                ("new", "d/../new", true),
                ("d/new", "e/new", true),
                ("new", "d/new", false),
                ("new", "file", false),
                ("new", "newer", false),
                ("file", "link", true),
                ("file", "other", true),
            ] {
                assert_eq!(open(one).is_same_place(&open(other)), is_same, "{one} {other}");
            }
        }
    }

    #[test]
    fn what_is_no_file_is_refused_without_waiting() {
        let directory = TempDir::new().unwrap();
        let path = |name| directory.path().join(name);
        let fifo = path("fifo");
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, mode, 0).unwrap();
        for existing in [ExistingOutput::Replace, ExistingOutput::Rewrite] {
            for path in [fifo.clone(), directory.path().to_owned(), "/dev/null".into(), "/".into()]
            {
                let error = OutputTarget::open(&path, existing).unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::InvalidOptions(_)), "{error}");
            }
        }
    }

    #[test]
    fn a_log_is_appended_to_and_neither_a_link_nor_a_fifo() {
        let directory = TempDir::new().unwrap();
        let [log, link, fifo] = ["log", "link", "fifo"].map(|it| directory.path().join(it));
        for line in ["one\n", "two\n"] {
            open_log(&log).unwrap().write_all(line.as_bytes()).unwrap();
        }
        assert_eq!(fs::read(&log).unwrap(), b"one\ntwo\n");
        symlink(&log, &link).unwrap();
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        for (path, part) in [(&link, "is a symlink"), (&fifo, "a FIFO")] {
            let error = open_log(path).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
            assert_eq!(error.path(), path);
        }
        // With a reader the FIFO could be opened.
        let reader = OFlags::RDONLY | OFlags::NONBLOCK;
        let _reader = rustix::fs::open(&fifo, reader, Mode::empty()).unwrap();
        let error = open_log(&fifo).unwrap_err();
        assert!(error.to_string().contains("neither a file"), "{error}");
    }
}
