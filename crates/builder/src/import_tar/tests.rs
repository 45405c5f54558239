//! Whole archives and the trees that they give; and files that begin with the end marker of an archive: archives of
//! nothing, and images of file systems.

use std::collections::HashMap;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{
    AccountFiles, InputLimit, TarContentMode, TarImportOptions, TarSource, WhiteoutPolicy, from_tar,
};
use crate::import::{Compression, SpoolOptions};
use crate::tree::{Content, DeviceAddress, NodeKind, SourceExtent, Tree};
use crate::{ErrorKind, NoopObserver, Result};
use ferrofs_workers::CancelToken;

/// The bytes of a file, read in pieces of an odd size.
pub(super) fn bytes_of(content: &Content) -> Vec<u8> {
    let mut reader = content.source().open().unwrap();
    let mut bytes = vec![0xEE; usize::try_from(content.bytes()).unwrap()];
    for (number, piece) in bytes.chunks_mut(777).enumerate() {
        reader.read_exact_at(number as u64 * 777, piece).unwrap();
    }
    assert!(reader.read_exact_at(content.bytes(), &mut [0]).is_err());
    reader.check_unchanged().unwrap();
    bytes
}

/// One line for each name: everything that an image would keep of it.
pub(super) fn listing(tree: &Tree) -> Vec<String> {
    let mut names = HashMap::new();
    let mut lines = Vec::new();
    tree.walk(|path, id| {
        let node = tree.node(id);
        let path = path.escape_ascii().to_string();
        let first = names.entry(id).or_insert_with(|| path.clone());
        if *first != path {
            lines.push(format!("{path} is {first}"));
            return Ok::<_, ()>(());
        }
        let what = match &node.kind {
            NodeKind::Directory => "directory".to_owned(),
            NodeKind::File(content) => {
                let ranges = content.source().data_ranges().unwrap();
                let bytes = bytes_of(content);
                // Weighted, so that bytes in other places give another sum.
                let weighted =
                    bytes.iter().enumerate().map(|(at, byte)| (at % 251 + 1) * usize::from(*byte));
                let data: usize = weighted.sum();
                let parts = ranges.iter().all(|range| range.end <= content.bytes());
                assert!(parts, "{path} has data behind its end");
                format!("file of {} bytes, sum {data}", bytes.len())
            }
            NodeKind::Symlink(target) => format!("symlink to {}", target.escape_ascii()),
            NodeKind::CharacterDevice { major, minor } => {
                format!("character device {major}:{minor}")
            }
            NodeKind::BlockDevice { major, minor } => format!("block device {major}:{minor}"),
            NodeKind::Fifo => "fifo".to_owned(),
            NodeKind::Socket => "socket".to_owned(),
        };
        let metadata = &node.metadata;
        let mut line = format!(
            "{path} {what} {:o} {}:{} {}.{:09}",
            metadata.permissions,
            metadata.uid,
            metadata.gid,
            metadata.mtime.seconds,
            metadata.mtime.nanoseconds
        );
        for (name, value) in &metadata.xattrs {
            line += &format!(" {}={}", name.escape_ascii(), value.escape_ascii());
        }
        lines.push(line);
        Ok(())
    })
    .unwrap();
    lines
}

/// What comes of an archive, which must not depend on how it comes.
pub(super) fn import(bytes: &[u8], options: &TarImportOptions) -> Result<Tree> {
    let name = PathBuf::from("a.tar");
    let placed = from_tar(
        TarSource::Bytes { name: name.clone(), bytes: bytes.into() },
        options,
        &NoopObserver,
        &CancelToken::new(),
    );
    let reader = Box::new(Cursor::new(bytes.to_vec()));
    let spool = SpoolOptions { memory_bytes_max: 1000, ..SpoolOptions::default() };
    let streaming = TarImportOptions { spool, ..options.clone() };
    let streamed = from_tar(
        TarSource::Stream { name, reader },
        &streaming,
        &NoopObserver,
        &CancelToken::new(),
    );
    match (&placed, &streamed) {
        (Ok(placed), Ok(streamed)) => assert_eq!(listing(placed), listing(streamed)),
        (Err(placed), Err(streamed)) => assert_eq!(placed.to_string(), streamed.to_string()),
        _ => panic!("in place {placed:?}, as a stream {streamed:?}"),
    }
    placed
}

