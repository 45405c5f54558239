//! The device table: blobs that hold data beside the image (docs/format.md F8).

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::bytes::view;
use crate::error::Result;

#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSlot {
    tag: [u8; 64],
    blocks_lo: U32,
    uniaddr_lo: U32,
    blocks_hi: U16,
    uniaddr_hi: U16,
    _reserved: [u8; 52],
}

/// One extra device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSlot {
    /// A name or digest, padded with zeros.
    pub tag: [u8; 64],
    /// How many blocks the device has.
    pub blocks: u64,
    /// Its first block in the unified address space; 0 if it has no place there.
    pub unified_block: u64,
}

impl DeviceSlot {
    /// Bytes of a slot, and the unit of `devt_slotoff`, whatever the block size.
    pub const BYTES: u64 = 128;

    /// Reads one slot; the high halves count only with 48-bit addresses (`wide`).
    ///
    /// # Errors
    /// [`ErrorKind::Truncated`](crate::ErrorKind::Truncated) below 128 bytes.
    pub fn parse(bytes: &[u8], wide: bool) -> Result<Self> {
        let raw: &RawSlot = view(bytes)?;
        let join = |lo: U32, hi: U16| {
            let hi = if wide { u64::from(hi.get()) } else { 0 };
            u64::from(lo.get()) | hi << 32
        };
        Ok(Self {
            tag: raw.tag,
            blocks: join(raw.blocks_lo, raw.blocks_hi),
            unified_block: join(raw.uniaddr_lo, raw.uniaddr_hi),
        })
    }

    /// The tag up to its first NUL.
    #[must_use]
    pub fn tag_text(&self) -> &[u8] {
        self.tag.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn high_halves_count_only_with_48_bits() {
        let mut bytes = [0u8; 128];
        bytes[0] = b'x';
        bytes[64] = 5;
        bytes[68] = 9;
        bytes[72] = 1;
        bytes[74] = 2;
        let narrow = DeviceSlot::parse(&bytes, false).unwrap();
        assert_eq!((narrow.blocks, narrow.unified_block), (5, 9));
        let wide = DeviceSlot::parse(&bytes, true).unwrap();
        assert_eq!((wide.blocks, wide.unified_block), (5 | 1 << 32, 9 | 2 << 32));
        assert_eq!(wide.tag_text(), b"x");
        assert!(DeviceSlot::parse(&bytes[..127], true).is_err());
    }
}
