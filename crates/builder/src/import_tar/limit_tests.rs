//! Archives that are longer than they may be: decompressed, with their holes, or in the maps of sparse files.

use super::tests::{ArchiveBuilder, TestHeader};
use super::{TarImportOptions, TarSource, from_tar};
use crate::{ErrorKind, NoopObserver};
use ferrofs_workers::CancelToken;

#[test]
fn an_archive_that_decompresses_to_more_than_its_limit_is_refused() {
    use crate::import::InputLimit;

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
    use crate::BuildOptions;
    use crate::import::{InputLimit, StoredHoles, TarContentMode};

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
    use crate::import::InputLimit;

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
            let name = std::path::PathBuf::from("a.tar");
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
    use crate::import::InputLimit;

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
