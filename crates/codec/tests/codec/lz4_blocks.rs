//! LZ4 blocks as no library writes them: with bounded distances, and sequence by sequence.

use crate::samples::{Xorshift, noise};

const MATCH_MIN: usize = 4;
const LAST_MATCH_BYTES: usize = 12;
const LAST_LITERALS: usize = 5;

/// A block that is written by hand. The writer decides whether it obeys the format.
#[derive(Default)]
pub(crate) struct Block {
    pub(crate) bytes: Vec<u8>,
}

impl Block {
    /// A run of literals and a match of at least four bytes.
    pub(crate) fn sequence(&mut self, literals: &[u8], distance: u16, matched: usize) {
        let length = matched - MATCH_MIN;
        self.literals(literals, length.min(15));
        self.bytes.extend_from_slice(&distance.to_le_bytes());
        self.rest_of(length);
    }

    /// The literals at the end.
    pub(crate) fn last(mut self, literals: &[u8]) -> Vec<u8> {
        self.literals(literals, 0);
        self.bytes
    }

    fn literals(&mut self, literals: &[u8], matched: usize) {
        let token = literals.len().min(15) << 4 | matched;
        self.bytes.push(u8::try_from(token).unwrap());
        self.rest_of(literals.len());
        self.bytes.extend_from_slice(literals);
    }

    fn rest_of(&mut self, length: usize) {
        if let Some(rest) = length.checked_sub(15) {
            self.bytes.extend(std::iter::repeat_n(255, rest / 255));
            self.bytes.push(u8::try_from(rest % 255).unwrap());
        }
    }
}

/// A greedy encoder that finds matches of up to `max_distance`.
pub(crate) fn bounded(data: &[u8], max_distance: usize) -> Vec<u8> {
    let mut block = Block::default();
    let mut seen = vec![None; 1 << 14];
    let (mut at, mut from) = (0, 0);
    while at + LAST_MATCH_BYTES < data.len() {
        let key = u32::from_le_bytes(data[at..at + MATCH_MIN].try_into().unwrap());
        let slot = usize::try_from(key.wrapping_mul(2_654_435_761) >> 18).unwrap();
        let earlier: Option<usize> = seen[slot].replace(at);
        let near = earlier.filter(|earlier| at - earlier <= max_distance);
        let found = near.map_or(0, |near| common(data, near, at));
        match near {
            Some(near) if found >= MATCH_MIN => {
                let distance = u16::try_from(at - near).unwrap();
                block.sequence(&data[from..at], distance, found);
                at += found;
                from = at;
            }
            _ => at += 1,
        }
    }
    block.last(&data[from..])
}

/// How many bytes are the same at both places, without the last literals.
fn common(data: &[u8], earlier: usize, at: usize) -> usize {
    let end = data.len() - LAST_LITERALS;
    let pairs = data[at..end].iter().zip(&data[earlier..]);
    pairs.take_while(|(one, other)| one == other).count()
}

/// Sequences as they come, most of them near the limits of length; what they yield if all are good.
pub(crate) fn made_up(random: &mut Xorshift) -> (Vec<u8>, usize) {
    let mut block = Block::default();
    let mut yields = 0;
    for _ in 0..random.below(6) {
        let literals = length(random);
        yields += literals;
        let matched = MATCH_MIN + length(random);
        let far = if random.below(24) == 0 { 70_000 } else { yields.max(1) + 1 };
        let near = random.below(far.min(40));
        let distance = if random.below(3) == 0 { random.below(far) } else { near };
        let distance = u16::try_from(distance.min(0xFFFF)).unwrap();
        block.sequence(&noise(literals, random.next()), distance.max(1), matched);
        yields += matched;
    }
    if random.below(20) == 0 {
        block.sequence(b"", 0, MATCH_MIN + random.below(30));
    }
    let literals = length(random);
    (block.last(&noise(literals, random.next())), yields + literals)
}

fn length(random: &mut Xorshift) -> usize {
    match random.below(16) {
        0 => random.below(6000),
        1 => 15 + 255 + random.below(3),
        2..=5 => 12 + random.below(10),
        _ => random.below(16),
    }
}
