//! The data path: the regular files of a tree become bytes of the image, and a map of where they lie.
//!
//! This module owns the passes over data: files on external devices, all other files, the packed inode, the
//! metabox. A pass splits files into tasks ([`crate::split`]), works on them in an ordered pipeline of
//! `ferrofs-workers` ([`DataPipeline`]) and commits the results in the order of the files ([`commit`]), so that the
//! bytes depend on the tree and the options only. The caller's thread splits and commits; other threads read and
//! encode. How many threads there are and how many bytes may be in flight is decided here.

pub(crate) mod chunk_tables;
mod commit;
mod copies;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use ferrofs_workers::cpus::AvailableCpus;
use ferrofs_workers::jobs::{CallerRole, HelperBudget, OrderedPipeline};
use ferrofs_workers::memory::{Charge, trim_heap};

use crate::compress::profiles::CompressionProfiles;
use crate::compress::{DataWorker, TaskBatch};
use crate::context::{BuildContext, DataNeeds};
use crate::data_map::{DataSinks, InternalFile};
use crate::dedupe::{DedupeFiles, DedupeOptions, DedupePlan};
use crate::packed_file::PackedFile;
use crate::spill::paged::PagedArray;
use crate::split::{
    DedupePiece, FileCompression, FileList, FilePieces, FileSet, GeneratedFile, SEGMENT_BYTES,
    StorageMode, StorageModes, TaskSource, TaskSplitter,
};
use crate::tree::{Content, NodeId, Tree, files_in_order, memory_content};
use crate::{
    BlockSink, BuildPhase, DataMap, Deduplication, Error, ErrorKind, Fragments, NoopObserver,
    Result,
};
use chunk_tables::{CHUNK_ENTRY_BYTES, ChunkTableBudget, ChunkTableParams, DeviceReferences};
use commit::{CommitParams, Committed, CommittedFiles, Committer, INDEX_ENTRY_BYTES};
use copies::{SOURCE_BYTES, SOURCE_EXTENT_BYTES};

/// Writes the data of all regular files of `tree` to `sinks`. What is to lie in the packed inode is gathered
/// behind `packed_prefix`; [`write_packed`] writes it when all of it is there.
///
/// # Errors
/// The first in the order of the files: a source that cannot be read or has changed, a sink that refuses to
/// write, memory that is too small; [`ErrorKind::Cancelled`].
pub(crate) fn write_data(
    tree: &Tree,
    context: &BuildContext<'_>,
    packed_prefix: &[u8],
    sinks: DataSinks<'_>,
) -> Result<(DataMap, PackedFile)> {
    let options = context.options;
    let profiles = CompressionProfiles::new(options)?;
    let has_hints = !options.hints.all().is_empty();
    let mut map = map_device_files(tree, context, &profiles, sinks.image)?;
    let (mut nodes, mut compressions) = (PagedArray::new(tree.store()), Vec::new());
    files_in_order(tree, |path, node| {
        if map.contains(node.index()) {
            return;
        }
        nodes.push(node.number());
        if has_hints {
            compressions.push(profiles.choose(options, path));
        }
    });
    let contents = FileList::Nodes(tree, &nodes);
    let mut files = FileSet { contents, compressions: &compressions, pieces: None };
    let plan = match StorageMode::of(options) {
        StorageMode::Compressed => find_duplicates(files, &profiles, context)?,
        // Chunks are compared by themselves; what goes to the packed inode, there.
        StorageMode::Chunks(_) | StorageMode::Flat { .. } | StorageMode::Packed => None,
    };
    files.pieces = plan.as_deref();
    let packed = PackedFile::new(packed_prefix, options.fragment_sharing, tree.store());
    let (data, packed) = write_files(files, packed, context, sinks)?;
    map.merge(data, nodes.iter());
    tree.store().check()?;
    Ok((map, packed))
}

