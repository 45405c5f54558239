//! The adaptive probabilities of a stream: the layout of one array of 16-bit numbers, and the
//! properties byte that says which contexts it has.
//!
//! A probability is the chance of a zero bit in units of 1/2048. All of them start at one half.

use crate::error::ErrorKind;

/// The parameters lc, lp and pb of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Properties {
    /// How many high bits of the byte before choose the context of a literal.
    pub(super) literal_context_bits: u32,
    /// How many low bits of the position do.
    pub(super) literal_position_bits: u32,
    /// How many low bits of the position choose the context of a symbol.
    pub(super) position_bits: u32,
}

impl Properties {
    /// What encoders use if not told otherwise.
    pub(super) const DEFAULT: Self =
        Self { literal_context_bits: 3, literal_position_bits: 0, position_bits: 2 };

    /// From the complement that the stream starts with; none if it is not in the format or, as with
    /// all other decoders, lc + lp is more than 4.
    pub(super) fn from_first_byte(byte: u8) -> Option<Self> {
        let packed = u32::from(!byte);
        let properties = Self {
            literal_context_bits: packed % 9,
            literal_position_bits: packed / 9 % 5,
            position_bits: packed / 45,
        };
        let Self { literal_context_bits, literal_position_bits, position_bits } = properties;
        let exists = position_bits <= 4 && literal_context_bits + literal_position_bits <= 4;
        exists.then_some(properties)
    }

    /// The bits of the position that choose the context of a symbol.
    pub(super) const fn position_mask(self) -> usize {
        (1 << self.position_bits) - 1
    }

    /// The bits that choose the context of a literal, of the position with the byte before behind
    /// it; to be shifted by the literal context bits then.
    pub(super) const fn literal_mask(self) -> usize {
        (0x100 << self.literal_position_bits) - (0x100 >> self.literal_context_bits)
    }

    pub(super) fn literal_contexts(self) -> usize {
        1 << (self.literal_context_bits + self.literal_position_bits)
    }
}

/// The states of the symbol history.
const STATES: usize = 12;
/// The largest number of position states, 2 to the power of pb.
pub(super) const POSITION_STATES: usize = 1 << 4;

/// One for each state and position state: literal or match?
pub(super) const IS_MATCH: usize = 0;
/// One for each state and position state: more than one byte at the last distance?
pub(super) const IS_REPEAT_0_LONG: usize = IS_MATCH + STATES * POSITION_STATES;
/// One for each state: a new distance or one of the last four?
pub(super) const IS_REPEAT: usize = IS_REPEAT_0_LONG + STATES * POSITION_STATES;
/// One for each state: the last distance or an older one?
pub(super) const IS_REPEAT_0: usize = IS_REPEAT + STATES;
/// One for each state: the last but one or an older one?
pub(super) const IS_REPEAT_1: usize = IS_REPEAT_0 + STATES;
/// One for each state: the third or the fourth?
pub(super) const IS_REPEAT_2: usize = IS_REPEAT_1 + STATES;
/// BitTrees of six bits for the class of a distance, one for each of the lengths 2, 3, 4 and the
/// rest.
pub(super) const DISTANCE_SLOT: usize = IS_REPEAT_2 + STATES;
/// Reverse trees of the distances 4 to 127, packed: the one whose smallest distance is d begins at
/// d less its slot.
pub(super) const DISTANCE_LOW: usize = DISTANCE_SLOT + 4 * 64;
/// The reverse tree of the last four bits of the distances from 128 on.
pub(super) const DISTANCE_ALIGN: usize = DISTANCE_LOW + 128;
/// The lengths of matches with a new distance.
pub(super) const MATCH_LENGTH: usize = DISTANCE_ALIGN + 16;
/// The lengths of the others.
pub(super) const REPEAT_LENGTH: usize = MATCH_LENGTH + LENGTH_COUNT;
/// BitTrees of eight bits, three for each literal context.
pub(super) const LITERAL: usize = REPEAT_LENGTH + LENGTH_COUNT;

/// Inside the lengths: trees of three bits for 2 to 9, one for each position state.
pub(super) const LENGTH_LOW: usize = 0;
/// Inside the lengths: trees of three bits for 10 to 17, one for each position state.
pub(super) const LENGTH_MIDDLE: usize = LENGTH_LOW + POSITION_STATES * 8;
/// Inside the lengths: the tree of eight bits for 18 to 273.
pub(super) const LENGTH_HIGH: usize = LENGTH_MIDDLE + POSITION_STATES * 8;
/// Inside the lengths: up to 9 or more?
pub(super) const LENGTH_CHOICE: usize = LENGTH_HIGH + 256;
/// Inside the lengths: up to 17 or more?
pub(super) const LENGTH_CHOICE_2: usize = LENGTH_CHOICE + 1;
const LENGTH_COUNT: usize = LENGTH_CHOICE_2 + 1;

/// The probabilities of a literal context: one tree for literals behind literals, and one for each
/// value of the bit that the last distance suggests.
pub(super) const LITERAL_TREES: usize = 3 * 256;
/// The largest number of literal contexts, as lc + lp is 4 at most.
const LITERAL_CONTEXTS: usize = 1 << 4;

/// The length of the whole array.
pub(super) const COUNT: usize = LITERAL + LITERAL_TREES * LITERAL_CONTEXTS;

/// The memory that it takes.
pub(super) const BYTES: usize = size_of::<[u16; COUNT]>();

/// An even chance.
const PROBABILITY_INIT: u16 = 1 << 10;

/// The probabilities of any stream.
pub(super) struct Probabilities(Box<[u16; COUNT]>);

impl Probabilities {
    pub(super) fn new() -> Result<Self, ErrorKind> {
        let mut room = Vec::new();
        room.try_reserve_exact(COUNT).map_err(|_| ErrorKind::OutOfMemory)?;
        room.resize(COUNT, PROBABILITY_INIT);
        match room.into_boxed_slice().try_into() {
            Ok(array) => Ok(Self(array)),
            Err(_) => Err(ErrorKind::OutOfMemory),
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    /// All that a stream with these properties can reach, as it is at the start.
    pub(super) fn reset(&mut self, properties: Properties) -> &mut [u16; COUNT] {
        let reachable = LITERAL + LITERAL_TREES * properties.literal_contexts();
        self.0[..reachable].fill(PROBABILITY_INIT);
        &mut self.0
    }
}
