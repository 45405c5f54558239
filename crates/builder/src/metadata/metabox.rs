//! The metabox while it is written: its inodes one after another, and as much of it at a time as somebody
//! wants.

use super::check_cancelled;
use super::placed::InodePlacement;
use super::records::InodeRecords;
use crate::Result;
use crate::observer::BuildObserver;

/// Makes the bytes of the metabox from the first to the last.
pub(super) struct MetaboxGenerator<'a, 't> {
    records: InodeRecords<'a, 't>,
    placement: &'a InodePlacement,
    observer: &'a dyn BuildObserver,
    /// How many inodes were made.
    inodes: usize,
    /// How many bytes were handed out.
    handed_out: u64,
    /// What was made and not handed out.
    made: Vec<u8>,
}

impl<'a, 't> MetaboxGenerator<'a, 't> {
    /// The inodes of `placement` as `records` say them.
    pub(super) fn new(
        records: InodeRecords<'a, 't>,
        placement: &'a InodePlacement,
        observer: &'a dyn BuildObserver,
    ) -> Self {
        Self { records, placement, observer, inodes: 0, handed_out: 0, made: Vec::new() }
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
            let Some(&(start, number)) = self.placement.metabox.get(self.inodes) else {
                self.made.resize(count, 0);
                break;
            };
            check_cancelled(self.inodes, self.observer)?;
            self.inodes += 1;
            let start = usize::try_from(start - self.handed_out).unwrap_or(usize::MAX);
            assert!(self.made.len() <= start, "inode {number} starts in the one before it");
            self.made.resize(start, 0);
            self.made.extend(self.records.render(number, self.placement)?);
        }
        let rest = self.made.split_off(count);
        self.handed_out += count as u64;
        Ok(std::mem::replace(&mut self.made, rest))
    }
}
