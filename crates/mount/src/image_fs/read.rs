//! READ: bytes of a file, and afterwards the data that the reader will want next. That is the data near a small read,
//! and the files that are predicted to follow (`prefetch`). It goes to the kernel's page cache.
//!
//! A cluster that is decoded for one page holds many other pages, and random reads will want those, too. Linux's own
//! EROFS keeps them in the page cache as well. Of a page that two extents share, `PartialPages` keeps the first part until
//! there is the other one. `RecentFiles` has the open files.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ferrofs_fuse::{Errno, Notifier, Reply};
use ferrofs_image::{ErrorKind, FileType, Nid, OpenFile, ReadOutcome};
use ferrofs_workers::memory::{AllocPolicy, Budget, Charge};

use super::prefetch::PrefetchTask;
use super::{FsResult, ImageFs};

/// A larger read belongs to a sequential reader, which readahead serves.
const SMALL_READ_BYTES: usize = 16 << 10;
/// The size of a readaround among short extents, in bytes of the file: that of the decoded extents, but at least this.
const MIN_READAROUND_BYTES: u64 = 32 << 10;
/// The most that one readaround stores, in bytes: two extents of 128 KiB, when the read needs both, and more.
const MAX_READAROUND_BYTES: u64 = 320 << 10;
/// What is stored of longer extents, in bytes.
const READAROUND_PART_BYTES: u64 = 128 << 10;
/// The longest extents, in bytes, whose readaround is left to a thread of its own. It takes as long as the reader needs
/// for its next request. A listener that did it would occupy the CPU that the reader is woken on.
const SHORT_EXTENT_BYTES: u64 = 64 << 10;
/// The largest file that is prefetched, in bytes. Larger ones are left to readahead.
const MAX_PREFETCH_BYTES: u64 = 256 << 10;

impl ImageFs {
    pub(super) fn read(&self, node: u64, offset: u64, size: u32, reply: Reply<'_>) {
        if let Err((reply, errno)) = self.try_read(node, offset, size, reply) {
            reply.error(errno);
        }
    }

