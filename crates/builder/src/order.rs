//! The order of the data in an image: each regular file once, where the walk of the tree first meets it.

use std::convert::Infallible;

use crate::tree::{Content, NodeId, Tree};

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
    use std::collections::BTreeMap;

    use super::*;
    use crate::compress::memory_store::content;
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
