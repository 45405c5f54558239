//! A file tree, ready to be built: every inode once, names sorted, contents readable again.
//!
//! The importers make it, the rest of the crate reads it. Contents stay where they are until a thread
//! reads a range of them. Inodes, names and attributes lie in a [`SpillStore`]: a tree takes about 48 bytes an inode,
//! 24 and its bytes a name, and what says where the content is, and not all of it has to be in memory.
//! [`Entries`] and [`TreeNames`] hold no more than some entries in memory, however large a directory or how deep the tree
//! is.

mod content;
mod node;

use std::convert::Infallible;
use std::ffi::OsStr;
use std::ops::{Deref, DerefMut};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use ferrofs_ondisk::FileType;

use crate::spill::ordered_map::OrderedMap;
use crate::spill::paged::{PagedArray, PagedBytes, first};
use crate::spill::{SpillOptions, SpillStore};
use crate::{Error, ErrorKind, Result};

pub use content::{
    Content, ContentProvider, ContentReader, ContentSource, Device, DeviceAddress, SourceExtent,
};
pub(crate) use content::{ContentTable, memory_content, stored_content};
pub use ferrofs_ondisk::Timestamp;
use node::XattrSets;
pub use node::{Metadata, Node, NodeId, NodeKind, XattrMap};
pub(crate) use node::{NodeRecord, NodeSet};

/// What an inode takes in the store, with what a build keeps for it, such as its number, its place and its data.
const NODE_BYTES: u64 = 160;
/// What a name takes in the store beside its bytes.
const ENTRY_BYTES: u64 = 24;

/// Entries that are read at once, at most.
const BATCH_MAX: usize = 128;
/// Entries that are read at once at first.
const BATCH_MIN: usize = 8;

/// A file tree. Node 0 is the root, which is a directory.
#[derive(Debug)]
pub struct Tree {
    store: SpillStore,
    nodes: PagedArray<NodeRecord>,
    targets: PagedBytes,
    contents: ContentTable,
    xattrs: XattrSets,
    /// What the names in a directory name: by the number of the directory, with the lowest byte last, and the name.
    entries: OrderedMap,
    name_bytes: u64,
    names: u64,
    devices: Vec<Device>,
}

impl Tree {
    /// The root directory.
    pub const ROOT: NodeId = NodeId::ROOT;

    /// A tree of nothing but a root directory, all of which is in memory.
    #[must_use]
    pub fn new(root: Metadata) -> Self {
        Self::in_store(root, &SpillStore::new(SpillOptions::default()))
    }

    /// A tree of nothing but a root directory in `store`.
    #[must_use]
    pub fn in_store(root: Metadata, store: &SpillStore) -> Self {
        let mut tree = Self {
            store: store.clone(),
            nodes: PagedArray::new(store),
            targets: PagedBytes::new(store),
            contents: ContentTable::new(store),
            xattrs: XattrSets::new(store),
            entries: OrderedMap::new(store),
            name_bytes: 0,
            names: 0,
            devices: Vec::new(),
        };
        let record = tree.encode(&Node::directory(root), 1, None);
        tree.nodes.push(record);
        tree
    }

    /// Where the tree lies.
    #[must_use]
    pub fn store(&self) -> &SpillStore {
        &self.store
    }

    /// About what the tree takes in its store, with what a build keeps for each of its inodes. It depends on the
    /// tree only, not on how much of it is in memory.
    pub(crate) fn store_bytes(&self) -> u64 {
        let inodes = (self.len() as u64).saturating_mul(NODE_BYTES);
        let names = self.names.saturating_mul(ENTRY_BYTES).saturating_add(self.name_bytes);
        let bytes = inodes.saturating_add(names);
        let others = [self.targets.len(), self.contents.bytes(), self.xattrs.bytes()];
        others.into_iter().fold(bytes, u64::saturating_add)
    }