    fn try_read<'a>(
        &self,
        node: u64,
        offset: u64,
        size: u32,
        reply: Reply<'a>,
    ) -> Result<(), (Reply<'a>, Errno)> {
        let file = match self.file(node) {
            Ok(file) => file,
            Err(errno) => return Err((reply, errno)),
        };
        crash_point(file.inode().nid());
        let rest = file.inode().size().saturating_sub(offset);
        let bytes = u64::from(size).min(rest);
        if bytes == 0 {
            reply.bytes(&[]);
            return Ok(());
        }
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let read = self.image.demand_buffer(bytes).and_then(|mut buffer| {
            let read = self.read_missing(
                node,
                &file,
                offset,
                buffer.get_mut(..bytes).unwrap_or_default(),
            )?;
            Ok((buffer, read))
        });
        match read {
            Ok((buffer, read)) => {
                reply.bytes(buffer.get(..read.bytes).unwrap_or_default());
                drop(buffer);
                self.after_read(&file, offset, read);
                Ok(())
            }
            Err(error) => {
                self.failed(file.inode().nid(), "data", &error);
                let is_memory = matches!(error.kind(), ErrorKind::OutOfMemory { .. });
                // Linux reports a page that cannot be read as EIO.
                Err((reply, if is_memory { Errno::NOMEM } else { Errno::IO }))
            }
        }
    }

    /// Reads what is not kept of the first and last page.
    fn read_missing(
        &self,
        node: u64,
        file: &OpenFile,
        offset: u64,
        target: &mut [u8],
    ) -> ferrofs_image::Result<ReadOutcome> {
        let missing = self.partial_pages.take(node, offset, target);
        let at = offset.saturating_add(u64::try_from(missing.start).unwrap_or(u64::MAX));
        let bytes = target.len();
        let mut read =
            file.read_with_outcome(at, target.get_mut(missing.clone()).unwrap_or_default())?;
        // The image is shorter than the range of it that is missing only if it changes while it is mounted.
        let is_whole = read.bytes == missing.len();
        read.bytes = if is_whole { bytes } else { missing.start.saturating_add(read.bytes) };
        Ok(read)
    }

    /// The open file of a node, from the cache if it was read recently.
    fn file(&self, node: u64) -> FsResult<Arc<OpenFile>> {
        if let Some(file) = self.files.get(node) {
            return Ok(file);
        }
        let inode = self.inode(node)?;
        let file = self.image.open_file(&inode);
        let file = file.map_err(|error| self.failed(inode.nid(), "data", &error))?;
        let file = Arc::new(file);
        self.files.put(node, Arc::clone(&file));
        Ok(file)
    }

    /// Prepares the next reads, once the reader has its bytes.
    fn after_read(&self, file: &Arc<OpenFile>, offset: u64, read: ReadOutcome) {
        if !self.settings.readaround {
            return;
        }
        if offset == 0 {
            self.prefetch_queue.submit_files(&self.predictor.on_read(file.inode().nid()));
        }
        if read.extent_bytes == 0 || read.bytes > SMALL_READ_BYTES {
            return;
        }
        let task = |file| PrefetchTask::Readaround { file, offset, read };
        if read.extent_bytes <= SHORT_EXTENT_BYTES {
            self.readaround_queue.submit(task(Arc::clone(file)));
        } else if self.notifier.get().is_some_and(Notifier::has_idle_listener) {
            // A store waits for pages that are being read, so another listener must be there to reply to those reads.
            self.store_readaround(file, offset, read);
        } else {
            self.prefetch_queue.submit(task(Arc::clone(file)));
        }
    }

    /// Stores the data near a read.
    pub(super) fn store_readaround(&self, file: &OpenFile, offset: u64, read: ReadOutcome) {
        let inode = file.inode();
        let range = readaround(offset, read, inode.size());
        let length = range.end.saturating_sub(range.start);
        let Ok(bytes) = usize::try_from(length) else { return };
        let Some(mut buffer) = self.image.best_effort_buffer(bytes) else { return };
        let Some(data) = buffer.get_mut(..bytes) else { return };
        // In one call, so that a cluster that reaches to both sides of the read is decoded once.
        let count = self.image.read_best_effort(file.inode(), range.start, data);
        if !count.is_ok_and(|count| count == Some(bytes)) {
            return;
        }
        let node = self.nodes.node(file.inode().nid());
        let read_bytes = u64::try_from(read.bytes).unwrap_or(u64::MAX);
        // The kernel has the pages of the read itself already.
        let read = page_start(offset)..page_end(offset.saturating_add(read_bytes));
        let pages = page_end(range.start)..match range.end >= inode.size() {
            true => range.end,
            false => page_start(range.end),
        };
        let part = |from: u64, to: u64| {
            let index = |at: u64| usize::try_from(at.saturating_sub(range.start)).ok();
            data.get(index(from)?..index(to)?).filter(|part| !part.is_empty())
        };
        for (from, to) in
            [(pages.start, pages.end.min(read.start)), (pages.start.max(read.end), pages.end)]
        {
            if let Some(part) = part(from, to) {
                self.store(node, from, part);
            }
        }
        let ends =
            [(range.start, pages.start.min(range.end)), (pages.end.max(pages.start), range.end)];
        for (from, to) in ends.into_iter().filter(|(from, _)| !read.contains(from)) {
            if let Some(part) = part(from, to)
                && let Some((page, bytes)) = self.partial_pages.add(node, from, part, inode.size())
            {
                self.store(node, page, &bytes);
            }
        }
    }

    /// Stores a whole file, if it is small. An error is ignored here: the read that needs the file reports it.
    pub(super) fn prefetch_file(&self, nid: Nid) {
        let Ok(inode) = self.image.inode(nid) else { return };
        if inode.file_type() != FileType::Regular
            || !(1..=MAX_PREFETCH_BYTES).contains(&inode.size())
        {
            return;
        }
        let Ok(bytes) = usize::try_from(inode.size()) else { return };
        let Some(mut buffer) = self.image.best_effort_buffer(bytes) else { return };
        let Some(target) = buffer.get_mut(..bytes) else { return };
        let count = self.image.read_best_effort(&inode, 0, target);
        if count.is_ok_and(|count| count == Some(bytes)) {
            self.store(self.nodes.node(nid), 0, target);
        }
    }

    /// Stores bytes of a file in the kernel's page cache. The kernel may be out of memory, or have forgotten the node;
    /// then it requests the bytes when they are needed.
    fn store(&self, node: u64, offset: u64, bytes: &[u8]) {
        let Some(notifier) = self.notifier.get() else { return };
        if notifier.store(node, offset, bytes).is_ok() {
            self.metrics.record_store(bytes.len());
        }
    }
}

