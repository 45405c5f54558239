//! Splits files into tasks, and collects tasks into batches. Splits lie at fixed offsets of the files, so that
//! the image never depends on which thread works on what. Of the files nothing is read but where holes are, and whether
//! there are only zeros where that decides how they are stored.

use std::collections::{BTreeMap, HashMap, VecDeque};

use ferrofs_workers::CancelToken;

use crate::context::check_cancelled;
use crate::spill::paged::PagedArray;
use crate::tree::{Content, NodeId, Tree, memory_content};
use crate::{Error, ErrorKind, FragmentSharing, Result};

/// A file is split at multiples of this: long enough that what a split costs (half a block, and the history of
/// the encoder) is nothing, short enough for many threads and a bounded memory.
pub(crate) const SEGMENT_BYTES: u64 = 8 << 20;
/// Small tasks are collected up to so many bytes, so that passing a batch to a thread costs nothing beside the work.
const BATCH_BYTES: u64 = 1 << 20;
/// Zeros are looked for in pieces of this size, after a first one, which ends the search in most files.
const ZERO_PIECE_BYTES: usize = 64 << 10;
const FIRST_ZERO_PIECE_BYTES: usize = 4 << 10;
/// Tasks of a batch at most: tiny files must not make it endless.
const BATCH_TASKS_MAX: usize = 256;

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DedupePiece {
    /// Stored with the file, from a new extent on.
    Own {
        /// Its length; not 0.
        bytes: u64,
    },
    /// The same bytes as an earlier range, all of which is [`DedupePiece::Own`], one or several.
    Copy {
        /// The file that holds the range: an earlier one, or the same.
        of: usize,
        /// Where it starts there, which is where one of the pieces starts.
        offset: u64,
        /// The length of both; not 0.
        bytes: u64,
    },
}

/// What deduplication found.
pub(crate) trait FilePieces {
    /// The pieces of a file, by its place in the data order.
    fn pieces(&self, file: usize) -> &[DedupePiece];

    /// The files that have other pieces than one of their own, ascending.
    fn cut_files(&self) -> Vec<usize>;
}

/// Makes batches of tasks, in the order in which they are to be committed.
pub(crate) trait TaskSource {
    /// Puts the next batch into `tasks`, which is empty. Returns how many bytes of it will be read; `None` after
    /// the last batch.
    ///
    /// # Errors
    /// A source that does not say where its holes are. The tasks before it are in `tasks`.
    fn next_batch(&mut self, tasks: &mut Vec<RangeTask>) -> Result<Option<u64>>;
}

/// How files are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StorageMode {
    /// Compressed, or flat where that gains nothing.
    Compressed,
    /// As they are; files of zeros only have no data at all if the flag says so.
    Flat {
        /// Whether the format has such files (48BIT).
        holes: bool,
    },
    /// In chunks of so many bytes: a power of two.
    Chunks(usize),
    /// As a whole in the packed inode.
    Packed,
}

/// How one file is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileCompression {
    /// As the options say, and where it is compressed, by the profile with this number.
    Profile(usize),
    /// It is not compressed.
    Uncompressed,
}

impl Default for FileCompression {
    fn default() -> Self {
        Self::Profile(0)
    }
}

/// Contents in data order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FileList<'f> {
    /// These.
    Contents(&'f [Content]),
    /// Those of these inodes of a tree.
    Nodes(&'f Tree, &'f PagedArray<u32>),
}

impl FileList<'_> {
    /// How many there are.
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Contents(contents) => contents.len(),
            Self::Nodes(_, nodes) => nodes.len(),
        }
    }

    /// The size of a file in bytes; 0 for one that is not there.
    pub(crate) fn bytes(self, file: usize) -> u64 {
        match self {
            Self::Contents(contents) => contents.get(file).map_or(0, Content::bytes),
            Self::Nodes(tree, nodes) => {
                let id = nodes.get(file).map(NodeId::from_index);
                id.and_then(|id| tree.content_bytes(id)).unwrap_or(0)
            }
        }
    }

    /// A file.
    pub(crate) fn content(self, file: usize) -> Option<Content> {
        match self {
            Self::Contents(contents) => contents.get(file).cloned(),
            Self::Nodes(tree, nodes) => tree.content(NodeId::from_index(nodes.get(file)?)),
        }
    }
}

/// Files that are to be stored, in data order, and what is known of them.
#[derive(Clone, Copy)]
pub(crate) struct FileSet<'f> {
    /// Their contents.
    pub(crate) contents: FileList<'f>,
    /// By file; none stands for the default for all.
    pub(crate) compressions: &'f [FileCompression],
    /// What deduplication found.
    pub(crate) pieces: Option<&'f dyn FilePieces>,
}

