//! LZ4 in one greedy pass with a table of the last positions, for distances below the library's.
//! Its steps grow while it finds nothing, so that it is fast on input that cannot be compressed.

use super::block_writer::{
    BlockWriter, LAST_LITERALS, LAST_MATCH_BYTES, Lz4Match, MATCH_MIN, common, word, zeroed_table,
};
use crate::error::ErrorKind;
use crate::stream::EncodedSizes;

/// Two to this power positions are kept.
const TABLE_BITS: u32 = 13;
/// After two to this power failures the step grows by one.
const STEP_BITS: u32 = 6;

pub(super) const BYTES: usize = (1 << TABLE_BITS) * size_of::<u32>();

/// The table, and how far a match may reach.
pub(super) struct GreedyEncoder {
    /// The last position of a hash, plus one; 0 is none.
    table: Box<[u32]>,
    max_distance: u16,
}

impl GreedyEncoder {
    pub(super) fn new(max_distance: u16) -> Result<Self, ErrorKind> {
        Ok(Self { table: zeroed_table(1 << TABLE_BITS)?, max_distance })
    }

    pub(super) fn fill(&mut self, input: &[u8], output: &mut [u8]) -> EncodedSizes {
        self.table.fill(0);
        let mut block = BlockWriter::new(input, output);
        if let Some(last) = input.len().checked_sub(LAST_MATCH_BYTES) {
            let mut at = 1;
            self.see(input, 0);
            while let Some(found) = self.search(input, at, last, block.taken()) {
                if !block.push(found) {
                    break;
                }
                at = found.at + found.length;
                self.see(input, at - 2);
            }
        }
        block.finish()
    }

    /// The first match from `at` on that starts at `last` or before, and behind `anchor`.
    fn search(&mut self, input: &[u8], at: usize, last: usize, anchor: usize) -> Option<Lz4Match> {
        let end = input.len() - LAST_LITERALS;
        let (mut at, mut failures) = (at, 1_usize << STEP_BITS);
        while at <= last {
            let earlier = self.see(input, at);
            if let Some((earlier, distance)) = self.near(earlier, at)
                && word(input, earlier) == word(input, at)
            {
                let length = MATCH_MIN + common(input, earlier + MATCH_MIN, at + MATCH_MIN, end);
                let before = input[..earlier].iter().rev().zip(input[anchor..at].iter().rev());
                let back = before.take_while(|(left, right)| left == right).count();
                return Some(Lz4Match { at: at - back, distance, length: length + back });
            }
            at += failures >> STEP_BITS;
            failures += 1;
        }
        None
    }

    /// Puts `at` into the table, and returns what was in its place.
    #[inline]
    fn see(&mut self, input: &[u8], at: usize) -> u32 {
        let Some(bytes) = input.get(at..).and_then(<[u8]>::first_chunk) else { return 0 };
        // Five bytes: what agrees in four alone is seldom worth a sequence.
        let hash = (u64::from_le_bytes(*bytes) << 24).wrapping_mul(889_523_592_379);
        let slot = &mut self.table[(hash >> (64 - TABLE_BITS)) as usize];
        // Inputs are at most 12 MiB long.
        std::mem::replace(slot, u32::try_from(at + 1).unwrap_or(0))
    }

    /// The position of an entry and its distance, if there is one within reach.
    #[inline]
    fn near(&self, entry: u32, at: usize) -> Option<(usize, u16)> {
        let earlier = (entry as usize).checked_sub(1)?;
        let distance = u16::try_from(at - earlier).ok()?;
        (distance <= self.max_distance && distance > 0).then_some((earlier, distance))
    }
}
