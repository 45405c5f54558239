//! A part of a tree, copied, for runs that are to be short; and a whole tree, read into the page cache. Follows no links, and
//! takes nothing but folders, regular files and symbolic links.

use std::fs::{self, DirEntry};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::caches;

/// Copies files in the order of the listing, as long as they fit into so many bytes; answers how many bytes.
pub(super) fn copy(source: &Path, target: &Path, most_bytes: u64) -> Result<u64> {
    let mut bytes = 0;
    fs::create_dir(target).with_context(|| format!("making {}", target.display()))?;
    each(source, &mut |entry, kind| {
        let path = entry.path();
        let inside = path.strip_prefix(source).unwrap_or(&path);
        let copied = target.join(inside);
        let what = || format!("copying {}", path.display());
        if bytes >= most_bytes {
            return Ok(Go::End);
        }
        if kind.is_dir() {
            fs::create_dir(&copied).with_context(what)?;
        } else if kind.is_symlink() {
            symlink(fs::read_link(&path).with_context(what)?, &copied).with_context(what)?;
        } else if kind.is_file() {
            let length = entry.metadata().with_context(what)?.len();
            // What this user may not read is no part of the work.
            if bytes + length <= most_bytes && fs::File::open(&path).is_ok() {
                bytes += fs::copy(&path, &copied).with_context(what)?;
            }
        }
        Ok(Go::On)
    })?;
    Ok(bytes)
}

/// Reads all files of a tree into the page cache; answers how many bytes and entries they are.
pub(super) fn read(source: &Path) -> Result<(u64, u64)> {
    let (mut bytes, mut entries) = (0, 0);
    each(source, &mut |entry, kind| {
        entries += 1;
        if kind.is_file() {
            bytes += entry.metadata().with_context(|| entry.path().display().to_string())?.len();
            caches::read(&entry.path())?;
        }
        Ok(Go::On)
    })?;
    Ok((bytes, entries))
}

/// Whether there is more to do.
#[derive(Debug, PartialEq, Eq)]
enum Go {
    On,
    End,
}

/// Everything below a folder, a folder before what is in it.
fn each(source: &Path, look: &mut dyn FnMut(&DirEntry, fs::FileType) -> Result<Go>) -> Result<()> {
    let mut folders: Vec<PathBuf> = vec![source.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let what = || folder.display().to_string();
        for entry in fs::read_dir(&folder).with_context(what)? {
            let entry = entry.with_context(what)?;
            let kind = entry.file_type().with_context(what)?;
            if look(&entry, kind)? == Go::End {
                return Ok(());
            }
            if kind.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::{copy, read};

    #[test]
    fn a_part_has_folders_links_and_files_up_to_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let (source, target) = (folder.path().join("source"), folder.path().join("target"));
        fs::create_dir_all(source.join("a/b")).unwrap();
        fs::write(source.join("a/b/small"), [1; 100]).unwrap();
        fs::write(source.join("large"), vec![2; 10_000]).unwrap();
        symlink("a", source.join("link")).unwrap();
        assert_eq!(read(&source).unwrap(), (10_100, 5));
        assert_eq!(copy(&source, &target, 5000).unwrap(), 100);
        assert_eq!(fs::read(target.join("a/b/small")).unwrap(), [1; 100]);
        assert!(!target.join("large").exists());
        assert_eq!(fs::read_link(target.join("link")).unwrap().to_str(), Some("a"));
    }
}
