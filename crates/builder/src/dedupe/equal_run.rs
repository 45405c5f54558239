//! An equal run: two ranges of the files with the same bytes.

use super::space::ConcatenatedFiles;

/// Two ranges with the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DuplicateRange {
    /// The place where the later range starts.
    pub(super) target: u64,
    /// The place where the earlier one starts. Until it is settled it may run into the later one.
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
