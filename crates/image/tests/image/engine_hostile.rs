//! Images that would make the engine loop, or read for ever.

use std::sync::Arc;

use ferrofs_image::{
    Error, ErrorKind, Image, ImageSource, OpenOptions, VerifyEvent, VerifyOptions,
};

use crate::sources::{CorpusImage, Watchdog, own_workers};

fn open(bytes: Vec<u8>) -> Result<Image, Error> {
    let source: Arc<dyn ImageSource> = Arc::new(bytes);
    let options = OpenOptions::new().ignore_checksum(true).workers(&own_workers());
    options.open_sources(source, Vec::new())
}

/// Where the superblock has the packed inode and the metabox.
const PACKED: usize = 1024 + 96;
const METABOX: usize = 1024 + 128;

fn nid_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Where the map header of the inode with this nid lies, which is in the image.
fn header(bytes: &[u8], nid: u64) -> usize {
    let meta = u32::from_le_bytes(bytes[1064..1068].try_into().unwrap()) as usize;
    let at = (meta << bytes[1036]) + 32 * usize::try_from(nid).unwrap();
    let xattrs = u16::from_le_bytes(bytes[at + 2..at + 4].try_into().unwrap());
    assert_eq!(xattrs, 0, "a special file has no attributes");
    let size = if bytes[at] & 1 == 0 { 32 } else { 64 };
    (at + size).next_multiple_of(8)
}

/// Everything that verification and reads report about an image, or the error of opening it.
fn problems(bytes: Vec<u8>) -> Vec<Error> {
    let image = match open(bytes) {
        Ok(image) => image,
        Err(error) => return vec![error],
    };
    let mut found = Vec::new();
    image
        .verify(&VerifyOptions::new().max_threads(2), &mut |event| {
            if let VerifyEvent::Problem(problem) = event {
                found.push(problem.error);
            }
        })
        .unwrap();
    for nid in [image.superblock().packed, image.superblock().metabox].into_iter().flatten() {
        let inode = image.inode(nid).unwrap();
        let mut buffer = vec![0u8; 100_000];
        found.extend(image.read_at(&inode, 0, &mut buffer).err());
        found.extend(image.open_file(&inode).unwrap().read_at(0, &mut buffer).err());
    }
    found
}

#[test]
fn a_special_file_with_fragments_ends_in_an_error() {
    let _watchdog = Watchdog::new("special files with fragments");
    let bytes = CorpusImage::new("metabox-zstd-zd-fragments").bytes;
    assert!(problems(bytes.clone()).is_empty());
    for field in [PACKED, METABOX] {
        let at = header(&bytes, nid_at(&bytes, field));
        // The whole file, at the start of the packed one; and only its tail.
        let whole = 1u64 << 63;
        let tail = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) | 0x20 << 32;
        for header in [whole, tail] {
            let mut bytes = bytes.clone();
            bytes[at..at + 8].copy_from_slice(&header.to_le_bytes());
            let found = problems(bytes);
            let is_named = |error: &Error| matches!(error.kind(), ErrorKind::NoPackedInode);
            assert!(found.iter().any(is_named), "{field} {header:x}: {found:?}");
        }
    }
}

#[test]
fn a_special_file_inside_of_the_metabox_is_refused() {
    let bytes = CorpusImage::new("metabox-zstd-zd-fragments").bytes;
    for field in [PACKED, METABOX] {
        let mut bytes = bytes.clone();
        bytes[field + 7] |= 0x80;
        assert!(matches!(open(bytes).unwrap_err().kind(), ErrorKind::Format(_)));
    }
}

#[test]
fn one_file_that_is_packed_and_metabox_at_once_ends_in_errors() {
    let _watchdog = Watchdog::new("a packed inode that is the metabox");
    let bytes = CorpusImage::new("metabox-zstd-zd-fragments").bytes;
    for (from, to) in [(PACKED, METABOX), (METABOX, PACKED)] {
        let mut bytes = bytes.clone();
        bytes.copy_within(from..from + 8, to);
        assert!(!problems(bytes).is_empty());
    }
}

/// An image of one file that has `size` bytes and none of them stored.
fn hole(size: u64) -> Vec<u8> {
    let mut bytes = vec![0u8; 3 * 4096];
    bytes[1024..1028].copy_from_slice(&0xE0F5_E1E2u32.to_le_bytes());
    bytes[1024 + 12] = 12;
    bytes[1024 + 40] = 1;
    for (at, mode, layout, length, block) in
        [(4096, 0o040_755u16, 0u8, 40, 2u32), (4096 + 64, 0o100_644, 0, size, u32::MAX)]
    {
        bytes[at] = 1 | layout << 1;
        bytes[at + 4..at + 6].copy_from_slice(&mode.to_le_bytes());
        bytes[at + 8..at + 16].copy_from_slice(&u64::to_le_bytes(length));
        bytes[at + 16..at + 20].copy_from_slice(&block.to_le_bytes());
        bytes[at + 44] = if at == 4096 { 2 } else { 1 };
    }
    let directory = &mut bytes[2 * 4096..];
    for (entry, nid, name_at, kind) in [(0, 0u8, 36u8, 2u8), (1, 0, 37, 2), (2, 2, 39, 1)] {
        directory[12 * entry] = nid;
        directory[12 * entry + 8] = name_at;
        directory[12 * entry + 10] = kind;
    }
    directory[36..40].copy_from_slice(b"...f");
    bytes
}

#[test]
fn a_file_that_is_one_endless_hole_is_verified_soon() {
    let _watchdog = Watchdog::new("verifying an endless hole");
    for size in [1 << 40, 1 << 60, u64::MAX >> 1] {
        for threads in [1, 2] {
            let image = open(hole(size)).unwrap();
            let mut problems = Vec::new();
            let summary = image
                .verify(&VerifyOptions::new().max_threads(threads), &mut |event| {
                    if let VerifyEvent::Problem(problem) = event {
                        problems.push(problem.error.to_string());
                    }
                })
                .unwrap();
            assert_eq!(problems, [""; 0], "{size}");
            assert_eq!((summary.inodes, summary.bytes), (2, size));
            let inode = image.resolve(b"/f").unwrap().unwrap();
            let mut buffer = [1u8; 1000];
            assert_eq!(image.read_at(&inode, size - 1000, &mut buffer).unwrap(), 1000);
            assert_eq!(buffer, [0; 1000]);
            let file = image.open_file(&inode).unwrap();
            assert_eq!(file.read_at(size / 2, &mut buffer).unwrap(), 1000);
            assert_eq!(file.read_at(size / 2 + 1000, &mut buffer).unwrap(), 1000);
            assert_eq!(file.read_at(0, &mut buffer).unwrap(), 1000);
        }
    }
}
