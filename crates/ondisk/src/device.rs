//! The device table: blobs that hold data beside the image (docs/format.md F8).

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bytes::{fit, low_half, view};
use crate::error::Result;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
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

    /// The slot as it is in the device table: 128 bytes. Only with 48-bit addresses (`wide`)
    /// do the numbers have high halves.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`](crate::ErrorKind::TooLarge) for a number of more than 32 bits, or of
    /// more than 48.
    pub fn to_bytes(&self, wide: bool) -> Result<Vec<u8>> {
        let high = |value: u64, field, at| {
            if wide { fit(value >> 32, field, at) } else { fit::<u32>(value, field, at).map(|_| 0) }
        };
        let blocks_hi: u16 = high(self.blocks, "the size of a device", 64)?;
        let uniaddr_hi: u16 = high(self.unified_block, "the address of a device", 68)?;
        let raw = RawSlot {
            tag: self.tag,
            blocks_lo: low_half(self.blocks).into(),
            uniaddr_lo: low_half(self.unified_block).into(),
            blocks_hi: blocks_hi.into(),
            uniaddr_hi: uniaddr_hi.into(),
            _reserved: [0; 52],
        };
        Ok(raw.as_bytes().to_vec())
    }

    /// The tag up to its first NUL.
    #[must_use]
    pub fn tag_text(&self) -> &[u8] {
        self.tag.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_slot_is_read_as_it_was_written(blocks: u64, address: u64, byte: u8, wide: bool) {
            let mut slot = DeviceSlot {
                tag: [byte; 64],
                blocks: blocks >> 16,
                unified_block: address >> 16,
            };
            if !wide {
                prop_assert_eq!(slot.to_bytes(false).is_ok(), (blocks | address) >> 48 == 0);
                (slot.blocks, slot.unified_block) = (blocks >> 32, address >> 32);
            }
            let bytes = slot.to_bytes(wide).unwrap();
            prop_assert_eq!(bytes.len(), 128);
            prop_assert_eq!(DeviceSlot::parse(&bytes, wide).unwrap(), slot);
        }
    }

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
