//! The metabox while it is written: its inodes one after another, and as much of it at a time as somebody
//! wants.

use super::look;
use super::placed::Placed;
use super::records::Records;
use crate::Result;
use crate::watch::Watch;

/// Makes the bytes of the metabox from the first to the last.
pub(super) struct MetaboxBytes<'a, 't> {
    records: Records<'a, 't>,
    placed: &'a Placed,
    watch: &'a dyn Watch,
    /// How many inodes were made.
    inodes: usize,
    /// How many bytes were handed out.
    handed_out: u64,
    /// What was made and not handed out.
    made: Vec<u8>,
}

impl<'a, 't> MetaboxBytes<'a, 't> {
    /// The inodes of `placed` as `records` say them.
    pub(super) fn new(records: Records<'a, 't>, placed: &'a Placed, watch: &'a dyn Watch) -> Self {
        Self { records, placed, watch, inodes: 0, handed_out: 0, made: Vec::new() }
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// What an inode cannot say, with its path.
    ///
    /// # Panics
    /// If two inodes overlap, which only a wrong layout makes.
    pub(super) fn next(&mut self, count: usize) -> Result<Vec<u8>> {
        while self.made.len() < count {
            let Some(&(start, number)) = self.placed.metabox.get(self.inodes) else {
                self.made.resize(count, 0);
                break;
            };
            look(self.inodes, self.watch)?;
            self.inodes += 1;
            let start = usize::try_from(start - self.handed_out).unwrap_or(usize::MAX);
            assert!(self.made.len() <= start, "inode {number} starts in the one before it");
            self.made.resize(start, 0);
            self.made.extend(self.records.render(number, self.placed)?);
        }
        let rest = self.made.split_off(count);
        self.handed_out += count as u64;
        Ok(std::mem::replace(&mut self.made, rest))
    }
}