/// A test may let this process die at the data of one inode, as a defect of a decoder would (`FERROFS_CRASH_NID`). A build
/// without debug assertions cannot.
fn crash_point(nid: Nid) {
    #[cfg(debug_assertions)]
    if std::env::var("FERROFS_CRASH_NID").is_ok_and(|crashing| crashing == nid.raw().to_string()) {
        std::process::abort();
    }
    #[cfg(not(debug_assertions))]
    let _nid = nid;
}

/// The range of a readaround, within the file: an aligned one among short extents, which several of them share; of
/// long ones the extents themselves, so that no other one is decoded.
fn readaround(offset: u64, read: ReadOutcome, size: u64) -> Range<u64> {
    let ReadOutcome { extent_bytes, extents_start, extents_end, .. } = read;
    let range = extents_start..extents_end.min(size);
    if extent_bytes <= SHORT_EXTENT_BYTES || range.is_empty() {
        return aligned(offset, extent_bytes, size);
    }
    if range.end.saturating_sub(range.start) <= MAX_READAROUND_BYTES {
        return range;
    }
    let part = aligned(offset, READAROUND_PART_BYTES, size);
    part.start.max(range.start)..part.end.min(range.end)
}

/// An aligned range that contains a byte, within the file.
fn aligned(offset: u64, extent_bytes: u64, size: u64) -> Range<u64> {
    let bytes = extent_bytes.checked_next_power_of_two().unwrap_or(READAROUND_PART_BYTES);
    let bytes = bytes.clamp(MIN_READAROUND_BYTES, READAROUND_PART_BYTES);
    let start = offset & !(bytes.saturating_sub(1));
    start..start.saturating_add(bytes).min(size)
}

/// The first byte of the page of a byte.
const fn page_start(at: u64) -> u64 {
    at & !(PAGE_BYTES - 1)
}

/// The end of the pages before a byte.
fn page_end(at: u64) -> u64 {
    at.checked_next_multiple_of(PAGE_BYTES).unwrap_or(at)
}

/// Files of all shards, as long as each shard has at least [`FILES_PER_SHARD_MIN`].
const RECENT_FILES: usize = 128;
/// Files in a shard, at least: with fewer, files that are read at the same time would often displace each other.
const FILES_PER_SHARD_MIN: usize = 8;
/// Shards, at most: 512 files then, of less than a kibibyte each. What their readahead has requested is in the cache of the
/// image, which is bounded.
const SHARDS_MAX: usize = 64;
/// Shards, at least.
const SHARDS_MIN: usize = 8;

/// The files of a shard, most recently read first, each with its node. Shards share no cache line, so that listeners with
/// files of different shards do not slow each other down.
#[derive(Debug, Default)]
#[repr(align(128))]
struct FileShard(Mutex<VecDeque<(u64, Arc<OpenFile>)>>);

/// Recently read files. They keep the state of readahead between reads, since FUSE needs no OPEN here. A file that
/// leaves this bounded cache is opened in the image again.
#[derive(Debug)]
pub(super) struct RecentFiles {
    /// A power of two of them.
    shards: Box<[FileShard]>,
    files_per_shard: usize,
}

