//! The archives of `tests/data/tar`, made by GNU tar, bsdtar and Python's tarfile from one tree
//! (`tests/data/tar/make.sh`): each must give that tree, as far as its format can hold it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::tests::{ArchiveBuilder, bytes_of, layer, listing};
use super::{TarImportOptions, TarSource, from_tar};
use crate::import::Compression;
use crate::{BuildObserver, ErrorKind, NoopObserver};
use ferrofs_workers::CancelToken;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/tar")
}

fn listed(name: &str) -> Vec<String> {
    let tree = from_tar(
        TarSource::Path(folder().join(name)),
        &TarImportOptions::default(),
        &NoopObserver,
        &CancelToken::new(),
    );
    listing(&tree.unwrap_or_else(|error| panic!("{error}")))
}

/// What all archives agree on, with nanoseconds and xattrs where `is_exact`.
fn tree(is_exact: bool) -> Vec<String> {
    let long = "n".repeat(120);
    let (dir, other, old) = if is_exact {
        ("4102542245.000000001", "1612325106.789012345", "-2.250000000")
    } else {
        ("4102542245.000000000", "1612325106.000000000", "-2.000000000")
    };
    let xattr = |text: &str| if is_exact { format!(" {text}") } else { String::new() };
    vec![
        format!(" directory 755 0:0 {other}"),
        format!("caf\\xe9 file of 18 bytes, sum 12765 644 0:0 {other}"),
        format!("deep directory 755 0:0 {other}"),
        format!("deep/far symlink to {long}/{long} 777 0:0 {other}"),
        format!("deep/{long} directory 755 0:0 {other}"),
        format!("deep/{long}/{long} file of 5 bytes, sum 1122 644 0:0 {other}"),
        format!("dir directory 755 0:0 {dir}{}", xattr("user.empty=")),
        format!(
            "dir/hello file of 6 bytes, sum 1677 640 1000:100 {other}{}",
            xattr("user.note=a=b")
        ),
        format!("dir/sub directory 755 70000:80000 {other}"),
        "dir/sub/again is dir/hello".to_owned(),
        format!(
            "dir/xes file of 3000 bytes, sum 45187920 4755 0:0 {other}{}",
            xattr("trusted.bytes=\\x00\\xff\\n")
        ),
        format!("disk block device 8:17 644 0:0 {other}"),
        format!("empty directory 1777 0:0 {other}"),
        format!("holes file of 300000 bytes, sum 34989 644 0:0 {other}"),
        format!("link symlink to dir/hello 777 1000:100 {other}"),
        format!("nothing file of 0 bytes, sum 0 644 0:0 {old}"),
        format!("null character device 1:3 644 0:0 {other}"),
        format!("pipe fifo 644 0:0 {other}"),
    ]
}

#[test]
fn pax_archives_give_the_tree_they_were_made_from() {
    for name in ["pax", "pax-sparse-0.0", "pax-sparse-0.1", "pax-sparse-1.0"] {
        assert_eq!(listed(&format!("{name}.tar.zst")), tree(true), "{name}");
    }
}

#[test]
fn archives_of_bsdtar_give_the_tree_but_for_its_fractions_before_1970() {
    // It writes -1.75 as -2.25: seconds and fraction as the kernel has them, which no reader can
    // tell.
    let wanted = tree(true).into_iter().map(|line| line.replace(" -2.25", " -3.75"));
    assert_eq!(listed("bsd-pax.tar.zst"), wanted.collect::<Vec<_>>());
}

#[test]
fn gnu_archives_give_the_tree_in_whole_seconds() {
    for name in ["gnu", "gnu-sparse", "python-gnu"] {
        let found = listed(&format!("{name}.tar.zst"));
        let wanted = tree(false);
        assert_eq!(found.len(), wanted.len());
        for (found, wanted) in found.iter().zip(&wanted) {
            // tarfile rounds where tar cuts.
            assert_eq!(without_time(found), without_time(wanted), "{name}");
        }
    }
}

