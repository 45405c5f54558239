//! What a thread of the data path does with a batch of tasks: [`DataWorker`] reads the ranges and turns them into the
//! [`BatchOutput`], bytes for the image and what they are; [`RangeCompressor`] makes extents and whole-block pclusters of
//! those that are to be compressed. The result depends on the range and the parameters only. Nothing here knows of
//! addresses in the image. A thread owns its compressors and its read buffer, and later batches use the buffers of the
//! output again.
//!
//! The decisions are those of mkfs.erofs: an extent is kept if it takes at least a block less than its bytes;
//! otherwise as many blocks as its pcluster would have are stored plain, a block each, and encoding is tried
//! again behind them.

pub(crate) mod profiles;

use std::ops::Range;

use ferrofs_codec::{EncodedSizes, Encoder, Method};
use ferrofs_ondisk::compression::AlgorithmId;
use ferrofs_workers::CancelToken;

use crate::compress::profiles::{CompressionProfiles, DataParams, disk_algorithm};
use crate::context::check_cancelled;
use crate::data_map::InlineExtent;
use crate::digest::Sha256Digest;
use crate::split::{EncodeConstraints, RangeTask, SEGMENT_BYTES, TaskKind};
use crate::tree::{Content, ContentReader};
use crate::{Error, ErrorKind, Result};

/// Tasks on their way to a thread, then what became of them.
#[derive(Debug, Default)]
pub(crate) struct TaskBatch {
    /// Bytes that are read for its tasks.
    pub(crate) bytes: u64,
    /// What is to be done.
    pub(crate) tasks: Vec<RangeTask>,
    /// What became of it.
    pub(crate) output: BatchOutput,
    /// What went wrong with the first task that has no result, or behind all of them.
    pub(crate) error: Option<Error>,
}

/// Reads and encodes, on one thread.
pub(crate) struct DataWorker {
    profiles: CompressionProfiles,
    /// By the number of the profile, made when the first file needs it.
    compressors: Vec<Option<RangeCompressor>>,
    buffer: Vec<u8>,
    /// What the last task read, unless it was the end of its file.
    open_content: Option<OpenContent>,
    cancel: CancelToken,
}

/// A file that is read range by range. It stays open from one range to the next: an archive decodes the whole map of a
/// sparse file to open it, and a file may have as many ranges as its map.
struct OpenContent {
    content: Content,
    reader: Box<dyn ContentReader>,
}

impl OpenContent {
    /// A reader of `content`: that of the file that is open, if it is the same. It is compared with what was imported, as
    /// opening it would do.
    fn of(content: &Content, open_content: Option<Self>) -> Result<Self> {
        if let Some(mut open_content) = open_content
            && open_content.content.is_same(content)
        {
            open_content.reader.check_unchanged()?;
            return Ok(open_content);
        }
        Ok(Self { content: content.clone(), reader: content.source().open()? })
    }
}

impl DataWorker {
    /// Without an encoder until one is needed.
    pub(crate) fn new(profiles: CompressionProfiles, cancel: CancelToken) -> Self {
        let compressors = (0..profiles.count()).map(|_| None).collect();
        Self { profiles, compressors, buffer: Vec::new(), open_content: None, cancel }
    }

    /// Does all tasks of a batch, up to the first that fails.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`]. The error of a task is put into the batch, behind the results of those before it.
    pub(crate) fn work_on(&mut self, batch: &mut TaskBatch) -> Result<()> {
        let TaskBatch { tasks, output, error, bytes } = batch;
        // Encoded or not, it is seldom more; growing by and by would copy it, and take twice the memory.
        output.bytes.reserve_exact(usize::try_from(*bytes).unwrap_or(0));
        for task in tasks.iter() {
            check_cancelled(&self.cancel)?;
            if let Err(failed) = self.work(task, output) {
                *error = Some(failed);
                break;
            }
        }
        Ok(())
    }

