//! What to write, in which order, in which segments: an iterator over the walk. It reads metadata,
//! never data, and decides everything that must not depend on threads: which names are hard links,
//! where the stream is cut. Called on one thread, by `Ordered` through [`super::write_tar`].

use std::collections::HashMap;
use std::collections::hash_map::Entry as Place;
use std::ops::Range;
use std::sync::Arc;

use ferrofs_image::{FileType, Image, Inode, Nid, Node, Storage, Visit, Walk};
use ferrofs_workers::memory::{Budget, Charge, Policy};

use super::guard::guarded;
use super::layout::Layout;
use super::options::{Holes, TarOptions};
use super::segment::{
    CONTENTS_MAX_BYTES, Item, LONG_BYTES, LongFile, Part, SEGMENT_BYTES, Segment,
};
use crate::error::{Error, ErrorKind};
use crate::hard_links::{KNOWN_BYTES, STEP_BYTES};
use crate::selection::{Matches, Selection, Verdict};

/// What an entry counts beside its contents and its path: headers, and the inode in memory.
const ENTRY_BYTES: u64 = 2048;

/// The plan of a stream.
pub(super) struct Plan<'a> {
    image: &'a Image,
    walk: Walk<'a>,
    selection: &'a Selection,
    matches: Matches,
    holes: Holes,
    /// Directories above what may be selected, from the outermost, which are written when something in
    /// them is. The root is not among them: it is written only if it is selected itself.
    passages: Vec<Node>,
    links: HashMap<Nid, FirstName>,
    /// What `links` takes, in bytes, and what of it is charged.
    links_bytes: u64,
    links_charge: Option<Charge>,
    budget: Option<&'a Budget>,
    batch: Vec<Item>,
    batch_bytes: u64,
    /// A file of which parts are still to come.
    long: Option<Parts>,
    /// A file that comes when the batch before it is out.
    next_long: Option<Parts>,
    is_over: bool,
}

/// The name under which an inode was written, and how many more it should have.
#[derive(Debug)]
struct FirstName {
    path: Vec<u8>,
    names_left: u32,
}

/// The parts of a file that are left.
#[derive(Debug)]
struct Parts {
    file: Arc<LongFile>,
    /// The range of the layout that is next, and the byte of the file where it goes on.
    range: usize,
    at: u64,
    is_first: bool,
}

impl<'a> Plan<'a> {
    pub(super) fn new(image: &'a Image, walk: Walk<'a>, options: &'a TarOptions) -> Self {
        Self {
            image,
            walk,
            selection: &options.selection,
            matches: options.selection.matches(),
            holes: options.holes,
            passages: Vec::new(),
            links: HashMap::new(),
            links_bytes: 0,
            links_charge: None,
            budget: options.budget.as_ref(),
            batch: Vec::new(),
            batch_bytes: 0,
            long: None,
            next_long: None,
            is_over: false,
        }
    }

    /// The patterns that have selected nothing; to be asked at the end.
    pub(super) fn unmatched(&self) -> impl Iterator<Item = &[u8]> {
        self.selection.unmatched(&self.matches)
    }

    /// Takes one step of the walk.
    fn step(&mut self) -> Result<(), Error> {
        let visit = guarded(|| Ok(self.walk.next())).map_err(|kind| Error::new(kind, b""))?;
        match visit {
            None => self.is_over = true,
            Some(Visit::Enter(node)) => self.enter(node),
            Some(Visit::Leaf(node)) => {
                if self.judge(&node.path) == Verdict::Inside {
                    self.leaf(node);
                }
            }
            Some(Visit::Leave(node)) => {
                if self.passages.last().is_some_and(|passage| passage.path == node.path) {
                    self.passages.pop();
                }
            }
            Some(Visit::Problem(problem)) => {
                if self.judge(&problem.path) != Verdict::Outside {
                    let error = Error::new(problem.error.into(), &problem.path);
                    self.add(Item::Failed(error), ENTRY_BYTES);
                }
            }
        }
        self.settle_charge()
    }

    /// Sees to it that what is remembered of links is charged.
    fn settle_charge(&mut self) -> Result<(), Error> {
        let Some(budget) = self.budget else { return Ok(()) };
        while self.links_charge.as_ref().map_or(0, Charge::bytes) < self.links_bytes {
            let charged = match &mut self.links_charge {
                Some(charge) => charge.grow(STEP_BYTES, Policy::MustSucceed),
                none => budget
                    .charge(STEP_BYTES, Policy::MustSucceed)
                    .map(|charge| *none = Some(charge)),
            };
            charged.map_err(|error| Error::new(ErrorKind::Memory(error), b""))?;
        }
        Ok(())
    }

