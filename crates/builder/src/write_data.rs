//! The data path: all regular files of a tree become bytes of the image and a map of where they lie.
//!
//! The caller's thread cuts files into items, hands them to workers by the threaded workqueue, and
//! commits what comes back in the order in which it was sent, so that the bytes depend on the tree and the
//! options only. TaskSource on their way, and so the memory, are bounded by [`BuildOptions::memory_bytes`].

pub(crate) mod chunk_tables;
mod commit;
mod file_builder;
#[cfg(test)]
mod tests;
mod window;

use std::cell::RefCell;

use commit::{CommitParams, Committer};
use ferrofs_workers::cpus::AvailableCpus;
use ferrofs_workers::workqueue::{
    ActiveWorkers, DispatchPolicy, RequestOutcome, WorkQueue, WorkQueueSettings,
};

use window::ReorderBuffer;

use crate::compress::profiles::CompressionProfiles;
use crate::compress::worker::{DataWorker, TaskBatch};
use crate::data_map::{FileData, InternalFile};
use crate::dedupe::{DedupeOptions, DedupePiece, DedupePlan};
use crate::packed_file::PackedFile;
use crate::report::{BuildObserver, BuildPhase};
use crate::split::{
    ByteGenerator, FileCompression, FilePieces, FileSet, GeneratedFile, SEGMENT_BYTES, StorageMode,
    StorageModes, TaskSource, TaskSplitter,
};
use crate::tree::{Content, Tree, files_in_order};
use crate::write_data::chunk_tables::{ChunkTableBudget, ChunkTableParams, DeviceReferences};
use crate::{BlockSink, BuildOptions, DataMap, Deduplication, Error, ErrorKind, Result};

/// TaskSource on their way at most: what a slow one can hold up.
const ITEMS_MAX: usize = 256;
/// Slots of a worker: one that it works on, and one that is ready when it is done.
const SLOTS: usize = 2;
/// What a known pcluster takes in the table of all.
const KNOWN_PCLUSTER_BYTES: u64 = 128;

/// Writes the data of all regular files of `tree` to `sink`. What is to lie in the packed inode is gathered
/// behind `packed_prefix`; [`write_packed`] writes it when all of it is there.
///
/// # Errors
/// Of all errors the first in the order of the files: a source that cannot be read or has changed, a sink
/// that refuses to write, options that contradict each other, memory that is too small.
pub(crate) fn write_data(
    tree: &Tree,
    options: &BuildOptions,
    packed_prefix: &[u8],
    sink: &mut dyn BlockSink,
    observer: &dyn BuildObserver,
) -> Result<(DataMap, PackedFile)> {
    let profiles = CompressionProfiles::new(options)?;
    let has_hints = !options.hints.all().is_empty();
    let mut map = map_device_files(tree, options, sink, observer)?;
    let (mut nodes, mut contents, mut compressions) = (Vec::new(), Vec::new(), Vec::new());
    files_in_order(tree, |path, node, content| {
        if map.files.get(node.index()).is_some_and(Option::is_some) {
            return;
        }
        nodes.push(node);
        contents.push(content.clone());
        if has_hints {
            compressions.push(profiles.choose(options, path));
        }
    });
    let plan = match StorageMode::of(options) {
        StorageMode::Compressed => plan((&contents, &compressions), &profiles, options, observer)?,
        // Chunks are compared by themselves; what goes to the packed inode, there.
        StorageMode::Chunks(_) | StorageMode::Flat { .. } | StorageMode::Packed => None,
    };
    let files =
        FileSet { contents: &contents, compressions: &compressions, pieces: plan.as_deref() };
    let packed = PackedFile::new(packed_prefix, options.fragment_sharing);
    let (data, packed) = write_files((files, packed), options, sink, observer)?;
    for (node, data) in nodes.into_iter().zip(data) {
        if let Some(place) = map.files.get_mut(node.index()) {
            *place = Some(data);
        }
    }
    Ok((map, packed))
}

/// The data of those files that lie on devices already.
fn map_device_files(
    tree: &Tree,
    options: &BuildOptions,
    sink: &mut dyn BlockSink,
    observer: &dyn BuildObserver,
) -> Result<DataMap> {
    let params = chunk_table_params(options, options.block_size.bytes().into());
    let mut references = DeviceReferences { devices: tree.devices(), params, sink };
    let mut room = ChunkTableBudget::new(options.memory_bytes);
    let mut map = DataMap { files: vec![None; tree.len()], packed: None };
    let mut referring = Vec::new();
    files_in_order(tree, |_, node, content| {
        if content.extents().is_some() {
            referring.push((node, content));
        }
    });
    for (node, content) in referring {
        let Some(parts) = content.extents() else { continue };
        if observer.should_stop() {
            return Err(Error::new(ErrorKind::Cancelled));
        }
        let data = references.refer(content, parts, &mut room);
        let data = data.map_err(|error| error.at(content.source().name()))?;
        observer.bytes_done(data.as_ref().map_or(0, |_| content.bytes()));
        if let Some(place) = map.files.get_mut(node.index()) {
            *place = data;
        }
    }
    Ok(map)
}