    /// Does one task, behind what `output` holds.
    fn work(&mut self, task: &RangeTask, output: &mut BatchOutput) -> Result<()> {
        let before = output.bytes.len();
        let done = match task.kind {
            TaskKind::Skip | TaskKind::Pack | TaskKind::Copy { .. } => Ok(StoredForm::Unread),
            TaskKind::Hash => {
                { Sha256Digest::of_file(&task.content, &mut self.buffer, &self.cancel) }
                    .map(StoredForm::Hashed)
            }
            kind => self.read_and(kind, task, output),
        };
        let form = done.map_err(|error| error.at(task.content.source().name()))?;
        output.results.push(TaskOutput { bytes: before..output.bytes.len(), form });
        Ok(())
    }

    fn read_and(
        &mut self,
        kind: TaskKind,
        task: &RangeTask,
        output: &mut BatchOutput,
    ) -> Result<StoredForm> {
        // A task is a segment at most.
        let bytes = usize::try_from(task.bytes.min(SEGMENT_BYTES)).unwrap_or(usize::MAX);
        if self.buffer.len() < bytes {
            self.buffer.resize(bytes, 0);
        }
        let buffer = self.buffer.get_mut(..bytes).unwrap_or_default();
        if task.content.bytes() == 0 {
            // Nothing is read. To open it shows whether it has grown.
            task.content.source().open()?;
        } else if !buffer.is_empty() {
            let mut file = OpenContent::of(&task.content, self.open_content.take())?;
            let read = file.reader.read_exact_at(task.start, buffer);
            read.map_err(|error| error.at_byte(task.start))?;
            if task.ends_file() {
                file.reader.check_unchanged()?;
            } else if task.content.is_provided() {
                self.open_content = Some(file);
            }
        }
        let (params, buffer) = (self.profiles.params, &*buffer);
        match kind {
            TaskKind::Encode(constraints) => {
                let none = || Error::new(ErrorKind::Internal("data to encode, but no profile"));
                let place = self.compressors.get_mut(task.profile).ok_or_else(none)?;
                let compressor = match place {
                    Some(compressor) => compressor,
                    None => place.insert(self.profiles.compressor(task.profile)?),
                };
                let part = RangeInput { bytes: buffer, ends_file: task.ends_file(), constraints };
                compressor.compress(part, output, &self.cancel)
            }
            TaskKind::Chunk(chunk) => Ok(store_chunks(buffer, chunk, params.block, output)),
            _ => {
                let may_inline = params.inline_data && task.ends_file();
                Ok(store_flat(buffer, params.block, may_inline, output))
            }
        }
    }

    /// Compresses a range that was tried before and ends elsewhere now.
    pub(crate) fn reencode(&mut self, task: &RangeTask, output: &mut BatchOutput) -> Result<()> {
        let constraints = EncodeConstraints { may_end_apart: true, may_be_flat: false };
        self.work(&RangeTask { kind: TaskKind::Encode(constraints), ..task.clone() }, output)
    }
}

/// The results of a batch, in the order of its tasks.
#[derive(Debug, Default)]
pub(crate) struct BatchOutput {
    /// Whole blocks, as they go to the image.
    pub(crate) bytes: Vec<u8>,
    /// The extents of all tasks.
    pub(crate) extents: Vec<PlacedExtent>,
    /// One for each task.
    pub(crate) results: Vec<TaskOutput>,
}

/// An extent whose pcluster lies behind the one of the extent before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlacedExtent {
    /// Its length in the file.
    pub(crate) bytes: u32,
    /// How it is encoded; `None` is plain.
    pub(crate) algorithm: Option<AlgorithmId>,
    /// Whole blocks.
    pub(crate) pcluster_bytes: u32,
}

/// The result of one task.
#[derive(Debug)]
pub(crate) struct TaskOutput {
    /// Its bytes in [`BatchOutput::bytes`].
    pub(crate) bytes: Range<usize>,
    /// Its form.
    pub(crate) form: StoredForm,
}

/// The form that a task's bytes took.
#[derive(Debug)]
pub(crate) enum StoredForm {
    /// Not read.
    Unread,
    /// Encoded.
    Encoded(EncodedRange),
    /// Whole blocks as they are, and what is left where it goes inline.
    Flat {
        /// Fewer bytes than a block.
        tail: Box<[u8]>,
    },
    /// One for each chunk; `None` is all zeros, and has no bytes.
    Chunks(Vec<Option<Sha256Digest>>),
    /// The digest of the file.
    Hashed(Sha256Digest),
}

