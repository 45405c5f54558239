//! READ: bytes of a file, and afterwards the data that the reader will want next. That is the data around a small read,
//! and the files that are predicted to follow (`predictor`). It goes to the kernel's page cache.
//!
//! A cluster that is decoded for one page holds many other pages, and random reads will want those, too. Linux's own
//! EROFS keeps them in the page cache as well.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use ferrofs_fuse::{Errno, Notifier, Reply};
use ferrofs_image::{ErrorKind, FileType, Nid, OpenFile, ReadOutcome};

use super::partial_pages::{page_end, page_start};
use super::prefetch_queue::PrefetchTask;
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
            self.prefetch_queue.push_files(&self.predictor.on_read(file.inode().nid()));
        }
        if read.extent_bytes == 0 || read.bytes > SMALL_READ_BYTES {
            return;
        }
        let task = |file| PrefetchTask::Readaround { file, offset, read };
        if read.extent_bytes <= SHORT_EXTENT_BYTES {
            self.readaround_queue.push(task(Arc::clone(file)));
        } else if self.notifier.get().is_some_and(Notifier::has_idle_listener) {
            // A store waits for pages that are being read, so another listener must be there to reply to those reads.
            self.store_readaround(file, offset, read);
        } else {
            self.prefetch_queue.push(task(Arc::clone(file)));
        }
    }

    /// Stores what is around a read.
    pub(super) fn store_readaround(&self, file: &OpenFile, offset: u64, read: ReadOutcome) {
        let inode = file.inode();
        let range = readaround(offset, read, inode.size());
        let length = range.end.saturating_sub(range.start);
        let Ok(bytes) = usize::try_from(length) else { return };
        let Some(mut buffer) = self.image.best_effort_buffer(bytes) else { return };
        let Some(around) = buffer.get_mut(..bytes) else { return };
        // In one call, so that a cluster that reaches to both sides of the read is decoded once.
        let count = self.image.read_best_effort(file.inode(), range.start, around);
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
            around.get(index(from)?..index(to)?).filter(|part| !part.is_empty())
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

/// The range to read around a read, within the file: an aligned one among short extents, which several of them share; of
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

/// An aligned range around a byte, within the file.
fn aligned(offset: u64, extent_bytes: u64, size: u64) -> Range<u64> {
    let bytes = extent_bytes.checked_next_power_of_two().unwrap_or(READAROUND_PART_BYTES);
    let bytes = bytes.clamp(MIN_READAROUND_BYTES, READAROUND_PART_BYTES);
    let start = offset & !(bytes.saturating_sub(1));
    start..start.saturating_add(bytes).min(size)
}

/// Shards of the file cache, each with its own lock, so that listeners do not wait for each other.
const SHARDS: usize = 8;
/// The same as the divisor of node numbers.
const SHARDS_U64: u64 = SHARDS as u64;
/// Files in a shard.
const FILES_PER_SHARD: usize = 16;

/// Most recently read first, each with its node.
type FileShard = VecDeque<(u64, Arc<OpenFile>)>;

/// Recently read files. They keep the state of readahead between reads, since FUSE needs no OPEN here. A file that
/// leaves this bounded cache is opened in the image again.
#[derive(Debug)]
pub(super) struct RecentFiles {
    shards: [Mutex<FileShard>; SHARDS],
}

impl RecentFiles {
    pub(super) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }

    /// The file of a node, if it was read recently.
    fn get(&self, node: u64) -> Option<Arc<OpenFile>> {
        let mut files = self.shard(node)?.lock().unwrap_or_else(PoisonError::into_inner);
        let index = files.iter().position(|(of, _)| *of == node)?;
        let found = files.remove(index)?;
        let file = Arc::clone(&found.1);
        files.push_front(found);
        Some(file)
    }

    /// Adds a file, and removes the least recently read one of a full shard.
    fn put(&self, node: u64, file: Arc<OpenFile>) {
        let Some(shard) = self.shard(node) else { return };
        let mut files = shard.lock().unwrap_or_else(PoisonError::into_inner);
        files.push_front((node, file));
        let removed = if files.len() > FILES_PER_SHARD { files.pop_back() } else { None };
        drop(files);
        // Without the lock, since it may drop what was read ahead.
        drop(removed);
    }

    fn shard(&self, node: u64) -> Option<&Mutex<FileShard>> {
        self.shards.get(shard_index(node))
    }
}

/// Neighbours differ in their low bits.
fn shard_index(node: u64) -> usize {
    usize::try_from(node % SHARDS_U64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{ReadOutcome, SHARDS, aligned, readaround, shard_index};

    #[test]
    fn a_readaround_is_aligned_and_within_the_file() {
        assert_eq!(aligned(4096, 9_000, 1 << 20), 0..32_768);
        assert_eq!(aligned(200_000, 100_000, 1 << 20), 131_072..262_144);
        assert_eq!(aligned(200_000, 100_000, 201_000), 131_072..201_000);
        assert_eq!(aligned(200_000, u64::MAX, 1 << 20), 131_072..262_144);
    }

    #[test]
    fn a_readaround_of_long_extents_is_those_or_a_part_of_them() {
        let around = |offset, start, end, size| {
            let mut read = ReadOutcome::default();
            (read.bytes, read.extent_bytes) = (4096, end - start);
            (read.extents_start, read.extents_end) = (start, end);
            readaround(offset, read, size)
        };
        assert_eq!(around(131_072, 100_000, 250_000, 1 << 20), 100_000..250_000);
        // The read has the page in which the extent starts.
        assert_eq!(around(98_304, 100_000, 250_000, 1 << 20), 100_000..250_000);
        assert_eq!(around(131_072, 100_000, 900_000, 1 << 20), 131_072..262_144);
        assert_eq!(around(102_400, 100_000, 900_000, 1 << 20), 100_000..131_072);
        assert_eq!(around(897_024, 100_000, 900_000, 1 << 20), 786_432..900_000);
        assert_eq!(around(131_072, 0, u64::MAX, u64::MAX), 131_072..262_144);
        // Nothing is known about extents of the packed file.
        let mut read = ReadOutcome::default();
        (read.bytes, read.extent_bytes) = (4096, 150_000);
        assert_eq!(readaround(131_072, read, 1 << 20), 131_072..262_144);
    }

    #[test]
    fn neighbouring_nodes_use_every_shard() {
        let used: std::collections::BTreeSet<_> =
            (1000..1000 + SHARDS as u64).map(shard_index).collect();
        assert_eq!(used, (0..SHARDS).collect());
    }
}
