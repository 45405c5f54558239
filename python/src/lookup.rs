//! Finds the inode at a path, and follows symlinks as Linux does. Targets count from the root of
//! the image.

use std::collections::VecDeque;

use ferrofs_image::{FileType, Image, Inode};

use crate::errors::{BindingResult, Failure};

/// Symlinks that one path may lead through: Linux's limit.
const SYMLINKS_MAX: usize = 40;

/// Whether a symlink at the end of a path is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastLink {
    Follow,
    Keep,
}

impl From<bool> for LastLink {
    fn from(follow: bool) -> Self {
        if follow { Self::Follow } else { Self::Keep }
    }
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

fn find_at(image: &Image, path: &[u8], last: LastLink) -> BindingResult<Inode> {
    // Most paths lead through no symlink. `..` behind one would be another directory here.
    if !path.windows(2).any(|two| two == b"..")
        && let Some(inode) = image.resolve(path)?
        && (last == LastLink::Keep || inode.file_type() != FileType::Symlink)
    {
        return Ok(inode);
    }
    Ok(follow(image, path, last)?.0)
}

/// The path without symlinks and `..` that leads to what `path` names, from the root on. A symlink
/// at the end is kept.
pub(crate) fn real_path(image: &Image, path: &[u8]) -> BindingResult<Vec<u8>> {
    let found = follow(image, path, LastLink::Keep);
    found.map(|(_, real)| real).map_err(|failure| failure.at(path))
}

/// The inode at `path`, and the path that leads to it without symlinks.
fn follow(image: &Image, path: &[u8], last: LastLink) -> BindingResult<(Inode, Vec<u8>)> {
    let mut names: VecDeque<Vec<u8>> = names_of(path);
    let (mut parents, mut real) = (Vec::new(), Vec::new());
    let mut current = image.root()?;
    let mut links = 0;
    while let Some(name) = names.pop_front() {
        if current.file_type() != FileType::Directory {
            return Err(Failure::new("ErofsError", "ENOTDIR", "not a directory"));
        }
        if name == b".." {
            current = parents.pop().unwrap_or(current);
            real.pop();
            continue;
        }
        let found = image.lookup(&current, &name)?.ok_or_else(Failure::not_found)?;
        let is_kept = last == LastLink::Keep && names.is_empty();
        if found.file_type() != FileType::Symlink || is_kept {
            parents.push(std::mem::replace(&mut current, found));
            real.push(name);
            continue;
        }
        links += 1;
        if links > SYMLINKS_MAX {
            return Err(Failure::new("ErofsError", "ELOOP", "too many levels of symlinks"));
        }
        let target = image.read_link(&found)?;
        if target.starts_with(b"/") {
            parents.clear();
            real.clear();
            current = image.root()?;
        }
        for name in names_of(&target).into_iter().rev() {
            names.push_front(name);
        }
    }
    Ok((current, [b"/", real.join(&b'/').as_slice()].concat()))
}

fn names_of(path: &[u8]) -> VecDeque<Vec<u8>> {
    let names = path.split(|byte| *byte == b'/');
    names.filter(|name| !name.is_empty() && *name != b".").map(<[u8]>::to_vec).collect()
}