/// The result of encoding a range.
#[derive(Debug, Default)]
pub(crate) struct EncodedRange {
    /// Its extents in [`BatchOutput::extents`].
    pub(crate) extents: Range<usize>,
    /// One for each extent, where equal pclusters are to be found.
    pub(crate) digests: Vec<Sha256Digest>,
    /// The end of the file, where it goes behind the inode.
    pub(crate) inline: Option<InlineExtent>,
    /// The end of the file, where it goes to the packed inode.
    pub(crate) tail: Option<FileTail>,
}

/// The end of a file that goes to the packed inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileTail {
    /// How long it is.
    pub(crate) bytes: u64,
    /// The digest of all of it.
    pub(crate) digest: Sha256Digest,
    /// The digest of its last [`TAIL_END_BYTES`], by which longer ones with the same end are found.
    pub(crate) end: Option<Sha256Digest>,
}

/// How many bytes two tails must have in common at least, for one to lie within the other.
const TAIL_END_BYTES: usize = 64;

impl FileTail {
    /// Of the bytes of a tail.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let end = bytes.last_chunk::<TAIL_END_BYTES>().map(|end| Sha256Digest::of(end));
        Self { bytes: bytes.len() as u64, digest: Sha256Digest::of(bytes), end }
    }
}

impl BatchOutput {
    /// Empties it, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.extents.clear();
        self.results.clear();
    }

    /// Fills the last block up with zeros.
    fn fill_block(&mut self, block: usize) {
        let whole = self.bytes.len().next_multiple_of(block);
        self.bytes.resize(whole, 0);
    }
}

/// Compresses ranges, with buffers and an encoder that are made once.
pub(crate) struct RangeCompressor {
    params: DataParams,
    algorithm: AlgorithmId,
    /// LZ4 is through with random bytes sooner than a test for them.
    tests_for_randomness: bool,
    encoder: Encoder,
    /// The pcluster that is being made, and a second one to compare with.
    pcluster: Vec<u8>,
    other: Vec<u8>,
}

/// A range of a file that is to be compressed.
#[derive(Clone, Copy, Debug)]
struct RangeInput<'b> {
    /// Its bytes.
    bytes: &'b [u8],
    /// Whether it ends the file.
    ends_file: bool,
    /// What it may end in.
    constraints: EncodeConstraints,
}

/// What became of the front of what is left.
enum EncodeStep {
    /// Extents of so many bytes.
    Extents(usize),
    /// All of it lies behind the inode.
    Inline(InlineExtent),
    /// All of it goes to the packed inode.
    Tail,
}

impl RangeCompressor {
    /// With an encoder for `method`.
    pub(crate) fn new(params: DataParams, method: &Method) -> Result<Self> {
        let encoder = Encoder::new(method, params.pcluster, params.extent_max);
        let encoder = encoder.map_err(|error| Error::new(ErrorKind::Encoder(error)))?;
        let algorithm = disk_algorithm(method.algorithm());
        let tests_for_randomness = !matches!(method, Method::Lz4 { .. });
        let (pcluster, other) = (vec![0; params.pcluster], Vec::new());
        Ok(Self { params, algorithm, tests_for_randomness, encoder, pcluster, other })
    }

