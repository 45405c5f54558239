//! The range decoder: single bits, and the contract of the two implementations that decode groups
//! of bits without a branch on any of them.
#![allow(unsafe_code, reason = "reads input and probabilities without a check for each bit")]

/// A probability moves by the 32nd part of what is missing.
pub(super) const MOVE_BITS: u32 = 5;
/// The logarithm of the parts of a range that probabilities count.
pub(super) const BIT_MODEL_TOTAL_LOG: u32 = 11;
/// A certain zero.
pub(super) const BIT_MODEL_TOTAL: u16 = 1 << BIT_MODEL_TOTAL_LOG;
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
            let bound = (self.range >> BIT_MODEL_TOTAL_LOG) * u32::from(chance);
            if self.code < bound {
                self.range = bound;
                *probability = chance + ((BIT_MODEL_TOTAL - chance) >> MOVE_BITS);
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

/// A literal, and what is known of it early.
#[derive(Clone, Copy, Debug)]
pub(super) struct Literal {
    /// The byte, with any bits above it.
    pub(super) symbol: u32,
    /// The byte but for its lowest bit, which may be zero instead. No context of a literal depends
    /// on that bit, so the next one need not wait for it.
    pub(super) early: u32,
}

/// How groups of bits are decoded.
///
/// Everywhere, a tree of n bits is 1 << n probabilities, of which the first is never used.
pub(super) trait BitTrees {
    /// A tree of `BITS` bits, 3, 6 or 8, the highest first; there is a one in front of the result.
    ///
    /// # Safety
    ///
    /// `range.next` points at `BITS` bytes, and `tree` at such a tree that nobody else uses.
    unsafe fn tree<const BITS: u32>(range: &mut RangeDecoder, tree: *mut u16) -> u32;

    /// A literal behind a literal: a tree of 8 bits.
    ///
    /// # Safety
    ///
    /// `range.next` points at 8 bytes, and `tree` at such a tree that nobody else uses.
    unsafe fn literal(range: &mut RangeDecoder, tree: *mut u16) -> Literal;

    /// A literal behind a match, whose bits are likely those of `suggested`.
    ///
    /// While the bits agree with those of `suggested`, the trees behind the first are used: the
    /// second where a zero is suggested and the third where a one is.
    ///
    /// # Safety
    ///
    /// `range.next` points at 8 bytes, and `trees` at three trees of 8 bits that nobody else uses.
    unsafe fn matched(range: &mut RangeDecoder, trees: *mut u16, suggested: u8) -> Literal;

    /// A tree of `bits` bits, 1 to 5, the lowest first.
    ///
    /// # Safety
    ///
    /// `range.next` points at `bits` bytes, and `tree` at such a tree that nobody else uses; twice
    /// its length can be read.
    unsafe fn reverse(range: &mut RangeDecoder, tree: *mut u16, bits: u32) -> u32;

    /// As `reverse`, with four bits.
    ///
    /// # Safety
    ///
    /// As for `reverse`.
    unsafe fn reverse_4(range: &mut RangeDecoder, tree: *mut u16) -> u32;

    /// `count` bits of even chance, at least one, the highest first, behind those of `number`.
    ///
    /// # Safety
    ///
    /// `range.next` points at `count` bytes.
    unsafe fn direct_bits(range: &mut RangeDecoder, number: u32, count: u32) -> u32;
}