    fn judge(&mut self, path: &[u8]) -> Verdict {
        self.selection.judge(path, &mut self.matches)
    }

    fn enter(&mut self, node: Node) {
        match self.judge(&node.path) {
            Verdict::Outside => self.walk.skip_children(),
            Verdict::Passage if node.path == b"/" => {}
            Verdict::Passage => self.passages.push(node),
            Verdict::Inside => self.entry(node),
        }
    }

    /// Plans something that is not a directory.
    fn leaf(&mut self, node: Node) {
        if let Some(first) = self.first_name(&node) {
            self.open_passages();
            let bytes = path_bytes(&node) + first.len() as u64;
            return self.add(Item::Link(node, first), bytes);
        }
        let is_regular = node.inode.file_type() == FileType::Regular;
        if !is_regular || node.inode.size() <= LONG_BYTES {
            return self.entry(node);
        }
        match guarded(|| Ok(Layout::of(self.image, &node.inode, self.holes)?)) {
            Ok(layout) => {
                self.open_passages();
                let file = Arc::new(LongFile { node, layout });
                self.next_long = Some(Parts { file, range: 0, at: 0, is_first: true });
            }
            Err(kind) => self.add(Item::LeftOut(node, kind), ENTRY_BYTES),
        }
    }

    fn entry(&mut self, node: Node) {
        self.open_passages();
        let contents =
            if node.inode.file_type() == FileType::Regular { node.inode.size() } else { 0 };
        let bytes = path_bytes(&node).saturating_add(contents);
        self.add(Item::Entry(node), bytes);
    }

    /// The first name of an inode that was planned before; otherwise this is the first.
    fn first_name(&mut self, node: &Node) -> Option<Vec<u8>> {
        let inode = &node.inode;
        if inode.nlink() < 2 {
            return None;
        }
        match self.links.entry(inode.nid()) {
            Place::Vacant(place) => {
                let names_left = inode.nlink() - 1;
                place.insert(FirstName { path: node.path.clone(), names_left });
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
    fn open_passages(&mut self) {
        for node in std::mem::take(&mut self.passages) {
            let bytes = path_bytes(&node);
            self.add(Item::Entry(node), bytes);
        }
    }

    fn add(&mut self, item: Item, bytes: u64) {
        self.batch.push(item);
        self.batch_bytes = self.batch_bytes.saturating_add(bytes);
    }

    fn next_segment(&mut self) -> Result<Option<Segment>, Error> {
        loop {
            if let Some(parts) = &mut self.long {
                let part = parts.next_part(self.image);
                if part.is_last {
                    self.long = None;
                }
                return Ok(Some(Segment::Part(part)));
            }
            let is_due = self.next_long.is_some() || self.is_over;
            if self.batch_bytes >= SEGMENT_BYTES || (is_due && !self.batch.is_empty()) {
                self.batch_bytes = 0;
                return Ok(Some(Segment::Members(std::mem::take(&mut self.batch))));
            }
            match self.next_long.take() {
                Some(long) => self.long = Some(long),
                None if self.is_over => return Ok(None),
                None => self.step()?,
            }
        }
    }
}

impl Iterator for Plan<'_> {
    /// An error is the last item: nothing behind it could be right.
    type Item = Result<Segment, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_segment().transpose()
    }
}

impl Parts {
    /// The next part; the last one is marked.
    fn next_part(&mut self, image: &Image) -> Part {
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
        Part { file, ranges, is_first, is_last }
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
    let holder = guarded(|| Ok(image.stored_ranges(inode, wanted - 1)?.next().transpose()?));
    match holder {
        Ok(Some(found)) if found.storage == Storage::Cluster && found.end <= limit => found.end,
        // Damage shows to who reads there.
        _ => wanted,
    }
}

/// What an inode with several names takes, in bytes, about.
fn known_bytes(path: &[u8]) -> u64 {
    KNOWN_BYTES.saturating_add(path.len() as u64)
}

fn path_bytes(node: &Node) -> u64 {
    ENTRY_BYTES.saturating_add((node.path.len() as u64).saturating_mul(2))
}
