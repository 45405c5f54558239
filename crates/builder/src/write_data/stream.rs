//! A file that is made while it is written, from its first byte to its last: no more of it is in memory than
//! is on its way.

use crate::Result;
use crate::rendered::memory_content;
use crate::segment::{EncodeConstraints, RangeTask, SEGMENT_BYTES, TaskKind, TaskSource};

/// Makes the next bytes of a file, as many as it is asked for.
pub(crate) type ByteGenerator<'m> = &'m mut dyn FnMut(usize) -> Result<Vec<u8>>;

/// Hands out the segments of one file, each of which is made then.
pub(super) struct GeneratedFile<'m> {
    name: &'static str,
    bytes: u64,
    at: u64,
    make: ByteGenerator<'m>,
    is_compressed: bool,
}

impl<'m> GeneratedFile<'m> {
    /// A file of `bytes` bytes that `make` makes, and that messages call `name`.
    pub(super) fn new(
        name: &'static str,
        bytes: u64,
        make: ByteGenerator<'m>,
        is_compressed: bool,
    ) -> Self {
        Self { name, bytes, at: 0, make, is_compressed }
    }
}

impl TaskSource for GeneratedFile<'_> {
    fn next_item(&mut self, tasks: &mut Vec<RangeTask>) -> Result<Option<u64>> {
        let (start, bytes) = (self.at, SEGMENT_BYTES.min(self.bytes - self.at));
        if bytes == 0 {
            return Ok(None);
        }
        let part = (self.make)(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        let may_be_flat = bytes == self.bytes;
        let kind = match self.is_compressed {
            true => TaskKind::Encode(EncodeConstraints { may_end_apart: true, may_be_flat }),
            false => TaskKind::StoreFlat,
        };
        let content = memory_content(self.name, start, part, self.bytes);
        tasks.push(RangeTask { file: 0, content, start, bytes, profile: 0, kind });
        self.at += bytes;
        Ok(Some(bytes))
    }
}
