//! Verifying a whole image: all metadata, and every byte of every file.

use std::collections::HashMap;

use ferrofs_ondisk::{FileType, Nid};

use crate::error::{Error, ErrorKind, Result};
use crate::image::Core;
use crate::inode::Inode;
use crate::map::Map;
use crate::pieces::Piece;
use crate::walk::{Node, Problem, Visit, Walk};

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

/// Bytes between two progress events inside one file.
const PROGRESS_BYTES: u64 = 4 << 20;
/// Bytes of names that are kept for a later report.
const NAMES_MAX_BYTES: usize = 16 << 20;

pub(crate) fn verify(core: &Core, on_event: &mut dyn FnMut(VerifyEvent)) -> VerifySummary {
    let mut verifier = Verifier {
        core,
        on_event,
        progress: Progress::default(),
        problems: 0,
        seen: HashMap::new(),
        names_left: NAMES_MAX_BYTES,
    };
    if let Some(error) = truncation(core) {
        verifier.report(Vec::new(), error);
    }
    match Walk::new(core, b"/") {
        Ok(walk) => walk.for_each(|visit| verifier.visit(visit)),
        Err(error) => verifier.report(b"/".to_vec(), error),
    }
    verifier.check_links();
    let Progress { inodes, bytes } = verifier.progress;
    VerifySummary { inodes, bytes, problems: verifier.problems }
}

/// The image, or a device that was given, is shorter than it says.
pub(crate) fn truncation(core: &Core) -> Option<Error> {
    let whole = core.devices.primary().length();
    let slots = core.slots.iter().zip(core.devices.given_lengths());
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

/// How often an inode that is no directory has been met.
struct Seen {
    nlink: u32,
    names: u64,
    offset: u64,
    /// The first name, kept where a wrong count would be reported under it; empty once that would
    /// take too much memory.
    path: Vec<u8>,
}

struct Verifier<'a> {
    core: &'a Core,
    on_event: &'a mut dyn FnMut(VerifyEvent),
    progress: Progress,
    problems: u64,
    seen: HashMap<Nid, Seen>,
    /// Bytes that kept names may still take.
    names_left: usize,
}

impl Verifier<'_> {
    fn report(&mut self, path: Vec<u8>, error: Error) {
        self.problems = self.problems.saturating_add(1);
        (self.on_event)(VerifyEvent::Problem(Problem { path, error }));
    }

    fn visit(&mut self, visit: Visit) {
        match visit {
            Visit::Enter(node) => self.inode(&node),
            Visit::Leaf(node) if self.is_new(&node) => self.inode(&node),
            Visit::Leaf(_) | Visit::Leave(_) => {}
            Visit::Problem(Problem { path, error }) => self.report(path, error),
        }
    }

    /// Whether the inode is met for the first time; counts its names.
    fn is_new(&mut self, node: &Node) -> bool {
        let nlink = node.inode.nlink();
        let fits = node.path.len() <= self.names_left;
        let seen = self.seen.entry(node.inode.nid()).or_insert_with(|| Seen {
            nlink,
            names: 0,
            offset: node.inode.place().1,
            path: Vec::new(),
        });
        seen.names = seen.names.saturating_add(1);
        if seen.path.is_empty() && fits && (nlink != 1 || seen.names > 1) {
            seen.path.clone_from(&node.path);
            self.names_left = self.names_left.saturating_sub(node.path.len());
        }
        seen.names == 1
    }

    fn check_links(&mut self) {
        let seen = std::mem::take(&mut self.seen);
        let mut wrong: Vec<_> =
            seen.into_iter().filter(|(_, seen)| u64::from(seen.nlink) != seen.names).collect();
        wrong.sort_by(|(_, a), (_, b)| a.path.cmp(&b.path));
        for (nid, seen) in wrong {
            let kind = ErrorKind::LinkCount { nlink: seen.nlink, names: seen.names };
            self.report(seen.path, Error::new(kind).in_inode(nid).at(seen.offset));
        }
    }

    fn inode(&mut self, node: &Node) {
        let contents = self.contents(&node.inode);
        let xattrs = self.core.check_xattrs(&node.inode);
        for error in contents.err().into_iter().chain(xattrs.err()) {
            self.report(node.path.clone(), error);
        }
        self.progress.inodes = self.progress.inodes.saturating_add(1);
        (self.on_event)(VerifyEvent::Progress(self.progress));
    }

    fn contents(&mut self, inode: &Inode) -> Result<()> {
        match inode.file_type() {
            FileType::Regular => self.file(inode),
            FileType::Symlink => self.core.read_link(inode).map(|_| ()),
            // Only other names of it can be counted, and a directory has one of them.
            FileType::Directory if inode.nlink() == 0 => {
                let error = Error::new(ErrorKind::LinkCount { nlink: 0, names: 1 });
                Err(error.in_inode(inode.nid()).at(inode.place().1))
            }
            _ => Ok(()),
        }
    }

    fn file(&mut self, inode: &Inode) -> Result<()> {
        Map::new(self.core, inode)?.check()?;
        let mut unreported = 0u64;
        let covered = self.core.for_each_piece_in(inode, 0..inode.size(), &mut |piece| {
            let bytes = match piece {
                Piece::Data { bytes, .. } => u64::try_from(bytes.len()).unwrap_or(u64::MAX),
                Piece::Hole { length, .. } => length,
            };
            self.progress.bytes = self.progress.bytes.saturating_add(bytes);
            unreported = unreported.saturating_add(bytes);
            if unreported >= PROGRESS_BYTES {
                unreported = 0;
                (self.on_event)(VerifyEvent::Progress(self.progress));
            }
            Ok(())
        });
        covered.map(|_| ())
    }
}
