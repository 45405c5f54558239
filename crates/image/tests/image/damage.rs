//! Damaged images: whatever the bytes are, the result is a value or an error, in bounded time and
//! memory.

use std::path::Path;
use std::sync::Arc;

use ferrofs_image::{Image, ImageSource, OpenOptions, VerifyEvent, VerifyOptions};
use serde::Deserialize;

use crate::crafted::{BLOCK, CompactInode, CraftedImage, DIRECTORY, directory};
use crate::manifest::{ImageSet, beside, skip};

#[derive(Deserialize)]
struct CorruptSet {
    images: Vec<CorruptImage>,
}

#[derive(Deserialize)]
struct CorruptImage {
    file: String,
    base: String,
    what: String,
    expect: String,
}

/// Everything that verification reports about an image, or the error of opening it.
fn problems(image: Result<Image, ferrofs_image::Error>) -> Vec<ferrofs_image::Error> {
    match image {
        Err(error) => vec![error],
        Ok(image) => {
            let mut found = Vec::new();
            image
                .verify(&VerifyOptions::new(), &mut |event| {
                    if let VerifyEvent::Problem(problem) = event {
                        found.push(problem.error);
                    }
                })
                .unwrap();
            found
        }
    }
}

fn open_corrupt(dir: &Path, listed: &CorruptImage) -> Result<Image, ferrofs_image::Error> {
    let options = OpenOptions::new();
    let options =
        if listed.base == "blob" { options.device(dir.join("blob.bin")) } else { options };
    options.open(dir.join(&listed.file))
}

#[test]
fn the_corrupt_set_is_judged_as_it_should_be() {
    let dir = beside("FERROFS_CORRUPT", "corrupt");
    let Ok(text) = std::fs::read(dir.join("list.json")) else {
        return skip("no set of corrupt images (FERROFS_CORRUPT)");
    };
    let list: CorruptSet = serde_json::from_slice(&text).unwrap();
    for listed in &list.images {
        let found = problems(open_corrupt(&dir, listed));
        let must_fail = listed.expect != "any";
        assert!(!must_fail || !found.is_empty(), "{}: {}", listed.file, listed.what);
        for error in found {
            assert!(error.offset().is_some(), "{}: {error} names no byte", listed.file);
        }
    }
}

