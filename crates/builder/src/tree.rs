//! A file tree, ready to be built: every inode once, names sorted, contents readable again.
//!
//! The importers make it, the rest of the crate reads it. Contents stay where they are until a thread
//! reads a range of them. Inodes, names and attributes lie in a [`SpillStore`]: a tree takes about 48 bytes an inode,
//! 16 and its bytes a name, and what says where the content is, and not all of it has to be in memory.

mod content;
mod names;
mod node;

use std::convert::Infallible;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;

use ferrofs_ondisk::FileType;

use crate::spill::ordered_map::OrderedMap;
use crate::spill::paged::{PagedArray, PagedBytes};
use crate::spill::{SpillOptions, SpillStore};
use crate::{Error, ErrorKind, Result};

pub use content::{
    Content, ContentProvider, ContentReader, ContentSource, Device, DeviceAddress, SourceExtent,
};
pub(crate) use content::{ContentTable, memory_content, stored_content};
pub use ferrofs_ondisk::Timestamp;
pub(crate) use names::shown_path;
pub use names::{Entries, TreeNames};
use node::XattrSets;
pub use node::{Metadata, Node, NodeId, NodeKind, Xattrs};
pub(crate) use node::{NodeRecord, NodeSet};

/// What an inode takes in the store, with what a build keeps for it, such as its number, its place and its data.
const NODE_BYTES: u64 = 160;
/// What a name takes in the store beside its bytes.
const ENTRY_BYTES: u64 = 24;

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
        self.entries.get(&names::entry_key(parent, name)).map(names::split_value)
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
        let value = names::join_value(child);
        let before = self.entries.insert(&names::entry_key(parent, name), value);
        let before = before.map(|value| names::split_value(value).0);
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
        let value = self.entries.remove(&names::entry_key(parent, name))?;
        let (child, _) = names::split_value(value);
        self.count_name(child, u32::saturating_sub);
        (self.names, self.name_bytes) = (self.names - 1, self.name_bytes - name.len() as u64);
        Some(child)
    }

    /// Changes the tag of a name.
    pub(crate) fn set_tag(&mut self, parent: NodeId, name: &[u8], tag: u32) {
        let key = names::entry_key(parent, name);
        if let Some((child, _)) = self.entries.get(&key).map(names::split_value) {
            self.entries.insert(&key, names::join_value((child, tag)));
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
    pub(crate) fn xattr_set(&self, number: u32) -> Xattrs {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata() -> Metadata {
        let mtime = Timestamp { seconds: 0, nanoseconds: 0 };
        Metadata { permissions: 0o755, uid: 0, gid: 0, mtime, xattrs: [].into() }
    }

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
}

#[cfg(test)]
mod order_tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::test_source::content;
    use crate::tree::{Metadata, Node, NodeKind, Timestamp};

    fn metadata() -> Metadata {
        Metadata {
            permissions: 0o644,
            uid: 0,
            gid: 0,
            mtime: Timestamp { seconds: 0, nanoseconds: 0 },
            xattrs: BTreeMap::new(),
        }
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
