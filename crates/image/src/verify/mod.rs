//! Verifying a whole image: all metadata, and every byte of every file.

mod batch;
mod census;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ferrofs_ondisk::FileType;
use ferrofs_workers::jobs::{Helpers, Ordered};

use crate::error::{Error, ErrorKind, Result};
use crate::image::Core;
use crate::inode::Inode;
use crate::map::Map;
use crate::pieces::Piece;
use crate::walk::{Node, Problem, Walk};
use batch::{Batch, Batches, Part, Seam};
use census::Census;

/// What a verification reports on its way.
#[derive(Debug)]
pub enum VerifyEvent {
    /// Something is wrong.
    Problem(Problem),
    /// So much has been read.
    Progress(Progress),
}

/// How far a verification is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
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
    core: &Core,
    path: &[u8],
    max_threads: Option<usize>,
    on_event: &mut dyn FnMut(VerifyEvent),
) -> VerifySummary {
    let mut report = Report { on_event, progress: Progress::default(), problems: 0 };
    if let Some(error) = truncation(core) {
        report.problem(Vec::new(), error);
    }
    let begun = Walk::new(core, path)
        .and_then(|walk| Census::new(&core.engine.memory).map(|census| (walk, census)));
    match begun {
        Ok((walk, census)) => {
            let census = verify_tree(core, max_threads, (walk, census), &mut report);
            // Below another path than the root not all names of an inode need to be met.
            if path == b"/" {
                census.wrong_counts().for_each(|problem| {
                    report.problem(problem.path, problem.error);
                });
            }
        }
        Err(error) => report.problem(path.to_vec(), error),
    }
    let Progress { inodes, bytes } = report.progress;
    VerifySummary { inodes, bytes, problems: report.problems }
}

fn verify_tree<'a>(
    core: &'a Core,
    max_threads: Option<usize>,
    (walk, mut census): (Walk<'a>, Census),
    report: &mut Report<'_>,
) -> Census {
    let threads = max_threads.unwrap_or_else(|| Helpers::process().total());
    let mut seam = Seam::default();
    let run = Ordered::new().max_threads(threads.min(core.engine.stations.count())).run(
        Batches::new(walk, &mut census),
        || (),
        |(), batch| Ok::<_, std::convert::Infallible>(inspect(core, batch)),
        |found| {
            report.commit(found, &mut seam);
            Ok(())
        },
    );
    match run {
        Ok(_) => census,
        Err(never) => match never {},
    }
}

/// What was found in a batch.
enum Found {
    Inodes { inodes: u64, bytes: u64, problems: Vec<Problem> },
    Part { part: Part, read: Result<Range<u64>>, others: Vec<Error> },
}

/// Verifies a batch, on any thread. A source that panics is a problem like any other.
fn inspect(core: &Core, batch: Batch) -> Found {
    match batch {
        Batch::Inodes(batch) => {
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
                match contained(|| contents(core, &node.inode)) {
                    Ok(read) => bytes = bytes.saturating_add(read),
                    Err(error) => problems.push(Problem { path: node.path.clone(), error }),
                }
                if let Err(error) = contained(|| core.check_xattrs(&node.inode)) {
                    problems.push(Problem { path: node.path, error });
                }
            }
            Found::Inodes { inodes, bytes, problems }
        }
        Batch::Part(part) => {
            let Node { inode, .. } = &*part.node;
            let mut others = Vec::new();
            let sound = if part.is_first() {
                others.extend(contained(|| core.check_xattrs(inode)).err());
                contained(|| Map::new(core, inode)?.check())
            } else {
                Ok(())
            };
            let range = part.range.clone();
            let read = sound.and_then(|()| contained(|| read_through(core, inode, range)));
            Found::Part { part, read, others }
        }
    }
}

fn contained<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    // What a panic leaves half done is dropped here: a station, a ticket.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(ErrorKind::Panicked.into()))
}

/// Reads the contents of an inode; answers how many bytes a file has.
fn contents(core: &Core, inode: &Inode) -> Result<u64> {
    match inode.file_type() {
        FileType::Regular => {
            Map::new(core, inode)?.check()?;
            read_through(core, inode, 0..inode.size())?;
            Ok(inode.size())
        }
        FileType::Symlink => core.read_link(inode).map(|_| 0),
        // Only other names of it can be counted, and a directory has one of them.
        FileType::Directory if inode.nlink() == 0 => {
            let error = Error::new(ErrorKind::LinkCount { nlink: 0, names: 1 });
            Err(error.in_inode(inode.nid()).at(inode.place().1))
        }
        _ => Ok(0),
    }
}

/// Reads a range of a file, and nothing is done with it.
fn read_through(core: &Core, inode: &Inode, range: Range<u64>) -> Result<Range<u64>> {
    core.for_each_piece_in(inode, range, &mut |_: Piece<'_>| Ok::<(), Error>(()))
}

/// The image, or a device that was given, is shorter than it says.
pub(crate) fn truncation(core: &Core) -> Option<Error> {
    let whole = core.engine.devices.primary().length();
    let slots = core.slots.iter().zip(core.engine.devices.given_lengths());
    let devices = slots.map(|(slot, given)| match given {
        Some(length) => (slot.blocks, length),
        // A device that was not given has to lie behind the image.
        None => (slot.unified_block.saturating_add(slot.blocks), whole),
    });
    let all = std::iter::once((core.sb.blocks, whole)).chain(devices);
    for (blocks, length) in all {
        let promised = core.sb.block_size.offset_of(blocks).unwrap_or(u64::MAX);
        if promised > length {
            return Some(Error::new(ErrorKind::Truncated { promised, length }).at(length));
        }
    }
    None
}

/// Tells the caller.
struct Report<'a> {
    on_event: &'a mut dyn FnMut(VerifyEvent),
    progress: Progress,
    problems: u64,
}

impl Report<'_> {
    fn problem(&mut self, path: Vec<u8>, error: Error) {
        self.problems = self.problems.saturating_add(1);
        (self.on_event)(VerifyEvent::Problem(Problem { path, error }));
    }

    fn commit(&mut self, found: Found, seam: &mut Seam) {
        match found {
            Found::Inodes { inodes, bytes, problems } => {
                self.progress.inodes = self.progress.inodes.saturating_add(inodes);
                self.progress.bytes = self.progress.bytes.saturating_add(bytes);
                problems.into_iter().for_each(|Problem { path, error }| self.problem(path, error));
            }
            Found::Part { part, read, others } => {
                if let Ok(covered) = &read {
                    let bytes = covered.end.saturating_sub(covered.start);
                    self.progress.bytes = self.progress.bytes.saturating_add(bytes);
                }
                let fault = seam.join(&part, read);
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
