//! The content of a regular file that stays where it is on the host, and is read from there whenever it
//! is asked for. Made by the importer of directories.

mod fingerprint;
mod root;
#[cfg(test)]
mod tests;

pub(super) use fingerprint::FileFingerprint;
pub(super) use root::{SourceDirectory, SourceRoot};

use std::ops::Range;
use std::sync::Arc;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{self, OFlags, SeekFrom};
use rustix::io::Errno;

use crate::tree::{ContentReader, ContentSource};
use crate::{Error, ErrorKind, Result};

/// The most ranges of data that are told apart in one file; what lies behind the last of them counts as
/// data. A list of 16 MiB: no file is worth more.
const RANGES_MAX: usize = 1 << 20;

/// A regular file of the host, as it was when it was imported. Small: a million of them are kept.
#[derive(Clone)]
pub(super) struct HostFile {
    root: Arc<SourceRoot>,
    name: Box<[u8]>,
    directory: u32,
    spread: DataRanges,
    fingerprint: FileFingerprint,
}

/// Whether a file may have holes, by the blocks that it takes on its file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataRanges {
    /// Its blocks are enough for all of it.
    Dense,
    /// They are not.
    Sparse,
}

/// Where a file lies below the root of its source.
pub(super) struct HostLocation<'a> {
    /// The directory: an index into the table of the root.
    pub(super) directory: u32,
    /// Its name there.
    pub(super) name: &'a [u8],
}

impl HostFile {
    pub(super) fn new(
        root: &Arc<SourceRoot>,
        place: &HostLocation<'_>,
        fingerprint: FileFingerprint,
        spread: DataRanges,
    ) -> Self {
        Self {
            root: Arc::clone(root),
            name: place.name.into(),
            directory: place.directory,
            spread,
            fingerprint,
        }
    }

    fn open_unchanged(&self) -> Result<OwnedFd> {
        let relative = self.root.relative(self.directory, &self.name);
        // Not blocking, so that a FIFO that took the file's place holds up nobody.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = match self.root.open_below(&relative, flags) {
            Ok(fd) => fd,
            Err(errno) => return Err(self.located(unopened(errno))),
        };
        self.compare(&fd)?;
        Ok(fd)
    }

    fn compare(&self, fd: &OwnedFd) -> Result<()> {
        let now = FileFingerprint::of_open(fd)
            .map_err(|errno| self.located(input("cannot examine", errno)))?;
        match self.fingerprint.difference(&now) {
            None => Ok(()),
            Some(how) => Err(self.located(changed(how))),
        }
    }

    fn located(&self, error: Error) -> Error {
        error.at(self.root.host_path(&self.root.relative(self.directory, &self.name)))
    }
}

impl ContentSource for HostFile {
    fn name(&self) -> String {
        let relative = self.root.relative(self.directory, &self.name);
        self.root.host_path(&relative).display().to_string()
    }

    fn open(&self) -> Result<Box<dyn ContentReader>> {
        let fd = self.open_unchanged()?;
        Ok(Box::new(HostReader { file: self.clone(), fd }))
    }

    fn data_ranges(&self) -> Result<Vec<Range<u64>>> {
        let bytes = self.fingerprint.size;
        if bytes == 0 {
            return Ok(Vec::new());
        }
        if self.spread == DataRanges::Dense {
            return Ok(std::iter::once(0..bytes).collect());
        }
        let fd = self.open_unchanged()?;
        let ranges = ranges_of(&fd, bytes)
            .map_err(|errno| self.located(input("cannot look for holes", errno)))?;
        self.compare(&fd)?;
        Ok(ranges)
    }
}

/// An open file of the source.
struct HostReader {
    file: HostFile,
    fd: OwnedFd,
}

impl ContentReader for HostReader {
    fn read_exact_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let mut at = offset;
        let mut left = buffer;
        while !left.is_empty() {
            let taken = match rustix::io::pread(&self.fd, &mut *left, at) {
                Ok(taken) => taken,
                Err(Errno::INTR) => continue,
                Err(errno) => {
                    return Err(self.file.located(input("cannot read", errno)).at_byte(at));
                }
            };
            if taken == 0 {
                return Err(self.ended(at));
            }
            at = at.saturating_add(u64::try_from(taken).unwrap_or(u64::MAX));
            left = left.get_mut(taken..).unwrap_or_default();
        }
        Ok(())
    }

    fn check_unchanged(&mut self) -> Result<()> {
        self.file.compare(&self.fd)
    }
}

impl HostReader {
    /// The file ends at `at`, or earlier, and more was wanted.
    fn ended(&self, at: u64) -> Error {
        let how = format!(
            "it ends here, and it had {} bytes when it was imported",
            self.file.fingerprint.size
        );
        self.file.located(changed(how)).at_byte(at)
    }
}

/// The data of a file of `bytes` bytes, between its holes.
fn ranges_of(fd: impl AsFd, bytes: u64) -> rustix::io::Result<Vec<Range<u64>>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < bytes {
        let start = match fs::seek(&fd, SeekFrom::Data(at)) {
            Ok(start) => start,
            // Nothing but a hole from here on.
            Err(Errno::NXIO) => break,
            // The file system tells no holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(errno) => return Err(errno),
        };
        let end = match fs::seek(&fd, SeekFrom::Hole(start)) {
            _ if ranges.len() >= RANGES_MAX => bytes,
            Ok(end) if end > start => end,
            Ok(_) | Err(Errno::INVAL | Errno::OPNOTSUPP) => bytes,
            // It ends before `start`: it became shorter, as the comparison that follows says.
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno),
        };
        if start < bytes {
            ranges.push(start..end.min(bytes));
        }
        at = end;
    }
    Ok(ranges)
}

/// What it means that a file that was there does not open.
fn unopened(errno: Errno) -> Error {
    match errno {
        Errno::NOENT => changed("it is gone".to_owned()),
        Errno::LOOP => changed("it, or a directory above it, is a symlink now".to_owned()),
        Errno::NOTDIR => changed("a directory above it is none any more".to_owned()),
        Errno::NXIO => changed("it is no regular file any more".to_owned()),
        _ => input("cannot open", errno),
    }
}

pub(super) fn changed(how: String) -> Error {
    Error::new(ErrorKind::SourceChanged { how })
}

pub(super) fn input(operation: &'static str, errno: Errno) -> Error {
    Error::new(ErrorKind::Input { operation, source: errno.into() })
}
