//! What an archive comes as: files that GNU tar, bsdtar and Python's tarfile made from one tree, compressed or not, from
//! pipes and in parts; and how long it may be, decompressed, with its holes, or in the maps of sparse files.
//!
//! The archives of `tests/data/tar` (`tests/data/tar/make.sh`) must each give that tree, as far as their format can hold
//! it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::tests::{ArchiveBuilder, TestHeader, bytes_of, layer, listing};
use super::{InputLimit, StoredHoles, TarContentMode, TarImportOptions, TarSource, from_tar};
use crate::import::Compression;
use crate::{BuildObserver, BuildOptions, ErrorKind, NoopObserver};
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
    // distinguish.
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

/// As `umoci insert` writes it: neither padding of the last file nor an end marker.
#[test]
fn a_layer_whose_digest_proves_its_end_needs_no_end_marker() {
    use sha2::Digest as _;
    let whole = ArchiveBuilder::new().file("a", "contents").end();
    let import = |bytes: &[u8], digested: &[u8]| {
        let reader = Box::new(std::io::Cursor::new(bytes.to_vec()));
        let sha256 = sha2::Sha256::digest(digested).into();
        let layer = TarSource::Digested { name: "layer".into(), reader, sha256 };
        from_tar(layer, &TarImportOptions::default(), &NoopObserver, &CancelToken::new())
    };
    let wanted = listing(&import(&whole, &whole).unwrap());
    // After the contents, inside of their padding, after it, and after half of the end marker.
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

#[test]
fn an_archive_that_decompresses_to_more_than_its_limit_is_refused() {
    // RFC 8878: a frame of unknown size with blocks of one repeated byte, 128 KiB each.
    let bomb = |blocks: usize| {
        let mut bytes = vec![0x28, 0xB5, 0x2F, 0xFD, 0x00, 0x38];
        for number in 0..blocks {
            let is_last = u32::from(number + 1 == blocks);
            let header = ((128 << 10) << 3) | 1 << 1 | is_last;
            bytes.extend_from_slice(&header.to_le_bytes()[..3]);
            bytes.push(0);
        }
        bytes
    };
    let refusal = |input, compressed: Vec<u8>| {
        let options = TarImportOptions::default().concatenated(true).input(input);
        let source = TarSource::Bytes { name: "a.tar".into(), bytes: compressed.into() };
        let imported = from_tar(source, &options, &NoopObserver, &CancelToken::new());
        let error = imported.map(drop).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Archive(_)), "{error}");
        error.to_string()
    };
    assert_eq!(
        refusal(InputLimit::Bytes(1 << 20), bomb(9)),
        "a.tar: the archive has more than 1048576 bytes, the limit for an archive; --max-input allows more"
    );
    assert_eq!(
        refusal(InputLimit::Default, bomb(8193)),
        "a.tar: the archive has more than 1073741824 bytes, 1,000 times its compressed size; --max-input allows more"
    );
    let plain = ArchiveBuilder::new().file("a", "b").end();
    assert_eq!(
        refusal(InputLimit::Bytes(512), plain),
        "a.tar: byte 512: the archive has more than 512 bytes, the limit for an archive; --max-input allows more"
    );
}

