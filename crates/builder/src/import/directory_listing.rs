//! The names in a directory, sorted.

use std::collections::BTreeMap;
use std::io::Write as _;

use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::fs::{AtFlags, FileType, RawDir, StatxFlags};
use rustix::io::{Errno, Result};

use crate::import::adjust::XattrFilter;

/// Room for about a thousand entries a system call.
const BUFFER_BYTES: usize = 64 << 10;

/// The entries of one directory after the other. Names stand in one piece of memory, which is used again.
pub(super) struct DirectoryListing {
    buffer: Vec<u8>,
    names: Vec<u8>,
    entries: Vec<ListedEntry>,
}

/// Where a name stands, and what the directory says of it.
#[derive(Clone, Copy)]
struct ListedEntry {
    start: usize,
    end: usize,
    hint: TypeHint,
}

/// What the directory itself says of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TypeHint {
    /// It is a directory.
    Directory,
    /// It is something else, or the file system does not say.
    Other,
}

impl DirectoryListing {
    pub(super) fn new() -> Self {
        Self { buffer: Vec::with_capacity(BUFFER_BYTES), names: Vec::new(), entries: Vec::new() }
    }

    /// One that reads nothing, to stand where another was taken out.
    pub(super) fn empty() -> Self {
        Self { buffer: Vec::new(), names: Vec::new(), entries: Vec::new() }
    }

    /// Takes the names from the open directory `fd`, in place of those of the last one.
    ///
    /// # Errors
    /// The host refuses.
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
            let start = self.names.len();
            self.names.extend_from_slice(name);
            self.entries.push(ListedEntry { start, end: self.names.len(), hint });
        }
        let names = &self.names;
        self.entries.sort_unstable_by_key(|entry| names.get(entry.start..entry.end));
        Ok(())
    }

    /// Names and what the directory says of them, in byte order.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&[u8], TypeHint)> {
        self.entries
            .iter()
            .filter_map(|entry| Some((self.names.get(entry.start..entry.end)?, entry.hint)))
    }
}

/// Linux hands out no longer list and no longer value (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
const XATTR_BYTES_MAX: usize = 64 << 10;

/// The xattrs of an inode by name.
pub(super) type Xattrs = BTreeMap<Box<[u8]>, Box<[u8]>>;

/// Reads xattrs into buffers that are used again.
///
/// A file that must not be opened (a symlink, a FIFO) has its xattrs read by path: there is no call for
/// "this name in that open directory" before Linux 6.13, but `/proc/self/fd` makes a path of it.
pub(super) struct XattrReader {
    names: Vec<u8>,
    value: Vec<u8>,
    path: Vec<u8>,
}

/// What reading found.
#[derive(Debug)]
pub(super) struct XattrValues {
    /// Names and values.
    pub(super) xattrs: Xattrs,
    /// A name that was listed and has no value.
    pub(super) valueless: Option<Box<[u8]>>,
}

impl XattrReader {
    pub(super) fn new() -> Self {
        Self { names: vec![0; XATTR_BYTES_MAX], value: vec![0; XATTR_BYTES_MAX], path: Vec::new() }
    }

    /// Whether the paths that this needs lead to where they should: `/proc` is mounted.
    pub(super) fn has_proc(directory: BorrowedFd<'_>) -> bool {
        let path = format!("/proc/self/fd/{}/.", directory.as_raw_fd());
        let mask = StatxFlags::INO;
        let by_path = rustix::fs::statx(rustix::fs::CWD, path, AtFlags::empty(), mask);
        let by_fd = rustix::fs::statx(directory, "", AtFlags::EMPTY_PATH, mask);
        let identity = |status: rustix::fs::Statx| {
            (status.stx_dev_major, status.stx_dev_minor, status.stx_ino)
        };
        match (by_path, by_fd) {
            (Ok(one), Ok(other)) => identity(one) == identity(other),
            _ => false,
        }
    }

    /// Those of an open file.
    ///
    /// # Errors
    /// The host refuses, but for file systems that have no xattrs.
    pub(super) fn of_open(&mut self, fd: impl AsFd, choice: &XattrFilter) -> Result<XattrValues> {
        let fd = fd.as_fd();
        let listed = rustix::fs::flistxattr(fd, &mut *self.names);
        self.values(listed, choice, |_, name, value| rustix::fs::fgetxattr(fd, name, value))
    }

    /// Those of `name` in an open directory; of a symlink itself.
    ///
    /// # Errors
    /// As [`of_open`](Self::of_open).
    pub(super) fn of_entry(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        choice: &XattrFilter,
    ) -> Result<XattrValues> {
        self.path.clear();
        write!(self.path, "/proc/self/fd/{}/", directory.as_raw_fd()).map_err(|_| Errno::NOMEM)?;
        self.path.extend_from_slice(name);
        let listed = rustix::fs::llistxattr(&*self.path, &mut *self.names);
        self.values(listed, choice, |path, name, value| rustix::fs::lgetxattr(path, name, value))
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
        let mut found = XattrValues { xattrs: Xattrs::new(), valueless: None };
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
