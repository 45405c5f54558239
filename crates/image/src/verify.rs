//! Verifying a whole image: all metadata, every byte of every file, and the link counts.

mod batches;
mod damaged_data;
mod shared_damage;
mod table_memory;
mod verified;
mod xattrs;

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ferrofs_ondisk::{FileType, Nid};
use ferrofs_workers::CancelToken;
use ferrofs_workers::jobs::{HelperBudget, OrderedPipeline};
use ferrofs_workers::memory::{AllocPolicy, Charge};

use crate::error::{Error, ErrorContext, ErrorKind, Result};
use crate::extent::MappedExtent;
use crate::inner::ImageInner;
use crate::inode::Inode;
use crate::inode_set::InodeSet;
use crate::map::ExtentMap;
use crate::memory::MemoryPool;
use crate::pieces::{ExtentFilter, FilePiece};
use crate::sparse_bit_set::SparseBitSet;
use crate::walk::{PathError, TreeWalk, WalkEntry};
use crate::work::WorkMeter;
use batches::{ContinuityCheck, FilePart, VerifyBatch, VerifyBatches};
use shared_damage::report_shared_damage;
use verified::{Verified, add_extent_work};
use xattrs::check_xattrs;

/// About how many bytes an inode with several names takes, beside its path.
const SEEN_BYTES: u64 = 128;
/// Memory is charged in steps of so many bytes.
const STEP_BYTES: u64 = 256 << 10;
/// Names that are kept for a report may take the memory limit divided by this.
const NAMES_SHARE: u64 = 16;

/// The shortest entry of an index, in bytes.
const INDEX_ENTRY_BYTES: u64 = 2;
/// Checking an entry of an index takes about as long as decoding so many bytes.
const INDEX_ENTRY_WORK: u64 = 32;

/// A search in the index for an extent may take so many steps that are no work.
const FREE_STEPS: u64 = 8;
/// A further step takes about as long as decoding so many bytes.
const STEP_WORK: u64 = 16;

/// What a verification reports on its way.
#[derive(Debug)]
pub enum VerifyEvent {
    /// Something is wrong.
    Problem(PathError),
    /// How much has been read so far.
    Progress(VerifyProgress),
}

/// How far a verification has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyProgress {
    /// Inodes that have been read.
    pub inodes: u64,
    /// Bytes of files that have been read, holes included.
    pub bytes: u64,
}

/// What a verification found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifySummary {
    /// Inodes that have been read.
    pub inodes: u64,
    /// Bytes of files that have been read, holes included.
    pub bytes: u64,
    /// Problems that have been reported.
    pub problems: u64,
}

/// What to verify, and how.
///
/// ```no_run
/// # fn main() -> Result<(), ferrofs_image::Error> {
/// let image = ferrofs_image::Image::open("app.erofs")?;
/// let options = ferrofs_image::VerifyOptions::new().path("/usr").max_threads(2);
/// let summary = image.verify(&options, &mut |_| {})?;
/// println!("{} inodes, {} problems", summary.inodes, summary.problems);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct VerifyOptions {
    path: Vec<u8>,
    max_threads: Option<usize>,
    max_work: Option<u64>,
    metadata_only: bool,
    cancel: CancelToken,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        Self {
            path: b"/".to_vec(),
            max_threads: None,
            max_work: None,
            metadata_only: false,
            cancel: CancelToken::new(),
        }
    }
}

impl VerifyOptions {
    /// The whole image, with a thread for each available CPU.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Verifies only what this path names, and everything below it. Link counts are compared only
    /// for the whole image, as other names may lie elsewhere.
    #[must_use]
    pub fn path(mut self, path: impl Into<Vec<u8>>) -> Self {
        self.path = path.into();
        self
    }

    /// Uses at most so many threads, the calling one among them, and no more than there are
    /// [decode slots](crate::Image::decode_slots).
    #[must_use]
    pub fn max_threads(mut self, threads: usize) -> Self {
        self.max_threads = Some(threads);
        self
    }

    /// The most repeated work, in bytes, as of [`WorkMeter`]. Beyond it the rest of the image is not
    /// verified, and [`ErrorKind::WorkLimit`] is a problem. The default is
    /// [`WorkMeter::default_limit`].
    #[must_use]
    pub fn max_work(mut self, bytes: u64) -> Self {
        self.max_work = Some(bytes);
        self
    }

