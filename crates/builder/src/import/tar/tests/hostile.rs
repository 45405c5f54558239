//! Archives that are refused, each with its message.

use super::super::{TarImportOptions, TarSource, from_tar};
use super::{ArchiveBuilder, TestHeader, import, layer, refusal};
use crate::ErrorKind;
use crate::import::SpoolOptions;

/// An archive's one entry has this wrong with it.
fn check(archive: ArchiveBuilder, wanted: &str) {
    assert_eq!(refusal(&archive.end()), format!("a.tar: byte {wanted}"));
}

fn with(at: usize, bytes: &[u8]) -> ArchiveBuilder {
    let mut block = TestHeader::new(b'0', b"f", 0);
    block.set(at, bytes);
    ArchiveBuilder::new().block(&block)
}

#[test]
fn paths_that_lead_out_are_refused() {
    for path in ["..", "../a", "a/../b", "/..", "a/.."] {
        check(
            ArchiveBuilder::new().file(path, ""),
            &format!("0: \"{path}\" leads upwards by \"..\""),
        );
    }
    let archive = ArchiveBuilder::new().file("a", "").link(b'1', "b", "../../etc/passwd");
    check(archive, "512: \"../../etc/passwd\" leads upwards by \"..\"");
}

#[test]
fn names_that_cannot_be_are_refused() {
    check(ArchiveBuilder::new().file("", ""), "0: an entry or a link without a name");
    let long = "x".repeat(256);
    let shown = "x".repeat(200);
    check(
        ArchiveBuilder::new().pax(&[("path", long.as_bytes())]).file("a", ""),
        &format!("1024: \"{shown}...\" has a component of 256 bytes, more than 255"),
    );
    check(
        ArchiveBuilder::new().pax(&[("path", b"a\0b")]).file("a", ""),
        "0: the record path: holds a byte 0",
    );
    check(
        ArchiveBuilder::new().pax(&[("linkpath", b"a\0b")]).link(b'2', "a", "b"),
        "0: the record linkpath: holds a byte 0",
    );
}

#[test]
fn an_entry_below_what_is_no_directory_is_refused() {
    let archive = ArchiveBuilder::new().link(b'2', "etc", "/etc").file("etc/passwd", "root");
    check(archive, "512: \"etc/passwd\" lies below \"etc\", which is a symlink");
    let archive = ArchiveBuilder::new().file("a", "").file("a/b/c", "");
    check(archive, "512: \"a/b/c\" lies below \"a\", which is a regular file");
    let archive = ArchiveBuilder::new().entry(b'6', "a", b"").file("a/b", "");
    check(archive, "512: \"a/b\" lies below \"a\", which is a FIFO");
    let archive = ArchiveBuilder::new().entry(b'3', "a", b"").file("a/b", "");
    check(archive, "512: \"a/b\" lies below \"a\", which is a device");
}

#[test]
fn a_file_in_place_of_a_full_directory_or_the_root_is_refused() {
    let archive = ArchiveBuilder::new().file("a/b", "").file("a", "");
    check(archive, "512: \"a\" would replace a directory that is not empty");
    check(ArchiveBuilder::new().link(b'2', ".", "x"), "0: \".\" is the root, and no directory");
    check(
        ArchiveBuilder::new().file("d/", "x"),
        "0: \"d/\" is a directory by its slash, and has 1 bytes of contents",
    );
}

#[test]
fn hard_links_to_nothing_are_refused() {
    for (target, wanted) in [
        ("b", "no entry before it"),
        ("a", "no entry before it"),
        ("/", "the root"),
        ("./", "the root"),
        ("d", "a directory"),
        ("f/x", "no entry before it"),
    ] {
        let archive = ArchiveBuilder::new()
            .directory("d")
            .file("f", "")
            .link(b'1', "a", target)
            .file("b", "");
        check(archive, &format!("1024: \"a\" is a hard link to \"{target}\", which is {wanted}"));
    }
    let archive = ArchiveBuilder::new().file("a", "").link(b'1', "a", "./a");
    check(archive, "512: \"a\" is a hard link to \"./a\", which is the same file");
    let archive = ArchiveBuilder::new().link(b'1', "a", "b").link(b'1', "b", "a");
    check(archive, "0: \"a\" is a hard link to \"b\", which is no entry before it");
    check(ArchiveBuilder::new().link(b'1', "a", ""), "0: an entry or a link without a name");
}

