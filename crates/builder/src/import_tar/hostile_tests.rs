//! Archives that are refused, each with its message.

use ExpectedImport::{Harmless, Refused};

use super::tests::{ArchiveBuilder, TestHeader, import, layer, listed, listing, refusal};
use super::{TarImportOptions, TarSource, WhiteoutPolicy, from_tar};
use crate::import::SpoolOptions;
use crate::{ErrorKind, NoopObserver};
use ferrofs_workers::CancelToken;

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
        check(ArchiveBuilder::new().file(path, ""), &format!("0: \"{path}\" contains \"..\""));
    }
    let archive = ArchiveBuilder::new().file("a", "").link(b'1', "b", "../../etc/passwd");
    check(archive, "512: \"../../etc/passwd\" contains \"..\"");
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
    check(ArchiveBuilder::new().link(b'2', ".", "x"), "0: \".\" is the root, but not a directory");
    check(
        ArchiveBuilder::new().file("d/", "x"),
        "0: \"d/\" has a name that ends with a slash, but 1 bytes of contents",
    );
}

#[test]
fn hard_links_to_nothing_are_refused() {
    for (target, wanted) in [
        ("b", "is not an earlier entry"),
        ("a", "is not an earlier entry"),
        ("/", "is the root"),
        ("./", "is the root"),
        ("d", "is a directory"),
        ("f/x", "is not an earlier entry"),
    ] {
        let archive = ArchiveBuilder::new()
            .directory("d")
            .file("f", "")
            .link(b'1', "a", target)
            .file("b", "");
        check(archive, &format!("1024: \"a\" is a hard link to \"{target}\", which {wanted}"));
    }
    let archive = ArchiveBuilder::new().file("a", "").link(b'1', "a", "./a");
    check(archive, "512: \"a\" is a hard link to \"./a\", which is the same file");
    let archive = ArchiveBuilder::new().link(b'1', "a", "b").link(b'1', "b", "a");
    check(archive, "0: \"a\" is a hard link to \"b\", which is not an earlier entry");
    check(ArchiveBuilder::new().link(b'1', "a", ""), "0: an entry or a link without a name");
}