pub(super) fn listed(bytes: &[u8]) -> Vec<String> {
    listing(&import(bytes, &TarImportOptions::default()).unwrap())
}

pub(super) fn refusal(bytes: &[u8]) -> String {
    let error = import(bytes, &TarImportOptions::default()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Archive(_)), "{error:?}");
    error.to_string()
}

/// An archive in the making.
#[derive(Clone)]
pub(super) struct ArchiveBuilder {
    bytes: Vec<u8>,
}

/// A header with room for what a test wants to change.
#[derive(Clone)]
pub(super) struct TestHeader([u8; 512]);

impl TestHeader {
    pub(super) fn new(kind: u8, path: &[u8], size: u64) -> Self {
        let mut block = Self([0; 512]);
        block.set(0, path).set(100, b"0000644\0").set(108, b"0000000\0").set(116, b"0000000\0");
        block.set(124, format!("{size:011o}\0").as_bytes()).set(136, b"00000000000\0");
        block.set(156, &[kind]).set(257, b"ustar\x0000");
        block
    }

    pub(super) fn gnu(kind: u8, path: &[u8], size: u64) -> Self {
        let mut block = Self::new(kind, path, size);
        block.set(257, b"ustar  \0");
        block
    }

    pub(super) fn set(&mut self, at: usize, bytes: &[u8]) -> &mut Self {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    pub(super) fn link(kind: u8, path: &[u8], target: &[u8]) -> Self {
        let mut block = Self::new(kind, path, 0);
        block.set(157, target);
        block
    }

    pub(super) fn sealed(&self) -> [u8; 512] {
        let mut block = self.0;
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        block
    }
}

impl ArchiveBuilder {
    pub(super) fn new() -> Self {
        Self { bytes: Vec::new() }
    }

    pub(super) fn block(mut self, block: &TestHeader) -> Self {
        self.bytes.extend_from_slice(&block.sealed());
        self
    }

    pub(super) fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self
    }

    pub(super) fn entry(self, kind: u8, path: &str, contents: &[u8]) -> Self {
        self.block(&TestHeader::new(kind, path.as_bytes(), contents.len() as u64)).raw(contents)
    }

    pub(super) fn file(self, path: &str, contents: &str) -> Self {
        self.entry(b'0', path, contents.as_bytes())
    }

    pub(super) fn directory(self, path: &str) -> Self {
        self.entry(b'5', path, b"")
    }

    pub(super) fn link(self, kind: u8, path: &str, target: &str) -> Self {
        self.block(&TestHeader::link(kind, path.as_bytes(), target.as_bytes()))
    }

    pub(super) fn pax(self, records: &[(&str, &[u8])]) -> Self {
        self.records(b'x', records)
    }

    pub(super) fn records(self, kind: u8, records: &[(&str, &[u8])]) -> Self {
        let body: Vec<u8> = records.iter().flat_map(|(key, value)| record(key, value)).collect();
        self.entry(kind, "extended", &body)
    }

    pub(super) fn end(self) -> Vec<u8> {
        self.raw(&[0; 1024]).bytes
    }
}

pub(super) fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let body = key.len() + value.len() + 3;
    let mut length = body;
    while length != body + length.to_string().len() {
        length = body + length.to_string().len();
    }
    [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
}

pub(super) fn layer(bytes: Vec<u8>) -> TarSource {
    TarSource::Bytes { name: PathBuf::from("layer.tar"), bytes: Arc::from(bytes) }
}

pub(super) const ROOT: &str = " directory 755 0:0 0.000000000";

