//! An open file with readahead: the clusters that a sequential reader needs next are decoded ahead
//! of it.
//!
//! The readahead window starts small, doubles while the reader goes on in order, and shrinks when
//! memory for a prefetch is refused. A jump cancels what no worker has begun, and the window starts
//! anew. Readahead is best effort: it takes no memory for contents from others, waits for no other
//! thread, and fails without a trace. It reads the part of the index that says where the contents
//! lie, which a reader that goes on needs next. Where that comes from a server, the reader waits for
//! it now and not then: a plan from cached parts alone would end at each of their ends.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use ferrofs_ondisk::compression::AlgorithmId;
use ferrofs_workers::single_flight::{Lookup, Urgency};

use crate::engine::{BATCH_MIN_BYTES, BatchPurpose, DecodeBatch, Engine, GenerationToken};
use crate::error::Result;
use crate::extent::{Address, Coding, DataLocation};
use crate::inner::ImageInner;
use crate::inode::Inode;
use crate::read::{ReadOutcome, ReadPlan, ReadSegment};
use crate::repeated_input::check_repeated_input;

/// The first window of a reader, in bytes of the file.
const FIRST_BYTES: u64 = 128 << 10;
/// The largest window, in bytes of the file for each CPU, and in all.
const LARGEST_BYTES_A_CPU: u64 = 1 << 20;
const LARGEST_BYTES: u64 = 8 << 20;
/// The window of a reader may be the memory limit divided by this.
const MEMORY_SHARE: u64 = 8;

/// An open file with readahead. Many threads may read it; those that go through it in order, one
/// behind the other, count as one reader.
#[derive(Debug)]
pub struct OpenFile {
    image: Arc<ImageInner>,
    inode: Inode,
    ahead: Mutex<ReadaheadState>,
}

impl OpenFile {
    pub(crate) fn new(image: Arc<ImageInner>, inode: Inode) -> Self {
        Self { image, inode, ahead: Mutex::new(ReadaheadState::new()) }
    }

    /// Its inode.
    #[must_use]
    pub fn inode(&self) -> &Inode {
        &self.inode
    }

