//! Real images with a few bytes of their metadata changed, for the targets that do something with a whole image.
//!
//! Input: the number of an image, then changes of four bytes each: a place among the bytes of
//! metadata that the image has, what to do, and with which value. Inputs stay small, and each
//! change hits something that a reader looks at.

use std::sync::{Arc, OnceLock};

use ferrofs_image::{Image, OpenOptions, WalkEvent};

use crate::input::Input;

/// How many images a change can be made to.
pub const PATCHED_IMAGES: u8 = 16;

/// One image for each feature that has metadata of its own.
const IMAGES: [&[u8]; PATCHED_IMAGES as usize] = [
    include_bytes!("../../tests/data/plain.erofs"),
    include_bytes!("../../tests/data/b512.erofs"),
    include_bytes!("../../tests/data/extended.erofs"),
    include_bytes!("../../tests/data/48bit.erofs"),
    include_bytes!("../../tests/data/chunk-indexes.erofs"),
    include_bytes!("../../tests/data/metabox-lz4-lzma-16k.erofs"),
    include_bytes!("../../tests/data/metabox-zstd-zd-fragments.erofs"),
    include_bytes!("../../tests/data/metabox-lz4-prefix.erofs"),
    include_bytes!("../../tests/data/zstd-64k-fragments.erofs"),
    include_bytes!("../../tests/data/lzma-64k-all.erofs"),
    include_bytes!("../../tests/data/lz4-b1024.erofs"),
    include_bytes!("../../tests/data/lz4hc-64k-full-ztail.erofs"),
    include_bytes!("../../tests/data/48bit-lz4-8k-fragments.erofs"),
    include_bytes!("../../tests/data/mz-lz4.erofs"),
    include_bytes!("../../tests/data/xattr-prefix-packed.erofs"),
    include_bytes!("../../tests/data/chunk-blob.erofs"),
];
/// Bytes behind the start of an inode that count as its own: itself, xattrs, header and index.
const INODE_BYTES: usize = 224;
/// Changes of one input.
const CHANGES_MAX: usize = 64;

/// The image that an input means.
pub(crate) fn patch(bytes: &[u8]) -> Vec<u8> {
    let mut input = Input::new(bytes);
    let number = usize::from(input.u8()) % IMAGES.len();
    let mut image = IMAGES[number].to_vec();
    let places = places(number);
    for _ in 0..CHANGES_MAX {
        if input.is_empty() {
            break;
        }
        let place = places[usize::from(input.u16()) % places.len()];
        let [operation, value] = input.array();
        let byte = &mut image[place];
        *byte = match operation & 7 {
            0 => value,
            1 => *byte ^ value,
            2 => byte.wrapping_add(value),
            3 => *byte ^ (1 << (value & 7)),
            4 => 0xFF,
            5 => 0,
            6 => byte.wrapping_sub(1),
            _ => byte.wrapping_add(1),
        };
    }
    image
}

/// The bytes of metadata of an image.
fn places(number: usize) -> &'static [usize] {
    static PLACES: [OnceLock<Vec<usize>>; IMAGES.len()] = [const { OnceLock::new() }; IMAGES.len()];
    PLACES[number].get_or_init(|| find_places(IMAGES[number]))
}

fn find_places(bytes: &[u8]) -> Vec<usize> {
    let image = OpenOptions::new().open_sources(Arc::new(bytes.to_vec()), Vec::new());
    let image = image.expect("the image is sound");
    let mut is_metadata = vec![false; bytes.len()];
    let sb = image.superblock();
    let special = [sb.packed, sb.metabox].into_iter().flatten();
    let walked = image.walk(b"/").expect("the root is sound").filter_map(|visit| match visit {
        WalkEvent::Enter(node) | WalkEvent::Leaf(node) => Some(node.inode.nid()),
        _ => None,
    });
    for nid in special.chain(walked).filter(|nid| !nid.is_in_metabox()) {
        let start = inode_start(&image, nid.raw());
        is_metadata[start..(start + INODE_BYTES).min(bytes.len())].fill(true);
    }
    is_metadata[1024..1024 + 208].fill(true);
    (0..bytes.len()).filter(|at| is_metadata[*at]).collect()
}

fn inode_start(image: &Image, nid: u64) -> usize {
    let area = image.superblock().meta_offset().and_then(|start| u64::try_from(start).ok());
    usize::try_from(area.expect("a small image") + nid * 32).expect("a small image")
}
