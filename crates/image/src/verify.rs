//! Verifying a whole image: all metadata, and every byte of every file.

mod batches;
mod link_counts;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ferrofs_ondisk::FileType;
use ferrofs_workers::jobs::{HelperBudget, OrderedPipeline};

use crate::error::{Error, ErrorKind, Result};
use crate::image::ImageInner;
use crate::inode::Inode;
use crate::map::ExtentMap;
use crate::pieces::FilePiece;
use crate::walk::{PathError, TreeWalk, WalkEntry};
use batches::{ContinuityCheck, FilePart, VerifyBatch, VerifyBatches};
use link_counts::LinkCounts;

/// What a verification reports on its way.
#[derive(Debug)]
pub enum VerifyEvent {
    /// Something is wrong.
    Problem(PathError),
    /// So much has been read.
    Progress(VerifyProgress),
}

/// How far a verification is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyProgress {
    /// Inodes that have been read.
    pub inodes: u64,
    /// Bytes of files that have been read, holes included.
    pub bytes: u64,
}

/// What a verification found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifySummary {
    /// Inodes that have been read.
    pub inodes: u64,
    /// Bytes of files that have been read, holes included.
    pub bytes: u64,
    /// Problems that have been reported.
    pub problems: u64,
}

/// Verifies what `path` names and everything below, with at most `max_threads` threads, this one among
/// them; without a number, with one for each granted CPU. Events come on this thread, problems in the
/// order of the walk.
pub(crate) fn verify(
    inner: &ImageInner,
    path: &[u8],
    max_threads: Option<usize>,
    on_event: &mut dyn FnMut(VerifyEvent),
) -> VerifySummary {
    let mut report = VerifyReport { on_event, progress: VerifyProgress::default(), problems: 0 };
    if let Some(error) = truncation(inner) {
        report.problem(Vec::new(), error);
    }
    let begun = TreeWalk::new(inner, path).and_then(|walk| {
        LinkCounts::new(&inner.engine.memory).map(|link_counts| (walk, link_counts))
    });
    match begun {
        Ok((walk, link_counts)) => {
            let link_counts = verify_tree(inner, max_threads, (walk, link_counts), &mut report);
            // Below another path than the root not all names of an inode need to be met.
            if path == b"/" {
                link_counts.wrong_counts().for_each(|problem| {
                    report.problem(problem.path, problem.error);
                });
            }
        }
        Err(error) => report.problem(path.to_vec(), error),
    }
    let VerifyProgress { inodes, bytes } = report.progress;
    VerifySummary { inodes, bytes, problems: report.problems }
}

fn verify_tree<'a>(
    inner: &'a ImageInner,
    max_threads: Option<usize>,
    (walk, mut link_counts): (TreeWalk<'a>, LinkCounts),
    report: &mut VerifyReport<'_>,
) -> LinkCounts {
    let threads = max_threads.unwrap_or_else(|| HelperBudget::process().total());
    let mut continuity = ContinuityCheck::default();
    let run =
        OrderedPipeline::new().max_threads(threads.min(inner.engine.decode_slots.count())).run(
            VerifyBatches::new(walk, &mut link_counts),
            || (),
            |(), batch| Ok::<_, std::convert::Infallible>(inspect(inner, batch)),
            |found| {
                report.commit(found, &mut continuity);
                Ok(())
            },
        );
    match run {
        Ok(_) => link_counts,
        Err(never) => match never {},
    }
}

/// What was found in a batch.
enum BatchResult {
    Inodes { inodes: u64, bytes: u64, problems: Vec<PathError> },
    FilePart { part: FilePart, read: Result<Range<u64>>, others: Vec<Error> },
}

