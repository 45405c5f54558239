//! The area of inodes while it is written, from its first byte to its last, and the part of it that lies
//! in the head of the image.

use crate::Result;
use crate::image_file::ImageWriter;

/// Takes inodes in the order of their places.
#[derive(Debug)]
pub(crate) struct MetadataArea<'i> {
    image: &'i mut ImageWriter,
    head: Vec<u8>,
}

impl<'i> MetadataArea<'i> {
    /// A area at the end of `image`, whose `head` is kept for the end of the build.
    pub(crate) fn new(image: &'i mut ImageWriter, head: Vec<u8>) -> Self {
        Self { image, head }
    }

    /// Writes `bytes` at byte `start` of the image: in the head, or behind all that came before.
    ///
    /// # Errors
    /// As the host answers.
    ///
    /// # Panics
    /// If two inodes overlap, which only a wrong layout makes.
    pub(crate) fn put(&mut self, start: u64, bytes: &[u8]) -> Result<()> {
        let in_head = usize::try_from(start).ok().filter(|start| *start < self.head.len());
        if let Some(start) = in_head {
            let place = self.head.get_mut(start..start.saturating_add(bytes.len()));
            place.expect("an inode of the head ends in it").copy_from_slice(bytes);
            return Ok(());
        }
        self.fill_to(start)?;
        self.image.write(bytes)
    }

    /// Ends the area at byte `end` of the image. Returns the head.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub(crate) fn end(mut self, end: u64) -> Result<Vec<u8>> {
        self.fill_to(end)?;
        Ok(self.head)
    }

    /// Ends the area with its last block. Returns the head.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub(crate) fn finish_block(self) -> Result<Vec<u8>> {
        self.image.fill_block()?;
        Ok(self.head)
    }

    fn fill_to(&mut self, start: u64) -> Result<()> {
        let at = self.image.bytes();
        assert!(at <= start, "what ends at byte {at} overlaps what starts at byte {start}");
        self.image.write_zeros(start - at)
    }
}