impl FileSet<'_> {
    /// How a file is stored, and the number of the profile by which it is encoded.
    pub(crate) fn mode_and_profile(
        &self,
        file: usize,
        modes: StorageModes,
    ) -> (StorageMode, usize) {
        match self.compressions.get(file).copied().unwrap_or_default() {
            FileCompression::Profile(profile) => (modes.usual, profile),
            FileCompression::Uncompressed => (modes.uncompressed, 0),
        }
    }
}

/// A range of one file and what is to be done with it.
#[derive(Clone, Debug)]
pub(crate) struct RangeTask {
    /// The file's place in the data order.
    pub(crate) file: usize,
    /// Its content.
    pub(crate) content: Content,
    /// Where the range starts.
    pub(crate) start: u64,
    /// How long it is.
    pub(crate) bytes: u64,
    /// The number of the profile by which it is encoded.
    pub(crate) profile: usize,
    /// What is to be done.
    pub(crate) kind: TaskKind,
}

/// What is to be done with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskKind {
    /// Read and encode it.
    Encode(EncodeConstraints),
    /// Read it: whole blocks go to the image as they are.
    StoreFlat,
    /// Nothing: it is a hole, of a chunk-based file or of everything.
    Skip,
    /// Read it, find zeros, hash the rest chunk by chunk.
    Chunk(usize),
    /// Read and hash it, all of the file.
    Hash,
    /// Nothing: all of the file goes to the packed inode, and no other file has this size.
    Pack,
    /// Nothing: an earlier range has the same bytes.
    Copy {
        /// The file that has it.
        of: usize,
        /// Where in it.
        offset: u64,
    },
}

/// What the encoding of a range may end in. A range that is not split yet allows nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EncodeConstraints {
    /// Inline behind the inode, or in the packed inode.
    pub(crate) may_end_apart: bool,
    /// Flat, where nothing is gained.
    pub(crate) may_be_flat: bool,
}

impl RangeTask {
    /// Where the range ends.
    pub(crate) fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes)
    }

    /// Whether it is the last of its file.
    pub(crate) fn ends_file(&self) -> bool {
        self.end() == self.content.bytes()
    }

    /// How many of its bytes lie before the next split.
    fn first_segment(&self) -> u64 {
        self.bytes.min(SEGMENT_BYTES - self.start % SEGMENT_BYTES)
    }

    /// Whether bytes are read for it.
    pub(crate) fn is_read(&self) -> bool {
        !matches!(self.kind, TaskKind::Skip | TaskKind::Pack | TaskKind::Copy { .. })
    }
}

/// How files are stored that are to be compressed, and those that are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StorageModes {
    pub(crate) usual: StorageMode,
    pub(crate) uncompressed: StorageMode,
}

/// Splits files, one after another.
pub(crate) struct TaskSplitter<'f> {
    files: FileSet<'f>,
    modes: StorageModes,
    /// By file: the end of what others copy from it into their middle; 0 for files that are not here.
    copied_until: HashMap<usize, u64>,
    /// Sizes of files that come more than once.
    duplicate_sizes: Vec<u64>,
    next: usize,
    ready: VecDeque<RangeTask>,
    cancel: &'f CancelToken,
}

impl<'f> TaskSplitter<'f> {
    /// Splits these files in order.
    pub(crate) fn new(
        files: FileSet<'f>,
        modes: StorageModes,
        sharing: FragmentSharing,
        cancel: &'f CancelToken,
    ) -> Result<Self> {
        let copied_until = match files.pieces {
            Some(pieces) => copied_until(files.contents, pieces)?,
            None => HashMap::new(),
        };
        let compares = modes.usual == StorageMode::Packed && sharing != FragmentSharing::Off;
        let duplicate_sizes = if compares { duplicate_sizes(files.contents) } else { Vec::new() };
        let ready = VecDeque::new();
        Ok(Self { files, modes, copied_until, duplicate_sizes, next: 0, ready, cancel })
    }

    fn split_next_file(&mut self) -> Result<()> {
        let file = self.next;
        self.next += 1;
        let Some(content) = self.files.contents.content(file) else { return Ok(()) };
        let content = &content;
        let bytes = content.bytes();
        let (mode, profile) = self.files.mode_and_profile(file, self.modes);
        let mut add = |start, bytes, kind| {
            let content = content.clone();
            self.ready.push_back(RangeTask { file, content, start, bytes, profile, kind });
        };
        match mode {
            _ if bytes == 0 => add(0, 0, TaskKind::StoreFlat),
            StorageMode::Packed if self.duplicate_sizes.binary_search(&bytes).is_ok() => {
                add(0, bytes, TaskKind::Hash);
            }
            StorageMode::Packed => add(0, bytes, TaskKind::Pack),
            StorageMode::Flat { holes: true } if has_only_zeros(content, self.cancel)? => {
                add(0, bytes, TaskKind::Skip);
            }
            StorageMode::Flat { .. } => add(0, bytes, TaskKind::StoreFlat),
            StorageMode::Chunks(chunk) => self.split_chunks(file, content, chunk)?,
            StorageMode::Compressed => self.split_pieces(file, content, profile),
        }
        Ok(())
    }