#[test]
fn python_archives_give_the_tree_without_xattrs() {
    for name in ["python-pax", "python-ustar"] {
        let wanted = tree(false);
        for found in listed(&format!("{name}.tar.zst")).iter().skip(1) {
            let is_there = wanted.iter().any(|wanted| without_time(wanted) == without_time(found));
            assert!(is_there, "{name}: {found}");
        }
    }
}

#[test]
fn old_formats_give_what_they_can_hold() {
    for (name, entries) in [("v7", 9), ("ustar", 12)] {
        let wanted = tree(false);
        let found = listed(&format!("{name}.tar.zst"));
        assert_eq!(found.len(), entries);
        assert_eq!(found[0], " directory 755 0:0 0.000000000");
        for line in &found[1..] {
            assert!(wanted.contains(line), "{name}: {line}");
        }
    }
}

#[test]
fn compressed_archives_are_recognised_in_one_piece_and_in_two() {
    let names = [
        "pax.tar.gz",
        "pax.tar.xz",
        "pax.tar.zst",
        "pax-two.tar.gzip",
        "pax-two.tar.xz",
        "pax-two.tar.zstd",
    ];
    for name in names {
        assert_eq!(listed(name), tree(true), "{name}");
    }
}

#[test]
fn a_sparse_file_knows_its_holes() {
    for name in ["gnu-sparse", "pax-sparse-0.0", "pax-sparse-0.1", "pax-sparse-1.0"] {
        let path = folder().join(format!("{name}.tar.zst"));
        let tree = from_tar(
            TarSource::Path(path),
            &TarImportOptions::default(),
            &NoopObserver,
            &CancelToken::new(),
        )
        .unwrap();
        let holes = tree.child(crate::tree::Tree::ROOT, b"holes").unwrap();
        let ranges = tree.node(holes).content().unwrap().source().data_ranges().unwrap();
        assert!(
            ranges.iter().map(|range| range.end - range.start).sum::<u64>() <= 16 << 10,
            "{ranges:?}"
        );
        assert!(ranges.first().is_some_and(|range| range.start == 0));
        assert!(ranges.iter().any(|range| range.contains(&131_072)));
    }
}

#[test]
fn an_archive_that_changes_is_noticed_when_its_files_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("plain.tar");
    let mut archive = ArchiveBuilder::new().file("a", "contents").end();
    fs::write(&path, &archive).unwrap();
    let tree = from_tar(
        TarSource::Path(path.clone()),
        &TarImportOptions::default(),
        &NoopObserver,
        &CancelToken::new(),
    )
    .unwrap();
    let file = tree.child(crate::tree::Tree::ROOT, b"a").unwrap();
    let content = tree.content(file).unwrap();
    assert_eq!(content.source().name(), format!("{}: a", path.display()));
    assert_eq!(bytes_of(&content), b"contents");
    let mut reader = content.source().open().unwrap();
    archive.push(0);
    fs::write(&path, &archive).unwrap();
    for error in [reader.check_unchanged().unwrap_err(), content.source().open().err().unwrap()] {
        assert!(matches!(error.kind(), ErrorKind::SourceChanged { .. }));
        assert!(error.to_string().ends_with("its size was 2048 bytes and is now 2049"), "{error}");
    }
}

#[test]
fn a_pipe_and_an_open_file_are_read_from_where_they_stand() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("some.tar");
    let archive = ArchiveBuilder::new().file("a", "contents").end();
    fs::write(&path, [&b"before it"[..], &archive].concat()).unwrap();
    let mut file = File::open(&path).unwrap();
    std::io::Read::read_exact(&mut file, &mut [0; 9]).unwrap();
    let source = TarSource::File { name: "standard input".into(), file };
    let options = TarImportOptions::default();
    let wanted = vec![
        " directory 755 0:0 0.000000000".to_owned(),
        "a file of 8 bytes, sum 4012 644 0:0 0.000000000".to_owned(),
    ];
    assert_eq!(
        listing(&from_tar(source, &options, &NoopObserver, &CancelToken::new()).unwrap()),
        wanted
    );
    let (reader, mut writer) = std::io::pipe().unwrap();
    let source = TarSource::Stream { name: "standard input".into(), reader: Box::new(reader) };
    std::io::Write::write_all(&mut writer, &archive).unwrap();
    drop(writer);
    assert_eq!(
        listing(&from_tar(source, &options, &NoopObserver, &CancelToken::new()).unwrap()),
        wanted
    );
}

