//! A source that holds bytes in some places and zeros between them, so that a small input can put
//! data at any block of its image.

use std::io;

use ferrofs_image::ImageSource;

/// Parts with the byte where each starts; later ones win where they overlap.
#[derive(Debug)]
pub(crate) struct Stretch(pub(crate) Vec<(u64, Vec<u8>)>);

impl ImageSource for Stretch {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.length().saturating_sub(offset);
        let count = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let target = &mut buffer[..count];
        target.fill(0);
        for (start, bytes) in &self.0 {
            copy(bytes, *start, target, offset);
        }
        Ok(count)
    }

    fn length(&self) -> u64 {
        let parts = self.0.iter().filter(|(_, bytes)| !bytes.is_empty());
        parts.map(|(start, bytes)| start + bytes.len() as u64).max().unwrap_or(0)
    }
}

/// Copies the common part of `bytes` at `start` and of `target` at `offset`.
fn copy(bytes: &[u8], start: u64, target: &mut [u8], offset: u64) {
    let from = start.max(offset);
    let to = (start + bytes.len() as u64).min(offset.saturating_add(target.len() as u64));
    let index = |at: u64| usize::try_from(at).expect("the length of a slice");
    if from < to {
        target[index(from - offset)..index(to - offset)]
            .copy_from_slice(&bytes[index(from - start)..index(to - start)]);
    }
}
