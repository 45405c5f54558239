//! The entries of a tar in their order, cut into segments: an iterator over the walk. It reads
//! metadata, never data, and decides everything that must not depend on the threads: which names
//! are hard links, and where a segment ends. Called on one thread, by `OrderedPipeline` in
//! [`super::write_tar`].

use std::ops::Range;
use std::sync::Arc;

use ferrofs_image::{
    ExtentStorage, FileType, Image, Inode, TreeWalk, WalkEntry, WalkEvent, WorkMeter,
};

use super::check_cancelled;
use super::layout::SparseLayout;
use crate::error::{Error, ErrorKind, catch_panic};
use crate::links::InodeTable;
use crate::options::WriteTarOptions;
use crate::selection::{MatchedPatterns, SelectionMatch, data_bytes};

/// The bytes of an entry without its contents and its path: headers, and the inode in memory.
const ENTRY_BYTES: u64 = 2048;

/// The plan of a stream, segment by segment.
pub(super) struct TarPlanner<'a> {
    image: &'a Image,
    walk: TreeWalk<'a>,
    matches: MatchedPatterns,
    options: &'a WriteTarOptions,
    /// Directories above entries that may be selected, the outermost first. They are written before
    /// the first selected entry in them. The root is not among them: it is written only if it is
    /// selected. Their paths begin the path of every entry in them.
    ancestors: Vec<Ancestor>,
    /// How many of them have been written.
    written_ancestors: usize,
    /// A selected entry whose ancestors are written first.
    pending: Option<WalkEntry>,
    /// The path of the first name of each inode that may have more.
    links: InodeTable<Vec<u8>>,
    batch: Vec<TarItem>,
    batch_bytes: u64,
    /// The long file that is being cut into parts.
    long: Option<PartCursor>,
    /// The long file that follows the current batch.
    next_long: Option<PartCursor>,
    /// The entry with many attributes that follows the current batch, and their bytes.
    next_large: Option<(WalkEntry, u64)>,
    is_over: bool,
}

/// A directory on the way to entries that may be selected.
#[derive(Debug)]
struct Ancestor {
    inode: Inode,
    path_bytes: usize,
}

/// The remaining parts of a long file.
#[derive(Debug)]
struct PartCursor {
    file: Arc<LongFile>,
    /// The index of the next range of the layout, and the next byte of the file.
    range: usize,
    at: u64,
    is_first: bool,
}

impl<'a> TarPlanner<'a> {
    pub(super) fn new(
        image: &'a Image,
        walk: TreeWalk<'a>,
        options: &'a WriteTarOptions,
        work: &WorkMeter,
    ) -> Self {
        Self {
            image,
            walk,
            matches: options.selection.matches(),
            options,
            ancestors: Vec::new(),
            written_ancestors: 0,
            pending: None,
            links: InodeTable::new(options.budget.as_ref(), image, work),
            batch: Vec::new(),
            batch_bytes: 0,
            long: None,
            next_long: None,
            next_large: None,
            is_over: false,
        }
    }

