//! Each adjustment on small trees.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::tree::{Content, ContentReader, ContentSource, Metadata, Node, NodeKind, Timestamp};
use crate::{Error, ErrorKind};

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
    let adjustments =
        Adjustments { compact_time: Some(CompactTime { seconds: 9 }), ..Adjustments::default() };
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
        let owned = |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec()).collect();
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