fn chunk_table_params(options: &BuildOptions, chunk_bytes: u64) -> ChunkTableParams {
    ChunkTableParams {
        block: options.block_size,
        chunk_bytes,
        force_indexes: options.force_chunk_indexes,
        device: u16::from(options.blob.is_some()),
    }
}

/// Writes the data of `files` in their order.
pub(crate) fn write_files(
    (files, packed): (FileSet<'_>, PackedFile),
    options: &BuildOptions,
    sink: &mut dyn BlockSink,
    observer: &dyn BuildObserver,
) -> Result<(Vec<FileData>, PackedFile)> {
    let modes = StorageModes {
        usual: StorageMode::of(options),
        uncompressed: StorageMode::uncompressed(options),
    };
    let pipeline = DataPipeline::new(CompressionProfiles::new(options)?, options)?;
    let params = commit_params(options, modes.uncompressed);
    let mut committer = pipeline.committer(params, sink, copied(files), packed);
    let splitter = TaskSplitter::new(files, modes, options.fragment_sharing)?;
    pipeline.run(splitter, &mut committer, observer)?;
    Ok(committer.into_files())
}

/// Writes the data of the packed inode.
///
/// # Errors
/// As [`write_data`].
pub(crate) fn write_packed(
    content: &Content,
    options: &BuildOptions,
    sink: &mut dyn BlockSink,
    observer: &dyn BuildObserver,
) -> Result<InternalFile> {
    let profiles = CompressionProfiles::new(options)?.of_packed(options);
    let whole = std::slice::from_ref(content);
    // Ends of files are compared as they are packed; whole files may have equal parts.
    let plan = match StorageMode::of(options) {
        StorageMode::Packed => plan((whole, &[]), &profiles, options, observer)?,
        _ => None,
    };
    let files = FileSet { contents: whole, compressions: &[], pieces: plan.as_deref() };
    let modes =
        StorageModes { usual: StorageMode::Compressed, uncompressed: StorageMode::Compressed };
    let pipeline = DataPipeline::new(profiles, options)?;
    let params = commit_params(options, modes.uncompressed);
    let nothing = PackedFile::new(&[], options.fragment_sharing);
    let committer = pipeline.committer(params, sink, copied(files), nothing);
    let splitter = TaskSplitter::new(files, modes, options.fragment_sharing)?;
    pipeline.write_special(content.bytes(), splitter, committer, observer)
}

/// Writes the data of the metabox, which has `bytes` bytes: `next` makes so many further ones as it is asked
/// for.
///
/// # Errors
/// As [`write_data`], and those of `next`.
pub(crate) fn write_metabox(
    (bytes, next): (u64, ByteGenerator<'_>),
    options: &BuildOptions,
    sink: &mut dyn BlockSink,
    observer: &dyn BuildObserver,
) -> Result<InternalFile> {
    let profiles = CompressionProfiles::new(options)?.of_metabox(options)?;
    let stream = GeneratedFile::new("the metabox", bytes, next, profiles.count() > 0);
    let pipeline = DataPipeline::new(profiles, options)?;
    let params = commit_params(options, StorageMode::Compressed);
    let nothing = PackedFile::new(&[], options.fragment_sharing);
    let committer = pipeline.committer(params, sink, Vec::new(), nothing);
    pipeline.write_special(bytes, stream, committer, observer)
}

/// Of files that are stored in this way where they are not compressed.
fn commit_params(options: &BuildOptions, uncompressed: StorageMode) -> CommitParams {
    let table = match uncompressed {
        StorageMode::Chunks(chunk_bytes) => Some(chunk_table_params(options, chunk_bytes as u64)),
        _ => None,
    };
    let known = options.memory_bytes / 8 / KNOWN_PCLUSTER_BYTES;
    let block = u64::from(options.block_size.bytes());
    let alignment = match options.data_alignment_blocks {
        0 | 1 => 0,
        blocks => u64::from(blocks) * block,
    };
    let known_pclusters_max = usize::try_from(known).unwrap_or(usize::MAX);
    let memory_bytes = options.memory_bytes;
    CommitParams { block, table, memory_bytes, alignment, known_pclusters_max }
}

/// Where `files` hold the same bytes, if that is asked for. Only files of the same profile share theirs: an index
/// names two algorithms at most, and pclusters of one size go together best.
fn plan(
    (files, compressions): (&[Content], &[FileCompression]),
    profiles: &CompressionProfiles,
    options: &BuildOptions,
    observer: &dyn BuildObserver,
) -> Result<Option<Box<dyn FilePieces>>> {
    if options.deduplication == Deduplication::Off || options.algorithms.is_none() {
        return Ok(None);
    }
    observer.phase(BuildPhase::Deduplicate);
    let find = |files: &[&Content], profile| {
        // What is on its way to the image takes its share later, when the search has given back its own.
        let settings = DedupeOptions {
            block_bytes: options.block_size.bytes(),
            pcluster_bytes: u32::try_from(profiles.pcluster(profile)).unwrap_or(u32::MAX),
            jobs: options.jobs,
            memory_bytes: options.memory_bytes / 2,
        };
        DedupePlan::find(files, &settings, &|| observer.should_stop())
    };
    let plan: Box<dyn FilePieces> = if compressions.is_empty() {
        Box::new(find(&files.iter().collect::<Vec<_>>(), 0)?)
    } else {
        let mut all = DedupePlanByProfile::without_copies(files);
        for profile in 0..profiles.count() {
            let is_it =
                |file: &usize| compressions.get(*file) == Some(&FileCompression::Profile(profile));
            let chosen: Vec<usize> = (0..files.len()).filter(is_it).collect();
            let of_recipe: Vec<&Content> =
                chosen.iter().filter_map(|file| files.get(*file)).collect();
            all.take_over(&find(&of_recipe, profile)?, &chosen);
        }
        Box::new(all)
    };
    observer.phase(BuildPhase::Data);
    Ok(Some(plan))
}

impl FilePieces for DedupePlan {
    fn pieces(&self, file: usize) -> &[DedupePiece] {
        self.pieces(file)
    }
}

/// The plans of files of several profiles, put together.
struct DedupePlanByProfile(Vec<Vec<DedupePiece>>);

impl DedupePlanByProfile {
    fn without_copies(files: &[Content]) -> Self {
        let own = |file: &Content| match file.bytes() {
            0 => Vec::new(),
            bytes => vec![DedupePiece::Own { bytes }],
        };
        Self(files.iter().map(own).collect())
    }

    /// Takes over the plan for some of the files: those with the numbers `chosen`.
    fn take_over(&mut self, plan: &DedupePlan, chosen: &[usize]) {
        for (number, file) in chosen.iter().enumerate() {
            let pieces = plan.pieces(number).iter().map(|piece| match *piece {
                DedupePiece::Copy { of, offset, bytes } => {
                    let of = chosen.get(of).copied().unwrap_or(usize::MAX);
                    DedupePiece::Copy { of, offset, bytes }
                }
                own @ DedupePiece::Own { .. } => own,
            });
            if let Some(place) = self.0.get_mut(*file) {
                *place = pieces.collect();
            }
        }
    }
}

impl FilePieces for DedupePlanByProfile {
    fn pieces(&self, file: usize) -> &[DedupePiece] {
        self.0.get(file).map_or(&[], Vec::as_slice)
    }
}

/// By file: whether others copy from it.
fn copied(files: FileSet<'_>) -> Vec<bool> {
    let mut copied = vec![false; files.pieces.map_or(0, |_| files.contents.len())];
    for file in 0..copied.len() {
        for piece in files.pieces.map_or(&[][..], |pieces| pieces.pieces(file)) {
            if let DedupePiece::Copy { of, .. } = piece
                && let Some(copied) = copied.get_mut(*of)
            {
                *copied = true;
            }
        }
    }
    copied
}

/// Passes on who is asked, and not what is told: the packed inode's bytes were told with their files, and
/// nobody waits for those of the metabox.
struct CancelOnlyObserver<'w>(&'w dyn BuildObserver);

impl BuildObserver for CancelOnlyObserver<'_> {
    fn should_stop(&self) -> bool {
        self.0.should_stop()
    }
}

