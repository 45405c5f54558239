//! Damaged data of several files: a verification reads it once, and reports each of these files.

use std::collections::BTreeSet;
use std::sync::Arc;

use ferrofs_image::{
    ErrorKind, ExtentStorage, FileType, Image, ImageSource, Inode, OpenOptions, PathError,
    VerifyEvent, VerifyOptions, WalkEvent,
};

use crate::crafted::{BLOCK, CompactInode, CraftedImage, FILE, directory, name};
use crate::manifest::ImageSet;

fn open(bytes: Vec<u8>) -> Image {
    let source: Arc<dyn ImageSource> = Arc::new(bytes);
    OpenOptions::new().ignore_checksum(true).open_sources(source, Vec::new()).unwrap()
}

fn problems(image: &Image, options: &VerifyOptions) -> Vec<PathError> {
    let mut problems = Vec::new();
    let summary = image.verify(options, &mut |event| {
        if let VerifyEvent::Problem(problem) = event {
            problems.push(problem);
        }
    });
    assert_eq!(summary.unwrap().problems, problems.len() as u64);
    problems
}

/// Regular files, each under its first name.
fn files(image: &Image) -> Vec<(Vec<u8>, Inode)> {
    let mut met = BTreeSet::new();
    let files = image.walk(b"/").unwrap().filter_map(|event| match event {
        WalkEvent::Leaf(node) if node.inode.file_type() == FileType::Regular => Some(node),
        _ => None,
    });
    let files = files.filter(|node| met.insert(node.inode.nid().raw()));
    files.map(|node| (node.path, node.inode)).collect()
}

/// Places of data: the middles of the clusters of all files and of the packed file.
fn places_of_data(image: &Image) -> BTreeSet<usize> {
    let packed = image.superblock().packed.map(|nid| image.inode(nid).unwrap());
    let inodes = files(image).into_iter().map(|(_, inode)| inode).chain(packed);
    let mut places = BTreeSet::new();
    for inode in inodes {
        let extents = image.file_extents(&inode, 0).unwrap().map(|extent| extent.unwrap());
        let clusters = extents.filter(|extent| extent.storage == ExtentStorage::Cluster);
        let locations = clusters.filter_map(|extent| extent.location);
        places.extend(locations.map(|at| usize::try_from(at.offset + at.bytes / 2).unwrap()));
    }
    places
}

#[test]
fn all_files_that_share_a_damaged_cluster_are_reported() {
    let mut shared = 0;
    for one in ["lz4-dedupe", "lz4-fragments", "zstd-64k-fragments", "lz4hc-all-fragments", "lzma"]
    {
        let set = ImageSet::corpus();
        let listed = set.manifest.images.iter().find(|image| image.name == one).unwrap();
        let bytes = std::fs::read(set.dir.join(&listed.file)).unwrap();
        let places = places_of_data(&open(bytes.clone()));
        let step = (places.len() / 8).max(1);
        for at in places.into_iter().step_by(step) {
            let mut bytes = bytes.clone();
            bytes.iter_mut().skip(at).take(16).for_each(|byte| *byte ^= 0xff);
            let image = open(bytes);
            let is_unreadable = |inode: &Inode| {
                image.for_each_piece(inode, |_| Ok::<_, ferrofs_image::Error>(())).is_err()
            };
            let unreadable = files(&image).into_iter().filter(|(_, inode)| is_unreadable(inode));
            let unreadable: Vec<_> = unreadable.map(|(path, _)| path).collect();
            for threads in [1, 4] {
                let found = problems(&image, &VerifyOptions::new().max_threads(threads));
                let is_shared =
                    |found: &&PathError| matches!(found.error.kind(), ErrorKind::SharedDamage);
                shared += found.iter().filter(is_shared).count();
                let mut found: Vec<_> = found.into_iter().map(|problem| problem.path).collect();
                found.sort();
                let mut expected = unreadable.clone();
                expected.sort();
                assert_eq!(found, expected, "{one}, byte {at}, {threads} threads");
            }
        }
    }
    assert!(shared > 10, "{shared}");
}

