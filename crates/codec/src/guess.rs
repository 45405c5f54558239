//! How much input may go into an output, by what went into the one before.

use crate::encoder::EncodedSizes;

/// The ratio that is tried when nothing is known.
const FIRST_RATIO: usize = 3;
/// Ratios are kept in this part of one.
const SCALE: usize = 1 << 16;

/// The ratio of the last call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RatioEstimate {
    scaled_ratio: usize,
}

impl RatioEstimate {
    pub(crate) const NONE: Self = Self { scaled_ratio: FIRST_RATIO * SCALE };

    /// The input that `bytes` of output would hold; at least as much as the output.
    pub(crate) fn input_for(self, bytes: usize) -> usize {
        // A ratio is at most 12 MiB in one byte, and an output at most 1 MiB: 60 bits.
        (bytes * self.scaled_ratio / SCALE).max(bytes)
    }

    /// Remembers a result; that of a short end of a file says little and is left out.
    pub(crate) fn learn(&mut self, filled: EncodedSizes, is_full: bool) {
        if is_full && filled.bytes > 0 {
            self.scaled_ratio = filled.taken * SCALE / filled.bytes;
        }
    }
}
