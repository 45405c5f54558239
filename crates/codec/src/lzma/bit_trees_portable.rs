//! Groups of bits without branches, in plain Rust: for other processors, and as the twin in tests.
#![allow(unsafe_code, reason = "reads input and probabilities without a check for each bit")]

use super::range_decoder::{
    BIT_MODEL_TOTAL, BIT_MODEL_TOTAL_LOG, BitTrees, Literal, MOVE_BITS, RangeDecoder,
};

/// For every processor.
pub(super) struct Portable;

impl Portable {
    /// Decodes a bit without a branch on it: all ones for a one.
    ///
    /// # Safety
    ///
    /// As for [`RangeDecoder::bit`].
    #[inline(always)]
    unsafe fn mask(range: &mut RangeDecoder, probability: *mut u16) -> u32 {
        // SAFETY: the caller promises both.
        unsafe {
            range.normalize();
            let chance = *probability;
            let bound = (range.range >> BIT_MODEL_TOTAL_LOG) * u32::from(chance);
            let is_one = range.code >= bound;
            let mask = u32::from(is_one).wrapping_neg();
            range.range = bound ^ ((bound ^ (range.range - bound)) & mask);
            range.code -= bound & mask;
            let short_mask = u16::from(is_one).wrapping_neg();
            let up = (BIT_MODEL_TOTAL - chance) >> MOVE_BITS & !short_mask;
            let down = chance >> MOVE_BITS & short_mask;
            *probability = chance + up - down;
            mask
        }
    }
}

impl BitTrees for Portable {
    #[inline(always)]
    unsafe fn tree<const BITS: u32>(range: &mut RangeDecoder, tree: *mut u16) -> u32 {
        let mut symbol = 1_u32;
        for _ in 0..BITS {
            // SAFETY: the symbol has at most BITS bits here, so it is inside the tree; each turn
            // takes in a byte at most.
            let mask = unsafe { Self::mask(range, tree.add(symbol as usize)) };
            symbol = (symbol << 1).wrapping_sub(mask);
        }
        symbol
    }

    #[inline(always)]
    unsafe fn literal(range: &mut RangeDecoder, tree: *mut u16) -> Literal {
        // SAFETY: the caller promises what `tree` asks for.
        let symbol = unsafe { Self::tree::<8>(range, tree) };
        Literal { symbol, early: symbol & 0xFF }
    }

    #[inline(always)]
    unsafe fn matched(range: &mut RangeDecoder, trees: *mut u16, suggested: u8) -> Literal {
        let mut symbol = 1_u32;
        let mut agreeing = 0x100_u32;
        let mut suggested = u32::from(suggested);
        for _ in 0..8 {
            suggested <<= 1;
            let bit = suggested & agreeing;
            let index = agreeing + bit + symbol;
            // SAFETY: agreeing and bit are 0 or 0x100, and symbol is below 0x100, so the index is
            // below 0x300; each turn takes in a byte at most.
            let mask = unsafe { Self::mask(range, trees.add(index as usize)) };
            symbol = (symbol << 1).wrapping_sub(mask);
            agreeing &= !(bit ^ mask);
        }
        Literal { symbol, early: symbol & 0xFF }
    }

    #[inline(always)]
    unsafe fn reverse(range: &mut RangeDecoder, tree: *mut u16, bits: u32) -> u32 {
        let mut number = 0;
        let mut symbol = 1_u32;
        for bit in 0..bits {
            // SAFETY: as in `tree`.
            let mask = unsafe { Self::mask(range, tree.add(symbol as usize)) };
            symbol = (symbol << 1).wrapping_sub(mask);
            number += mask & (1 << bit);
        }
        number
    }

    #[inline(always)]
    unsafe fn reverse_4(range: &mut RangeDecoder, tree: *mut u16) -> u32 {
        // SAFETY: the caller promises what `reverse` asks for.
        unsafe { Self::reverse(range, tree, 4) }
    }

    #[inline(always)]
    unsafe fn direct_bits(range: &mut RangeDecoder, mut number: u32, count: u32) -> u32 {
        for _ in 0..count {
            // SAFETY: each turn takes in a byte at most.
            unsafe { range.normalize() };
            range.range >>= 1;
            let is_one = range.code >= range.range;
            range.code -= range.range & u32::from(is_one).wrapping_neg();
            number = number << 1 | u32::from(is_one);
        }
        number
    }
}
