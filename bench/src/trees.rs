//! Trees of files on this machine: copied in part, read into the page cache, and removed. Follows no symbolic links.

use std::fs::{self, File};
use std::io::{ErrorKind, copy, sink};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rustix::fs::statfs;
use walkdir::{DirEntry, WalkDir};

use crate::process;

/// `TMPFS_MAGIC` of linux/magic.h.
const TMPFS: u64 = 0x0102_1994;
/// Larger files are not copied, so that there are many.
const FILE_BYTES_MAX: u64 = 24 << 20;

/// Everything that `walk` finds. What this user may not read is None; nothing else may fail.
pub(crate) fn entries(walk: WalkDir) -> impl Iterator<Item = Result<Option<DirEntry>>> {
    walk.into_iter().map(|entry| match entry {
        Ok(entry) => Ok(Some(entry)),
        Err(error) if error.io_error().is_some_and(is_denied) => Ok(None),
        Err(error) => Err(error.into()),
    })
}

pub(crate) fn is_denied(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::PermissionDenied
}

/// Copies directories, symbolic links and regular files up to this many bytes: one in so many files, so that all
/// directories are represented. Files that this user may not read are left out. Answers files and bytes.
pub(crate) fn copy_part(from: &Path, to: &Path, most: u64) -> Result<(u64, u64)> {
    let found =
        entries(WalkDir::new(from).min_depth(1).sort_by_file_name()).filter_map(Result::transpose);
    let (mut files, mut total) = (Vec::new(), 0);
    fs::create_dir(to).with_context(|| format!("making {}", to.display()))?;
    for entry in found {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type());
        let target = to.join(path.strip_prefix(from)?);
        if kind.is_dir() {
            fs::create_dir(&target)?;
        } else if kind.is_symlink() {
            symlink(fs::read_link(path)?, &target)?;
        } else if kind.is_file() {
            let bytes = entry.metadata()?.len();
            if bytes <= FILE_BYTES_MAX.min(most) {
                total += bytes;
                files.push((entry.into_path(), target, bytes));
            }
        }
    }
    let step = usize::try_from(total.div_ceil(most.max(1)).max(1))?;
    let mut copied = (0, 0);
    for (path, target, bytes) in files.into_iter().step_by(step) {
        if copied.1 + bytes > most {
            continue;
        }
        match fs::copy(&path, &target) {
            Ok(bytes) => copied = (copied.0 + 1, copied.1 + bytes),
            // Private to its owner.
            Err(error) if is_denied(&error) => {}
            Err(error) => return Err(error).with_context(|| format!("copying {}", path.display())),
        }
    }
    ensure!(copied.0 > 0, "there is nothing to read in {}", from.display());
    Ok(copied)
}

/// Reads a file, or all files of a tree, into the page cache; answers bytes and entries.
pub(crate) fn read_in(path: &Path) -> Result<(u64, u64)> {
    let (mut bytes, mut count) = (0, 0);
    // What is in a directory, or the file itself.
    let path = path.canonicalize().with_context(|| path.display().to_string())?;
    let walk = WalkDir::new(&path).min_depth(path.is_dir().into());
    for entry in entries(walk).filter_map(Result::transpose) {
        count += 1;
        let entry = entry?;
        if entry.file_type().is_file() {
            let what = || format!("reading {}", entry.path().display());
            let mut file = File::open(entry.path()).with_context(what)?;
            bytes += copy(&mut file, &mut sink()).with_context(what)?;
        }
    }
    Ok((bytes, count))
}

pub(crate) fn is_in_memory(folder: &Path) -> bool {
    statfs(folder).is_ok_and(|found| u64::try_from(found.f_type) == Ok(TMPFS))
}

/// Allows this user everything in a tree of its own.
fn loosen(tree: &Path) -> Result<()> {
    let mut command = Command::new("chmod");
    process::run(command.args(["-R", "u+rwX"]).arg(tree)).map(drop)
}

/// Removes a tree, whatever the modes of its directories.
pub(crate) fn remove(tree: &Path) -> Result<()> {
    loosen(tree)?;
    fs::remove_dir_all(tree).with_context(|| format!("removing {}", tree.display()))
}

/// Takes the output of a run away, if there is one. On a disk, contents go at once and inodes at the very end, in `trash`
/// beside it: for minutes ext4 looks at each inode that was deleted lately before it makes a new one, so that whoever
/// extracts where something was just removed takes ten times as long, whatever the program.
pub(crate) fn put_away(output: &Path) -> Result<()> {
    if !output.exists() || is_in_memory(output) {
        return if output.exists() { remove(output) } else { Ok(()) };
    }
    let trash = output.with_file_name("trash");
    fs::create_dir_all(&trash).context("making a folder for outputs")?;
    loosen(output)?;
    for entry in entries(WalkDir::new(output)).filter_map(Result::transpose) {
        let entry = entry?;
        if entry.file_type().is_file() {
            File::options().write(true).open(entry.path())?.set_len(0)?;
        }
    }
    let number = trash.read_dir().context("counting outputs")?.count();
    fs::rename(output, trash.join(number.to_string())).context("moving an output")?;
    rustix::fs::sync();
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_part_has_folders_links_and_one_in_so_many_files_up_to_a_limit() {
        let folder = tempfile::tempdir().unwrap();
        let [from, to, other] = ["from", "to", "other"].map(|name| folder.path().join(name));
        for directory in ["a", "b"] {
            fs::create_dir_all(from.join(directory)).unwrap();
            for name in ["1", "2", "3"] {
                fs::write(from.join(directory).join(name), [7; 100]).unwrap();
            }
        }
        fs::write(from.join("large"), vec![2; 10_000]).unwrap();
        symlink("a", from.join("link")).unwrap();
        assert_eq!(read_in(&from).unwrap(), (10_600, 10));
        assert_eq!(copy_part(&from, &to, 450).unwrap(), (3, 300));
        for path in ["a/1", "a/3", "b/2"] {
            assert_eq!(fs::read(to.join(path)).unwrap(), [7; 100], "{path}");
        }
        assert!(!to.join("large").exists());
        assert_eq!(fs::read_link(to.join("link")).unwrap().to_str(), Some("a"));
        copy_part(&folder.path().join("nothing"), &other, 1).unwrap_err();
    }

    #[test]
    fn a_tree_that_nobody_may_write_is_removed() {
        let work = tempfile::tempdir().unwrap();
        let (tree, closed) = (work.path().join("tree"), work.path().join("tree/closed"));
        for take_away in [remove, put_away] {
            fs::create_dir_all(&closed).unwrap();
            fs::write(closed.join("file"), b"content").unwrap();
            fs::set_permissions(closed.join("file"), Permissions::from_mode(0o400)).unwrap();
            fs::set_permissions(&closed, Permissions::from_mode(0o500)).unwrap();
            take_away(&tree).unwrap();
            assert!(!tree.exists());
        }
        put_away(&tree).unwrap();
        let kept = work.path().join("trash/0/closed/file");
        assert!(!kept.exists() || fs::metadata(kept).unwrap().len() == 0);
    }
}
