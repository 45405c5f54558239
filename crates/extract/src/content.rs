//! The contents of a regular file: data where the image has data, holes where it has holes.
//!
//! An image delivers pieces as they were compressed, a few kilobytes each and at any offset; they
//! are collected so that the host gets long writes.

use std::fs::File;
use std::os::unix::fs::FileExt;

use ferrofs_image::{Image, Inode, Piece};

use crate::error::ErrorKind;

/// Larger files get their size before their contents, so that one that is too large for the host
/// fails at once.
const SIZE_FIRST_BYTES: u64 = 1 << 32;

/// Data is written when this much has been collected: enough to make the cost of a call vanish,
/// and little enough to stay in the cache of a CPU.
const COLLECTED_BYTES: usize = 256 << 10;

/// A part of a file that has been delivered.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Delivered {
    Data(u64),
    Hole(u64),
}

/// Collects the data of one file after the other.
#[derive(Debug, Default)]
pub(crate) struct ContentWriter {
    collected: Vec<u8>,
}

impl ContentWriter {
    /// Fills the new, empty `file` with the contents of `inode`.
    pub(crate) fn write(
        &mut self,
        image: &Image,
        inode: &Inode,
        file: &File,
        on_piece: &mut dyn FnMut(Delivered),
    ) -> Result<(), ErrorKind> {
        let size = inode.size();
        if size > SIZE_FIRST_BYTES {
            set_size(file, size)?;
        }
        self.collected.clear();
        let (mut position, mut data_end) = (0u64, 0u64);
        image.for_each_piece::<ErrorKind>(inode, |piece| {
            on_piece(match piece {
                Piece::Data { offset, bytes } if offset == position => {
                    self.add(file, data_end, offset, bytes)?;
                    data_end = offset.saturating_add(bytes.len() as u64);
                    position = data_end;
                    Delivered::Data(bytes.len() as u64)
                }
                Piece::Hole { offset, length } if offset == position => {
                    position = position.saturating_add(length);
                    Delivered::Hole(length)
                }
                _ => return Err(ErrorKind::Short { delivered: position, size }),
            });
            Ok(())
        })?;
        self.flush(file, data_end)?;
        if position != size {
            return Err(ErrorKind::Short { delivered: position, size });
        }
        if data_end < size { set_size(file, size) } else { Ok(()) }
    }

    /// Adds data for `offset`; what has been collected ends at `data_end`.
    fn add(
        &mut self,
        file: &File,
        data_end: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), ErrorKind> {
        if offset != data_end || self.collected.len() + bytes.len() > COLLECTED_BYTES {
            self.flush(file, data_end)?;
        }
        if bytes.len() >= COLLECTED_BYTES {
            return file.write_all_at(bytes, offset).map_err(write_failed);
        }
        self.collected.extend_from_slice(bytes);
        Ok(())
    }

    /// Writes what has been collected; it ends at `data_end`.
    fn flush(&mut self, file: &File, data_end: u64) -> Result<(), ErrorKind> {
        if self.collected.is_empty() {
            return Ok(());
        }
        let start = data_end.saturating_sub(self.collected.len() as u64);
        file.write_all_at(&self.collected, start).map_err(write_failed)?;
        self.collected.clear();
        Ok(())
    }
}

fn set_size(file: &File, size: u64) -> Result<(), ErrorKind> {
    rustix::fs::ftruncate(file, size).map_err(ErrorKind::output("cannot give the file its size"))
}

fn write_failed(source: std::io::Error) -> ErrorKind {
    ErrorKind::Output { operation: "cannot write", source }
}
