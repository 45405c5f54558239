//! A small image that contains one map: a sound superblock, a root directory with the file `f`,
//! and maybe a packed inode. Everything that the map says comes from the fuzz input.
//!
//! Input: the parameters of [`MapCase`] in 20 bytes, the bytes behind the inode of `f`, the data.
//! Block numbers are those of the real image that it was cut from: the data is put where it was.

use std::sync::Arc;

use ferrofs_image::{Image, ImageSource, Inode};

use crate::image_input::open_options;
use crate::input::Input;
use crate::stretch::Stretch;

/// What an input says about its image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapCase {
    /// Block size as a shift, less 9, modulo 8.
    pub block_bits: u8,
    /// Bits of the constants below.
    pub switches: u8,
    /// The `i_xattr_icount` of `f`, modulo 16; it moves what follows the inode.
    pub xattr_count: u8,
    /// The slot of 32 bytes in its block at which the inode of `f` starts.
    pub slot: u8,
    /// The 32 bits of the inode that a layout gives a meaning.
    pub union: u32,
    /// The size of `f`.
    pub size: u64,
    /// The block at which the data starts.
    pub data_block: u16,
    /// What follows the inode of `f`, from the map header or the chunk array on.
    pub region: Vec<u8>,
    /// The data, which is also what the packed inode holds.
    pub data: Vec<u8>,
}

/// Where nids count from: behind every block that an input can put data in, so that an index which
/// is longer than it says ends with the image.
const META_START: u64 = 8 << 30;
const SUPERBLOCK_START: usize = 1024;
/// The superblock, configuration records and the device table end here.
const FRONT_BYTES: usize = 2048 + 128;
/// Where the device table lies, in slots of 128 bytes: at byte 2048.
const DEVICE_SLOT: u16 = 16;
const PACKED_NID: u64 = 8;

impl MapCase {
    /// `f` has an extended inode.
    pub const EXTENDED: u8 = 0x01;
    /// The image pads clusters on their left.
    pub const ZERO_PADDING: u8 = 0x02;
    /// The image declares all algorithms, not LZ4 alone.
    pub const ALL_ALGORITHMS: u8 = 0x04;
    /// There is a packed inode.
    pub const PACKED: u8 = 0x08;
    /// Bit 4 of the inode's format: one link, and a wide address.
    pub const FORMAT_BIT4: u8 = 0x10;
    /// The data lies on a device of its own.
    pub const DEVICE: u8 = 0x20;
    /// The data is missing: there are zeros instead, or a device of nothing.
    pub const NO_DATA: u8 = 0x40;

