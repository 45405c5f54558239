//! LZ4 for distances below the library's: in one greedy pass, or by an optimal parse of each chunk of input.
//!
//! The greedy pass has a table of the last positions. Its steps grow while it finds nothing, so that it is fast on input that
//! cannot be compressed.
//!
//! The optimal parse: for each position of a chunk the longest match within the limits is looked up in hash chains.
//! From the end of the chunk back, the cheapest continuation of each position is then known: a
//! literal, or its match at one of its lengths. A match that ends with the chunk is extended beyond
//! it.
#![forbid(unsafe_code)]

use super::block_writer::{
    BlockWriter, LAST_LITERALS, LAST_MATCH_BYTES, Lz4Match, MATCH_MIN, common, more_bytes, word,
    zeroed_table,
};
use crate::error::ErrorKind;
use crate::stream::EncodedSizes;

/// Two to this power positions are kept.
const GREEDY_TABLE_BITS: u32 = 13;
/// After two to this power failures the step grows by one.
const STEP_BITS: u32 = 6;

pub(super) const GREEDY_BYTES: usize = (1 << GREEDY_TABLE_BITS) * size_of::<u32>();

/// The table, and how far a match may reach.
pub(super) struct GreedyEncoder {
    /// The last position of a hash, plus one; 0 is none.
    table: Box<[u32]>,
    max_distance: u16,
}

impl GreedyEncoder {
    pub(super) fn new(max_distance: u16) -> Result<Self, ErrorKind> {
        Ok(Self { table: zeroed_table(1 << GREEDY_TABLE_BITS)?, max_distance })
    }

    pub(super) fn fill(&mut self, input: &[u8], output: &mut [u8]) -> EncodedSizes {
        self.table.fill(0);
        let mut block = BlockWriter::new(input, output);
        if let Some(last) = input.len().checked_sub(LAST_MATCH_BYTES) {
            let mut at = 1;
            self.insert(input, 0);
            while let Some(found) = self.search(input, at, last, block.taken()) {
                if !block.push(found) {
                    break;
                }
                at = found.at + found.length;
                self.insert(input, at - 2);
            }
        }
        block.finish()
    }