    /// The first segment of the first range, and what its encoding may end in. A range is split only now: a
    /// source may claim 2^63 bytes, and hold none.
    fn split_range(&mut self) -> Option<RangeTask> {
        let range = self.ready.front_mut()?;
        let is_cut =
            matches!(range.kind, TaskKind::Encode(_) | TaskKind::StoreFlat | TaskKind::Chunk(_));
        let first = range.first_segment();
        let mut task = if is_cut && first < range.bytes {
            let task = RangeTask { bytes: first, ..range.clone() };
            range.start += first;
            range.bytes -= first;
            task
        } else {
            self.ready.pop_front()?
        };
        if let TaskKind::Encode(constraints) = &mut task.kind {
            let copied_until = self.copied_until.get(&task.file).copied().unwrap_or(0);
            constraints.may_end_apart = copied_until <= task.start;
            let is_whole = task.start == 0 && task.bytes == task.content.bytes();
            constraints.may_be_flat = is_whole && copied_until == 0;
        }
        Some(task)
    }

    fn split_pieces(&mut self, file: usize, content: &Content, profile: usize) {
        let whole = [DedupePiece::Own { bytes: content.bytes() }];
        let pieces = self.files.pieces.map_or(&[][..], |pieces| pieces.pieces(file));
        let pieces = if pieces.is_empty() { &whole[..] } else { pieces };
        let mut start = 0;
        for &piece in pieces {
            let (bytes, kind) = match piece {
                DedupePiece::Own { bytes } => {
                    (bytes, TaskKind::Encode(EncodeConstraints::default()))
                }
                DedupePiece::Copy { of, offset, bytes } => (bytes, TaskKind::Copy { of, offset }),
            };
            let content = content.clone();
            self.ready.push_back(RangeTask { file, content, start, bytes, profile, kind });
            start += bytes;
        }
    }

    /// Holes are skipped in whole chunks; for a small file it is not worth finding any.
    fn split_chunks(&mut self, file: usize, content: &Content, chunk: usize) -> Result<()> {
        let bytes = content.bytes();
        let everything = std::iter::once(0..bytes).collect();
        let ranges = if bytes > BATCH_BYTES { content.source().data_ranges()? } else { everything };
        let ready = &mut self.ready;
        let mut add = |start: u64, end: u64, kind| {
            if end > start {
                let bytes = end - start;
                let content = content.clone();
                ready.push_back(RangeTask { file, content, start, bytes, profile: 0, kind });
            }
        };
        let (of_chunk, chunk) = (TaskKind::Chunk(chunk), chunk as u64);
        let mut at = 0;
        for range in ranges {
            let start = (range.start & !(chunk - 1)).clamp(at, bytes);
            let end =
                range.end.checked_next_multiple_of(chunk).unwrap_or(bytes).clamp(start, bytes);
            add(at, start, TaskKind::Skip);
            add(start, end, of_chunk);
            at = end;
        }
        add(at, bytes, TaskKind::Skip);
        Ok(())
    }
}

impl TaskSource for TaskSplitter<'_> {
    fn next_batch(&mut self, tasks: &mut Vec<RangeTask>) -> Result<Option<u64>> {
        let mut bytes = 0_u64;
        while tasks.len() < BATCH_TASKS_MAX {
            while self.ready.is_empty() && self.next < self.files.contents.len() {
                self.split_next_file()?;
            }
            let Some(range) = self.ready.front() else { break };
            let more = match range.kind {
                TaskKind::Hash => range.bytes.min(SEGMENT_BYTES),
                _ if range.is_read() => range.first_segment(),
                _ => 0,
            };
            if bytes > 0 && bytes + more > BATCH_BYTES {
                break;
            }
            bytes += more;
            tasks.extend(self.split_range());
        }
        Ok(if tasks.is_empty() { None } else { Some(bytes) })
    }
}

/// By file: the end of what is copied from it to a place where the end of a file cannot be. Checks, too,
/// that the pieces of each file cover it.
fn copied_until(files: FileList<'_>, pieces: &dyn FilePieces) -> Result<HashMap<usize, u64>> {
    let mut until = HashMap::new();
    for file in pieces.cut_files() {
        let (mut at, file_bytes) = (0_u64, files.bytes(file));
        for &piece in pieces.pieces(file) {
            let (DedupePiece::Own { bytes } | DedupePiece::Copy { bytes, .. }) = piece;
            let end = at.checked_add(bytes).filter(|end| bytes > 0 && *end <= file_bytes);
            at = end.ok_or_else(|| uncovered(files, file))?;
            let DedupePiece::Copy { of, offset, bytes } = piece else { continue };
            if of > file || at == file_bytes {
                continue;
            }
            let until = until.entry(of).or_insert(0);
            *until = offset.saturating_add(bytes).max(*until);
        }
        if at != file_bytes {
            return Err(uncovered(files, file));
        }
    }
    Ok(until)
}

