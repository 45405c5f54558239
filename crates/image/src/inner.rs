//! What all handles of an image share, and access to its metadata.
//!
//! [`ImageInner`] lies below all files that add methods to it: maps, reads, directories, xattrs.
//! Metadata (inodes, xattrs, indexes, tails) is read here. Two spaces hold it: the image itself,
//! and the decoded metabox file (docs/format.md F9). Both are read in aligned windows through a
//! bounded cache, so that the thousand small structures of a walk cost few reads of the source.
//!
//! The metabox is a file, so a window of it is read by [`ImageInner::read_at`], the one call from
//! here upwards.

use std::ops::{Deref, Range};
use std::sync::Arc;

use ferrofs_ondisk as ondisk;
use ferrofs_ondisk::compression::CompressionConfig;
use ferrofs_ondisk::{DeviceSlot, Nid, Superblock, TimeBase};
use ferrofs_workers::memory::ReclaimerRegistration;

use crate::counted_starts::CountedStarts;
use crate::engine::{Engine, SyncDecompress};
use crate::error::{Error, ErrorContext, ErrorKind, Result, address, parsed};
use crate::extent::AddressSpace;
use crate::idle_reclaimer::IdleReclaimer;
use crate::inode::Inode;
use crate::metadata_cache::{MetadataCache, WindowHandle};
use crate::source::{self, outside};
use crate::work::WorkMeter;

/// Bytes of a window. Larger ones cost more than they save when single inodes are looked up.
const WINDOW_BYTES: u64 = 16 << 10;
/// Where the superblock holds the block from which nids count. If a nid leads to no address, that
/// field or the nid is wrong.
const META_BLOCK_FIELD: u64 = ondisk::SUPERBLOCK_OFFSET | 40;

/// What all handles of an image share.
#[derive(Debug)]
pub(crate) struct ImageInner {
    pub(crate) sb: Superblock,
    pub(crate) compression: CompressionConfig,
    pub(crate) device_slots: Vec<DeviceSlot>,
    /// Declared before the engine, so that its thread has ended when the engine is dropped.
    pub(crate) idle_reclaimer: IdleReclaimer,
    pub(crate) engine: Arc<Engine>,
    pub(crate) metadata_cache: Arc<MetadataCache>,
    pub(crate) mode: SyncDecompress,
    /// The caller caches what it reads.
    pub(crate) caller_caches: bool,
    pub(crate) metabox: Option<Inode>,
    pub(crate) packed: Option<Inode>,
    pub(crate) counted_starts: CountedStarts,
    /// The table of long prefixes of xattr names.
    pub(crate) xattr_prefixes: Vec<XattrPrefix>,
    /// Frees what the engine only keeps for speed when others need the memory.
    pub(crate) _reclaimer: ReclaimerRegistration,
}

/// A long prefix of xattr names.
#[derive(Debug)]
pub(crate) struct XattrPrefix {
    pub(crate) base: u8,
    pub(crate) infix: Vec<u8>,
}

impl ImageInner {
    /// Every read calls it, so that buffers and caches are freed once reads stop.
    pub(crate) fn wake_idle_reclaimer(&self) {
        if self.engine.may_start_threads() {
            self.idle_reclaimer.wake();
        }
    }

    /// A meter for an operation on the image, with the default limit.
    pub(crate) fn work_meter(&self) -> WorkMeter {
        WorkMeter::new(WorkMeter::default_limit(self.stored_bytes()))
    }

    /// The length of the image and of the devices that were given.
    pub(crate) fn stored_bytes(&self) -> u64 {
        let others = self.engine.devices.given_lengths().flatten();
        others.fold(self.engine.devices.primary().length(), u64::saturating_add)
    }

    /// Reads the inode with this number.
    pub(crate) fn inode(&self, nid: Nid) -> Result<Inode> {
        self.load_inode(nid).in_inode(nid)
    }

