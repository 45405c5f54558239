//! What to write, in which order, in which segments: an iterator over the walk. It reads metadata,
//! never data, and decides everything that must not depend on threads: which names are hard links,
//! where the stream is cut. Called on one thread, by `OrderedPipeline` through [`super::write_tar`].

use std::collections::HashMap;
use std::collections::hash_map::Entry as Place;
use std::ops::Range;
use std::sync::Arc;

use ferrofs_image::{ExtentStorage, FileType, Image, Inode, Nid, TreeWalk, WalkEntry, WalkEvent};
use ferrofs_workers::memory::{AllocPolicy, Charge};

use super::catch_panic::catch_panic;
use super::check_cancelled;
use super::layout::SparseLayout;
use super::segment::{
    CONTENTS_MAX_BYTES, LONG_BYTES, LongFile, SEGMENT_BYTES, TarFilePart, TarItem, TarSegment,
};
use crate::error::{Error, ErrorKind};
use crate::hard_links::{KNOWN_BYTES, STEP_BYTES};
use crate::options::WriteTarOptions;
use crate::selection::{MatchedPatterns, SelectionMatch};

/// What an entry counts beside its contents and its path: headers, and the inode in memory.
const ENTRY_BYTES: u64 = 2048;

/// The plan of a stream, segment by segment.
pub(super) struct TarPlanner<'a> {
    image: &'a Image,
    walk: TreeWalk<'a>,
    matches: MatchedPatterns,
    options: &'a WriteTarOptions,
    /// Directories above what may be selected, from the outermost, which are written when something in
    /// them is. The root is not among them: it is written only if it is selected itself.
    ancestors: Vec<WalkEntry>,
    links: HashMap<Nid, LinkSource>,
    /// What `links` takes, in bytes, and what of it is charged.
    links_bytes: u64,
    links_charge: Option<Charge>,
    batch: Vec<TarItem>,
    batch_bytes: u64,
    /// A file of which parts are still to come.
    long: Option<PartCursor>,
    /// A file that comes when the batch before it is out.
    next_long: Option<PartCursor>,
    is_over: bool,
}

/// The name under which an inode was written, and how many more it should have.
#[derive(Debug)]
struct LinkSource {
    path: Vec<u8>,
    names_left: u32,
}

/// The parts of a file that are left.
#[derive(Debug)]
struct PartCursor {
    file: Arc<LongFile>,
    /// The range of the layout that is next, and the byte of the file where it goes on.
    range: usize,
    at: u64,
    is_first: bool,
}

impl<'a> TarPlanner<'a> {
    pub(super) fn new(image: &'a Image, walk: TreeWalk<'a>, options: &'a WriteTarOptions) -> Self {
        Self {
            image,
            walk,
            matches: options.selection.matches(),
            options,
            ancestors: Vec::new(),
            links: HashMap::new(),
            links_bytes: 0,
            links_charge: None,
            batch: Vec::new(),
            batch_bytes: 0,
            long: None,
            next_long: None,
            is_over: false,
        }
    }

    /// The patterns that have selected nothing; to be asked at the end.
    pub(super) fn unmatched(&self) -> impl Iterator<Item = &[u8]> {
        self.options.selection.unmatched(&self.matches)
    }

    /// Takes one step of the walk.
    fn step(&mut self) -> Result<(), Error> {
        check_cancelled(&self.options.cancel)?;
        let visit = catch_panic(|| Ok(self.walk.next())).map_err(|kind| Error::new(kind, b""))?;
        match visit {
            None => self.is_over = true,
            Some(WalkEvent::Enter(node)) => self.enter(node),
            Some(WalkEvent::Leaf(node)) => {
                if self.classify(&node.path) == SelectionMatch::Inside {
                    self.leaf(node);
                }
            }
            Some(WalkEvent::Leave(node)) => {
                if self.ancestors.last().is_some_and(|ancestor| ancestor.path == node.path) {
                    self.ancestors.pop();
                }
            }
            Some(WalkEvent::Problem(problem)) => {
                if self.classify(&problem.path) != SelectionMatch::Outside {
                    let error = Error::new(problem.error.into(), &problem.path);
                    self.add(TarItem::Failed(error), ENTRY_BYTES);
                }
            }
        }
        self.settle_charge()
    }

    /// Sees to it that what is remembered of links is charged.
    fn settle_charge(&mut self) -> Result<(), Error> {
        let Some(budget) = &self.options.budget else { return Ok(()) };
        while self.links_charge.as_ref().map_or(0, Charge::bytes) < self.links_bytes {
            let charged = match &mut self.links_charge {
                Some(charge) => charge.grow(STEP_BYTES, AllocPolicy::MustSucceed),
                none => budget
                    .charge(STEP_BYTES, AllocPolicy::MustSucceed)
                    .map(|charge| *none = Some(charge)),
            };
            charged.map_err(|error| Error::new(ErrorKind::Memory(error), b""))?;
        }
        Ok(())
    }

    fn classify(&mut self, path: &[u8]) -> SelectionMatch {
        self.options.selection.classify(path, &mut self.matches)
    }

    fn enter(&mut self, node: WalkEntry) {
        match self.classify(&node.path) {
            SelectionMatch::Outside => self.walk.skip_children(),
            SelectionMatch::Ancestor if node.path == b"/" => {}
            SelectionMatch::Ancestor => self.ancestors.push(node),
            SelectionMatch::Inside => self.entry(node),
        }
    }

