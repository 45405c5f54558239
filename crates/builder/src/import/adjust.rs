//! Changes to a tree between its import and the build: owners, times, xattrs, and the marks of
//! overlay file systems. They are the same for all importers.
//!
//! Importers use [`ExcludePatterns`] and [`AufsName`] while they import. [`Adjustments::apply`]
//! makes all other changes to the whole tree.

use ferrofs_ondisk::FileType;

pub use super::exclude_patterns::ExcludePatterns;
use crate::tree::{Metadata, Node, NodeId, NodeKind, NodeRecord, Timestamp, Tree};
use crate::{Error, ErrorKind, Result};

/// The changes to a tree. The default changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Adjustments {
    /// Owners and groups.
    pub owners: OwnerOverrides,
    /// Modification times.
    pub mtime: MtimePolicy,
    /// The time of inodes that would be compact but for their own time.
    pub compact_time: Option<CompactTime>,
    /// The xattrs that are kept.
    pub xattrs: XattrFilter,
    /// How whiteouts and opaque directories are stored.
    pub overlay: OverlayPolicy,
}

option_setters! { Adjustments {
    owners: OwnerOverrides,
    mtime: MtimePolicy,
    compact_time: Option<CompactTime>,
    xattrs: XattrFilter,
    overlay: OverlayPolicy,
} }

impl Adjustments {
    /// Applies the changes to a complete tree. A second call would add the owner offsets again.
    ///
    /// # Errors
    /// An owner plus its offset exceeds 32 bits, or an owner becomes 4294967295, which stands for none; the error names
    /// the path in the tree.
    pub fn apply(&self, tree: &mut Tree) -> Result<()> {
        for id in tree.ids() {
            let mut applied = Ok(());
            tree.edit(id, |record| {
                self.mtime.apply(&mut record.mtime);
                applied = self.owners.apply(&mut record.uid, &mut record.gid);
            });
            applied.map_err(|error| error.at(tree.first_path(id)))?;
        }
        match &self.xattrs {
            XattrFilter::All => {}
            filter => tree.filter_xattrs(|name| filter.keeps(name)),
        }
        if let Some(compact_time) = self.compact_time {
            compact_time.apply(tree);
        }
        self.overlay.apply(tree);
        Ok(())
    }
}

/// How modification times are stored. Times are seconds since 1970; the nanoseconds of replaced
/// times are 0.
///
/// In mkfs.erofs 1.9, `-T t` and `--all-time` are [`All`](Self::All), `--mkfs-time` is
/// [`Keep`](Self::Keep), and `SOURCE_DATE_EPOCH` is [`Clamp`](Self::Clamp), whatever else is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MtimePolicy {
    /// Unchanged.
    #[default]
    Keep,
    /// Replaced by this time.
    All(i64),
    /// Replaced by this time unless they are earlier. A time in the same second loses its
    /// nanoseconds.
    Clamp(i64),
}

impl MtimePolicy {
    fn apply(self, mtime: &mut Timestamp) {
        let seconds = match self {
            Self::Keep => return,
            Self::Clamp(seconds) if mtime.seconds < seconds => return,
            Self::All(seconds) | Self::Clamp(seconds) => seconds,
        };
        *mtime = Timestamp { seconds, nanoseconds: 0 };
    }
}

/// `--ignore-mtime` of mkfs.erofs 1.9: an inode that a compact inode can hold (format.md F6: owner
/// and group of 16 bits, size of 32 bits, 16 bits of links) gets this time, so that it is compact.
/// An inode that must be extended keeps its own time.
///
/// mkfs.erofs ignores the option with 48BIT and with forced extended inodes; callers leave it out
/// there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactTime {
    /// Seconds since 1970: the time of the build.
    pub seconds: i64,
}

impl CompactTime {
    fn apply(self, tree: &mut Tree) {
        for id in tree.ids() {
            tree.edit(id, |record| {
                if is_compact(record) {
                    record.mtime = Timestamp { seconds: self.seconds, nanoseconds: 0 };
                }
            });
        }
    }
}

