//! Walks a tree and its image at the same time and pairs the inodes with the same name. Both walks
//! have the same order, so a name that is missing in one of them is noticed at once.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use ferrofs_builder::tree::{Content, NodeId, Tree, TreeNames};
use ferrofs_image::{FileType, Image, Inode, Nid, TreeWalk, WalkEvent};

use crate::output::escape;

/// Work of a batch, in bytes to read: enough that handing it over costs little beside it.
const BATCH_BYTES: u64 = 1 << 20;
/// The cost of an inode besides its contents, in bytes.
const INODE_BYTES: u64 = 8 << 10;
/// Files from here on are compared in parts.
const LARGE_BYTES: u64 = 4 << 20;
/// Bytes of a part at least.
const PART_BYTES: u64 = 2 << 20;
/// The largest number of parts of a file: a file with a hole can have any size.
const PARTS_MAX: u64 = 4096;

/// An inode of the tree, and the inode with the same name in the image.
#[derive(Debug)]
pub(super) struct InodePair {
    /// Without a slash before it; empty for the root.
    pub(super) path: Vec<u8>,
    pub(super) node: NodeId,
    pub(super) inode: Inode,
    /// The expected link count.
    pub(super) names: u32,
    pub(super) ranges: SourceRanges,
}

/// Where the source of a file has data. All parts of the file share the list, which is as long as the one that the build
/// had of the file.
#[derive(Debug, Default)]
pub(super) struct SourceRanges(Mutex<Option<Arc<[Range<u64>]>>>);

impl SourceRanges {
    /// The ranges, ascending and apart. The first call asks the source, and others wait for it.
    ///
    /// # Errors
    /// The source cannot be read again.
    pub(super) fn of(&self, content: &Content) -> ferrofs_builder::Result<Arc<[Range<u64>]>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ranges) = &*known {
            return Ok(Arc::clone(ranges));
        }
        let ranges: Arc<[_]> = content.source().data_ranges()?.into();
        *known = Some(Arc::clone(&ranges));
        Ok(ranges)
    }
}

/// What is compared at a time.
pub(super) enum Item {
    Inodes(Vec<InodePair>),
    Part { pair: Arc<InodePair>, range: Range<u64> },
}

/// Pairs in the order of the tree; the first name of each inode only.
pub(super) struct InodePairs<'a> {
    tree: &'a Tree,
    source: TreeNames<'a>,
    image: TreeWalk<'a>,
    /// The expected link count of each inode.
    links: Vec<u32>,
    /// The inode in the image for each inode of the tree that has several names and was paired.
    seen_nids: HashMap<NodeId, Nid>,
    /// What is left of a large file.
    large_file: Option<(Arc<InodePair>, u64)>,
    next: Option<InodePair>,
    /// What ended the walk.
    difference: Option<Difference>,
    is_finished: bool,
}

impl<'a> InodePairs<'a> {
    pub(super) fn new(image: &'a Image, tree: &'a Tree) -> Result<Self, Difference> {
        let walk = image.walk(b"/").map_err(|error| {
            Difference::new(b"", format!("the image cannot be listed: {error}"))
        })?;
        Ok(Self {
            tree,
            source: tree.names(),
            image: walk,
            links: links(tree),
            seen_nids: HashMap::new(),
            large_file: None,
            next: None,
            difference: None,
            is_finished: false,
        })
    }

    /// The next pair; none for a further name of an inode that was paired already.
    fn pair(&mut self) -> Result<Option<Option<InodePair>>, Difference> {
        let image = loop {
            match self.image.next() {
                Some(WalkEvent::Leave(_)) => {}
                Some(WalkEvent::Enter(node) | WalkEvent::Leaf(node)) => break Some(node),
                Some(WalkEvent::Problem(problem)) => {
                    let path = problem.path.strip_prefix(b"/").unwrap_or(&problem.path);
                    return Err(Difference::new(path, problem.error.to_string()));
                }
                None => break None,
            }
        };
        let (image, node) = match (image, self.source.advance()) {
            (Some(image), Some(node)) => (image, node),
            (None, None) => return Ok(None),
            (None, Some(_)) => return Err(missing(self.source.path())),
            (Some(image), None) => return Err(unexpected(&image.path)),
        };
        let path = self.source.path();
        let found = image.path.strip_prefix(b"/").unwrap_or(&image.path);
        if found != path {
            // Names ascend in both, so the lesser name is missing in the other.
            let is_more = found.split(|byte| *byte == b'/').lt(path.split(|byte| *byte == b'/'));
            return Err(if is_more { unexpected(&image.path) } else { missing(path) });
        }
        let nid = image.inode.nid();
        let names = self.links.get(node.index()).copied().unwrap_or(0);
        if names > 1 && !self.tree.is_directory(node) {
            match self.seen_nids.insert(node, nid) {
                None => {}
                Some(known) if known == nid => return Ok(Some(None)),
                Some(_) => {
                    let what = "it is not a hard link to the same file as in the source".to_owned();
                    return Err(Difference::new(path, what));
                }
            }
        }
        let path = path.to_vec();
        let ranges = SourceRanges::default();
        Ok(Some(Some(InodePair { path, node, inode: image.inode, names, ranges })))
    }

