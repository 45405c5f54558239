//! Where a path in an image leads, with errors for C.

use ferrofs_image::{ErrorKind, FollowedPath, Image, LastLink};

use crate::error::{CallError, CallResult, Code};

/// What `path` names. Symbolic links are followed.
pub(crate) fn follow(image: &Image, path: &[u8], last: LastLink) -> CallResult<FollowedPath> {
    let found = image.follow(path, last).map_err(|error| match error.kind() {
        ErrorKind::WrongType { .. } => CallError::not_a_directory(path),
        ErrorKind::SymlinkLoop => {
            let message = format!("{}: too many symbolic links", path.escape_ascii());
            CallError::new(Code::Loop, message).at_path(path)
        }
        _ => error.into(),
    })?;
    found.ok_or_else(|| CallError::not_found(path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::{fs, io};

    use ferrofs_builder::import::{DirectoryOptions, from_directory};
    use ferrofs_builder::{BuildOptions, CancelToken, NoopObserver};

    use ferrofs_image::FileType;

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
                let found = follow(&image, path.as_bytes(), last);
                let found = found.map(|found| found.inode.file_type()).map_err(|error| match error
                    .code()
                {
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
            let root = follow(&image, path.as_bytes(), LastLink::Follow).unwrap();
            assert_eq!(root.inode.nid(), image.root().unwrap().nid(), "{path}");
        }
        let file = follow(&image, b"absolute/file", LastLink::Follow).unwrap();
        assert_eq!(file.inode.size(), 1);
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
            let found = follow(&image, path.as_bytes(), LastLink::Keep).unwrap();
            assert_eq!(found.path, real.as_bytes(), "{path}");
        }
    }
}
