//! The marks of overlay file systems: whiteouts and opaque directories, and their names in aufs.

use ferrofs_ondisk::FileType;

use crate::tree::{Metadata, Node, NodeId, NodeKind, Tree};

/// The xattr of an opaque directory, which hides the entries of lower layers; its value is `y`.
pub const OPAQUE_XATTR: &[u8] = b"trusted.overlay.opaque";

/// The xattr of a directory that was copied up. Linux hides whiteouts in listings of directories
/// with this xattr, so mkfs.erofs sets it on directories with whiteouts (format.md F15).
pub const ORIGIN_XATTR: &[u8] = b"trusted.overlay.origin";

const AUFS_PREFIX: &[u8] = b".wh.";
const AUFS_OPAQUE: &[u8] = b".wh..wh..opq";

/// How the marks are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverlayPolicy {
    /// As in the source.
    #[default]
    Keep,
    /// Directories with a whiteout get an empty [`ORIGIN_XATTR`], unless they have one. This is the
    /// default of mkfs.erofs for a directory, even if it drops all other xattrs.
    MarkOrigins,
    /// Whiteouts and [`OPAQUE_XATTR`] are removed (`--ovlfs-strip`).
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

/// The meaning of a name in a layer of aufs or of a container: the last component of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AufsName<'a> {
    /// An ordinary name.
    Plain,
    /// The whiteout of this name, which a [`whiteout`] replaces. The name may be invalid, such as
    /// an empty one or `..`; [`Tree::link`] refuses it.
    Whiteout(&'a [u8]),
    /// The directory is opaque: see [`mark_opaque`].
    Opaque,
}

impl<'a> AufsName<'a> {
    /// The meaning of `name`.
    #[must_use]
    pub fn of(name: &'a [u8]) -> Self {
        if name == AUFS_OPAQUE {
            return Self::Opaque;
        }
        name.strip_prefix(AUFS_PREFIX).map_or(Self::Plain, Self::Whiteout)
    }
}

/// A new whiteout: a character device 0:0.
#[must_use]
pub fn whiteout(metadata: Metadata) -> Node {
    Node { metadata, kind: NodeKind::CharacterDevice { major: 0, minor: 0 } }
}

/// Whether the node is a whiteout.
#[must_use]
pub fn is_whiteout(node: &Node) -> bool {
    matches!(node.kind, NodeKind::CharacterDevice { major: 0, minor: 0 })
}

/// Makes a directory opaque.
pub fn mark_opaque(directory: &mut Metadata) {
    directory.xattrs.insert(OPAQUE_XATTR.into(), b"y".as_slice().into());
}

/// Sets an empty [`ORIGIN_XATTR`] on a directory with whiteouts, unless it has one.
pub fn mark_origin(directory: &mut Metadata) {
    directory.xattrs.entry(ORIGIN_XATTR.into()).or_default();
}

fn mark_origins(tree: &mut Tree) {
    let parents = tree.ids().filter(|id| whiteouts(tree, *id).next().is_some());
    for parent in parents.collect::<Vec<_>>() {
        mark_origin(&mut tree.node_mut(parent).metadata);
    }
}

fn strip(tree: &mut Tree) {
    for parent in tree.ids() {
        for name in whiteouts(tree, parent).collect::<Vec<_>>() {
            tree.unlink(parent, &name);
        }
    }
    tree.filter_xattrs(|name| name != OPAQUE_XATTR);
}

/// The names of the whiteouts in a directory; none if `id` is no directory.
fn whiteouts(tree: &Tree, id: NodeId) -> impl Iterator<Item = Box<[u8]>> {
    let is_directory = tree.is_directory(id);
    let entries = is_directory.then(|| tree.entries(id)).into_iter().flatten();
    entries.filter_map(|(name, child)| {
        let record = tree.record(child);
        let is_whiteout = record.file_type == FileType::CharDevice && record.size == 0;
        is_whiteout.then_some(name)
    })
}
