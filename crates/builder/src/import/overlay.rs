//! Marks of overlay file systems: whiteouts, opaque directories, and how aufs spells them.

use crate::tree::{Metadata, Node, NodeId, NodeKind, Tree};

/// The xattr of a directory that hides what lies below it in other layers; its value is `y`.
pub const OPAQUE_XATTR: &[u8] = b"trusted.overlay.opaque";

/// The xattr of a directory that was copied up. Linux lists a directory with it in the careful way,
/// which leaves whiteouts out, so mkfs.erofs gives it to directories with whiteouts (format.md F15).
pub const ORIGIN_XATTR: &[u8] = b"trusted.overlay.origin";

const AUFS_PREFIX: &[u8] = b".wh.";
const AUFS_OPAQUE: &[u8] = b".wh..wh..opq";

/// What becomes of the marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverlayPolicy {
    /// Nothing: the image is as its source.
    #[default]
    Keep,
    /// Directories with a whiteout in them get [`ORIGIN_XATTR`], empty, unless they have it: what
    /// mkfs.erofs does by default with a directory, even if it drops all other xattrs.
    MarkOrigins,
    /// Whiteouts and [`OPAQUE_XATTR`] go (`--ovlfs-strip`).
    Strip,
}

impl OverlayPolicy {
    pub(super) fn apply(self, tree: &mut Tree) {
        match self {
            Self::Keep => {}
            Self::MarkOrigins => mark_origins(tree),
            Self::Strip => strip(tree),
        }
    }
}

/// What a name of an aufs layer, or of a container's layer, means. Only the last part of a path is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AufsName<'a> {
    /// Nothing special.
    Plain,
    /// This name is deleted: a [`whiteout`] takes its place. It may be one that no directory can hold,
    /// such as an empty one or `..`, which [`Tree::link`] refuses.
    Whiteout(&'a [u8]),
    /// The directory that it lies in is opaque: see [`mark_opaque`].
    Opaque,
}

impl<'a> AufsName<'a> {
    /// What `name` means.
    #[must_use]
    pub fn of(name: &'a [u8]) -> Self {
        if name == AUFS_OPAQUE {
            return Self::Opaque;
        }
        name.strip_prefix(AUFS_PREFIX).map_or(Self::Plain, Self::Whiteout)
    }
}

/// A whiteout: a character device 0:0.
#[must_use]
pub fn whiteout(metadata: Metadata) -> Node {
    Node { metadata, kind: NodeKind::CharacterDevice { major: 0, minor: 0 } }
}

/// Whether this is a whiteout.
#[must_use]
pub fn is_whiteout(node: &Node) -> bool {
    matches!(node.kind, NodeKind::CharacterDevice { major: 0, minor: 0 })
}

/// Makes a directory opaque.
pub fn mark_opaque(directory: &mut Metadata) {
    directory.xattrs.insert(OPAQUE_XATTR.into(), b"y".as_slice().into());
}

/// Marks a directory as copied up, for its whiteouts' sake; an origin that it has stays.
pub fn mark_origin(directory: &mut Metadata) {
    directory.xattrs.entry(ORIGIN_XATTR.into()).or_default();
}

fn mark_origins(tree: &mut Tree) {
    let mut parents: Vec<NodeId> = whiteouts(tree).map(|(parent, _)| parent).collect();
    parents.dedup();
    for parent in parents {
        mark_origin(&mut tree.node_mut(parent).metadata);
    }
}

fn strip(tree: &mut Tree) {
    let whiteouts: Vec<_> = whiteouts(tree).map(|(parent, name)| (parent, name.clone())).collect();
    for (parent, name) in whiteouts {
        tree.unlink(parent, &name);
    }
    for (_, node) in tree.nodes_mut() {
        node.metadata.xattrs.remove(OPAQUE_XATTR);
    }
}

/// Each name of a whiteout, and the directory that it lies in.
fn whiteouts(tree: &Tree) -> impl Iterator<Item = (NodeId, &Box<[u8]>)> {
    tree.nodes().flat_map(move |(parent, node)| {
        let entries = node.entries().into_iter().flatten();
        entries
            .filter(|(_, child)| is_whiteout(tree.node(**child)))
            .map(move |(name, _)| (parent, name))
    })
}