    /// Verifies everything but data and targets of symlinks, which may lie on devices that were not given.
    #[must_use]
    pub fn metadata_only(mut self) -> Self {
        self.metadata_only = true;
        self
    }

    /// Stops soon after this token is cancelled.
    #[must_use]
    pub fn cancel(mut self, token: &CancelToken) -> Self {
        self.cancel = token.clone();
        self
    }
}

/// Verifies what the options name. Events come on this thread, problems in the order of the walk.
pub(crate) fn verify(
    inner: &ImageInner,
    options: &VerifyOptions,
    on_event: &mut dyn FnMut(VerifyEvent),
) -> Result<VerifySummary> {
    let mut report = VerifyReport {
        on_event,
        progress: VerifyProgress::default(),
        problems: 0,
        failed: InodeSet::new(inner.engine.memory.budget()),
    };
    let truncation = match options.metadata_only {
        true => truncation_of(inner, MissingDevices::AreElsewhere),
        false => truncation(inner),
    };
    if let Some(error) = truncation {
        report.problem(Vec::new(), error);
    }
    let work = options.max_work.map_or_else(|| inner.work_meter(), WorkMeter::new);
    let walk = TreeWalk::new(inner, &options.path).map(|walk| walk.work_meter(&work));
    match walk.and_then(|walk| Ok((walk, LinkCounts::new(&inner.engine.memory)?))) {
        Ok((walk, mut link_counts)) => {
            let batches = VerifyBatches::new(walk, &mut link_counts);
            let verified = Verified::new(inner.engine.memory.budget(), inner.stored_bytes());
            let inspector = Inspector { inner, options, verified, work };
            // Fragments use parts of the map of the packed file, in the order of the walk.
            for special in inner.packed.iter().chain(&inner.metabox) {
                if let Err(error) = catch(|| inspector.check_random_access(special)) {
                    report.problem(Vec::new(), error);
                }
            }
            verify_batches(&inspector, options, batches, &mut report)?;
            report_shared_damage(&inspector, options, &mut report)?;
            // Below another path than the root not all names of an inode need to be met.
            if options.path == b"/" {
                link_counts.wrong_counts().for_each(|problem| {
                    report.problem(problem.path, problem.error);
                });
            }
        }
        Err(error) => report.problem(options.path.clone(), error),
    }
    let VerifyProgress { inodes, bytes } = report.progress;
    Ok(VerifySummary { inodes, bytes, problems: report.problems })
}

fn verify_batches(
    inspector: &Inspector<'_>,
    options: &VerifyOptions,
    batches: VerifyBatches<'_>,
    report: &mut VerifyReport<'_>,
) -> Result<()> {
    let threads = options.max_threads.unwrap_or_else(|| HelperBudget::process().total());
    let mut continuity = ContinuityCheck::default();
    OrderedPipeline::new()
        .max_threads(threads.min(inspector.inner.engine.decode_slots.count()))
        .run(
            batches,
            || (),
            |(), batch| inspector.inspect(batch),
            |found| {
                // A batch that was read while the token was cancelled may be incomplete, and is not
                // reported.
                inspector.check_cancelled()?;
                report.commit(found, &mut continuity)
            },
        )?;
    Ok(())
}

/// What was found in a batch.
enum BatchResult {
    /// `failed` are the inodes whose contents could not be read.
    Inodes {
        inodes: u64,
        bytes: u64,
        problems: Vec<PathError>,
        failed: Vec<Nid>,
    },
    Part {
        part: FilePart,
        read: Result<Range<u64>>,
        others: Vec<Error>,
    },
}

/// Verifies batches, on any thread. A source that panics is a problem like any other.
struct Inspector<'a> {
    inner: &'a ImageInner,
    options: &'a VerifyOptions,
    verified: Verified,
    work: WorkMeter,
}