/// Files of these sizes, with the blocks from a place on in a row of blocks; of all of these, the image lacks the
/// last one.
fn truncated(files: &[(usize, u32)]) -> Image {
    let mut image = CraftedImage::new(1 + files.len());
    let entry = |at: usize| (name(at), CraftedImage::nid(1 + at), FILE);
    let root = directory(&(0..files.len()).map(entry).collect::<Vec<_>>());
    let block = image.data(&root);
    image.inode(0, CompactInode::directory(root.len(), block), &[]);
    let blocks = files.iter().map(|(size, first)| size / BLOCK + *first as usize).max().unwrap();
    let block = image.data(&vec![7; blocks * BLOCK]);
    for (at, (size, first)) in files.iter().enumerate() {
        let (size, payload) = (*size, block + first);
        let file = CompactInode { mode: 0o100_644, size, payload, ..CompactInode::fifo() };
        image.inode(1 + at, file, &[]);
    }
    let mut bytes = image.finish();
    bytes[1024 + 36..1024 + 40].copy_from_slice(&block.to_le_bytes());
    bytes.truncate(bytes.len() - BLOCK);
    open(bytes)
}

#[test]
fn of_the_files_that_share_stored_data_only_the_damaged_ones_are_reported() {
    let image = truncated(&[
        (4 * BLOCK, 0),
        (BLOCK, 3),
        (BLOCK, 0),
        (2 * BLOCK, 2),
        (3 * BLOCK, 0),
        (BLOCK, 3),
    ]);
    for threads in [1, 4] {
        let found = problems(&image, &VerifyOptions::new().max_threads(threads));
        let mut found: Vec<_> = found.into_iter().map(|problem| problem.path).collect();
        // The root has no entries for itself and its parent.
        found.retain(|path| path != b"/");
        found.sort();
        assert_eq!(found, [b"/aaaa", b"/aaab", b"/aaad", b"/aaaf"]);
    }
}

/// Files that are the front of one LZ4 cluster, which begins with a match.
fn damaged_cluster(files: usize) -> Image {
    let mut image = CraftedImage::new(1 + 3 * files);
    let block = image.data(&[0; BLOCK]);
    let entry = |at: usize| (name(at), CraftedImage::nid(1 + 3 * at), FILE);
    let root = directory(&(0..files).map(entry).collect::<Vec<_>>());
    let mut behind = [1u16, 0, 5, 0, 0, 0, 0, 0].map(u16::to_le_bytes).concat();
    let length = 4096 | 1 << 27 | 1 << 28;
    for field in [length, block * 4096, 0, 0] {
        behind.extend_from_slice(&u32::to_le_bytes(field));
    }
    for at in 0..files {
        let file = CompactInode { layout: 1, mode: 0o100_644, size: 4096, ..CompactInode::fifo() };
        image.inode(1 + 3 * at, file, &behind);
    }
    let block = image.data(&root);
    image.inode(0, CompactInode::directory(root.len(), block), &[]);
    open(image.finish())
}

#[test]
fn looking_for_files_that_share_damage_is_work() {
    let image = damaged_cluster(2000);
    let options = |work| VerifyOptions::new().max_threads(1).max_work(work);
    let found = problems(&image, &options(1 << 20));
    let about_files = || found.iter().filter(|problem| problem.path != b"/");
    assert_eq!(about_files().count(), 2000);
    let is_shared = |found: &&PathError| matches!(found.error.kind(), ErrorKind::SharedDamage);
    assert_eq!(about_files().filter(is_shared).count(), 1999);
    // An entry of an index and an extent for each file, and half of the second walk.
    let found = problems(&image, &options(2000 * (32 + 64) * 3 / 2));
    let limits = found.iter().filter(|one| matches!(one.error.kind(), ErrorKind::WorkLimit { .. }));
    assert_eq!(limits.count(), 1);
    assert!((900..1100).contains(&found.len()), "{}", found.len());
}