/// The data of the files that lie on external devices. Their chunk tables stay charged.
fn map_device_files(
    tree: &Tree,
    context: &BuildContext<'_>,
    profiles: &CompressionProfiles,
    sink: &mut dyn BlockSink,
) -> Result<DataMap> {
    let mut map = DataMap::new(tree.store(), tree.len());
    if tree.devices().is_empty() && !tree.has_extents() {
        return Ok(map);
    }
    let mut on_devices = PagedArray::new(tree.store());
    files_in_order(tree, |_, node| {
        if tree.content(node).is_some_and(|content| content.extents().is_some()) {
            on_devices.push(node.number());
        }
    });
    if on_devices.len() == 0 {
        return Ok(map);
    }
    let params = ChunkTableParams::new(context.options, context.options.block_size.bytes().into());
    let min_bytes = DataPipeline::min_bytes(profiles)?;
    let needs = DataNeeds { chunk_table_bytes: u64::MAX, ..DataNeeds::default() };
    let tables = context.memory.charge_tables(&needs, min_bytes)?;
    let mut budget =
        ChunkTableBudget::of_longest_chunks(tables.chunk_tables, context.memory.limit_bytes());
    let mut references = DeviceReferences { devices: tree.devices(), params, sink };
    for node in on_devices.iter().map(NodeId::from_index) {
        context.check_cancelled()?;
        let Some(content) = tree.content(node) else { continue };
        let extents = content.extents().unwrap_or_default();
        let data = references.refer(&content, extents, &mut budget);
        let data = data.map_err(|error| error.at(content.source().name()))?;
        context.observer.bytes_done(data.as_ref().map_or(0, |_| content.bytes()));
        if let Some(data) = data {
            map.set(node.index(), &data);
        }
    }
    context.memory.keep(budget.into_used());
    Ok(map)
}

/// Writes the data of `files` in their order.
pub(crate) fn write_files(
    files: FileSet<'_>,
    packed: PackedFile,
    context: &BuildContext<'_>,
    sinks: DataSinks<'_>,
) -> Result<(DataMap, PackedFile)> {
    let options = context.options;
    let modes = StorageModes {
        usual: StorageMode::of(options),
        uncompressed: StorageMode::uncompressed(options),
    };
    let splitter = TaskSplitter::new(files, modes, options.fragment_sharing, context.cancel)?;
    let pass = DataPass { files, profiles: CompressionProfiles::new(options)?, packed, modes };
    let committed = pass.run(splitter, context, sinks)?;
    context.memory.keep(committed.chunk_tables);
    // From here on nothing is looked for in the indexes of the packed parts, and the packed inode needs the memory.
    drop(committed.packed_parts);
    Ok((committed.committed.files, committed.committed.packed))
}

/// A pass over file data.
struct DataPass<'f> {
    files: FileSet<'f>,
    profiles: CompressionProfiles,
    /// What the packed inode holds before the pass.
    packed: PackedFile,
    modes: StorageModes,
}