impl Inspector<'_> {
    fn check_cancelled(&self) -> Result<()> {
        if self.options.cancel.is_cancelled() { Err(ErrorKind::Cancelled.into()) } else { Ok(()) }
    }

    fn inspect(&self, batch: VerifyBatch) -> Result<BatchResult> {
        match batch {
            VerifyBatch::Inodes(batch) => self.inspect_inodes(batch),
            VerifyBatch::Part(part) => {
                self.check_cancelled()?;
                let WalkEntry { inode, .. } = &*part.node;
                let mut others = Vec::new();
                let sound = if part.is_first() {
                    others.extend(catch(|| self.check_xattrs(inode)).err());
                    catch(|| self.check_map(inode))
                } else {
                    Ok(())
                };
                let range = part.range.clone();
                let read = sound.and_then(|()| self.read_through(inode, range));
                Ok(BatchResult::Part { part, read, others })
            }
        }
    }

    fn inspect_inodes(
        &self,
        batch: Vec<std::result::Result<WalkEntry, PathError>>,
    ) -> Result<BatchResult> {
        let (mut inodes, mut bytes, mut problems) = (0u64, 0u64, Vec::new());
        let mut failed = Vec::new();
        for one in batch {
            self.check_cancelled()?;
            let node = match one {
                Ok(node) => node,
                Err(problem) => {
                    problems.push(problem);
                    continue;
                }
            };
            inodes = inodes.saturating_add(1);
            match catch(|| self.read_contents(&node.inode)) {
                Ok(read) => bytes = bytes.saturating_add(read),
                Err(error) => {
                    problems.push(PathError { path: node.path.clone(), error });
                    failed.push(node.inode.nid());
                }
            }
            if let Err(error) = catch(|| self.check_xattrs(&node.inode)) {
                problems.push(PathError { path: node.path, error });
            }
        }
        Ok(BatchResult::Inodes { inodes, bytes, problems, failed })
    }

    /// Reads the contents of an inode; returns how many bytes a file has.
    fn read_contents(&self, inode: &Inode) -> Result<u64> {
        match inode.file_type() {
            FileType::Regular => {
                self.check_map(inode)?;
                self.read_through(inode, 0..inode.size())?;
                Ok(inode.size())
            }
            FileType::Symlink if self.options.metadata_only => Ok(0),
            FileType::Symlink => self.inner.read_link(inode).map(|_| 0),
            // Its own name is one, and subdirectories are not counted.
            FileType::Directory if inode.nlink() == 0 => {
                let error = Error::new(ErrorKind::LinkCount { nlink: 0, names: 1 });
                Err(error.in_inode(inode.nid()).at(inode.offset()))
            }
            _ => Ok(0),
        }
    }

    fn check_xattrs(&self, inode: &Inode) -> Result<()> {
        check_xattrs(self.inner, inode, &self.verified, &self.work)
    }

    /// Checks the map of a file. Indexes of damaged inodes may overlap, so reading them is work.
    fn check_map(&self, inode: &Inode) -> Result<()> {
        let mut map = ExtentMap::new(self.inner, inode)?;
        self.add_index_work(&map, inode)?;
        map.check()
    }

    /// Adds the work of following all of a map.
    fn add_index_work(&self, map: &ExtentMap<'_>, inode: &Inode) -> Result<()> {
        // An index of more entries than this does not fit in the image.
        let most = self.inner.engine.devices.primary().length() / INDEX_ENTRY_BYTES;
        let work = map.index_entries().min(most).saturating_mul(INDEX_ENTRY_WORK);
        self.work.add(work, "indexes of compressed files").in_inode(inode.nid())
    }

    /// Adds the work of a search in an index.
    fn add_search_work(&self, steps: u64) -> Result<()> {
        let work = steps.saturating_sub(FREE_STEPS).saturating_mul(STEP_WORK);
        if work == 0 {
            Ok(())
        } else {
            self.work.add(work, "searches in indexes of compressed files")
        }
    }

    /// Checks the map of a file of which any part is read alone: both ends of each of its extents, and of each
    /// lcluster, as readers begin with the entry of the one that they want.
    fn check_random_access(&self, inode: &Inode) -> Result<()> {
        self.check_map(inode)?;
        let mut map = ExtentMap::new(self.inner, inode)?;
        // Other maps are computed.
        let mut at = if map.index_entries() > 0 { 0 } else { inode.size() };
        while at < inode.size() {
            self.check_cancelled()?;
            self.work.add(INDEX_ENTRY_WORK, "indexes of compressed files")?;
            // The extent holds the byte, so that the end is behind it.
            let end = map.extent_at(at)?.end().min(map.lcluster_end(at));
            map.extent_at(end.saturating_sub(1))?;
            self.add_search_work(map.take_search_steps()).in_inode(inode.nid())?;
            at = end;
        }
        Ok(())
    }

    /// Reads what was not read before of a range of a file, and does nothing with it. Remembers what could not be
    /// read, as it is read for no other file.
    fn read_through(&self, inode: &Inode, range: Range<u64>) -> Result<Range<u64>> {
        let filter = UnreadExtents { inspector: self, reading: Cell::new(None) };
        let mut check = |_: FilePiece<'_>| self.check_cancelled();
        let read =
            catch(|| self.inner.for_wanted_pieces_in(inode, range, Some(&filter), &mut check));
        if let Err(error) = &read
            && let Some(extent) = filter.reading.take()
        {
            self.verified.add_damaged(&extent, error);
        }
        read
    }
}

