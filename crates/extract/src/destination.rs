//! Opens the destination of an extraction. One that is missing is made under a temporary name
//! beside it, and gets its name when all of it is extracted. Only here the host resolves a whole
//! path: the caller chose it, symlinks in it included.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, ErrorKind};
use crate::metadata::ForeignAcl;
use crate::new_directory::{WORKING_MODE, open_existing, open_staged};
use crate::open_directory::{
    OpenDirectory, PublishFailures, StagedName, StagingParent, StagingPlace,
};
use crate::options::ExistingFiles;
use crate::temporary_name::is_temporary;

/// How many bytes of the name of the destination are part of its temporary name: 255 are allowed.
const NAME_BYTES: usize = 200;
/// How many temporary names are tried.
const NAMES_TRIED: usize = 1000;

/// The destination.
#[derive(Debug)]
pub(crate) struct OpenedDestination {
    pub(crate) directory: OpenDirectory,
    /// A directory that another extraction into the same destination has made: it is running, or
    /// was killed.
    pub(crate) leftover: Option<PathBuf>,
}

/// Opens the destination, which is created if it is missing. `failures` gets the error if it cannot
/// get its name in the end.
pub(crate) fn open_destination(
    path: &Path,
    existing: ExistingFiles,
    failures: &PublishFailures,
) -> Result<OpenedDestination, Error> {
    let opened = match open(path) {
        Ok(fd) => open_found(fd, existing),
        Err(Errno::NOENT) => make(path, failures),
        Err(errno) => Err(ErrorKind::output("cannot open directory")(errno)),
    };
    opened.map_err(|kind| Error::of_destination(kind, path.as_os_str().as_bytes()))
}

fn open(path: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

fn open_found(fd: OwnedFd, existing: ExistingFiles) -> Result<OpenedDestination, ErrorKind> {
    if existing == ExistingFiles::Refuse {
        check_empty(&fd)?;
    }
    Ok(OpenedDestination { directory: open_existing(fd)?, leftover: None })
}

fn check_empty(fd: &OwnedFd) -> Result<(), ErrorKind> {
    let failed = ErrorKind::output("cannot list directory");
    let mut leftover = None;
    for entry in Dir::read_from(fd).map_err(&failed)? {
        let entry = entry.map_err(&failed)?;
        match entry.file_name().to_bytes() {
            b"." | b".." => {}
            name if is_temporary(name) => leftover = Some(name.to_vec()),
            _ => return Err(ErrorKind::NotEmpty),
        }
    }
    match leftover {
        None => Ok(()),
        Some(name) => Err(ErrorKind::Leftover { name }),
    }
}

/// Makes a staged directory that is to become the destination.
fn make(path: &Path, failures: &PublishFailures) -> Result<OpenedDestination, ErrorKind> {
    let failed = |source| ErrorKind::Output { operation: "cannot create", source };
    let refused = |errno: Errno| failed(errno.into());
    let name = path.file_name().ok_or(refused(Errno::NOENT))?;
    let above = match path.parent() {
        Some(above) if !above.as_os_str().is_empty() => above,
        _ => Path::new("."),
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = || rustix::fs::open(above, flags, Mode::empty());
    let parent = match open() {
        Err(Errno::NOENT) => {
            std::fs::create_dir_all(above).map_err(failed)?;
            open()
        }
        opened => opened,
    };
    let parent = parent.map_err(refused)?;
    // A symlink that leads nowhere.
    if rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
        return Err(refused(Errno::EXIST));
    }
    let (temporary, is_first) = make_beside(&parent, name).map_err(refused)?;
    let first = temporary_name(name, 0);
    let leftover = (!is_first).then(|| above.join(OsStr::from_bytes(&first)));
    let place = StagingPlace {
        parent: StagingParent::Outside(parent),
        name: name.as_bytes().into(),
        existing: ExistingFiles::Refuse,
        path: path.as_os_str().as_bytes().to_vec(),
        failures: failures.clone(),
    };
    // Its parent may have given it an ACL.
    let staged = StagedName { level: 0, temporary };
    let directory = open_staged(place, staged, ForeignAcl::Possible)?;
    Ok(OpenedDestination { directory, leftover })
}

/// Makes a directory with a temporary name, and says whether its first name was free.
fn make_beside(parent: &impl AsFd, name: &OsStr) -> rustix::io::Result<(Box<[u8]>, bool)> {
    for number in 0..NAMES_TRIED {
        let temporary = temporary_name(name, number);
        match rustix::fs::mkdirat(parent, &*temporary, WORKING_MODE) {
            Err(Errno::EXIST) => {}
            made => return made.map(|()| (temporary, number == 0)),
        }
    }
    Err(Errno::BUSY)
}

/// A name as those of files that are not whole, which begins with that of the destination.
fn temporary_name(name: &OsStr, number: usize) -> Box<[u8]> {
    let name = name.as_bytes();
    let name = name.get(..NAME_BYTES).unwrap_or(name);
    let suffix = if number == 0 { ".part".to_owned() } else { format!(".{number}.part") };
    [b".", name, suffix.as_bytes()].concat().into()
}
