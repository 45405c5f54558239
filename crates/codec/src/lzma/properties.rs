//! The first byte of a MicroLZMA stream: which contexts its probabilities have.

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
    pub(super) const USUAL: Self =
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