    fn load_inode(&self, nid: Nid) -> Result<Inode> {
        let space = AddressSpace::of(nid);
        let offset = address(self.inode_offset(space, nid)).at(META_BLOCK_FIELD)?;
        let bytes = self.metadata_up_to(space, offset, ondisk::DiskInode::MAX_BYTES).at(offset)?;
        let base = TimeBase { epoch: self.sb.epoch, fixed_nsec: self.sb.fixed_nsec };
        let disk = parsed(ondisk::DiskInode::parse(&bytes, base), offset)?;
        Ok(Inode::new(nid, offset, disk))
    }

    /// In the image nids count from the metadata area, in the metabox from its first byte.
    fn inode_offset(&self, space: AddressSpace, nid: Nid) -> Option<u64> {
        let offset = nid.byte_offset()?;
        match space {
            AddressSpace::Image => offset.checked_add_signed(self.sb.meta_offset()?),
            AddressSpace::Metabox => Some(offset),
        }
    }

    /// The `bytes` bytes of metadata at `offset`. The format bounds `bytes`.
    pub(crate) fn metadata(
        &self,
        space: AddressSpace,
        offset: u64,
        bytes: usize,
    ) -> Result<MetaBytes> {
        let found = self.metadata_up_to(space, offset, bytes)?;
        if found.len() == bytes {
            return Ok(found);
        }
        let length = match space {
            AddressSpace::Image => self.engine.devices.primary().current_length(),
            AddressSpace::Metabox => self.metabox()?.size(),
        };
        Err(outside(offset, u64::try_from(bytes).unwrap_or(u64::MAX), length))
    }

    /// The same, but fewer bytes where the space ends.
    pub(crate) fn metadata_up_to(
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
        let length = window.bytes().len();
        if end <= length || length < window_bytes() {
            if end > length {
                self.check_end(space, index, length)?;
            }
            let end = end.min(length);
            return Ok(MetaBytes { window, range: start.min(end)..end });
        }
        self.metadata_across(space, offset, bytes)
    }

    /// Joins several windows.
    fn metadata_across(&self, space: AddressSpace, offset: u64, bytes: usize) -> Result<MetaBytes> {
        let mut joined = source::zeroed(bytes)?;
        let mut filled = 0usize;
        while let Some(target) = joined.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let done = u64::try_from(filled).unwrap_or(u64::MAX);
            let at = address(offset.checked_add(done))?;
            let window = self.window(space, at / WINDOW_BYTES)?;
            let start = usize::try_from(at % WINDOW_BYTES).unwrap_or(usize::MAX);
            let part = window.bytes().get(start..).unwrap_or_default();
            let count = part.len().min(target.len());
            if count == 0 {
                self.check_end(space, at / WINDOW_BYTES, window.bytes().len())?;
                break;
            }
            let (target, part) = (target.get_mut(..count), part.get(..count));
            if let (Some(target), Some(part)) = (target, part) {
                target.copy_from_slice(part);
            }
            filled = filled.saturating_add(count);
        }
        Ok(MetaBytes { window: Arc::new(WindowHandle::new(joined)), range: 0..filled })
    }

    /// That a window of so many bytes ends with its space, and not because the source was truncated
    /// while it is in use.
    fn check_end(&self, space: AddressSpace, index: u64, window_length: usize) -> Result<()> {
        let start = address(index.checked_mul(WINDOW_BYTES))?;
        let wanted = match space {
            AddressSpace::Image => {
                let source = self.engine.devices.primary();
                source.length().saturating_sub(start).min(WINDOW_BYTES)
            }
            // Reading a file fails where the source does.
            AddressSpace::Metabox => 0,
        };
        if u64::try_from(window_length).unwrap_or(u64::MAX) >= wanted {
            return Ok(());
        }
        Err(outside(start, wanted, self.engine.devices.primary().current_length()))
    }

    /// A window of metadata. It is shorter at the end of its space and empty behind it.
    fn window(&self, space: AddressSpace, index: u64) -> Result<Arc<WindowHandle>> {
        let key = (space, index);
        if let Some(window) = self.metadata_cache.get(key) {
            return Ok(window);
        }
        // Windows that are evicted leave holes in the heap.
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
        let window = Arc::new(WindowHandle::new(bytes));
        // What a truncated source lacks may come back.
        if self.check_end(space, index, filled).is_ok() {
            self.metadata_cache.put(key, &window);
        }
        Ok(window)
    }

    /// The metabox inode.
    pub(crate) fn metabox(&self) -> Result<&Inode> {
        self.metabox.as_ref().ok_or_else(|| Error::new(ErrorKind::NoMetabox))
    }

    /// The packed inode, for a fragment of `inode`. The packed inode has no fragments itself, and
    /// neither has the metabox, which may hold the map of the packed inode.
    pub(crate) fn packed_for(&self, inode: &Inode) -> Result<&Inode> {
        let is_special = |special: &Option<Inode>| {
            special.as_ref().is_some_and(|special| special.nid() == inode.nid())
        };
        let may_have = !is_special(&self.packed) && !is_special(&self.metabox);
        let packed = self.packed.as_ref().filter(|_| may_have);
        packed.ok_or_else(|| Error::new(ErrorKind::NoPackedInode).at(inode.end()))
    }

    /// Whether it is the packed inode. Many files share its clusters.
    pub(crate) fn is_packed(&self, nid: Nid) -> bool {
        self.packed.as_ref().is_some_and(|packed| packed.nid() == nid)
    }
}

