//! Commits the results of tasks in the order of the files, on one thread: appends bytes to the image, shares equal
//! pclusters and chunks, resolves copies, and joins the ranges of each file, of which its index must be able to hold the
//! extents.

use std::collections::{HashMap, HashSet};

use ferrofs_ondisk::compression::AlgorithmId;
use ferrofs_workers::memory::Charge;

use crate::compress::{BatchOutput, DataWorker, EncodedRange, PlacedExtent, StoredForm};
use crate::context::{BuildContext, DataTables};
use crate::data_map::{
    CompressedData, DataExtent, DataMap, DataSinks, FileData, InlineExtent, PackedFragment,
};
use crate::digest::Sha256Digest;
use crate::packed_file::PackedFile;
use crate::spill::SpillStore;
use crate::split::{RangeTask, SEGMENT_BYTES, StorageMode, TaskKind};
use crate::write_data::chunk_tables::{ChunkStore, ChunkTableBudget, ChunkTableParams, table};
use crate::write_data::copies::{CopySource, CopySources, DecodedSource, ResolvedCopy};
use crate::{BlockSink, Error, ErrorKind, Result};

/// Bytes of a block in an index, at least.
pub(crate) const INDEX_ENTRY_BYTES: u64 = 2;
/// How many extents of a copy are tried, one after another, to give what lies before it an end that an
/// index can hold; then all of the copy is encoded anew.
const REENCODE_ATTEMPTS_MAX: usize = 4;

/// Parameters of all files of a pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommitParams {
    /// Bytes of a block.
    pub(crate) block: u64,
    /// How chunks are indexed, for chunk-based files.
    pub(crate) table: Option<ChunkTableParams>,
    /// What the build may take, for messages.
    pub(crate) memory_bytes: u64,
    /// The data of each file starts at a multiple of so many bytes; 0 stands for any place.
    pub(crate) alignment: u64,
}

impl CommitParams {
    /// Of files that are stored in the mode `uncompressed` where they are not compressed.
    pub(crate) fn new(context: &BuildContext<'_>, uncompressed: StorageMode) -> Self {
        let options = context.options;
        let table = match uncompressed {
            StorageMode::Chunks(chunk_bytes) => {
                Some(ChunkTableParams::new(options, chunk_bytes as u64))
            }
            _ => None,
        };
        let block = u64::from(options.block_size.bytes());
        let alignment = match options.data_alignment_blocks {
            0 | 1 => 0,
            blocks => u64::from(blocks) * block,
        };
        Self { block, table, memory_bytes: context.memory.limit_bytes(), alignment }
    }
}

/// The results of a pass so far.
pub(crate) struct Committed {
    /// The data of all files, in their order.
    pub(crate) files: DataMap,
    /// What is to lie in the packed inode.
    pub(crate) packed: PackedFile,
}

/// What a pass has committed.
pub(crate) struct CommittedFiles {
    pub(crate) committed: Committed,
    /// The charge for the chunk tables of the files.
    pub(crate) chunk_tables: Charge,
    /// The charge for the parts of the packed inode.
    pub(crate) packed_parts: Charge,
}

/// Commits tasks in order.
pub(crate) struct Committer<'s> {
    params: CommitParams,
    sink: AlignedSink<'s>,
    /// For chunks, if they do not go to `sink`.
    blob: Option<AlignedSink<'s>>,
    /// Encodes ranges again whose extents no index can hold.
    reencoder: DataWorker,
    scratch: BatchOutput,
    current_file: FileBuilder,
    /// The files that others copy from.
    copied: HashSet<usize>,
    /// Those of them that were copied from last.
    sources: CopySources,
    /// For `sources`, as long as they are there.
    _sources: Charge,
    chunks: ChunkStore,
    /// For `chunks`, as long as they are there.
    _known_chunks: Charge,
    chunk_table_budget: ChunkTableBudget,
    packed_parts: Charge,
    index: Charge,
    known_pclusters_max: usize,
    /// For `pclusters`, as long as they are there.
    _known_pclusters: Charge,
    pclusters: HashMap<(Sha256Digest, Option<AlgorithmId>), u64>,
    committed: Committed,
}

