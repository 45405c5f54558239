//! Where the bytes of an image come from.
//!
//! A source is read by offset and never written. Files are not mapped: a file that shrinks while
//! it is read must be an error, not a signal.

use std::fmt;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::Advice;

use crate::error::{Error, ErrorKind, Result};

/// Bytes that can be read at any offset, from many threads at once.
pub trait ImageSource: Send + Sync + fmt::Debug {
    /// Reads into `buffer` from `offset`; fewer bytes than asked only at the end.
    ///
    /// # Errors
    /// Whatever the medium reports.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// How many bytes there are.
    fn length(&self) -> u64;

    /// These bytes will be read soon. A hint; the default does nothing.
    fn will_need(&self, _offset: u64, _bytes: u64) {}
}

/// A file or block device, from some byte on.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    start: u64,
    length: u64,
}

impl FileSource {
    /// Opens `path`; byte 0 of the source is byte `start` of the file.
    ///
    /// # Errors
    /// The file cannot be opened, or its length cannot be found.
    pub fn open(path: &Path, start: u64) -> io::Result<Self> {
        let mut file = File::open(path)?;
        if file.metadata()?.is_dir() {
            return Err(io::Error::from(io::ErrorKind::IsADirectory));
        }
        // Seeking finds the length of block devices too.
        let end = file.seek(SeekFrom::End(0))?;
        Ok(Self { file, start, length: end.saturating_sub(start) })
    }
}

impl ImageSource for FileSource {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        match self.start.checked_add(offset) {
            Some(at) if i64::try_from(at).is_ok() => self.file.read_at(buffer, at),
            _ => Ok(0),
        }
    }

    fn length(&self) -> u64 {
        self.length
    }

    fn will_need(&self, offset: u64, bytes: u64) {
        if let (Some(at), Some(bytes)) = (self.start.checked_add(offset), NonZeroU64::new(bytes)) {
            // Only a hint: a file system that does not know it reads all the same.
            rustix::fs::fadvise(&self.file, at, Some(bytes), Advice::WillNeed).ok();
        }
    }
}

/// An image in memory.
impl ImageSource for Vec<u8> {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(rest) = usize::try_from(offset).ok().and_then(|at| self.get(at..)) else {
            return Ok(0);
        };
        let count = rest.len().min(buffer.len());
        if let (Some(target), Some(bytes)) = (buffer.get_mut(..count), rest.get(..count)) {
            target.copy_from_slice(bytes);
        }
        Ok(count)
    }

    fn length(&self) -> u64 {
        u64::try_from(self.len()).unwrap_or(u64::MAX)
    }
}

/// Reads until `buffer` is full or the source ends; answers how many bytes were read.
pub(crate) fn read_up_to(
    source: &dyn ImageSource,
    offset: u64,
    buffer: &mut [u8],
) -> Result<usize> {
    let mut filled = 0usize;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        let at = offset.saturating_add(u64::try_from(filled).unwrap_or(u64::MAX));
        match source.read_at(at, rest) {
            Ok(0) => break,
            Ok(count) => filled = filled.saturating_add(count.min(rest.len())),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::from(error).at(at)),
        }
    }
    Ok(filled)
}

/// Fills `buffer` from `offset` on.
pub(crate) fn read_exact(source: &dyn ImageSource, offset: u64, buffer: &mut [u8]) -> Result<()> {
    let wanted = buffer.len();
    if read_up_to(source, offset, buffer)? == wanted {
        return Ok(());
    }
    Err(outside(offset, u64::try_from(wanted).unwrap_or(u64::MAX), source.length()))
}

/// The error for `bytes` bytes at `offset` of something that has only `length`.
#[cold]
pub(crate) fn outside(offset: u64, bytes: u64, length: u64) -> Error {
    let end = offset.saturating_add(bytes);
    Error::new(ErrorKind::OutsideImage { end, length }).at(offset)
}

/// A buffer of `bytes` zeros, or an error where memory cannot be had.
pub(crate) fn zeroed(bytes: usize) -> Result<Vec<u8>> {
    let mut buffer = Vec::new();
    grow(&mut buffer, bytes)?;
    Ok(buffer)
}

/// Makes `buffer` at least `bytes` long.
pub(crate) fn grow(buffer: &mut Vec<u8>, bytes: usize) -> Result<()> {
    let more = bytes.saturating_sub(buffer.len());
    if more == 0 {
        return Ok(());
    }
    buffer.try_reserve_exact(more).map_err(|_| {
        Error::new(ErrorKind::OutOfMemory { bytes: u64::try_from(bytes).unwrap_or(u64::MAX) })
    })?;
    buffer.resize(bytes, 0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_source_says_what_is_missing() {
        let source = vec![1u8, 2, 3];
        let mut buffer = [0u8; 2];
        read_exact(&source, 1, &mut buffer).unwrap();
        assert_eq!(buffer, [2, 3]);
        let error = read_exact(&source, 2, &mut buffer).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::OutsideImage { end: 4, length: 3 }));
        assert_eq!(error.offset(), Some(2));
        assert!(read_exact(&source, u64::MAX, &mut buffer).is_err());
    }

    #[test]
    fn interrupted_reads_go_on() {
        #[derive(Debug)]
        struct Jittery(std::sync::Mutex<u32>);
        impl ImageSource for Jittery {
            fn read_at(&self, _: u64, buffer: &mut [u8]) -> io::Result<usize> {
                let mut calls = self.0.lock().unwrap();
                *calls += 1;
                if *calls % 2 == 1 {
                    return Err(io::Error::from(io::ErrorKind::Interrupted));
                }
                buffer[0] = 7;
                Ok(1)
            }
            fn length(&self) -> u64 {
                9
            }
        }
        let mut buffer = [0u8; 3];
        read_exact(&Jittery(std::sync::Mutex::new(0)), 0, &mut buffer).unwrap();
        assert_eq!(buffer, [7; 3]);
    }
}
