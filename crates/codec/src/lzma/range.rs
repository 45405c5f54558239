//! The range decoder, one bit at a time. BitTrees of bits are in `trees`.
#![allow(unsafe_code, reason = "reads input and probabilities without a check for each bit")]

/// A probability moves by the 32nd part of what is missing.
pub(super) const MOVE_BITS: u32 = 5;
/// The logarithm of the parts of a range that probabilities count.
pub(super) const PARTS_LOG: u32 = 11;
/// A certain zero.
pub(super) const PARTS: u16 = 1 << PARTS_LOG;
/// A range below this takes in a byte before it is divided.
pub(super) const RANGE_MIN: u32 = 1 << 24;

/// The range decoder, and where it stands in its input.
#[derive(Clone, Copy)]
pub(super) struct RangeDecoder {
    pub(super) range: u32,
    pub(super) code: u32,
    /// The next byte of the input.
    pub(super) next: *const u8,
}

impl RangeDecoder {
    /// Takes in a byte if the range has become small.
    ///
    /// # Safety
    ///
    /// `next` points at a byte.
    #[inline(always)]
    pub(super) unsafe fn normalize(&mut self) {
        if self.range < RANGE_MIN {
            self.range <<= 8;
            // SAFETY: the caller promises a byte, so the address behind it is in its piece or one
            // past the end.
            unsafe {
                self.code = self.code << 8 | u32::from(*self.next);
                self.next = self.next.add(1);
            }
        }
    }

    /// Decodes a bit that the caller will branch on.
    ///
    /// Its two outcomes stay two paths up to that branch, so that a bit that the processor predicts
    /// costs no wait for the comparison.
    ///
    /// # Safety
    ///
    /// `next` points at a byte, and `probability` at a probability that nobody else uses.
    #[inline(always)]
    pub(super) unsafe fn bit(&mut self, probability: *mut u16) -> bool {
        // SAFETY: the caller promises both.
        unsafe {
            self.normalize();
            let chance = *probability;
            let bound = (self.range >> PARTS_LOG) * u32::from(chance);
            if self.code < bound {
                self.range = bound;
                *probability = chance + ((PARTS - chance) >> MOVE_BITS);
                false
            } else {
                self.range -= bound;
                self.code -= bound;
                *probability = chance - (chance >> MOVE_BITS);
                true
            }
        }
    }
}