pub(super) fn options(whiteouts: WhiteoutPolicy) -> TarImportOptions {
    TarImportOptions { whiteouts, ..TarImportOptions::default() }
}

pub(super) fn names(tree: &Tree) -> Vec<String> {
    listing(tree)
        .iter()
        .skip(1)
        .map(|line| line.split(' ').next().unwrap_or("").to_owned())
        .collect()
}

fn lines(archive: ArchiveBuilder) -> Vec<String> {
    let lines = listed(&archive.end());
    assert_eq!(lines[0], ROOT);
    lines[1..].to_vec()
}

#[test]
fn an_archive_of_nothing_is_a_root() {
    assert_eq!(listed(&[0; 1024]), [ROOT]);
    assert_eq!(listed(&[0; 512]), [ROOT]);
    assert_eq!(listed(&[0; 700]), [ROOT]);
}

#[test]
fn the_root_takes_the_metadata_of_its_entry() {
    for path in ["./", ".", "/", "././"] {
        let mut block = TestHeader::new(b'5', path.as_bytes(), 0);
        block.set(100, b"0001777\0").set(108, b"0000005\0").set(136, b"00000000012\0");
        assert_eq!(
            listed(&ArchiveBuilder::new().block(&block).end()),
            [" directory 1777 5:0 10.000000000"]
        );
    }
}

#[test]
fn slashes_and_dots_around_names_do_not_matter() {
    let archive = ArchiveBuilder::new()
        .file("/a", "1")
        .file("./b//c", "2")
        .file(".//d/./e", "3")
        .directory("///f///");
    let lines = lines(archive);
    let names: Vec<_> = lines.iter().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(names, ["a", "b", "b/c", "d", "d/e", "f"]);
    assert_eq!(lines[1], "b directory 755 0:0 0.000000000");
}

#[test]
fn later_entries_replace_earlier_ones() {
    let mut again = TestHeader::new(b'5', b"d", 0);
    again.set(100, b"0000700\0");
    let archive = ArchiveBuilder::new()
        .directory("d")
        .file("d/x", "old")
        .link(b'1', "hard", "d/x")
        .file("d/x", "new!")
        .link(b'2', "link", "nowhere")
        .directory("link")
        .file("link/y", "")
        .directory("gone")
        .file("gone", "z")
        .block(&again);
    assert_eq!(
        lines(archive),
        [
            "d directory 700 0:0 0.000000000",
            "d/x file of 4 bytes, sum 801 644 0:0 0.000000000",
            "gone file of 1 bytes, sum 122 644 0:0 0.000000000",
            "hard file of 3 bytes, sum 627 644 0:0 0.000000000",
            "link directory 644 0:0 0.000000000",
            "link/y file of 0 bytes, sum 0 644 0:0 0.000000000",
        ]
    );
}

#[test]
fn inodes_that_lost_their_names_are_not_in_the_tree() {
    let tree = import(
        &ArchiveBuilder::new().file("a", "1").file("a", "2").end(),
        &TarImportOptions::default(),
    );
    assert_eq!(tree.unwrap().len(), 2);
}

#[test]
fn hard_links_lead_to_files_and_symlinks_whatever_size_they_claim() {
    let mut sized = TestHeader::link(b'1', b"c", b"./b");
    sized.set(124, b"00000001000\0");
    let archive = ArchiveBuilder::new().link(b'2', "a", "x").link(b'1', "b", "/a").block(&sized);
    assert_eq!(lines(archive), ["a symlink to x 644 0:0 0.000000000", "b is a", "c is a"]);
}

/// As `tar -r` writes it.
#[test]
fn a_hard_link_may_be_repeated() {
    let archive = ArchiveBuilder::new().file("a", "");
    let archive = archive.link(b'1', "b", "a").link(b'1', "b", "./a");
    assert_eq!(lines(archive)[1..], ["b is a"]);
}