#[test]
fn a_compression_that_was_asked_for_is_not_guessed() {
    let path = folder().join("pax.tar.gz");
    for (compression, wanted) in [
        (Compression::Plain, "byte 0: not a tar archive: its first block has a wrong checksum"),
        (Compression::Xz, "byte 6: the xz data cannot be decoded"),
        (Compression::Zstd, "byte 0: the zstd data has no frame where one should begin at byte 0"),
    ] {
        let options =
            TarImportOptions { compression: Some(compression), ..TarImportOptions::default() };
        let error =
            from_tar(TarSource::Path(path.clone()), &options, &NoopObserver, &CancelToken::new())
                .unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Archive(_)));
        assert!(error.to_string().starts_with(&format!("{}: {wanted}", path.display())), "{error}");
    }
}

fn without_time(line: &str) -> String {
    line.split(' ').filter(|word| !word.contains('.')).collect::<Vec<_>>().join(" ")
}

/// As `umoci insert` writes it: neither padding of the last file nor an end mark.
#[test]
fn a_layer_whose_digest_proves_its_end_needs_no_end_mark() {
    use sha2::Digest as _;
    let whole = ArchiveBuilder::new().file("a", "contents").end();
    let import = |bytes: &[u8], digested: &[u8]| {
        let reader = Box::new(std::io::Cursor::new(bytes.to_vec()));
        let sha256 = sha2::Sha256::digest(digested).into();
        let layer = TarSource::Digested { name: "layer".into(), reader, sha256 };
        from_tar(layer, &TarImportOptions::default(), &NoopObserver, &CancelToken::new())
    };
    let wanted = listing(&import(&whole, &whole).unwrap());
    // Behind the contents, inside of their padding, behind it, and after half of the mark.
    for cut in [520, 600, 1024, 1536] {
        assert_eq!(listing(&import(&whole[..cut], &whole[..cut]).unwrap()), wanted, "{cut}");
        // Somebody else has cut it.
        let error = import(&whole[..cut], &whole).unwrap_err();
        assert!(error.to_string().contains("digest"), "{error}");
        let plain = TarSource::Bytes { name: "plain".into(), bytes: whole[..cut].into() };
        let plain =
            from_tar(plain, &TarImportOptions::default(), &NoopObserver, &CancelToken::new());
        assert_eq!(plain.is_ok(), cut == 1536, "{cut}");
    }
    // Inside of a header, and of the contents.
    for cut in [100, 515] {
        import(&whole[..cut], &whole[..cut]).unwrap_err();
    }
}

/// Counts entries, and cancels at one of them.
struct EntryCounter {
    entries: AtomicU64,
    cancels_at: u64,
    cancel: CancelToken,
}

impl BuildObserver for EntryCounter {
    fn entry_found(&self, _is_directory: bool) {
        if self.entries.fetch_add(1, Ordering::Relaxed) + 1 == self.cancels_at {
            self.cancel.cancel();
        }
    }
}

#[test]
fn every_entry_of_an_archive_is_told_and_can_cancel_the_import() {
    let mut archive = ArchiveBuilder::new().entry(b'5', "dir/", b"");
    for number in 0..20 {
        archive = archive.file(&format!("dir/{number}"), "contents");
    }
    let bytes = archive.end();
    for (cancels_at, told) in [(u64::MAX, 21), (7, 7)] {
        let (entries, cancel) = (AtomicU64::new(0), CancelToken::new());
        let observer = EntryCounter { entries, cancels_at, cancel };
        let options = TarImportOptions::default();
        let imported = from_tar(layer(bytes.clone()), &options, &observer, &observer.cancel);
        assert_eq!(observer.entries.load(Ordering::Relaxed), told);
        match imported {
            Ok(tree) => assert_eq!((tree.len(), cancels_at), (22, u64::MAX)),
            Err(error) => assert!(matches!(error.kind(), ErrorKind::Cancelled), "{error}"),
        }
    }
}