    fn part(&mut self) -> Option<Item> {
        if let Some(pair) = self.next.take() {
            self.large_file = Some((Arc::new(pair), 0));
        }
        let (pair, start) = self.large_file.take()?;
        let size = pair.inode.size();
        let bytes = (size / PARTS_MAX).max(PART_BYTES);
        let end = size.min(start.saturating_add(bytes));
        self.large_file = (end < size).then(|| (Arc::clone(&pair), end));
        Some(Item::Part { pair, range: start..end })
    }

    fn is_large(&self, pair: &InodePair) -> bool {
        pair.inode.file_type() == FileType::Regular
            && pair.inode.size() >= LARGE_BYTES
            && self.tree.content_bytes(pair.node).is_some()
    }
}

impl Iterator for InodePairs<'_> {
    type Item = Result<Item, Difference>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(part) = self.part() {
            return Some(Ok(part));
        }
        let (mut pairs, mut bytes) = (Vec::new(), 0u64);
        while bytes < BATCH_BYTES && self.next.is_none() && !self.is_finished {
            match self.pair() {
                Ok(Some(Some(pair))) if self.is_large(&pair) => self.next = Some(pair),
                Ok(Some(Some(pair))) => {
                    let is_file = pair.inode.file_type() == FileType::Regular;
                    let size = if is_file { pair.inode.size() } else { 0 };
                    bytes = bytes.saturating_add(size).saturating_add(INODE_BYTES);
                    pairs.push(pair);
                }
                Ok(Some(None)) => {}
                Ok(None) => self.is_finished = true,
                Err(difference) => {
                    self.is_finished = true;
                    self.difference = Some(difference);
                }
            }
        }
        if !pairs.is_empty() {
            return Some(Ok(Item::Inodes(pairs)));
        }
        // Items before it may differ, too, and come first.
        self.part().map(Ok).or_else(|| self.difference.take().map(Err))
    }
}

/// What differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    /// The path from the root, without a slash before it; empty for the root, or the image as a
    /// whole.
    path: Vec<u8>,
    /// The byte of the file.
    offset: Option<u64>,
    what: String,
}

impl Difference {
    pub(super) fn new(path: &[u8], what: String) -> Self {
        Self { path: path.to_vec(), offset: None, what }
    }

    pub(super) fn at(self, offset: u64) -> Self {
        Self { offset: Some(offset), ..self }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", escape(&self.path))?;
        }
        if let Some(offset) = self.offset {
            write!(f, "byte {offset}: ")?;
        }
        f.write_str(&self.what)
    }
}

fn missing(path: &[u8]) -> Difference {
    Difference::new(path, "it is not in the image".to_owned())
}

fn unexpected(path: &[u8]) -> Difference {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    Difference::new(path, "it is in the image, but not in the source".to_owned())
}

/// How many links each inode must have: its names, or for a directory itself, its name and its
/// subdirectories.
fn links(tree: &Tree) -> Vec<u32> {
    let mut links = vec![0u32; tree.len()];
    let mut add = |id: NodeId| {
        if let Some(count) = links.get_mut(id.index()) {
            *count = count.saturating_add(1);
        }
    };
    let mut open = vec![Tree::ROOT];
    add(Tree::ROOT);
    add(Tree::ROOT);
    while let Some(directory) = open.pop() {
        for (_, child) in tree.entries(directory) {
            add(child);
            if tree.is_directory(child) {
                add(child);
                add(directory);
                open.push(child);
            }
        }
    }
    links
}