#[test]
fn types_that_are_not_known_are_refused() {
    check(ArchiveBuilder::new().entry(b'Z', "a", b""), "0: \"a\" is of unknown type 'Z'");
    check(ArchiveBuilder::new().entry(b'M', "a", b""), "0: \"a\" is of unknown type 'M'");
    check(ArchiveBuilder::new().entry(0xFF, "a", b""), "0: \"a\" is of unknown type '\\xff'");
    // A sparse file of another format, with its map elsewhere.
    check(ArchiveBuilder::new().entry(b'S', "a", b""), "0: \"a\" is of unknown type 'S'");
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
        "0: \"f\" has a header whose size \"0000000009\" is not an octal number",
    );
    check(with(108, b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFE"), "0: \"f\" has -2 as its owner or group");
    check(with(116, b"\x80\0\0\x01\0\0\0\0"), "0: \"f\" has 4294967296 as its owner or group");
    check(with(136, b"soon\0"), "0: \"f\" has a header whose time \"soon\" is not an octal number");
    let sized = |size: &[u8]| ArchiveBuilder::new().pax(&[("size", size)]).file("f", "");
    check(sized(b"-5"), "0: the record size: \"-5\" is not a number, or too large");
    check(
        sized(b"18446744073709551616"),
        "0: the record size: \"18446744073709551616\" is not a number, or too large",
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
    // Nothing else would bound the attributes of one entry.
    let long = vec![b'x'; 600_000];
    let comment = ("comment", &*long);
    let second = ("LIBARCHIVE.xattr.user.b", &b"eA"[..]);
    let whole = ArchiveBuilder::new().pax(&[comment]).pax(&[second]).file("f", "").end();
    assert!(listed(&whole).iter().any(|line| line.ends_with(" user.b=x")));
    check(
        ArchiveBuilder::new().pax(&[comment]).pax(&[comment]).file("f", ""),
        "600576: extended headers of one entry with more than 1048576 bytes",
    );
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
        "0: an extended header without an entry after it",
    );
    check(ArchiveBuilder::new().records(b'g', &[("path", b"f")]), "0: a global header sets path");
    check(
        ArchiveBuilder::new().pax(&[("hdrcharset", b"KOI8-R")]).file("f", ""),
        "0: the record hdrcharset: the character set \"KOI8-R\" is unknown",
    );
    check(
        ArchiveBuilder::new().pax(&[("mtime", b"now")]).file("f", ""),
        "0: the record mtime: \"now\" is not a number, or too large",
    );
    check(
        ArchiveBuilder::new().pax(&[("SCHILY.xattr.", b"x")]).file("f", ""),
        "0: the record SCHILY.xattr.: the xattr name of 0 bytes is not valid",
    );
    let large = vec![b'x'; 65_537];
    check(
        ArchiveBuilder::new().pax(&[("SCHILY.xattr.user.x", &large)]).file("f", ""),
        "0: the record SCHILY.xattr.user.x: 65537 bytes exceed the maximum size of an xattr",
    );
    check(
        ArchiveBuilder::new().pax(&[("LIBARCHIVE.xattr.user.x", b"*")]).file("f", ""),
        "0: the record LIBARCHIVE.xattr.user.x: is not base64",
    );
    check(
        ArchiveBuilder::new().pax(&[("SCHILY.acl.access", b"user:daemon:rwx")]).file("f", ""),
        "1024: \"f\" has an invalid ACL: \"user:daemon:rwx\": the user daemon has no numeric id",
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
        "0: the record GNU.sparse.map: its map has a part of 2 bytes at 2, which begins before the previous one ends",
    );
    check(
        records(b"0,18446744073709551615", b"10"),
        "0: the record GNU.sparse.map: its map has a part of 18446744073709551615 bytes at 0, which ends past the largest file size",
    );
    check(
        records(b"9223372036854775807,5", b"10"),
        "0: the record GNU.sparse.map: its map has a part of 5 bytes at 9223372036854775807, which ends past the largest file size",
    );
    check(records(b"0,5", b"4"), "1024: \"f\": its map ends at byte 5, but the file ends at 4");
    check(
        records(b"0,4", b"10"),
        "1024: \"f\": its map has 4 bytes of data, but the archive has 5",
    );
    check(records(b"0", b"10"), "0: the record GNU.sparse.map: its last part has no length");
    check(
        records(b"0,x", b"10"),
        "0: the record GNU.sparse.map: \"x\" is not a number, or too large",
    );
    check(
        records(b"0,5", b"18446744073709551615"),
        "1024: \"f\": its size of 18446744073709551615 bytes is more than a file can have",
    );
    check(
        ArchiveBuilder::new().pax(&[("GNU.sparse.map", b"0,5")]).file("f", "abcde"),
        "1024: \"f\": it is sparse, but its size is missing",
    );
    check(
        ArchiveBuilder::new().pax(&[("GNU.sparse.numbytes", b"5")]).file("f", "abcde"),
        "0: the record GNU.sparse.numbytes: comes without an offset",
    );
    check(
        ArchiveBuilder::new()
            .pax(&[("GNU.sparse.major", b"2"), ("GNU.sparse.size", b"2")])
            .file("f", "ab"),
        "1024: \"f\": it is sparse in the unknown format 2.0",
    );
    let one = |map: &[u8]| {
        let mut body = map.to_vec();
        body.resize(512, 0);
        let records: [(&str, &[u8]); 2] =
            [("GNU.sparse.major", b"1"), ("GNU.sparse.realsize", b"9")];
        ArchiveBuilder::new().pax(&records).entry(b'0', "f", &body)
    };
    check(one(b"1152921504606846976\n"), "1024: \"f\": its map has a line that is not a number");
    check(
        one(&b"1152921504606846976\n".repeat(20)),
        "1024: \"f\": its map has a part of 1152921504606846976 bytes at 1152921504606846976, which begins before the previous one ends",
    );
    check(one(b"1\n-1\n"), "1024: \"f\": \"-1\" is not a number, or too large");
    let mut old = TestHeader::gnu(b'S', b"f", 0);
    old.set(386, b"00000000000\x0000000000001\0")
        .set(410, b"00000000000\x0000000000001\0")
        .set(483, b"00000000010\0");
    check(
        ArchiveBuilder::new().block(&old),
        "0: \"f\": its map has a part of 1 bytes at 0, which begins before the previous one ends",
    );
    old.set(483, b"hm");
    check(ArchiveBuilder::new().block(&old), "0: \"f\": its sparse size is not a number");
}