impl RecentFiles {
    /// For so many listeners: a shard for each of them, so that they do not wait for each other, but at least 8 and at
    /// most 64. Up to 16 listeners there are 128 files, then 8 in each shard.
    pub(super) fn new(listeners: usize) -> Self {
        let shards = listeners.clamp(SHARDS_MIN, SHARDS_MAX).next_power_of_two();
        let files_per_shard = RECENT_FILES.checked_div(shards).unwrap_or(0);
        let files_per_shard = files_per_shard.max(FILES_PER_SHARD_MIN);
        Self { shards: (0..shards).map(|_| FileShard::default()).collect(), files_per_shard }
    }

    /// The file of a node, if it was read recently.
    fn get(&self, node: u64) -> Option<Arc<OpenFile>> {
        let mut files = self.shard(node)?.0.lock().unwrap_or_else(PoisonError::into_inner);
        let index = files.iter().position(|(of, _)| *of == node)?;
        if index > 0 {
            let found = files.remove(index)?;
            files.push_front(found);
        }
        files.front().map(|(_, file)| Arc::clone(file))
    }

    /// Adds a file, and removes the least recently read one of a full shard.
    fn put(&self, node: u64, file: Arc<OpenFile>) {
        let Some(shard) = self.shard(node) else { return };
        let mut files = shard.0.lock().unwrap_or_else(PoisonError::into_inner);
        files.push_front((node, file));
        let removed = if files.len() > self.files_per_shard { files.pop_back() } else { None };
        drop(files);
        // Without the lock, since it may drop what was read ahead.
        drop(removed);
    }

    fn shard(&self, node: u64) -> Option<&FileShard> {
        self.shards.get(shard_index(node, self.shards.len()))
    }
}

/// The shard of a node, of a power of two of them. Numbers of nodes are often multiples of a power of two, so their low
/// bits alone would leave shards empty.
fn shard_index(node: u64, shards: usize) -> usize {
    // Fibonacci hashing: the upper bits of the product with 2^64 divided by the golden ratio.
    let mixed = node.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let index = mixed.checked_shr(u64::BITS.saturating_sub(shards.ilog2()));
    index.and_then(|index| usize::try_from(index).ok()).unwrap_or(0)
}

/// The unit of the page cache, in bytes. Where pages are larger, the kernel takes parts of pages, too.
const PAGE_BYTES: u64 = 4096;
/// How many parts of pages are kept: they are searched one after the other.
const MAX_PARTIAL_PAGES: usize = 256;
/// The most bytes of them. They are charged to the memory of the image from the start.
const MAX_PARTIAL_BYTES: u64 = 512 << 10;

/// Parts of the pages that two extents share, at most one for each page; the oldest are dropped.
///
/// Extents end anywhere in a page of the file. When one of them is decoded, its part of its first and last page is kept
/// here until the other extent is decoded, too, so that random reads decode no extent a second time for one page.
#[derive(Debug)]
pub(super) struct PartialPages {
    pages: Mutex<VecDeque<PartialPage>>,
    /// Of `pages`; without the lock, so that reads of images without long extents need none.
    count: AtomicUsize,
    /// Of [`MAX_PARTIAL_BYTES`]. Nothing is kept without it.
    charge: Option<Charge>,
}

impl PartialPages {
    /// Keeps nothing without a budget.
    pub(super) fn new(budget: Option<&Budget>) -> Self {
        Self {
            pages: Mutex::default(),
            count: AtomicUsize::new(0),
            charge: budget
                .and_then(|budget| budget.charge(MAX_PARTIAL_BYTES, AllocPolicy::MayFail).ok()),
        }
    }

