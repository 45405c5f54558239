//! Every inode of a tree that has a name, once: the order in which inodes and their data lie in the image,
//! how many names each has, and the parents of directories.

use ferrofs_ondisk::FileType;

use crate::spill::paged::PagedArray;
use crate::tree::{NodeId, NodeKind, Tree, shown_path};
use crate::{Error, ErrorKind, Result};

/// Which inodes an image gets.
#[derive(Debug)]
pub(crate) struct InodeOrder {
    /// In depth-first order of names, each where its first name is. The root comes first.
    order: PagedArray<u32>,
    /// By the index of the node: names, and for directories what Linux counts. 0: it has no name.
    links: PagedArray<u32>,
    /// By the index of the node: the directory that a directory lies in. The root lies in itself.
    parents: PagedArray<u32>,
}

impl InodeOrder {
    /// Lists what has a name in `tree`.
    ///
    /// # Errors
    /// A directory with two names, which also is what a tree with a cycle has, and a symlink to nowhere
    /// or farther than Linux follows.
    pub(crate) fn new(tree: &Tree) -> Result<Self> {
        let store = tree.store();
        let mut inode_order = Self {
            order: PagedArray::new(store),
            links: PagedArray::zeros(store, tree.len()),
            parents: PagedArray::zeros(store, tree.len()),
        };
        tree.walk(|path, id| {
            inode_order.note(tree, id).map_err(|error| error.at(shown_path(path)))
        })?;
        inode_order.note_parents(tree);
        store.check()?;
        Ok(inode_order)
    }

    /// Names of `id`; for directories two and one more for each directory in it.
    pub(crate) fn links(&self, id: NodeId) -> u32 {
        self.links.get(id.index()).unwrap_or(0)
    }

    /// The directory that the directory `id` lies in.
    pub(crate) fn parent(&self, id: NodeId) -> NodeId {
        NodeId::from_index(self.parents.get(id.index()).unwrap_or(0))
    }

    /// How many inodes there are.
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// The inode with this number.
    pub(crate) fn get(&self, number: usize) -> Option<NodeId> {
        self.order.get(number).map(NodeId::from_index)
    }

    /// All inodes in their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = NodeId> {
        self.order.iter().map(NodeId::from_index)
    }

    fn note(&mut self, tree: &Tree, id: NodeId) -> Result<()> {
        let (links, file_type) = (self.links(id), tree.file_type(id));
        if file_type == FileType::Directory && links > 0 {
            return Err(unsupported("a directory with two names"));
        }
        if links == 0 {
            self.order.push(id.number());
        }
        let more = links.checked_add(1).ok_or_else(|| unsupported("an inode with 2^32 names"))?;
        self.links.set(id.index(), more);
        match file_type {
            FileType::Symlink if links == 0 => check_target(tree, id),
            _ => Ok(()),
        }
    }

    fn note_parents(&mut self, tree: &Tree) {
        for id in self.order.iter().map(NodeId::from_index).filter(|id| tree.is_directory(*id)) {
            let mut directories = 0u32;
            for (_, child) in tree.entries(id).filter(|(_, child)| tree.is_directory(*child)) {
                directories = directories.saturating_add(1);
                self.parents.set(child.index(), id.number());
            }
            self.links.set(id.index(), directories.saturating_add(2));
        }
    }
}

fn check_target(tree: &Tree, id: NodeId) -> Result<()> {
    match tree.node(id).kind {
        NodeKind::Symlink(target) if target.is_empty() => {
            Err(unsupported("a symlink without a target"))
        }
        NodeKind::Symlink(target) if target.len() > TARGET_MAX_BYTES => {
            Err(unsupported("a symlink with a target of more than 4,095 bytes"))
        }
        NodeKind::Symlink(target) if target.contains(&0) => {
            Err(unsupported("a symlink with a NUL in its target"))
        }
        _ => Ok(()),
    }
}

/// The longest target that Linux follows: a path of 4,096 bytes with its NUL.
const TARGET_MAX_BYTES: usize = 4095;

fn unsupported(what: &str) -> Error {
    Error::new(ErrorKind::Unsupported(what.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_source::{metadata, node};
    use crate::tree::Node;

    #[test]
    fn an_inode_comes_once_and_counts_its_names() {
        let mut tree = Tree::new(metadata());
        let file = tree.add(node(NodeKind::Fifo)).unwrap();
        let directory = tree.add(Node::directory(metadata())).unwrap();
        let nameless = tree.add(node(NodeKind::Socket)).unwrap();
        tree.link(Tree::ROOT, b"z", file).unwrap();
        tree.link(Tree::ROOT, b"a", directory).unwrap();
        tree.link(directory, b"link", file).unwrap();
        let inode_order = InodeOrder::new(&tree).unwrap();
        assert!(inode_order.iter().eq([Tree::ROOT, directory, file]));
        assert_eq!(inode_order.links(Tree::ROOT), 3);
        assert_eq!((inode_order.links(directory), inode_order.links(file)), (2, 2));
        assert_eq!(inode_order.links(nameless), 0);
        assert_eq!(inode_order.parent(directory), Tree::ROOT);
    }

    #[test]
    fn a_directory_in_itself_is_refused_with_its_path() {
        let mut tree = Tree::new(metadata());
        let outer = tree.add(Node::directory(metadata())).unwrap();
        tree.link(Tree::ROOT, b"outer", outer).unwrap();
        tree.link(outer, b"again", outer).unwrap();
        let error = InodeOrder::new(&tree).unwrap_err();
        assert_eq!(error.to_string(), "outer/again: a directory with two names");
    }

    #[test]
    fn a_symlink_that_leads_nowhere_is_refused() {
        let targets: [&[u8]; 3] = [b"", &[b'x'; 4096], b"a\0b"];
        for target in targets {
            let mut tree = Tree::new(metadata());
            let link = tree.add(node(NodeKind::Symlink(target.into()))).unwrap();
            tree.link(Tree::ROOT, b"link", link).unwrap();
            InodeOrder::new(&tree).unwrap_err();
        }
    }
}
