//! A source that holds bytes in two places and zeros between them, so that a small input can put
//! data at any block of its image.

use std::io;

use ferrofs_image::Source;

/// An image of a front and of data somewhere behind it. The front wins where they overlap.
#[derive(Debug)]
pub(crate) struct Stretch {
    pub(crate) front: Vec<u8>,
    pub(crate) data_start: u64,
    pub(crate) data: Vec<u8>,
}

impl Source for Stretch {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.length().saturating_sub(offset);
        let count = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let target = &mut buffer[..count];
        target.fill(0);
        copy(&self.data, self.data_start, target, offset);
        copy(&self.front, 0, target, offset);
        Ok(count)
    }

    fn length(&self) -> u64 {
        let front = self.front.len() as u64;
        if self.data.is_empty() {
            front
        } else {
            front.max(self.data_start + self.data.len() as u64)
        }
    }
}

/// Copies the common part of `bytes` at `start` and of `target` at `offset`.
fn copy(bytes: &[u8], start: u64, target: &mut [u8], offset: u64) {
    let from = start.max(offset);
    let to = (start + bytes.len() as u64).min(offset + target.len() as u64);
    let index = |at: u64| usize::try_from(at).expect("the length of a slice");
    if from < to {
        target[index(from - offset)..index(to - offset)]
            .copy_from_slice(&bytes[index(from - start)..index(to - start)]);
    }
}