    /// The memory that this holds, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.encoder.memory_bytes() + 2 * self.params.pcluster) as u64
    }

    /// Compresses a part of a file, behind what `output` holds. It reads `cancel` before each extent, as a segment can
    /// take seconds.
    fn compress(
        &mut self,
        part: RangeInput<'_>,
        output: &mut BatchOutput,
        cancel: &CancelToken,
    ) -> Result<StoredForm> {
        self.encoder.restart();
        let (bytes_before, extents_before) = (output.bytes.len(), output.extents.len());
        let mut encoded = EncodedRange::default();
        let mut rest = part.bytes;
        while !rest.is_empty() {
            check_cancelled(cancel)?;
            let step = self.step(RangeInput { bytes: rest, ..part }, output)?;
            let taken = match step {
                EncodeStep::Extents(taken) => taken,
                EncodeStep::Inline(extent) => {
                    encoded.inline = Some(extent);
                    rest.len()
                }
                EncodeStep::Tail => {
                    encoded.tail = Some(FileTail::of(rest));
                    rest.len()
                }
            };
            rest = rest.get(taken..).unwrap_or_default();
        }
        encoded.extents = extents_before..output.extents.len();
        if part.constraints.may_be_flat && self.gains_nothing(part, &encoded, output, bytes_before)
        {
            output.bytes.truncate(bytes_before);
            output.extents.truncate(extents_before);
            let DataParams { block, inline_data, .. } = self.params;
            return Ok(match self.params.chunk {
                Some(chunk) => store_chunks(part.bytes, chunk, block, output),
                None => store_flat(part.bytes, block, inline_data, output),
            });
        }
        if self.params.shares_pclusters {
            encoded.digests = digests(output, &encoded, bytes_before);
        }
        Ok(StoredForm::Encoded(encoded))
    }

    /// Whether the file would be no longer without compression, its index included.
    fn gains_nothing(
        &self,
        part: RangeInput<'_>,
        encoded: &EncodedRange,
        output: &BatchOutput,
        bytes_before: usize,
    ) -> bool {
        // What a full index takes: a header, a gap, and 8 bytes for each block.
        let index = 16 + 8 * part.bytes.len().div_ceil(self.params.block);
        let inline = encoded.inline.as_ref().map_or(0, |extent| extent.pcluster.len());
        let stored = output.bytes.len() - bytes_before + inline;
        encoded.tail.is_none() && stored + index >= part.bytes.len()
    }

    fn step(&mut self, part: RangeInput<'_>, output: &mut BatchOutput) -> Result<EncodeStep> {
        let DataParams { block, pcluster, .. } = self.params;
        let rest = part.bytes;
        let may_end_apart = part.ends_file && part.constraints.may_end_apart;
        let may_pack = may_end_apart && self.params.packs_tails;
        let may_inline = may_end_apart && self.params.inline_pclusters && !may_pack;
        if may_pack && rest.len() <= pcluster {
            return Ok(EncodeStep::Tail);
        }
        if !may_inline && rest.len() <= block {
            return Ok(self.store_plain(rest, 1, output));
        }
        let filled = self.fill(rest)?;
        let is_whole = filled.is_some_and(|filled| filled.input_bytes == rest.len());
        let inline = filled
            .filter(|filled| may_inline && is_whole && fits_inline(filled.output_bytes, block));
        if let Some(EncodedSizes { output_bytes: bytes, .. }) = inline {
            let pcluster = self.pcluster.get(..bytes).unwrap_or_default().into();
            let algorithm = Some(self.algorithm);
            return Ok(EncodeStep::Inline(InlineExtent {
                bytes: rest.len() as u64,
                algorithm,
                pcluster,
            }));
        }
        let kept = filled
            .filter(|filled| filled.output_bytes.next_multiple_of(block) < filled.input_bytes);
        let Some(kept) = kept else {
            if may_inline && fits_inline(rest.len(), block) {
                let extent = InlineExtent {
                    bytes: rest.len() as u64,
                    algorithm: None,
                    pcluster: rest.into(),
                };
                return Ok(EncodeStep::Inline(extent));
            }
            let taken = filled.map_or(pcluster, |filled| filled.input_bytes.min(pcluster));
            return Ok(self.store_plain(rest, (taken / block).max(1), output));
        };
        if may_pack && is_whole && kept.output_bytes < pcluster {
            return Ok(EncodeStep::Tail);
        }
        let kept = if may_inline && is_whole { self.try_shorter(rest, kept)? } else { kept };
        self.append_pcluster(kept, output);
        Ok(EncodeStep::Extents(kept.input_bytes))
    }

    /// Encodes the front of `rest` into the scratch pcluster.
    fn fill(&mut self, rest: &[u8]) -> Result<Option<EncodedSizes>> {
        let window = rest.get(..self.params.extent_max).unwrap_or(rest);
        // A pcluster's worth of random bytes gains nothing; that there is more behind it changes nothing.
        let front = window.get(..self.params.pcluster).unwrap_or(window);
        if self.tests_for_randomness && looks_random(front) {
            return Ok(None);
        }
        let filled = self.encoder.fill(window, &mut self.pcluster);
        filled.map_err(|error| Error::new(ErrorKind::Encoder(error)))
    }

    /// The end of the file fills its last block only partly: if without that block nearly all of it is
    /// encoded, what is left may lie inline and a block is saved.
    fn try_shorter(&mut self, rest: &[u8], kept: EncodedSizes) -> Result<EncodedSizes> {
        let block = self.params.block;
        let whole = kept.output_bytes - kept.output_bytes % block;
        if whole == kept.output_bytes || whole == 0 {
            return Ok(kept);
        }
        self.other.resize(whole, 0);
        let shorter = self.encoder.fill(rest, &mut self.other);
        let shorter = shorter.map_err(|error| Error::new(ErrorKind::Encoder(error)))?;
        let Some(shorter) = shorter else { return Ok(kept) };
        let left = rest.len().saturating_sub(shorter.input_bytes);
        let is_better = shorter.output_bytes.next_multiple_of(block) < shorter.input_bytes
            && shorter.output_bytes + left < kept.output_bytes.next_multiple_of(block);
        if !is_better {
            return Ok(kept);
        }
        if let (Some(to), Some(from)) =
            (self.pcluster.get_mut(..shorter.output_bytes), self.other.get(..shorter.output_bytes))
        {
            to.copy_from_slice(from);
        }
        Ok(shorter)
    }

    /// Appends the scratch pcluster, behind the zeros that fill up its blocks.
    fn append_pcluster(&self, kept: EncodedSizes, output: &mut BatchOutput) {
        let whole = kept.output_bytes.next_multiple_of(self.params.block);
        let padded = output.bytes.len() + whole - kept.output_bytes;
        output.bytes.resize(padded, 0);
        output.bytes.extend_from_slice(self.pcluster.get(..kept.output_bytes).unwrap_or_default());
        output.extents.push(PlacedExtent {
            bytes: as_u32(kept.input_bytes),
            algorithm: Some(self.algorithm),
            pcluster_bytes: as_u32(whole),
        });
    }

    /// Appends at most so many blocks of `rest` as they are, each an extent.
    fn store_plain(&self, rest: &[u8], blocks: usize, output: &mut BatchOutput) -> EncodeStep {
        let block = self.params.block;
        let taken = rest.len().min(blocks * block);
        for chunk in rest.get(..taken).unwrap_or_default().chunks(block) {
            output.bytes.extend_from_slice(chunk);
            let pcluster_bytes = as_u32(block);
            let bytes = as_u32(chunk.len());
            output.extents.push(PlacedExtent { bytes, algorithm: None, pcluster_bytes });
        }
        // Only the last block can be short.
        let missing = taken.next_multiple_of(block) - taken;
        output.bytes.resize(output.bytes.len() + missing, 0);
        EncodeStep::Extents(taken)
    }
}

