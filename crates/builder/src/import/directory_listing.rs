//! The names in a directory, sorted, and the xattrs of its entries. The buffers are used again for
//! every directory. Called by `import`.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::fs::{AtFlags, FileType, RawDir, StatxFlags};
use rustix::io::{Errno, Result};

use crate::import::adjust::XattrFilter;

/// Enough for about a thousand entries a system call.
const BUFFER_BYTES: usize = 64 << 10;

/// The entries of one directory after the other. The names share one buffer.
pub(super) struct DirectoryListing {
    buffer: Vec<u8>,
    names: Vec<u8>,
    entries: Vec<ListedEntry>,
}

/// The range of a name in the buffer, and the type of the entry.
#[derive(Clone, Copy)]
struct ListedEntry {
    start: u32,
    bytes: u8,
    hint: TypeHint,
}

impl ListedEntry {
    fn range(self) -> std::ops::Range<usize> {
        let start = self.start as usize;
        start..start + usize::from(self.bytes)
    }
}

/// The type of an entry in the directory (`d_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TypeHint {
    /// A directory.
    Directory,
    /// Anything else, or unknown to the file system.
    Other,
}

impl DirectoryListing {
    pub(super) fn new() -> Self {
        Self { buffer: Vec::with_capacity(BUFFER_BYTES), names: Vec::new(), entries: Vec::new() }
    }

    /// An empty listing without a buffer.
    pub(super) fn empty() -> Self {
        Self { buffer: Vec::new(), names: Vec::new(), entries: Vec::new() }
    }

    /// Reads the names of the open directory `fd`, and drops those of the last one.
    ///
    /// # Errors
    /// The system call fails.
    pub(super) fn read(&mut self, fd: impl AsFd) -> Result<()> {
        self.names.clear();
        self.entries.clear();
        let mut stream = RawDir::new(fd, self.buffer.spare_capacity_mut());
        while let Some(entry) = stream.next() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno),
            };
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let hint = match entry.file_type() {
                FileType::Directory => TypeHint::Directory,
                _ => TypeHint::Other,
            };
            // A name has 255 bytes at most.
            let bytes = u8::try_from(name.len()).map_err(|_| Errno::NAMETOOLONG)?;
            let start = u32::try_from(self.names.len()).map_err(|_| Errno::NOMEM)?;
            self.names.extend_from_slice(name);
            self.entries.push(ListedEntry { start, bytes, hint });
        }
        let names = &self.names;
        self.entries.sort_unstable_by_key(|entry| names.get(entry.range()));
        Ok(())
    }

    /// Names with their types, in byte order.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&[u8], TypeHint)> {
        self.entries.iter().filter_map(|entry| Some((self.names.get(entry.range())?, entry.hint)))
    }
}

/// The longest list and the longest value on Linux (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
const XATTR_BYTES_MAX: usize = 64 << 10;

/// The xattrs of an inode by name.
pub(super) type HostXattrs = BTreeMap<Box<[u8]>, Box<[u8]>>;

/// Reads xattrs.
///
/// The xattrs of a file that must not be opened (a symlink, a FIFO) are read by path: before Linux
/// 6.13 no system call takes a directory descriptor and a name, but `/proc/self/fd` turns them into
/// a path. Without `/proc`, in an empty chroot for instance, the path is that of the file, and its
/// inode is compared before and after with that of the name in the open directory.
pub(super) struct XattrReader {
    names: Vec<u8>,
    value: Vec<u8>,
    path: Vec<u8>,
    has_proc: bool,
}

/// The xattrs of a file.
#[derive(Debug)]
pub(super) struct XattrValues {
    /// Names and values.
    pub(super) xattrs: HostXattrs,
    /// A listed name without a value.
    pub(super) valueless: Option<Box<[u8]>>,
}

impl XattrReader {
    /// A reader for the entries below `directory`.
    pub(super) fn new(directory: BorrowedFd<'_>) -> Self {
        Self {
            names: vec![0; XATTR_BYTES_MAX],
            value: vec![0; XATTR_BYTES_MAX],
            path: Vec::new(),
            has_proc: has_proc(directory),
        }
    }

    /// Whether paths of `/proc` name the entries. Without it, paths are limited to `PATH_MAX`.
    pub(super) fn has_proc(&self) -> bool {
        self.has_proc
    }

    /// The xattrs of an open file.
    ///
    /// # Errors
    /// A system call fails. A file system without xattrs is no error.
    pub(super) fn of_open(&mut self, fd: impl AsFd, choice: &XattrFilter) -> Result<XattrValues> {
        let fd = fd.as_fd();
        let listed = rustix::fs::flistxattr(fd, &mut *self.names);
        self.values(listed, choice, |_, name, value| rustix::fs::fgetxattr(fd, name, value))
    }

    /// The xattrs of `name` in an open directory. A symlink is not followed. `path` is the path of
    /// the entry, for a system without `/proc`.
    ///
    /// # Errors
    /// As [`of_open`](Self::of_open); `ENOENT` if the path leads to another file than the name.
    pub(super) fn of_entry(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        path: impl FnOnce() -> PathBuf,
        choice: &XattrFilter,
    ) -> Result<XattrValues> {
        if self.has_proc {
            self.path.clear();
            write!(self.path, "/proc/self/fd/{}/", directory.as_raw_fd())
                .map_err(|_| Errno::NOMEM)?;
            self.path.extend_from_slice(name);
            return self.by_path(choice);
        }
        self.path = path().into_os_string().into_vec();
        self.expect_path_leads_to(directory, name)?;
        let found = self.by_path(choice)?;
        self.expect_path_leads_to(directory, name)?;
        Ok(found)
    }