/// Wants what was not read before.
struct UnreadExtents<'a> {
    inspector: &'a Inspector<'a>,
    reading: Cell<Option<MappedExtent>>,
}

impl ExtentFilter for UnreadExtents<'_> {
    fn wants(&self, extent: &MappedExtent) -> Result<bool> {
        let Inspector { options, verified, work, .. } = self.inspector;
        self.inspector.check_cancelled()?;
        if options.metadata_only {
            return add_extent_work(work).map(|()| false);
        }
        let is_wanted = verified.wants(extent, work)?;
        self.reading.set(is_wanted.then_some(*extent));
        Ok(is_wanted)
    }

    fn has_searched(&self, steps: u64) -> Result<()> {
        self.inspector.add_search_work(steps)
    }

    fn has_read(&self) {
        self.reading.set(None);
    }
}

fn catch<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    // A panic drops what it leaves unfinished: a decode slot, a permit.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(ErrorKind::Panicked.into()))
}

/// An error if the image, or a device that was given, is shorter than the superblock says.
pub(crate) fn truncation(inner: &ImageInner) -> Option<Error> {
    truncation_of(inner, MissingDevices::AreInImage)
}

/// Where devices are that were not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MissingDevices {
    /// They have to lie behind the image.
    AreInImage,
    AreElsewhere,
}

fn truncation_of(inner: &ImageInner, missing: MissingDevices) -> Option<Error> {
    let whole = inner.engine.devices.primary().length();
    let slots = inner.device_slots.iter().zip(inner.engine.devices.given_lengths());
    let devices = slots.filter_map(|(slot, given)| match (given, missing) {
        (Some(length), _) => Some((slot.blocks, length)),
        (None, MissingDevices::AreInImage) => {
            Some((slot.unified_block.saturating_add(slot.blocks), whole))
        }
        (None, MissingDevices::AreElsewhere) => None,
    });
    let all = std::iter::once((inner.sb.blocks, whole)).chain(devices);
    for (blocks, length) in all {
        let promised = inner.sb.block_size.offset_of(blocks).unwrap_or(u64::MAX);
        if promised > length {
            return Some(Error::new(ErrorKind::Truncated { promised, length }).at(length));
        }
    }
    None
}

/// Reports to the caller.
struct VerifyReport<'a> {
    on_event: &'a mut dyn FnMut(VerifyEvent),
    progress: VerifyProgress,
    problems: u64,
    /// Inodes that were reported because of their contents.
    failed: InodeSet,
}

