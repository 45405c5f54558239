//! Files that are being read, so that what a reader will want next is known although no file is ever opened. A bounded
//! table: what has not been read for a while leaves it, and is found in the image again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use ferrofs_image::OpenFile;

/// Tables, each with a lock of its own, so that listeners do not wait for each other.
const SHARDS: usize = 8;
/// Files a table.
const FILES_PER_SHARD: usize = 16;

/// The latest first, each with its node.
type FileShard = VecDeque<(u64, Arc<OpenFile>)>;

/// Recently read files.
#[derive(Debug)]
pub(crate) struct RecentFiles {
    shards: [Mutex<FileShard>; SHARDS],
}

impl RecentFiles {
    pub(crate) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }

    /// The file of a node, if it was read lately.
    pub(crate) fn get(&self, node: u64) -> Option<Arc<OpenFile>> {
        let mut files = self.shard(node)?.lock().unwrap_or_else(PoisonError::into_inner);
        let place = files.iter().position(|(of, _)| *of == node)?;
        let found = files.remove(place)?;
        let file = Arc::clone(&found.1);
        files.push_front(found);
        Some(file)
    }

    /// Remembers a file; another one leaves.
    pub(crate) fn put(&self, node: u64, file: Arc<OpenFile>) {
        let Some(shard) = self.shard(node) else { return };
        let mut files = shard.lock().unwrap_or_else(PoisonError::into_inner);
        files.push_front((node, file));
        let gone = if files.len() > FILES_PER_SHARD { files.pop_back() } else { None };
        drop(files);
        // Whoever reads it has it still; the last one gives up what was read ahead, without the lock.
        drop(gone);
    }

    fn shard(&self, node: u64) -> Option<&Mutex<FileShard>> {
        // Neighbours differ in their low bits.
        let place = usize::try_from(node % 8).unwrap_or(0);
        self.shards.get(place)
    }
}