    /// Adds part of a page of a file of `size` bytes. If that completes the page, it is removed and returned, with the offset
    /// at which it starts.
    fn add(&self, node: u64, start: u64, bytes: &[u8], size: u64) -> Option<(u64, Vec<u8>)> {
        self.charge.as_ref()?;
        let page_start = page_start(start);
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let other = pages.iter().position(|page| page.is_of(node, page_start));
        let other = other.and_then(|index| pages.remove(index));
        let added = PartialPage { node, start, bytes: bytes.into() };
        let joined = match other {
            Some(other) if other.range().end == start => join(&other, &added),
            Some(other) if added.range().end == other.start => join(&added, &other),
            _ => added,
        };
        let page = page_start..page_start.saturating_add(PAGE_BYTES).min(size);
        let whole = if joined.range() == page {
            Some((page_start, joined.bytes.into_vec()))
        } else {
            pages.push_back(joined);
            drop_oldest(&mut pages);
            None
        };
        // Relaxed: a read that misses a part decodes it.
        self.count.store(pages.len(), Ordering::Relaxed);
        whole
    }

    /// Removes the parts with which a read starts and ends, and copies them to `target`. Returns the range of `target` that
    /// is missing, which is never empty.
    fn take(&self, node: u64, offset: u64, target: &mut [u8]) -> Range<usize> {
        let mut missing = 0..target.len();
        // Relaxed: as above.
        if self.count.load(Ordering::Relaxed) == 0 {
            return missing;
        }
        let end = offset.saturating_add(u64::try_from(target.len()).unwrap_or(u64::MAX));
        // To decode the parts is better than to wait for another thread.
        let Ok(mut pages) = self.pages.try_lock() else { return missing };
        let is_front = |page: &PartialPage| page.node == node && page.start == offset;
        let is_end = |page: &PartialPage| page.node == node && page.range().end == end;
        if let Some(front) = remove_shorter(&mut pages, is_front, target.len()) {
            let (to, _) = target.split_at_mut(front.bytes.len());
            to.copy_from_slice(&front.bytes);
            missing.start = front.bytes.len();
        }
        let rest = missing.len();
        if let Some(last) = remove_shorter(&mut pages, is_end, rest) {
            missing.end = target.len().saturating_sub(last.bytes.len());
            let (_, to) = target.split_at_mut(missing.end);
            to.copy_from_slice(&last.bytes);
        }
        self.count.store(pages.len(), Ordering::Relaxed);
        missing
    }
}

/// Part of a page of a file, but not all of it.
#[derive(Debug)]
struct PartialPage {
    node: u64,
    /// Where the part starts, in bytes of the file.
    start: u64,
    bytes: Box<[u8]>,
}

impl PartialPage {
    fn is_of(&self, node: u64, page_start: u64) -> bool {
        self.node == node && self.start & !(PAGE_BYTES - 1) == page_start
    }

    fn range(&self) -> Range<u64> {
        let length = u64::try_from(self.bytes.len()).unwrap_or(u64::MAX);
        self.start..self.start.saturating_add(length)
    }
}

/// Removes a part that is shorter than `bytes`.
fn remove_shorter(
    pages: &mut VecDeque<PartialPage>,
    is_wanted: impl Fn(&PartialPage) -> bool,
    bytes: usize,
) -> Option<PartialPage> {
    let is_wanted = |page: &PartialPage| page.bytes.len() < bytes && is_wanted(page);
    let index = pages.iter().position(is_wanted)?;
    pages.remove(index)
}

/// A part and the one that follows it.
fn join(first: &PartialPage, second: &PartialPage) -> PartialPage {
    let bytes = [&*first.bytes, &*second.bytes].concat();
    PartialPage { node: first.node, start: first.start, bytes: bytes.into() }
}