#[test]
fn contiguous_files_old_files_and_old_directories_are_known() {
    let archive = ArchiveBuilder::new()
        .entry(b'7', "a", b"1")
        .entry(0, "b", b"2")
        .entry(0, "c/", b"")
        .entry(b'0', "d/", b"");
    assert_eq!(
        lines(archive),
        [
            "a file of 1 bytes, sum 49 644 0:0 0.000000000",
            "b file of 1 bytes, sum 50 644 0:0 0.000000000",
            "c directory 644 0:0 0.000000000",
            "d directory 644 0:0 0.000000000",
        ]
    );
}

#[test]
fn labels_are_passed_over_and_dumped_directories_are_directories() {
    let archive =
        ArchiveBuilder::new().entry(b'V', "label", b"").entry(b'D', "d", b"Yfile\0Nother\0\0");
    assert_eq!(lines(archive), ["d directory 644 0:0 0.000000000"]);
}

#[test]
fn gnu_names_and_numbers_are_read() {
    let long = format!("{}/b", "a".repeat(200));
    let mut file = TestHeader::gnu(b'0', b"short", 0);
    file.set(108, b"\x80\0\0\0\0\x12\xD6\x87")
        .set(136, b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFE");
    // What other dialects have as a prefix are times here.
    file.set(345, b"14000000000\0");
    let archive = ArchiveBuilder::new()
        .block(&TestHeader::gnu(b'L', b"././@LongLink", long.len() as u64 + 1))
        .raw(format!("{long}\0").as_bytes())
        .block(&file)
        .block(&TestHeader::gnu(b'K', b"././@LongLink", long.len() as u64 + 1))
        .raw(format!("{long}\0").as_bytes())
        .block(&TestHeader::link(b'2', b"link", b"short"));
    assert_eq!(
        lines(archive)[1..],
        [
            format!("{long} file of 0 bytes, sum 0 644 1234567:0 -2.000000000"),
            format!("link symlink to {long} 644 0:0 0.000000000"),
        ]
    );
}

#[test]
fn prefixes_of_ustar_and_star_are_read() {
    let mut ustar = TestHeader::new(b'0', b"name", 0);
    ustar.set(345, &[b'p'; 155]);
    let mut star = TestHeader::new(b'0', b"name", 0);
    star.set(345, b"some/where").set(476, b"14000000000 14000000000 ").set(508, b"tar\0");
    let lines = lines(ArchiveBuilder::new().block(&ustar).block(&star));
    assert!(lines[1].starts_with(&format!("{}/name file", "p".repeat(155))));
    assert!(lines[4].starts_with("some/where/name file"));
}

#[test]
fn records_override_headers_and_the_last_counts() {
    let archive = ArchiveBuilder::new()
        .records(b'g', &[("uid", b"7"), ("mtime", b"5"), ("comment", b"x")])
        .pax(&[
            ("path", b"first"),
            ("path", b"a/file"),
            ("size", b"3"),
            ("gid", b"4000000000"),
            ("mtime", b"-1.25"),
            ("hdrcharset", b"BINARY"),
            ("SCHILY.xattr.user.x", b"1"),
            ("SCHILY.xattr.user.x", b"a=\n\0"),
            ("LIBARCHIVE.xattr.user.y", b"AAE"),
            ("unknown.key", b"is ignored"),
        ])
        .block(&TestHeader::new(b'0', b"short", 0o7777_7777))
        .raw(b"abc")
        .pax(&[("uid", b""), ("linkpath", b"target")])
        .link(b'2', "link", "");
    assert_eq!(
        lines(archive),
        [
            "a directory 755 0:0 0.000000000",
            "a/file file of 3 bytes, sum 590 644 7:4000000000 -2.750000000 user.x=a=\\n\\x00 user.y=\\x00\\x01",
            "link symlink to target 644 0:0 5.000000000",
        ]
    );
}

#[test]
fn names_in_acls_are_those_of_the_host() {
    let folder = tempfile::TempDir::new().unwrap();
    let users = folder.path().join("users");
    std::fs::write(&users, "ann:x:1000:1::\n").unwrap();
    let accounts = Some(AccountFiles { groups: users.clone(), users });
    let acl = |who: &str| format!("user::rw-,{who}:r--,group::r--,mask::r--,other::---");
    let listed = |who, options: &TarImportOptions| {
        let archive = ArchiveBuilder::new().pax(&[("SCHILY.acl.access", acl(who).as_bytes())]);
        import(&archive.file("f", "").end(), options).map(|tree| listing(&tree))
    };
    let options = TarImportOptions { accounts, ..TarImportOptions::default() };
    let by_name = listed("user:ann", &options).unwrap();
    assert_eq!(by_name, listed("user:1000", &TarImportOptions::default()).unwrap());
    let error = listed("user:bob", &options).unwrap_err();
    assert!(error.to_string().contains("the user bob is not in "), "{error}");
}

#[test]
fn acls_become_xattrs() {
    let archive = ArchiveBuilder::new()
        .pax(&[
            ("SCHILY.acl.access", b"user::rw-,user:1000:r--,group::r--,mask::r--,other::---"),
            ("SCHILY.acl.default", b"user::rwx,group::r-x,other::---,mask::rwx"),
        ])
        .directory("d")
        .pax(&[("SCHILY.acl.access", b"user::rw-,group::r--,other::r--")])
        .file("f", "");
    let lines = lines(archive);
    let name = "system.posix_acl_access=\\x02\\x00\\x00\\x00\\x01\\x00\\x06\\x00\\xff\\xff\\xff\\xff\\x02\\x00\\x04\\x00\\xe8\\x03";
    assert!(
        lines[0].contains(name) && lines[0].contains(" system.posix_acl_default="),
        "{}",
        lines[0]
    );
    assert_eq!(lines[1], "f file of 0 bytes, sum 0 644 0:0 0.000000000");
}

#[test]
fn devices_may_have_numbers_in_records() {
    let mut block = TestHeader::new(b'3', b"a", 0);
    block.set(329, b"0000005\0").set(337, b"3777777\0");
    let archive = ArchiveBuilder::new()
        .block(&block)
        .pax(&[("SCHILY.devmajor", b"4095"), ("SCHILY.devminor", b"9")])
        .entry(b'4', "b", b"");
    assert_eq!(
        lines(archive),
        [
            "a character device 5:1048575 644 0:0 0.000000000",
            "b block device 4095:9 644 0:0 0.000000000"
        ]
    );
}

#[test]
fn sparse_files_of_all_formats_are_whole() {
    let data = [b"abc".as_slice(), b"de"].concat();
    let mut old = TestHeader::gnu(b'S', b"old", 5);
    old.set(386, b"00000000002\x0000000000003\0").set(410, b"00000001000\x0000000000002\0");
    old.set(434, b"00000010000\x0000000000000\0").set(483, b"00000010000\0");
    let one: &[u8] = b"3\n2\n3\n512\n2\n4096\n0\n";
    let mut with_map = one.to_vec();
    with_map.resize(512, 0);
    with_map.extend_from_slice(&data);
    let archive = ArchiveBuilder::new()
        .block(&old)
        .raw(&data)
        .pax(&[
            ("GNU.sparse.size", b"4096"),
            ("GNU.sparse.numblocks", b"2"),
            ("GNU.sparse.offset", b"2"),
            ("GNU.sparse.numbytes", b"3"),
            ("GNU.sparse.offset", b"512"),
            ("GNU.sparse.numbytes", b"2"),
        ])
        .entry(b'0', "zero", &data)
        .pax(&[
            ("GNU.sparse.size", b"4096"),
            ("GNU.sparse.numblocks", b"2"),
            ("GNU.sparse.map", b"2,3,512,2"),
            ("GNU.sparse.name", b"zero-one"),
        ])
        .entry(b'0', "GNUSparseFile.1/zero-one", &data)
        .pax(&[
            ("GNU.sparse.major", b"1"),
            ("GNU.sparse.minor", b"0"),
            ("GNU.sparse.realsize", b"4096"),
            ("GNU.sparse.name", b"one"),
        ])
        .entry(b'0', "GNUSparseFile.1/one", &with_map)
        .end();
    let tree = from_tar(
        layer(archive.clone()),
        &TarImportOptions::default(),
        &NoopObserver,
        &CancelToken::new(),
    )
    .unwrap();
    assert_eq!(listed(&archive).len(), 5);
    for name in ["old", "zero", "zero-one", "one"] {
        let id = tree.child(Tree::ROOT, name.as_bytes()).unwrap();
        let content = tree.content(id).unwrap();
        let bytes = bytes_of(&content);
        let mut wanted = vec![0; 4096];
        wanted[2..5].copy_from_slice(b"abc");
        wanted[512..514].copy_from_slice(b"de");
        assert!(bytes == wanted, "{name}");
        assert_eq!(content.source().data_ranges().unwrap(), [2..5, 512..514], "{name}");
    }
}

#[test]
fn an_old_sparse_map_goes_on_in_further_blocks() {
    let mut old = TestHeader::gnu(b'S', b"old", 25);
    let part = |number: usize| format!("{:011o}\0{:011o}\0", number * 1000, 1);
    for number in 0..4 {
        old.set(386 + number * 24, part(number).as_bytes());
    }
    old.set(482, b"\x01").set(483, format!("{:011o}\0", 30_000).as_bytes());
    let mut more = [0; 512];
    for number in 4..25 {
        let at = (number - 4) * 24;
        more[at..at + 24].copy_from_slice(part(number).as_bytes());
    }
    let lines = lines(ArchiveBuilder::new().block(&old).raw(&more).raw(&[1; 25]));
    assert_eq!(lines, ["old file of 30000 bytes, sum 4849 644 0:0 0.000000000"]);
}

#[test]
fn what_follows_the_end_is_ignored_unless_archives_may_be_concatenated() {
    let first = ArchiveBuilder::new().file("a", "1").end();
    let second = ArchiveBuilder::new().file("b", "2").end();
    let bytes = [first.clone(), second, b"garbage".to_vec()].concat();
    assert_eq!(listed(&bytes).len(), 2);
    let bytes = [first.clone(), ArchiveBuilder::new().file("b", "2").end()].concat();
    let options = TarImportOptions { concatenated: true, ..TarImportOptions::default() };
    assert_eq!(import(&bytes, &options).unwrap().len(), 3);
    let bytes = [first, vec![7; 512]].concat();
    assert_eq!(import(&bytes, &options).unwrap().len(), 2);
}

#[test]
fn many_small_files_are_read() {
    let mut archive = ArchiveBuilder::new();
    for number in 0..20_000 {
        archive = archive.file(&format!("d{}/f{number}", number % 50), "x");
    }
    let tree = from_tar(
        layer(archive.end()),
        &TarImportOptions::default(),
        &NoopObserver,
        &CancelToken::new(),
    )
    .unwrap();
    assert_eq!(tree.len(), 20_051);
}

fn referred() -> TarImportOptions {
    TarImportOptions { contents: TarContentMode::Index, ..TarImportOptions::default() }
}

fn bare() -> TarImportOptions {
    TarImportOptions { contents: TarContentMode::HeadersOnly, ..TarImportOptions::default() }
}

fn from_bytes(bytes: &[u8], options: &TarImportOptions) -> Result<Tree> {
    from_tar(
        TarSource::Bytes { name: "a.tar".into(), bytes: bytes.into() },
        options,
        &NoopObserver,
        &CancelToken::new(),
    )
}

fn from_stream(bytes: &[u8], options: &TarImportOptions) -> Result<Tree> {
    let reader = Box::new(Cursor::new(bytes.to_vec()));
    from_tar(
        TarSource::Stream { name: "a.tar".into(), reader },
        options,
        &NoopObserver,
        &CancelToken::new(),
    )
}

fn parts(tree: &Tree, name: &[u8]) -> Vec<SourceExtent> {
    let id = tree.child(Tree::ROOT, name).unwrap();
    tree.node(id).content().unwrap().extents().unwrap().to_vec()
}

#[test]
fn contents_lie_where_the_archive_has_them() {
    let archive =
        ArchiveBuilder::new().file("a", "1").file("b", &"2".repeat(600)).file("c", "").end();
    for tree in [from_bytes(&archive, &referred()), from_stream(&archive, &referred())] {
        let tree = tree.unwrap();
        let place = |offset| Some(DeviceAddress { device: 1, offset });
        assert_eq!(parts(&tree, b"a"), [SourceExtent { start: 0, bytes: 1, place: place(512) }]);
        assert_eq!(parts(&tree, b"b"), [SourceExtent { start: 0, bytes: 600, place: place(1536) }]);
        assert_eq!(parts(&tree, b"c"), []);
        let [device] = tree.devices() else { panic!("{:?}", tree.devices()) };
        assert_eq!(device.bytes, archive.len() as u64);
    }
}

#[test]
fn replaced_files_take_no_device_away() {
    let archive = ArchiveBuilder::new().file("a", "1").file("a", "2").end();
    assert_eq!(from_bytes(&archive, &referred()).unwrap().devices().len(), 1);
}

#[test]
fn what_went_by_cannot_be_read() {
    let archive = ArchiveBuilder::new().file("a", "1").end();
    let tree = from_stream(&archive, &referred()).unwrap();
    let id = tree.child(Tree::ROOT, b"a").unwrap();
    let mut reader = tree.node(id).content().unwrap().source().open().unwrap();
    let error = reader.read_exact_at(0, &mut [0]).unwrap_err();
    assert!(
        error.to_string().contains("it was read as a stream and cannot be read again"),
        "{error}"
    );
}

#[test]
fn a_compressed_archive_is_referred_to_only_by_who_says_so() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/tar");
    let path = folder.join("pax.tar.gz");
    let error =
        from_tar(TarSource::Path(path.clone()), &referred(), &NoopObserver, &CancelToken::new())
            .unwrap_err();
    assert!(error.to_string().contains("no image can refer to it"), "{error}");
    let declared = TarImportOptions { compression: Some(Compression::Gzip), ..referred() };
    let tree =
        from_tar(TarSource::Path(path), &declared, &NoopObserver, &CancelToken::new()).unwrap();
    let [device] = tree.devices() else { panic!("{:?}", tree.devices()) };
    assert_eq!(device.bytes % 512, 0);
    let ends = tree.nodes().filter_map(|(_, node)| node.content()?.extents()?.last().copied());
    let ends: Vec<SourceExtent> = ends.collect();
    assert!(ends.len() > 3);
    assert!(ends.iter().filter_map(|part| part.place).all(|place| place.offset < device.bytes));
}