#[test]
fn a_sparse_file_that_claims_more_than_the_limit_is_refused_where_its_holes_are_stored() {
    // 4 KiB of data, and 8 GiB in all.
    let records: [(&str, &[u8]); 4] = [
        ("GNU.sparse.size", b"8589934592"),
        ("GNU.sparse.numblocks", b"1"),
        ("GNU.sparse.offset", b"4096"),
        ("GNU.sparse.numbytes", b"4096"),
    ];
    let sparse = || ArchiveBuilder::new().pax(&records).entry(b'0', "huge", &[1; 4096]).end();
    let imported = |options: TarImportOptions, is_stream: bool| {
        let (name, bytes) = ("a.tar".into(), sparse());
        let source = match is_stream {
            true => TarSource::Stream { name, reader: Box::new(std::io::Cursor::new(bytes)) },
            false => TarSource::Bytes { name, bytes: bytes.into() },
        };
        from_tar(source, &options, &NoopObserver, &CancelToken::new())
            .map(drop)
            .map_err(|error| error.to_string())
    };
    for is_stream in [false, true] {
        for (limit, bytes, why) in [
            (InputLimit::Default, 1 << 30, "the default limit for an archive of its length"),
            (InputLimit::Bytes(1 << 20), 1 << 20, "the limit for an archive"),
        ] {
            let options = TarImportOptions::default().input(limit);
            let wanted = format!(
                "a.tar: byte 1024: \"huge\": with its holes the archive has more than {bytes} bytes, {why}; \
                 --max-input allows more, or use a chunk size without compression and digests: then the image \
                 stores no holes"
            );
            assert_eq!(imported(options.clone(), is_stream), Err(wanted));
            let in_chunks = BuildOptions::default().chunk_bytes(Some(4096));
            let stored_holes = StoredHoles::of(&in_chunks, TarContentMode::Copy);
            assert_eq!(imported(options.clone().stored_holes(stored_holes), is_stream), Ok(()));
            // A digest takes as long as the file is, holes included.
            let with_digests = in_chunks.digest_xattr(Some(b"user.sha256".to_vec()));
            for contents in [TarContentMode::Copy, TarContentMode::Index] {
                let stored_holes = StoredHoles::of(&with_digests, contents);
                assert!(imported(options.clone().stored_holes(stored_holes), is_stream).is_err());
            }
        }
        let options = TarImportOptions::default().input(InputLimit::Bytes(9 << 30));
        assert_eq!(imported(options, is_stream), Ok(()));
    }
    // Contents that an image refers to are copied only if no block can hold them.
    for (block_bytes, is_refused) in [(512, false), (8192, true)] {
        let options = TarImportOptions::default().contents(TarContentMode::Index);
        let options = options.stored_holes(StoredHoles::Copied { block_bytes });
        assert_eq!(imported(options, false).is_err(), is_refused, "{block_bytes}");
    }
}

#[test]
fn the_limit_for_holes_depends_neither_on_the_order_of_the_entries_nor_on_the_kind_of_the_source() {
    // 2 GiB of holes need an archive of a bit more than 2 MiB.
    let records: [(&str, &[u8]); 3] = [
        ("GNU.sparse.size", b"2147483648"),
        ("GNU.sparse.numblocks", b"0"),
        ("GNU.sparse.map", b""),
    ];
    let sparse = |archive: ArchiveBuilder| archive.pax(&records).entry(b'0', "sparse", &[]);
    // RFC 8878: a frame of unknown size with blocks that are not compressed.
    let zstd = |bytes: &[u8]| {
        let mut frame = vec![0x28, 0xB5, 0x2F, 0xFD, 0x00, 0x38];
        let mut blocks = bytes.chunks(128 << 10).peekable();
        while let Some(block) = blocks.next() {
            let is_last = u32::from(blocks.peek().is_none());
            let header = u32::try_from(block.len() << 3).unwrap() | is_last;
            frame.extend_from_slice(&header.to_le_bytes()[..3]);
            frame.extend_from_slice(block);
        }
        frame
    };
    for (length, is_refused) in [(1 << 20, true), (3 << 20, false)] {
        let dense = |archive: ArchiveBuilder| archive.entry(b'0', "dense", &vec![1; length]);
        let first = dense(sparse(ArchiveBuilder::new())).end();
        let last = sparse(dense(ArchiveBuilder::new())).end();
        for (number, bytes) in [zstd(&first), first, zstd(&last), last].into_iter().enumerate() {
            let name = PathBuf::from("a.tar");
            let reader = Box::new(std::io::Cursor::new(bytes.clone()));
            for source in [
                TarSource::Stream { name: name.clone(), reader },
                TarSource::Bytes { name, bytes: bytes.into() },
            ] {
                let imported = |limit: InputLimit, source: TarSource| {
                    let options = TarImportOptions::default().input(limit);
                    from_tar(source, &options, &NoopObserver, &CancelToken::new()).map(drop)
                };
                let found = imported(InputLimit::Default, source);
                assert_eq!(found.is_err(), is_refused, "{number}: {found:?}");
                let message = found.err().map(|error| error.to_string()).unwrap_or_default();
                assert!(!is_refused || message.contains("\"sparse\": with its holes"), "{message}");
            }
        }
    }
}