    /// Reads as [`Image::read_at`](crate::Image::read_at). If the reader has gone through the file
    /// in order so far, workers of other CPUs decode the clusters that come next. These prefetches
    /// give way when memory is short, and are cancelled when the reader jumps.
    ///
    /// # Errors
    /// As [`Image::read_at`](crate::Image::read_at); a failure of readahead never fails a read.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        // Before the read, so that workers decode the next clusters while this thread decodes what
        // it needs.
        Ok(self.read_with_outcome(offset, buffer)?.bytes)
    }

    /// The same, and reports whether anything had to be decoded for it.
    ///
    /// # Errors
    /// As [`OpenFile::read_at`].
    pub fn read_with_outcome(&self, offset: u64, buffer: &mut [u8]) -> Result<ReadOutcome> {
        self.read_ahead(offset, buffer.len());
        self.image.read_in_mode(&self.inode, offset, buffer, self.image.mode)
    }

    fn read_ahead(&self, offset: u64, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        // If another reader plans readahead now, that is enough, and this one does not wait.
        let mut ahead = match self.ahead.try_lock() {
            Ok(ahead) => ahead,
            // A source panicked while the metadata was read; the state is a guess in any case.
            Err(TryLockError::Poisoned(left)) => left.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let most = window_bytes_max(&self.image);
        if let Some(range) =
            ahead.advance(offset, bytes, ReadaheadBounds { size: self.inode.size(), most })
        {
            ahead.prefetch(&self.image, &self.inode, range);
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.ahead.get_mut().unwrap_or_else(PoisonError::into_inner).cancel();
    }
}

/// The largest window of a reader, in bytes of the file.
fn window_bytes_max(image: &ImageInner) -> u64 {
    let cpus = u64::try_from(image.engine.parallelism()).unwrap_or(1);
    let memory = &image.engine.memory;
    let most = memory.budget().limit_bytes() / MEMORY_SHARE;
    // More of a reserve would evict prefetched clusters before they are read.
    let most = most.min(memory.reserve_share().unwrap_or(u64::MAX));
    let most = most.min(cpus.saturating_mul(LARGEST_BYTES_A_CPU)).min(LARGEST_BYTES);
    most.max(FIRST_BYTES)
}

/// What bounds the readahead of one read.
#[derive(Clone, Copy, Debug)]
struct ReadaheadBounds {
    /// Bytes of the file.
    size: u64,
    /// The largest window, in bytes.
    most: u64,
}

/// What is known of a reader, as in Linux's `struct file_ra_state`.
#[derive(Debug)]
struct ReadaheadState {
    /// Where the next read starts if the reader goes on in order.
    next: u64,
    /// Bytes to keep ahead of the reader; 0 for one that has just jumped.
    window: u64,
    /// Up to where clusters have been requested.
    requested_until: u64,
    /// Changes when prefetches are cancelled.
    generation: Arc<AtomicU64>,
    /// How many requests for memory had been refused when the window was last adjusted.
    refusals: u64,
    /// Spreads batches over the CPUs.
    turn: usize,
}

impl ReadaheadState {
    fn new() -> Self {
        let generation = Arc::new(AtomicU64::new(0));
        Self { next: 0, window: 0, requested_until: 0, generation, refusals: 0, turn: 0 }
    }

    /// Records a read; returns which bytes of the file to prefetch.
    fn advance(&mut self, offset: u64, bytes: u64, bounds: ReadaheadBounds) -> Option<Range<u64>> {
        let ReadaheadBounds { size, most } = bounds;
        let end = offset.saturating_add(bytes).min(size);
        // Threads that share the work on a file are a little early or late.
        let slack = self.window.max(bytes);
        let is_next = offset.abs_diff(self.next) <= slack && self.next > 0;
        let is_start = offset == 0;
        if !(is_next || is_start) {
            self.cancel();
            self.next = end;
            return None;
        }
        if is_start && !is_next {
            self.cancel();
        }
        self.next = self.next.max(end);
        if self.window == 0 {
            self.window = FIRST_BYTES.max(bytes);
            self.requested_until = end;
        }
        // A read may be longer than any window, and memory may be less than before.
        self.window = self.window.min(most);
        self.requested_until = self.requested_until.max(end);
        let left = self.requested_until.saturating_sub(self.next);
        let goal = self.next.saturating_add(self.window).min(size);
        // In large steps: half a window each time.
        if left >= self.window / 2 || self.requested_until >= goal {
            return None;
        }
        let range = self.requested_until..goal;
        self.requested_until = goal;
        self.window = self.window.saturating_mul(2).min(most);
        Some(range)
    }

    /// Whether something behind this byte was requested.
    #[cfg(test)]
    fn is_ahead_of(&self, offset: u64) -> bool {
        self.requested_until > offset
    }

    /// Cancels all prefetches that have not begun.
    fn cancel(&mut self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        (self.next, self.window, self.requested_until) = (0, 0, 0);
    }

    /// Has the clusters of a range decoded. A failure is ignored: it fails the read that needs the
    /// range, later and with a better message.
    fn prefetch(&mut self, image: &ImageInner, inode: &Inode, range: Range<u64>) {
        if !image.engine.has_workers() || !image.has_readahead(inode) {
            return;
        }
        self.shrink_if_refused(image);
        self.try_prefetch(image, inode, range).ok();
    }

    /// Memory for a prefetch was refused since the last time: half a window is more than there is
    /// room for.
    fn shrink_if_refused(&mut self, image: &ImageInner) {
        let refusals = image.engine.memory.buffers().stats().refused;
        if refusals > self.refusals {
            self.window = (self.window / 4).max(FIRST_BYTES);
        }
        self.refusals = refusals;
    }

    fn try_prefetch(&mut self, image: &ImageInner, inode: &Inode, range: Range<u64>) -> Result<()> {
        let engine = &image.engine;
        let token = GenerationToken::new(&self.generation);
        let new_batch = || DecodeBatch::new(engine, BatchPurpose::Prefetch(token.clone()));
        let mut at = range.start;
        let mut batch = new_batch();
        while at < range.end {
            let bytes = usize::try_from(range.end.saturating_sub(at)).unwrap_or(usize::MAX);
            let plan = ReadPlan::build(image, inode, at, bytes)?;
            let clusters = plan.segments.iter().filter_map(ReadSegment::cluster);
            check_repeated_input(clusters, plan.length)?;
            for segment in &plan.segments {
                match segment.location {
                    DataLocation::Stored(Address::Data { device, offset }) => {
                        engine.devices.will_need(device, offset, segment.target.len());
                    }
                    // A worker must not wait for a server.
                    DataLocation::Cluster(cluster) if engine.devices.is_remote() => {
                        if let Address::Data { device, offset } = cluster.id.address {
                            engine.devices.will_need(device, offset, cluster.encoded_length());
                        }
                    }
                    DataLocation::Cluster(cluster)
                        if cluster.is_data() && image.offloads(cluster.id.coding) =>
                    {
                        let bytes = cluster.decoded_length();
                        let found = engine.clusters.lookup(cluster.id, bytes, Urgency::Prefetch);
                        if let Lookup::Miss(permit) = found {
                            // Without memory the permit is dropped, and nothing has happened. The
                            // reader maps the buffer, as a best-effort request of a worker maps
                            // nothing.
                            let output = engine.best_effort_buffer(bytes);
                            let Some(output) = output else { return Ok(()) };
                            drop(batch.add(cluster, permit, Some(output)));
                        }
                    }
                    _ => {}
                }
                if batch.decoded_bytes() >= BATCH_MIN_BYTES {
                    let full = std::mem::replace(&mut batch, new_batch());
                    self.dispatch(engine, full);
                }
            }
            if plan.length == 0 {
                break;
            }
            at = at.saturating_add(u64::try_from(plan.length).unwrap_or(u64::MAX));
        }
        if !batch.is_empty() {
            self.dispatch(engine, batch);
        }
        Ok(())
    }

    /// Dispatches a batch, after it has preallocated buffers for the bytes that it will read: the
    /// context of its worker may have no buffer yet, or a shorter one.
    fn dispatch(&mut self, engine: &Engine, batch: DecodeBatch) {
        engine.memory.preallocate(batch.encoded_bytes(), engine.parallelism());
        batch.dispatch(self.turn);
        self.turn = self.turn.wrapping_add(1);
    }
}

impl ImageInner {
    /// Whether readahead can do anything for a file: pass a hint to the device, or offload
    /// clusters.
    fn has_readahead(&self, inode: &Inode) -> bool {
        if self.engine.devices.is_remote() {
            return true;
        }
        let plain = Coding::Plain { wrapped_bytes: 0 };
        let declared = AlgorithmId::ALL.into_iter().filter(|one| self.compression.has(*one));
        let mut codings = declared.map(Coding::Compressed).chain([plain]);
        !inode.layout().is_compressed() || codings.any(|coding| self.offloads(coding))
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use ferrofs_ondisk::FileType;

    use super::*;
    use crate::image::Image;
    use crate::open::OpenOptions;
    use crate::walk::WalkEvent;

    fn path(name: &str) -> String {
        format!("{}/../../tests/data/{name}.erofs", env!("CARGO_MANIFEST_DIR"))
    }

    #[test]
    fn a_panic_on_the_way_does_not_end_readahead() {
        let image = Image::open(path("lz4")).unwrap();
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

    const SIZE: u64 = 1 << 30;
    const BOUNDS: ReadaheadBounds = ReadaheadBounds { size: SIZE, most: LARGEST_BYTES };

    #[test]
    fn the_window_grows_while_the_reader_goes_on_in_order() {
        let mut ahead = ReadaheadState::new();
        let mut requested_until = 0;
        for step in 0..400u64 {
            if let Some(range) = ahead.advance(step << 17, 1 << 17, BOUNDS) {
                assert!(range.start >= requested_until && range.start < range.end);
                requested_until = range.end;
            }
            let ahead_by = requested_until.saturating_sub((step + 1) << 17);
            assert!(ahead_by <= LARGEST_BYTES);
        }
        assert_eq!(ahead.window, LARGEST_BYTES);
    }

    #[test]
    fn a_long_first_read_asks_for_no_more_than_the_largest_window() {
        for most in [FIRST_BYTES, 1 << 20, LARGEST_BYTES] {
            let mut ahead = ReadaheadState::new();
            let bounds = ReadaheadBounds { size: 2 << 30, most };
            let range = ahead.advance(0, 512 << 20, bounds).unwrap();
            assert_eq!(range, 512 << 20..(512 << 20) + most);
        }
    }

    #[test]
    fn a_jump_gives_up_what_was_asked_for() {
        let mut ahead = ReadaheadState::new();
        assert!(ahead.advance(0, 4096, BOUNDS).is_some());
        let token = GenerationToken::new(&ahead.generation);
        assert!(ahead.advance(SIZE / 2, 4096, BOUNDS).is_none());
        assert!(token.is_stale());
        assert_eq!(ahead.window, 0);
        // From there on it may be in order again.
        assert!(ahead.advance(SIZE / 2 + 4096, 4096, BOUNDS).is_some());
    }

    #[test]
    fn nothing_is_asked_for_behind_the_end() {
        let bounds = ReadaheadBounds { size: 1_000_000, ..BOUNDS };
        let mut ahead = ReadaheadState::new();
        for step in 0..20u64 {
            if let Some(range) = ahead.advance(step * 50_000, 50_000, bounds) {
                assert!(range.end <= 1_000_000);
            }
        }
    }

    #[test]
    fn nothing_is_planned_ahead_where_nothing_is_offloaded() {
        let kept = OpenOptions::new().caller_caches(true);
        let looks = |name, options: &OpenOptions| {
            let image = options.open(path(name)).unwrap();
            let files = image.walk(b"/").unwrap().filter_map(|visit| match visit {
                WalkEvent::Leaf(node) if node.inode.layout().is_compressed() => Some(node.inode),
                _ => None,
            });
            let looks: Vec<bool> = files.map(|file| image.inner().has_readahead(&file)).collect();
            assert!(!looks.is_empty(), "{name}");
            looks
        };
        assert!(looks("lz4", &kept).iter().all(|looks| !looks));
        assert!(looks("lz4", &OpenOptions::new()).iter().all(|looks| *looks));
        assert!(looks("zstd-64k-fragments", &kept).iter().all(|looks| *looks));
        let image = kept.open(path("lz4")).unwrap();
        let root = image.root().unwrap();
        assert!(!root.layout().is_compressed() && image.inner().has_readahead(&root));
    }
}
