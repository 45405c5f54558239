//! Bytes that the builder made itself, as contents: directories that go to the packed inode, and parts of
//! the metabox.

use std::ops::Range;
use std::sync::Arc;

use crate::tree::{Content, ContentReader, ContentSource};
use crate::{Error, ErrorKind, Result};

/// A file of `file_bytes` bytes of which the part from byte `start` on is there, which is all that anybody
/// reads of it. Messages call it `name`.
pub(crate) fn memory_content(
    name: &'static str,
    start: u64,
    part: Vec<u8>,
    file_bytes: u64,
) -> Content {
    Content::new(Arc::new(MemoryContent { name, start, part: part.into() }), file_bytes)
}

#[derive(Clone)]
struct MemoryContent {
    name: &'static str,
    start: u64,
    part: Arc<Vec<u8>>,
}

impl ContentSource for MemoryContent {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn open(&self) -> Result<Box<dyn ContentReader>> {
        Ok(Box::new(self.clone()))
    }

    fn data_ranges(&self) -> Result<Vec<Range<u64>>> {
        let end = self.start.saturating_add(self.part.len() as u64);
        Ok(std::iter::once(self.start..end).collect())
    }
}

impl ContentReader for MemoryContent {
    fn read_exact_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let from = offset.checked_sub(self.start).and_then(|from| usize::try_from(from).ok());
        let bytes = from.and_then(|from| self.part.get(from..)?.get(..buffer.len()));
        let gone = || Error::new(ErrorKind::Internal("a read outside of what was made"));
        buffer.copy_from_slice(bytes.ok_or_else(gone)?);
        Ok(())
    }

    fn check_unchanged(&mut self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_read_where_it_lies_in_the_file() {
        let content = memory_content("made", 100, vec![1, 2, 3, 4], 1000);
        let mut reader = content.source().open().unwrap();
        let mut buffer = [0; 2];
        reader.read_exact_at(101, &mut buffer).unwrap();
        assert_eq!((buffer, content.bytes()), ([2, 3], 1000));
        assert_eq!(content.source().data_ranges().unwrap().first(), Some(&(100..104)));
        for outside in [99, 103, 104] {
            reader.read_exact_at(outside, &mut buffer).unwrap_err();
        }
    }
}