/// An inline tail lies in one block with the end of its inode, for which at least so much stays free.
const INODE_BYTES_MIN: usize = 64;

/// Whether so many bytes can lie behind an inode.
fn fits_inline(bytes: usize, block: usize) -> bool {
    bytes <= block.saturating_sub(INODE_BYTES_MIN)
}

/// Appends the bytes to `output`: all of them, or without a tail that goes inline.
fn store_flat(
    bytes: &[u8],
    block: usize,
    may_inline: bool,
    output: &mut BatchOutput,
) -> StoredForm {
    let tail = bytes.len() % block;
    let is_inline = may_inline && tail > 0 && fits_inline(tail, block);
    let inline = if is_inline { tail } else { 0 };
    let (whole, tail) = bytes.split_at(bytes.len() - inline);
    output.bytes.extend_from_slice(whole);
    output.fill_block(block);
    StoredForm::Flat { tail: tail.into() }
}

/// Appends the chunks that are not all zeros, each from a block's start on.
fn store_chunks(bytes: &[u8], chunk: usize, block: usize, output: &mut BatchOutput) -> StoredForm {
    let store = |chunk: &[u8]| {
        if chunk.iter().all(|&byte| byte == 0) {
            return None;
        }
        output.bytes.extend_from_slice(chunk);
        output.fill_block(block);
        Some(Sha256Digest::of(chunk))
    };
    StoredForm::Chunks(bytes.chunks(chunk).map(store).collect())
}

