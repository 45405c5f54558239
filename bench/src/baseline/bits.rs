//! Bitmaps of any length for the baselines: one bit a slot, in words that all workers share.

use crate::sync::{AtomicU64, Ordering, placed};

/// Bits in a word.
const WORD_BITS: usize = 64;

/// A bitmap.
#[derive(Debug)]
pub(crate) struct Bits(Box<[AtomicU64]>);

impl Bits {
    pub(crate) fn new(bits: usize) -> Self {
        let words: Box<[_]> = (0..bits.div_ceil(WORD_BITS)).map(|_| AtomicU64::new(0)).collect();
        placed(&words);
        Self(words)
    }

    /// The word of that number. Acquire pairs with both ways to turn a bit.
    pub(crate) fn word(&self, number: usize) -> u64 {
        self.0.get(number).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Turns a bit that only one thread ever turns, without a locked instruction.
    pub(crate) fn turn_alone(&self, bit: usize) {
        if let Some(word) = self.0.get(bit / WORD_BITS) {
            // Relaxed: this thread wrote it last. Release pairs with `word`.
            let turned = word.load(Ordering::Relaxed) ^ (1 << (bit % WORD_BITS));
            word.store(turned, Ordering::Release);
        }
    }

    /// Turns a bit in a word where others turn bits, too.
    pub(crate) fn turn_shared(&self, bit: usize) {
        if let Some(word) = self.0.get(bit / WORD_BITS) {
            // As strong as QEMU's change_bit_atomic; pairs with `word`.
            word.fetch_xor(1 << (bit % WORD_BITS), Ordering::SeqCst);
        }
    }
}

/// The first bit of `from..to` that is one in the words that `word` gives.
pub(crate) fn first_one(from: usize, to: usize, word: impl Fn(usize) -> u64) -> Option<usize> {
    let mut start = from;
    while start < to {
        let number = start / WORD_BITS;
        let above = word(number) & (u64::MAX << (start % WORD_BITS));
        if above != 0 {
            let bit = number * WORD_BITS + usize::try_from(above.trailing_zeros()).ok()?;
            return (bit < to).then_some(bit);
        }
        start = (number + 1) * WORD_BITS;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{Bits, first_one};

    #[test]
    fn the_first_one_is_found_across_words_and_within_bounds() {
        let bits = Bits::new(200);
        for bit in [3, 64, 130] {
            bits.turn_alone(bit);
        }
        bits.turn_shared(64);
        let find = |from, to| first_one(from, to, |number| bits.word(number));
        assert_eq!(find(0, 200), Some(3));
        assert_eq!(find(4, 200), Some(130));
        assert_eq!(find(4, 130), None);
        assert_eq!(find(130, 131), Some(130));
        assert_eq!(find(7, 7), None);
    }
}
