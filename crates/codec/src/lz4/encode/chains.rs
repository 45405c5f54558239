//! Where the same four bytes were before: a table of the last positions, and for each position the
//! way to the one before it.

use super::block::{MATCH_MIN, common, word};
use super::table;
use crate::error::ErrorKind;

const TABLE_BITS: u32 = 15;
/// As far as a distance can tell.
const CHAIN: usize = 1 << 16;

pub(super) const BYTES: usize = (1 << TABLE_BITS) * size_of::<u32>() + CHAIN * size_of::<u16>();

/// Positions by their bytes.
pub(super) struct HashChains {
    /// The last position of a hash, plus one; 0 is none.
    table: Box<[u32]>,
    /// By the low bits of a position, the distance to the one before in its chain; 0 is none.
    chain: Box<[u16]>,
    /// Where the next position to insert is.
    next: usize,
}

/// How far to look.
#[derive(Clone, Copy, Debug)]
pub(super) struct SearchLimits {
    pub(super) attempts: usize,
    pub(super) max_distance: usize,
}

impl HashChains {
    pub(super) fn new() -> Result<Self, ErrorKind> {
        Ok(Self { table: table(1 << TABLE_BITS)?, chain: table(CHAIN)?, next: 0 })
    }

    /// Forgets all positions. What the chains hold is not reached from an empty table.
    pub(super) fn clear(&mut self) {
        self.table.fill(0);
        self.next = 0;
    }

    /// The longest match at `at` that ends at `end` or before, as length and distance; the nearest
    /// of equally long ones. Positions are asked for in ascending order.
    pub(super) fn longest(
        &mut self,
        input: &[u8],
        at: usize,
        end: usize,
        limits: SearchLimits,
    ) -> (usize, u16) {
        self.insert_to(input, at);
        let mut entry = self.table[hash(input, at)] as usize;
        let (mut longest, mut nearest) = (MATCH_MIN - 1, 0);
        let bytes = word(input, at);
        for _ in 0..limits.attempts {
            let Some(earlier) = entry.checked_sub(1) else { break };
            let distance = at - earlier;
            if distance > limits.max_distance {
                break;
            }
            // A longer match agrees in the byte behind the longest so far.
            if input[earlier + longest] == input[at + longest] && word(input, earlier) == bytes {
                let length = MATCH_MIN + common(input, earlier + MATCH_MIN, at + MATCH_MIN, end);
                if length > longest {
                    (longest, nearest) = (length, distance);
                    if at + length >= end {
                        break;
                    }
                }
            }
            let step = usize::from(self.chain[earlier % CHAIN]);
            if step == 0 {
                break;
            }
            entry = entry.saturating_sub(step);
        }
        (longest, u16::try_from(nearest).unwrap_or(0))
    }

    fn insert_to(&mut self, input: &[u8], end: usize) {
        for at in self.next..end {
            let slot = &mut self.table[hash(input, at)];
            // Inputs are at most 12 MiB long.
            let entry = u32::try_from(at + 1).unwrap_or(0);
            let before = std::mem::replace(slot, entry);
            let step = if before == 0 { 0 } else { entry - before };
            self.chain[at % CHAIN] = u16::try_from(step).unwrap_or(0);
        }
        self.next = self.next.max(end);
    }
}

#[inline]
fn hash(input: &[u8], at: usize) -> usize {
    (word(input, at).wrapping_mul(2_654_435_761) >> (32 - TABLE_BITS)) as usize
}