impl<'s> Committer<'s> {
    /// Commits to `sinks`; `reencoder` encodes ranges again. Parts of the packed inode are added to `packed`.
    pub(crate) fn new(
        params: CommitParams,
        store: &SpillStore,
        tables: DataTables,
        sinks: DataSinks<'s>,
        reencoder: DataWorker,
        copied: HashSet<usize>,
        committed: Committed,
    ) -> Self {
        let known_pclusters_max = tables.known_pclusters_max();
        let chunks = ChunkStore::new(store, tables.known_chunks_max());
        Self {
            params,
            sink: AlignedSink::new(sinks.image, params.alignment),
            blob: sinks.blob.map(|blob| AlignedSink::new(blob, params.alignment)),
            reencoder,
            scratch: BatchOutput::default(),
            current_file: FileBuilder::default(),
            copied,
            sources: CopySources::new(tables.copy_sources.bytes()),
            _sources: tables.copy_sources,
            chunks,
            _known_chunks: tables.known_chunks,
            chunk_table_budget: ChunkTableBudget::new(tables.chunk_tables, params.memory_bytes),
            packed_parts: tables.packed_parts,
            index: tables.index,
            known_pclusters_max,
            _known_pclusters: tables.known_pclusters,
            pclusters: HashMap::new(),
            committed,
        }
    }

    /// Commits all tasks of a batch.
    pub(crate) fn commit(&mut self, tasks: &[RangeTask], output: &BatchOutput) -> Result<()> {
        for (task, outcome) in tasks.iter().zip(&output.results) {
            let bytes = output.bytes.get(outcome.bytes.clone()).unwrap_or_default();
            let committed = match &outcome.form {
                StoredForm::Unread => self.commit_unread(task),
                StoredForm::Encoded(encoded) => {
                    self.commit_encoded(task, encoded, &output.extents, bytes)
                }
                StoredForm::Flat { tail } => self.commit_flat(task, bytes, tail),
                StoredForm::Chunks(digests) => self.commit_chunks(task, digests, bytes),
                StoredForm::Hashed(digest) => self.pack_file(task, Some(*digest)),
            };
            let committed = committed.and_then(|()| self.close(task));
            committed.map_err(|error| error.at(task.content.source().name()))?;
        }
        Ok(())
    }

    /// What was committed.
    pub(crate) fn into_committed(self) -> CommittedFiles {
        CommittedFiles {
            committed: self.committed,
            chunk_tables: self.chunk_table_budget.into_used(),
            packed_parts: self.packed_parts,
        }
    }

    fn commit_unread(&mut self, task: &RangeTask) -> Result<()> {
        match (task.kind, self.params.table) {
            (TaskKind::Pack, _) => self.pack_file(task, None),
            (TaskKind::Copy { of, offset }, _) => self.commit_copy(task, of, offset),
            (_, Some(params)) => {
                self.current_file.is_chunked = true;
                let more =
                    self.take_chunks(task, task.bytes.div_ceil(params.chunk_bytes), params)?;
                let chunks = &mut self.current_file.chunks;
                chunks.resize(chunks.len().saturating_add(more), None);
                Ok(())
            }
            (_, None) => {
                self.current_file.is_hole = true;
                Ok(())
            }
        }
    }

    /// Takes entries for the chunks of a range.
    fn take_chunks(
        &mut self,
        task: &RangeTask,
        entries: u64,
        params: ChunkTableParams,
    ) -> Result<usize> {
        let of_file = task.content.bytes().div_ceil(params.chunk_bytes);
        self.chunk_table_budget.reserve(entries, &task.content, of_file)
    }

