//! Full indexes: searches along their distances take as many steps as builders need, and not as many as the index has
//! entries; uncompressed ends of files in the inode.

use std::sync::Arc;

use ferrofs_image::{ErrorKind, Image, ImageSource, Nid, OpenOptions, VerifyEvent, VerifyOptions};

use crate::crafted::{BLOCK, CompactInode, CraftedImage, DIRECTORY, FILE, directory};

/// Bytes of an entry.
const ENTRY: usize = 8;
/// Lclusters of 4 KiB in the longest extent that has data.
const EXTENT: usize = (12 << 20) / BLOCK;

/// The distances of the NONHEAD that is so many lclusters behind its HEAD and before the next one.
type Distances = fn(usize, usize) -> (usize, usize);

const SHORT: Distances = |_, _| (1, 1);
const SHORT_BACK: Distances = |_, ahead| (1, ahead.min(65_535));
const SHORT_AHEAD: Distances = |back, _| (back.min(2047), 1);
/// As `mkfs.erofs`: only the 16 low bits of the second one fit.
const OF_BUILDERS: Distances = |back, ahead| (back.min(2047), ahead % 65_536);

/// Adds a compressed file of `size` bytes in slot 2, with its index and what follows that, and the root in which it is.
fn add_file(image: &mut CraftedImage, size: usize, behind: &[u8]) {
    let mode = 0o100_644;
    image.inode(2, CompactInode { layout: 1, mode, size, ..CompactInode::fifo() }, behind);
    let nid = CraftedImage::nid(0);
    let file = ("f", CraftedImage::nid(2), FILE);
    let root = directory(&[(".", nid, DIRECTORY), ("..", nid, DIRECTORY), file]);
    let block = image.data(&root);
    image.inode(0, CompactInode::directory(root.len(), block), &[]);
}

/// A file of holes of `hole` lclusters, which is the packed file, too, if that is wanted.
fn holes(holes: usize, hole: usize, distances: Distances, is_packed: bool) -> Image {
    let lclusters = holes * hole;
    let mut image = CraftedImage::new(8 + (lclusters * ENTRY).div_ceil(32));
    let mut behind = vec![0u8; 16];
    for at in 0..lclusters {
        let (back, ahead) = distances(at % hole, hole - at % hole);
        // A HEAD1 with the bit of a hole, or a NONHEAD.
        let fields = if at % hole == 0 { [1 | 1 << 14, 0, 0, 0] } else { [2, 0, back, ahead] };
        behind.extend(fields.iter().flat_map(|field| u16::try_from(*field).unwrap().to_le_bytes()));
    }
    add_file(&mut image, lclusters * BLOCK, &behind);
    let mut bytes = image.finish();
    if is_packed {
        bytes[1024 + 80] |= 0x20;
        bytes[1024 + 96..1024 + 104].copy_from_slice(&CraftedImage::nid(2).to_le_bytes());
    }
    let source: Arc<dyn ImageSource> = Arc::new(bytes);
    OpenOptions::new().open_sources(source, Vec::new()).unwrap()
}

fn problems(image: &Image) -> Vec<ferrofs_image::Error> {
    let mut problems = Vec::new();
    image
        .verify(&VerifyOptions::new().max_work(64 << 20), &mut |event| {
            if let VerifyEvent::Problem(problem) = event {
                problems.push(problem.error);
            }
        })
        .unwrap();
    problems
}

/// Reads 4 KiB of lcluster `at`.
fn read(image: &Image, at: usize) -> Result<usize, ferrofs_image::Error> {
    let inode = image.inode(Nid::new(CraftedImage::nid(2))).unwrap();
    image.read_at(&inode, (at * BLOCK) as u64, &mut [1; BLOCK])
}

/// A read took as many steps as the index has entries, and a verification as many for each 2 MiB of the file.
#[test]
fn a_search_does_not_take_as_many_steps_as_the_index_has_entries() {
    for distances in [SHORT, SHORT_BACK, SHORT_AHEAD] {
        for lclusters in [EXTENT + 100, 150_000] {
            let image = holes(1, lclusters, distances, false);
            let error = read(&image, lclusters - 10).err().or_else(|| read(&image, 0).err());
            let is_short = |error: &ferrofs_image::Error| {
                matches!(error.kind(), ErrorKind::ShortDistances { limit: 3088, .. })
            };
            assert!(error.is_some_and(|error| is_short(&error)), "{lclusters}");
            let found = problems(&image);
            assert!(found.len() == 1 && is_short(&found[0]), "{lclusters}: {found:?}");
            assert!(found[0].offset().is_some() && found[0].nid().is_some());
        }
    }
}