    /// The patterns that have selected nothing; complete when the iterator has ended.
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
                    self.pending = Some(node);
                }
            }
            Some(WalkEvent::Leave(node)) => {
                // The directories that are left lie in each other: the length tells them apart.
                let is_last = |last: &Ancestor| last.path_bytes == node.path.len();
                if self.ancestors.last().is_some_and(is_last) {
                    self.ancestors.pop();
                    self.written_ancestors = self.written_ancestors.min(self.ancestors.len());
                }
            }
            Some(WalkEvent::Problem(problem)) => {
                if self.classify(&problem.path) != SelectionMatch::Outside {
                    let error = Error::new(problem.error.into(), &problem.path);
                    let bytes = ENTRY_BYTES.saturating_add(problem.path.len() as u64);
                    self.add(TarItem::Failed(error), bytes);
                }
            }
        }
        self.links.settle_charge().map_err(|kind| Error::new(kind, b""))
    }

    /// Adds the next directory above the pending entry, or that entry.
    fn add_pending(&mut self, node: WalkEntry) -> Result<(), Error> {
        if let Some(ancestor) = self.ancestors.get(self.written_ancestors) {
            let path = node.path.get(..ancestor.path_bytes).unwrap_or_default().to_vec();
            let above = WalkEntry { path, inode: ancestor.inode.clone() };
            self.written_ancestors += 1;
            self.pending = Some(node);
            self.entry(above);
            return Ok(());
        }
        match node.inode.file_type() {
            FileType::Directory => {
                self.entry(node);
                Ok(())
            }
            _ => self.leaf(node),
        }
    }

    fn classify(&mut self, path: &[u8]) -> SelectionMatch {
        self.options.selection.classify(path, &mut self.matches)
    }

    fn enter(&mut self, node: WalkEntry) {
        match self.classify(&node.path) {
            SelectionMatch::Outside => self.walk.skip_children(),
            SelectionMatch::Ancestor if node.path == b"/" => {}
            SelectionMatch::Ancestor => {
                let WalkEntry { path, inode } = node;
                self.ancestors.push(Ancestor { inode, path_bytes: path.len() });
            }
            SelectionMatch::Inside => self.pending = Some(node),
        }
    }

    /// Adds an entry that is not a directory.
    ///
    /// # Errors
    /// As [`first_name`](Self::first_name).
    fn leaf(&mut self, node: WalkEntry) -> Result<(), Error> {
        if let Some(first) = self.first_name(&node)? {
            let bytes = path_bytes(&node) + first.len() as u64;
            // A directory that has a name twice: programs refuse a hard link to itself.
            let is_same = first == node.path;
            let failed = || TarItem::Failed(Error::new(ErrorKind::Exists, &node.path));
            let item = if is_same { failed() } else { TarItem::Link(node, first) };
            self.add(item, bytes);
            return Ok(());
        }
        let is_regular = node.inode.file_type() == FileType::Regular;
        if !is_regular || node.inode.size() <= LONG_BYTES {
            self.entry(node);
            return Ok(());
        }
        match catch_panic(|| {
            SparseLayout::of(self.image, &node.inode, self.options.holes, &self.options.cancel)
        }) {
            Ok(layout) => {
                let xattrs_bytes = self.xattrs_bytes(&node.inode);
                let file = Arc::new(LongFile { node, layout, xattrs_bytes });
                self.next_long = Some(PartCursor { file, range: 0, at: 0, is_first: true });
            }
            Err(kind) => self.add(TarItem::LeftOut(node, kind), ENTRY_BYTES),
        }
        Ok(())
    }

    fn entry(&mut self, node: WalkEntry) {
        let xattrs_bytes = self.xattrs_bytes(&node.inode);
        if xattrs_bytes > XATTRS_MAX_BYTES {
            self.next_large = Some((node, xattrs_bytes));
            return;
        }
        let bytes = path_bytes(&node).saturating_add(data_bytes(&node.inode));
        self.add(TarItem::Entry(node), bytes.saturating_add(xattrs_bytes));
    }

    /// The bytes of the attributes; 0 if they cannot be read, which the renderer reports.
    fn xattrs_bytes(&self, inode: &Inode) -> u64 {
        if !inode.has_xattrs() {
            return 0;
        }
        catch_panic(|| Ok(self.image.xattrs_bytes(inode)?)).unwrap_or(0)
    }

    /// The first name of the inode, if `node` is a further one.
    ///
    /// # Errors
    /// As [`InodeTable::count_contents`].
    fn first_name(&mut self, node: &WalkEntry) -> Result<Option<Vec<u8>>, Error> {
        let inode = &node.inode;
        if inode.nlink() < 2 {
            return Ok(None);
        }
        let first = self.links.get(inode.nid()).cloned();
        if first.is_some() {
            self.links.count_name(inode.nid());
        } else {
            let counted = self.links.count_contents(inode);
            counted.map_err(|kind| Error::new(kind, b""))?;
            self.links.insert(inode, node.path.clone(), node.path.len());
        }
        Ok(first)
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
            let is_due = self.next_long.is_some() || self.next_large.is_some() || self.is_over;
            if self.batch_bytes >= SEGMENT_BYTES || (is_due && !self.batch.is_empty()) {
                self.batch_bytes = 0;
                return Ok(Some(TarSegment::Members(std::mem::take(&mut self.batch))));
            }
            if let Some((node, xattrs_bytes)) = self.next_large.take() {
                return Ok(Some(TarSegment::Large(node, xattrs_bytes)));
            }
            if let Some(node) = self.pending.take() {
                self.add_pending(node)?;
                continue;
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
    /// An error is the last item: no complete tar is possible after it.
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
            let end = part_end(image, &file.node.inode, start..range.end, bytes);
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

/// The end of a part that begins with `range`, in a segment that has `used` bytes. It does not lie
/// within a cluster, which would be decoded twice, unless the cluster would make the segment too
/// long. It is always after the start of the range.
fn part_end(image: &Image, inode: &Inode, range: Range<u64>, used: u64) -> u64 {
    let wanted = range.end.min(range.start.saturating_add(SEGMENT_BYTES.saturating_sub(used)));
    if wanted == range.end {
        return wanted;
    }
    let limit = range.end.min(range.start.saturating_add(CONTENTS_MAX_BYTES.saturating_sub(used)));
    // The extent that holds the last byte before the end.
    let holder = catch_panic(|| Ok(image.file_extents(inode, wanted - 1)?.next().transpose()?));
    match holder {
        Ok(Some(found)) if found.storage == ExtentStorage::Cluster && found.end <= limit => {
            found.end
        }
        // The renderer will report an error there.
        _ => wanted,
    }
}

fn path_bytes(node: &WalkEntry) -> u64 {
    ENTRY_BYTES.saturating_add((node.path.len() as u64).saturating_mul(2))
}

/// The target size of a segment: large enough that passing it to a thread costs little beside the
/// work in it, and small enough that several for each thread fit into a small budget.
pub(super) const SEGMENT_BYTES: u64 = 1 << 20;

/// The charge of a segment: headers, or a cluster that stays whole, may make it longer than
/// [`SEGMENT_BYTES`]. Only entries with more than [`XATTRS_MAX_BYTES`] of attributes need more.
pub(super) const SEGMENT_MAX_BYTES: u64 = 2 << 20;

/// An entry whose attributes take more has a segment of its own, which is rendered when it is the
/// next one to be written and its memory is charged: a hostile image can have 16 MiB for each entry.
pub(super) const XATTRS_MAX_BYTES: u64 = 256 << 10;

/// The most contents of a segment; the rest is for headers and a map.
pub(super) const CONTENTS_MAX_BYTES: u64 = SEGMENT_MAX_BYTES - (256 << 10);

/// Longer files have segments of their own. Shorter files share segments, which stay below the
/// maximum with each of them.
pub(super) const LONG_BYTES: u64 = 512 << 10;

/// A segment of the stream.
#[derive(Debug)]
pub(super) enum TarSegment {
    /// Whole members.
    Members(Vec<TarItem>),
    /// A part of a long file.
    Part(TarFilePart),
    /// A member with so many bytes of attributes, more than [`XATTRS_MAX_BYTES`].
    Large(WalkEntry, u64),
}

impl TarSegment {
    /// The path of its first entry.
    pub(super) fn path(&self) -> &[u8] {
        match self {
            Self::Part(part) => &part.file.node.path,
            Self::Large(node, _) => &node.path,
            Self::Members(_) => b"",
        }
    }

    /// The bytes of attributes that have to be charged before they are read.
    pub(super) fn large_xattrs_bytes(&self) -> Option<u64> {
        let bytes = match self {
            Self::Members(_) => 0,
            Self::Part(part) if part.is_first => part.file.xattrs_bytes,
            Self::Part(_) => 0,
            Self::Large(_, bytes) => *bytes,
        };
        (bytes > XATTRS_MAX_BYTES).then_some(bytes)
    }
}

/// An item of a segment, in the order of the walk.
#[derive(Debug)]
pub(super) enum TarItem {
    /// An inode under its first name.
    Entry(WalkEntry),
    /// A further name of an inode, and the first name.
    Link(WalkEntry, Vec<u8>),
    /// An inode that is left out, and the reason.
    LeftOut(WalkEntry, ErrorKind),
    /// A failure that is reported at this place.
    Failed(Error),
}

/// A part of a long file.
#[derive(Debug)]
pub(super) struct TarFilePart {
    pub(super) file: Arc<LongFile>,
    /// Ranges of the file, in order.
    pub(super) ranges: Vec<Range<u64>>,
    /// The headers come before this part.
    pub(super) is_first: bool,
    /// The padding comes after this part.
    pub(super) is_last: bool,
}

/// A file that is written in parts.
#[derive(Debug)]
pub(super) struct LongFile {
    pub(super) node: WalkEntry,
    pub(super) layout: SparseLayout,
    /// The bytes of its attributes.
    pub(super) xattrs_bytes: u64,
}
