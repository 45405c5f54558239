//! What lies around a small read. A cluster that is decoded for a page holds many others, and random reads will want
//! those, too: they go to the kernel's page cache, as Linux's own EROFS leaves them there. Called by `read`.

use std::ops::Range;
use std::sync::Arc;

use ferrofs_fuse::Notifier;
use ferrofs_image::{OpenFile, ReadOutcome};

use super::ImageFs;

/// Larger reads are those of somebody who goes on in order, whom readahead serves.
const SMALL_READ_BYTES: usize = 16 << 10;
/// How much is stored at least and at most, in bytes of the file: as much as the extents hold, in between.
const MIN_BYTES: u64 = 32 << 10;
const MAX_BYTES: u64 = 128 << 10;

impl ImageFs {
    /// Stores what lies around, now or a little later.
    pub(super) fn store_readaround(&self, file: &Arc<OpenFile>, offset: u64, read: ReadOutcome) {
        if read.extent_bytes == 0 || read.bytes > SMALL_READ_BYTES {
            return;
        }
        // Pages that others are reading are waited for, so somebody else must be there to answer them.
        if self.notifier.get().is_some_and(Notifier::has_idle_listener) {
            self.store_readaround_now(file, offset, read);
        } else {
            self.prefetch_queue.store_readaround(Arc::clone(file), offset, read, &self.self_ref);
        }
    }

    pub(super) fn store_readaround_now(&self, file: &OpenFile, offset: u64, read: ReadOutcome) {
        let readaround = readaround(offset, read.extent_bytes, file.inode().size());
        let length = readaround.end.saturating_sub(readaround.start);
        let Ok(bytes) = usize::try_from(length) else { return };
        let Some(mut buffer) = self.image.best_effort_buffer(bytes) else { return };
        let end = offset.saturating_add(u64::try_from(read.bytes).unwrap_or(u64::MAX));
        for part in [readaround.start..offset, end..readaround.end] {
            let length = usize::try_from(part.end.saturating_sub(part.start)).unwrap_or(0);
            // What was asked for is on its way already, and not read twice.
            let Some(target) = buffer.get_mut(..length).filter(|target| !target.is_empty()) else {
                continue;
            };
            if self.image.read_at(file.inode(), part.start, target).is_ok_and(|read| read == length)
            {
                self.store(self.nodes.node(file.inode().nid()), part.start, target);
            }
        }
    }
}

/// An aligned range around a byte, within the file.
fn readaround(offset: u64, extent_bytes: u64, size: u64) -> Range<u64> {
    let bytes = extent_bytes.checked_next_power_of_two().unwrap_or(MAX_BYTES);
    let bytes = bytes.clamp(MIN_BYTES, MAX_BYTES);
    let start = offset & !(bytes.saturating_sub(1));
    start..start.saturating_add(bytes).min(size)
}

#[cfg(test)]
mod tests {
    use super::readaround;

    #[test]
    fn what_lies_around_is_aligned_and_within_the_file() {
        assert_eq!(readaround(4096, 9_000, 1 << 20), 0..32_768);
        assert_eq!(readaround(200_000, 100_000, 1 << 20), 131_072..262_144);
        assert_eq!(readaround(200_000, 100_000, 201_000), 131_072..201_000);
        assert_eq!(readaround(200_000, u64::MAX, 1 << 20), 131_072..262_144);
    }
}