    fn pack_file(&mut self, task: &RangeTask, digest: Option<Sha256Digest>) -> Result<()> {
        let offset = self.committed.packed.add_file(&task.content, digest)?;
        self.current_file.fragment = Some(PackedFragment { bytes: task.bytes, offset });
        Ok(())
    }

    fn commit_flat(&mut self, task: &RangeTask, bytes: &[u8], tail: &[u8]) -> Result<()> {
        let current_file = &mut self.current_file;
        if !bytes.is_empty() {
            let address = self.sink.append(bytes)?;
            let end = address.saturating_add(bytes.len() as u64);
            current_file.flat = match current_file.flat {
                None => Some((address, end)),
                Some((start, next)) if next == address => Some((start, end)),
                Some(_) => {
                    return Err(internal_error("the parts of a flat file do not lie side by side"));
                }
            };
        }
        if task.ends_file() {
            current_file.flat_tail = Some(tail.into());
        }
        Ok(())
    }

    fn commit_chunks(
        &mut self,
        task: &RangeTask,
        chunks: &[Option<Sha256Digest>],
        bytes: &[u8],
    ) -> Result<()> {
        let params = self.params.table.ok_or_else(|| internal_error("chunks without a table"))?;
        self.take_chunks(task, chunks.len() as u64, params)?;
        self.current_file.is_chunked = true;
        let (mut left, mut rest) = (task.bytes, bytes);
        for &digest in chunks {
            let length = left.min(params.chunk_bytes);
            left -= length;
            let Some(digest) = digest else {
                self.current_file.chunks.push(None);
                continue;
            };
            let whole = usize::try_from(length.next_multiple_of(self.params.block)).ok();
            let split = whole.and_then(|whole| rest.split_at_checked(whole));
            let (chunk, behind) = split.ok_or_else(|| internal_error("a chunk without bytes"))?;
            rest = behind;
            let sink = self.blob.as_mut().unwrap_or(&mut self.sink);
            let place = self.chunks.place((digest, length), chunk, params.block, sink)?;
            self.current_file.chunks.push(Some(place));
        }
        Ok(())
    }

    fn commit_encoded(
        &mut self,
        task: &RangeTask,
        encoded: &EncodedRange,
        extents: &[PlacedExtent],
        bytes: &[u8],
    ) -> Result<()> {
        if self.current_file.reencode_from.is_some() {
            return self.reencode_until(task, task.end());
        }
        if task.start == 0 {
            self.check_index(task.content.bytes())?;
        }
        let extents = extents.get(encoded.extents.clone()).unwrap_or_default();
        self.place(task, extents, encoded, bytes)
    }

    /// The index of a file is made as a whole, of 2 bytes a block at least.
    fn check_index(&self, file_bytes: u64) -> Result<()> {
        let Self { params: CommitParams { block, memory_bytes, .. }, .. } = self;
        if (file_bytes / block).saturating_mul(INDEX_ENTRY_BYTES) <= self.index.bytes() {
            return Ok(());
        }
        let what = format!(
            "a compressed file of {file_bytes} bytes: the {memory_bytes} bytes of memory have no room for \
             its index; use larger blocks or more memory"
        );
        Err(Error::new(ErrorKind::Unsupported(what)))
    }

    /// Gives a range its place, as far as an index can hold its extents; what is behind them is to be
    /// encoded again, with what follows.
    fn place(
        &mut self,
        task: &RangeTask,
        extents: &[PlacedExtent],
        encoded: &EncodedRange,
        bytes: &[u8],
    ) -> Result<()> {
        let ends = task.ends_file() && encoded.inline.is_none() && encoded.tail.is_none();
        let count = representable_count(extents, self.current_file.at, self.params.block, ends);
        let held = extents.get(..count).unwrap_or_default();
        self.append(task, held, &encoded.digests, bytes)?;
        if count < extents.len() {
            self.current_file.reencode_from = Some(self.current_file.at);
            return Ok(());
        }
        self.current_file.inline.clone_from(&encoded.inline);
        if let Some(tail) = encoded.tail {
            let offset = self.committed.packed.add_tail(&task.content, tail)?;
            self.current_file.fragment = Some(PackedFragment { bytes: tail.bytes, offset });
        }
        Ok(())
    }

