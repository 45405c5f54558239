//! Finds the inode at a path, and follows symlinks as Linux does. Targets count from the root of
//! the image.

use ferrofs_image::{ErrorKind, FileType, FollowedPath, Image, Inode, LastLink, Nid};

use crate::errors::{BindingResult, Failure};

/// Whether a symlink at the end of a path is followed.
pub(crate) fn last_link(follow: bool) -> LastLink {
    if follow { LastLink::Follow } else { LastLink::Keep }
}

/// The inode at `path`, from the root on.
pub(crate) fn find(image: &Image, path: &[u8], last: LastLink) -> BindingResult<Inode> {
    find_at(image, path, last).map_err(|failure| failure.at(path))
}

/// The regular file at a path. A directory is refused as `open` refuses it.
pub(crate) fn regular_file(image: &Image, path: &[u8]) -> BindingResult<Inode> {
    let inode = find(image, path, LastLink::Follow)?;
    match inode.file_type() {
        FileType::Regular => Ok(inode),
        FileType::Directory => Err(Failure::new("ErofsError", "EISDIR", "is a directory").at(path)),
        _ => Err(Failure::new("ErofsError", "EINVAL", "not a regular file").at(path)),
    }
}

/// What is to be listed: the inode `nid`, or that at `path` without one.
pub(crate) fn directory(image: &Image, path: &[u8], nid: Option<u64>) -> BindingResult<Inode> {
    match nid {
        Some(nid) => image.inode(Nid::new(nid)).map_err(|error| Failure::from(error).at(path)),
        None => find(image, path, LastLink::Follow),
    }
}

fn find_at(image: &Image, path: &[u8], last: LastLink) -> BindingResult<Inode> {
    // Most paths lead through no symlink. `..` behind one would be another directory here.
    if !path.windows(2).any(|two| two == b"..")
        && let Some(inode) = image.resolve(path)?
        && (last == LastLink::Keep || inode.file_type() != FileType::Symlink)
    {
        return Ok(inode);
    }
    Ok(follow(image, path, last)?.inode)
}

/// The path without symlinks and `..` that leads to what `path` names, from the root on. A symlink
/// at the end is kept.
pub(crate) fn real_path(image: &Image, path: &[u8]) -> BindingResult<Vec<u8>> {
    let found = follow(image, path, LastLink::Keep);
    found.map(|found| found.path).map_err(|failure| failure.at(path))
}

fn follow(image: &Image, path: &[u8], last: LastLink) -> BindingResult<FollowedPath> {
    match image.follow(path, last) {
        Ok(found) => found.ok_or_else(Failure::not_found),
        Err(error) if matches!(error.kind(), ErrorKind::PathTooLong) => {
            Err(Failure::new("ErofsError", "ENAMETOOLONG", "the path has more than 65536 bytes"))
        }
        Err(error) => Err(error.into()),
    }
}