impl DataPass<'_> {
    /// Writes the files, in the tasks that `source` makes of them.
    fn run(
        self,
        source: impl TaskSource,
        context: &BuildContext<'_>,
        sinks: DataSinks<'_>,
    ) -> Result<CommittedFiles> {
        let params = CommitParams::new(context, self.modes.uncompressed);
        let copied = copied_files(self.files);
        let needs = self.needs(context, &params, &copied);
        let threads_bytes = DataPipeline::min_bytes(&self.profiles)?;
        let tables = context.memory.charge_tables(&needs, threads_bytes)?;
        let pipeline = DataPipeline::new(self.profiles, context)?;
        let files = DataMap::new(context.memory.store(), 0);
        let mut packed = self.packed;
        packed.set_known_max(tables.packed_parts_max());
        let reencoder = pipeline.worker(context);
        let committed = Committed { files, packed };
        let store = context.memory.store();
        let mut committer =
            Committer::new(params, store, tables, sinks, reencoder, copied, committed);
        pipeline.run(source, &mut committer, context)?;
        Ok(committer.into_committed())
    }

    /// What the tables of the pass can grow to. Others copy from the files `copied`.
    fn needs(
        &self,
        context: &BuildContext<'_>,
        params: &CommitParams,
        copied: &HashSet<usize>,
    ) -> DataNeeds {
        let contents = self.files.contents;
        let sizes = || (0..contents.len()).map(|file| contents.bytes(file));
        let sum = |count: &dyn Fn(u64) -> u64| sizes().map(count).fold(0, u64::saturating_add);
        let entries =
            params.table.map_or(0, |table| sum(&|bytes| bytes.div_ceil(table.chunk_bytes)));
        let shares = self.profiles.params.shares_pclusters;
        let packs = context.options.fragments != Fragments::None;
        // Only compressed files have an index. A file of nothing but holes may claim 2^63 bytes.
        let has_index = |&file: &usize| {
            self.files.mode_and_profile(file, self.modes).0 == StorageMode::Compressed
        };
        let largest = (0..contents.len()).filter(has_index).map(|file| contents.bytes(file)).max();
        DataNeeds {
            packed_parts: if packs { contents.len() as u64 } else { 0 },
            pclusters: if shares { sum(&|bytes| bytes.div_ceil(params.block)) } else { 0 },
            index_bytes: (largest.unwrap_or(0) / params.block).saturating_mul(INDEX_ENTRY_BYTES),
            chunk_table_bytes: entries.saturating_mul(CHUNK_ENTRY_BYTES),
            chunks: entries,
            copy_source_bytes: copied
                .iter()
                .map(|&file| self.source_bytes(file, params))
                .fold(0, u64::saturating_add),
        }
    }

    /// What the extents of a file can take that others copy from: seldom more than one for each block.
    fn source_bytes(&self, file: usize, params: &CommitParams) -> u64 {
        let blocks = self.files.contents.bytes(file) / params.block + 1;
        SOURCE_BYTES.saturating_add(blocks.saturating_mul(SOURCE_EXTENT_BYTES))
    }
}

/// Writes the data of the packed inode.
///
/// # Errors
/// As [`write_data`].
pub(crate) fn write_packed(
    content: &Content,
    context: &BuildContext<'_>,
    sink: &mut dyn BlockSink,
) -> Result<InternalFile> {
    let profiles = CompressionProfiles::new(context.options)?.of_packed(context.options);
    let whole = FileList::Contents(std::slice::from_ref(content));
    let mut files = FileSet { contents: whole, compressions: &[], pieces: None };
    // Ends of files are compared as they are packed; whole files may have equal parts.
    let plan = match StorageMode::of(context.options) {
        StorageMode::Packed => find_duplicates(files, &profiles, context)?,
        _ => None,
    };
    files.pieces = plan.as_deref();
    let modes =
        StorageModes { usual: StorageMode::Compressed, uncompressed: StorageMode::Compressed };
    let sharing = context.options.fragment_sharing;
    let splitter = TaskSplitter::new(files, modes, sharing, context.cancel)?;
    write_internal(files, profiles, splitter, context, sink)
}

/// Writes the data of the metabox, which `file` makes.
///
/// # Errors
/// As [`write_data`], and those of `file`.
pub(crate) fn write_metabox(
    mut file: GeneratedFile<'_>,
    context: &BuildContext<'_>,
    sink: &mut dyn BlockSink,
) -> Result<InternalFile> {
    let profiles = CompressionProfiles::new(context.options)?.of_metabox(context.options)?;
    file.is_compressed = profiles.count() > 0;
    let content = memory_content("the metabox", 0, Vec::new(), file.bytes);
    let whole = FileList::Contents(std::slice::from_ref(&content));
    let files = FileSet { contents: whole, compressions: &[], pieces: None };
    write_internal(files, profiles, file, context, sink)
}

