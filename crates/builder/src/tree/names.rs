//! Names of a tree, in order: the entries of a directory, and a walk over all of them. Neither holds more than some
//! entries in memory, however large a directory or how deep the tree is.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::Tree;
use super::node::NodeId;
use crate::spill::ordered_map::OrderedMap;
use crate::spill::paged::first;

/// Entries that are read at once, at most.
const BATCH_MAX: usize = 128;
/// Entries that are read at once at first.
const BATCH_MIN: usize = 8;

/// The key of an entry.
pub(super) fn entry_key(parent: NodeId, name: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(4 + name.len() + 1);
    key.extend_from_slice(&parent.number().to_be_bytes());
    key.extend_from_slice(name);
    key
}

/// The value of an entry: what it names, and its tag.
pub(super) fn join_value((child, tag): (NodeId, u32)) -> u64 {
    u64::from(tag) << 32 | u64::from(child.number())
}

/// What [`join_value`] joined.
pub(super) fn split_value(value: u64) -> (NodeId, u32) {
    let half = |half: u64| u32::try_from(half & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    (NodeId::from_index(half(value)), half(value >> 32))
}

/// A path relative to the root, for messages: that of the root is `/`.
pub(crate) fn shown_path(path: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(if path.is_empty() { b"/" } else { path }))
}

/// The entries of a directory in byte order.
#[derive(Debug)]
pub struct Entries<'t> {
    entries: &'t OrderedMap,
    directory: NodeId,
    batch: std::vec::IntoIter<(Box<[u8]>, NodeId, u32)>,
    /// Where the next batch starts; none behind the last one.
    next: Option<Vec<u8>>,
    batch_bound: usize,
}

impl<'t> Entries<'t> {
    pub(super) fn new(entries: &'t OrderedMap, directory: NodeId) -> Self {
        Self::from_key(entries, directory, entry_key(directory, b""))
    }

    /// The entries behind `name`.
    pub(super) fn behind(entries: &'t OrderedMap, directory: NodeId, name: &[u8]) -> Self {
        let mut key = entry_key(directory, name);
        // No name has a NUL, so that this is the next key.
        key.push(0);
        Self::from_key(entries, directory, key)
    }

    fn from_key(entries: &'t OrderedMap, directory: NodeId, key: Vec<u8>) -> Self {
        let batch = Vec::new().into_iter();
        Self { entries, directory, batch, next: Some(key), batch_bound: BATCH_MIN }
    }

    /// The next entry with its tag.
    pub(crate) fn next_tagged(&mut self) -> Option<(Box<[u8]>, NodeId, u32)> {
        if let Some(entry) = self.batch.next() {
            return Some(entry);
        }
        let key = self.next.take()?;
        let (directory, bound) = (self.directory.number(), self.batch_bound);
        let mut batch: Vec<(Box<[u8]>, NodeId, u32)> = Vec::with_capacity(bound);
        self.entries.entries_from(&key, &mut |key, value| {
            if u32::from_be_bytes(first(key)) != directory || batch.len() == bound {
                return false;
            }
            let (child, tag) = split_value(value);
            batch.push((key.get(4..).unwrap_or_default().into(), child, tag));
            true
        });
        if batch.len() == bound
            && let Some((name, ..)) = batch.last()
        {
            let mut key = entry_key(self.directory, name);
            key.push(0);
            self.next = Some(key);
        }
        self.batch_bound = (bound * 2).min(BATCH_MAX);
        self.batch = batch.into_iter();
        self.batch.next()
    }
}

impl Iterator for Entries<'_> {
    type Item = (Box<[u8]>, NodeId);

    fn next(&mut self) -> Option<Self::Item> {
        self.next_tagged().map(|(name, child, _)| (name, child))
    }
}

/// Every name of a tree in depth-first order.
#[derive(Debug)]
pub struct TreeNames<'t> {
    tree: &'t Tree,
    /// The path of the name.
    path: Vec<u8>,
    /// The directories on the way down, each with the length of its path.
    open: Vec<(NodeId, usize)>,
    /// What is left of the innermost one.
    entries: Option<Entries<'t>>,
    is_started: bool,
}

impl<'t> TreeNames<'t> {
    pub(super) fn new(tree: &'t Tree) -> Self {
        Self { tree, path: Vec::new(), open: Vec::new(), entries: None, is_started: false }
    }

    /// Goes to the next name, and returns what it names. The first one is the root.
    pub fn advance(&mut self) -> Option<NodeId> {
        if !self.is_started {
            self.is_started = true;
            self.enter(Tree::ROOT);
            return Some(Tree::ROOT);
        }
        loop {
            let above = self.open.last()?.1;
            let Some((name, id)) = self.entries.as_mut().and_then(Iterator::next) else {
                self.leave();
                continue;
            };
            self.path.truncate(above);
            if !self.path.is_empty() {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(&name);
            if self.tree.is_directory(id) {
                self.enter(id);
            }
            return Some(id);
        }
    }

    /// The path of the name, relative to the root and without a leading slash; empty for the root.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    fn enter(&mut self, id: NodeId) {
        self.open.push((id, self.path.len()));
        self.entries = Some(self.tree.entries(id));
    }

    /// Goes on in the directory above, behind the one that ends.
    fn leave(&mut self) {
        let ended = self.open.pop().map_or(0, |(_, bytes)| bytes);
        self.path.truncate(ended);
        let Some(&(above, bytes)) = self.open.last() else { return };
        let name = self.path.get(bytes + usize::from(bytes > 0)..).unwrap_or_default();
        self.entries = Some(Entries::behind(&self.tree.entries, above, name));
    }
}