    /// Adds a device that contents lie on, and returns its number.
    ///
    /// # Errors
    /// More devices than 16 bits count.
    pub fn add_device(&mut self, device: Device) -> Result<u16> {
        self.devices.push(device);
        u16::try_from(self.devices.len())
            .map_err(|_| Error::new(ErrorKind::Unsupported("more than 65,535 devices".to_owned())))
    }

    /// The devices that contents lie on, the one with the number 1 first.
    #[must_use]
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Every inode once, in the order in which they were added.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, Node)> {
        self.ids().map(|id| (id, self.node(id)))
    }

    /// The ids of all inodes, in the order in which they were added.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        // There are no more than 32 bits count.
        let count = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        (0..count).map(NodeId::from_index)
    }

    /// How many inodes there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Never: there is a root.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.len() == 0
    }

    /// The inode `id`, which must come from this tree.
    ///
    /// # Panics
    /// For the id of another tree.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Node {
        let record = self.record(id);
        let metadata = Metadata {
            permissions: record.permissions,
            uid: record.uid,
            gid: record.gid,
            mtime: record.mtime,
            xattrs: self.xattrs.get(record.xattrs),
        };
        Node { metadata, kind: self.kind(&record) }
    }

    /// The inode `id`, to be changed. The change is in the tree when the returned value is dropped.
    ///
    /// # Panics
    /// For the id of another tree.
    #[must_use]
    pub fn node_mut(&mut self, id: NodeId) -> NodeMut<'_> {
        let node = self.node(id);
        let content = node.content().cloned();
        NodeMut { tree: self, id, node, content }
    }

    /// What the inode `id` is, without its target or content.
    ///
    /// # Panics
    /// For the id of another tree.
    #[must_use]
    pub fn file_type(&self, id: NodeId) -> FileType {
        self.record(id).file_type
    }

    /// Whether the inode `id` is a directory.
    ///
    /// # Panics
    /// For the id of another tree.
    #[must_use]
    pub fn is_directory(&self, id: NodeId) -> bool {
        self.file_type(id) == FileType::Directory
    }

    /// The content of the inode `id`, if it is a regular file.
    ///
    /// # Panics
    /// For the id of another tree.
    #[must_use]
    pub fn content(&self, id: NodeId) -> Option<Content> {
        let record = self.record(id);
        (record.file_type == FileType::Regular).then(|| self.contents.get(record.blob, record.size))
    }

    /// The size of the content of the inode `id`, if it is a regular file.
    ///
    /// # Panics
    /// For the id of another tree.
    #[must_use]
    pub fn content_bytes(&self, id: NodeId) -> Option<u64> {
        let record = self.record(id);
        (record.file_type == FileType::Regular).then_some(record.size)
    }

    /// Adds an inode that has no name yet.
    ///
    /// # Errors
    /// More inodes than 32 bits count; the host cannot store the tree.
    #[expect(clippy::needless_pass_by_value, reason = "an importer is done with the inode")]
    pub fn add(&mut self, node: Node) -> Result<NodeId> {
        let index = u32::try_from(self.nodes.len()).ok().filter(|index| *index < u32::MAX);
        let index = index.ok_or_else(|| {
            Error::new(ErrorKind::Unsupported("more than 4,294,967,294 inodes".to_owned()))
        })?;
        let record = self.encode(&node, 0, None);
        self.nodes.push(record);
        self.store.check()?;
        Ok(NodeId::from_index(index))
    }

    /// What `name` in the directory `parent` names.
    #[must_use]
    pub fn child(&self, parent: NodeId, name: &[u8]) -> Option<NodeId> {
        self.tagged_child(parent, name).map(|(child, _)| child)
    }

    /// The same, with the tag of the name.
    pub(crate) fn tagged_child(&self, parent: NodeId, name: &[u8]) -> Option<(NodeId, u32)> {
        self.entries.get(&entry_key(parent, name)).map(split_value)
    }

    /// Gives `child` the name `name` in `parent`, in place of what had it, which is returned.
    ///
    /// # Errors
    /// `parent` is no directory, or the name is one that the format cannot store, or `.` or `..`.
    pub fn link(&mut self, parent: NodeId, name: &[u8], child: NodeId) -> Result<Option<NodeId>> {
        self.link_tagged(parent, name, (child, 0))
    }

    /// The same with a tag, which is 0 for other names.
    pub(crate) fn link_tagged(
        &mut self,
        parent: NodeId,
        name: &[u8],
        child: (NodeId, u32),
    ) -> Result<Option<NodeId>> {
        ferrofs_ondisk::dirent::check_name(name)
            .map_err(|error| Error::new(ErrorKind::Format(error)))?;
        if matches!(name, b"." | b"..") {
            return Err(Error::new(ErrorKind::Unsupported(format!(
                "{} cannot be the name of an entry",
                name.escape_ascii()
            ))));
        }
        if !self.is_directory(parent) {
            return Err(Error::new(ErrorKind::Unsupported(format!(
                "the parent of {} is not a directory",
                name.escape_ascii()
            ))));
        }
        let value = join_value(child);
        let before = self.entries.insert(&entry_key(parent, name), value);
        let before = before.map(|value| split_value(value).0);
        match before {
            Some(before) => self.count_name(before, u32::saturating_sub),
            None => {
                self.names += 1;
                self.name_bytes += name.len() as u64;
            }
        }
        self.count_name(child.0, u32::saturating_add);
        Ok(before)
    }

    /// Takes `name` out of the directory `parent`, and returns what it named. The inode stays in the tree,
    /// with one name less.
    ///
    /// # Panics
    /// For the id of another tree.
    pub fn unlink(&mut self, parent: NodeId, name: &[u8]) -> Option<NodeId> {
        let value = self.entries.remove(&entry_key(parent, name))?;
        let (child, _) = split_value(value);
        self.count_name(child, u32::saturating_sub);
        (self.names, self.name_bytes) = (self.names - 1, self.name_bytes - name.len() as u64);
        Some(child)
    }

    /// Changes the tag of a name.
    pub(crate) fn set_tag(&mut self, parent: NodeId, name: &[u8], tag: u32) {
        let key = entry_key(parent, name);
        if let Some((child, _)) = self.entries.get(&key).map(split_value) {
            self.entries.insert(&key, join_value((child, tag)));
        }
    }

    fn count_name(&mut self, id: NodeId, change: impl Fn(u32, u32) -> u32) {
        self.edit(id, |record| record.names = change(record.names, 1));
    }

    /// The entries of a directory in byte order, without `.` and `..`; none if `id` is no directory.
    #[must_use]
    pub fn entries(&self, id: NodeId) -> Entries<'_> {
        Entries::new(&self.entries, id)
    }

    /// The entries of a directory behind `name`.
    pub(crate) fn entries_behind(&self, id: NodeId, name: &[u8]) -> Entries<'_> {
        Entries::behind(&self.entries, id, name)
    }

    /// Every name in depth-first order, each directory's in byte order.
    #[must_use]
    pub fn names(&self) -> TreeNames<'_> {
        TreeNames::new(self)
    }

    /// Visits every name in depth-first order, each directory's in byte order: the path, relative to the
    /// root and without a leading slash (empty for the root), and what it names. An inode with several
    /// names comes several times.
    ///
    /// # Errors
    /// The first that `visit` returns.
    pub fn walk<E>(
        &self,
        mut visit: impl FnMut(&[u8], NodeId) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let mut names = self.names();
        while let Some(id) = names.advance() {
            visit(names.path(), id)?;
        }
        Ok(())
    }

    /// The first path of an inode, for messages: relative to the root, `/` for the root itself, and empty for an
    /// inode without a name.
    pub(crate) fn first_path(&self, id: NodeId) -> PathBuf {
        let mut names = self.names();
        while let Some(found) = names.advance() {
            if found == id {
                return shown_path(names.path());
            }
        }
        PathBuf::new()
    }

    /// Whether some content may lie on devices: only importers of archives and images say so.
    pub(crate) fn has_extents(&self) -> bool {
        self.contents.has_extents()
    }

    /// The record of an inode.
    ///
    /// # Panics
    /// For the id of another tree.
    pub(crate) fn record(&self, id: NodeId) -> NodeRecord {
        self.nodes.get(id.index()).expect("an id of this tree")
    }

    /// Changes the record of an inode.
    pub(crate) fn edit(&mut self, id: NodeId, change: impl FnOnce(&mut NodeRecord)) {
        let before = self.record(id);
        let mut record = before;
        change(&mut record);
        if record != before {
            self.nodes.set(id.index(), record);
        }
    }

    /// The set of xattrs with this number, and how many sets there are.
    pub(crate) fn xattr_set(&self, number: u32) -> XattrMap {
        self.xattrs.get(number)
    }

    pub(crate) fn xattr_sets(&self) -> usize {
        self.xattrs.len()
    }

    /// Gives the inode `id` an xattr.
    ///
    /// # Panics
    /// For the id of another tree.
    pub fn set_xattr(&mut self, id: NodeId, name: &[u8], value: &[u8]) {
        let mut xattrs = self.xattrs.get(self.record(id).xattrs);
        xattrs.insert(name.into(), value.into());
        let number = self.xattrs.add(&xattrs);
        self.edit(id, |record| record.xattrs = number);
    }

    /// Drops the xattrs that `keeps` does not hold for, from all inodes.
    pub(crate) fn filter_xattrs(&mut self, keeps: impl Fn(&[u8]) -> bool) {
        let mut filtered = PagedArray::<u32>::new(&self.store);
        filtered.push(0);
        for number in (1..self.xattrs.len()).map_while(|number| u32::try_from(number).ok()) {
            let mut xattrs = self.xattrs.get(number);
            let count = xattrs.len();
            xattrs.retain(|name, _| keeps(name));
            let is_same = xattrs.len() == count;
            filtered.push(if is_same { number } else { self.xattrs.add(&xattrs) });
        }
        for id in self.ids() {
            self.edit(id, |record| {
                record.xattrs = filtered.get(record.xattrs as usize).unwrap_or(0);
            });
        }
    }

    /// The record of an inode, whose content lies at `place` already, if that is given.
    fn encode(&mut self, node: &Node, names: u32, place: Option<u64>) -> NodeRecord {
        let device = |major: u32, minor: u32| u64::from(major) << 32 | u64::from(minor);
        let (size, blob) = match &node.kind {
            NodeKind::Symlink(target) => (target.len() as u64, self.targets.append_blob(target)),
            NodeKind::File(content) => {
                (content.bytes(), place.unwrap_or_else(|| self.contents.add(content)))
            }
            NodeKind::CharacterDevice { major, minor } | NodeKind::BlockDevice { major, minor } => {
                (device(*major, *minor), 0)
            }
            NodeKind::Directory | NodeKind::Fifo | NodeKind::Socket => (0, 0),
        };
        NodeRecord {
            file_type: node.kind.file_type(),
            permissions: node.metadata.permissions,
            uid: node.metadata.uid,
            gid: node.metadata.gid,
            mtime: node.metadata.mtime,
            xattrs: self.xattrs.add(&node.metadata.xattrs),
            names,
            size,
            blob,
        }
    }

    fn kind(&self, record: &NodeRecord) -> NodeKind {
        let major = u32::try_from(record.size >> 32).unwrap_or(u32::MAX);
        let minor = u32::try_from(record.size & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        match record.file_type {
            FileType::Directory => NodeKind::Directory,
            FileType::Symlink => NodeKind::Symlink(self.targets.read_blob(record.blob).into()),
            FileType::CharDevice => NodeKind::CharacterDevice { major, minor },
            FileType::BlockDevice => NodeKind::BlockDevice { major, minor },
            FileType::Fifo => NodeKind::Fifo,
            FileType::Socket => NodeKind::Socket,
            _ => NodeKind::File(self.contents.get(record.blob, record.size)),
        }
    }
}