/// A valid image with a mutation.
fn mutated(bytes: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Result<Image, ferrofs_image::Error> {
    let mut bytes = bytes.to_vec();
    change(&mut bytes);
    let source: Arc<dyn ImageSource> = Arc::new(bytes);
    OpenOptions::new().ignore_checksum(true).open_sources(source, Vec::new())
}

fn corpus(name: &str) -> Vec<u8> {
    let set = ImageSet::corpus();
    let listed = set.manifest.images.iter().find(|one| one.name == name).unwrap();
    std::fs::read(set.dir.join(&listed.file)).unwrap()
}

#[test]
fn any_truncation_is_noticed() {
    for name in ["plain", "lz4-ztail", "lz4hc-all-fragments"] {
        let bytes = corpus(name);
        let step = (bytes.len() / 40).max(1);
        for length in (0..bytes.len()).step_by(step) {
            let found = problems(mutated(&bytes, |bytes| bytes.truncate(length)));
            assert!(!found.is_empty(), "{name} cut to {length} of {}", bytes.len());
        }
    }
}

#[test]
fn no_flipped_byte_of_metadata_does_harm() {
    for name in ["inline", "lz4-full", "48bit-lz4-8k-fragments", "metabox-lz4-prefix", "chunk-map"]
    {
        let bytes = corpus(name);
        let mut at = 1024;
        while at < bytes.len() {
            // Any result is right; only a panic, an endless loop or a huge buffer would be wrong.
            drop(problems(mutated(&bytes, |bytes| bytes[at] ^= 0xff)));
            at += 211;
        }
    }
}

/// Writes an extended inode of a regular file over the one with this nid.
fn rewrite_inode(bytes: &mut [u8], nid: u64, size: u64, start_block: u32, layout: u16) {
    let at = usize::try_from(nid * 32).unwrap();
    bytes[at..at + 2].copy_from_slice(&(1 | layout << 1).to_le_bytes());
    bytes[at + 2..at + 4].fill(0);
    bytes[at + 4..at + 6].copy_from_slice(&0o100_644u16.to_le_bytes());
    bytes[at + 6..at + 8].fill(0xff);
    bytes[at + 8..at + 16].copy_from_slice(&size.to_le_bytes());
    bytes[at + 16..at + 20].copy_from_slice(&start_block.to_le_bytes());
}

#[test]
fn a_hole_as_long_as_a_number_can_say_takes_no_time() {
    let set = ImageSet::corpus();
    for (name, field) in [("metabox", 1024 + 128), ("lz4hc-all-fragments", 1024 + 96)] {
        let bytes = corpus(name);
        let listed = set.manifest.images.iter().find(|one| one.name == name).unwrap();
        let meta = set.open(listed).superblock().meta_offset().unwrap();
        assert_eq!(meta, 0, "{name}: nids count from the start");
        let nid = u64::from_le_bytes(bytes[field..field + 8].try_into().unwrap());
        let found = problems(mutated(&bytes, |bytes| {
            rewrite_inode(bytes, nid, u64::MAX >> 1, u32::MAX, 0);
        }));
        // The metabox is refused; fragments of nothing but a hole are legal zeros.
        assert!(name != "metabox" || !found.is_empty());
    }
}

#[test]
fn a_distance_forward_past_the_next_head_is_noticed() {
    let bytes = corpus("lz4-full");
    let set = ImageSet::corpus();
    let listed = set.manifest.images.iter().find(|one| one.name == "lz4-full").unwrap();
    let sound = set.open(listed);
    assert!(problems(Ok(sound)).is_empty());
    // NONHEAD entries of a full index: type 2, and a distance back of 1 behind their head.
    let entry = |at: usize| bytes.get(at..at + 8);
    let is_first = |at: &usize| entry(*at).is_some_and(|e| e[..2] == [2, 0] && e[4..6] == [1, 0]);
    let victims: Vec<usize> = (1024..bytes.len()).step_by(8).filter(is_first).collect();
    let mut noticed = 0;
    for at in &victims {
        let found = problems(mutated(&bytes, |bytes| bytes[at + 6] += 40));
        noticed += usize::from(!found.is_empty());
    }
    // No head follows the last one, and some data only looks like an entry.
    assert!(noticed * 4 > victims.len() * 3, "{noticed} of {}", victims.len());
}

#[test]
fn what_check_calls_sound_can_be_read_from_any_byte_of_the_packed_file_on() {
    let bytes = corpus("lz4-fragments");
    let set = ImageSet::corpus();
    let listed = set.manifest.images.iter().find(|one| one.name == "lz4-fragments").unwrap();
    let sound = set.open(listed);
    let nid = sound.superblock().packed.unwrap();
    let packed = sound.inode(nid).unwrap();
    let first = usize::try_from(packed.offset()).unwrap() + usize::from(packed.bytes());
    let mut unreadable = 0;
    for at in first + 8..first + 8 + 64 {
        for flipped in [1u8, 4, 16, 64, 128] {
            let Ok(image) = mutated(&bytes, |bytes| bytes[at] ^= flipped) else { continue };
            let Ok(packed) = image.inode(nid) else { continue };
            let is_readable = (0..packed.size()).step_by(1021).all(|offset| {
                let found = image.file_extents(&packed, offset);
                found.is_ok_and(|mut extents| extents.next().is_none_or(|first| first.is_ok()))
            });
            if !is_readable {
                unreadable += 1;
                assert!(!problems(Ok(image)).is_empty(), "byte {at}, {flipped}");
            }
        }
    }
    assert!(unreadable > 0);
}

/// A packed file of three extents of 64 KiB, which no file refers to; the last has no algorithm that there is. `table`
/// is its index from the map header on, with blocks from `block` on.
fn unused_packed_file(index: impl FnOnce(u32) -> Vec<u8>) -> Image {
    let mut image = CraftedImage::new(16);
    let block = image.data(&vec![0xF1; 3 * BLOCK]);
    let size = 3 << 16;
    let file = CompactInode { layout: 1, mode: 0o100_644, size, ..CompactInode::fifo() };
    image.inode(1, file, &index(block));
    let nid = CraftedImage::nid(0);
    let root = directory(&[(".", nid, DIRECTORY), ("..", nid, DIRECTORY)]);
    let block = image.data(&root);
    image.inode(0, CompactInode::directory(root.len(), block), &[]);
    let mut bytes = image.finish();
    // FRAGMENTS, and the number of the packed inode.
    bytes[1024 + 80] |= 0x20;
    bytes[1024 + 96..1024 + 104].copy_from_slice(&CraftedImage::nid(1).to_le_bytes());
    let source: Arc<dyn ImageSource> = Arc::new(bytes);
    OpenOptions::new().open_sources(source, Vec::new()).unwrap()
}

/// As many blocks were checked as the index has entries.
#[test]
fn all_of_a_packed_file_is_checked_where_entries_stand_for_many_blocks() {
    let words =
        |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    for (last, is_sound) in [(1u32, true), (15, false)] {
        // Records of 16 bytes.
        let table = unused_packed_file(|block| {
            let at = block * 4096;
            let record = |number: u32, format: u32| {
                [4096 | format << 28, at + number * 4096, 0, number << 16]
            };
            let records = [record(0, 1), record(1, 1), record(2, last)].concat();
            [words(&[3, 5, 0, 0]), words(&records)].concat()
        });
        // Lclusters of 64 KiB; the second algorithm is one that there is not.
        let lclusters = unused_packed_file(|block| {
            let kind = if is_sound { 1 } else { 3 };
            let entries = [1, block, 1, block + 1, kind, block + 2];
            [words(&[0, 0x04F0_0000, 0, 0]), words(&entries)].concat()
        });
        for (image, what) in [(table, "table"), (lclusters, "lclusters")] {
            let found = problems(Ok(image));
            assert_eq!(found.is_empty(), is_sound, "{what}: {found:?}");
        }
    }
}
