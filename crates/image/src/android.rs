//! The files in which Android keeps images, as sources: a partition of a super image, and the sparse
//! form in which its build system ships images.

mod partition;
mod sparse;

use std::io;

pub use partition::{PartitionError, PartitionSource};
pub use sparse::SparseSource;

use crate::source::ImageSource;

/// Fills `buffer` from byte `offset` on.
fn read_exact(source: &dyn ImageSource, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
    let (mut at, mut rest) = (offset, buffer);
    while !rest.is_empty() {
        let count = source.read_at(at, rest)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        rest = rest.get_mut(count..).unwrap_or_default();
        at = at.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
    }
    Ok(())
}

/// The number of two bytes at `at`, or 0 behind the end.
fn le_u16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |part| u16::from_le_bytes(*part))
}

/// The same of four bytes.
fn le_u32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |part| u32::from_le_bytes(*part))
}

/// The same of eight bytes.
fn le_u64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |part| u64::from_le_bytes(*part))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A source in memory.
    #[derive(Debug)]
    pub(super) struct Bytes(pub(super) Vec<u8>);

    impl ImageSource for Bytes {
        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
            let start = usize::try_from(offset).unwrap().min(self.0.len());
            let count = buffer.len().min(self.0.len() - start);
            buffer[..count].copy_from_slice(&self.0[start..start + count]);
            Ok(count)
        }

        fn length(&self) -> u64 {
            self.0.len() as u64
        }
    }
}
