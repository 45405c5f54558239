//! Metadata bytes: inodes, xattrs, indexes and tails, read through a cache of windows.
//!
//! Two spaces hold metadata: the image itself, and the decoded metabox file (docs/format.md F9).
//! Both are read in aligned windows, so that the thousand small structures of a walk cost few
//! reads of the source.

use std::ops::{Deref, Range};
use std::sync::Arc;

use ferrofs_workers::memory::{AllocPolicy, Charge};

use crate::cache::{LruCache, SharedBytes};
use crate::error::{Error, ErrorContext, ErrorKind, Result, address};
use crate::image::ImageInner;
use crate::inode::Inode;
use crate::memory::MemoryPool;
use crate::source::{self, outside};

/// Bytes of a window. Larger ones cost more than they save when single inodes are looked up.
const WINDOW_BYTES: u64 = 16 << 10;
/// Bytes of all windows that are kept, where memory is not scarce.
const KEPT_BYTES: u64 = 4 << 20;
/// What is left of them when nobody has read for a while: directories that are looked at now and then.
const IDLE_BYTES: usize = 256 << 10;

/// Where metadata lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AddressSpace {
    /// In the image.
    Image,
    /// In the decoded metabox file.
    Metabox,
}

/// The windows of both spaces. Their bytes are charged as a whole.
#[derive(Debug)]
pub(crate) struct MetadataCache {
    cache: LruCache<(AddressSpace, u64)>,
    _charge: Charge,
}

impl MetadataCache {
    /// Keeps what was used last, and no more than is left while nobody reads.
    pub(crate) fn shed(&self) {
        self.cache.shed(IDLE_BYTES);
    }
}

/// A cache of at most an eighth of the memory.
pub(crate) fn metadata_cache(memory: &MemoryPool) -> Result<Arc<MetadataCache>> {
    let bytes = KEPT_BYTES.min(memory.budget().limit_bytes() / 8);
    let charge = memory.budget().charge(bytes, AllocPolicy::MustSucceed)?;
    let cache = LruCache::new(usize::try_from(bytes).unwrap_or(usize::MAX));
    Ok(Arc::new(MetadataCache { cache, _charge: charge }))
}

/// Some bytes of metadata.
#[derive(Clone, Debug)]
pub(crate) struct MetaBytes {
    bytes: SharedBytes,
    range: Range<usize>,
}

impl Deref for MetaBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(self.range.clone()).unwrap_or_default()
    }
}

impl ImageInner {
    /// The `bytes` bytes of metadata at `offset`. Callers bound `bytes` by the format.
    pub(crate) fn meta(&self, space: AddressSpace, offset: u64, bytes: usize) -> Result<MetaBytes> {
        let found = self.meta_up_to(space, offset, bytes)?;
        if found.len() == bytes {
            return Ok(found);
        }
        let length = match space {
            AddressSpace::Image => self.engine.devices.primary().length(),
            AddressSpace::Metabox => self.metabox()?.size(),
        };
        Err(outside(offset, u64::try_from(bytes).unwrap_or(u64::MAX), length))
    }

    /// The same, but fewer bytes where the space ends.
    pub(crate) fn meta_up_to(
        &self,
        space: AddressSpace,
        offset: u64,
        bytes: usize,
    ) -> Result<MetaBytes> {
        let index = offset / WINDOW_BYTES;
        let window = self.window(space, index)?;
        // Below the window size, so the conversion cannot fail.
        let start = usize::try_from(offset % WINDOW_BYTES).unwrap_or(usize::MAX);
        let end = start.saturating_add(bytes);
        if end <= window.len() || window.len() < window_bytes() {
            let end = end.min(window.len());
            return Ok(MetaBytes { bytes: window, range: start.min(end)..end });
        }
        self.meta_across(space, offset, bytes)
    }

    /// Joins several windows.
    fn meta_across(&self, space: AddressSpace, offset: u64, bytes: usize) -> Result<MetaBytes> {
        let mut joined = source::zeroed(bytes)?;
        let mut filled = 0usize;
        while let Some(target) = joined.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let done = u64::try_from(filled).unwrap_or(u64::MAX);
            let at = address(offset.checked_add(done))?;
            let window = self.window(space, at / WINDOW_BYTES)?;
            let start = usize::try_from(at % WINDOW_BYTES).unwrap_or(usize::MAX);
            let part = window.get(start..).unwrap_or_default();
            let count = part.len().min(target.len());
            if count == 0 {
                break;
            }
            let (target, part) = (target.get_mut(..count), part.get(..count));
            if let (Some(target), Some(part)) = (target, part) {
                target.copy_from_slice(part);
            }
            filled = filled.saturating_add(count);
        }
        Ok(MetaBytes { bytes: Arc::new(joined), range: 0..filled })
    }

    /// A window, shorter than the others at the end of its space and empty behind it.
    fn window(&self, space: AddressSpace, index: u64) -> Result<SharedBytes> {
        let key = (space, index);
        if let Some(window) = self.metadata_cache.cache.get(&key, 0) {
            return Ok(window);
        }
        // MetadataCache that others make room for leave holes in the heap.
        self.wake_idle_reclaimer();
        let offset = address(index.checked_mul(WINDOW_BYTES))?;
        let mut bytes = source::zeroed(window_bytes())?;
        let filled = match space {
            AddressSpace::Image => {
                source::read_up_to(self.engine.devices.primary(), offset, &mut bytes)?
            }
            AddressSpace::Metabox => {
                let metabox = self.metabox()?;
                self.read_at(metabox, offset, &mut bytes).in_inode(metabox.nid())?
            }
        };
        bytes.truncate(filled);
        let window: SharedBytes = Arc::new(bytes);
        self.metadata_cache.cache.put(key, &window);
        Ok(window)
    }

    /// The metabox inode.
    pub(crate) fn metabox(&self) -> Result<&Inode> {
        self.metabox.as_ref().ok_or_else(|| Error::new(ErrorKind::NoMetabox))
    }
}

fn window_bytes() -> usize {
    usize::try_from(WINDOW_BYTES).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::image::Image;

    #[test]
    fn windows_go_back_when_nobody_reads_but_for_the_last_ones() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/plain.erofs");
        let image = Image::open(path).unwrap();
        let cache = &image.inner().metadata_cache.cache;
        let far = |index: u64| (AddressSpace::Image, (1 << 40) + index);
        for index in 0..100 {
            cache.put(far(index), &Arc::new(vec![0; window_bytes()]));
        }
        assert!(cache.get(&far(0), 0).is_some() && cache.get(&far(99), 0).is_some());
        image.inner().wake_idle_reclaimer();
        let began = Instant::now();
        while cache.used_bytes() > IDLE_BYTES {
            assert!(began.elapsed() < Duration::from_secs(60), "never given back");
            std::thread::yield_now();
        }
        assert!(cache.get(&far(98), 0).is_some() && cache.get(&far(1), 0).is_none());
    }
}
