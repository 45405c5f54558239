//! The contents of a regular file: data where the image has data, holes where it has holes.

use std::fs::File;
use std::os::unix::fs::FileExt;

use ferrofs_image::{Image, Inode, Piece};

use crate::error::ErrorKind;

/// Larger files get their size before their contents, so that one that is too large for the host
/// fails at once.
const SIZE_FIRST_BYTES: u64 = 1 << 32;

/// A part of a file that has been written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Written {
    Data(u64),
    Hole(u64),
}

/// Fills the new, empty `file` with the contents of `inode`.
pub(crate) fn write(
    image: &Image,
    inode: &Inode,
    file: &File,
    on_piece: &mut dyn FnMut(Written),
) -> Result<(), ErrorKind> {
    let size = inode.size();
    if size > SIZE_FIRST_BYTES {
        set_size(file, size)?;
    }
    let (mut position, mut data_end) = (0u64, 0u64);
    image.for_each_piece::<ErrorKind>(inode, |piece| {
        let written = match piece {
            Piece::Data { offset, bytes } if offset == position => {
                file.write_all_at(bytes, offset).map_err(write_failed)?;
                let length = bytes.len() as u64;
                data_end = offset.saturating_add(length);
                position = data_end;
                Written::Data(length)
            }
            Piece::Hole { offset, length } if offset == position => {
                position = position.saturating_add(length);
                Written::Hole(length)
            }
            _ => return Err(ErrorKind::Short { delivered: position, size }),
        };
        on_piece(written);
        Ok(())
    })?;
    if position != size {
        return Err(ErrorKind::Short { delivered: position, size });
    }
    if data_end < size { set_size(file, size) } else { Ok(()) }
}

fn set_size(file: &File, size: u64) -> Result<(), ErrorKind> {
    rustix::fs::ftruncate(file, size).map_err(ErrorKind::output("cannot give the file its size"))
}

fn write_failed(source: std::io::Error) -> ErrorKind {
    ErrorKind::Output { operation: "cannot write", source }
}
