//! A spool keeps bytes that can be read only once, from a pipe or a compressed archive: first in
//! memory, then in a file without a name.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::spill::open_unlinked;
use crate::{Error, ErrorKind, Result};

/// Small enough that little memory is reserved in vain, large enough that a spool has few chunks.
const CHUNK_BYTES: usize = 1 << 20;

/// Where contents that can be read only once are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpoolOptions {
    /// The most bytes in memory; more go into a file.
    pub memory_bytes_max: u64,
    /// The directory of that file, which has no name. `None`: a memfd, which can be swapped out.
    pub directory: Option<PathBuf>,
    /// The most bytes of the spool; `None`: as many as the host can store.
    pub spool_bytes_max: Option<u64>,
}

option_setters! { SpoolOptions {
    memory_bytes_max: u64,
    directory: Option<PathBuf>,
    spool_bytes_max: Option<u64>,
} }

impl Default for SpoolOptions {
    /// 64 MiB in memory, the rest in a memfd, without a limit.
    fn default() -> Self {
        Self { memory_bytes_max: 64 << 20, directory: None, spool_bytes_max: None }
    }
}

/// A spool that is being filled.
#[derive(Debug)]
pub(crate) struct SpoolWriter {
    options: SpoolOptions,
    chunks: Vec<Vec<u8>>,
    memory_bytes: u64,
    file: Option<File>,
    file_bytes: u64,
}

impl SpoolWriter {
    /// An empty spool.
    pub(crate) fn new(options: SpoolOptions) -> Self {
        Self { options, chunks: Vec::new(), memory_bytes: 0, file: None, file_bytes: 0 }
    }

    /// The number of bytes in the spool.
    pub(crate) fn bytes(&self) -> u64 {
        self.memory_bytes + self.file_bytes
    }

    /// The most bytes that the spool may hold.
    pub(crate) fn bytes_max(&self) -> Option<u64> {
        self.options.spool_bytes_max
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// The host has no space or memory for them.
    pub(crate) fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() && self.file.is_none() {
            let room = self.room()?;
            let (front, rest) = bytes.split_at(room.min(bytes.len()));
            if front.is_empty() {
                self.file = Some(self.new_file()?);
                break;
            }
            if let Some(chunk) = self.chunks.last_mut() {
                chunk.extend_from_slice(front);
            }
            self.memory_bytes += front.len() as u64;
            bytes = rest;
        }
        if let Some(file) = &self.file {
            let end = self.file_bytes + bytes.len() as u64;
            // Zeros become a hole, so that an archive of a few bytes cannot fill up the disk.
            let written = match bytes.iter().all(|byte| *byte == 0) {
                true => file.set_len(end),
                false => file.write_all_at(bytes, self.file_bytes),
            };
            written.map_err(|error| self.refused("cannot write to the spool", error))?;
            self.file_bytes = end;
        }
        Ok(())
    }

    /// The free bytes of the last chunk, which is a new one if necessary; 0 if the memory is used
    /// up.
    fn room(&mut self) -> Result<usize> {
        let in_last = self.chunks.last().map_or(0, |chunk| CHUNK_BYTES - chunk.len());
        let left = self.options.memory_bytes_max.saturating_sub(self.memory_bytes);
        let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(CHUNK_BYTES);
        if in_last > 0 || wanted == 0 {
            return Ok(in_last.min(wanted));
        }
        let mut chunk = Vec::new();
        // Without memory for a chunk the bytes go into the file.
        if chunk.try_reserve_exact(wanted).is_err() || self.chunks.try_reserve(1).is_err() {
            return Ok(0);
        }
        self.chunks.push(chunk);
        Ok(wanted)
    }

    fn new_file(&self) -> Result<File> {
        open_unlinked(self.options.directory.as_deref())
            .map_err(|error| self.refused("cannot create the spool file", error))
    }

    fn refused(&self, operation: &'static str, source: io::Error) -> Error {
        let error = Error::new(ErrorKind::Output { operation, source });
        match &self.options.directory {
            Some(directory) => error.at(directory),
            None => error,
        }
    }

    /// Ends writing; all threads can read the result.
    pub(crate) fn finish(self) -> SpoolReader {
        SpoolReader { chunks: self.chunks, memory_bytes: self.memory_bytes, file: self.file }
    }
}

/// A spool that is complete.
#[derive(Debug)]
pub(crate) struct SpoolReader {
    /// All but the last are [`CHUNK_BYTES`] long.
    chunks: Vec<Vec<u8>>,
    memory_bytes: u64,
    file: Option<File>,
}

