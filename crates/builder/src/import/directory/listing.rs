//! The names in a directory, sorted.

use rustix::fd::AsFd;
use rustix::fs::{FileType, RawDir};
use rustix::io::{Errno, Result};

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