#[test]
fn holes_with_the_distances_of_builders_are_read() {
    let cases: [(usize, usize, Distances); 4] =
        [(1, 200_000, OF_BUILDERS), (1, 131_073, OF_BUILDERS), (40, EXTENT, SHORT), (1, 5, SHORT)];
    for (number, lclusters, distances) in cases {
        let image = holes(number, lclusters, distances, false);
        let step = (lclusters / 50).max(1);
        for at in (0..number * lclusters).step_by(step).chain([number * lclusters - 1]) {
            assert_eq!(read(&image, at).unwrap(), BLOCK, "{at} of {number} times {lclusters}");
        }
        let found = problems(&image);
        assert!(found.is_empty(), "{number} times {lclusters}: {found:?}");
    }
}

/// Each lcluster of the packed file is looked up, which took half a minute for each mebibyte of the index.
#[test]
fn searches_in_a_packed_file_are_work() {
    assert!(problems(&holes(4, EXTENT, OF_BUILDERS, true)).is_empty());
    let found = problems(&holes(16, EXTENT, SHORT, true));
    let is_limit = |error: &ferrofs_image::Error| match error.kind() {
        ErrorKind::WorkLimit { what, .. } => what.starts_with("searches"),
        _ => false,
    };
    assert!(found.iter().any(is_limit), "{found:?}");
}

/// A hole up to byte `start`, and then the uncompressed end of the file in the inode.
fn inline_end(start: usize, end: &[u8], advise: u16) -> Image {
    let mut image = CraftedImage::new(16);
    let mut behind = vec![0u8; 16];
    behind[2..4].copy_from_slice(&u16::try_from(end.len()).unwrap().to_le_bytes());
    // INLINE_PCLUSTER, and what is asked for.
    behind[4..6].copy_from_slice(&(8 | advise).to_le_bytes());
    let lclusters = start / BLOCK;
    let heads = (0..lclusters).map(|_| [1 | 1 << 14, 0, 0, 0]);
    for fields in heads.chain([[0, start % BLOCK, 0, 0]]) {
        behind.extend(fields.iter().flat_map(|field| u16::try_from(*field).unwrap().to_le_bytes()));
    }
    behind.extend_from_slice(end);
    add_file(&mut image, start + end.len(), &behind);
    let source: Arc<dyn ImageSource> = Arc::new(image.finish());
    OpenOptions::new().open_sources(source, Vec::new()).unwrap()
}

/// The bytes of mkfs.erofs came rotated if the end was long enough, as they do from the kernel, and else it was called too long.
#[test]
fn an_interlaced_end_in_the_inode_is_refused_where_its_order_is_in_doubt() {
    const INTERLACED: u16 = 0x10;
    let end: Vec<u8> = (0..200).collect();
    let read = |image: &Image, start: usize| {
        let inode = image.inode(Nid::new(CraftedImage::nid(2))).unwrap();
        let mut bytes = vec![1; 200];
        image.read_at(&inode, start as u64, &mut bytes).map(|count| (count, bytes))
    };
    for (start, advise) in [(4096 + 100, 0), (8192, 0), (8192, INTERLACED)] {
        let image = inline_end(start, &end, advise);
        assert_eq!(read(&image, start).unwrap(), (200, end.clone()), "{start} {advise}");
        assert!(problems(&image).is_empty());
    }
    for start in [4096 + 100, 4096 + 4090] {
        let image = inline_end(start, &end, INTERLACED);
        let found = problems(&image);
        for error in [read(&image, start).unwrap_err(), found.into_iter().next().unwrap()] {
            assert!(matches!(error.kind(), ErrorKind::InterlacedTail), "{error}");
            assert!(error.offset().is_some(), "{error}");
        }
    }
}
