//! A file that is read in pieces: reads like [`Image::read_at`], and looks ahead of readers that go
//! through it in order.

use std::sync::{Mutex, PoisonError, TryLockError};

use crate::error::Result;
use crate::image::Image;
use crate::inode::Inode;
use crate::open_file::ReadaheadState;
use crate::read::ReadOutcome;

/// An open file with readahead. It may be read from many threads; those that go through it in order,
/// one behind the other, are taken for one reader.
#[derive(Debug)]
pub struct OpenFile {
    image: Image,
    inode: Inode,
    ahead: Mutex<ReadaheadState>,
}

impl OpenFile {
    pub(crate) fn new(image: Image, inode: Inode) -> Self {
        Self { image, inode, ahead: Mutex::new(ReadaheadState::new()) }
    }

    /// Its inode.
    #[must_use]
    pub fn inode(&self) -> &Inode {
        &self.inode
    }

    /// Reads as [`Image::read_at`], and has the clusters that come next decoded by the workers of other
    /// CPUs if the reader has gone through the file in order so far. They give way when memory is
    /// short, and are given up when the reader goes elsewhere.
    ///
    /// # Errors
    /// As [`Image::read_at`]; what is read ahead never fails a read.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        // Before the read: the workers decode what comes next while this thread decodes what it needs.
        Ok(self.read_with_outcome(offset, buffer)?.bytes)
    }

    /// The same, and tells whether anything had to be decoded for it.
    ///
    /// # Errors
    /// As [`OpenFile::read_at`].
    pub fn read_with_outcome(&self, offset: u64, buffer: &mut [u8]) -> Result<ReadOutcome> {
        self.look_ahead(offset, buffer.len());
        let inner = self.image.inner();
        inner.read_in_mode(&self.inode, offset, buffer, inner.mode)
    }

    fn look_ahead(&self, offset: u64, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        // Another reader is at it: one of them looking ahead is enough, and nobody waits.
        let mut ahead = match self.ahead.try_lock() {
            Ok(ahead) => ahead,
            // A medium panicked while the metadata was read; what is known of the reader is a guess.
            Err(TryLockError::Poisoned(left)) => left.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if let Some(range) = ahead.advance(offset, bytes, self.inode.size()) {
            ahead.prefetch(self.image.inner(), &self.inode, range);
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.ahead.get_mut().unwrap_or_else(PoisonError::into_inner).cancel();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use ferrofs_ondisk::FileType;

    use crate::image::Image;
    use crate::walk::WalkEvent;

    #[test]
    fn a_panic_on_the_way_does_not_end_readahead() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/lz4.erofs");
        let image = Image::open(path).unwrap();
        let is_large = |visit| match visit {
            WalkEvent::Leaf(node) if node.inode.file_type() == FileType::Regular => {
                Some(node.inode).filter(|inode| inode.size() > 60_000)
            }
            _ => None,
        };
        let inode = image.walk(b"/").unwrap().find_map(is_large).unwrap();
        let mut file = image.open_file(&inode).unwrap();
        let panic = || {
            let _ahead = file.ahead.lock();
            resume_unwind(Box::new("on purpose"));
        };
        assert!(catch_unwind(AssertUnwindSafe(panic)).is_err());
        assert!(file.ahead.is_poisoned());
        file.read_at(0, &mut [0; 4096]).unwrap();
        file.ahead.clear_poison();
        assert!(file.ahead.get_mut().unwrap().is_ahead_of(4096));
    }
}
