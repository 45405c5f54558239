//! Changes to whole images that know the format: an inode gets another size, layout or address, a directory entry leads to
//! another inode, a new image comes from the builder. The checksum is right afterwards. A mutation without this
//! knowledge mostly hits file contents, which nobody checks.

use std::sync::Arc;

use ferrofs_image::{FileType, Image, ImageSource, Inode, WalkEvent};
use ferrofs_ondisk::{BlockSize, SUPERBLOCK_OFFSET, superblock_checksum};

use crate::build_image::built_image;
use crate::image_input::open;
use crate::patched::PATCHED_IMAGES;

/// Inodes that a change can hit.
const INODES_MAX: usize = 64;
/// Bytes from which a new image is made.
const RECIPE_BYTES: usize = 160;
const MAGIC: [u8; 4] = 0xE0F5_E1E2_u32.to_le_bytes();
/// Where the superblock says whether it has a checksum.
const COMPAT_AT: usize = 8;
/// Fields of an inode: where, and how many bytes.
const FIELDS: [(usize, usize); 9] =
    [(0, 2), (2, 2), (4, 2), (6, 2), (8, 4), (12, 4), (16, 4), (20, 4), (44, 4)];
const DIRENT_BYTES: u64 = 12;

/// The mutator that a fuzzer has: it changes the first bytes of a buffer and returns how many there are then.
pub type PlainMutator = fn(&mut [u8], usize, usize) -> usize;

/// A generator of random numbers: its state.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end.max(1)).unwrap_or(1);
        usize::try_from(self.next() % end).unwrap_or(0)
    }

    fn byte(&mut self) -> u8 {
        u8::try_from(self.next() & 0xFF).unwrap_or(0)
    }

    /// A value at which something ends or begins, or any.
    fn value(&mut self) -> u64 {
        match self.below(6) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << self.below(64),
            3 => (1 << self.below(64)) - 1,
            4 => self.next() & 0xFF,
            _ => self.next(),
        }
    }
}

/// Changes an image in the first `size` bytes of `data`, and returns its size then.
pub fn mutate_image(data: &mut [u8], size: usize, random_value: u32, plain: PlainMutator) -> usize {
    let mut random = Random(u64::from(random_value) << 1 | 1);
    random.next();
    let room = data.len();
    let size = match random.below(16) {
        0 => grow(data, &mut random).unwrap_or_else(|| plain(data, size, room)),
        1..=9 => {
            let is_changed = change(&mut data[..size], &mut random);
            if is_changed { size } else { plain(data, size, room) }
        }
        _ => plain(data, size, room),
    };
    repair(&mut data[..size]);
    size
}

/// The same for an input of a number and an image.
pub fn mutate_numbered(
    data: &mut [u8],
    size: usize,
    random_value: u32,
    plain: PlainMutator,
) -> usize {
    let room = data.len();
    match data.split_first_mut() {
        Some((number, image))
            if size > 0 && (*number >= PATCHED_IMAGES || random_value.is_multiple_of(64)) =>
        {
            *number = u8::MAX;
            1 + mutate_image(image, size - 1, random_value, plain)
        }
        _ => plain(data, size, room),
    }
}

/// A new image from the builder.
fn grow(data: &mut [u8], random: &mut Random) -> Option<usize> {
    let mut recipe = vec![0; RECIPE_BYTES];
    recipe.fill_with(|| random.byte());
    // Blocks of 512 bytes to 4 KiB, and nothing aligned to many of them.
    recipe[4] &= 3;
    recipe[11] = 0;
    let image = built_image(&recipe)?;
    data.get_mut(..image.len())?.copy_from_slice(&image);
    Some(image.len())
}

