//! The superblock, at byte 1024 of every image whatever its block size (docs/format.md F1).

use zerocopy::byteorder::little_endian::{I32, I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::address::{BlockSize, Nid};
use crate::bytes::view;
use crate::compression::{AlgorithmId, Compression};
use crate::error::{Error, ErrorKind, Result};
use crate::feature::{Compat, Incompat};

/// Where the superblock starts, in bytes from the start of the image.
pub const SUPERBLOCK_OFFSET: u64 = 1024;

const MAGIC: u32 = 0xE0F5_E1E2;
const BASE_BYTES: u16 = 128;
const EXTSLOT_BYTES: u16 = 16;
/// The superblock ends within the first 4 KiB, as Linux requires on its smallest pages.
const MAX_BYTES: u16 = 4096 - 1024;
/// Where `metabox_nid` lies; it needs the first extension slot.
const METABOX_NID_OFFSET: usize = 128;
/// All algorithm bits that have a meaning.
const KNOWN_ALGORITHMS: u16 = 0xf;

#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSuperblock {
    magic: U32,
    checksum: U32,
    feature_compat: U32,
    blkszbits: u8,
    sb_extslots: u8,
    rootnid_2b_or_blocks_hi: U16,
    inos: U64,
    epoch: I64,
    fixed_nsec: U32,
    blocks_lo: U32,
    meta_blkaddr: I32,
    xattr_blkaddr: U32,
    uuid: [u8; 16],
    volume_name: [u8; 16],
    feature_incompat: U32,
    algorithms_or_distance: U16,
    extra_devices: U16,
    devt_slotoff: U16,
    dirblkbits: u8,
    xattr_prefix_count: u8,
    xattr_prefix_start: U32,
    packed_nid: U64,
    xattr_filter_reserved: u8,
    ishare_xattr_prefix_id: u8,
    _reserved: [u8; 2],
    build_time: U32,
    rootnid_8b: U64,
    _reserved2: U64,
}

const _: () = assert!(size_of::<RawSuperblock>() == 128);

/// What the superblock says, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The block size.
    pub block_size: BlockSize,
    /// Bytes of the superblock with its extension slots; configuration records follow.
    pub bytes: u16,
    /// The stored checksum; it counts only with [`Compat::SB_CHKSUM`].
    pub checksum: u32,
    /// Compatible features.
    pub compat: Compat,
    /// Incompatible features.
    pub incompat: Incompat,
    /// The root directory.
    pub root: Nid,
    /// The packed inode, which holds fragments.
    pub packed: Option<Nid>,
    /// The metabox inode, which holds inodes.
    pub metabox: Option<Nid>,
    /// How many inodes the builder counted; informational.
    pub inodes: u64,
    /// How many blocks the image has.
    pub blocks: u64,
    /// Seconds that compact inodes count from.
    pub epoch: i64,
    /// Nanoseconds of every compact inode's time.
    pub fixed_nsec: u32,
    /// When the image was built, in seconds after `epoch`.
    pub build_time: u32,
    /// First block of the metadata area; signed, as readers add it to nids.
    pub meta_block: i32,
    /// First block of the shared xattrs.
    pub xattr_block: u32,
    /// The volume's UUID.
    pub uuid: [u8; 16],
    /// The volume's label, padded with zeros; it may fill all 16 bytes.
    pub label: [u8; 16],
    /// With [`Incompat::COMPR_CFGS`] the bitmap of algorithms, without it the LZ4 window.
    pub algorithms_or_distance: u16,
    /// Devices besides the image itself.
    pub extra_devices: u16,
    /// Where the device table lies, in slots of 128 bytes.
    pub device_table_slot: u16,
    /// Number of long xattr prefixes.
    pub xattr_prefix_count: u8,
    /// Where their table lies, in units of 4 bytes.
    pub xattr_prefix_start: u32,
    /// Not 0: the name filter must not be trusted.
    pub xattr_filter_reserved: u8,
    /// The long prefix that marks content digests, with [`Compat::ISHARE_XATTRS`].
    pub digest_prefix: Option<u8>,
}

