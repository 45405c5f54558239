//! The tar target: imports an archive in place and as a stream, and reads what came of it.
//!
//! Input: a byte of switches (0x03 how many archives it is cut into, 0x0C whiteouts, 0x10 concatenated,
//! 0x20 checksums are mended so that changed headers get further), then archives, cut in equal parts at a
//! block.

use std::io::Cursor;
use std::path::PathBuf;

use ferrofs_builder::import::{
    SpoolOptions, TarImportOptions, TarSource, WhiteoutPolicy, from_tar_layers,
};
use ferrofs_builder::tree::{Content, Metadata, NodeKind, Tree};
use ferrofs_builder::{CancelToken, Error, ErrorKind, NoopObserver};

use crate::input::Input;

const BLOCK_BYTES: usize = 512;
/// Names of a tree that are compared.
const NAMES_MAX: usize = 2000;
/// Bytes that are read from a file's start, and before its end.
const READ_BYTES_MAX: usize = 4096;
/// What a compressed archive may put into the spool.
const SPOOL_BYTES_MAX: u64 = 32 << 20;

/// Imports archives in two ways, which must agree.
pub fn tar(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let switches = input.u8();
    let mut bytes = input.rest().to_vec();
    if switches & 0x20 != 0 {
        mend(&mut bytes);
    }
    let blocks = bytes.len().div_ceil(BLOCK_BYTES);
    let part = blocks.div_ceil(usize::from(switches & 3) + 1).max(1) * BLOCK_BYTES;
    let parts: Vec<_> = bytes.chunks(part).collect();
    let whiteouts = match switches >> 2 & 3 {
        0 | 1 => WhiteoutPolicy::Keep,
        2 => WhiteoutPolicy::ToOverlay,
        _ => WhiteoutPolicy::Apply,
    };
    let options = |memory_bytes_max| {
        let spool = SpoolOptions::default()
            .memory_bytes_max(memory_bytes_max)
            .spool_bytes_max(Some(SPOOL_BYTES_MAX));
        let is_concatenated = switches & 0x10 != 0;
        TarImportOptions::default().whiteouts(whiteouts).concatenated(is_concatenated).spool(spool)
    };
    let name = || PathBuf::from("a.tar");
    let placed = parts.iter().map(|part| TarSource::Bytes { name: name(), bytes: (*part).into() });
    let placed =
        from_tar_layers(placed.collect(), &options(1 << 20), &NoopObserver, &CancelToken::new());
    let streamed = parts.iter().map(|part| TarSource::Stream {
        name: name(),
        reader: Box::new(Cursor::new(part.to_vec())),
    });
    let streamed =
        from_tar_layers(streamed.collect(), &options(1000), &NoopObserver, &CancelToken::new());
    match (placed, streamed) {
        (Ok(placed), Ok(streamed)) => compare(&placed, &streamed),
        // In place nothing is spooled.
        (_, Err(streamed)) if streamed.to_string().ends_with("the limit of the spool") => {}
        (Err(placed), Err(streamed)) => {
            check_error(&placed);
            assert_eq!(placed.to_string(), streamed.to_string());
        }
        (Ok(_), Err(streamed)) => panic!("only as a stream: {streamed}"),
        (Err(placed), Ok(_)) => panic!("only in place: {placed}"),
    }
}

/// Gives each block that could be a header a right checksum.
fn mend(bytes: &mut [u8]) {
    for block in bytes.chunks_exact_mut(BLOCK_BYTES) {
        if block[257..262] == *b"ustar" {
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
}

fn check_error(error: &Error) {
    let is_of_archive =
        matches!(error.kind(), ErrorKind::Archive(_) | ErrorKind::WindowTooLong { .. });
    assert!(is_of_archive, "{error:?}");
    assert!(error.path().ends_with("a.tar") && error.offset().is_some(), "no place: {error}");
}

fn compare(placed: &Tree, streamed: &Tree) {
    let names = |tree: &Tree| {
        let mut names = Vec::new();
        let _ended = tree.walk(|path, id| {
            names.push((path.to_vec(), id));
            if names.len() < NAMES_MAX { Ok(()) } else { Err(()) }
        });
        names
    };
    assert_eq!(placed.len(), streamed.len());
    let placed_names = names(placed);
    assert!(placed_names == names(streamed), "other names");
    assert!(placed_names.len() >= placed.len().min(NAMES_MAX), "an inode without a name");
    for (path, id) in placed_names {
        let (one, other) = (placed.node(id), streamed.node(id));
        check_name(&path);
        check_metadata(&one.metadata);
        assert_eq!(one.metadata, other.metadata);
        match (&one.kind, &other.kind) {
            (NodeKind::File(one), NodeKind::File(other)) => compare_contents(one, other),
            (NodeKind::Symlink(one), NodeKind::Symlink(other)) => {
                assert!(one == other && (1..=4095).contains(&one.len()));
            }
            (
                NodeKind::CharacterDevice { major, minor },
                NodeKind::CharacterDevice { major: other_major, minor: other_minor },
            )
            | (
                NodeKind::BlockDevice { major, minor },
                NodeKind::BlockDevice { major: other_major, minor: other_minor },
            ) => assert_eq!((major, minor), (other_major, other_minor)),
            (one, other) => {
                assert_eq!(std::mem::discriminant(one), std::mem::discriminant(other));
            }
        }
    }
}

fn check_name(path: &[u8]) {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    assert!(!matches!(name, b"." | b"..") && !name.contains(&0) && name.len() <= 255);
    assert!(!name.is_empty() || path.is_empty());
}

fn check_metadata(metadata: &Metadata) {
    assert!(metadata.permissions <= 0o7777 && metadata.mtime.nanoseconds < 1_000_000_000);
    for (name, value) in &metadata.xattrs {
        assert!((1..=255).contains(&name.len()) && value.len() <= 64 << 10);
    }
}

fn compare_contents(one: &Content, other: &Content) {
    assert_eq!(one.bytes(), other.bytes());
    let ranges = one.source().data_ranges().expect("bytes in memory");
    assert_eq!(ranges, other.source().data_ranges().expect("bytes in a spool"));
    let mut end = 0;
    for (number, range) in ranges.iter().enumerate() {
        assert!(range.start < range.end && range.end <= one.bytes(), "a range outside the file");
        assert!(number == 0 || end < range.start, "ranges that are not apart");
        end = range.end;
    }
    let middle = ranges.get(ranges.len() / 2).map_or(0, |range| range.start.saturating_sub(7));
    for start in [0, middle, one.bytes().saturating_sub(READ_BYTES_MAX as u64)] {
        let count = usize::try_from(one.bytes() - start).unwrap_or(usize::MAX).min(READ_BYTES_MAX);
        let read = |content: &Content| {
            let mut bytes = vec![0xEE; count];
            let mut reader = content.source().open().expect("an archive in memory");
            reader.read_exact_at(start, &mut bytes).expect("bytes that were counted");
            reader.check_unchanged().expect("an archive that nobody changes");
            bytes
        };
        let bytes = read(one);
        assert!(bytes == read(other), "other bytes");
        let in_hole = |at: u64| ranges.iter().all(|range| !range.contains(&at));
        let mut places = (start..).zip(&bytes);
        assert!(places.all(|(at, byte)| *byte == 0 || !in_hole(at)), "bytes in a hole");
    }
}