    /// The first match from `at` on that starts at `last` or before, and behind `anchor`.
    fn search(&mut self, input: &[u8], at: usize, last: usize, anchor: usize) -> Option<Lz4Match> {
        let end = input.len() - LAST_LITERALS;
        let (mut at, mut failures) = (at, 1_usize << STEP_BITS);
        while at <= last {
            let earlier = self.insert(input, at);
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
    fn insert(&mut self, input: &[u8], at: usize) -> u32 {
        let Some(bytes) = input.get(at..).and_then(<[u8]>::first_chunk) else { return 0 };
        // Five bytes: what agrees in four alone is seldom worth a sequence.
        let hash = (u64::from_le_bytes(*bytes) << 24).wrapping_mul(889_523_592_379);
        let slot = &mut self.table[(hash >> (64 - GREEDY_TABLE_BITS)) as usize];
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

/// Short, as what is found behind the end of the output is found in vain.
const CHUNK_BYTES: usize = 2048;
/// So far behind a chunk its matches are compared, so that they do not seem short near its end.
const BEYOND_BYTES: usize = 64;
/// A match of this length is taken for good, and positions inside it are not looked up.
const GOOD_BYTES: usize = 256;
/// Up to this length all lengths of a match are tried.
const TRIED_BYTES: usize = 32;

pub(super) const OPTIMAL_BYTES: usize = CHAINS_BYTES + CHUNK_BYTES * size_of::<ParseStep>();

/// A position of a chunk.
#[derive(Clone, Copy, Debug, Default)]
struct ParseStep {
    /// The bytes from here to the end of the chunk.
    cost: u32,
    /// The literals in a row that the cheapest continuation starts with.
    literals: u16,
    /// The distance of its longest match.
    distance: u16,
    /// The length of its longest match, then the length that is cheapest; below 4 is a literal.
    length: u16,
}

pub(super) struct OptimalEncoder {
    chains: HashChains,
    steps: Box<[ParseStep]>,
    limits: SearchLimits,
}

impl OptimalEncoder {
    pub(super) fn new(level: u8, max_distance: u16) -> Result<Self, ErrorKind> {
        let attempts = match level {
            1..=3 => 2,
            4..=8 => 1 << (level - 2),
            0 | 9 => 128,
            10 => 256,
            11 => 512,
            _ => 4096,
        };
        let limits = SearchLimits { attempts, max_distance: max_distance.into() };
        Ok(Self { chains: HashChains::new()?, steps: zeroed_table(CHUNK_BYTES)?, limits })
    }

    pub(super) fn fill(&mut self, input: &[u8], output: &mut [u8]) -> EncodedSizes {
        self.chains.clear();
        let mut block = BlockWriter::new(input, output);
        if let Some(last) = input.len().checked_sub(LAST_MATCH_BYTES) {
            let mut start = 0;
            while start <= last {
                let length = CHUNK_BYTES.min(last + 1 - start);
                self.look_up(input, start, length);
                self.weigh(length);
                let Some(end) = self.write(&mut block, input, start, length) else { break };
                start = end;
            }
        }
        block.finish()
    }

    /// Finds the longest match of each position.
    fn look_up(&mut self, input: &[u8], start: usize, length: usize) {
        let end = (start + length + BEYOND_BYTES).min(input.len() - LAST_LITERALS);
        let mut good = (0, 0);
        for (index, step) in self.steps[..length].iter_mut().enumerate() {
            let at = start + index;
            let (length, distance) = match good {
                (length @ MATCH_MIN.., distance) => (length, distance),
                _ if at + MATCH_MIN > end => (0, 0),
                _ => self.chains.longest(input, at, end, self.limits),
            };
            // A chunk and what is beyond it are shorter than what 16 bits count.
            step.length = u16::try_from(length).unwrap_or(0);
            step.distance = distance;
            let goes_on = length >= GOOD_BYTES || good.0 > 0;
            good = if goes_on { (length.saturating_sub(1), distance) } else { (0, 0) };
        }
    }

    /// Finds the cheapest continuation of each position, from the last back.
    fn weigh(&mut self, length: usize) {
        for index in (0..length).rev() {
            let (cost, literals) = match self.steps[..length].get(index + 1) {
                Some(next) => (next.cost, next.literals),
                None => (0, 0),
            };
            let literals = literals + 1;
            let more = more_bytes(literals.into()) - more_bytes(usize::from(literals) - 1);
            let longest = usize::from(self.steps[index].length);
            let mut best = (cost + 1 + u32::try_from(more).unwrap_or(0), 0);
            let short = MATCH_MIN..=longest.min(TRIED_BYTES);
            for tried in short.chain((longest > TRIED_BYTES).then_some(longest)) {
                let behind = self.steps[..length].get(index + tried).map_or(0, |step| step.cost);
                let more = u32::try_from(more_bytes(tried - MATCH_MIN)).unwrap_or(0);
                let cost = 3 + more + behind;
                if cost <= best.0 {
                    best = (cost, tried);
                }
            }
            let step = &mut self.steps[index];
            step.cost = best.0;
            step.literals = if best.1 == 0 { literals } else { 0 };
            step.length = u16::try_from(best.1).unwrap_or(0);
        }
    }

    /// Writes the cheapest way, and returns where it ends; none when the output is full.
    fn write(
        &self,
        block: &mut BlockWriter<'_>,
        input: &[u8],
        start: usize,
        length: usize,
    ) -> Option<usize> {
        let mut index = 0;
        while let Some(step) = self.steps[..length].get(index) {
            let mut matched = usize::from(step.length);
            if matched < MATCH_MIN {
                index += 1;
                continue;
            }
            let (at, distance) = (start + index, step.distance);
            index += matched;
            if index >= length {
                let (end, earlier) = (start + index, start + index - usize::from(distance));
                let more = common(input, earlier, end, input.len() - LAST_LITERALS);
                matched += more;
                index += more;
            }
            if !block.push(Lz4Match { at, distance, length: matched }) {
                return None;
            }
        }
        Some(start + index)
    }
}

const TABLE_BITS: u32 = 15;
/// As far as a distance can reach.
const CHAIN: usize = 1 << 16;

const CHAINS_BYTES: usize = (1 << TABLE_BITS) * size_of::<u32>() + CHAIN * size_of::<u16>();

/// Positions by their bytes.
struct HashChains {
    /// The last position of a hash, plus one; 0 is none.
    table: Box<[u32]>,
    /// By the low bits of a position, the distance to the one before in its chain; 0 is none.
    chain: Box<[u16]>,
    /// Where the next position to insert is.
    next: usize,
}

/// How far to look.
#[derive(Clone, Copy, Debug)]
struct SearchLimits {
    attempts: usize,
    max_distance: usize,
}

impl HashChains {
    fn new() -> Result<Self, ErrorKind> {
        Ok(Self { table: zeroed_table(1 << TABLE_BITS)?, chain: zeroed_table(CHAIN)?, next: 0 })
    }

    /// Forgets all positions. What the chains hold is not reached from an empty table.
    fn clear(&mut self) {
        self.table.fill(0);
        self.next = 0;
    }

    /// The longest match at `at` that ends at `end` or before, as length and distance; the nearest
    /// of equally long ones. Positions are asked for in ascending order.
    fn longest(
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
