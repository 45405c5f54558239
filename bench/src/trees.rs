//! Trees of files on this machine: copied in part, read into the page cache, and removed. Follows no symbolic links.

use std::fs::{self, DirEntry, File, FileType, Permissions};
use std::io::{ErrorKind, copy, sink};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use rustix::fs::statfs;

/// `TMPFS_MAGIC` of linux/magic.h.
const TMPFS: u64 = 0x0102_1994;
/// Larger files are not copied, so that there are many.
const FILE_BYTES_MAX: u64 = 24 << 20;
/// Levels of directories that are copied.
const DEPTH_MAX: u32 = 32;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Copied {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

/// Copies directories, symbolic links and regular files up to this many bytes. Each entry of a directory may use an equal
/// share of the rest, so that all are represented. Unreadable entries are left out.
pub(crate) fn copy_part(from: &Path, to: &Path, most: u64) -> Result<Copied> {
    let mut copied = Copied::default();
    copy_directory([from, to], most, 0, &mut copied)?;
    ensure!(copied.files > 0, "there is nothing to read in {}", from.display());
    Ok(copied)
}

fn copy_directory(
    [from, to]: [&Path; 2],
    most: u64,
    depth: u32,
    copied: &mut Copied,
) -> Result<()> {
    let Ok(listed) = fs::read_dir(from) else { return Ok(()) };
    fs::create_dir(to).with_context(|| format!("making {}", to.display()))?;
    let mut entries: Vec<_> = listed.flatten().collect();
    entries.sort_by_key(DirEntry::file_name);
    let end = copied.bytes + most;
    let count = u64::try_from(entries.len())?;
    for (entry, left) in entries.into_iter().zip((1..=count).rev()) {
        let rest = end.saturating_sub(copied.bytes);
        let Ok(metadata) = entry.metadata() else { continue };
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        let what = || format!("copying {}", path.display());
        if metadata.is_dir() && depth < DEPTH_MAX && rest / left > 0 {
            copy_directory([&path, &target], rest / left, depth + 1, copied)?;
        } else if metadata.is_symlink() {
            symlink(fs::read_link(&path).with_context(what)?, &target).with_context(what)?;
        } else if metadata.is_file() && metadata.len() <= FILE_BYTES_MAX.min(rest) {
            match fs::copy(&path, &target) {
                Ok(bytes) => {
                    (copied.files, copied.bytes) = (copied.files + 1, copied.bytes + bytes);
                }
                // Private to its owner, or removed since.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::PermissionDenied | ErrorKind::NotFound
                    ) => {}
                Err(error) => return Err(error).with_context(what),
            }
        }
    }
    Ok(())
}

/// Reads a file into the page cache.
pub(crate) fn read_file(path: &Path) -> Result<()> {
    let what = || format!("reading {}", path.display());
    copy(&mut File::open(path).with_context(what)?, &mut sink()).with_context(what)?;
    Ok(())
}

/// Whether a walk goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Walk {
    Continue,
    Stop,
}

/// Visits everything below a directory in the order of its listing; the entries of a directory follow right behind it.
/// Types come from the listing where it has them, so that a name costs no request of its own. Answers the number of
/// directories that this user may not list.
pub(crate) fn walk(
    folder: &Path,
    visit: &mut dyn FnMut(&DirEntry, FileType, &Path) -> Result<Walk>,
) -> Result<u64> {
    let what = |path: &Path| path.display().to_string();
    let listing = fs::read_dir(folder).with_context(|| what(folder))?;
    let mut levels: Vec<(fs::ReadDir, PathBuf)> = vec![(listing, folder.to_path_buf())];
    let mut refused = 0;
    while let Some((listing, folder)) = levels.last_mut() {
        let Some(entry) = listing.next() else {
            levels.pop();
            continue;
        };
        let entry = entry.with_context(|| what(folder))?;
        let path = folder.join(entry.file_name());
        let kind = entry.file_type().with_context(|| what(&path))?;
        if visit(&entry, kind, &path)? == Walk::Stop {
            return Ok(refused);
        }
        if kind.is_dir() {
            match fs::read_dir(&path) {
                Ok(listing) => levels.push((listing, path)),
                Err(error) if error.kind() == ErrorKind::PermissionDenied => refused += 1,
                Err(error) => return Err(error).with_context(|| what(&path)),
            }
        }
    }
    Ok(refused)
}

/// Reads all files of a tree into the page cache; answers bytes and entries.
pub(crate) fn read_tree(tree: &Path) -> Result<(u64, u64)> {
    let (mut bytes, mut entries) = (0, 0);
    walk(tree, &mut |entry, kind, path| {
        entries += 1;
        if kind.is_file() {
            bytes += entry.metadata()?.len();
            read_file(path)?;
        }
        Ok(Walk::Continue)
    })?;
    Ok((bytes, entries))
}

