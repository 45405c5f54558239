//! A file tree, ready to be built: every inode once, names sorted, contents readable again.
//!
//! The importers make it, the rest of the crate reads it. Contents stay where they are until a thread
//! reads a range of them.

mod content;

use std::collections::BTreeMap;
use std::convert::Infallible;

use ferrofs_ondisk::FileType;

use crate::{Error, ErrorKind, Result};

pub(crate) use content::memory_content;
pub use content::{Content, ContentReader, ContentSource, Device, DeviceAddress, SourceExtent};
pub use ferrofs_ondisk::Timestamp;

/// What an inode takes: the node, and what a build keeps for it, such as its number, its place and its data.
const NODE_BYTES: u64 = size_of::<Node>() as u64 + 200;
/// What an entry of a map takes beside its key and value: its share of the map, and two allocations.
const ENTRY_BYTES: u64 = 64;
/// What a content takes: its source and its entry in the order of files.
const CONTENT_BYTES: u64 = 160;

/// A file tree. Node 0 is the root, which is a directory.
#[derive(Debug)]
pub struct Tree {
    nodes: Vec<Node>,
    devices: Vec<Device>,
}

impl Tree {
    /// The root directory.
    pub const ROOT: NodeId = NodeId::ROOT;

    /// A tree of nothing but a root directory.
    #[must_use]
    pub fn new(root: Metadata) -> Self {
        Self { nodes: vec![Node::directory(root)], devices: Vec::new() }
    }

    /// About what the tree takes in memory, with what a build keeps for each of its inodes. It depends on the
    /// tree only, not on the allocator.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let bytes = self.nodes.iter().map(|node| NODE_BYTES + node.heap_bytes());
        bytes.fold(0, u64::saturating_add)
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
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        (0..).map(NodeId::from_index).zip(&self.nodes)
    }

    /// The same, to be changed.
    pub fn nodes_mut(&mut self) -> impl Iterator<Item = (NodeId, &mut Node)> {
        (0..).map(NodeId::from_index).zip(&mut self.nodes)
    }

    /// How many inodes there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Never: there is a root.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The inode `id`, which must come from this tree.
    ///
    /// # Panics
    /// For the id of another tree.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// The inode `id`, to be changed.
    ///
    /// # Panics
    /// For the id of another tree.
    #[must_use]
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.index()]
    }

    /// Adds an inode that has no name yet.
    ///
    /// # Errors
    /// More inodes than 32 bits count.
    pub fn add(&mut self, node: Node) -> Result<NodeId> {
        let index = u32::try_from(self.nodes.len()).map_err(|_| {
            Error::new(ErrorKind::Unsupported("more than 4,294,967,295 inodes".to_owned()))
        })?;
        self.nodes.push(node);
        Ok(NodeId::from_index(index))
    }

    /// What `name` in the directory `parent` names.
    #[must_use]
    pub fn child(&self, parent: NodeId, name: &[u8]) -> Option<NodeId> {
        self.node(parent).entries()?.get(name).copied()
    }

    /// Gives `child` the name `name` in `parent`, in place of what had it, which is returned.
    ///
    /// # Errors
    /// `parent` is no directory, or the name is one that the format cannot store, or `.` or `..`.
    pub fn link(&mut self, parent: NodeId, name: &[u8], child: NodeId) -> Result<Option<NodeId>> {
        ferrofs_ondisk::dirent::check_name(name)
            .map_err(|error| Error::new(ErrorKind::Format(error)))?;
        if matches!(name, b"." | b"..") {
            return Err(Error::new(ErrorKind::Unsupported(format!(
                "{} cannot be the name of an entry",
                name.escape_ascii()
            ))));
        }
        let NodeKind::Directory(entries) = &mut self.node_mut(parent).kind else {
            return Err(Error::new(ErrorKind::Unsupported(format!(
                "the parent of {} is not a directory",
                name.escape_ascii()
            ))));
        };
        Ok(entries.insert(name.into(), child))
    }

    /// Takes `name` out of the directory `parent`, and returns what it named. The inode stays in the tree,
    /// with one name less.
    ///
    /// # Panics
    /// For the id of another tree.
    pub fn unlink(&mut self, parent: NodeId, name: &[u8]) -> Option<NodeId> {
        let NodeKind::Directory(entries) = &mut self.node_mut(parent).kind else {
            return None;
        };
        entries.remove(name)
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
        let mut path = Vec::new();
        visit(&path, Self::ROOT)?;
        let mut open = vec![(self.node(Self::ROOT).entries().into_iter().flatten(), 0)];
        while let Some((entries, parent_bytes)) = open.last_mut() {
            path.truncate(*parent_bytes);
            let Some((name, &id)) = entries.next() else {
                open.pop();
                continue;
            };
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name);
            visit(&path, id)?;
            if let Some(entries) = self.node(id).entries() {
                open.push((Some(entries).into_iter().flatten(), path.len()));
            }
        }
        Ok(())
    }
}

