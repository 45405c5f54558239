//! Attacks that archives are known for, one a row: what each comes to, in words or as a tree.

use super::super::{TarImportOptions, WhiteoutPolicy};
use super::{ArchiveBuilder, TestHeader, import, listing};
use crate::ErrorKind;

/// What an attack comes to.
enum ExpectedImport {
    /// The message behind `a.tar: byte `.
    Refused(&'static str),
    /// The names in the tree without the root, up to the time.
    Harmless(&'static [&'static str]),
}

use ExpectedImport::{Harmless, Refused};

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
            Refused("512: \"a/b/../../../etc/passwd\" leads upwards by \"..\""),
        ),
        attack(
            "a way up in a PAX record",
            new().pax(&[("path", b"../etc/passwd")]).file("harmless", "x"),
            Refused("1024: \"../etc/passwd\" leads upwards by \"..\""),
        ),
        attack(
            "a way up in a name of GNU",
            extension(b'L', b"../etc/passwd", 14).file("harmless", "x"),
            Refused("1024: \"../etc/passwd\" leads upwards by \"..\""),
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
            Refused("512: \"a\" is a hard link to \"l/passwd\", which is no entry before it"),
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
            Refused("0: \"a\" is a hard link to \"b\", which is no entry before it"),
        ),
        attack(
            "a hard link to the root",
            new().link(b'1', "a", "./."),
            Refused("0: \"a\" is a hard link to \"./.\", which is the root"),
        ),
        attack(
            "a hard link in place of the root",
            new().file("a", "").link(b'1', "./", "a"),
            Refused("512: \"./\" is the root, and no directory"),
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
            Refused("0: an extended header that no entry follows"),
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
            Refused("0: the record mtime: \"9223372036854775808\" is no number, or too large"),
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
                "0: the record GNU.sparse.map: its map has a part of 1 bytes at 0, which begins before the last one ends",
            ),
        ),
        attack(
            "a sparse map with more data than the archive",
            sparse(b"0,1000", b"1000").file("f", "ab"),
            Refused("1024: \"f\": its map has 1000 bytes of data, and the archive 2"),
        ),
        attack(
            "a sparse map of more parts than any archive",
            before_data(b"18446744073709551615\n0\n1\n"),
            Refused("1024: \"f\": its map has a line that is no number"),
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
            Refused("0: \"a/.wh...\" is a whiteout of nothing"),
        ),
        by_whiteout(
            "a whiteout above the root",
            new().file("../.wh.etc", ""),
            Apply,
            Refused("0: \"../.wh.etc\" leads upwards by \"..\""),
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
            "an opaque mark on a file",
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