    /// Reads the case that a fuzz input means.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Self {
        let mut input = Input::new(bytes);
        let mut case = Self {
            block_bits: input.u8(),
            switches: input.u8(),
            xattr_count: input.u8(),
            slot: input.u8(),
            union: input.u32(),
            // From 2^63 on an inode is refused before anything is mapped.
            size: input.u64() & u64::MAX >> 1,
            data_block: input.u16(),
            ..Self::default()
        };
        let region = usize::from(input.u16());
        case.region = input.take(region).to_vec();
        case.data = input.rest().to_vec();
        case
    }

    /// The input that means this case. A region longer than 65,535 bytes is cut off.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let region = u16::try_from(self.region.len()).unwrap_or(u16::MAX);
        [
            &[self.block_bits, self.switches, self.xattr_count, self.slot][..],
            &self.union.to_le_bytes(),
            &self.size.to_le_bytes(),
            &self.data_block.to_le_bytes(),
            &region.to_le_bytes(),
            &self.region[..usize::from(region)],
            &self.data,
        ]
        .concat()
    }

    fn has(&self, switch: u8) -> bool {
        self.switches & switch != 0
    }

    fn bits(&self) -> u8 {
        9 + (self.block_bits & 7)
    }

    fn block_bytes(&self) -> usize {
        1 << self.bits()
    }

    /// The nid of `f`: the slot in the second block of the metadata area.
    fn nid(&self) -> u64 {
        let slots = self.block_bytes() / 32;
        (slots.max(16) + usize::from(self.slot) % slots) as u64
    }

    /// Opens the image in which `f` has this layout.
    ///
    /// # Panics
    /// The image does not open, or `f` is not found in it: what they need is sound.
    pub(crate) fn open(&self, layout: u16) -> (Image, Inode) {
        let data = if self.has(Self::NO_DATA) { Vec::new() } else { self.data.clone() };
        let data_start = u64::from(self.data_block) << self.bits();
        let mut parts = vec![(0, self.front()), (META_START, self.meta(layout))];
        let mut devices: Vec<Arc<dyn ImageSource>> = Vec::new();
        if self.has(Self::DEVICE) {
            devices.push(Arc::new(data));
        } else {
            parts.insert(0, (data_start, data));
        }
        let image = open_options().open_sources(Arc::new(Stretch(parts)), devices);
        let image = image.expect("a sound superblock");
        let root = image.root().expect("a sound root");
        let file =
            image.lookup(&root, b"f").expect("a sound directory").expect("the name is there");
        assert_eq!(file.nid().raw(), self.nid());
        (image, file)
    }

    /// The superblock and the tables behind it.
    fn front(&self) -> Vec<u8> {
        let mut front = vec![0; FRONT_BYTES];
        self.put_superblock(&mut front[SUPERBLOCK_START..]);
        let slot = &mut front[usize::from(DEVICE_SLOT) * 128..];
        let blocks = self.data.len().div_ceil(self.block_bytes());
        put(slot, 64, &u32::try_from(blocks).unwrap_or(u32::MAX).to_le_bytes());
        put(slot, 68, &u32::from(self.data_block).to_le_bytes());
        front
    }

    /// The inodes, and the region behind that of `f`.
    fn meta(&self, layout: u16) -> Vec<u8> {
        let mut meta = vec![0; usize::try_from(self.nid()).unwrap_or(0) * 32];
        self.put_root(&mut meta);
        self.put_packed(&mut meta);
        let xattr_bytes = self.put_inode(&mut meta, layout);
        meta.resize(meta.len() + xattr_bytes, 0);
        // Block maps are aligned to 4, chunk indexes and map headers to 8.
        let unit = if layout == 4 && self.union & 0x20 == 0 { 4 } else { 8 };
        meta.resize(meta.len().next_multiple_of(unit), 0);
        meta.extend_from_slice(&self.region);
        meta
    }

    fn put_superblock(&self, sb: &mut [u8]) {
        // LZ4_0PADDING, COMPR_CFGS, CHUNKED_FILE, DEVICE_TABLE, ZTAILPACKING, FRAGMENTS, BIT48.
        let mut incompat = 0x4 | 0x10 | 0x20 | 0x80;
        incompat |= u32::from(self.has(Self::ZERO_PADDING));
        put(sb, 0, &0xE0F5_E1E2u32.to_le_bytes());
        put(sb, 12, &[self.bits()]);
        let meta_block = u32::try_from(META_START >> self.bits()).unwrap_or(0);
        put(sb, 40, &meta_block.to_le_bytes());
        if self.has(Self::PACKED) {
            put(sb, 96, &PACKED_NID.to_le_bytes());
        }
        if self.has(Self::DEVICE) {
            incompat |= 0x8;
            put(sb, 86, &1u16.to_le_bytes());
            put(sb, 88, &DEVICE_SLOT.to_le_bytes());
        }
        if self.has(Self::ALL_ALGORITHMS) {
            incompat |= 0x2;
            put(sb, 84, &[0xf]);
            // LZ4; MicroLZMA with 64 KiB; DEFLATE with 32 KiB; ZSTD with 128 KiB.
            put(sb, 128, &[14, 0]);
            put(sb, 144, &[14, 0, 0, 0, 1]);
            put(sb, 160, &[6, 0, 15]);
            put(sb, 168, &[6, 0, 0, 7]);
        }
        put(sb, 80, &incompat.to_le_bytes());
    }

    /// A directory with `.`, `..` and `f` behind its inode, which is nid 0.
    fn put_root(&self, meta: &mut [u8]) {
        let root = &mut meta[..72];
        put(root, 0, &(2u16 << 1).to_le_bytes());
        put(root, 4, &0o040_755u16.to_le_bytes());
        put(root, 6, &2u16.to_le_bytes());
        put(root, 8, &40u32.to_le_bytes());
        let entries = [(0, 36u16, 2), (0, 37, 2), (self.nid(), 39, 1)];
        for (number, (nid, name, kind)) in entries.into_iter().enumerate() {
            let at = 32 + number * 12;
            put(root, at, &nid.to_le_bytes());
            put(root, at + 8, &name.to_le_bytes());
            put(root, at + 10, &[kind]);
        }
        put(root, 32 + 36, b"...f");
    }

    /// The packed inode: flat, all of the data.
    fn put_packed(&self, meta: &mut [u8]) {
        let start = usize::try_from(PACKED_NID).unwrap_or(0) * 32;
        let packed = &mut meta[start..start + 64];
        put(packed, 0, &[1]);
        put(packed, 4, &0o100_644u16.to_le_bytes());
        put(packed, 8, &(self.data.len() as u64).to_le_bytes());
        put(packed, 16, &u32::from(self.data_block).to_le_bytes());
        put(packed, 44, &[1]);
    }

    /// The inode of `f` at the end; answers the bytes of its xattrs.
    fn put_inode(&self, meta: &mut Vec<u8>, layout: u16) -> usize {
        let count = if self.xattr_count & 15 == 1 { 2 } else { self.xattr_count & 15 };
        let extended = self.has(Self::EXTENDED);
        let bit4 = if self.has(Self::FORMAT_BIT4) { 0x10 } else { 0 };
        let mut inode = vec![0; if extended { 64 } else { 32 }];
        put(&mut inode, 0, &(u16::from(extended) | layout << 1 | bit4).to_le_bytes());
        put(&mut inode, 2, &u16::from(count).to_le_bytes());
        put(&mut inode, 4, &0o100_644u16.to_le_bytes());
        put(&mut inode, 16, &self.union.to_le_bytes());
        if extended {
            put(&mut inode, 8, &self.size.to_le_bytes());
            put(&mut inode, 44, &[1]);
        } else {
            let size = u32::try_from(self.size & 0xffff_ffff).unwrap_or(0);
            put(&mut inode, 8, &size.to_le_bytes());
            put(&mut inode, 6, &[1]);
        }
        meta.extend_from_slice(&inode);
        if count == 0 { 0 } else { 12 + 4 * (usize::from(count) - 1) }
    }
}

fn put(target: &mut [u8], at: usize, bytes: &[u8]) {
    target[at..at + bytes.len()].copy_from_slice(bytes);
}