/// Which inode of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u32);

impl NodeId {
    pub(super) const ROOT: Self = Self(0);

    pub(super) fn from_index(index: u32) -> Self {
        Self(index)
    }

    /// The number of the inode in its tree, from 0.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// An inode.
#[derive(Debug)]
pub struct Node {
    /// Owner, permissions, time and xattrs.
    pub metadata: Metadata,
    /// What it is.
    pub kind: NodeKind,
}

/// What an inode is.
#[derive(Debug)]
pub enum NodeKind {
    /// A directory: its entries in byte order, without `.` and `..`.
    Directory(BTreeMap<Box<[u8]>, NodeId>),
    /// A regular file.
    File(Content),
    /// A symlink and its target.
    Symlink(Box<[u8]>),
    /// A character device.
    CharacterDevice {
        /// Major number, 12 bits.
        major: u32,
        /// Minor number, 20 bits.
        minor: u32,
    },
    /// A block device.
    BlockDevice {
        /// Major number, 12 bits.
        major: u32,
        /// Minor number, 20 bits.
        minor: u32,
    },
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
}

impl NodeKind {
    /// What it is called in an image.
    #[must_use]
    pub fn file_type(&self) -> FileType {
        match self {
            Self::Directory(_) => FileType::Directory,
            Self::File(_) => FileType::Regular,
            Self::Symlink(_) => FileType::Symlink,
            Self::CharacterDevice { .. } => FileType::CharDevice,
            Self::BlockDevice { .. } => FileType::BlockDevice,
            Self::Fifo => FileType::Fifo,
            Self::Socket => FileType::Socket,
        }
    }
}

impl Node {
    /// An empty directory.
    #[must_use]
    pub fn directory(metadata: Metadata) -> Self {
        Self { metadata, kind: NodeKind::Directory(BTreeMap::new()) }
    }

    /// About what it takes on the heap.
    fn heap_bytes(&self) -> u64 {
        let xattrs = self.metadata.xattrs.iter();
        let xattrs = xattrs.map(|(name, value)| ENTRY_BYTES + (name.len() + value.len()) as u64);
        let of_kind = match &self.kind {
            NodeKind::Directory(entries) => {
                entries.keys().map(|name| ENTRY_BYTES + name.len() as u64).sum()
            }
            NodeKind::File(content) => {
                let extents = content.extents().map_or(0, <[SourceExtent]>::len);
                CONTENT_BYTES + (extents * size_of::<SourceExtent>()) as u64
            }
            NodeKind::Symlink(target) => target.len() as u64,
            _ => 0,
        };
        xattrs.sum::<u64>() + of_kind
    }

    /// The entries, if this is a directory.
    #[must_use]
    pub fn entries(&self) -> Option<&BTreeMap<Box<[u8]>, NodeId>> {
        match &self.kind {
            NodeKind::Directory(entries) => Some(entries),
            _ => None,
        }
    }

    /// The content, if this is a regular file.
    #[must_use]
    pub fn content(&self) -> Option<&Content> {
        match &self.kind {
            NodeKind::File(content) => Some(content),
            _ => None,
        }
    }
}

/// Owner, permissions, time and xattrs of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Permission bits with set-uid, set-gid and sticky: 0o7777 at most.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time.
    pub mtime: Timestamp,
    /// Extended attributes by their full name, as in `security.capability`.
    pub xattrs: BTreeMap<Box<[u8]>, Box<[u8]>>,
}

/// Visits every regular file that has a name, in the order of [`Tree::walk`], with the first of its names.
pub(crate) fn files_in_order<'t>(
    tree: &'t Tree,
    mut visit: impl FnMut(&[u8], NodeId, &'t Content),
) {
    let mut is_seen = vec![false; tree.len()];
    let walked: Result<(), Infallible> = tree.walk(|path, node| {
        let content = tree.node(node).content();
        if let (Some(content), Some(seen @ false)) = (content, is_seen.get_mut(node.index())) {
            *seen = true;
            visit(path, node, content);
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
        files_in_order(&tree, |path, node, _| visited.push((path.to_vec(), node)));
        assert_eq!(visited, [(b"a".to_vec(), early), (b"b".to_vec(), late)]);
    }
}
