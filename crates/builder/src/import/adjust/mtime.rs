//! Modification times: kept, replaced, or clamped.

use crate::tree::{Metadata, Node, NodeKind, Timestamp, Tree};

/// What modification times become. Seconds since 1970; nanoseconds of replaced times are 0.
///
/// How mkfs.erofs 1.9 says it: `-T t` and `--all-time` are [`All`](Self::All), `--mkfs-time` is
/// [`Keep`](Self::Keep), and `SOURCE_DATE_EPOCH` is [`Clamp`](Self::Clamp), whatever else is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MtimePolicy {
    /// As they are.
    #[default]
    Keep,
    /// All this one.
    All(i64),
    /// This one, for those that are not before it; a time in the same second loses its nanoseconds.
    Clamp(i64),
}

impl MtimePolicy {
    pub(super) fn apply(self, metadata: &mut Metadata) {
        let seconds = match self {
            Self::Keep => return,
            Self::Clamp(seconds) if metadata.mtime.seconds < seconds => return,
            Self::All(seconds) | Self::Clamp(seconds) => seconds,
        };
        metadata.mtime = Timestamp { seconds, nanoseconds: 0 };
    }
}

/// `--ignore-mtime` of mkfs.erofs 1.9: an inode that a compact inode can hold (format.md F6: owner and
/// group of 16 bits, size of 32 bits, 16 bits of links) gets this time, so that it is compact; one that
/// must be extended keeps its own.
///
/// mkfs.erofs ignores the option with 48BIT and with inodes that are extended by force; whoever builds
/// those leaves it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactTime {
    /// Seconds since 1970: the time of the build.
    pub seconds: i64,
}

impl CompactTime {
    pub(super) fn apply(self, tree: &mut Tree) {
        let mut links = vec![0_u32; tree.len()];
        for (_, node) in tree.nodes() {
            for id in node.entries().into_iter().flat_map(|entries| entries.values()) {
                if let Some(count) = links.get_mut(id.index()) {
                    *count = count.saturating_add(1);
                }
            }
        }
        for (id, node) in tree.nodes_mut() {
            if is_compact(node, links.get(id.index()).copied().unwrap_or(0)) {
                node.metadata.mtime = Timestamp { seconds: self.seconds, nanoseconds: 0 };
            }
        }
    }
}

/// Whether nothing but its time could keep the inode from being compact. Directories count no links
/// here: with too many of them they say 1, which is "not counted".
fn is_compact(node: &Node, links: u32) -> bool {
    let short = u32::from(u16::MAX);
    let has_short_size = match &node.kind {
        NodeKind::File(content) => u32::try_from(content.bytes()).is_ok(),
        _ => true,
    };
    let has_short_count = matches!(node.kind, NodeKind::Directory(_)) || links <= short;
    node.metadata.uid <= short && node.metadata.gid <= short && has_short_size && has_short_count
}
