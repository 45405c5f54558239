//! Positions and ranges of the search for duplicates. All files count as concatenated in data order, so a position
//! is one number; only the plan has files and offsets again.

use std::ops::Range;

use crate::tree::Content;
use crate::{Error, ErrorKind, Result};

/// The files of an image, concatenated without gaps.
#[derive(Debug)]
pub(super) struct ConcatenatedFiles<'f> {
    files: &'f [&'f Content],
    /// Where each file starts, and behind them where the last one ends.
    starts: Vec<u64>,
}

impl<'f> ConcatenatedFiles<'f> {
    /// The concatenation of `files`.
    ///
    /// # Errors
    /// Together they have more bytes than 64 bits count.
    pub(super) fn new(files: &'f [&'f Content]) -> Result<Self> {
        let mut starts = Vec::with_capacity(files.len() + 1);
        let mut end = 0_u64;
        starts.push(end);
        for file in files {
            end = end.checked_add(file.bytes()).ok_or_else(|| {
                let what = "files of more than 2^64 bytes together";
                Error::new(ErrorKind::Unsupported(what.to_owned())).at(file.source().name())
            })?;
            starts.push(end);
        }
        Ok(Self { files, starts })
    }

    /// How many files there are.
    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    /// The bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.starts[self.files.len()]
    }

    /// The file with the index `file`.
    pub(super) fn content(&self, file: usize) -> &'f Content {
        self.files[file]
    }

    /// The places of `file`.
    pub(super) fn range(&self, file: usize) -> Range<u64> {
        self.starts[file]..self.starts[file + 1]
    }

    /// The file that `place` lies in; empty files hold no place. `place` is less than
    /// [`bytes`](Self::bytes).
    pub(super) fn file_at(&self, place: u64) -> usize {
        debug_assert!(place < self.bytes(), "place {place} lies behind all files");
        self.starts.partition_point(|&start| start <= place) - 1
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