impl VerifyReport<'_> {
    fn problem(&mut self, path: Vec<u8>, error: Error) {
        self.problems = self.problems.saturating_add(1);
        (self.on_event)(VerifyEvent::Problem(PathError { path, error }));
    }

    /// # Errors
    /// There is no memory to record which inodes have failed.
    fn commit(&mut self, found: BatchResult, continuity: &mut ContinuityCheck) -> Result<()> {
        match found {
            BatchResult::Inodes { inodes, bytes, problems, failed } => {
                self.progress.inodes = self.progress.inodes.saturating_add(inodes);
                self.progress.bytes = self.progress.bytes.saturating_add(bytes);
                problems
                    .into_iter()
                    .for_each(|PathError { path, error }| self.problem(path, error));
                for nid in failed {
                    self.failed.insert(nid)?;
                }
            }
            BatchResult::Part { part, read, others } => {
                if let Ok(covered) = &read {
                    let bytes = covered.end.saturating_sub(covered.start);
                    self.progress.bytes = self.progress.bytes.saturating_add(bytes);
                }
                let fault = continuity.join(&part, read);
                if fault.is_some() {
                    self.failed.insert(part.node.inode.nid())?;
                }
                for error in fault.into_iter().chain(others) {
                    self.problem(part.node.path.clone(), error);
                }
                if part.is_last() {
                    self.progress.inodes = self.progress.inodes.saturating_add(1);
                }
            }
        }
        (self.on_event)(VerifyEvent::Progress(self.progress));
        Ok(())
    }
}

/// An inode with several names, or with a link count other than 1.
#[derive(Debug)]
struct NamedInode {
    nlink: u32,
    names: u64,
    offset: u64,
    /// A name to report a wrong count under. Empty if it would take too much memory.
    path: Vec<u8>,
}

/// Names that the walk has found for each inode that is not a directory.
#[derive(Debug)]
struct LinkCounts {
    visited: SparseBitSet,
    seen: HashMap<Nid, NamedInode>,
    charge: Charge,
    used_bytes: u64,
    /// Bytes that kept names may still take.
    names_left: usize,
}

impl LinkCounts {
    fn new(memory: &MemoryPool) -> Result<Self> {
        let names = memory.budget().limit_bytes() / NAMES_SHARE;
        Ok(Self {
            visited: SparseBitSet::default(),
            seen: HashMap::new(),
            charge: memory.budget().charge(STEP_BYTES, AllocPolicy::MustSucceed)?,
            used_bytes: 0,
            names_left: usize::try_from(names).unwrap_or(usize::MAX),
        })
    }

    /// Counts a name. Returns whether it is the first one of its inode.
    ///
    /// # Errors
    /// There is no memory to record more.
    fn insert(&mut self, node: &WalkEntry) -> Result<bool> {
        let (nid, nlink) = (node.inode.nid(), node.inode.nlink());
        let is_new = self.visited.insert(nid.raw());
        self.charge_for(self.visited.bytes().saturating_add(self.used_bytes))?;
        if is_new && nlink == 1 {
            return Ok(true);
        }
        let fits = node.path.len() <= self.names_left;
        let known = self.seen.len();
        let seen = self.seen.entry(nid).or_insert_with(|| NamedInode {
            nlink,
            // An inode with a link count of 1 is recorded only at its second name.
            names: u64::from(!is_new),
            offset: node.inode.offset(),
            path: Vec::new(),
        });
        seen.names = seen.names.saturating_add(1);
        let mut more = 0;
        if seen.path.is_empty() && fits {
            seen.path.clone_from(&node.path);
            self.names_left = self.names_left.saturating_sub(node.path.len());
            more = node.path.len();
        }
        if self.seen.len() > known {
            self.used_bytes = self.used_bytes.saturating_add(SEEN_BYTES);
        }
        self.used_bytes = self.used_bytes.saturating_add(u64::try_from(more).unwrap_or(u64::MAX));
        Ok(is_new)
    }

    fn charge_for(&mut self, bytes: u64) -> Result<()> {
        while self.charge.bytes() < bytes {
            self.charge.grow(STEP_BYTES, AllocPolicy::MustSucceed)?;
        }
        Ok(())
    }

    /// The inodes whose link count is wrong, by their paths.
    fn wrong_counts(self) -> impl Iterator<Item = PathError> {
        let mut wrong: Vec<_> =
            self.seen.into_iter().filter(|(_, seen)| u64::from(seen.nlink) != seen.names).collect();
        wrong.sort_by(|(_, a), (_, b)| a.path.cmp(&b.path));
        wrong.into_iter().map(|(nid, seen)| {
            let kind = ErrorKind::LinkCount { nlink: seen.nlink, names: seen.names };
            PathError { path: seen.path, error: Error::new(kind).in_inode(nid).at(seen.offset) }
        })
    }
}