    fn append(
        &mut self,
        task: &RangeTask,
        extents: &[PlacedExtent],
        digests: &[Sha256Digest],
        bytes: &[u8],
    ) -> Result<()> {
        if self.is_worth_sharing(task, extents, digests) {
            return self.append_or_share(extents, digests, bytes);
        }
        let total: usize = extents.iter().map(|extent| extent.pcluster_bytes as usize).sum();
        let own = bytes.get(..total).ok_or_else(|| internal_error("extents without bytes"))?;
        let mut address = if own.is_empty() { 0 } else { self.sink.append(own)? };
        for (index, extent) in extents.iter().enumerate() {
            self.remember_pcluster(digests.get(index), extent, address);
            self.current_file.push(extent_at(extent, address));
            address += u64::from(extent.pcluster_bytes);
        }
        Ok(())
    }

    fn append_or_share(
        &mut self,
        extents: &[PlacedExtent],
        digests: &[Sha256Digest],
        bytes: &[u8],
    ) -> Result<()> {
        let mut rest = bytes;
        for (extent, digest) in extents.iter().zip(digests) {
            let split = rest.split_at_checked(extent.pcluster_bytes as usize);
            let (own, behind) = split.ok_or_else(|| internal_error("an extent without bytes"))?;
            rest = behind;
            let known = self.pclusters.get(&(*digest, extent.algorithm)).copied();
            let address = match known {
                Some(address) => address,
                None => self.sink.append(own)?,
            };
            self.current_file.is_shared |= known.is_some();
            self.remember_pcluster(Some(digest), extent, address);
            self.current_file.push(extent_at(extent, address));
        }
        Ok(())
    }

    /// Pclusters at the places of others make the file's index a full one, of 8 bytes a block in place
    /// of 2, which equal pclusters must be worth.
    fn is_worth_sharing(
        &self,
        task: &RangeTask,
        extents: &[PlacedExtent],
        digests: &[Sha256Digest],
    ) -> bool {
        let known = |(extent, digest): (&PlacedExtent, &Sha256Digest)| {
            let known = self.pclusters.contains_key(&(*digest, extent.algorithm));
            if known { u64::from(extent.pcluster_bytes) } else { 0 }
        };
        let saved: u64 = extents.iter().zip(digests).map(known).sum();
        let cost = 6 * task.content.bytes().div_ceil(self.params.block);
        saved > 0 && (self.current_file.is_shared || saved > cost)
    }

    fn remember_pcluster(
        &mut self,
        digest: Option<&Sha256Digest>,
        extent: &PlacedExtent,
        address: u64,
    ) {
        if let Some(digest) = digest
            && self.pclusters.len() < self.known_pclusters_max
        {
            self.pclusters.entry((*digest, extent.algorithm)).or_insert(address);
        }
    }

    fn commit_copy(&mut self, task: &RangeTask, of: usize, offset: u64) -> Result<()> {
        let ResolvedCopy { extents, inline, fragment } = self.resolve(task, of, offset);
        let mut extents = extents.into_iter();
        if self.current_file.reencode_from.is_some() {
            let mut end = task.start;
            for extent in extents.by_ref().take(REENCODE_ATTEMPTS_MAX) {
                end += extent.bytes;
                self.reencode_until(task, end)?;
                if self.current_file.reencode_from.is_none() {
                    break;
                }
            }
        }
        let has_end = inline.is_some() || fragment.is_some();
        if self.current_file.reencode_from.is_none() {
            self.push_copied(task, extents, has_end);
        }
        if self.current_file.reencode_from.is_none() && self.current_file.at < task.end() {
            if has_end {
                self.current_file.at = task.end();
                (self.current_file.inline, self.current_file.fragment) = (inline, fragment);
                return Ok(());
            }
            self.current_file.reencode_from = Some(self.current_file.at);
        }
        self.reencode_until(task, task.end())
    }