    fn by_path(&mut self, choice: &XattrFilter) -> Result<XattrValues> {
        let listed = rustix::fs::llistxattr(&*self.path, &mut *self.names);
        self.values(listed, choice, |path, name, value| rustix::fs::lgetxattr(path, name, value))
    }

    fn expect_path_leads_to(&self, directory: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let by_path = file_id(rustix::fs::CWD, &self.path, flags)?;
        let by_name = file_id(directory, name, flags)?;
        if by_path == by_name { Ok(()) } else { Err(Errno::NOENT) }
    }

    fn values(
        &mut self,
        listed: Result<usize>,
        choice: &XattrFilter,
        get: impl Fn(&[u8], &[u8], &mut [u8]) -> Result<usize>,
    ) -> Result<XattrValues> {
        let bytes = match listed {
            Ok(bytes) => bytes,
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NODATA) => 0,
            Err(errno) => return Err(errno),
        };
        let mut found = XattrValues { xattrs: HostXattrs::new(), valueless: None };
        let names = self.names.get(..bytes).unwrap_or_default();
        for name in names.split(|byte| *byte == 0) {
            if name.is_empty() || !choice.keeps(name) {
                continue;
            }
            match get(&self.path, name, &mut self.value) {
                Ok(bytes) => {
                    let value = self.value.get(..bytes).unwrap_or_default();
                    found.xattrs.insert(name.into(), value.into());
                }
                Err(Errno::NODATA) => found.valueless = Some(name.into()),
                Err(errno) => return Err(errno),
            }
        }
        Ok(found)
    }
}

/// Whether `/proc` is mounted, so that paths of it lead to open directories.
fn has_proc(directory: BorrowedFd<'_>) -> bool {
    let path = format!("/proc/self/fd/{}/.", directory.as_raw_fd());
    let by_path = file_id(rustix::fs::CWD, path.as_bytes(), AtFlags::empty());
    let by_fd = file_id(directory, b"", AtFlags::EMPTY_PATH);
    matches!((by_path, by_fd), (Ok(one), Ok(other)) if one == other)
}

/// Device (major and minor) and number of an inode.
fn file_id(directory: BorrowedFd<'_>, path: &[u8], flags: AtFlags) -> Result<(u32, u32, u64)> {
    let status = rustix::fs::statx(directory, path, flags, StatxFlags::INO)?;
    Ok((status.stx_dev_major, status.stx_dev_minor, status.stx_ino))
}

#[cfg(test)]
mod tests {
    use std::fs::{File, create_dir, rename, write};
    use std::os::fd::AsFd as _;
    use std::path::Path;

    use rustix::fs::XattrFlags;

    use super::*;

    const NAME: &str = "user.note";

    /// A directory with a file that has an xattr, if the file system has them; without, the test is skipped.
    fn tree() -> Option<tempfile::TempDir> {
        let tree = tempfile::tempdir().unwrap();
        create_dir(tree.path().join("inner")).unwrap();
        let file = tree.path().join("inner/file");
        write(&file, b"").unwrap();
        if let Err(errno) = rustix::fs::setxattr(&file, NAME, b"value", XattrFlags::empty()) {
            crate::import::tests::skip(&format!("{} has no user xattrs: {errno}", file.display()));
            return None;
        }
        Some(tree)
    }

    fn read(directory: &File, path: &Path, has_proc: bool) -> Result<HostXattrs> {
        let mut reader = XattrReader::new(directory.as_fd());
        reader.has_proc = has_proc;
        let path = || path.to_path_buf();
        Ok(reader.of_entry(directory.as_fd(), b"file", path, &XattrFilter::All)?.xattrs)
    }

    #[test]
    fn xattrs_by_path_are_those_that_proc_shows() {
        let Some(tree) = tree() else { return };
        let directory = File::open(tree.path().join("inner")).unwrap();
        let path = tree.path().join("inner/file");
        let by_path = read(&directory, &path, false).unwrap();
        assert_eq!(by_path.get(NAME.as_bytes()).map(|value| &**value), Some(&b"value"[..]));
        if has_proc(directory.as_fd()) {
            assert_eq!(read(&directory, &path, true).unwrap(), by_path);
        }
    }

    #[test]
    fn another_file_at_the_path_is_not_taken_for_the_entry() {
        let Some(tree) = tree() else { return };
        let directory = File::open(tree.path().join("inner")).unwrap();
        rename(tree.path().join("inner"), tree.path().join("moved")).unwrap();
        create_dir(tree.path().join("inner")).unwrap();
        let path = tree.path().join("inner/file");
        assert_eq!(read(&directory, &path, false).unwrap_err(), Errno::NOENT);
        write(&path, b"").unwrap();
        assert_eq!(read(&directory, &path, false).unwrap_err(), Errno::NOENT);
    }

    #[test]
    fn paths_are_limited_only_without_proc() {
        let Some(tree) = tree() else { return };
        let directory = File::open(tree.path().join("inner")).unwrap();
        let long = tree.path().join("d/".repeat(4096)).join("file");
        assert_eq!(read(&directory, &long, false).unwrap_err(), Errno::NAMETOOLONG);
    }
}