/// Whether a file has only zeros. The holes that the host reports do not decide it: a copy of the file on another file
/// system, or by another program, has other ones.
fn has_only_zeros(content: &Content, cancel: &CancelToken) -> Result<bool> {
    let source = content.source();
    let ranges = source.data_ranges()?;
    if ranges.is_empty() {
        return Ok(true);
    }
    let mut reader = source.open()?;
    let mut buffer = vec![0; FIRST_ZERO_PIECE_BYTES];
    for range in ranges {
        let mut at = range.start;
        while at < range.end {
            check_cancelled(cancel)?;
            let left = usize::try_from(range.end - at).unwrap_or(usize::MAX);
            let count = buffer.len().min(left);
            let piece = &mut buffer[..count];
            reader.read_exact_at(at, piece)?;
            if piece.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            at += count as u64;
            buffer.resize(ZERO_PIECE_BYTES, 0);
        }
    }
    reader.check_unchanged()?;
    Ok(true)
}

fn uncovered(files: FileList<'_>, file: usize) -> Error {
    let error = Error::new(ErrorKind::Internal("the pieces of a file do not add up to it"));
    match files.content(file) {
        Some(content) => error.at(content.source().name()),
        None => error,
    }
}

/// The sizes that several files have.
fn duplicate_sizes(files: FileList<'_>) -> Vec<u64> {
    let mut is_duplicate = BTreeMap::new();
    for file in 0..files.len() {
        let bytes = files.bytes(file);
        is_duplicate.entry(bytes).and_modify(|is_duplicate| *is_duplicate = true).or_insert(false);
    }
    is_duplicate.into_iter().filter_map(|(bytes, is_it)| is_it.then_some(bytes)).collect()
}

/// Generates the next bytes of a file: as many as its argument.
pub(crate) type ByteGenerator<'m> = &'m mut dyn FnMut(usize) -> Result<Vec<u8>>;

/// A file that is generated segment by segment.
pub(crate) struct GeneratedFile<'m> {
    name: &'static str,
    pub(crate) bytes: u64,
    at: u64,
    make: ByteGenerator<'m>,
    /// It is encoded, not stored flat.
    pub(crate) is_compressed: bool,
}

impl<'m> GeneratedFile<'m> {
    /// A file of `bytes` bytes that `make` makes, and that messages call `name`.
    pub(crate) fn new(name: &'static str, bytes: u64, make: ByteGenerator<'m>) -> Self {
        Self { name, bytes, at: 0, make, is_compressed: false }
    }
}

impl TaskSource for GeneratedFile<'_> {
    fn next_batch(&mut self, tasks: &mut Vec<RangeTask>) -> Result<Option<u64>> {
        let (start, bytes) = (self.at, SEGMENT_BYTES.min(self.bytes - self.at));
        if bytes == 0 {
            return Ok(None);
        }
        let part = (self.make)(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        let may_be_flat = bytes == self.bytes;
        let kind = match self.is_compressed {
            true => TaskKind::Encode(EncodeConstraints { may_end_apart: true, may_be_flat }),
            false => TaskKind::StoreFlat,
        };
        let content = memory_content(self.name, start, part, self.bytes);
        tasks.push(RangeTask { file: 0, content, start, bytes, profile: 0, kind });
        self.at += bytes;
        Ok(Some(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_source::shrunk_content;

    #[test]
    fn a_source_that_claims_everything_is_cut_no_faster_than_it_is_worked_on() {
        let bytes = u64::MAX >> 1;
        let huge = [shrunk_content("huge", &[], bytes)];
        let files =
            FileSet { contents: FileList::Contents(&huge), compressions: &[], pieces: None };
        let cancel = CancelToken::new();
        for usual in [StorageMode::Compressed, StorageMode::Flat { holes: false }] {
            let modes = StorageModes { usual, uncompressed: usual };
            let mut splitter =
                TaskSplitter::new(files, modes, FragmentSharing::Off, &cancel).unwrap();
            for number in 0..3 {
                let mut tasks = Vec::new();
                assert_eq!(splitter.next_batch(&mut tasks).unwrap(), Some(SEGMENT_BYTES));
                let [task] = &tasks[..] else { panic!("{tasks:?}") };
                assert_eq!((task.start, task.bytes), (number * SEGMENT_BYTES, SEGMENT_BYTES));
            }
            assert_eq!(splitter.ready.len(), 1);
        }
    }
}