/// Changes fields of inodes and directory entries; `false` if there is no such image.
fn change(data: &mut [u8], random: &mut Random) -> bool {
    let source: Arc<dyn ImageSource> = Arc::new(data.to_vec());
    let Some(image) = open(&source, 0) else { return false };
    let inodes = inodes(&image);
    if inodes.is_empty() {
        return false;
    }
    for _ in 0..=random.below(3) {
        let inode = &inodes[random.below(inodes.len())];
        let other = &inodes[random.below(inodes.len())];
        match random.below(8) {
            0..=2 => change_field(data, inode, random),
            3 if inode.file_type() == FileType::Directory => {
                redirect(data, &image, inode, other, random);
            }
            4 => change_behind(data, inode, random),
            5 => copy_inode(data, inode, other),
            6 => {
                let at = usize::try_from(SUPERBLOCK_OFFSET).unwrap_or(0) + 8 + random.below(136);
                put(data, at, &[random.byte()]);
            }
            _ => change_field(data, other, random),
        }
    }
    true
}

fn inodes(image: &Image) -> Vec<Inode> {
    let Ok(walk) = image.walk(b"/") else { return Vec::new() };
    let walked = walk.take(2 * INODES_MAX).filter_map(|event| match event {
        WalkEvent::Enter(node) | WalkEvent::Leaf(node) => Some(node.inode),
        _ => None,
    });
    walked.take(INODES_MAX).collect()
}

fn start(inode: &Inode) -> usize {
    usize::try_from(inode.offset()).unwrap_or(usize::MAX)
}

fn put(data: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(target) = at.checked_add(bytes.len()).and_then(|end| data.get_mut(at..end)) {
        target.copy_from_slice(bytes);
    }
}

fn change_field(data: &mut [u8], inode: &Inode, random: &mut Random) {
    let (at, bytes) = FIELDS[random.below(FIELDS.len())];
    let Some(at) = start(inode).checked_add(at) else { return };
    let Some(field) = data.get(at..at + bytes) else { return };
    let mut old = [0; 8];
    old[..bytes].copy_from_slice(field);
    let old = u64::from_le_bytes(old);
    let new = match random.below(4) {
        0 => old.wrapping_add(1),
        1 => old.wrapping_sub(1),
        2 => old ^ 1 << random.below(8 * bytes),
        _ => random.value(),
    };
    put(data, at, &new.to_le_bytes()[..bytes]);
}

/// Xattrs, a map header, an index, inline data.
fn change_behind(data: &mut [u8], inode: &Inode, random: &mut Random) {
    let at =
        start(inode).saturating_add(usize::from(inode.bytes())).saturating_add(random.below(96));
    let value = random.value().to_le_bytes();
    put(data, at, &value[..1 + random.below(4)]);
}

/// The inode gets all that the other one has, but its number.
fn copy_inode(data: &mut [u8], inode: &Inode, other: &Inode) {
    let bytes = usize::from(inode.bytes().min(other.bytes()));
    let Some(found) = data.get(start(other)..start(other).saturating_add(bytes)) else { return };
    let found = found.to_vec();
    put(data, start(inode), &found);
}

/// An entry of a directory leads to another inode, or is of another type.
fn redirect(data: &mut [u8], image: &Image, dir: &Inode, other: &Inode, random: &mut Random) {
    let Ok(mut extents) = image.file_extents(dir, 0) else { return };
    let Some(Ok(extent)) = extents.next() else { return };
    let Some(place) = extent.location.filter(|place| place.algorithm.is_none()) else { return };
    let number = u64::try_from(random.below(6)).unwrap_or(0);
    let Ok(at) = usize::try_from(place.offset.saturating_add(number * DIRENT_BYTES)) else {
        return;
    };
    match random.below(4) {
        0 => put(data, at.saturating_add(10), &[random.byte() & 15]),
        1 => put(data, at.saturating_add(8), &[random.byte()]),
        _ => put(data, at, &other.nid().raw().to_le_bytes()),
    }
}

/// Makes the magic and the checksum right.
fn repair(data: &mut [u8]) {
    let Some(sb) = usize::try_from(SUPERBLOCK_OFFSET).ok().and_then(|at| data.get_mut(at..)) else {
        return;
    };
    if sb.len() < 128 {
        return;
    }
    sb[..4].copy_from_slice(&MAGIC);
    let Ok(block_size) = BlockSize::from_bits(sb[12]) else { return };
    if sb[COMPAT_AT] & 1 != 0
        && let Ok(checksum) = superblock_checksum(block_size, sb)
    {
        sb[4..8].copy_from_slice(&checksum.to_le_bytes());
    }
}