#[test]
fn damaged_headers_are_refused() {
    let mut archive = ArchiveBuilder::new().file("a", "").file("b", "").end();
    archive[512] ^= 1;
    assert_eq!(refusal(&archive), "a.tar: byte 512: a header with a wrong checksum");
    archive[0] ^= 1;
    assert_eq!(
        refusal(&archive),
        "a.tar: byte 0: not a tar archive: its first block has a wrong checksum"
    );
    let mut other = [0; 1024];
    other[..5].copy_from_slice(b"BZh91");
    assert_eq!(
        refusal(&other),
        "a.tar: byte 0: not a tar archive: it is compressed with bzip2, which is not supported"
    );
    let single = ArchiveBuilder::new().file("a", "").raw(&[0; 512]).file("b", "").end();
    assert_eq!(
        refusal(&single),
        "a.tar: byte 1024: an entry follows a single block of zeros; an archive ends with two"
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
            _ => "the archive ends where a header or its end marker should be",
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
    let error = from_tar(source, &options, &NoopObserver, &CancelToken::new()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Archive(_)));
    assert_eq!(
        error.to_string(),
        "a.tar: byte 1536: \"b\": contents of more than 10 bytes, the limit of the spool"
    );
    from_tar(layer(archive), &options, &NoopObserver, &CancelToken::new()).unwrap();
}

/// What an attack comes to.
enum ExpectedImport {
    /// The message behind `a.tar: byte `.
    Refused(&'static str),
    /// The names in the tree without the root, up to the time.
    Harmless(&'static [&'static str]),
}

struct HostileArchive {
    name: &'static str,
    archive: ArchiveBuilder,
    whiteouts: WhiteoutPolicy,
    outcome: ExpectedImport,
}

fn attack(name: &'static str, archive: ArchiveBuilder, outcome: ExpectedImport) -> HostileArchive {
    HostileArchive { name, archive, whiteouts: WhiteoutPolicy::Keep, outcome }
}

fn by_whiteout(
    name: &'static str,
    archive: ArchiveBuilder,
    whiteouts: WhiteoutPolicy,
    outcome: ExpectedImport,
) -> HostileArchive {
    HostileArchive { name, archive, whiteouts, outcome }
}

/// A file whose header has this in its field for the size, and one block of contents.
fn sized(size: &[u8; 12]) -> ArchiveBuilder {
    let mut block = TestHeader::new(b'0', b"f", 0);
    block.set(124, size);
    ArchiveBuilder::new().block(&block).raw(&[0; 512])
}

/// An extension of this kind whose body begins so and has this many bytes.
fn extension(kind: u8, body: &[u8], bytes: usize) -> ArchiveBuilder {
    let mut whole = body.to_vec();
    whole.resize(bytes, 0);
    ArchiveBuilder::new().entry(kind, "././@LongLink", &whole)
}

/// Names that lead where the archive must not write.
fn ways_out() -> Vec<HostileArchive> {
    let new = ArchiveBuilder::new;
    vec![
        attack(
            "an absolute path",
            new().file("/etc/passwd", "x").link(b'1', "hard", "/etc/passwd"),
            Harmless(&[
                "etc directory 755 0:0",
                "etc/passwd file of 1 bytes, sum 120 644 0:0",
                "hard is etc/passwd",
            ]),
        ),
        attack(
            "a way up behind a directory of the archive",
            new().directory("a").file("a/b/../../../etc/passwd", "x"),
            Refused("512: \"a/b/../../../etc/passwd\" contains \"..\""),
        ),
        attack(
            "a way up in a PAX record",
            new().pax(&[("path", b"../etc/passwd")]).file("harmless", "x"),
            Refused("1024: \"../etc/passwd\" contains \"..\""),
        ),
        attack(
            "a way up in a name of GNU",
            extension(b'L', b"../etc/passwd", 14).file("harmless", "x"),
            Refused("1024: \"../etc/passwd\" contains \"..\""),
        ),
        attack(
            "a file through a symlink that took the place of a directory",
            new().directory("d").link(b'2', "d", "/etc").file("d/passwd", "x"),
            Refused("1024: \"d/passwd\" lies below \"d\", which is a symlink"),
        ),
    ]
}

