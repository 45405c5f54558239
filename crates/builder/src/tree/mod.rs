//! A file tree, ready to be built: every inode once, names sorted, contents readable again.
//!
//! The importers make it, the rest of the crate reads it. Contents stay where they are until a worker
//! asks for a part of them.

mod content;
mod device;
mod metadata;
mod node;

pub use content::{Content, ContentReader, ContentSource};
pub use device::{Device, DeviceAddress, SourceExtent};
pub use metadata::{Metadata, Timestamp};
pub use node::{Node, NodeId, NodeKind};

use crate::{Error, ErrorKind, Result};

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
                "{} is to lie in what is no directory",
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
