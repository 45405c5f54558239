//! The units of work of a verification: a few inodes together, so that submitting them costs little
//! beside the work, or a part of a large file.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ferrofs_ondisk::FileType;

use super::LinkCounts;
use crate::error::{Error, ErrorKind};
use crate::walk::{PathError, TreeWalk, WalkEntry, WalkEvent};

/// Bytes to read for a batch; LZ4 decodes this in half a millisecond. Files that follow each other
/// have fragments in the same clusters: the shorter the batches, the more often two threads need
/// the same cluster at the same time.
const BATCH_BYTES: u64 = 1 << 20;
/// An inode counts for so many bytes, beside its contents.
const INODE_BYTES: u64 = 8 << 10;
/// Bytes of paths in a batch at most.
const PATHS_BYTES: usize = 64 << 10;
/// Files from here on are verified in parts.
const LARGE_BYTES: u64 = 4 << 20;
/// Bytes of a part at least.
const PART_BYTES: u64 = 2 << 20;
/// At most so many parts of a file: a hole can make a file as long as a 64-bit number can say.
const PARTS_MAX: u64 = 4096;

/// Work for one thread at a time.
#[derive(Debug)]
pub(super) enum VerifyBatch {
    /// Inodes to verify, and problems that the walk has found, in the order of the walk.
    Inodes(Vec<Result<WalkEntry, PathError>>),
    /// A part of a file.
    Part(FilePart),
}

/// A part of a large file.
#[derive(Debug)]
pub(super) struct FilePart {
    pub(super) node: Arc<WalkEntry>,
    pub(super) range: Range<u64>,
}

impl FilePart {
    /// Whether the xattrs and the index of the file are verified with it.
    pub(super) fn is_first(&self) -> bool {
        self.range.start == 0
    }

    pub(super) fn is_last(&self) -> bool {
        self.range.end >= self.node.inode.size()
    }
}

/// Cuts a walk into batches.
#[derive(Debug)]
pub(super) struct VerifyBatches<'a> {
    walk: TreeWalk<'a>,
    link_counts: &'a mut LinkCounts,
    /// What is left of a large file.
    large: Option<FilePart>,
    /// A large file that the walk found behind the inodes of the last batch.
    next: Option<WalkEntry>,
    is_over: bool,
}

impl<'a> VerifyBatches<'a> {
    pub(super) fn new(walk: TreeWalk<'a>, link_counts: &'a mut LinkCounts) -> Self {
        Self { walk, link_counts, large: None, next: None, is_over: false }
    }

    /// The next part of the large file, if there is one.
    fn part(&mut self) -> Option<FilePart> {
        if let Some(node) = self.next.take() {
            let range = 0..node.inode.size();
            self.large = Some(FilePart { node: Arc::new(node), range });
        }
        let rest = self.large.as_mut()?;
        let start = rest.range.start;
        let bytes = (rest.node.inode.size() / PARTS_MAX).max(PART_BYTES);
        let end = rest.range.end.min(start.saturating_add(bytes));
        let part = FilePart { node: Arc::clone(&rest.node), range: start..end };
        rest.range.start = end;
        if part.is_last() {
            self.large = None;
        }
        Some(part)
    }

    /// The inode of an event, if it has to be verified. A large file is put aside.
    fn inode(&mut self, visit: WalkEvent) -> Option<Result<WalkEntry, PathError>> {
        let node = match visit {
            WalkEvent::Enter(node) => return Some(Ok(node)),
            WalkEvent::Leaf(node) => node,
            WalkEvent::Leave(_) => return None,
            WalkEvent::Problem(problem) => return Some(Err(problem)),
        };
        match self.link_counts.insert(&node) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => {
                // Without memory the link counts of the rest cannot be verified.
                self.is_over = true;
                return Some(Err(PathError { path: node.path, error }));
            }
        }
        let is_file = node.inode.file_type() == FileType::Regular;
        if is_file && node.inode.size() >= LARGE_BYTES {
            self.next = Some(node);
            return None;
        }
        Some(Ok(node))
    }
}

impl Iterator for VerifyBatches<'_> {
    type Item = VerifyBatch;

    fn next(&mut self) -> Option<VerifyBatch> {
        if let Some(part) = self.part() {
            return Some(VerifyBatch::Part(part));
        }
        let (mut inodes, mut bytes, mut paths) = (Vec::new(), 0u64, 0usize);
        while bytes < BATCH_BYTES && paths < PATHS_BYTES && self.next.is_none() && !self.is_over {
            // A source may panic here, too. Then the walk ends, as its position is unknown.
            let next = catch_unwind(AssertUnwindSafe(|| self.walk.next()));
            let next = next.unwrap_or_else(|_| {
                self.is_over = true;
                let error = Error::new(ErrorKind::Panicked);
                Some(WalkEvent::Problem(PathError { path: Vec::new(), error }))
            });
            let Some(visit) = next else {
                self.is_over = true;
                break;
            };
            let Some(found) = self.inode(visit) else { continue };
            let (path, size) = match &found {
                Ok(node) if node.inode.file_type() == FileType::Regular => {
                    (node.path.len(), node.inode.size())
                }
                Ok(node) => (node.path.len(), 0),
                Err(problem) => (problem.path.len(), 0),
            };
            bytes = bytes.saturating_add(size).saturating_add(INODE_BYTES);
            paths = paths.saturating_add(path);
            inodes.push(found);
        }
        if inodes.is_empty() {
            self.part().map(VerifyBatch::Part)
        } else {
            Some(VerifyBatch::Inodes(inodes))
        }
    }
}

/// Checks that each part of a large file begins where the one before ends: the index of a damaged
/// image can contradict itself.
#[derive(Debug, Default)]
pub(super) struct ContinuityCheck {
    next: u64,
    has_failed: bool,
}

impl ContinuityCheck {
    /// An error of the file, up to this part. Only the first one is reported, as by a reader that
    /// reads the file in one go.
    pub(super) fn join(
        &mut self,
        part: &FilePart,
        read: Result<Range<u64>, Error>,
    ) -> Option<Error> {
        if part.is_first() {
            *self = Self::default();
        }
        let fault = match read {
            Ok(covered) if covered.start == self.next => {
                self.next = covered.end;
                None
            }
            Ok(covered) => {
                let kind = ErrorKind::WrongExtent { offset: covered.start.min(self.next) };
                let inode = &part.node.inode;
                Some(Error::new(kind).in_inode(inode.nid()).at(inode.end()))
            }
            Err(error) => Some(error),
        };
        let fault = fault.filter(|_| !self.has_failed);
        self.has_failed |= fault.is_some();
        fault
    }
}