/// Links to where nothing is, or in a circle.
fn links() -> Vec<HostileArchive> {
    let new = ArchiveBuilder::new;
    vec![
        attack(
            "a hard link through a symlink",
            new().link(b'2', "l", "/etc").link(b'1', "a", "l/passwd"),
            Refused("512: \"a\" is a hard link to \"l/passwd\", which is not an earlier entry"),
        ),
        attack(
            "a directory through a hard link to a symlink",
            new().link(b'2', "l", "/").link(b'1', "h", "l").directory("h/etc"),
            Refused("1024: \"h/etc\" lies below \"h\", which is a symlink"),
        ),
        attack(
            "symlinks in a circle",
            new().link(b'2', "a", "b").link(b'2', "b", "a").file("a/x", "1"),
            Refused("1024: \"a/x\" lies below \"a\", which is a symlink"),
        ),
        attack(
            "symlinks in a circle that nothing goes through",
            new().link(b'2', "a", "b").link(b'2', "b", "a").link(b'2', "c", "."),
            Harmless(&[
                "a symlink to b 644 0:0",
                "b symlink to a 644 0:0",
                "c symlink to . 644 0:0",
            ]),
        ),
        attack(
            "hard links in a circle",
            new().link(b'1', "a", "b").link(b'1', "b", "c").link(b'1', "c", "a"),
            Refused("0: \"a\" is a hard link to \"b\", which is not an earlier entry"),
        ),
        attack(
            "a hard link to the root",
            new().link(b'1', "a", "./."),
            Refused("0: \"a\" is a hard link to \"./.\", which is the root"),
        ),
        attack(
            "a hard link in place of the root",
            new().file("a", "").link(b'1', "./", "a"),
            Refused("512: \"./\" is the root, but not a directory"),
        ),
        attack(
            "a hard link to the directory that it lies in",
            new().directory("d").link(b'1', "d/again", "d"),
            Refused("512: \"d/again\" is a hard link to \"d\", which is a directory"),
        ),
    ]
}

/// Names and records that are too long, or never end.
fn endless_names() -> Vec<HostileArchive> {
    let many = (0..3000).fold(ArchiveBuilder::new(), |archive, _| archive.entry(b'L', "L", b"a"));
    vec![
        attack(
            "a name of GNU of 8 GiB",
            ArchiveBuilder::new()
                .block(&TestHeader::gnu(b'L', b"L", (8 << 30) - 1))
                .raw(&[b'a'; 4096]),
            Refused("0: an extended header of 8589934591 bytes, more than 1048576"),
        ),
        attack(
            "a name of GNU that the archive ends in",
            ArchiveBuilder::new().block(&TestHeader::gnu(b'L', b"L", 1 << 20)).raw(&[b'a'; 4096]),
            Refused("5632: the archive ends inside an extended header"),
        ),
        attack(
            "names of GNU without an entry",
            many.clone(),
            Refused("0: an extended header without an entry after it"),
        ),
        attack(
            "names of GNU of which the last counts",
            many.file("short", ""),
            Harmless(&["a file of 0 bytes, sum 0 644 0:0"]),
        ),
        attack(
            "a name of GNU of nothing",
            extension(b'L', b"", 0).file("short", ""),
            Refused("512: an entry or a link without a name"),
        ),
        attack(
            "a link target of GNU that is too long",
            extension(b'K', &[b'a'; 4096], 4097).link(b'2', "l", "short"),
            Refused(concat!(
                "5120: \"l\" is a symlink to \"",
                "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
                "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
                "...\", of 4096 bytes"
            )),
        ),
        attack(
            "a PAX record that says it is longer than memory",
            extension(b'x', b"18446744073709551615 path=a\n", 512).file("f", ""),
            Refused(
                "0: an extended header holds a record of 18446744073709551615 bytes, which do not fit into it",
            ),
        ),
        attack(
            "a PAX record whose length does not fit into 64 bits",
            extension(b'x', b"18446744073709551616 path=a\n", 512).file("f", ""),
            Refused("0: an extended header holds a record without a length"),
        ),
        attack(
            "a PAX record of no bytes, again and again",
            extension(b'x', b"0 0 0 0 ", 512).file("f", ""),
            Refused("0: an extended header holds a record of 0 bytes, which do not fit into it"),
        ),
        attack(
            "a global header that gives all files one xattr",
            ArchiveBuilder::new()
                .records(b'g', &[("SCHILY.xattr.user.a", &[b'x'; 60_000])])
                .file("f", ""),
            Refused("0: a global header sets SCHILY.xattr.user.a"),
        ),
    ]
}

