//! The directory that everything is written below. Only here a path of the host is used as it is:
//! the caller chose it, symlinks in it included.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Dir, Mode, OFlags};

use crate::directory_stack::prepare;
use crate::error::{Error, ErrorKind};
use crate::options::ExistingFiles;

/// Opens the destination, which is created if it is missing.
pub(crate) fn open(path: &Path, existing: ExistingFiles) -> Result<OwnedFd, Error> {
    try_open(path, existing).map_err(|kind| Error::new(kind, path.as_os_str().as_bytes()))
}

fn try_open(path: &Path, existing: ExistingFiles) -> Result<OwnedFd, ErrorKind> {
    let create_failed = |source| ErrorKind::Output { operation: "cannot create", source };
    std::fs::create_dir_all(path).map_err(create_failed)?;
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty())
        .map_err(ErrorKind::output("cannot open directory"))?;
    if existing == ExistingFiles::Refuse && !is_empty(&fd)? {
        return Err(ErrorKind::NotEmpty);
    }
    prepare(fd.as_fd())?;
    Ok(fd)
}

fn is_empty(fd: &OwnedFd) -> Result<bool, ErrorKind> {
    let failed = ErrorKind::output("cannot list directory");
    for entry in Dir::read_from(fd).map_err(&failed)? {
        let entry = entry.map_err(&failed)?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}
