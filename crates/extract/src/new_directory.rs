//! Makes and opens single directories of the host: by one name in an open directory, without
//! following a symlink. Called by `directory_stack` and `destination`.
//!
//! A new directory is closed to other users until it is complete. One that existed keeps its mode
//! and its ACLs until then: it may be in use.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::error::ErrorKind;
use crate::metadata::{ACL_ACCESS, ACL_DEFAULT, ForeignAcl, MetadataTarget, remove_xattr};
use crate::open_directory::{
    DirectoryOrigin, OpenDirectory, StagedDirectory, StagedName, StagingPlace,
};
use crate::options::ExistingFiles;
use crate::temporary_name::with_temporary_name;

/// Permissions of a new directory while it is being filled.
pub(crate) const WORKING_MODE: Mode = Mode::RWXU;

const EXAMINE: &str = "cannot examine directory";
const OPEN: &str = "cannot open directory";
const CREATE: &str = "cannot create directory";

/// Opens a new directory, and removes ACLs that it may have inherited.
pub(crate) fn open_new(fd: OwnedFd, parent_acl: ForeignAcl) -> Result<OpenDirectory, ErrorKind> {
    if parent_acl == ForeignAcl::Possible {
        for acl in [ACL_DEFAULT, ACL_ACCESS] {
            remove_xattr(MetadataTarget::Open(fd.as_fd()), acl)?;
        }
        match rustix::fs::fchmod(&fd, WORKING_MODE) {
            Ok(()) | Err(Errno::PERM) => {}
            Err(errno) => return Err(ErrorKind::output("cannot prepare directory")(errno)),
        }
    }
    examined(fd, DirectoryOrigin::New)
}

/// Opens a directory that existed. Its owner may need the permission to fill it, and gets it; no
/// permission is taken away.
pub(crate) fn open_existing(fd: OwnedFd) -> Result<OpenDirectory, ErrorKind> {
    let stat = rustix::fs::fstat(&fd).map_err(ErrorKind::output(EXAMINE))?;
    let caller = rustix::process::geteuid();
    let is_owner = !caller.is_root() && stat.st_uid == caller.as_raw();
    let mode = Mode::from_raw_mode(stat.st_mode);
    if is_owner && !mode.contains(WORKING_MODE) {
        rustix::fs::fchmod(&fd, mode | WORKING_MODE)
            .map_err(ErrorKind::output("cannot prepare directory"))?;
    }
    let default_acl = rustix::fs::fgetxattr(&fd, ACL_DEFAULT, &mut [0; 0]);
    let origin = DirectoryOrigin::Existing { has_default_acl: default_acl.is_ok() };
    examined(fd, origin)
}

/// An open directory with its status.
pub(crate) fn examined(fd: OwnedFd, origin: DirectoryOrigin) -> Result<OpenDirectory, ErrorKind> {
    let stat = rustix::fs::fstat(&fd).map_err(ErrorKind::output(EXAMINE))?;
    Ok(OpenDirectory::new(fd, stat, origin))
}

/// Opens the directory `name` for lookups only; a symlink is refused.
pub(crate) fn open_search(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, ErrorKind> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    open_at(parent, name, flags)
}

/// Opens the directory `name`; a symlink is refused.
pub(crate) fn open_directory(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, ErrorKind> {
    open_at(parent, name, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC)
}

fn open_at(parent: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> Result<OwnedFd, ErrorKind> {
    match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        Err(Errno::LOOP | Errno::NOTDIR) => Err(ErrorKind::Replaced),
        other => other.map_err(ErrorKind::output(OPEN)),
    }
}

/// Makes the directory `name` in one that is staged. What exists there was extracted before: the host
/// takes two names for one, as `A` and `a`.
pub(crate) fn make_directory(
    parent: &OpenDirectory,
    name: &[u8],
) -> Result<OpenDirectory, ErrorKind> {
    match rustix::fs::mkdirat(parent, name, WORKING_MODE) {
        Err(Errno::EXIST) => return Err(ErrorKind::Exists),
        made => made.map_err(ErrorKind::output(CREATE))?,
    }
    open_new(open_directory(parent.as_fd(), name)?, parent.origin.acl_of_entries())
}

/// Makes a staged directory in one that is not staged, or opens the one that exists. `level` is the
/// number of directories between the destination and it.
pub(crate) fn stage_directory(
    parent: &Arc<OpenDirectory>,
    place: StagingPlace,
    level: usize,
) -> Result<OpenDirectory, ErrorKind> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = rustix::fs::openat(parent, &*place.name, flags, Mode::empty());
    match (found, place.existing) {
        (Err(Errno::NOENT), _) | (Err(Errno::LOOP | Errno::NOTDIR), ExistingFiles::Replace) => {}
        (Ok(_), ExistingFiles::Refuse) | (Err(Errno::LOOP | Errno::NOTDIR), _) => {
            return Err(ErrorKind::Exists);
        }
        (found, _) => return open_existing(found.map_err(ErrorKind::output(OPEN))?),
    }
    let make = |name: &[u8]| rustix::fs::mkdirat(parent, name, WORKING_MODE);
    let ((), temporary) = with_temporary_name(make).map_err(ErrorKind::output(CREATE))?;
    open_staged(place, StagedName { level, temporary }, parent.origin.acl_of_entries())
}

/// Opens a staged directory that was just made; if that fails, it is removed.
pub(crate) fn open_staged(
    place: StagingPlace,
    name: StagedName,
    parent_acl: ForeignAcl,
) -> Result<OpenDirectory, ErrorKind> {
    let opened = open_directory(place.parent.as_fd(), &name.temporary);
    match opened.and_then(|fd| open_new(fd, parent_acl)) {
        Ok(directory) => {
            let staged = StagedDirectory::new(name, directory.file_id(), place);
            Ok(directory.within(Some(Arc::new(staged))))
        }
        Err(kind) => {
            // It is empty. The first error says more than a second one would.
            rustix::fs::unlinkat(&place.parent, &*name.temporary, AtFlags::REMOVEDIR).ok();
            Err(kind)
        }
    }
}
