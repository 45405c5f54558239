//! Addresses: node ids, and the block size that turns block numbers into bytes.
//!
//! All arithmetic on numbers that an image chose is checked here once.

use std::fmt;

use crate::error::{Error, ErrorKind, Result};

/// The number of an inode: its place in the metadata area, in slots of 32 bytes.
///
/// Bit 63 says that the slot is inside the decoded metabox file instead of the image itself
/// (docs/format.md F9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nid(u64);

impl Nid {
    const METABOX_BIT: u64 = 1 << 63;
    const SLOT_BYTES: u64 = 32;

    /// The nid with this raw value, as a dirent or the superblock holds it.
    #[must_use]
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// The nid of the inode in this slot of the metabox file, of which bit 63 has no meaning.
    #[must_use]
    pub const fn in_metabox(slot: u64) -> Self {
        Self(slot | Self::METABOX_BIT)
    }

    /// The raw value, metabox bit included.
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// Whether the inode is inside the metabox file.
    #[must_use]
    pub const fn is_in_metabox(self) -> bool {
        self.0 & Self::METABOX_BIT != 0
    }

    /// Bytes from the start of the area that holds the inode, or `None` past 2^64.
    #[must_use]
    pub const fn byte_offset(self) -> Option<u64> {
        (self.0 & !Self::METABOX_BIT).checked_mul(Self::SLOT_BYTES)
    }
}

impl fmt::Display for Nid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slot = self.0 & !Self::METABOX_BIT;
        if self.is_in_metabox() { write!(f, "{slot} (metabox)") } else { write!(f, "{slot}") }
    }
}

/// The block size of an image: a power of two from 512 to 65,536 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSize {
    bits: u8,
}

impl BlockSize {
    /// The smallest shift: blocks of 512 bytes.
    pub const MIN_BITS: u8 = 9;
    /// The largest shift: blocks of 64 KiB.
    pub const MAX_BITS: u8 = 16;

    /// The block size with this shift (superblock field `blkszbits`).
    ///
    /// # Errors
    /// [`ErrorKind::BlockSize`] outside 9..=16.
    pub const fn from_bits(bits: u8) -> Result<Self> {
        if bits < Self::MIN_BITS || bits > Self::MAX_BITS {
            return Err(Error::new(ErrorKind::BlockSize(bits), 12));
        }
        Ok(Self { bits })
    }

    /// The shift.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.bits
    }

    /// The size in bytes.
    #[must_use]
    pub fn bytes(self) -> u32 {
        1u32.wrapping_shl(u32::from(self.bits))
    }

    fn mask(self) -> u64 {
        u64::from(self.bytes()).wrapping_sub(1)
    }

    /// The byte at which `block` starts, or `None` past 2^64.
    #[must_use]
    pub fn offset_of(self, block: u64) -> Option<u64> {
        block.checked_mul(u64::from(self.bytes()))
    }

    /// How far `offset` is inside its block.
    #[must_use]
    pub fn within(self, offset: u64) -> u32 {
        // The mask is below 2^16, so the conversion cannot fail.
        u32::try_from(offset & self.mask()).unwrap_or(0)
    }

    /// `offset` rounded down to the start of its block.
    #[must_use]
    pub fn floor(self, offset: u64) -> u64 {
        offset & !self.mask()
    }

    /// How many blocks hold `bytes` bytes.
    #[must_use]
    pub fn count(self, bytes: u64) -> u64 {
        let whole = bytes.wrapping_shr(u32::from(self.bits));
        whole.saturating_add(u64::from(bytes & self.mask() != 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metabox_nid_keeps_its_slot() {
        let nid = Nid::new((1 << 63) | 5);
        assert_eq!(nid, Nid::in_metabox(5));
        assert!(nid.is_in_metabox());
        assert_eq!(nid.byte_offset(), Some(160));
        assert_eq!(nid.to_string(), "5 (metabox)");
    }

    #[test]
    fn a_nid_past_the_address_space_has_no_offset() {
        assert_eq!(Nid::new(1 << 62).byte_offset(), None);
    }

    #[test]
    fn blocks_round_as_their_size_says() {
        let size = BlockSize::from_bits(9).unwrap();
        assert_eq!(size.bytes(), 512);
        assert_eq!(size.floor(1023), 512);
        assert_eq!(size.within(1023), 511);
        assert_eq!(size.count(0), 0);
        assert_eq!(size.count(513), 2);
        assert_eq!(size.count(u64::MAX), 1 << 55);
        assert!(BlockSize::from_bits(8).is_err());
        assert!(BlockSize::from_bits(17).is_err());
    }
}