/// Lengths of extents and pclusters, which are shorter than a segment.
fn as_u32(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// The digests of all pclusters that were appended.
fn digests(output: &BatchOutput, encoded: &EncodedRange, mut at: usize) -> Vec<Sha256Digest> {
    let extents = output.extents.get(encoded.extents.clone()).unwrap_or_default();
    let digest = |extent: &PlacedExtent| {
        let end = at + extent.pcluster_bytes as usize;
        let digest = Sha256Digest::of(output.bytes.get(at..end).unwrap_or_default());
        at = end;
        digest
    };
    extents.iter().map(digest).collect()
}

/// Fewer bytes than this are no sample.
const SAMPLE_BYTES_MIN: usize = 2048;
/// More bytes than this do not improve the test.
const SAMPLE_BYTES_MAX: usize = 16 << 10;
/// The table in which repeats of four bytes are looked for.
const TABLE_BITS: u32 = 12;

/// Whether the bytes look as if they were random: all values equally frequent, and no run of four
/// bytes seen twice near each other. What an encoder of entropy or of matches would gain on such
/// bytes is less than a block in a hundred.
fn looks_random(bytes: &[u8]) -> bool {
    let Some(front) = bytes.get(..SAMPLE_BYTES_MIN) else { return false };
    // Most files fail on their first bytes.
    is_even(front) && {
        let mut samples =
            bytes.chunks(SAMPLE_BYTES_MAX).filter(|sample| sample.len() >= SAMPLE_BYTES_MIN);
        samples.all(is_even) && !has_repeats(bytes)
    }
}

/// Whether the values of the bytes are as evenly spread as those of random bytes.
///
/// The sum of the squares of the counts is n + n²/256 for random bytes, with a deviation of about
/// n·√(2/256); an order-0 encoder gains something only where it is clearly more.
fn is_even(bytes: &[u8]) -> bool {
    let mut counts = [0_u32; 256];
    for &byte in bytes {
        if let Some(count) = counts.get_mut(usize::from(byte)) {
            *count += 1;
        }
    }
    let squares: u64 = counts.iter().map(|&count| u64::from(count) * u64::from(count)).sum();
    let count = bytes.len() as u64;
    let expected = count + count * count / 256;
    squares < expected + count / 2
}

/// Whether more runs of four bytes come twice than chance explains.
fn has_repeats(bytes: &[u8]) -> bool {
    let mut near = RepeatTable::new();
    // Of one run in so many, chosen by its bytes, a second table keeps all there are: repeats of any distance. Fewer would
    // not find what saves a block of a long cluster. More take time, as the branch is mispredicted for each of them.
    let rate = (bytes.len() >> (TABLE_BITS - 3)).next_power_of_two();
    let choice = u32::try_from(rate - 1).unwrap_or(u32::MAX);
    // The first table keeps nearly all runs of few bytes.
    let mut far = (bytes.len() > 1 << TABLE_BITS).then(RepeatTable::new);
    for run in runs(bytes) {
        near.add(run);
        if let Some(far) = &mut far
            && run & choice == 0
            // A few runs of equal bytes in random ones gain nothing.
            && run != run.rotate_left(8)
        {
            far.add(run);
        }
    }
    // A match of four bytes gains about one; one in 512 bytes is less than the loss elsewhere.
    let far_repeats = far.map_or(0, |far| far.repeats);
    near.repeats > bytes.len() / 512 + 2 || far_repeats > bytes.len() / rate / 512 + 2
}

/// All runs of four bytes.
fn runs(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.windows(4).map(|run| run.try_into().map_or(0, u32::from_le_bytes))
}

/// The last run of each hash value, and how many runs were there already.
struct RepeatTable {
    last: Vec<u32>,
    repeats: usize,
}

impl RepeatTable {
    fn new() -> Self {
        Self { last: vec![0; 1 << TABLE_BITS], repeats: 0 }
    }

    fn add(&mut self, run: u32) {
        let slot = run.wrapping_mul(0x9e37_79b1) >> (32 - TABLE_BITS);
        if let Some(last) = self.last.get_mut(slot as usize) {
            self.repeats += usize::from(*last == run);
            *last = run;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(bytes: usize, may_inline: bool) -> (usize, usize) {
        let mut output = BatchOutput::default();
        let StoredForm::Flat { tail } = store_flat(&vec![7; bytes], 512, may_inline, &mut output)
        else {
            panic!("not flat");
        };
        (output.bytes.len(), tail.len())
    }

    #[test]
    fn the_tail_goes_inline_where_the_inode_leaves_room() {
        assert_eq!(store(512 + 448, true), (512, 448));
        assert_eq!(store(512 + 449, true), (1024, 0));
        assert_eq!(store(512 + 448, false), (1024, 0));
    }

    #[test]
    fn whole_blocks_have_no_tail() {
        assert_eq!(store(1024, true), (1024, 0));
        assert_eq!(store(0, true), (0, 0));
    }

    /// Bytes that nothing compresses.
    fn noise(count: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let step = |_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        (0..count).map(step).collect()
    }

    #[test]
    fn a_cancelled_range_is_encoded_no_further() {
        let methods = vec![Method::Lz4 { max_distance: u16::MAX }];
        let algorithms = Some(crate::Algorithms { default: 0, methods });
        let options = crate::BuildOptions::default().algorithms(algorithms);
        let mut compressor =
            CompressionProfiles::new(&options).and_then(|profiles| profiles.compressor(0)).unwrap();
        let constraints = EncodeConstraints::default();
        let part = RangeInput { bytes: &vec![7; 100_000], ends_file: true, constraints };
        let (mut output, cancel) = (BatchOutput::default(), CancelToken::new());
        compressor.compress(part, &mut output, &cancel).unwrap();
        cancel.cancel();
        let error = compressor.compress(part, &mut output, &cancel).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Cancelled), "{error}");
    }

    #[test]
    fn noise_looks_random_and_text_does_not() {
        assert!(looks_random(&noise(65536)));
        let text = b"the bytes of a text have few values and come again ".repeat(1000);
        assert!(!looks_random(&text));
    }

    #[test]
    fn noise_that_comes_twice_does_not_look_random() {
        let mut twice = noise(2048);
        twice.extend_from_within(..);
        assert!(!looks_random(&twice));
    }

    #[test]
    fn few_bytes_never_look_random() {
        assert!(!looks_random(&noise(1000)));
    }

    #[test]
    fn repeats_at_any_distance_are_seen() {
        let bytes = noise(1 << 20);
        assert!(looks_random(&bytes));
        for distance in [100, 5000, 30_000, 60_000, 300_000, 500_000] {
            let repeated = [&bytes[..distance], &bytes[..distance]].concat();
            let is_sample = repeated.len() >= SAMPLE_BYTES_MIN;
            assert!(!is_sample || !looks_random(&repeated), "{distance}");
        }
    }

    #[test]
    fn a_few_equal_bytes_in_noise_are_no_repeats() {
        for length in [1 << 16, 1 << 18, 1 << 20] {
            for byte in [0, 0xff, 0xb1] {
                let mut bytes = noise(length);
                bytes[length / 2..length / 2 + 16].fill(byte);
                assert!(looks_random(&bytes), "{length} {byte}");
            }
        }
    }

    #[test]
    fn every_part_is_a_sample() {
        let bytes = noise(1 << 18);
        let digits: Vec<u8> = bytes.iter().map(|byte| byte & 0x3f).collect();
        for at in [SAMPLE_BYTES_MAX, 3 * SAMPLE_BYTES_MAX, 15 * SAMPLE_BYTES_MAX] {
            let mixed = [&bytes[..at], &digits[at..at + SAMPLE_BYTES_MAX]].concat();
            assert!(!looks_random(&mixed), "{at}");
        }
    }
}