/// A path of a few bytes leads through as many directories as it has components: each counts as the header that it would
/// have.
#[test]
fn directories_that_only_paths_lead_through_count_as_input() {
    let mut archive = ArchiveBuilder::new();
    for name in ["a", "b", "c"] {
        let path = format!("{name}/").repeat(1000) + "end";
        archive = archive.pax(&[("path", path.as_bytes())]).entry(b'0', "end", b"x");
    }
    let archive = archive.directory("own").file("own/x", "y").end();
    let imported = |limit, is_stream: bool| {
        let (name, bytes) = ("a.tar".into(), archive.clone());
        let source = match is_stream {
            true => TarSource::Stream { name, reader: Box::new(std::io::Cursor::new(bytes)) },
            false => TarSource::Bytes { name, bytes: bytes.into() },
        };
        let options = TarImportOptions::default().input(InputLimit::Bytes(limit));
        from_tar(source, &options, &NoopObserver, &CancelToken::new())
    };
    let headers = 3000 * 512;
    for is_stream in [false, true] {
        let error = imported(headers, is_stream).map(drop).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Archive(_)), "{error}");
        let message = error.to_string();
        assert!(message.contains("directories that have no entry"), "{message}");
        assert!(message.contains("1536000 bytes, the limit") && message.contains("--max-input"));
        // The root, the directories, and the files.
        let tree = imported(headers + archive.len() as u64, is_stream).unwrap();
        assert_eq!(tree.len(), 1 + 3 * 1001 + 2);
    }
}

#[test]
fn a_sparse_map_with_more_parts_than_memory_allows_is_refused() {
    let mut header = TestHeader::gnu(b'S', b"s", 512);
    header.set(386, b"00000000000\0");
    header.set(398, b"00000000000\0");
    header.set(482, b"\x01");
    header.set(483, b"00010000000\0");
    let mut block = [0; 512];
    for (number, part) in block[..504].chunks_exact_mut(24).enumerate() {
        part[..12].copy_from_slice(format!("{:011o}\0", number * 2 + 1).as_bytes());
        part[12..].copy_from_slice(b"00000000001\0");
    }
    let archive = ArchiveBuilder::new().block(&header).raw(&block).end();
    let options = TarImportOptions::default().sparse_extents_max(20);
    let source = TarSource::Bytes { name: "a.tar".into(), bytes: archive.into() };
    let error =
        from_tar(source, &options, &NoopObserver, &CancelToken::new()).map(drop).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a.tar: byte 0: \"s\": its map has more than 20 parts, the limit; more memory allows more"
    );
}

/// To open a FIFO, and to read a pipe, waits for a writer, who may never come.
#[test]
fn a_pipe_that_nobody_writes_to_ends_when_it_is_cancelled() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("fifo");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let (idle, _writer) = std::io::pipe().unwrap();
    let name = PathBuf::from("standard input");
    let file = File::from(std::os::fd::OwnedFd::from(idle));
    for source in [TarSource::Path(path), TarSource::File { name, file }] {
        let cancel = CancelToken::new();
        let options = TarImportOptions::default();
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                // Most likely the import waits for bytes by then.
                std::thread::sleep(Duration::from_millis(50));
                cancel.cancel();
            });
            from_tar(source, &options, &NoopObserver, &cancel).map(drop).unwrap_err()
        });
        assert!(matches!(error.kind(), ErrorKind::Cancelled), "{error}");
    }
}

#[test]
fn an_archive_comes_through_a_fifo_whose_writer_comes_late() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("fifo");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let (archive, target) = (ArchiveBuilder::new().end(), path.clone());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            fs::write(target, archive).unwrap();
        });
        let options = TarImportOptions::default();
        let tree = from_tar(TarSource::Path(path), &options, &NoopObserver, &CancelToken::new());
        assert_eq!(tree.unwrap().len(), 1);
    });
}