/// Verifies a batch, on any thread. A source that panics is a problem like any other.
fn inspect(inner: &ImageInner, batch: VerifyBatch) -> BatchResult {
    match batch {
        VerifyBatch::Inodes(batch) => {
            let (mut inodes, mut bytes, mut problems) = (0u64, 0u64, Vec::new());
            for one in batch {
                let node = match one {
                    Ok(node) => node,
                    Err(problem) => {
                        problems.push(problem);
                        continue;
                    }
                };
                inodes = inodes.saturating_add(1);
                match contained(|| contents(inner, &node.inode)) {
                    Ok(read) => bytes = bytes.saturating_add(read),
                    Err(error) => problems.push(PathError { path: node.path.clone(), error }),
                }
                if let Err(error) = contained(|| inner.check_xattrs(&node.inode)) {
                    problems.push(PathError { path: node.path, error });
                }
            }
            BatchResult::Inodes { inodes, bytes, problems }
        }
        VerifyBatch::FilePart(part) => {
            let WalkEntry { inode, .. } = &*part.node;
            let mut others = Vec::new();
            let sound = if part.is_first() {
                others.extend(contained(|| inner.check_xattrs(inode)).err());
                contained(|| ExtentMap::new(inner, inode)?.check())
            } else {
                Ok(())
            };
            let range = part.range.clone();
            let read = sound.and_then(|()| contained(|| read_through(inner, inode, range)));
            BatchResult::FilePart { part, read, others }
        }
    }
}

fn contained<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    // What a panic leaves half done is dropped here: a slot, a permit.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(ErrorKind::Panicked.into()))
}

/// Reads the contents of an inode; answers how many bytes a file has.
fn contents(inner: &ImageInner, inode: &Inode) -> Result<u64> {
    match inode.file_type() {
        FileType::Regular => {
            ExtentMap::new(inner, inode)?.check()?;
            read_through(inner, inode, 0..inode.size())?;
            Ok(inode.size())
        }
        FileType::Symlink => inner.read_link(inode).map(|_| 0),
        // Only other names of it can be counted, and a directory has one of them.
        FileType::Directory if inode.nlink() == 0 => {
            let error = Error::new(ErrorKind::LinkCount { nlink: 0, names: 1 });
            Err(error.in_inode(inode.nid()).at(inode.place().1))
        }
        _ => Ok(0),
    }
}

/// Reads a range of a file, and nothing is done with it.
fn read_through(inner: &ImageInner, inode: &Inode, range: Range<u64>) -> Result<Range<u64>> {
    inner.for_each_piece_in(inode, range, &mut |_: FilePiece<'_>| Ok::<(), Error>(()))
}

/// The image, or a device that was given, is shorter than it says.
pub(crate) fn truncation(inner: &ImageInner) -> Option<Error> {
    let whole = inner.engine.devices.primary().length();
    let slots = inner.slots.iter().zip(inner.engine.devices.given_lengths());
    let devices = slots.map(|(slot, given)| match given {
        Some(length) => (slot.blocks, length),
        // A device that was not given has to lie behind the image.
        None => (slot.unified_block.saturating_add(slot.blocks), whole),
    });
    let all = std::iter::once((inner.sb.blocks, whole)).chain(devices);
    for (blocks, length) in all {
        let promised = inner.sb.block_size.offset_of(blocks).unwrap_or(u64::MAX);
        if promised > length {
            return Some(Error::new(ErrorKind::Truncated { promised, length }).at(length));
        }
    }
    None
}

/// Tells the caller.
struct VerifyReport<'a> {
    on_event: &'a mut dyn FnMut(VerifyEvent),
    progress: VerifyProgress,
    problems: u64,
}

impl VerifyReport<'_> {
    fn problem(&mut self, path: Vec<u8>, error: Error) {
        self.problems = self.problems.saturating_add(1);
        (self.on_event)(VerifyEvent::Problem(PathError { path, error }));
    }

    fn commit(&mut self, found: BatchResult, continuity: &mut ContinuityCheck) {
        match found {
            BatchResult::Inodes { inodes, bytes, problems } => {
                self.progress.inodes = self.progress.inodes.saturating_add(inodes);
                self.progress.bytes = self.progress.bytes.saturating_add(bytes);
                problems
                    .into_iter()
                    .for_each(|PathError { path, error }| self.problem(path, error));
            }
            BatchResult::FilePart { part, read, others } => {
                if let Ok(covered) = &read {
                    let bytes = covered.end.saturating_sub(covered.start);
                    self.progress.bytes = self.progress.bytes.saturating_add(bytes);
                }
                let fault = continuity.join(&part, read);
                for error in fault.into_iter().chain(others) {
                    self.problem(part.node.path.clone(), error);
                }
                if part.is_last() {
                    self.progress.inodes = self.progress.inodes.saturating_add(1);
                }
            }
        }
        (self.on_event)(VerifyEvent::Progress(self.progress));
    }
}