/// Writes the one file of `files`, in the tasks that `source` makes of it. The observer is not called: the bytes
/// of the packed inode were counted with their files, and those of the metabox are no file's.
fn write_internal(
    files: FileSet<'_>,
    profiles: CompressionProfiles,
    source: impl TaskSource,
    context: &BuildContext<'_>,
    sink: &mut dyn BlockSink,
) -> Result<InternalFile> {
    let context = BuildContext { observer: &NoopObserver, ..*context };
    let sharing = context.options.fragment_sharing;
    let packed = PackedFile::new(&[], sharing, context.memory.store());
    let modes =
        StorageModes { usual: StorageMode::Compressed, uncompressed: StorageMode::Compressed };
    let pass = DataPass { files, profiles, packed, modes };
    let data = pass.run(source, &context, DataSinks::of_image(sink))?.committed.files.get(0);
    let data = data.ok_or_else(|| Error::new(ErrorKind::Internal("a file that is not there")))?;
    let bytes = files.contents.bytes(0);
    Ok(InternalFile { bytes, data })
}

/// Where `files` hold the same bytes, with deduplication only. Only files of the same profile share theirs: an index
/// names two algorithms at most, and pclusters of one size go together best.
fn find_duplicates(
    files: FileSet<'_>,
    profiles: &CompressionProfiles,
    context: &BuildContext<'_>,
) -> Result<Option<Box<dyn FilePieces>>> {
    let options = context.options;
    if options.deduplication == Deduplication::Off || options.algorithms.is_none() {
        return Ok(None);
    }
    context.observer.phase(BuildPhase::Deduplicate);
    let charge = context.memory.charge_dedupe()?;
    let wanted = options.jobs.unwrap_or_else(|| AvailableCpus::read().parallelism());
    let affordable = context.memory.available_bytes() / THREAD_BYTES;
    let jobs = wanted.min(usize::try_from(affordable).unwrap_or(usize::MAX)).max(1);
    let find = |files: DedupeFiles<'_>, profile| {
        let options = DedupeOptions {
            block_bytes: options.block_size.bytes(),
            pcluster_bytes: u32::try_from(profiles.pcluster(profile)).unwrap_or(u32::MAX),
            jobs: Some(jobs),
            // The table of whole files takes a quarter more.
            memory_bytes: charge.bytes() / 5 * 4,
        };
        DedupePlan::find(files, &options, context.memory.store(), context.cancel)
    };
    let contents = files.contents;
    let plan: Box<dyn FilePieces> = if files.compressions.is_empty() {
        Box::new(find(DedupeFiles { contents, chosen: None }, 0)?)
    } else {
        let mut all = DedupePlanByProfile::default();
        for profile in 0..profiles.count() {
            let profile_of = |file: &usize| files.compressions.get(*file);
            let is_it = |file: &usize| profile_of(file) == Some(&FileCompression::Profile(profile));
            let chosen: Vec<usize> = (0..contents.len()).filter(is_it).collect();
            let of_profile = DedupeFiles { contents, chosen: Some(&chosen) };
            all.take_over(&find(of_profile, profile)?, &chosen);
        }
        Box::new(all)
    };
    // What the search took is free again, and the pass over the data takes it from the system.
    trim_heap();
    context.observer.phase(BuildPhase::Data);
    Ok(Some(plan))
}

impl FilePieces for DedupePlan {
    fn pieces(&self, file: usize) -> &[DedupePiece] {
        self.pieces(file)
    }

    fn cut_files(&self) -> Vec<usize> {
        self.cut_files()
    }
}

/// The plans of files of several profiles, put together.
#[derive(Default)]
struct DedupePlanByProfile(BTreeMap<usize, Vec<DedupePiece>>);

impl DedupePlanByProfile {
    /// Takes over the plan for some of the files: those with the numbers `chosen`.
    fn take_over(&mut self, plan: &DedupePlan, chosen: &[usize]) {
        for number in plan.cut_files() {
            let pieces = plan.pieces(number).iter().map(|piece| match *piece {
                DedupePiece::Copy { of, offset, bytes } => {
                    let of = chosen.get(of).copied().unwrap_or(usize::MAX);
                    DedupePiece::Copy { of, offset, bytes }
                }
                own @ DedupePiece::Own { .. } => own,
            });
            if let Some(file) = chosen.get(number) {
                self.0.insert(*file, pieces.collect());
            }
        }
    }
}

