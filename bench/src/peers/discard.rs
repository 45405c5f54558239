//! What a run wrote, out of the way of the next one. On a disk, contents go at once and inodes at the very end: for minutes
//! ext4 looks at each inode that was deleted lately before it makes a new one, so that whoever extracts where something was
//! just removed takes ten times as long, whatever the program.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};

use super::work::Work;

/// Puts an output away.
pub(super) fn put_away(output: &Path, work: &Work) -> Result<()> {
    if work.is_in_memory() {
        return remove(output);
    }
    let trash = work.path("trash");
    fs::create_dir_all(&trash).context("making a folder for what was written")?;
    loosen(output, true)?;
    let number = trash.read_dir().context("counting what was written")?.count();
    fs::rename(output, trash.join(number.to_string())).context("putting away what was written")?;
    rustix::fs::sync();
    Ok(())
}

/// Removes a tree, whatever the modes of its folders are.
pub(super) fn remove(tree: &Path) -> Result<()> {
    loosen(tree, false)?;
    fs::remove_dir_all(tree).with_context(|| format!("removing {}", tree.display()))
}

/// Lets the user go into every folder of a tree, and empties files if wanted.
fn loosen(tree: &Path, empties: bool) -> Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    if is_root && !empties {
        return Ok(());
    }
    let mut folders = vec![tree.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let what = || folder.display().to_string();
        if !is_root {
            fs::set_permissions(&folder, Permissions::from_mode(0o700)).with_context(what)?;
        }
        for entry in fs::read_dir(&folder).with_context(what)? {
            let entry = entry.with_context(what)?;
            let kind = entry.file_type().with_context(what)?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() && empties {
                empty(&entry.path()).with_context(what)?;
            }
        }
    }
    Ok(())
}

fn empty(file: &Path) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        fs::set_permissions(file, Permissions::from_mode(0o600))?;
    }
    fs::File::options().write(true).open(file)?.set_len(0)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::{put_away, remove};
    use crate::peers::work::Work;

    #[test]
    fn a_tree_that_nobody_may_write_goes() {
        let parent = tempfile::tempdir().unwrap();
        let work = Work::make(Some(parent.path())).unwrap();
        for is_first in [true, false] {
            let tree = work.path("tree");
            fs::create_dir_all(tree.join("closed")).unwrap();
            fs::write(tree.join("closed/file"), b"content").unwrap();
            fs::set_permissions(tree.join("closed/file"), Permissions::from_mode(0o400)).unwrap();
            fs::set_permissions(tree.join("closed"), Permissions::from_mode(0o500)).unwrap();
            if is_first {
                remove(&tree).unwrap();
            } else {
                put_away(&tree, &work).unwrap();
            }
            assert!(!tree.exists());
        }
        let kept = work.path("trash").join("0/closed/file");
        assert!(!kept.exists() || fs::metadata(kept).unwrap().len() == 0);
    }
}
