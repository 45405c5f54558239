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
    Ok(follow(image, path, last)?.0)
}

/// The path without links and `..` that leads to what `path` names, from the root on.
pub(crate) fn real_path(image: &Image, path: &[u8], last: LastLink) -> CallResult<Vec<u8>> {
    Ok(follow(image, path, last)?.1)
}

/// The inode at `path`, and the path that leads to it without links.
fn follow(image: &Image, path: &[u8], last: LastLink) -> CallResult<(Inode, Vec<u8>)> {
    let mut left = VecDeque::new();
    push_front(&mut left, path)?;
    let mut wants_directory = ends_as_directory(path);
    let (mut parents, mut real): (Vec<Inode>, Vec<Vec<u8>>) = Default::default();
    let mut here = image.root()?;
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        if here.file_type() != FileType::Directory {
            return Err(CallError::not_a_directory(path));
        }
        if name == b".." {
            here = parents.pop().unwrap_or(here);
            real.pop();
            continue;
        }
        let found = image.lookup(&here, &name)?.ok_or_else(|| CallError::not_found(path))?;
        let is_last = left.is_empty() && !wants_directory;
        if found.file_type() == FileType::Symlink && !(is_last && last == LastLink::Keep) {
            links += 1;
            if links > LINKS_MAX {
                let message = format!("{}: too many symbolic links", path.escape_ascii());
                return Err(CallError::new(Code::Loop, message).at_path(path));
            }
            let target = image.read_link(&found)?;
            wants_directory |= left.is_empty() && ends_as_directory(&target);
            if target.starts_with(b"/") {
                parents.clear();
                real.clear();
                here = image.root()?;
            }
            push_front(&mut left, &target)?;
        } else {
            parents.push(std::mem::replace(&mut here, found));
            real.push(name);
        }
    }
    if wants_directory && here.file_type() != FileType::Directory {
        return Err(CallError::not_a_directory(path));
    }
    Ok((here, [b"/", real.join(&b'/').as_slice()].concat()))
}

/// Whether a path names a directory by its end, so that its last link is followed, too.
fn ends_as_directory(path: &[u8]) -> bool {
    path.rsplit(|byte| *byte == b'/').next().is_some_and(|last| matches!(last, b"" | b"."))
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::{fs, io};

    use ferrofs_builder::import::{DirectoryOptions, from_directory};
    use ferrofs_builder::{BuildOptions, CancelToken, NoopObserver};

    use super::*;

    /// A directory with a tree, and an image of that tree.
    fn links() -> io::Result<(tempfile::TempDir, Image)> {
        let dir = tempfile::tempdir()?;
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("d/e"))?;
        fs::write(tree.join("d/file"), "x")?;
        for (target, name) in [
            ("d", "to-d"),
            ("/d/e/..", "absolute"),
            ("d/file", "to-file"),
            ("d/file/", "slash"),
            ("loop", "loop"),
            ("nothing", "broken"),
            ("to-d", "twice"),
        ] {
            symlink(target, tree.join(name))?;
        }
        let output = dir.path().join("image");
        let (observer, cancel) = (NoopObserver, CancelToken::new());
        let imported =
            from_directory(&tree, &DirectoryOptions::default(), &observer, &cancel).unwrap();
        let options = BuildOptions::default();
        ferrofs_builder::build(&imported, &options, &output, &observer, &cancel).unwrap();
        Ok((dir, Image::open(&output).unwrap()))
    }

    /// Every answer is that of the host for the same tree.
    #[test]
    fn paths_lead_where_linux_leads() {
        let (dir, image) = links().unwrap();
        let tree = dir.path().join("tree");
        for path in [
            "d",
            "d/",
            "d/.",
            "d/file",
            "d/file/",
            "d/file/.",
            "d/file/..",
            "to-d",
            "to-d/",
            "to-d/.",
            "to-d/file",
            "to-d/../d/file",
            "to-file",
            "to-file/",
            "to-file/.",
            "slash",
            "slash/",
            "loop",
            "loop/",
            "broken",
            "broken/",
            "nothing",
            "twice",
            "twice/",
            "twice/e",
            "d/e/../../to-d/e",
        ] {
            for last in [LastLink::Follow, LastLink::Keep] {
                let host = tree.join(path);
                let metadata = match last {
                    LastLink::Follow => fs::metadata(&host),
                    LastLink::Keep => fs::symlink_metadata(&host),
                };
                let expected = metadata.map_err(|error| error.raw_os_error());
                let expected = expected.map(|metadata| (metadata.is_dir(), metadata.is_symlink()));
                let found = resolve(&image, path.as_bytes(), last);
                let found =
                    found.map(|inode| inode.file_type()).map_err(|error| match error.code() {
                        Code::NotFound => Some(2),
                        Code::Type => Some(20),
                        Code::Loop => Some(40),
                        other => panic!("{path} {last:?}: {other:?}"),
                    });
                let found =
                    found.map(|kind| (kind == FileType::Directory, kind == FileType::Symlink));
                assert_eq!(found, expected, "{path} {last:?}");
            }
        }
        // An absolute target begins at the root of the image, which is its own parent.
        for path in ["", "/", ".", "..", "../d/..", "absolute/..", "d/../../.."] {
            let root = resolve(&image, path.as_bytes(), LastLink::Follow).unwrap();
            assert_eq!(root.nid(), image.root().unwrap().nid(), "{path}");
        }
        let file = resolve(&image, b"absolute/file", LastLink::Follow).unwrap();
        assert_eq!(file.size(), 1);
    }

    #[test]
    fn a_real_path_has_no_links() {
        let (_dir, image) = links().unwrap();
        for (path, real) in [
            ("", "/"),
            ("d/..", "/"),
            ("//d/./e/", "/d/e"),
            ("absolute/e/../file", "/d/file"),
            ("twice/../to-d", "/to-d"),
            ("to-d/", "/d"),
        ] {
            let found = real_path(&image, path.as_bytes(), LastLink::Keep).unwrap();
            assert_eq!(found, real.as_bytes(), "{path}");
        }
    }
}
