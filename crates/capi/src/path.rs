//! Follows symbolic links inside an image. The image library resolves paths without following any.

use std::collections::VecDeque;

use ferrofs_image::{FileType, Image, Inode};

use crate::error::{CallError, CallResult, Code};

/// As many links as Linux follows in one path.
const LINKS_MAX: usize = 40;
/// The most components of a path that are left to follow: more than Linux's `PATH_MAX` can hold, and
/// so few that links cannot take much memory.
const COMPONENTS_MAX: usize = 4096;

/// What happens to a link in the last component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastLink {
    Follow,
    Keep,
}

/// The inode at `path`. `..` goes up from where links have led; the root is its own parent.
pub(crate) fn resolve(image: &Image, path: &[u8], last: LastLink) -> CallResult<Inode> {
    let mut left = VecDeque::new();
    push_front(&mut left, path)?;
    // A path that ends with a slash names a directory, so its last link is followed.
    let ends_with_slash = path.ends_with(b"/");
    let mut parents: Vec<Inode> = Vec::new();
    let mut here = image.root()?;
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        if here.file_type() != FileType::Directory {
            return Err(CallError::not_a_directory(path));
        }
        if name == b".." {
            here = parents.pop().unwrap_or(here);
            continue;
        }
        let found = image.lookup(&here, &name)?.ok_or_else(|| CallError::not_found(path))?;
        let is_last = left.is_empty() && !ends_with_slash;
        if found.file_type() == FileType::Symlink && !(is_last && last == LastLink::Keep) {
            links += 1;
            if links > LINKS_MAX {
                let message = format!("{}: too many symbolic links", path.escape_ascii());
                return Err(CallError::new(Code::Loop, message).at_path(path));
            }
            let target = image.read_link(&found)?;
            if target.starts_with(b"/") {
                parents.clear();
                here = image.root()?;
            }
            push_front(&mut left, &target)?;
        } else {
            parents.push(std::mem::replace(&mut here, found));
        }
    }
    if ends_with_slash && here.file_type() != FileType::Directory {
        return Err(CallError::not_a_directory(path));
    }
    Ok(here)
}

/// Puts the components of `path` before those that are left.
fn push_front(left: &mut VecDeque<Vec<u8>>, path: &[u8]) -> CallResult<()> {
    let names = path.split(|byte| *byte == b'/');
    for name in names.rev().filter(|name| !matches!(*name, b"" | b".")) {
        if left.len() >= COMPONENTS_MAX {
            return Err(CallError::invalid(format!("a path of more than {COMPONENTS_MAX} names")));
        }
        left.push_front(name.to_vec());
    }
    Ok(())
}