impl FilePieces for DedupePlanByProfile {
    fn pieces(&self, file: usize) -> &[DedupePiece] {
        self.0.get(&file).map_or(&[], Vec::as_slice)
    }

    fn cut_files(&self) -> Vec<usize> {
        self.0.keys().copied().collect()
    }
}

/// The files that others copy from.
fn copied_files(files: FileSet<'_>) -> HashSet<usize> {
    let mut copied = HashSet::new();
    let Some(pieces) = files.pieces else { return copied };
    for file in pieces.cut_files() {
        copied.extend(pieces.pieces(file).iter().filter_map(|piece| match piece {
            DedupePiece::Copy { of, .. } => Some(*of),
            DedupePiece::Own { .. } => None,
        }));
    }
    copied
}

/// Batches in flight at most: what a slow one can hold up.
const BATCHES_MAX: usize = 256;

/// Bytes that a task takes in flight beside its output: itself, its content with the path of its file, its result with
/// two digests, and what the allocator adds.
const TASK_BYTES: u64 = 768;

/// What a thread takes beside its buffers and encoders, in bytes: its stack, and what the allocator keeps for it.
const THREAD_BYTES: u64 = 1 << 20;

/// The threads of a data pass, and how much may be in flight between them.
#[derive(Debug)]
struct DataPipeline {
    profiles: CompressionProfiles,
    threads: usize,
    /// Helpers of its own where the options set a number of threads, however few CPUs there are.
    helpers: Option<HelperBudget>,
    in_flight_bytes: u64,
    /// For the threads and what is in flight.
    _charge: Charge,
}

impl DataPipeline {
    /// The least that a pass with these profiles needs, in bytes: one thread, one batch that is worked on and
    /// one that waits to be committed.
    ///
    /// # Errors
    /// An encoder that does not take its parameters.
    fn min_bytes(profiles: &CompressionProfiles) -> Result<u64> {
        Ok(thread_bytes(profiles)? + in_flight_min(profiles))
    }

    /// The threads of the options, or as many as the rest of the memory is enough for.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOptions`] if it is not enough for one; an encoder that does not take its parameters.
    fn new(profiles: CompressionProfiles, context: &BuildContext<'_>) -> Result<Self> {
        let each = thread_bytes(&profiles)?;
        let available = context.memory.available_bytes();
        let spare = available.checked_sub(in_flight_min(&profiles)).filter(|spare| *spare >= each);
        let Some(spare) = spare else {
            return Err(context.memory.too_little(Self::min_bytes(&profiles)?));
        };
        let jobs = context.options.jobs;
        let wanted = jobs.unwrap_or_else(|| AvailableCpus::read().parallelism()).max(1);
        // The caller of the build has counted its own thread.
        let further_each = each + THREAD_BYTES;
        let affordable = usize::try_from((spare - each) / further_each).unwrap_or(usize::MAX);
        let further = (wanted - 1).min(affordable);
        let threads = further + 1;
        let threads_bytes = each + further as u64 * further_each;
        // A segment for each thread, and half as many that wait to be worked on or to be committed: each is 8 MiB
        // where the data is incompressible.
        let useful = (threads + threads.div_ceil(2) + 1) as u64 * SEGMENT_BYTES;
        let in_flight_bytes = (available - threads_bytes).min(useful);
        let charge = context.memory.charge_up_to(threads_bytes + in_flight_bytes)?;
        let helpers = jobs.map(|_| HelperBudget::new(threads));
        Ok(Self { profiles, threads, helpers, in_flight_bytes, _charge: charge })
    }

    /// A worker for what has to be encoded once more.
    fn worker(&self, context: &BuildContext<'_>) -> DataWorker {
        DataWorker::new(self.profiles.clone(), context.cancel.clone())
    }