/// The workers, and how much may be on its way to them.
#[derive(Debug)]
struct DataPipeline {
    profiles: CompressionProfiles,
    workers: usize,
    /// Workers that were asked for are used, however few CPUs there are.
    active_workers: ActiveWorkers,
    in_flight_bytes: u64,
}

impl DataPipeline {
    /// As many workers as are asked for and fit into the memory.
    fn new(profiles: CompressionProfiles, options: &BuildOptions) -> Result<Self> {
        let each = SEGMENT_BYTES + profiles.memory_bytes()?;
        // One item that is worked on, and one that waits to be committed.
        let in_flight_min = 2 * (SEGMENT_BYTES + profiles.params.block as u64);
        let least = each + in_flight_min;
        let Some(spare) = options.memory_bytes.checked_sub(in_flight_min).filter(|&m| m >= each)
        else {
            let what = format!("{} bytes of memory: {least} are needed", options.memory_bytes);
            return Err(Error::new(ErrorKind::InvalidOptions(what)));
        };
        let asked = options.jobs.unwrap_or_else(|| AvailableCpus::read().parallelism()).max(1);
        let affordable = usize::try_from(spare / each).unwrap_or(usize::MAX);
        let workers = asked.min(affordable);
        let active_workers =
            if options.jobs.is_some() { ActiveWorkers::All } else { ActiveWorkers::OnePerCpu };
        // A segment for each worker, and half as many that wait: to be worked on, or to be committed, when each is 8 MiB
        // where the data is incompressible.
        let useful = (workers + workers.div_ceil(2) + 1) as u64 * SEGMENT_BYTES;
        let in_flight_bytes = (options.memory_bytes - workers as u64 * each).min(useful);
        Ok(Self { profiles, workers, active_workers, in_flight_bytes })
    }