impl SpoolReader {
    /// Fills `buffer` with the bytes from `offset` on.
    ///
    /// # Errors
    /// The host cannot read them, or the spool is shorter.
    pub(crate) fn read_exact_at(&self, mut offset: u64, mut buffer: &mut [u8]) -> io::Result<()> {
        while !buffer.is_empty() && offset < self.memory_bytes {
            let chunk_bytes = CHUNK_BYTES as u64;
            let number = usize::try_from(offset / chunk_bytes).unwrap_or(usize::MAX);
            let at = usize::try_from(offset % chunk_bytes).unwrap_or(usize::MAX);
            let ready = self.chunks.get(number).and_then(|chunk| chunk.get(at..));
            let ready = ready.filter(|ready| !ready.is_empty());
            let ready = ready.ok_or(io::ErrorKind::UnexpectedEof)?;
            let (front, rest) = buffer.split_at_mut(ready.len().min(buffer.len()));
            front.copy_from_slice(&ready[..front.len()]);
            offset += front.len() as u64;
            buffer = rest;
        }
        match &self.file {
            _ if buffer.is_empty() => Ok(()),
            Some(file) => file.read_exact_at(buffer, offset - self.memory_bytes),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(bytes: usize) -> Vec<u8> {
        (0..=250).cycle().flat_map(|byte| [byte; 7]).take(bytes).collect()
    }

    fn check(options: SpoolOptions, bytes: usize, piece: usize) -> SpoolReader {
        let wanted = pattern(bytes);
        let mut spool = SpoolWriter::new(options);
        for piece in wanted.chunks(piece) {
            spool.append(piece).unwrap();
        }
        assert_eq!(spool.bytes(), bytes as u64);
        let spooled = spool.finish();
        for (start, length) in [(0, bytes), (1, bytes - 1), (bytes / 2, bytes / 3), (bytes - 1, 1)]
        {
            let mut buffer = vec![0; length];
            spooled.read_exact_at(start as u64, &mut buffer).unwrap();
            assert!(buffer == wanted[start..start + length], "{start} {length}");
        }
        let mut buffer = [0; 2];
        assert!(spooled.read_exact_at(bytes as u64 - 1, &mut buffer).is_err());
        spooled
    }

    #[test]
    fn bytes_stay_in_memory_up_to_the_limit() {
        let spooled = check(SpoolOptions::default(), 3_500_000, 9_999);
        assert!(spooled.file.is_none());
    }

    #[test]
    fn what_is_more_goes_into_a_file_without_a_name() {
        let directory = tempfile::tempdir().unwrap();
        for place in [None, Some(directory.path().to_path_buf())] {
            for memory_bytes_max in [0, 1, 1 << 20, 1_500_000] {
                let options = SpoolOptions {
                    memory_bytes_max,
                    directory: place.clone(),
                    spool_bytes_max: None,
                };
                let spooled = check(options, 3_500_000, 70_001);
                assert_eq!(spooled.memory_bytes, memory_bytes_max);
                assert!(spooled.file.is_some());
            }
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn zeros_take_no_blocks_of_the_spool_file() {
        use std::os::unix::fs::MetadataExt;

        let directory = tempfile::tempdir().unwrap();
        let options = SpoolOptions::default()
            .memory_bytes_max(0)
            .directory(Some(directory.path().to_path_buf()));
        let mut spool = SpoolWriter::new(options);
        let zeros = vec![0; 128 << 10];
        spool.append(b"front").unwrap();
        for _ in 0..64 {
            spool.append(&zeros).unwrap();
        }
        spool.append(b"back").unwrap();
        let spooled = spool.finish();
        let file = spooled.file.as_ref().unwrap().metadata().unwrap();
        assert_eq!(file.len(), (8 << 20) + 9);
        assert!(file.blocks() * 512 < 1 << 20, "{}", file.blocks());
        let mut end = [1; 8];
        spooled.read_exact_at((8 << 20) + 1, &mut end).unwrap();
        assert_eq!(&end, b"\0\0\0\0back");
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let options = SpoolOptions {
            memory_bytes_max: 0,
            directory: Some("/nowhere/at/all".into()),
            spool_bytes_max: None,
        };
        let error = SpoolWriter::new(options).append(b"x").unwrap_err();
        assert!(error.to_string().starts_with("/nowhere/at/all: cannot create the spool file: "));
    }
}
