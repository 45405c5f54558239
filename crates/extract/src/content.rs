//! The contents of a regular file: data where the image has data, holes where it has holes.
//!
//! An image delivers pieces as they were compressed, a few kilobytes each and at any offset. Short
//! pieces are collected, so that the host gets long writes. Called by `entry_writer` for whole
//! files and by `large_file` for segments; it knows nothing of names and metadata.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use ferrofs_image::{FilePiece, Image, Inode};
use ferrofs_workers::CancelToken;
use ferrofs_workers::memory::{AllocPolicy, Buffer};

use crate::error::ErrorKind;
use crate::event::FileBytes;
use crate::limits::ExtractLimits;

/// Larger files get their size before their contents, so that a file that is too large for the host
/// fails at once.
const SIZE_FIRST_BYTES: u64 = 1 << 32;

/// Data is written when this much has been collected: enough that the cost of a system call does
/// not matter, and little enough to stay in the cache of a CPU. A writer keeps no other memory.
const COLLECTED_BYTES: usize = 256 << 10;

/// Pieces of at least this length are written directly: a system call costs less than a copy.
const DIRECT_BYTES: usize = 32 << 10;

const _: () = assert!(DIRECT_BYTES < COLLECTED_BYTES);

/// A file to write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileContent<'a> {
    pub(crate) image: &'a Image,
    pub(crate) inode: &'a Inode,
    /// Checked before each piece: a file can take hours.
    pub(crate) cancel: &'a CancelToken,
    pub(crate) limits: &'a ExtractLimits,
}

/// Collects and writes the data of one file after the other.
#[derive(Debug, Default)]
pub(crate) struct ContentWriter {
    /// Taken from the image's memory with the first file, and kept.
    buffer: Option<Buffer>,
}

impl ContentWriter {
    /// The buffer. It is allocated before a file is read: a thread that holds other memory must not
    /// wait for it.
    fn buffer(&mut self, image: &Image) -> Result<&mut Buffer, ErrorKind> {
        let buffer = match self.buffer.take() {
            Some(buffer) => buffer,
            None => image.memory().buffer(COLLECTED_BYTES, AllocPolicy::MustSucceed)?,
        };
        Ok(self.buffer.insert(buffer))
    }

    /// Fills the new, empty `file`. Returns how much was written.
    pub(crate) fn write(
        &mut self,
        FileContent { image, inode, cancel, limits }: FileContent<'_>,
        file: &File,
    ) -> Result<FileBytes, ErrorKind> {
        let size = inode.size();
        if size > SIZE_FIRST_BYTES {
            set_size(file, size)?;
        }
        let target = OutputFile { file, cancel, limits };
        let mut part = ExtentWriter::new(self.buffer(image)?, target);
        image.for_each_piece::<ErrorKind>(inode, |piece| part.add(piece, size))?;
        let data_end = part.finish()?;
        let position = part.position.unwrap_or(0);
        if position != size {
            return Err(ErrorKind::Short { delivered: position, size });
        }
        if data_end < size {
            set_size(file, size)?;
        }
        Ok(part.written)
    }

    /// Writes the pieces that belong to `range` into a file that has its size already. Returns the
    /// range that these pieces cover, and how much was written.
    pub(crate) fn write_range(
        &mut self,
        FileContent { image, inode, cancel, limits }: FileContent<'_>,
        range: Range<u64>,
        file: &File,
    ) -> Result<(Range<u64>, FileBytes), ErrorKind> {
        let size = inode.size();
        let target = OutputFile { file, cancel, limits };
        let mut part = ExtentWriter::new(self.buffer(image)?, target);
        let covered =
            image.for_each_piece_in::<ErrorKind>(inode, range, |piece| part.add(piece, size))?;
        part.finish()?;
        match part.position {
            Some(position) if position != covered.end => {
                Err(ErrorKind::Short { delivered: position, size })
            }
            _ => Ok((covered, part.written)),
        }
    }
}

/// Where pieces are written to.
#[derive(Clone, Copy)]
struct OutputFile<'a> {
    file: &'a File,
    cancel: &'a CancelToken,
    limits: &'a ExtractLimits,
}

/// A run of pieces that follow each other.
struct ExtentWriter<'a> {
    buffer: &'a mut [u8],
    /// How much of the buffer is in use.
    filled: usize,
    target: OutputFile<'a>,
    written: FileBytes,
    /// The offset at which the next piece must start; `None` before the first piece.
    position: Option<u64>,
    /// The offset at which the collected bytes end.
    data_end: u64,
}

impl<'a> ExtentWriter<'a> {
    fn new(buffer: &'a mut [u8], target: OutputFile<'a>) -> Self {
        let written = FileBytes::default();
        Self { buffer, filled: 0, target, written, position: None, data_end: 0 }
    }

    fn add(&mut self, piece: FilePiece<'_>, size: u64) -> Result<(), ErrorKind> {
        if self.target.cancel.is_cancelled() {
            return Err(ErrorKind::Cancelled);
        }
        let (FilePiece::Data { offset, .. } | FilePiece::Hole { offset, .. }) = piece;
        let position = *self.position.get_or_insert(offset);
        if offset != position {
            return Err(ErrorKind::Short { delivered: position, size });
        }
        let length = match piece {
            FilePiece::Data { bytes, .. } => {
                self.add_data(offset, bytes)?;
                bytes.len() as u64
            }
            FilePiece::Hole { length, .. } => {
                self.written.holes = self.written.holes.saturating_add(length);
                length
            }
        };
        self.position = Some(position.saturating_add(length));
        self.written.bytes = self.written.bytes.saturating_add(length);
        Ok(())
    }

    fn add_data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ErrorKind> {
        let is_direct = bytes.len() >= DIRECT_BYTES;
        let is_full = self.filled + bytes.len() > self.buffer.len();
        if is_direct || is_full || offset != self.data_end {
            self.flush()?;
        }
        self.data_end = offset.saturating_add(bytes.len() as u64);
        if is_direct {
            return self.target.write(bytes, offset);
        }
        // The piece fits: it is shorter than the buffer, which was flushed if it was too full.
        self.buffer[self.filled..][..bytes.len()].copy_from_slice(bytes);
        self.filled += bytes.len();
        Ok(())
    }

    /// Writes the collected bytes.
    fn flush(&mut self) -> Result<(), ErrorKind> {
        let filled = std::mem::take(&mut self.filled);
        if filled == 0 {
            return Ok(());
        }
        let start = self.data_end.saturating_sub(filled as u64);
        self.target.write(&self.buffer[..filled], start)
    }

    /// Writes the rest. Returns the offset at which the data ends.
    fn finish(&mut self) -> Result<u64, ErrorKind> {
        self.flush()?;
        Ok(self.data_end)
    }
}

impl OutputFile<'_> {
    fn write(self, bytes: &[u8], offset: u64) -> Result<(), ErrorKind> {
        self.limits.add_output(bytes.len() as u64)?;
        self.file.write_all_at(bytes, offset).map_err(write_failed)
    }
}

/// Sets the size of a file. Ranges that are not written stay holes.
pub(crate) fn set_size(file: &File, size: u64) -> Result<(), ErrorKind> {
    rustix::fs::ftruncate(file, size).map_err(ErrorKind::output("cannot give the file its size"))
}

fn write_failed(source: std::io::Error) -> ErrorKind {
    ErrorKind::Output { operation: "cannot write", source }
}