#[test]
fn types_that_are_not_known_are_refused() {
    check(
        ArchiveBuilder::new().entry(b'Z', "a", b""),
        "0: \"a\" is of type 'Z', which is not known",
    );
    check(
        ArchiveBuilder::new().entry(b'M', "a", b""),
        "0: \"a\" is of type 'M', which is not known",
    );
    check(
        ArchiveBuilder::new().entry(0xFF, "a", b""),
        "0: \"a\" is of type '\\xff', which is not known",
    );
    // A sparse file of another format, with its map elsewhere.
    check(
        ArchiveBuilder::new().entry(b'S', "a", b""),
        "0: \"a\" is of type 'S', which is not known",
    );
}

#[test]
fn numbers_out_of_range_are_refused() {
    check(
        with(124, b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"),
        "0: \"f\" has a size of -1 bytes",
    );
    check(
        with(124, b"\x80\0\0\0\xFF\0\0\0\0\0\0\0"),
        "0: \"f\" has a header whose size is out of range",
    );
    check(
        with(124, b"0000000009\0"),
        "0: \"f\" has a header whose size \"0000000009\" is no octal number",
    );
    check(with(108, b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFE"), "0: \"f\" has -2 as its owner or group");
    check(with(116, b"\x80\0\0\x01\0\0\0\0"), "0: \"f\" has 4294967296 as its owner or group");
    check(with(136, b"soon\0"), "0: \"f\" has a header whose time \"soon\" is no octal number");
    let sized = |size: &[u8]| ArchiveBuilder::new().pax(&[("size", size)]).file("f", "");
    check(sized(b"-5"), "0: the record size: \"-5\" is no number, or too large");
    check(
        sized(b"18446744073709551616"),
        "0: the record size: \"18446744073709551616\" is no number, or too large",
    );
    check(sized(b"18446744073709551615"), "1024: \"f\" has a size of 18446744073709551615 bytes");
    check(sized(b"9223372036854775807"), "2560: the archive ends inside \"f\"");
    let mut device = TestHeader::new(b'3', b"d", 0);
    device.set(329, b"0010000\0");
    check(
        ArchiveBuilder::new().block(&device),
        "0: \"d\" is a device with numbers that are out of range",
    );
    device.set(257, &[0; 8]);
    check(
        ArchiveBuilder::new().block(&device),
        "0: \"d\" is a device, and the archive's format has no device numbers",
    );
}

#[test]
fn bombs_of_records_are_refused() {
    let bomb = |kind| ArchiveBuilder::new().block(&TestHeader::new(kind, b"bomb", 3 << 30));
    for kind in [b'x', b'g', b'L', b'K', b'X'] {
        check(bomb(kind), "0: an extended header of 3221225472 bytes, more than 1048576");
    }
    let body = b"1073741824 path=x\n";
    check(
        ArchiveBuilder::new().entry(b'x', "x", body).file("f", ""),
        "0: an extended header holds a record of 1073741824 bytes, which do not fit into it",
    );
    let mut negative = TestHeader::new(b'x', b"x", 0);
    negative.set(124, &[0xFF; 12]);
    check(ArchiveBuilder::new().block(&negative), "0: an extended header has no valid size");
    check(
        ArchiveBuilder::new().pax(&[("path", b"f")]),
        "0: an extended header that no entry follows",
    );
    check(ArchiveBuilder::new().records(b'g', &[("path", b"f")]), "0: a global header sets path");
    check(
        ArchiveBuilder::new().pax(&[("hdrcharset", b"KOI8-R")]).file("f", ""),
        "0: the record hdrcharset: the character set \"KOI8-R\" is not known",
    );
    check(
        ArchiveBuilder::new().pax(&[("mtime", b"now")]).file("f", ""),
        "0: the record mtime: \"now\" is no number, or too large",
    );
    check(
        ArchiveBuilder::new().pax(&[("SCHILY.xattr.", b"x")]).file("f", ""),
        "0: the record SCHILY.xattr.: an xattr cannot have a name of 0 bytes like this",
    );
    let large = vec![b'x'; 65_537];
    check(
        ArchiveBuilder::new().pax(&[("SCHILY.xattr.user.x", &large)]).file("f", ""),
        "0: the record SCHILY.xattr.user.x: 65537 bytes are too many for an xattr",
    );
    check(
        ArchiveBuilder::new().pax(&[("LIBARCHIVE.xattr.user.x", b"*")]).file("f", ""),
        "0: the record LIBARCHIVE.xattr.user.x: is no base64",
    );
    check(
        ArchiveBuilder::new().pax(&[("SCHILY.acl.access", b"user:daemon:rwx")]).file("f", ""),
        "1024: \"f\" has an ACL that is none: \"user:daemon:rwx\": the user daemon has no number",
    );
    check(
        ArchiveBuilder::new().pax(&[("SCHILY.acl.default", b"u::r,g::r,o::r")]).file("f", ""),
        "1024: \"f\" has a default ACL, which only directories have",
    );
}

#[test]
fn sparse_maps_that_lie_are_refused() {
    let records = |map: &[u8], size: &[u8]| {
        ArchiveBuilder::new()
            .pax(&[("GNU.sparse.size", size), ("GNU.sparse.map", map)])
            .file("f", "abcde")
    };
    check(
        records(b"0,3,2,2", b"10"),
        "0: the record GNU.sparse.map: its map has a part of 2 bytes at 2, which begins before the last one ends",
    );
    check(
        records(b"0,18446744073709551615", b"10"),
        "0: the record GNU.sparse.map: its map has a part of 18446744073709551615 bytes at 0, which ends beyond any file",
    );
    check(
        records(b"9223372036854775807,5", b"10"),
        "0: the record GNU.sparse.map: its map has a part of 5 bytes at 9223372036854775807, which ends beyond any file",
    );
    check(records(b"0,5", b"4"), "1024: \"f\": its map ends at byte 5, and the file at 4");
    check(records(b"0,4", b"10"), "1024: \"f\": its map has 4 bytes of data, and the archive 5");
    check(records(b"0", b"10"), "0: the record GNU.sparse.map: its last part has no length");
    check(records(b"0,x", b"10"), "0: the record GNU.sparse.map: \"x\" is no number, or too large");
    check(
        records(b"0,5", b"18446744073709551615"),
        "1024: \"f\": its size of 18446744073709551615 bytes is more than a file can have",
    );
    check(
        ArchiveBuilder::new().pax(&[("GNU.sparse.map", b"0,5")]).file("f", "abcde"),
        "1024: \"f\": it is sparse, and its size is missing",
    );
    check(
        ArchiveBuilder::new().pax(&[("GNU.sparse.numbytes", b"5")]).file("f", "abcde"),
        "0: the record GNU.sparse.numbytes: comes without an offset",
    );
    check(
        ArchiveBuilder::new()
            .pax(&[("GNU.sparse.major", b"2"), ("GNU.sparse.size", b"2")])
            .file("f", "ab"),
        "1024: \"f\": it is sparse in the format 2.0, which is not known",
    );
    let one = |map: &[u8]| {
        let mut body = map.to_vec();
        body.resize(512, 0);
        let records: [(&str, &[u8]); 2] =
            [("GNU.sparse.major", b"1"), ("GNU.sparse.realsize", b"9")];
        ArchiveBuilder::new().pax(&records).entry(b'0', "f", &body)
    };
    check(one(b"1152921504606846976\n"), "1024: \"f\": its map has a line that is no number");
    check(
        one(&b"1152921504606846976\n".repeat(20)),
        "1024: \"f\": its map has a part of 1152921504606846976 bytes at 1152921504606846976, which begins before the last one ends",
    );
    check(one(b"1\n-1\n"), "1024: \"f\": \"-1\" is no number, or too large");
    let mut old = TestHeader::gnu(b'S', b"f", 0);
    old.set(386, b"00000000000\x0000000000001\0")
        .set(410, b"00000000000\x0000000000001\0")
        .set(483, b"00000000010\0");
    check(
        ArchiveBuilder::new().block(&old),
        "0: \"f\": its map has a part of 1 bytes at 0, which begins before the last one ends",
    );
    old.set(483, b"hm");
    check(ArchiveBuilder::new().block(&old), "0: \"f\": its sparse size is no number");
}

#[test]
fn damaged_headers_are_refused() {
    let mut archive = ArchiveBuilder::new().file("a", "").file("b", "").end();
    archive[512] ^= 1;
    assert_eq!(refusal(&archive), "a.tar: byte 512: a header with a wrong checksum");
    archive[0] ^= 1;
    assert_eq!(
        refusal(&archive),
        "a.tar: byte 0: no tar archive: its first block has a wrong checksum"
    );
    let mut other = [0; 1024];
    other[..5].copy_from_slice(b"BZh91");
    assert_eq!(
        refusal(&other),
        "a.tar: byte 0: no tar archive, but one compressed with bzip2, which is not read"
    );
    let single = ArchiveBuilder::new().file("a", "").raw(&[0; 512]).file("b", "").end();
    assert_eq!(
        refusal(&single),
        "a.tar: byte 1024: an entry after a single block of zeros, where two end an archive"
    );
}

#[test]
fn an_archive_cut_anywhere_is_refused_with_the_place() {
    let whole = ArchiveBuilder::new()
        .pax(&[("mtime", b"1")])
        .file("a", &"x".repeat(1500))
        .file("b", "")
        .end();
    let end = whole.len() - 1024;
    for length in (0..=end).step_by(100).chain([512, 1024, 1536, 3072, end]) {
        let message = refusal(&whole[..length]);
        let wanted = match length {
            512..1024 => "the archive ends inside an extended header",
            1536..3072 => "the archive ends inside \"a\"",
            _ => "the archive ends where a header or its end mark should be",
        };
        assert_eq!(message, format!("a.tar: byte {length}: {wanted}"));
    }
    import(&whole[..=end + 511], &TarImportOptions::default()).unwrap();
}

#[test]
fn symlinks_to_nothing_or_too_far_are_refused() {
    check(ArchiveBuilder::new().link(b'2', "a", ""), "0: \"a\" is a symlink to \"\", of 0 bytes");
    let far = "x".repeat(4096);
    let archive = ArchiveBuilder::new().pax(&[("linkpath", far.as_bytes())]).link(b'2', "a", "x");
    let shown = "x".repeat(200);
    check(archive, &format!("5120: \"a\" is a symlink to \"{shown}...\", of 4096 bytes"));
}

#[test]
fn a_spool_that_is_bounded_refuses_what_is_more() {
    let archive = ArchiveBuilder::new().file("a", "12345").file("b", "678901").end();
    let spool = SpoolOptions { spool_bytes_max: Some(10), ..SpoolOptions::default() };
    let options = TarImportOptions { spool, ..TarImportOptions::default() };
    let reader = Box::new(std::io::Cursor::new(archive.clone()));
    let source = TarSource::Stream { name: "a.tar".into(), reader };
    let error = from_tar(source, &options).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Archive(_)));
    assert_eq!(
        error.to_string(),
        "a.tar: byte 1536: \"b\": contents of more than 10 bytes, the limit of the spool"
    );
    from_tar(layer(archive), &options).unwrap();
}
