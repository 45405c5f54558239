//! Positions and ranges of the search for duplicates. All files count as concatenated in data order, so a position
//! is one number; only the plan has files and offsets again.

use std::ops::Range;
use std::sync::Arc;

use crate::spill::SpillStore;
use crate::spill::paged::PagedArray;
use crate::split::FileList;
use crate::tree::{ContentSource, memory_content};
use crate::{Error, ErrorKind, Result};

/// Files in data order: all of a list, or those with these numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DedupeFiles<'f> {
    pub(crate) contents: FileList<'f>,
    pub(crate) chosen: Option<&'f [usize]>,
}

impl DedupeFiles<'_> {
    fn len(self) -> usize {
        self.chosen.map_or(self.contents.len(), <[usize]>::len)
    }

    fn number(self, file: usize) -> usize {
        self.chosen.map_or(file, |chosen| chosen.get(file).copied().unwrap_or(usize::MAX))
    }
}

/// The files of an image, concatenated without gaps.
#[derive(Debug)]
pub(super) struct ConcatenatedFiles<'f> {
    files: DedupeFiles<'f>,
    /// Where each file starts, and behind them where the last one ends.
    starts: PagedArray<u64>,
    bytes: u64,
}

impl<'f> ConcatenatedFiles<'f> {
    /// The concatenation of `files`.
    ///
    /// # Errors
    /// Together they have more bytes than 64 bits count.
    pub(super) fn new(files: DedupeFiles<'f>, store: &SpillStore) -> Result<Self> {
        let mut starts = PagedArray::new(store);
        let mut bytes = 0_u64;
        starts.push(bytes);
        for file in 0..files.len() {
            let more = files.contents.bytes(files.number(file));
            bytes = bytes.checked_add(more).ok_or_else(|| {
                let what = "files of more than 2^64 bytes together";
                let error = Error::new(ErrorKind::Unsupported(what.to_owned()));
                match files.contents.content(files.number(file)) {
                    Some(content) => error.at(content.source().name()),
                    None => error,
                }
            })?;
            starts.push(bytes);
        }
        Ok(Self { files, starts, bytes })
    }

    /// How many files there are.
    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    /// The bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The source of the file with the index `file`.
    pub(super) fn source(&self, file: usize) -> Arc<dyn ContentSource> {
        let content = self.files.contents.content(self.files.number(file));
        let lost = || memory_content("a file that is not there", 0, Vec::new(), 0);
        content.unwrap_or_else(lost).source()
    }

    /// The places of `file`.
    pub(super) fn range(&self, file: usize) -> Range<u64> {
        let start = |file| self.starts.get(file).unwrap_or(self.bytes);
        start(file)..start(file + 1)
    }

    /// The file that `place` lies in; empty files hold no place. `place` is less than
    /// [`bytes`](Self::bytes).
    pub(super) fn file_at(&self, place: u64) -> usize {
        debug_assert!(place < self.bytes(), "place {place} lies behind all files");
        self.starts.partition_point(|start| start <= place).saturating_sub(1)
    }
}

/// Two ranges with the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DuplicateRange {
    /// The place where the later range starts.
    pub(super) target: u64,
    /// The place where the earlier one starts. Until it is committed it may run into the later one.
    pub(super) source: u64,
    /// Their length.
    pub(super) bytes: u64,
}

impl DuplicateRange {
    /// The run without its first `bytes` bytes; nothing if that is all of it.
    pub(super) fn without_first(self, bytes: u64) -> Option<Self> {
        let left = self.bytes.checked_sub(bytes).filter(|&left| left > 0)?;
        Some(Self { target: self.target + bytes, source: self.source + bytes, bytes: left })
    }

    /// Whether `next`, whose target starts no earlier, is at the same distance from its source, without
    /// a gap, and in the same two files.
    pub(super) fn is_continued_by(self, next: Self, concat: &ConcatenatedFiles<'_>) -> bool {
        self.target - self.source == next.target - next.source
            && next.target <= self.target + self.bytes
            && concat.file_at(self.target) == concat.file_at(next.target)
            && concat.file_at(self.source) == concat.file_at(next.source)
    }
}
