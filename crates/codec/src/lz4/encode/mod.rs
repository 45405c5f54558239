//! LZ4 blocks that fill a pcluster.
//!
//! liblz4 has a mode for that, but the distance to which its matches reach back, 65,535, is fixed
//! when it is compiled. Images may declare less, so that a decoder needs fewer pages at a time. Then
//! the library is shown no more input than that distance, in which no match can be farther; only if
//! that does not fill the output, `fast` or `thorough` find the matches, and `block` writes them.

mod block;
mod chains;
mod fast;
mod library;
mod thorough;

use crate::encoder::EncodedSizes;
use crate::error::ErrorKind;
use fast::GreedyEncoder;
use library::LibLz4Encoder;
use thorough::OptimalEncoder;

/// The library is tried if the distance is at least this many times the output: most extents are
/// longer than their pclusters.
const WORTH: usize = 2;

/// The library, and what replaces it where it would reach too far.
pub(crate) struct Lz4Encoder {
    library: LibLz4Encoder,
    limited_distance: LimitedDistanceEncoder,
    max_distance: usize,
}

enum LimitedDistanceEncoder {
    /// The library reaches as far as is allowed.
    Unneeded,
    GreedyEncoder(GreedyEncoder),
    OptimalEncoder(OptimalEncoder),
}

impl Lz4Encoder {
    /// `level` is that of LZ4HC; none is LZ4.
    pub(crate) fn new(level: Option<u8>, max_distance: u16) -> Result<Self, ErrorKind> {
        let limited_distance = match (level, max_distance) {
            (_, u16::MAX) => LimitedDistanceEncoder::Unneeded,
            (None, _) => LimitedDistanceEncoder::GreedyEncoder(GreedyEncoder::new(max_distance)?),
            (Some(level), _) => {
                LimitedDistanceEncoder::OptimalEncoder(OptimalEncoder::new(level, max_distance)?)
            }
        };
        Ok(Self {
            library: LibLz4Encoder::new(level)?,
            limited_distance,
            max_distance: max_distance.into(),
        })
    }

    pub(crate) fn fill(
        &mut self,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<EncodedSizes, ErrorKind> {
        if let LimitedDistanceEncoder::Unneeded = self.limited_distance {
            return self.library.fill(input, output);
        }
        let reached = &input[..input.len().min(self.max_distance)];
        let may_fill = output.len() <= self.max_distance / WORTH;
        if may_fill || reached.len() == input.len() {
            let filled = self.library.fill(reached, output)?;
            if filled.taken < reached.len() || reached.len() == input.len() {
                return Ok(filled);
            }
        }
        Ok(match &mut self.limited_distance {
            LimitedDistanceEncoder::Unneeded => return Err(ErrorKind::EncodingFailed),
            LimitedDistanceEncoder::GreedyEncoder(fast) => fast.fill(input, output),
            LimitedDistanceEncoder::OptimalEncoder(thorough) => thorough.fill(input, output),
        })
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.library.memory_bytes()
            + match &self.limited_distance {
                LimitedDistanceEncoder::Unneeded => 0,
                LimitedDistanceEncoder::GreedyEncoder(_) => fast::BYTES,
                LimitedDistanceEncoder::OptimalEncoder(_) => thorough::BYTES,
            }
    }
}

/// The most that `new` takes.
pub(crate) fn memory_bytes_max(level: Option<u8>, max_distance: u16) -> usize {
    library::memory_bytes_max(level)
        + match (level, max_distance) {
            (_, u16::MAX) => 0,
            (None, _) => fast::BYTES,
            (Some(_), _) => thorough::BYTES,
        }
}

/// A table of `length` zeros.
fn table<T: Copy + Default>(length: usize) -> Result<Box<[T]>, ErrorKind> {
    let mut table = Vec::new();
    table.try_reserve_exact(length).map_err(|_| ErrorKind::OutOfMemory)?;
    table.resize(length, T::default());
    Ok(table.into_boxed_slice())
}