/// Some bytes of metadata.
#[derive(Clone, Debug)]
pub(crate) struct MetaBytes {
    window: Arc<WindowHandle>,
    range: Range<usize>,
}

impl Deref for MetaBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.window.get(self.range.clone()).unwrap_or_default()
    }
}

fn window_bytes() -> usize {
    usize::try_from(WINDOW_BYTES).unwrap_or(usize::MAX)
}
#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::open::OpenOptions;
    use crate::source::ImageSource;

    /// A file that others truncate and extend.
    #[derive(Debug)]
    struct TruncatedSource {
        bytes: Vec<u8>,
        length_now: AtomicUsize,
    }

    impl ImageSource for TruncatedSource {
        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
            let at = usize::try_from(offset).unwrap();
            let present = self.bytes.get(..self.length_now.load(Ordering::Relaxed)).unwrap();
            let rest = present.get(at..).unwrap_or_default();
            let count = rest.len().min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            Ok(count)
        }

        fn length(&self) -> u64 {
            self.bytes.len() as u64
        }

        fn current_length(&self) -> u64 {
            self.length_now.load(Ordering::Relaxed) as u64
        }
    }

    #[test]
    fn metadata_of_a_truncated_source_is_an_error_until_its_bytes_are_back() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/plain.erofs");
        let bytes = std::fs::read(path).unwrap();
        let whole = bytes.len();
        let source = Arc::new(TruncatedSource { bytes, length_now: AtomicUsize::new(whole) });
        let shared: Arc<dyn ImageSource> = Arc::clone(&source) as _;
        let image = OpenOptions::default().open_sources(shared, Vec::new()).unwrap();
        let inner = image.inner();
        let last = whole - 8;
        for cut in [whole - 4, last & !4095, 0] {
            inner.metadata_cache.clear();
            source.length_now.store(cut, Ordering::Relaxed);
            let error = inner.metadata_up_to(AddressSpace::Image, last as u64, 8).unwrap_err();
            let now = cut as u64;
            assert!(
                matches!(error.kind(), ErrorKind::OutsideImage { length, .. } if *length == now)
            );
            source.length_now.store(whole, Ordering::Relaxed);
            assert_eq!(inner.metadata(AddressSpace::Image, last as u64, 8).unwrap().len(), 8);
        }
        // Nothing is missing there.
        let after = inner.metadata_up_to(AddressSpace::Image, whole as u64 + (1 << 20), 8);
        assert_eq!(after.unwrap().len(), 0);
    }
}