fn drop_oldest(pages: &mut VecDeque<PartialPage>) {
    let bytes = |pages: &VecDeque<PartialPage>| {
        pages.iter().map(|page| page.bytes.len() as u64).sum::<u64>()
    };
    while pages.len() > MAX_PARTIAL_PAGES || bytes(pages) > MAX_PARTIAL_BYTES {
        pages.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_readaround_is_aligned_and_within_the_file() {
        assert_eq!(aligned(4096, 9_000, 1 << 20), 0..32_768);
        assert_eq!(aligned(200_000, 100_000, 1 << 20), 131_072..262_144);
        assert_eq!(aligned(200_000, 100_000, 201_000), 131_072..201_000);
        assert_eq!(aligned(200_000, u64::MAX, 1 << 20), 131_072..262_144);
    }

    #[test]
    fn a_readaround_of_long_extents_is_those_or_a_part_of_them() {
        let range = |offset, start, end, size| {
            let mut read = ReadOutcome::default();
            (read.bytes, read.extent_bytes) = (4096, end - start);
            (read.extents_start, read.extents_end) = (start, end);
            readaround(offset, read, size)
        };
        assert_eq!(range(131_072, 100_000, 250_000, 1 << 20), 100_000..250_000);
        // The read has the page in which the extent starts.
        assert_eq!(range(98_304, 100_000, 250_000, 1 << 20), 100_000..250_000);
        assert_eq!(range(131_072, 100_000, 900_000, 1 << 20), 131_072..262_144);
        assert_eq!(range(102_400, 100_000, 900_000, 1 << 20), 100_000..131_072);
        assert_eq!(range(897_024, 100_000, 900_000, 1 << 20), 786_432..900_000);
        assert_eq!(range(131_072, 0, u64::MAX, u64::MAX), 131_072..262_144);
        // Nothing is known about extents of the packed file.
        let mut read = ReadOutcome::default();
        (read.bytes, read.extent_bytes) = (4096, 150_000);
        assert_eq!(readaround(131_072, read, 1 << 20), 131_072..262_144);
    }

    #[test]
    fn neighbouring_nodes_use_every_shard_whatever_their_distance() {
        for shards in [8, 16, 32, 64] {
            for distance in [1, 2, 3, 4, 64, 1 << 20] {
                let nodes = (0..2 * shards as u64).map(|index| 1000 + index * distance);
                let used: std::collections::BTreeSet<_> =
                    nodes.map(|node| shard_index(node, shards)).collect();
                assert!(used.iter().all(|index| *index < shards));
                assert!(used.len() >= shards * 3 / 4, "{distance}: {} of {shards}", used.len());
            }
        }
    }

    #[test]
    fn there_is_a_shard_for_each_listener_and_a_bound_for_all_files() {
        for (listeners, shards, files) in
            [(0, 8, 128), (8, 8, 128), (9, 16, 128), (16, 16, 128), (40, 64, 512), (1000, 64, 512)]
        {
            let recent = RecentFiles::new(listeners);
            assert_eq!(recent.shards.len(), shards);
            assert_eq!(recent.shards.len() * recent.files_per_shard, files);
        }
    }

    #[test]
    fn the_file_read_least_recently_leaves_a_full_shard() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/plain.erofs");
        let image = ferrofs_image::Image::open(path).unwrap();
        let inode = image.resolve(b"/x").unwrap().unwrap();
        let recent = RecentFiles::new(1);
        let shard = |node: &u64| shard_index(*node, 8) == 0;
        let nodes: Vec<u64> = (1..).filter(shard).take(recent.files_per_shard + 1).collect();
        let (last, full) = nodes.split_last().unwrap();
        for node in full {
            recent.put(*node, Arc::new(image.open_file(&inode).unwrap()));
        }
        let first = recent.get(nodes[0]).unwrap();
        assert!(Arc::ptr_eq(&first, &recent.get(nodes[0]).unwrap()), "the newest one");
        recent.put(*last, Arc::new(image.open_file(&inode).unwrap()));
        assert!(recent.get(nodes[1]).is_none());
        assert!(nodes.iter().filter(|node| recent.get(**node).is_some()).count() == full.len());
    }

    const SIZE: u64 = 1 << 20;

    fn partial_pages() -> PartialPages {
        PartialPages::new(Some(&Budget::new(1 << 20)))
    }

    #[test]
    fn a_page_is_whole_when_both_extents_are_decoded_in_any_order() {
        for is_turned in [false, true] {
            let pages = partial_pages();
            let mut parts = [(8192, vec![1; 100]), (8292, vec![2; 3996])];
            if is_turned {
                parts.reverse();
            }
            let [(start, bytes), other] = parts;
            assert_eq!(pages.add(7, start, &bytes, SIZE), None);
            // A part of another file does not fit.
            assert_eq!(pages.add(8, other.0, &other.1, SIZE), None);
            let whole = [vec![1; 100], vec![2; 3996]].concat();
            assert_eq!(pages.add(7, other.0, &other.1, SIZE), Some((8192, whole)));
            assert_eq!(pages.count.load(Ordering::Relaxed), 1);
        }
    }

    #[test]
    fn the_last_page_of_a_file_ends_with_the_file() {
        let pages = partial_pages();
        assert_eq!(pages.add(7, 0, &[1; 100], 150), None);
        let whole = [vec![1; 100], vec![2; 50]].concat();
        assert_eq!(pages.add(7, 100, &[2; 50], 150), Some((0, whole)));
    }

    #[test]
    fn an_extent_within_a_page_is_joined_with_its_neighbours() {
        let pages = partial_pages();
        assert_eq!(pages.add(7, 0, &[1; 1000], SIZE), None);
        assert_eq!(pages.add(7, 1000, &[2; 1000], SIZE), None);
        let whole = [vec![1; 1000], vec![2; 1000], vec![3; 2096]].concat();
        assert_eq!(pages.add(7, 2000, &[3; 2096], SIZE), Some((0, whole)));
        // What leaves a gap replaces what was there.
        assert_eq!(pages.add(7, 4096, &[1; 1000], SIZE), None);
        assert_eq!(pages.add(7, 6096, &[3; 2096], SIZE), None);
        let mut page = [0; 4096];
        assert_eq!(pages.take(7, 4096, &mut page), 0..2000);
        assert_eq!(page[1999..2001], [0, 3]);
    }

    #[test]
    fn a_read_takes_the_parts_of_its_first_and_last_page() {
        let pages = partial_pages();
        pages.add(7, 4096, &[1; 100], SIZE);
        pages.add(7, 12_000, &[2; 288], SIZE);
        let mut target = vec![0; 8192];
        // No part starts or ends where these do.
        assert_eq!(pages.take(7, 8192, &mut target), 0..8192);
        assert_eq!(pages.take(8, 4096, &mut target), 0..8192);
        assert_eq!(pages.take(7, 4096, &mut target), 100..7904);
        let wanted = [vec![1; 100], vec![0; 7804], vec![2; 288]].concat();
        assert!(target == wanted);
        assert_eq!(pages.take(7, 4096, &mut target), 0..8192, "both were taken");
    }

    /// A direct read may be shorter than a page.
    #[test]
    fn a_read_that_a_part_covers_takes_none_of_it() {
        let pages = partial_pages();
        pages.add(7, 4096, &[1; 100], SIZE);
        assert_eq!(pages.take(7, 4096, &mut [0; 100]), 0..100);
        assert_eq!(pages.take(7, 4096, &mut [0; 50]), 0..50);
        assert_eq!(pages.take(7, 4096, &mut [0; 101]), 100..101);
    }

    #[test]
    fn the_oldest_are_dropped_and_without_memory_none_is_kept() {
        let kept = partial_pages();
        for page in 0..300 {
            kept.add(7, page * PAGE_BYTES, &[1; 4000], SIZE << 4);
        }
        let pages = kept.pages.lock().unwrap();
        assert_eq!(pages.len() as u64, MAX_PARTIAL_BYTES / 4000);
        assert_eq!(pages.back().unwrap().start, 299 * PAGE_BYTES);
        let none = PartialPages::new(Some(&Budget::new(MAX_PARTIAL_BYTES - 1)));
        assert_eq!(none.add(7, 0, &[1; 100], SIZE), None);
        assert_eq!(none.take(7, 0, &mut [0; 4096]), 0..4096);
    }
}
