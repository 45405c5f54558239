//! The superblock, at byte 1024 of every image whatever its block size (docs/format.md F1).

use zerocopy::byteorder::little_endian::{I32, I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::address::{BlockSize, Nid};
use crate::bytes::{fit, low_half, to_u64, view};
use crate::compression::{AlgorithmId, CompressionConfig};
use crate::error::{Error, ErrorKind, Result};
use crate::feature::{Compat, Incompat};

/// Where the superblock starts, in bytes from the start of the image.
pub const SUPERBLOCK_OFFSET: u64 = 1024;

/// The magic number at its start.
pub const SUPERBLOCK_MAGIC: u32 = 0xE0F5_E1E2;
const BASE_BYTES: u16 = 128;
const EXTSLOT_BYTES: u16 = 16;
/// The root and the block count have these many bits unless 48BIT widens both.
const NARROW_ROOT_BITS: u32 = 16;
const NARROW_BLOCKS_BITS: u32 = 32;
/// The superblock ends within the first 4 KiB, as Linux requires on its smallest pages.
const MAX_BYTES: u16 = 4096 - 1024;
/// Where `metabox_nid` is; it needs the first extension slot.
const METABOX_NID_OFFSET: usize = 128;
/// All algorithm bits that have a meaning.
const KNOWN_ALGORITHMS: u16 = 0xf;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
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
    /// Where the device table is, in slots of 128 bytes.
    pub device_table_slot: u16,
    /// Number of long xattr prefixes.
    pub xattr_prefix_count: u8,
    /// Where their table is, in units of 4 bytes.
    pub xattr_prefix_start: u32,
    /// Not 0: the name filter must not be trusted.
    pub xattr_filter_reserved: u8,
    /// The long prefix that marks content digests, with [`Compat::ISHARE_XATTRS`].
    pub digest_prefix: Option<u8>,
}

impl Superblock {
    /// A superblock of an image that has nothing yet: no features, no extension slots, no label,
    /// every number 0.
    #[must_use]
    pub const fn new(block_size: BlockSize) -> Self {
        Self {
            block_size,
            bytes: BASE_BYTES,
            checksum: 0,
            compat: Compat::new(0),
            incompat: Incompat::new(0),
            root: Nid::new(0),
            packed: None,
            metabox: None,
            inodes: 0,
            blocks: 0,
            epoch: 0,
            fixed_nsec: 0,
            build_time: 0,
            meta_block: 0,
            xattr_block: 0,
            uuid: [0; 16],
            label: [0; 16],
            algorithms_or_distance: 0,
            extra_devices: 0,
            device_table_slot: 0,
            xattr_prefix_count: 0,
            xattr_prefix_start: 0,
            xattr_filter_reserved: 0,
            digest_prefix: None,
        }
    }