    /// What commits the work of this pipeline, and gathers more for `packed`.
    fn committer<'s>(
        &self,
        params: CommitParams,
        sink: &'s mut dyn BlockSink,
        is_copied: Vec<bool>,
        packed: PackedFile,
    ) -> Committer<'s> {
        Committer::new(params, sink, DataWorker::new(self.profiles.clone()), is_copied, packed)
    }

    /// Writes the one file of `bytes` bytes that `items` make.
    fn write_special(
        &self,
        bytes: u64,
        items: impl TaskSource,
        mut committer: Committer<'_>,
        observer: &dyn BuildObserver,
    ) -> Result<InternalFile> {
        self.run(items, &mut committer, &CancelOnlyObserver(observer))?;
        let data = committer.into_files().0.pop();
        let data =
            data.ok_or_else(|| Error::new(ErrorKind::Internal("a file that is not there")))?;
        Ok(InternalFile { bytes, data })
    }

    /// Does all that `items` hand out.
    fn run(
        &self,
        mut items: impl TaskSource,
        committer: &mut Committer<'_>,
        observer: &dyn BuildObserver,
    ) -> Result<()> {
        let window = RefCell::new(ReorderBuffer::new(self.workers + SLOTS));
        let on_done = |item: &mut TaskBatch, outcome: RequestOutcome| {
            window.borrow_mut().arrive(std::mem::take(item), outcome == RequestOutcome::Done);
        };
        let profiles = self.profiles.clone();
        let make = move || DataWorker::for_queue(profiles.clone());
        let queue = WorkQueue::new(&self.settings(), TaskBatch::default, make, on_done);
        let mut queue = queue.map_err(|error| Error::new(ErrorKind::Workers(error)))?;
        let mut next = next_item(&mut items, &window)?;
        loop {
            queue.collect();
            commit_ready(&window, committer, observer)?;
            let (on_way, bytes) = (window.borrow().len(), window.borrow().bytes());
            match next.take() {
                Some(mut item) if self.may_send(&item, on_way, bytes) => {
                    let mut slot = queue.reserve();
                    window.borrow_mut().send(&mut item);
                    *slot.request() = item;
                    slot.submit();
                    next = next_item(&mut items, &window)?;
                }
                None if on_way == 0 => return Ok(()),
                waiting => {
                    next = waiting;
                    queue.wait_for_one();
                }
            }
        }
    }

    fn may_send(&self, item: &TaskBatch, on_way: usize, bytes: u64) -> bool {
        on_way == 0 || on_way < ITEMS_MAX && bytes + item.bytes <= self.in_flight_bytes
    }

    fn settings(&self) -> WorkQueueSettings {
        WorkQueueSettings {
            name: "build".to_owned(),
            workers: Some(self.workers),
            slots: Some(SLOTS),
            dispatch_policy: DispatchPolicy::RoundRobin,
            active_workers: self.active_workers,
            ..WorkQueueSettings::default()
        }
    }
}

/// The next item, if there is one.
fn next_item(
    items: &mut impl TaskSource,
    window: &RefCell<ReorderBuffer>,
) -> Result<Option<TaskBatch>> {
    let mut item = window.borrow_mut().empty_item();
    let Some(bytes) = items.next_item(&mut item.tasks)? else { return Ok(None) };
    item.bytes = bytes;
    Ok(Some(item))
}

/// Commits the items that are next.
fn commit_ready(
    window: &RefCell<ReorderBuffer>,
    committer: &mut Committer<'_>,
    observer: &dyn BuildObserver,
) -> Result<()> {
    loop {
        if observer.should_stop() {
            return Err(Error::new(ErrorKind::Cancelled));
        }
        if window.borrow().is_broken() {
            return Err(Error::new(ErrorKind::Internal("a worker panicked")));
        }
        let Some(mut item) = window.borrow_mut().take_next() else { return Ok(()) };
        committer.commit(&item.tasks, &item.output)?;
        if let Some(error) = item.error.take() {
            return Err(error);
        }
        observer.bytes_done(item.tasks.iter().map(|task| task.bytes).sum());
        window.borrow_mut().recycle(item);
    }
}