    /// Works on all batches of `source` and commits them, in their order.
    ///
    /// # Errors
    /// The first in the order of the files, whichever thread met it; [`ErrorKind::Cancelled`].
    fn run(
        &self,
        source: impl TaskSource,
        committer: &mut Committer<'_>,
        context: &BuildContext<'_>,
    ) -> Result<()> {
        let spare = SpareBatches::new(self.threads + 2);
        let batches = Batches { source, spare: &spare, has_failed: false };
        let mut pipeline = OrderedPipeline::new()
            .max_threads(self.threads)
            .max_in_flight(BATCHES_MAX)
            .max_in_flight_bytes(self.in_flight_bytes)
            .caller_role(CallerRole::CommitsOnly);
        if let Some(helpers) = &self.helpers {
            pipeline = pipeline.helpers(helpers);
        }
        let (profiles, cancel) = (&self.profiles, context.cancel);
        let init = || DataWorker::new(profiles.clone(), cancel.clone());
        let work = |worker: &mut DataWorker, mut batch: TaskBatch| {
            let worked = catch_unwind(AssertUnwindSafe(|| worker.work_on(&mut batch)));
            worked.map_err(|_| Error::new(ErrorKind::Internal("a worker panicked")))??;
            Ok(batch)
        };
        let commit = |mut batch: TaskBatch| {
            context.check_cancelled()?;
            committer.commit(&batch.tasks, &batch.output)?;
            if let Some(error) = batch.error.take() {
                return Err(error);
            }
            context.observer.bytes_done(batch.tasks.iter().map(|task| task.bytes).sum());
            spare.put(batch);
            Ok(())
        };
        pipeline.run_with_cost(batches, in_flight_cost, init, work, commit).map(drop)
    }
}

/// What a batch takes in memory while it is in flight: its output, and its tasks, which are most of it where files
/// are small.
fn in_flight_cost(batch: &TaskBatch) -> u64 {
    batch.bytes.saturating_add(TASK_BYTES.saturating_mul(batch.tasks.len() as u64))
}

/// What a thread takes: its read buffer and encoders for all profiles.
fn thread_bytes(profiles: &CompressionProfiles) -> Result<u64> {
    Ok(SEGMENT_BYTES + profiles.memory_bytes()?)
}

/// What is in flight at least.
fn in_flight_min(profiles: &CompressionProfiles) -> u64 {
    2 * (SEGMENT_BYTES + profiles.params.block as u64)
}

/// Draws batches. An error of the source is an item, too, so that it is met in the order of the files.
struct Batches<'b, S> {
    source: S,
    spare: &'b SpareBatches,
    has_failed: bool,
}

impl<S: TaskSource> Iterator for Batches<'_, S> {
    type Item = TaskBatch;

    fn next(&mut self) -> Option<TaskBatch> {
        if self.has_failed {
            return None;
        }
        let mut batch = self.spare.take();
        match self.source.next_batch(&mut batch.tasks) {
            Ok(bytes) => batch.bytes = bytes?,
            Err(error) => {
                self.has_failed = true;
                batch.error = Some(error);
            }
        }
        Some(batch)
    }
}

/// Committed batches, whose buffers are used again.
struct SpareBatches {
    batches: RefCell<Vec<TaskBatch>>,
    /// Batches beyond this are not kept.
    count_max: usize,
}

/// What is kept of the memory of a batch: enough for one that bundles small files. What a large one
/// filled would stay resident beside those that are worked on.
const KEPT_BYTES: usize = 1 << 20;

impl SpareBatches {
    fn new(count_max: usize) -> Self {
        Self { batches: RefCell::default(), count_max }
    }

    fn take(&self) -> TaskBatch {
        self.batches.borrow_mut().pop().unwrap_or_default()
    }

    fn put(&self, mut batch: TaskBatch) {
        let mut batches = self.batches.borrow_mut();
        if batches.len() < self.count_max {
            batch.tasks.clear();
            batch.output.clear();
            batch.output.bytes.shrink_to(KEPT_BYTES);
            batch.bytes = 0;
            batches.push(batch);
        }
    }
}