#[test]
fn files_of_an_archive_without_contents_have_sizes_and_zeros() {
    let mut large = TestHeader::new(b'0', b"large", 0);
    large.set(124, b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff");
    let mut archive = Vec::new();
    for block in [TestHeader::new(b'0', b"a", 600), TestHeader::new(b'5', b"d", 0), large] {
        archive.extend_from_slice(&block.sealed());
    }
    // Whoever leaves out contents may leave out the end, too.
    for bytes in [archive.clone(), [archive, vec![0; 1024]].concat()] {
        let tree = import_unlisted(&bytes, &bare());
        let size = |name| {
            let id = tree.child(Tree::ROOT, name).unwrap();
            tree.node(id).content().unwrap().bytes()
        };
        assert_eq!((size(b"a"), size(b"large")), (600, i64::MAX.unsigned_abs()));
        assert_eq!((parts(&tree, b"a"), tree.devices().len()), (Vec::new(), 0));
    }
    let small = TestHeader::new(b'0', b"a", 3).sealed().to_vec();
    let tree = import(&small, &bare()).unwrap();
    assert_eq!(listing(&tree)[1], "a file of 3 bytes, sum 0 644 0:0 0.000000000");
}

/// Files of 8 EiB are not listed byte by byte.
fn import_unlisted(bytes: &[u8], options: &TarImportOptions) -> Tree {
    from_stream(bytes, options).unwrap();
    from_bytes(bytes, options).unwrap()
}

/// Cancels when so many bytes have been read.
struct CancellingReader {
    bytes: Cursor<Vec<u8>>,
    after: u64,
    token: CancelToken,
}

impl std::io::Read for CancellingReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.bytes.position() >= self.after {
            self.token.cancel();
        }
        let count = buffer.len().min(4096);
        std::io::Read::read(&mut self.bytes, &mut buffer[..count])
    }
}