impl Superblock {
    /// Reads the superblock from `bytes`, which start at [`SUPERBLOCK_OFFSET`] of the image.
    ///
    /// The checksum is not compared here, since it covers bytes behind the superblock: see
    /// [`superblock_checksum`](crate::superblock_checksum).
    ///
    /// # Errors
    /// Too few bytes, another magic, a block size out of range, unknown incompatible features, or
    /// fields that contradict each other.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let raw: &RawSuperblock = view(bytes)?;
        if raw.magic.get() != MAGIC {
            return Err(Error::new(ErrorKind::BadMagic(raw.magic.get()), 0));
        }
        let block_size = BlockSize::from_bits(raw.blkszbits)?;
        let compat = Compat::new(raw.feature_compat.get());
        let incompat = Incompat::new(raw.feature_incompat.get());
        if incompat.unknown() != 0 {
            return Err(Error::new(ErrorKind::UnknownIncompat(incompat.unknown()), 80));
        }
        if raw.dirblkbits != 0 {
            return Err(Error::new(ErrorKind::DirectoryBlockBits(raw.dirblkbits), 90));
        }
        let (root, blocks) = root_and_blocks(raw, incompat);
        Ok(Self {
            block_size,
            bytes: extended_size(raw.sb_extslots)?,
            checksum: raw.checksum.get(),
            compat,
            incompat,
            root,
            packed: packed(raw)?,
            metabox: metabox(raw, bytes, incompat)?,
            inodes: raw.inos.get(),
            blocks,
            epoch: raw.epoch.get(),
            fixed_nsec: nanoseconds(raw.fixed_nsec.get())?,
            build_time: raw.build_time.get(),
            meta_block: raw.meta_blkaddr.get(),
            xattr_block: raw.xattr_blkaddr.get(),
            uuid: raw.uuid,
            label: raw.volume_name,
            algorithms_or_distance: raw.algorithms_or_distance.get(),
            extra_devices: extra_devices(raw, incompat),
            device_table_slot: raw.devt_slotoff.get(),
            xattr_prefix_count: raw.xattr_prefix_count,
            xattr_prefix_start: raw.xattr_prefix_start.get(),
            xattr_filter_reserved: raw.xattr_filter_reserved,
            digest_prefix: digest_prefix(raw, compat)?,
        })
    }

    /// The algorithms that have a configuration record, in the order of the records.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownAlgorithms`] for a bitmap with unknown bits.
    pub fn recorded_algorithms(&self) -> Result<impl Iterator<Item = AlgorithmId> + use<>> {
        let has_records = self.incompat.has(Incompat::COMPR_CFGS);
        let bits = if has_records { self.algorithms_or_distance } else { 0 };
        if bits & !KNOWN_ALGORITHMS != 0 {
            return Err(Error::new(ErrorKind::UnknownAlgorithms(bits & !KNOWN_ALGORITHMS), 84));
        }
        Ok(AlgorithmId::ALL.into_iter().filter(move |algorithm| bits & algorithm.bit() != 0))
    }

    /// What an image without configuration records declares; nothing if it has records.
    #[must_use]
    pub fn implied_compression(&self) -> Compression {
        if self.incompat.has(Incompat::COMPR_CFGS) {
            Compression::default()
        } else {
            Compression::lz4_only(self.algorithms_or_distance)
        }
    }

    /// Whether the image says that it has compressed files. Images from before all of these fields
    /// may have them without saying so.
    #[must_use]
    pub const fn declares_compression(&self) -> bool {
        self.incompat.has(Incompat::COMPR_CFGS | Incompat::ZERO_PADDING)
            || self.algorithms_or_distance != 0
    }

    /// Whether compressed data is padded on its left.
    #[must_use]
    pub const fn has_left_padding(&self) -> bool {
        // Every writer of configuration records pads on the left; the bit alone speaks for LZ4.
        self.incompat.has(Incompat::ZERO_PADDING)
    }

    /// The byte of the metadata area from which nids count, or `None` if it is out of range.
    #[must_use]
    pub fn meta_offset(&self) -> Option<i64> {
        i64::from(self.meta_block).checked_mul(i64::from(self.block_size.bytes()))
    }

    /// The label up to its first NUL.
    #[must_use]
    pub fn label_text(&self) -> &[u8] {
        self.label.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

fn extended_size(extslots: u8) -> Result<u16> {
    // At most 128 + 255 * 16, so the arithmetic cannot wrap.
    let bytes = BASE_BYTES.wrapping_add(u16::from(extslots).wrapping_mul(EXTSLOT_BYTES));
    if bytes > MAX_BYTES {
        return Err(Error::new(ErrorKind::SuperblockSize(bytes), 13));
    }
    Ok(bytes)
}

fn nanoseconds(nsec: u32) -> Result<u32> {
    if nsec < 1_000_000_000 { Ok(nsec) } else { Err(Error::new(ErrorKind::Nanoseconds(nsec), 32)) }
}

/// With 48 bits a non-zero `rootnid_8b` moves the root, and only then are the old root's two bytes
/// the high half of the block count (F7).
fn root_and_blocks(raw: &RawSuperblock, incompat: Incompat) -> (Nid, u64) {
    let blocks = u64::from(raw.blocks_lo.get());
    let shared = raw.rootnid_2b_or_blocks_hi.get();
    let wide_root = raw.rootnid_8b.get();
    if incompat.has(Incompat::BIT48) && wide_root != 0 {
        (Nid::new(wide_root), blocks | u64::from(shared) << 32)
    } else {
        (Nid::new(u64::from(shared)), blocks)
    }
}

fn packed(raw: &RawSuperblock) -> Result<Option<Nid>> {
    let nid = Nid::new(raw.packed_nid.get());
    if nid.is_in_metabox() {
        return Err(Error::new(ErrorKind::NidInMetabox("packed inode"), 96));
    }
    Ok((nid.raw() != 0).then_some(nid))
}

fn metabox(raw: &RawSuperblock, bytes: &[u8], incompat: Incompat) -> Result<Option<Nid>> {
    if !incompat.has(Incompat::METABOX) {
        return Ok(None);
    }
    if raw.sb_extslots == 0 {
        return Err(Error::new(ErrorKind::MissingMetaboxSlot, 13));
    }
    let raw_nid = crate::bytes::u64_at(bytes, METABOX_NID_OFFSET)
        .ok_or_else(|| crate::bytes::truncated(METABOX_NID_OFFSET | 8, bytes.len()))?;
    let nid = Nid::new(raw_nid);
    if nid.is_in_metabox() {
        return Err(Error::new(ErrorKind::NidInMetabox("metabox inode"), 128));
    }
    Ok(Some(nid))
}

fn extra_devices(raw: &RawSuperblock, incompat: Incompat) -> u16 {
    if incompat.has(Incompat::DEVICE_TABLE) { raw.extra_devices.get() } else { 0 }
}

fn digest_prefix(raw: &RawSuperblock, compat: Compat) -> Result<Option<u8>> {
    if !compat.has(Compat::ISHARE_XATTRS) {
        return Ok(None);
    }
    let id = raw.ishare_xattr_prefix_id;
    if id >= raw.xattr_prefix_count {
        return Err(Error::new(ErrorKind::DigestPrefix(id), 105));
    }
    Ok(Some(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> [u8; 144] {
        let mut bytes = [0u8; 144];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[12] = 12;
        bytes[14] = 36;
        bytes
    }

    #[test]
    fn the_smallest_superblock_is_read() {
        let sb = Superblock::parse(&image()).unwrap();
        assert_eq!(sb.root, Nid::new(36));
        assert_eq!(sb.block_size.bytes(), 4096);
        assert_eq!((sb.packed, sb.metabox), (None, None));
        assert_eq!(sb.bytes, 128);
    }

    #[test]
    fn an_unknown_incompatible_bit_is_named() {
        let mut bytes = image();
        bytes[81] = 0x82;
        let error = Superblock::parse(&bytes).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::UnknownIncompat(0x8200));
        assert_eq!(error.to_string(), "unknown incompatible feature bits 0x8200 at byte 80");
    }

    #[test]
    fn a_wide_root_lends_its_old_bytes_to_the_block_count() {
        let mut bytes = image();
        bytes[80] = 0x80;
        assert_eq!(Superblock::parse(&bytes).unwrap().root, Nid::new(36));
        bytes[112] = 9;
        let sb = Superblock::parse(&bytes).unwrap();
        assert_eq!((sb.root, sb.blocks), (Nid::new(9), 36 << 32));
    }

    #[test]
    fn a_metabox_needs_its_slot_and_must_not_lie_in_itself() {
        let mut bytes = image();
        bytes[81] = 1;
        let kind = |bytes: &[u8]| Superblock::parse(bytes).unwrap_err().into_kind();
        assert_eq!(kind(&bytes), ErrorKind::MissingMetaboxSlot);
        bytes[13] = 1;
        bytes[128] = 7;
        assert_eq!(Superblock::parse(&bytes).unwrap().metabox, Some(Nid::new(7)));
        bytes[135] = 0x80;
        assert_eq!(kind(&bytes), ErrorKind::NidInMetabox("metabox inode"));
        assert!(matches!(kind(&bytes[..130]), ErrorKind::Truncated { .. }));
    }

    #[test]
    fn a_short_superblock_says_what_is_missing() {
        let error = Superblock::parse(&image()[..100]).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Truncated { wanted: 128, got: 100 });
    }

    #[test]
    fn a_label_may_fill_its_field() {
        let mut bytes = image();
        bytes[64..80].copy_from_slice(b"sixteen-byte-lbl");
        assert_eq!(Superblock::parse(&bytes).unwrap().label_text(), b"sixteen-byte-lbl");
    }
}
