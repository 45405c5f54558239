//! Archives that are unusual and right.

use super::super::{AccountFiles, TarImportOptions, from_tar};
use super::{ArchiveBuilder, TestHeader, import, layer, listed, listing};
use crate::tree::Tree;

const ROOT: &str = " directory 755 0:0 0.000000000";

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
    let tree = from_tar(layer(archive.clone()), &TarImportOptions::default()).unwrap();
    assert_eq!(listed(&archive).len(), 5);
    for name in ["old", "zero", "zero-one", "one"] {
        let id = tree.child(Tree::ROOT, name.as_bytes()).unwrap();
        let content = tree.node(id).content().unwrap();
        let bytes = super::bytes_of(content);
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
    let tree = from_tar(layer(archive.end()), &TarImportOptions::default()).unwrap();
    assert_eq!(tree.len(), 20_051);
}