/// Whether everything but its time fits into a compact inode. The links of a directory always fit:
/// too many are stored as 1, which means "not counted".
fn is_compact(record: &NodeRecord) -> bool {
    let short = u32::from(u16::MAX);
    let is_file = record.file_type == FileType::Regular;
    let has_short_size = !is_file || u32::try_from(record.size).is_ok();
    let has_short_count = record.file_type == FileType::Directory || record.names <= short;
    record.uid <= short && record.gid <= short && has_short_size && has_short_count
}

/// The id that no file can have: system calls that change an owner take it as "unchanged".
const NO_ID: u32 = u32::MAX;

/// Changes of owners and groups: forced ones first, then offsets, as in mkfs.erofs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnerOverrides {
    /// The owner of every inode.
    pub force_uid: Option<u32>,
    /// The group of every inode.
    pub force_gid: Option<u32>,
    /// Added to every owner.
    pub uid_offset: u32,
    /// Added to every group.
    pub gid_offset: u32,
    /// Sums of more than 32 bits.
    pub overflow: IdOverflow,
}

option_setters! { OwnerOverrides {
    force_uid: Option<u32>,
    force_gid: Option<u32>,
    uid_offset: u32,
    gid_offset: u32,
    overflow: IdOverflow,
} }

/// What an owner becomes whose sum with the offset exceeds 32 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdOverflow {
    /// It is an error.
    #[default]
    Refuse,
    /// The sum modulo 2^32, as in mkfs.erofs 1.9, which prints a message. So an offset can be negative.
    Wrap,
}

impl OwnerOverrides {
    /// Root owns everything (`--all-root`).
    #[must_use]
    pub fn all_root() -> Self {
        Self { force_uid: Some(0), force_gid: Some(0), ..Self::default() }
    }

    /// # Errors
    /// A sum exceeds 32 bits and is refused, or the result is [`NO_ID`].
    fn apply(&self, uid: &mut u32, gid: &mut u32) -> Result<()> {
        *uid = self.changed("uid", *uid, self.force_uid, self.uid_offset)?;
        *gid = self.changed("gid", *gid, self.force_gid, self.gid_offset)?;
        Ok(())
    }

    fn changed(&self, what: &str, id: u32, forced: Option<u32>, offset: u32) -> Result<u32> {
        let refused = |why| Err(Error::new(ErrorKind::Unsupported(why)));
        let base = forced.unwrap_or(id);
        let sum = match (base.checked_add(offset), self.overflow) {
            (Some(sum), _) => sum,
            (None, IdOverflow::Wrap) => base.wrapping_add(offset),
            (None, IdOverflow::Refuse) => {
                return refused(format!("{what} {base} plus the offset {offset} exceeds 32 bits"));
            }
        };
        match (sum, forced, offset) {
            // What the source has is stored as it is.
            (NO_ID, None, 0) => Ok(sum),
            (NO_ID, Some(_), 0) => refused(format!("{what} {NO_ID} stands for no owner")),
            (NO_ID, ..) => refused(format!(
                "{what} {base} plus the offset {offset} is {NO_ID}, which stands for no owner"
            )),
            _ => Ok(sum),
        }
    }
}

/// A choice of xattrs by name. Importers check it before they read a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum XattrFilter {
    /// All readable xattrs.
    #[default]
    All,
    /// None (`-x-1` of mkfs.erofs).
    None,
    /// By patterns: a full name such as `user.mime_type`, or a prefix with a `*`, such as
    /// `security.*`.
    Named {
        /// The xattrs that are kept; empty means all.
        include: Vec<Vec<u8>>,
        /// The xattrs that are dropped, even if `include` matches them.
        exclude: Vec<Vec<u8>>,
    },
}

impl XattrFilter {
    /// Whether the xattr with this full name is kept.
    #[must_use]
    pub fn keeps(&self, name: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Named { include, exclude } => {
                let has_match = |patterns: &[Vec<u8>]| patterns.iter().any(|one| fits(one, name));
                (include.is_empty() || has_match(include)) && !has_match(exclude)
            }
        }
    }
}