    fn push_copied(
        &mut self,
        task: &RangeTask,
        extents: impl Iterator<Item = DataExtent>,
        has_end: bool,
    ) {
        for extent in extents {
            let at = self.current_file.at;
            let is_last = task.ends_file() && !has_end && at + extent.bytes == task.end();
            let lengths = (extent.bytes, u64::from(extent.pcluster_bytes));
            if !is_representable(at, lengths, self.params.block, is_last) {
                self.current_file.reencode_from = Some(at);
                return;
            }
            self.current_file.is_shared = true;
            self.current_file.push(extent);
            self.current_file.is_end_copied = true;
        }
    }

    fn resolve(&mut self, task: &RangeTask, of: usize, offset: u64) -> ResolvedCopy {
        let FileBuilder { extents, starts, .. } = &self.current_file;
        let source = if of == task.file {
            CopySource { extents, starts, inline: None, fragment: None }
        } else {
            let files = &self.committed.files;
            let Some(DecodedSource { data, starts }) = self.sources.get(of, || files.get(of))
            else {
                return ResolvedCopy::default();
            };
            let (inline, fragment) = (data.inline.as_ref(), data.fragment);
            CopySource { extents: &data.extents, starts, inline, fragment }
        };
        source.resolve(offset, task.bytes, task.ends_file())
    }

    /// Encodes what has no place yet, up to `end`, and gives it one as far as an index can hold it.
    fn reencode_until(&mut self, task: &RangeTask, end: u64) -> Result<()> {
        while let Some(start) = self.current_file.reencode_from
            && start < end
        {
            let cut = end.min((start / SEGMENT_BYTES + 1).saturating_mul(SEGMENT_BYTES));
            let part = RangeTask { start, bytes: cut - start, ..task.clone() };
            let mut output = std::mem::take(&mut self.scratch);
            output.clear();
            self.reencoder.reencode(&part, &mut output)?;
            self.current_file.reencode_from = None;
            let Some(StoredForm::Encoded(encoded)) =
                output.results.first().map(|result| &result.form)
            else {
                return Err(internal_error("a range that was encoded again and is not encoded"));
            };
            self.place(&part, &output.extents, encoded, &output.bytes)?;
            self.scratch = output;
            if cut == end {
                break;
            }
            // A cut at a multiple of blocks leaves nothing behind.
            self.current_file.reencode_from = Some(self.current_file.at);
        }
        Ok(())
    }

    /// After the last range of a file.
    fn close(&mut self, task: &RangeTask) -> Result<()> {
        if !task.ends_file() {
            return Ok(());
        }
        self.sink.begin_file();
        self.blob.iter_mut().for_each(AlignedSink::begin_file);
        let mut current_file = std::mem::take(&mut self.current_file);
        let is_copied = self.copied.contains(&task.file);
        let data = match self.params.table {
            Some(params) if current_file.is_chunked => {
                let chunks = std::mem::take(&mut current_file.chunks);
                let before = chunks.len();
                let data = table(chunks, &params)?;
                if let FileData::Chunks { places, .. } = &data {
                    self.chunk_table_budget.release(before.saturating_sub(places.len()));
                    self.chunk_table_budget.record_table(&task.content, places.len());
                }
                data
            }
            _ => current_file.finish(self.params.block, is_copied),
        };
        if let FileData::Compressed(compressed) = &data
            && compressed.bytes() != Some(task.content.bytes())
        {
            return Err(internal_error("the extents of a file do not add up to it"));
        }
        self.committed.files.push(&data);
        Ok(())
    }
}