    /// Plans something that is not a directory.
    fn leaf(&mut self, node: WalkEntry) {
        if let Some(first) = self.first_name(&node) {
            self.add_ancestors();
            let bytes = path_bytes(&node) + first.len() as u64;
            return self.add(TarItem::Link(node, first), bytes);
        }
        let is_regular = node.inode.file_type() == FileType::Regular;
        if !is_regular || node.inode.size() <= LONG_BYTES {
            return self.entry(node);
        }
        match catch_panic(|| {
            SparseLayout::of(self.image, &node.inode, self.options.holes, &self.options.cancel)
        }) {
            Ok(layout) => {
                self.add_ancestors();
                let file = Arc::new(LongFile { node, layout });
                self.next_long = Some(PartCursor { file, range: 0, at: 0, is_first: true });
            }
            Err(kind) => self.add(TarItem::LeftOut(node, kind), ENTRY_BYTES),
        }
    }

    fn entry(&mut self, node: WalkEntry) {
        self.add_ancestors();
        let contents =
            if node.inode.file_type() == FileType::Regular { node.inode.size() } else { 0 };
        let bytes = path_bytes(&node).saturating_add(contents);
        self.add(TarItem::Entry(node), bytes);
    }

    /// The first name of an inode that was planned before; otherwise this is the first.
    fn first_name(&mut self, node: &WalkEntry) -> Option<Vec<u8>> {
        let inode = &node.inode;
        if inode.nlink() < 2 {
            return None;
        }
        match self.links.entry(inode.nid()) {
            Place::Vacant(place) => {
                let names_left = inode.nlink() - 1;
                place.insert(LinkSource { path: node.path.clone(), names_left });
                self.links_bytes = self.links_bytes.saturating_add(known_bytes(&node.path));
                None
            }
            Place::Occupied(mut place) => {
                place.get_mut().names_left -= 1;
                // Inodes whose names are all known are forgotten.
                if place.get().names_left > 0 {
                    return Some(place.get().path.clone());
                }
                let path = place.remove().path;
                self.links_bytes = self.links_bytes.saturating_sub(known_bytes(&path));
                Some(path)
            }
        }
    }

    /// Plans the directories above what is selected.
    fn add_ancestors(&mut self) {
        for node in std::mem::take(&mut self.ancestors) {
            let bytes = path_bytes(&node);
            self.add(TarItem::Entry(node), bytes);
        }
    }

    fn add(&mut self, item: TarItem, bytes: u64) {
        self.batch.push(item);
        self.batch_bytes = self.batch_bytes.saturating_add(bytes);
    }

    fn next_segment(&mut self) -> Result<Option<TarSegment>, Error> {
        loop {
            if let Some(parts) = &mut self.long {
                let part = parts.next_part(self.image);
                if part.is_last {
                    self.long = None;
                }
                return Ok(Some(TarSegment::Part(part)));
            }
            let is_due = self.next_long.is_some() || self.is_over;
            if self.batch_bytes >= SEGMENT_BYTES || (is_due && !self.batch.is_empty()) {
                self.batch_bytes = 0;
                return Ok(Some(TarSegment::Members(std::mem::take(&mut self.batch))));
            }
            match self.next_long.take() {
                Some(long) => self.long = Some(long),
                None if self.is_over => return Ok(None),
                None => self.step()?,
            }
        }
    }
}

impl Iterator for TarPlanner<'_> {
    /// An error is the last item: nothing behind it could be right.
    type Item = Result<TarSegment, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_segment().transpose()
    }
}

impl PartCursor {
    /// The next part; the last one is marked.
    fn next_part(&mut self, image: &Image) -> TarFilePart {
        let file = Arc::clone(&self.file);
        let mut ranges = Vec::new();
        let mut bytes = 0;
        while bytes < SEGMENT_BYTES
            && let Some(range) = file.layout.ranges().get(self.range)
        {
            let start = self.at.max(range.start);
            let end = cut(image, &file.node.inode, start..range.end, bytes);
            bytes += end - start;
            ranges.push(start..end);
            self.at = end;
            if end == range.end {
                self.range += 1;
            }
        }
        let is_first = std::mem::replace(&mut self.is_first, false);
        let is_last = self.range == file.layout.ranges().len();
        TarFilePart { file, ranges, is_first, is_last }
    }
}

/// Where to end a part of `range` in a segment that has `used` bytes: not within a cluster, which
/// would be decoded twice, unless the cluster would make the segment too long. Always behind the start
/// of the range.
fn cut(image: &Image, inode: &Inode, range: Range<u64>, used: u64) -> u64 {
    let wanted = range.end.min(range.start.saturating_add(SEGMENT_BYTES.saturating_sub(used)));
    if wanted == range.end {
        return wanted;
    }
    let limit = range.end.min(range.start.saturating_add(CONTENTS_MAX_BYTES.saturating_sub(used)));
    // The one that holds the last byte before the cut.
    let holder = catch_panic(|| Ok(image.file_extents(inode, wanted - 1)?.next().transpose()?));
    match holder {
        Ok(Some(found)) if found.storage == ExtentStorage::Cluster && found.end <= limit => {
            found.end
        }
        // Damage shows to who reads there.
        _ => wanted,
    }
}

/// What an inode with several names takes, in bytes, about.
fn known_bytes(path: &[u8]) -> u64 {
    KNOWN_BYTES.saturating_add(path.len() as u64)
}

fn path_bytes(node: &WalkEntry) -> u64 {
    ENTRY_BYTES.saturating_add((node.path.len() as u64).saturating_mul(2))
}