pub(crate) fn is_in_memory(folder: &Path) -> bool {
    statfs(folder).is_ok_and(|found| u64::try_from(found.f_type) == Ok(TMPFS))
}

/// Makes a tree of this user's writable and empties files if requested.
fn loosen(tree: &Path, empties: bool) -> Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    let allow = |path: &Path, mode| {
        if is_root { Ok(()) } else { fs::set_permissions(path, Permissions::from_mode(mode)) }
    };
    allow(tree, 0o700)?;
    walk(tree, &mut |_, kind, path| {
        if kind.is_dir() {
            allow(path, 0o700)?;
        } else if kind.is_file() && empties {
            allow(path, 0o600)?;
            File::options().write(true).open(path)?.set_len(0)?;
        }
        Ok(Walk::Continue)
    })?;
    Ok(())
}

/// Removes a tree, whatever the modes of its directories.
pub(crate) fn remove(tree: &Path) -> Result<()> {
    let what = || format!("removing {}", tree.display());
    loosen(tree, false).with_context(what)?;
    fs::remove_dir_all(tree).with_context(what)
}

/// Takes the output of a run away. On a disk, contents go at once and inodes at the very end, in `trash`: for minutes ext4
/// looks at each inode that was deleted lately before it makes a new one, so that whoever extracts where something was just
/// removed takes ten times as long, whatever the program.
pub(crate) fn put_away(output: &Path, trash: &Path) -> Result<()> {
    if is_in_memory(output) {
        return remove(output);
    }
    fs::create_dir_all(trash).context("making a folder for outputs")?;
    loosen(output, true).context("emptying an output")?;
    let number = trash.read_dir().context("counting outputs")?.count();
    fs::rename(output, trash.join(number.to_string())).context("moving an output")?;
    rustix::fs::sync();
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::{Copied, copy_part, put_away, read_tree, remove};

    #[test]
    fn every_directory_gets_its_part_of_a_copy() {
        let folder = tempfile::tempdir().unwrap();
        let [from, to, other] = ["from", "to", "other"].map(|name| folder.path().join(name));
        for directory in ["a", "b"] {
            fs::create_dir_all(from.join(directory)).unwrap();
            for name in ["1", "2", "3"] {
                fs::write(from.join(directory).join(name), [7; 100]).unwrap();
            }
        }
        assert_eq!(copy_part(&from, &to, 450).unwrap(), Copied { files: 4, bytes: 400 });
        for path in ["a/1", "a/2", "b/1", "b/2"] {
            assert_eq!(fs::read(to.join(path)).unwrap(), [7; 100], "{path}");
        }
        copy_part(&folder.path().join("nothing"), &other, 1).unwrap_err();
    }

    #[test]
    fn a_part_has_folders_links_and_files_up_to_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let (source, target) = (folder.path().join("source"), folder.path().join("target"));
        fs::create_dir_all(source.join("a/b")).unwrap();
        fs::write(source.join("a/b/small"), [1; 100]).unwrap();
        fs::write(source.join("large"), vec![2; 10_000]).unwrap();
        symlink("a", source.join("link")).unwrap();
        assert_eq!(read_tree(&source).unwrap(), (10_100, 5));
        assert_eq!(copy_part(&source, &target, 5000).unwrap().bytes, 100);
        assert_eq!(fs::read(target.join("a/b/small")).unwrap(), [1; 100]);
        assert!(!target.join("large").exists());
        assert_eq!(fs::read_link(target.join("link")).unwrap().to_str(), Some("a"));
    }

    #[test]
    fn a_tree_that_nobody_may_write_is_removed() {
        let work = tempfile::tempdir().unwrap();
        let (tree, trash) = (work.path().join("tree"), work.path().join("trash"));
        for is_first in [true, false] {
            fs::create_dir_all(tree.join("closed")).unwrap();
            fs::write(tree.join("closed/file"), b"content").unwrap();
            fs::set_permissions(tree.join("closed/file"), Permissions::from_mode(0o400)).unwrap();
            fs::set_permissions(tree.join("closed"), Permissions::from_mode(0o500)).unwrap();
            if is_first {
                remove(&tree).unwrap();
            } else {
                put_away(&tree, &trash).unwrap();
            }
            assert!(!tree.exists());
        }
        let kept = trash.join("0/closed/file");
        assert!(!kept.exists() || fs::metadata(kept).unwrap().len() == 0);
    }
}
