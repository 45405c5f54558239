//! Groups of bits that are decoded without a branch on any of them: the contract of the two
//! implementations, `trees_x86_64` and `trees_portable`.
#![allow(unsafe_code, reason = "reads input and probabilities without a check for each bit")]

use super::range::RangeDecoder;

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
    unsafe fn even_bits(range: &mut RangeDecoder, number: u32, count: u32) -> u32;
}