/// A file of which some ranges are committed.
#[derive(Debug, Default)]
struct FileBuilder {
    /// Its extents so far.
    extents: Vec<DataExtent>,
    /// Where each of them starts.
    starts: Vec<u64>,
    /// Where the next range starts.
    at: u64,
    /// Its end, behind its inode.
    inline: Option<InlineExtent>,
    /// Its end, in the packed inode.
    fragment: Option<PackedFragment>,
    /// The bytes from here on up to `at` have no place yet, since their encoding ends where no
    /// extent can end.
    reencode_from: Option<u64>,
    /// An extent lies at the place of another one, so that the index is a long one.
    is_shared: bool,
    /// The last extent is a copy, so its block may hold other bytes behind it.
    is_end_copied: bool,
    /// Where whole blocks of a flat file lie: the first byte, and the one behind the last.
    flat: Option<(u64, u64)>,
    /// The end of a flat file.
    flat_tail: Option<Box<[u8]>>,
    /// It is nothing but a hole.
    is_hole: bool,
    /// It is kept in chunks.
    is_chunked: bool,
    /// The blocks of its chunks.
    chunks: Vec<Option<u64>>,
}

impl FileBuilder {
    /// Adds an extent at the end.
    fn push(&mut self, extent: DataExtent) {
        self.starts.push(self.at);
        self.at += extent.bytes;
        self.extents.push(extent);
        self.is_end_copied = false;
    }

    /// The data of the file, if all of it is compressed or flat.
    fn finish(&mut self, block: u64, must_have_extents: bool) -> FileData {
        if self.is_hole {
            return FileData::Hole;
        }
        if self.flat.is_some() || self.flat_tail.is_some() {
            let start_block = self.flat.map(|(start, _)| start / block);
            return FileData::Flat { start_block, tail: self.flat_tail.take().unwrap_or_default() };
        }
        if !must_have_extents && let Some(start) = self.plain_run(block) {
            return FileData::Flat { start_block: Some(start / block), tail: Box::default() };
        }
        FileData::Compressed(CompressedData {
            extents: std::mem::take(&mut self.extents),
            inline: self.inline.take(),
            fragment: self.fragment.take(),
        })
    }

    /// Where the file starts, if it lies there as it is, block by block.
    fn plain_run(&self, block: u64) -> Option<u64> {
        let first = self.extents.first()?;
        if self.inline.is_some() || self.fragment.is_some() {
            return None;
        }
        let mut address = first.address;
        let (last, others) = self.extents.split_last()?;
        // A reader of a flat file may map its last block, of which the rest must be zeros.
        if self.is_end_copied && last.bytes < block {
            return None;
        }
        for extent in others {
            if extent.algorithm.is_some() || extent.bytes != block || extent.address != address {
                return None;
            }
            address += block;
        }
        let ends = last.algorithm.is_none() && last.address == address;
        ends.then_some(first.address)
    }
}

/// Whether an index can hold an extent from `start` on: each needs an lcluster boundary of its own, and
/// the length of a pcluster of several blocks a second one (docs/format.md F27, F64). The last extent of a
/// file needs the first one not, but the second: a copy may be shorter than its pcluster.
pub(super) fn is_representable(start: u64, extent: (u64, u64), block: u64, is_last: bool) -> bool {
    let (bytes, pcluster_bytes) = extent;
    let boundaries = (start + bytes) / block - start / block;
    match pcluster_bytes > block {
        true => boundaries >= 2,
        false => is_last || boundaries >= 1,
    }
}

/// How many of the extents from `start` on an index can hold, from the first on.
fn representable_count(extents: &[PlacedExtent], start: u64, block: u64, is_end: bool) -> usize {
    let mut at = start;
    for (index, extent) in extents.iter().enumerate() {
        let is_last = is_end && index + 1 == extents.len();
        let (bytes, pcluster) = (u64::from(extent.bytes), u64::from(extent.pcluster_bytes));
        if !is_representable(at, (bytes, pcluster), block, is_last) {
            return index;
        }
        at += bytes;
    }
    extents.len()
}

