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
    let mut wants_directory = ends_as_directory(path);
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
                here = image.root()?;
            }
            push_front(&mut left, &target)?;
        } else {
            parents.push(std::mem::replace(&mut here, found));
        }
    }
    if wants_directory && here.file_type() != FileType::Directory {
        return Err(CallError::not_a_directory(path));
    }
    Ok(here)
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

    fn links() -> io::Result<tempfile::TempDir> {
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
        Ok(dir)
    }

    /// Every answer is that of the host for the same tree.
    #[test]
    fn paths_lead_where_linux_leads() {
        let dir = links().unwrap();
        let (tree, output) = (dir.path().join("tree"), dir.path().join("image"));
        let (observer, cancel) = (NoopObserver, CancelToken::new());
        let imported =
            from_directory(&tree, &DirectoryOptions::default(), &observer, &cancel).unwrap();
        let options = BuildOptions::default();
        ferrofs_builder::build(&imported, &options, &output, &observer, &cancel).unwrap();
        let image = Image::open(&output).unwrap();
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
}
