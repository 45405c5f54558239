//! The order of the data in an image: each regular file once, where the walk of the tree first meets it.

use std::convert::Infallible;

use crate::tree::{Content, NodeId, Tree};

/// A regular file at its place in the order.
#[derive(Debug)]
pub(crate) struct Ordered<'t> {
    /// Which inode it is.
    pub(crate) node: NodeId,
    /// Its bytes.
    pub(crate) content: &'t Content,
}

/// Every regular file that has a name, in the order of [`Tree::walk`].
pub(crate) fn files_in_order(tree: &Tree) -> Vec<Ordered<'_>> {
    let mut is_seen = vec![false; tree.len()];
    let mut files = Vec::new();
    let walked: Result<(), Infallible> = tree.walk(|_path, node| {
        let content = tree.node(node).content();
        if let (Some(content), Some(seen @ false)) = (content, is_seen.get_mut(node.index())) {
            *seen = true;
            files.push(Ordered { node, content });
        }
        Ok(())
    });
    match walked {
        Ok(()) => files,
        Err(never) => match never {},
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::compress::memory_store::content;
    use crate::tree::{Kind, Metadata, Node, Timestamp};

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
            let kind = Kind::File(content("f", bytes));
            tree.add(Node { metadata: metadata(), kind }).unwrap()
        };
        let (late, early) = (add(b"late"), add(b"early"));
        for (name, node) in [(b"a", early), (b"b", late), (b"c", early)] {
            tree.link(Tree::ROOT, name, node).unwrap();
        }
        let nodes: Vec<_> = files_in_order(&tree).iter().map(|file| file.node).collect();
        assert_eq!(nodes, [early, late]);
    }
}