#[test]
fn an_import_that_is_cancelled_ends_within_a_file_and_between_files() {
    let large = vec![7; 2 << 20];
    let mut archive = ArchiveBuilder::new().entry(b'0', "large", &large);
    for number in 0..400 {
        archive = archive.file(&format!("small{number}"), "contents");
    }
    let bytes = archive.end();
    for after in [0, 1 << 20, (2 << 20) + 200_000] {
        let token = CancelToken::new();
        let reader = CancellingReader { bytes: Cursor::new(bytes.clone()), after, token };
        let token = reader.token.clone();
        let source = TarSource::Stream { name: "a.tar".into(), reader: Box::new(reader) };
        let error =
            from_tar(source, &TarImportOptions::default(), &NoopObserver, &token).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Cancelled), "{after}: {error}");
    }
}

/// Names one kind of file.
fn foreign_name(start: &[u8]) -> Option<&'static str> {
    (start.get(1024..1028)? == b"here").then_some("a test")
}

#[test]
fn a_file_that_begins_with_an_end_marker_is_an_archive_only_if_all_of_it_is_zero() {
    let with = |at: usize, bytes: &[u8]| {
        let mut file = vec![0; 390 * 512];
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    for concatenated in [false, true] {
        let options = TarImportOptions { concatenated, ..TarImportOptions::default() };
        let asking = options.clone().foreign_name(Some(foreign_name));
        for file in [with(1024, b"here"), with(199_679, b"x")] {
            assert_eq!(import(&file, &options).unwrap().len(), 1);
        }
        for zeros in [513, 1024, 1025, 2048, 200_000] {
            assert_eq!(import(&vec![0; zeros], &asking).unwrap().len(), 1, "{zeros}");
        }
        let foreign = with(1024, b"here");
        // Between concatenated archives, a part of a block is always refused.
        let shortest = if concatenated { 1536 } else { 1028 };
        for file in [&foreign[..shortest], &foreign[..2000], &foreign] {
            let error = import(file, &asking).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Archive(_)), "{error:?}");
            assert_eq!(
                error.to_string(),
                "a.tar: not a tar archive: this is a test; build from an archive or a directory of its files"
            );
        }
        for at in [1025, 70_000, 199_679] {
            let error = import(&with(at, b"x"), &asking).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("a.tar: byte {at}: not a tar archive: it begins")),
                "{error}"
            );
        }
        // What follows a whole archive is another matter.
        let archive = [ArchiveBuilder::new().file("a", "1").end(), with(1024, b"here")].concat();
        assert_eq!(import(&archive, &asking).unwrap().len(), 2);
    }
}

#[test]
fn zeros_are_read_up_to_the_limit() {
    let options = TarImportOptions::default().foreign_name(Some(foreign_name));
    let limited = options.input(InputLimit::Bytes(1 << 20));
    assert_eq!(import(&vec![0; 1 << 20], &limited).unwrap().len(), 1);
    let reader = Box::new(std::io::repeat(0));
    let endless = TarSource::Stream { name: "zeros".into(), reader };
    let error = from_tar(endless, &limited, &NoopObserver, &CancelToken::new()).unwrap_err();
    assert!(error.to_string().contains("--max-input"), "{error}");
}