fn fits(pattern: &[u8], name: &[u8]) -> bool {
    match pattern.strip_suffix(b"*") {
        Some(prefix) => name.starts_with(prefix),
        None => pattern == name,
    }
}

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
    /// Whiteouts and [`OPAQUE_XATTR`] are removed (`--ovlfs-strip`), and an empty [`ORIGIN_XATTR`] that was there for
    /// the whiteouts.
    Strip,
}

impl OverlayPolicy {
    fn apply(self, tree: &mut Tree) {
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

/// Removes an empty [`ORIGIN_XATTR`] from a directory that has no whiteouts any more.
pub fn unmark_origin(tree: &mut Tree, directory: NodeId) {
    let xattrs = tree.node(directory).metadata.xattrs;
    let has_mark = xattrs.get(ORIGIN_XATTR).is_some_and(|value| value.is_empty());
    if has_mark && whiteouts(tree, directory).next().is_none() {
        tree.node_mut(directory).metadata.xattrs.remove(ORIGIN_XATTR);
    }
}

fn mark_origins(tree: &mut Tree) {
    let parents = tree.ids().filter(|id| whiteouts(tree, *id).next().is_some());
    for parent in parents.collect::<Vec<_>>() {
        mark_origin(&mut tree.node_mut(parent).metadata);
    }
}

fn strip(tree: &mut Tree) {
    for parent in tree.ids() {
        let names: Vec<_> = whiteouts(tree, parent).collect();
        for name in &names {
            tree.unlink(parent, name);
        }
        if !names.is_empty() {
            unmark_origin(tree, parent);
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ops::Range;
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::tree::{Content, ContentReader, ContentSource, Metadata, Node, NodeKind};

    /// Content that is never read.
    struct UnreadableContent;

    impl ContentSource for UnreadableContent {
        fn name(&self) -> String {
            "unread".to_owned()
        }
        fn open(&self) -> Result<Box<dyn ContentReader>> {
            Err(Error::new(ErrorKind::Cancelled))
        }
        fn data_ranges(&self) -> Result<Vec<Range<u64>>> {
            Ok(Vec::new())
        }
    }

    fn metadata() -> Metadata {
        Metadata {
            permissions: 0o644,
            uid: 1000,
            gid: 100,
            mtime: Timestamp { seconds: 50, nanoseconds: 7 },
            xattrs: BTreeMap::new(),
        }
    }

    fn file(bytes: u64) -> Node {
        Node {
            metadata: metadata(),
            kind: NodeKind::File(Content::new(Arc::new(UnreadableContent), bytes)),
        }
    }

    /// A tree with one file, `dir/file`, and where it is.
    fn tree_of(node: Node) -> (Tree, NodeId) {
        let mut tree = Tree::new(metadata());
        let directory = tree.add(Node::directory(metadata())).unwrap();
        tree.link(Tree::ROOT, b"dir", directory).unwrap();
        let file = tree.add(node).unwrap();
        tree.link(directory, b"file", file).unwrap();
        (tree, file)
    }

    fn adjusted(adjustments: &Adjustments, node: Node) -> Metadata {
        let (mut tree, file) = tree_of(node);
        adjustments.apply(&mut tree).unwrap();
        tree.node(file).metadata.clone()
    }

    fn with_mtime(mtime: MtimePolicy, seconds: i64) -> (i64, u32) {
        let mut node = file(1);
        node.metadata.mtime.seconds = seconds;
        let mtime = adjusted(&Adjustments { mtime, ..Adjustments::default() }, node).mtime;
        (mtime.seconds, mtime.nanoseconds)
    }

    #[test]
    fn nothing_changes_by_default() {
        assert_eq!(adjusted(&Adjustments::default(), file(1)), metadata());
    }

    #[test]
    fn forced_owners_come_before_offsets() {
        let owners = OwnerOverrides {
            force_uid: Some(5),
            force_gid: None,
            uid_offset: 100_000,
            gid_offset: 200_000,
            overflow: IdOverflow::Refuse,
        };
        let found = adjusted(&Adjustments { owners, ..Adjustments::default() }, file(1));
        assert_eq!((found.uid, found.gid), (100_005, 200_100));
        let owners = OwnerOverrides::all_root();
        let found = adjusted(&Adjustments { owners, ..Adjustments::default() }, file(1));
        assert_eq!((found.uid, found.gid), (0, 0));
    }

    #[test]
    fn an_owner_that_overflows_is_an_error_with_its_path() {
        let mut node = file(1);
        node.metadata.gid = u32::MAX - 1;
        let (mut tree, _) = tree_of(node);
        let owners = OwnerOverrides { gid_offset: 2, ..OwnerOverrides::default() };
        let error = Adjustments { owners, ..Adjustments::default() }.apply(&mut tree).unwrap_err();
        assert_eq!(error.path(), Path::new("dir/file"));
        assert_eq!(error.to_string(), "dir/file: gid 4294967294 plus the offset 2 exceeds 32 bits");
        let owners = OwnerOverrides { overflow: IdOverflow::Wrap, ..owners };
        let mut node = file(1);
        node.metadata.gid = u32::MAX - 1;
        assert_eq!(adjusted(&Adjustments { owners, ..Adjustments::default() }, node).gid, 0);
    }

    #[test]
    fn no_owner_becomes_the_id_that_stands_for_none() {
        let refused = |owners| {
            let (mut tree, _) = tree_of(file(1));
            let adjustments = Adjustments { owners, ..Adjustments::default() };
            adjustments.apply(&mut tree).unwrap_err().to_string()
        };
        let owners = OwnerOverrides { uid_offset: u32::MAX - 1000, ..OwnerOverrides::default() };
        let why = "uid 1000 plus the offset 4294966295 is 4294967295, which stands for no owner";
        assert_eq!(refused(owners), format!("/: {why}"));
        // 100 - 101.
        let owners =
            OwnerOverrides::default().gid_offset(u32::MAX - 100).overflow(IdOverflow::Wrap);
        assert!(refused(owners).contains("gid 100 plus the offset 4294967195 is 4294967295"));
        let owners = OwnerOverrides::default().force_gid(Some(0)).gid_offset(u32::MAX);
        assert!(refused(owners.overflow(IdOverflow::Wrap)).contains("gid 0 plus the offset"));
        let owners = OwnerOverrides::default().force_uid(Some(u32::MAX));
        assert!(refused(owners).contains("uid 4294967295 stands for no owner"));
        // The source may have it.
        let mut node = file(1);
        node.metadata.uid = u32::MAX;
        assert_eq!(adjusted(&Adjustments::default(), node).uid, u32::MAX);
    }

    #[test]
    fn times_are_kept_replaced_or_clamped_as_mkfs_does() {
        assert_eq!(with_mtime(MtimePolicy::Keep, 50), (50, 7));
        assert_eq!(with_mtime(MtimePolicy::All(-3), 50), (-3, 0));
        assert_eq!(with_mtime(MtimePolicy::Clamp(60), 59), (59, 7));
        assert_eq!(with_mtime(MtimePolicy::Clamp(60), 60), (60, 0));
        assert_eq!(with_mtime(MtimePolicy::Clamp(60), 61), (60, 0));
    }

    #[test]
    fn only_inodes_that_can_be_compact_get_the_compact_time() {
        let adjustments = Adjustments {
            compact_time: Some(CompactTime { seconds: 9 }),
            ..Adjustments::default()
        };
        let seconds = |node| adjusted(&adjustments, node).mtime.seconds;
        assert_eq!(seconds(file(u64::from(u32::MAX))), 9);
        assert_eq!(seconds(file(u64::from(u32::MAX) + 1)), 50);
        let mut node = file(1);
        node.metadata.uid = 65_536;
        assert_eq!(seconds(node), 50);
    }

    #[test]
    fn an_inode_with_too_many_links_for_a_compact_one_keeps_its_time() {
        for (links, seconds) in [(65_535_u32, 9), (65_536, 50)] {
            let (mut tree, file) = tree_of(file(1));
            for number in 1..links {
                tree.link(Tree::ROOT, number.to_string().as_bytes(), file).unwrap();
            }
            let compact_time = Some(CompactTime { seconds: 9 });
            Adjustments { compact_time, ..Adjustments::default() }.apply(&mut tree).unwrap();
            assert_eq!(tree.node(file).metadata.mtime.seconds, seconds, "{links}");
        }
    }

    #[test]
    fn xattrs_stay_by_name_and_by_prefix() {
        let named = |include: &[&str], exclude: &[&str]| {
            let owned =
                |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec()).collect();
            XattrFilter::Named { include: owned(include), exclude: owned(exclude) }
        };
        let cases = [
            (XattrFilter::All, "user.a user.b security.c"),
            (XattrFilter::None, ""),
            (named(&[], &["user.a"]), "user.b security.c"),
            (named(&["user.*"], &[]), "user.a user.b"),
            (named(&["user.*", "security.c"], &["user.b*"]), "user.a security.c"),
            (named(&["user.", "*"], &["*"]), ""),
        ];
        for (xattrs, expected) in cases {
            let mut node = file(1);
            for name in ["user.a", "user.b", "security.c"] {
                node.metadata.xattrs.insert(name.as_bytes().into(), b"1".as_slice().into());
            }
            let found = adjusted(&Adjustments { xattrs, ..Adjustments::default() }, node).xattrs;
            let mut expected: Vec<&[u8]> = expected.split_whitespace().map(str::as_bytes).collect();
            expected.sort_unstable();
            assert_eq!(found.keys().map(|name| &**name).collect::<Vec<_>>(), expected);
        }
    }

    /// `dir` is opaque and holds the whiteout `file` and another device.
    fn layer() -> (Tree, NodeId) {
        let (mut tree, _) = tree_of(whiteout(metadata()));
        let directory = tree.child(Tree::ROOT, b"dir").unwrap();
        let device = NodeKind::CharacterDevice { major: 0, minor: 1 };
        let device = tree.add(Node { metadata: metadata(), kind: device }).unwrap();
        tree.link(directory, b"device", device).unwrap();
        mark_opaque(&mut tree.node_mut(directory).metadata);
        (tree, directory)
    }

    #[test]
    fn directories_with_whiteouts_get_an_origin_even_if_xattrs_are_dropped() {
        let (mut tree, directory) = layer();
        let adjustments = Adjustments {
            xattrs: XattrFilter::None,
            overlay: OverlayPolicy::MarkOrigins,
            ..Adjustments::default()
        };
        adjustments.apply(&mut tree).unwrap();
        let xattrs = &tree.node(directory).metadata.xattrs;
        assert_eq!(xattrs.len(), 1);
        assert_eq!(xattrs.get(ORIGIN_XATTR).map(|value| value.len()), Some(0));
        assert!(tree.node(Tree::ROOT).metadata.xattrs.is_empty());
    }

    #[test]
    fn an_origin_that_is_there_stays() {
        let (mut tree, directory) = layer();
        let origin: Box<[u8]> = b"id".as_slice().into();
        tree.node_mut(directory).metadata.xattrs.insert(ORIGIN_XATTR.into(), origin.clone());
        OverlayPolicy::MarkOrigins.apply(&mut tree);
        assert_eq!(tree.node(directory).metadata.xattrs.get(ORIGIN_XATTR), Some(&origin));
    }

    #[test]
    fn stripping_takes_whiteouts_and_opaque_marks_away() {
        let (mut tree, directory) = layer();
        OverlayPolicy::Strip.apply(&mut tree);
        assert_eq!(tree.child(directory, b"file"), None);
        assert!(tree.child(directory, b"device").is_some());
        assert!(tree.node(directory).metadata.xattrs.is_empty());
    }

    #[test]
    fn stripping_takes_an_origin_away_that_was_there_for_whiteouts_only() {
        for (origin, stays) in [(&b""[..], false), (b"id", true)] {
            let (mut tree, directory) = layer();
            for id in [Tree::ROOT, directory] {
                tree.node_mut(id).metadata.xattrs.insert(ORIGIN_XATTR.into(), origin.into());
            }
            OverlayPolicy::Strip.apply(&mut tree);
            let xattrs = tree.node(directory).metadata.xattrs;
            assert_eq!(xattrs.contains_key(ORIGIN_XATTR), stays);
            // The root had no whiteouts.
            assert!(tree.node(Tree::ROOT).metadata.xattrs.contains_key(ORIGIN_XATTR));
        }
    }

    #[test]
    fn names_of_aufs_are_read() {
        assert_eq!(AufsName::of(b"file"), AufsName::Plain);
        assert_eq!(AufsName::of(b".wh"), AufsName::Plain);
        assert_eq!(AufsName::of(b".wh.file"), AufsName::Whiteout(b"file"));
        assert_eq!(AufsName::of(b".wh..wh..opq"), AufsName::Opaque);
        assert_eq!(AufsName::of(b".wh..wh.plnk"), AufsName::Whiteout(b".wh.plnk"));
    }

    #[test]
    fn a_whiteout_of_a_name_that_cannot_be_is_refused_by_the_tree() {
        for hostile in [b".wh.".as_slice(), b".wh..", b".wh..."] {
            let AufsName::Whiteout(name) = AufsName::of(hostile) else { panic!("{hostile:?}") };
            let (mut tree, file) = tree_of(whiteout(metadata()));
            assert!(tree.link(Tree::ROOT, name, file).is_err(), "{hostile:?}");
        }
    }

    fn excludes(expression: &str, path: &str) -> bool {
        ExcludePatterns::new([""; 0], [expression]).unwrap().excludes(path.as_bytes())
    }

    #[test]
    fn paths_are_excluded_byte_by_byte() {
        let exclude_patterns =
            ExcludePatterns::new([b"a/b".to_vec(), b"\xff".to_vec()], [""; 0]).unwrap();
        assert!(exclude_patterns.excludes(b"a/b"));
        assert!(exclude_patterns.excludes(b"\xff"));
        assert!(!exclude_patterns.excludes(b"a"));
        assert!(!exclude_patterns.excludes(b"a/bc"));
        assert!(!exclude_patterns.is_empty());
        assert!(ExcludePatterns::default().is_empty());
        assert!(!ExcludePatterns::default().excludes(b""));
    }

    #[test]
    fn expressions_are_found_anywhere_unless_anchored() {
        assert!(excludes("b+c", "a/bbc/d"));
        assert!(!excludes("^b", "a/b"));
        assert!(excludes("^(a|x)/.{1}$", "a/b"));
        assert!(excludes("[[:digit:]]{2}", "x12"));
        assert!(excludes("a.b", "a\nb"));
    }

    #[test]
    fn a_character_of_an_expression_is_a_byte() {
        let exclude_patterns = ExcludePatterns::new([""; 0], ["^.$"]).unwrap();
        assert!(exclude_patterns.excludes(b"\xff"));
        assert!(!exclude_patterns.excludes("é".as_bytes()));
        assert!(excludes("é$", "café"));
    }

    #[test]
    fn bracket_expressions_are_those_of_posix() {
        // POSIX: the backslash is one of the characters.
        assert!(excludes(r"^[\.]$", r"\"));
        assert!(excludes(r"^[\.]$", "."));
        assert!(!excludes(r"^[\d]$", "5"));
        assert!(excludes("^[]a]$", "]"));
        assert!(excludes("^[^]a]$", "b"));
        assert!(!excludes("^[^]a]$", "]"));
        assert!(excludes("^[[a]$", "["));
        assert!(excludes("^[a&&b]$", "&"));
        assert!(excludes("^[a-]$", "-"));
        assert!(excludes("^[-a]$", "-"));
        assert!(excludes("^[a-c]$", "b"));
        assert!(!excludes("^[a-c]$", "-"));
        assert!(excludes(r"\`a\'", "a"));
        assert!(!excludes(r"\`a\'", "`a'"));
    }

    #[test]
    fn expressions_that_mean_something_else_are_refused_by_name() {
        for expression in
            ["[a", "(", r"(a)\1", "[[.a.]]", "[[=a=]]", "[é]", "[[:nonsense:]]", "*a", "["]
        {
            let error = ExcludePatterns::new([""; 0], [expression]).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::InvalidOptions(_)), "{expression}: {error}");
            assert!(error.to_string().contains(expression), "{error}");
        }
    }

    #[test]
    fn an_expression_of_huge_size_is_refused() {
        let error = ExcludePatterns::new([""; 0], ["((a{1000}){1000}){1000}"]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidOptions(_)), "{error}");
    }
}