fn extent_at(extent: &PlacedExtent, address: u64) -> DataExtent {
    DataExtent {
        bytes: u64::from(extent.bytes),
        algorithm: extent.algorithm,
        address,
        pcluster_bytes: extent.pcluster_bytes,
        partial: false,
    }
}

fn internal_error(what: &'static str) -> Error {
    Error::new(ErrorKind::Internal(what))
}

/// What fills up the front of a file's data.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Appends data to a sink, behind zeros where a file begins.
struct AlignedSink<'s> {
    sink: &'s mut dyn BlockSink,
    /// Bytes: whole blocks. 0 stands for any place.
    unit: u64,
    /// The file has no data so far.
    is_due: bool,
}

impl<'s> AlignedSink<'s> {
    /// For data that starts at multiples of `unit` bytes, which are whole blocks; 0 stands for any place.
    fn new(sink: &'s mut dyn BlockSink, unit: u64) -> Self {
        Self { sink, unit, is_due: true }
    }

    /// What comes next is of another file.
    fn begin_file(&mut self) {
        self.is_due = true;
    }

    fn align(&mut self) -> Result<()> {
        let at = self.sink.append(&[])?;
        let mut missing = at.next_multiple_of(self.unit) - at;
        while missing > 0 {
            let count = usize::try_from(missing).unwrap_or(usize::MAX);
            let zeros = ZEROS.get(..count).unwrap_or(&ZEROS);
            self.sink.append(zeros)?;
            missing -= zeros.len() as u64;
        }
        Ok(())
    }
}

impl BlockSink for AlignedSink<'_> {
    fn append(&mut self, bytes: &[u8]) -> Result<u64> {
        if std::mem::take(&mut self.is_due) && self.unit > 0 {
            self.align()?;
        }
        self.sink.append(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct CountingSink(u64);

    impl BlockSink for CountingSink {
        fn append(&mut self, bytes: &[u8]) -> Result<u64> {
            let address = self.0;
            self.0 += (bytes.len() as u64).next_multiple_of(512);
            Ok(address)
        }
    }

    #[test]
    fn only_the_first_data_of_a_file_is_moved() {
        let mut image = CountingSink(512);
        let mut sink = AlignedSink::new(&mut image, 3 << 16);
        assert_eq!(sink.append(&[1; 100]).unwrap(), 3 << 16);
        assert_eq!(sink.append(&[1; 100]).unwrap(), (3 << 16) + 512);
        sink.begin_file();
        sink.begin_file();
        assert_eq!(sink.append(&[1; 100]).unwrap(), 6 << 16);
        let mut image = CountingSink(512);
        assert_eq!(AlignedSink::new(&mut image, 0).append(&[1; 100]).unwrap(), 512);
    }

    #[test]
    fn an_extent_within_one_lcluster_can_only_be_the_last() {
        assert!(!is_representable(100, (3000, 4096), 4096, false));
        assert!(is_representable(100, (3000, 4096), 4096, true));
        assert!(is_representable(100, (3996, 4096), 4096, false));
        for is_last in [false, true] {
            assert!(!is_representable(100, (4096, 8192), 4096, is_last));
            assert!(is_representable(100, (8192, 8192), 4096, is_last));
        }
        let short = PlacedExtent { bytes: 3000, algorithm: None, pcluster_bytes: 4096 };
        assert_eq!(representable_count(&[short], 100, 4096, true), 1);
        assert_eq!(representable_count(&[short], 100, 4096, false), 0);
        assert_eq!(representable_count(&[short, short], 100, 4096, true), 0);
        assert_eq!(representable_count(&[short, short], 2000, 4096, true), 2);
    }
}
