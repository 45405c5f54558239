//! All files behind one another: a place is one number, which runs through them in data order.
//!
//! Places are what the search for equal runs counts in; files and offsets come back in the plan.

use std::ops::Range;

use crate::tree::Content;
use crate::{Error, ErrorKind, Result};

/// The files of an image, laid behind one another without gaps.
#[derive(Debug)]
pub(super) struct ConcatenatedFiles<'f> {
    files: &'f [&'f Content],
    /// Where each file starts, and behind them where the last one ends.
    starts: Vec<u64>,
}

impl<'f> ConcatenatedFiles<'f> {
    /// The space of `files`.
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