/// Numbers that are negative, too large, or not borne out.
fn wrong_numbers() -> Vec<HostileArchive> {
    let mut label = TestHeader::new(b'V', b"label", 0);
    label.set(124, &[0xFF; 12]);
    vec![
        attack(
            "a size below zero",
            sized(b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFE\0"),
            Refused("0: \"f\" has a size of -512 bytes"),
        ),
        attack(
            "the smallest size of 64 bits",
            sized(b"\xFF\xFF\xFF\xFF\x80\0\0\0\0\0\0\0"),
            Refused("0: \"f\" has a size of -9223372036854775808 bytes"),
        ),
        attack(
            "the largest size of 64 bits",
            sized(b"\x80\0\0\0\x7F\xFF\xFF\xFF\xFF\xFF\xFF\xFF"),
            Refused("2048: the archive ends inside \"f\""),
        ),
        attack(
            "a size in base 256 that does not fit into 64 bits",
            sized(b"\x80\0\0\x01\0\0\0\0\0\0\0\0"),
            Refused("0: \"f\" has a header whose size is out of range"),
        ),
        attack(
            "8 GiB of zeros that are not there",
            sized(b"77777777777\0"),
            Refused("2048: the archive ends inside \"f\""),
        ),
        attack(
            "a label of a size below zero",
            ArchiveBuilder::new().block(&label).file("f", ""),
            Refused("0: a label has no valid size"),
        ),
        attack(
            "a PAX time beyond 64 bits",
            ArchiveBuilder::new().pax(&[("mtime", b"9223372036854775808")]).file("f", ""),
            Refused("0: the record mtime: \"9223372036854775808\" is not a number, or too large"),
        ),
        attack(
            "an owner below zero in a PAX record",
            ArchiveBuilder::new().pax(&[("uid", b"-1")]).file("f", ""),
            Refused("1024: \"f\" has -1 as its owner or group"),
        ),
    ]
}

/// Maps of sparse files that contradict themselves or the archive.
fn sparse_maps() -> Vec<HostileArchive> {
    let sparse = |map: &[u8], size: &[u8]| {
        ArchiveBuilder::new().pax(&[("GNU.sparse.size", size), ("GNU.sparse.map", map)])
    };
    let before_data = |map: &[u8]| {
        let records: [(&str, &[u8]); 2] =
            [("GNU.sparse.major", b"1"), ("GNU.sparse.realsize", b"9")];
        ArchiveBuilder::new().pax(&records).entry(
            b'0',
            "f",
            &[map, &[0; 512][map.len()..]].concat(),
        )
    };
    let mut goes_on = TestHeader::gnu(b'S', b"f", 0);
    goes_on.set(482, b"\x01").set(483, b"00000001000\0");
    let mut again = [0; 512];
    again[504] = 1;
    let of_nothing =
        (0..100).fold(ArchiveBuilder::new().block(&goes_on), |archive, _| archive.raw(&again));
    vec![
        attack(
            "a sparse map whose parts come backwards",
            sparse(b"100,1,0,1", b"101").file("f", "ab"),
            Refused(
                "0: the record GNU.sparse.map: its map has a part of 1 bytes at 0, which begins before the previous one ends",
            ),
        ),
        attack(
            "a sparse map with more data than the archive",
            sparse(b"0,1000", b"1000").file("f", "ab"),
            Refused("1024: \"f\": its map has 1000 bytes of data, but the archive has 2"),
        ),
        attack(
            "a sparse map of more parts than any archive",
            before_data(b"18446744073709551615\n0\n1\n"),
            Refused("1024: \"f\": its map has a line that is not a number"),
        ),
        attack(
            "a sparse map in a hundred blocks of nothing",
            of_nothing,
            Harmless(&["f file of 512 bytes, sum 0 644 0:0"]),
        ),
    ]
}

/// Headers that are damaged, and archives that are cut.
fn damage() -> Vec<HostileArchive> {
    let unsealed = |at: usize, bytes: &[u8]| {
        let mut block = TestHeader::new(b'0', b"f", 0).sealed();
        block[at..at + bytes.len()].copy_from_slice(bytes);
        ArchiveBuilder::new().file("first", "").raw(&block)
    };
    vec![
        attack(
            "a checksum that is wrong",
            unsealed(148, b"000000"),
            Refused("512: a header with a wrong checksum"),
        ),
        attack(
            "a checksum that is no number",
            unsealed(148, b"wrong!"),
            Refused("512: a header with a wrong checksum"),
        ),
        attack(
            "a checksum below zero",
            unsealed(148, &[0xFF; 8]),
            Refused("512: a header with a wrong checksum"),
        ),
        attack(
            "a device without numbers that Linux takes",
            ArchiveBuilder::new()
                .pax(&[("SCHILY.devmajor", b"4096"), ("SCHILY.devminor", b"0")])
                .entry(b'3', "d", b""),
            Refused("1024: \"d\" is a device with numbers that are out of range"),
        ),
    ]
}

/// Names by which a layer takes away what is not its own.
fn whiteouts() -> Vec<HostileArchive> {
    use WhiteoutPolicy::{Apply, ToOverlay};
    let new = ArchiveBuilder::new;
    vec![
        by_whiteout(
            "a whiteout of what is not there",
            new().file(".wh.absent", ""),
            ToOverlay,
            Harmless(&["absent character device 0:0 644 0:0"]),
        ),
        by_whiteout("one to apply", new().file("a/.wh.absent", ""), Apply, Harmless(&[])),
        by_whiteout(
            "a whiteout of the parent",
            new().file("a/.wh...", ""),
            Apply,
            Refused("0: \"a/.wh...\" is a whiteout without a name"),
        ),
        by_whiteout(
            "a whiteout above the root",
            new().file("../.wh.etc", ""),
            Apply,
            Refused("0: \"../.wh.etc\" contains \"..\""),
        ),
        by_whiteout(
            "a whiteout through a symlink",
            new().link(b'2', "l", "/").file("l/.wh.etc", ""),
            ToOverlay,
            Refused("512: \"l/.wh.etc\" lies below \"l\", which is a symlink"),
        ),
        by_whiteout(
            "one to apply through a symlink",
            new().file("etc/passwd", "x").link(b'2', "l", "etc").file("l/.wh.passwd", ""),
            Apply,
            Harmless(&[
                "etc directory 755 0:0",
                "etc/passwd file of 1 bytes, sum 120 644 0:0",
                "l symlink to etc 644 0:0",
            ]),
        ),
        by_whiteout(
            "an opaque whiteout below a file",
            new().file("f", "x").file("f/.wh..wh..opq", ""),
            ToOverlay,
            Refused("1024: \"f/.wh..wh..opq\" lies below \"f\", which is a regular file"),
        ),
        by_whiteout(
            "a whiteout below a whiteout",
            new().file(".wh.a/.wh.b", ""),
            ToOverlay,
            Refused("0: \".wh.a/.wh.b\" lies below a whiteout"),
        ),
    ]
}

/// What it came to instead; nothing if it is as wanted.
fn difference(attack: HostileArchive) -> Option<String> {
    let HostileArchive { name, archive, whiteouts, outcome } = attack;
    let options = TarImportOptions { whiteouts, ..TarImportOptions::default() };
    match (import(&archive.end(), &options), outcome) {
        (Err(error), Refused(wanted)) => {
            let is_archive = matches!(error.kind(), ErrorKind::Archive(_));
            let is_as_wanted = is_archive && error.to_string() == format!("a.tar: byte {wanted}");
            (!is_as_wanted).then(|| format!("{name}: {error}"))
        }
        (Ok(tree), Harmless(wanted)) => {
            let lines = listing(&tree);
            let front = lines[1..].iter().map(|line| line.split(" 0.000000000").next());
            let found: Vec<_> = front.flatten().collect();
            (found != wanted).then(|| format!("{name}: {found:?}"))
        }
        (Err(error), Harmless(_)) => Some(format!("{name}: refused: {error}")),
        (Ok(tree), Refused(_)) => Some(format!("{name}: taken: {:?}", listing(&tree))),
    }
}

#[test]
fn every_attack_is_refused_in_words_or_does_no_harm() {
    let attacks = [
        ways_out(),
        links(),
        endless_names(),
        wrong_numbers(),
        sparse_maps(),
        damage(),
        whiteouts(),
    ];
    let differences: Vec<_> = attacks.into_iter().flatten().filter_map(difference).collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn a_path_longer_than_linux_allows_is_refused() {
    let long = "a/".repeat(2048);
    let archive = ArchiveBuilder::new().pax(&[("path", long.as_bytes())]).directory("d").end();
    let tree = import(&archive, &TarImportOptions::default()).unwrap();
    assert_eq!(tree.len(), 2049);
    let longer = format!("{long}b");
    let shown = "a/".repeat(100);
    let archive = ArchiveBuilder::new().pax(&[("path", longer.as_bytes())]).directory("d");
    check(archive, &format!("5120: \"{shown}...\" has a path of 4097 bytes, more than 4096"));
}