/// An inode that is changed. The tree gets the change when this is dropped.
#[derive(Debug)]
pub struct NodeMut<'t> {
    tree: &'t mut Tree,
    id: NodeId,
    node: Node,
    /// The content before the change.
    content: Option<Content>,
}

impl Deref for NodeMut<'_> {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}

impl DerefMut for NodeMut<'_> {
    fn deref_mut(&mut self) -> &mut Node {
        &mut self.node
    }
}

impl Drop for NodeMut<'_> {
    fn drop(&mut self) {
        let before = self.tree.record(self.id);
        let content = match (&self.content, self.node.content()) {
            (Some(one), Some(other)) if one.is_same(other) => Some(before.blob),
            _ => None,
        };
        let record = self.tree.encode(&self.node, before.names, content);
        self.tree.nodes.set(self.id.index(), record);
    }
}

/// The key of an entry.
fn entry_key(parent: NodeId, name: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(4 + name.len() + 1);
    key.extend_from_slice(&parent.number().to_be_bytes());
    key.extend_from_slice(name);
    key
}

/// The value of an entry: what it names, and its tag.
fn join_value((child, tag): (NodeId, u32)) -> u64 {
    u64::from(tag) << 32 | u64::from(child.number())
}

/// What [`join_value`] joined.
fn split_value(value: u64) -> (NodeId, u32) {
    let half = |half: u64| u32::try_from(half & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    (NodeId::from_index(half(value)), half(value >> 32))
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
    fn new(entries: &'t OrderedMap, directory: NodeId) -> Self {
        Self::from_key(entries, directory, entry_key(directory, b""))
    }

    /// The entries behind `name`.
    fn behind(entries: &'t OrderedMap, directory: NodeId, name: &[u8]) -> Self {
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
    fn new(tree: &'t Tree) -> Self {
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

/// Visits every regular file that has a name, in the order of [`Tree::walk`], with the first of its names.
pub(crate) fn files_in_order(tree: &Tree, mut visit: impl FnMut(&[u8], NodeId)) {
    let mut is_seen = PagedBytes::new(&tree.store);
    is_seen.append_zeros(tree.len() as u64);
    let walked: Result<(), Infallible> = tree.walk(|path, node| {
        if tree.file_type(node) != FileType::Regular {
            return Ok(());
        }
        let mut seen = [0];
        is_seen.read(node.index() as u64, &mut seen);
        if seen == [0] {
            is_seen.write(node.index() as u64, &[1]);
            visit(path, node);
        }
        Ok(())
    });
    match walked {
        Ok(()) => {}
        Err(never) => match never {},
    }
}

/// A path relative to the root, for messages: that of the root is `/`.
pub(crate) fn shown_path(path: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(if path.is_empty() { b"/" } else { path }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_source::{content, metadata};

    #[test]
    fn names_that_every_directory_has_are_refused() {
        let mut tree = Tree::new(metadata());
        let child = tree.add(Node::directory(metadata())).unwrap();
        for name in [&b"."[..], b"..", b"", b"a/b", b"a\0", &[b'x'; 256]] {
            tree.link(Tree::ROOT, name, child).unwrap_err();
        }
        assert_eq!(tree.link(Tree::ROOT, b"...", child).unwrap(), None);
        assert_eq!(tree.child(Tree::ROOT, b"..."), Some(child));
    }

    #[test]
    fn a_file_with_two_names_comes_once_and_at_the_first_of_them() {
        let mut tree = Tree::new(metadata());
        let mut add = |bytes: &[u8]| {
            let kind = NodeKind::File(content("f", bytes));
            tree.add(Node { metadata: metadata(), kind }).unwrap()
        };
        let (late, early) = (add(b"late"), add(b"early"));
        for (name, node) in [(b"a", early), (b"b", late), (b"c", early)] {
            tree.link(Tree::ROOT, name, node).unwrap();
        }
        let mut visited = Vec::new();
        files_in_order(&tree, |path, node| visited.push((path.to_vec(), node)));
        assert_eq!(visited, [(b"a".to_vec(), early), (b"b".to_vec(), late)]);
    }
}
