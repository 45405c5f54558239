//! MicroLZMA, decoded straight into the output.
//!
//! A MicroLZMA stream is a raw LZMA stream without an end marker whose first byte, always zero, was
//! replaced by the complement of the properties. `symbols` decodes it with `range_decoder` and one
//! of the two implementations of `BitTrees`. This file reads the stream's header, feeds its last
//! bytes and decides whether it is valid. Unsafe code is in those files, not in this one.
//!
//! Streams that liblzma accepts are accepted and yield the same bytes, with two exceptions. A match
//! may not reach back farther than the declared dictionary, which liblzma rounds up to 16 bytes.
//! And nothing behind a prefix is looked at, where liblzma refuses an end marker.

#[cfg(any(test, not(all(target_arch = "x86_64", target_pointer_width = "64", not(miri)))))]
mod bit_trees_portable;
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", not(miri)))]
mod bit_trees_x86_64;
pub(crate) mod encode;
mod probabilities;
mod range_decoder;
mod symbols;
#[cfg(test)]
mod tests;

use crate::error::ErrorKind;
use crate::stream::DecodeMode;
use probabilities::{Probabilities, Properties};
use range_decoder::BitTrees;
use symbols::{SYMBOL_INPUT_MAX, StopReason, SymbolCount, Symbols};

#[cfg(not(all(target_arch = "x86_64", target_pointer_width = "64", not(miri))))]
use bit_trees_portable::Portable as Fastest;
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", not(miri)))]
use bit_trees_x86_64::X86_64 as Fastest;

/// Smaller dictionaries count as this, as with liblzma.
const DICTIONARY_BYTES_MIN: u32 = 4 << 10;
/// Linux's `Z_EROFS_LZMA_MAX_DICT_SIZE`: images that say more do not mount.
const DICTIONARY_BYTES_MAX: u32 = 8 << 20;

/// How many bits select the models of LZMA: `lc`, `lp` and `pb` of liblzma. Every stream names them,
/// so every decoder knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LzmaContexts {
    /// Bits of the byte before a literal: `lc`, 0 to 4.
    pub literal_bits: u8,
    /// Bits of the position of a literal: `lp`, 0 to 4, and at most 4 together with `lc`.
    pub literal_position_bits: u8,
    /// Bits of the position of a match: `pb`, 0 to 4.
    pub position_bits: u8,
}

impl Default for LzmaContexts {
    fn default() -> Self {
        Self::PRESET
    }
}

impl LzmaContexts {
    /// Those of all presets: 3, 0 and 2.
    pub const PRESET: Self = Self { literal_bits: 3, literal_position_bits: 0, position_bits: 2 };

    /// Whether the format has them.
    #[must_use]
    pub fn is_valid(self) -> bool {
        self.literal_bits.saturating_add(self.literal_position_bits) <= 4 && self.position_bits <= 4
    }
}

/// A decoder of MicroLZMA streams.
pub(crate) struct LzmaDecoder {
    probabilities: Probabilities,
    dictionary_bytes: usize,
}

impl LzmaDecoder {
    pub(crate) fn new(dictionary_bytes: u32) -> Result<Self, ErrorKind> {
        if dictionary_bytes > DICTIONARY_BYTES_MAX {
            return Err(ErrorKind::UnsupportedWindow);
        }
        let dictionary_bytes = dictionary_bytes.max(DICTIONARY_BYTES_MIN) as usize;
        Ok(Self { probabilities: Probabilities::new()?, dictionary_bytes })
    }

    /// The most that `new` takes; nothing for a dictionary that it refuses.
    pub(crate) fn memory_bytes_max(dictionary_bytes: u32) -> usize {
        if dictionary_bytes > DICTIONARY_BYTES_MAX { 0 } else { probabilities::BYTES }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.probabilities.memory_bytes()
    }

    pub(crate) fn decode(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        mode: DecodeMode,
    ) -> Result<(), ErrorKind> {
        self.decode_by::<Fastest>(input, output, mode)
    }

    fn decode_by<T: BitTrees>(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        mode: DecodeMode,
    ) -> Result<(), ErrorKind> {
        let wanted = output.len();
        let (first, input) = input.split_first().ok_or(ErrorKind::EmptyInput)?;
        let properties = Properties::from_first_byte(*first).ok_or(ErrorKind::Corrupt)?;
        let Some((code, input)) = input.split_first_chunk() else {
            return Err(ErrorKind::TooShort { got: 0, wanted });
        };
        let code = u32::from_be_bytes(*code);
        let probabilities = self.probabilities.reset(properties);
        let mut symbols =
            Symbols::new(properties, probabilities, self.dictionary_bytes, code, output);
        let mut taken = 0;
        let mut stop = StopReason::OutputFull;
        if wanted > 0 && input.len() >= SYMBOL_INPUT_MAX {
            stop = symbols.decode::<T>(input, &mut taken, SymbolCount::All);
        }
        let rest = &input[taken..];
        if stop == StopReason::OutputFull && symbols.position() < wanted {
            let mut tail = PaddedTail::new(rest);
            stop = tail.decode::<T>(&mut symbols, wanted)?;
            taken += tail.taken;
        }
        match (stop, mode) {
            (StopReason::OutputFull | StopReason::Overlong, DecodeMode::Prefix) => Ok(()),
            (StopReason::OutputFull, DecodeMode::Whole) if symbols.can_end(&input[taken..]) => {
                Ok(())
            }
            _ => Err(ErrorKind::Corrupt),
        }
    }
}

/// The last bytes of the input, with as many zeros behind them as a symbol can take in.
struct PaddedTail {
    bytes: [u8; 2 * SYMBOL_INPUT_MAX],
    length: usize,
    taken: usize,
}

impl PaddedTail {
    /// `rest` is shorter than `SYMBOL_INPUT_MAX`.
    fn new(rest: &[u8]) -> Self {
        let mut bytes = [0; 2 * SYMBOL_INPUT_MAX];
        bytes[..rest.len()].copy_from_slice(rest);
        Self { bytes, length: rest.len(), taken: 0 }
    }

    /// Decodes until the output is full.
    fn decode<T: BitTrees>(
        &mut self,
        symbols: &mut Symbols<'_>,
        wanted: usize,
    ) -> Result<StopReason, ErrorKind> {
        loop {
            let got = symbols.position();
            let stop = symbols.decode::<T>(&self.bytes, &mut self.taken, SymbolCount::One);
            if self.taken > self.length {
                return Err(ErrorKind::TooShort { got, wanted });
            }
            if stop != StopReason::OutputFull || symbols.position() == wanted {
                return Ok(stop);
            }
        }
    }
}
