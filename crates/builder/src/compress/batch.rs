//! A batch of tasks on one thread of the data path: [`DataWorker`] reads the ranges and turns them into the
//! [`BatchOutput`], bytes for the image and what they are. It owns encoders and a read buffer, and knows nothing of
//! addresses in the image. Later batches use the buffers of the output again.

use std::ops::Range;

use ferrofs_ondisk::compression::AlgorithmId;
use ferrofs_workers::CancelToken;

use crate::compress::profiles::CompressionProfiles;
use crate::compress::{RangeCompressor, RangeInput};
use crate::context::check_cancelled;
use crate::data_map::InlineExtent;
use crate::digest::Sha256Digest;
use crate::split::{EncodeConstraints, RangeTask, SEGMENT_BYTES, TaskKind};
use crate::tree::{Content, ContentReader};
use crate::{Error, ErrorKind, Result};

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
    pub(crate) fn fill_block(&mut self, block: usize) {
        let whole = self.bytes.len().next_multiple_of(block);
        self.bytes.resize(whole, 0);
    }
}

/// An inline tail lies in one block with the end of its inode, for which at least so much stays free.
const INODE_BYTES_MIN: usize = 64;

/// Whether so many bytes can lie behind an inode.
pub(crate) fn fits_inline(bytes: usize, block: usize) -> bool {
    bytes <= block.saturating_sub(INODE_BYTES_MIN)
}

/// Appends the bytes to `output`: all of them, or without a tail that goes inline.
pub(crate) fn store_flat(
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
pub(crate) fn store_chunks(
    bytes: &[u8],
    chunk: usize,
    block: usize,
    output: &mut BatchOutput,
) -> StoredForm {
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
    pub(crate) fn work(&mut self, task: &RangeTask, output: &mut BatchOutput) -> Result<()> {
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
        if !buffer.is_empty() {
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
}