    /// The superblock as it is in an image: 128 bytes and its extension slots.
    ///
    /// The checksum is written as it is here; see [`seal_checksum`](crate::seal_checksum). With
    /// 48BIT the root and the block count take their wide forms only if one of them has to (F59).
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] for a root or a block count that needs 48BIT or more,
    /// [`ErrorKind::SuperblockSize`] for a size that is no number of slots, and
    /// [`ErrorKind::Unwritable`] for a value whose feature bit is not set. What [`Self::parse`]
    /// refuses is refused with the same error.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        if self.incompat.unknown() != 0 {
            return Err(Error::new(ErrorKind::UnknownIncompat(self.incompat.unknown()), 80));
        }
        let places = self.root_and_blocks_fields()?;
        let raw = RawSuperblock {
            magic: SUPERBLOCK_MAGIC.into(),
            checksum: self.checksum.into(),
            feature_compat: self.compat.bits().into(),
            blkszbits: self.block_size.bits(),
            sb_extslots: self.extslots()?,
            rootnid_2b_or_blocks_hi: places.shared.into(),
            inos: self.inodes.into(),
            epoch: self.epoch.into(),
            fixed_nsec: nanoseconds(self.fixed_nsec)?.into(),
            blocks_lo: low_half(self.blocks).into(),
            meta_blkaddr: self.meta_block.into(),
            xattr_blkaddr: self.xattr_block.into(),
            uuid: self.uuid,
            volume_name: self.label,
            feature_incompat: self.incompat.bits().into(),
            algorithms_or_distance: self.algorithms_or_distance.into(),
            extra_devices: self.extra_devices_field()?.into(),
            devt_slotoff: self.device_table_slot.into(),
            dirblkbits: 0,
            xattr_prefix_count: self.xattr_prefix_count,
            xattr_prefix_start: self.xattr_prefix_start.into(),
            packed_nid: self.packed_field()?.into(),
            xattr_filter_reserved: self.xattr_filter_reserved,
            ishare_xattr_prefix_id: self.digest_field()?,
            _reserved: [0; 2],
            build_time: self.build_time.into(),
            rootnid_8b: places.wide_root.into(),
            _reserved2: 0.into(),
        };
        let mut bytes = raw.as_bytes().to_vec();
        bytes.resize(usize::from(self.bytes), 0);
        if let Some(nid) = self.metabox_field()? {
            let field = bytes.get_mut(METABOX_NID_OFFSET..METABOX_NID_OFFSET | 8);
            let field = field
                .ok_or(Error::new(ErrorKind::MissingMetaboxSlot, to_u64(METABOX_NID_OFFSET)))?;
            field.copy_from_slice(&nid.to_le_bytes());
        }
        Ok(bytes)
    }

    fn root_and_blocks_fields(&self) -> Result<RootAndBlocks> {
        let root = self.root.raw();
        let is_narrow = root >> NARROW_ROOT_BITS == 0 && self.blocks >> NARROW_BLOCKS_BITS == 0;
        if is_narrow || !self.incompat.has(Incompat::BIT48) {
            fit::<u32>(self.blocks, "the block count without 48BIT", 36)?;
            let shared = fit(root, "the root nid without 48BIT", 14)?;
            return Ok(RootAndBlocks { shared, wide_root: 0 });
        }
        if root == 0 {
            return Err(Error::new(ErrorKind::Unwritable("a root of nid 0 in a wide image"), 112));
        }
        let shared =
            fit(self.blocks >> NARROW_BLOCKS_BITS, "the high half of the block count", 14)?;
        Ok(RootAndBlocks { shared, wide_root: root })
    }

    fn extslots(&self) -> Result<u8> {
        let wrong = Error::new(ErrorKind::SuperblockSize(self.bytes), 13);
        let slots = self.bytes.checked_sub(BASE_BYTES).ok_or(wrong.clone())?;
        if slots % EXTSLOT_BYTES != 0 || self.bytes > MAX_BYTES {
            return Err(wrong);
        }
        u8::try_from(slots / EXTSLOT_BYTES).map_err(|_| wrong)
    }

    fn extra_devices_field(&self) -> Result<u16> {
        if self.extra_devices != 0 && !self.incompat.has(Incompat::DEVICE_TABLE) {
            return Err(Error::new(ErrorKind::Unwritable("devices without DEVICE_TABLE"), 86));
        }
        Ok(self.extra_devices)
    }

    fn packed_field(&self) -> Result<u64> {
        match self.packed {
            Some(nid) if nid.is_in_metabox() => {
                Err(Error::new(ErrorKind::NidInMetabox("packed inode"), 96))
            }
            Some(nid) if nid.raw() == 0 => {
                Err(Error::new(ErrorKind::Unwritable("a packed inode of nid 0"), 96))
            }
            Some(nid) => Ok(nid.raw()),
            None => Ok(0),
        }
    }

    fn metabox_field(&self) -> Result<Option<u64>> {
        let nid = self.metabox.filter(|_| self.incompat.has(Incompat::METABOX));
        if nid.is_some_and(Nid::is_in_metabox) {
            return Err(Error::new(ErrorKind::NidInMetabox("metabox inode"), 128));
        }
        if self.metabox.is_some() != self.incompat.has(Incompat::METABOX) {
            return Err(Error::new(ErrorKind::Unwritable("a metabox without METABOX"), 128));
        }
        Ok(nid.map(Nid::raw))
    }

    fn digest_field(&self) -> Result<u8> {
        if self.digest_prefix.is_some() != self.compat.has(Compat::ISHARE_XATTRS) {
            let what = "a digest prefix without ISHARE_XATTRS, or ISHARE_XATTRS without one";
            return Err(Error::new(ErrorKind::Unwritable(what), 105));
        }
        match self.digest_prefix {
            Some(id) if id >= self.xattr_prefix_count => {
                Err(Error::new(ErrorKind::DigestPrefix(id), 105))
            }
            id => Ok(id.unwrap_or(0)),
        }
    }

    /// Reads the superblock from `bytes`, which start at [`SUPERBLOCK_OFFSET`] of the image.
    ///
    /// The checksum is not compared here, since it covers bytes after the superblock: see
    /// [`superblock_checksum`](crate::superblock_checksum).
    ///
    /// # Errors
    /// Too few bytes, another magic, a block size out of range, unknown incompatible features, or
    /// fields that contradict each other.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let raw: &RawSuperblock = view(bytes)?;
        if raw.magic.get() != SUPERBLOCK_MAGIC {
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
    pub fn implied_compression(&self) -> CompressionConfig {
        if self.incompat.has(Incompat::COMPR_CFGS) {
            CompressionConfig::default()
        } else {
            CompressionConfig::lz4_only(self.algorithms_or_distance)
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

/// The fields that share bytes (F7).
struct RootAndBlocks {
    /// `rootnid_2b`, or the high half of the block count.
    shared: u16,
    /// 0 unless the root is here.
    wide_root: u64,
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
    use proptest::prelude::*;

    use super::*;

    fn image() -> [u8; 144] {
        let mut bytes = [0u8; 144];
        bytes[..4].copy_from_slice(&SUPERBLOCK_MAGIC.to_le_bytes());
        bytes[12] = 12;
        bytes[14] = 36;
        bytes
    }

    proptest! {
        #[test]
        fn a_superblock_is_read_as_it_was_written(
            sizes in (9u8..=16, 0u8..=183),
            features in (0u32..0x40, 0u32..0x200),
            nids in (any::<u64>(), any::<u64>(), 0u64..1 << 48, any::<bool>()),
            times in (any::<i64>(), 0u32..1_000_000_000, any::<u32>()),
            small in any::<[u8; 36]>(),
            words in any::<[u32; 4]>(),
        ) {
            let mut sb = Superblock::new(BlockSize::from_bits(sizes.0).unwrap());
            sb.bytes = 128 + 16 * u16::from(sizes.1.max(1));
            (sb.compat, sb.incompat) = (Compat::new(features.0), Incompat::new(features.1));
            let is_wide = nids.3 && sb.incompat.has(Incompat::BIT48);
            sb.root = Nid::new(if is_wide { nids.0.max(1) } else { nids.0 & 0xffff });
            sb.blocks = if is_wide { nids.2 } else { nids.2 & 0xffff_ffff };
            sb.packed = Some(Nid::new(nids.1 >> 1)).filter(|nid| nid.raw() != 0);
            sb.metabox = Some(Nid::new(nids.0 >> 1)).filter(|_| sb.incompat.has(Incompat::METABOX));
            (sb.epoch, sb.fixed_nsec, sb.build_time) = times;
            sb.uuid.copy_from_slice(&small[..16]);
            sb.label.copy_from_slice(&small[16..32]);
            sb.xattr_prefix_count = small[32].max(1);
            let id = small[33] % sb.xattr_prefix_count;
            sb.digest_prefix = Some(id).filter(|_| sb.compat.has(Compat::ISHARE_XATTRS));
            sb.xattr_filter_reserved = small[34];
            sb.algorithms_or_distance = (words[0] & 0xffff) as u16;
            sb.device_table_slot = (words[0] >> 16) as u16;
            sb.extra_devices = if sb.incompat.has(Incompat::DEVICE_TABLE) { words[1] as u16 } else { 0 };
            sb.meta_block = words[1].cast_signed();
            (sb.xattr_block, sb.xattr_prefix_start, sb.checksum) = (words[2], words[3], words[0]);
            sb.inodes = nids.1;
            let bytes = sb.to_bytes().unwrap();
            prop_assert_eq!(bytes.len(), usize::from(sb.bytes));
            prop_assert_eq!(Superblock::parse(&bytes).unwrap(), sb);
        }
    }

    #[test]
    fn a_new_superblock_is_whole() {
        let sb = Superblock::new(BlockSize::from_bits(12).unwrap());
        assert_eq!(Superblock::parse(&sb.to_bytes().unwrap()).unwrap(), sb);
    }

    #[test]
    fn a_value_without_its_feature_is_refused() {
        let refused = |change: &dyn Fn(&mut Superblock)| {
            let mut sb = Superblock::new(BlockSize::from_bits(12).unwrap());
            change(&mut sb);
            sb.to_bytes().unwrap_err().into_kind()
        };
        let is_refused = |change| matches!(refused(change), ErrorKind::Unwritable(_));
        assert!(is_refused(&|sb| sb.extra_devices = 1));
        assert!(is_refused(&|sb| sb.metabox = Some(Nid::new(1))));
        assert!(is_refused(&|sb| sb.digest_prefix = Some(0)));
        assert!(is_refused(&|sb| sb.packed = Some(Nid::new(0))));
        let is_too_large = |change| matches!(refused(change), ErrorKind::TooLarge { .. });
        assert!(is_too_large(&|sb| sb.root = Nid::new(65536)));
        assert!(is_too_large(&|sb| sb.blocks = 1 << 32));
        let in_metabox = Nid::new(1 << 63 | 5);
        assert!(is_too_large(&|sb| sb.root = in_metabox));
        let packed = refused(&|sb| sb.packed = Some(in_metabox));
        assert_eq!(packed, ErrorKind::NidInMetabox("packed inode"));
        assert_eq!(refused(&|sb| sb.bytes = 130), ErrorKind::SuperblockSize(130));
        assert_eq!(refused(&|sb| sb.bytes = 112), ErrorKind::SuperblockSize(112));
        assert_eq!(refused(&|sb| sb.bytes = 3088), ErrorKind::SuperblockSize(3088));
        assert_eq!(
            refused(&|sb| sb.fixed_nsec = 1_000_000_000),
            ErrorKind::Nanoseconds(1_000_000_000)
        );
        assert_eq!(
            refused(&|sb| sb.incompat = Incompat::new(0x400)),
            ErrorKind::UnknownIncompat(0x400)
        );
        let no_slot = refused(&|sb| {
            sb.incompat = Incompat::new(Incompat::METABOX);
            sb.metabox = Some(Nid::new(1));
        });
        assert_eq!(no_slot, ErrorKind::MissingMetaboxSlot);
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
