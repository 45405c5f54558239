//! LZ4 blocks that fill a pcluster.
//!
//! liblz4 has a mode for that, but its match distance of at most 65,535 is fixed at compile time.
//! Images may declare less, so that a decoder needs fewer pages at a time. Then the library gets no
//! more input than that distance, in which no match can be farther. Only if that does not fill the
//! output, `GreedyEncoder` or `OptimalEncoder` find the matches, and `BlockWriter` writes them.
#![allow(unsafe_code, reason = "liblz4 is a C library")]

use std::ffi::{c_char, c_int, c_void};

use super::c_length;
use super::limited_distance::{GREEDY_BYTES, GreedyEncoder, OPTIMAL_BYTES, OptimalEncoder};
use crate::c_heap::{self, CBlock};
use crate::error::ErrorKind;
use crate::stream::EncodedSizes;

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
            if filled.input_bytes < reached.len() || reached.len() == input.len() {
                return Ok(filled);
            }
        }
        Ok(match &mut self.limited_distance {
            LimitedDistanceEncoder::Unneeded => return Err(ErrorKind::EncodingFailed),
            LimitedDistanceEncoder::GreedyEncoder(greedy) => greedy.fill(input, output),
            LimitedDistanceEncoder::OptimalEncoder(optimal) => optimal.fill(input, output),
        })
    }

    pub(crate) fn restart(&mut self) {
        (self.library.better_table, self.library.calls) = (Table::Near, 0);
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.library.memory_bytes()
            + match &self.limited_distance {
                LimitedDistanceEncoder::Unneeded => 0,
                LimitedDistanceEncoder::GreedyEncoder(_) => GREEDY_BYTES,
                LimitedDistanceEncoder::OptimalEncoder(_) => OPTIMAL_BYTES,
            }
    }
}

/// The most that `new` takes.
pub(crate) fn memory_bytes_max(level: Option<u8>, max_distance: u16) -> usize {
    library_bytes_max(level)
        + match (level, max_distance) {
            (_, u16::MAX) => 0,
            (None, _) => GREEDY_BYTES,
            (Some(_), _) => OPTIMAL_BYTES,
        }
}

// Not declared by lz4-sys, but compiled into the archive that it links.
unsafe extern "C" {
    fn LZ4_sizeofState() -> c_int;
    fn LZ4_sizeofStateHC() -> c_int;
    fn LZ4_compress_destSize_extState(
        state: *mut c_void,
        source: *const c_char,
        target: *mut c_char,
        source_bytes: *mut c_int,
        capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_initStreamHC(state: *mut c_void, bytes: usize) -> *mut c_void;
    fn LZ4_resetStreamHC_fast(stream: *mut c_void, level: c_int);
    fn LZ4_compress_HC_continue_destSize(
        stream: *mut c_void,
        source: *const c_char,
        target: *mut c_char,
        source_bytes: *mut c_int,
        capacity: c_int,
    ) -> c_int;
}

/// For inputs below this the library has a table of 16-bit positions, which are twice as many in the same memory. It looks
/// for four bytes instead of five, which finds more in some data and shorter matches in text.
const NEAR_INPUT_BYTES: usize = (64 << 10) + 10;
/// Longer outputs take more than [`NEAR_INPUT_BYTES`] of nearly all inputs, so they are not tried
/// with the small table first: it would encode these bytes in vain.
const NEAR_OUTPUT_BYTES_MAX: usize = NEAR_INPUT_BYTES / WORTH;
/// The part of the input that is tried first has so many times the bytes of the output: LZ4 seldom makes more of it.
const USUAL_RATIO: usize = 8;
/// More than what the library treats specially at the end of its input: literals (5 bytes), and where no match starts (12).
const END_BYTES: usize = 32;
/// One call in so many tries both tables.
const TRY_BOTH: u32 = 32;

/// The state of one of the two encoders.
struct LibLz4Encoder {
    state: CBlock,
    /// Of LZ4HC.
    level: Option<c_int>,
    /// Of LZ4: the table that took more input when both were tried last, and the calls since.
    better_table: Table,
    calls: u32,
}

/// The tables of liblz4 in which it looks for matches.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Table {
    /// Of 16-bit positions ([`NEAR_INPUT_BYTES`]).
    Near,
    /// Of 32-bit positions.
    Far,
}

impl LibLz4Encoder {
    fn new(level: Option<u8>) -> Result<Self, ErrorKind> {
        let bytes = state_bytes(level);
        let state = CBlock::allocate(bytes).ok_or(ErrorKind::OutOfMemory)?;
        if level.is_some() {
            // SAFETY: the block is writable for `bytes`.
            let stream = unsafe { LZ4_initStreamHC(state.as_ptr(), bytes) };
            if stream.is_null() {
                return Err(ErrorKind::EncodingFailed);
            }
        }
        Ok(Self { state, level: level.map(c_int::from), better_table: Table::Near, calls: 0 })
    }

    fn memory_bytes(&self) -> usize {
        self.state.bytes()
    }

    fn fill(&mut self, input: &[u8], output: &mut [u8]) -> Result<EncodedSizes, ErrorKind> {
        let Some(level) = self.level else { return self.fill_with_best_table(input, output) };
        let (mut taken, capacity) = (c_length(input)?, c_length(output)?);
        // SAFETY: the state was made by `LZ4_initStreamHC` and is borrowed mutably. Resetting makes
        // it forget the input of the call before, of which it keeps a pointer; it does so without
        // clearing its tables, whose old entries then lie before all that it looks at. Both slices
        // are given with their lengths, and `taken` outlives the call.
        let bytes = unsafe {
            LZ4_resetStreamHC_fast(self.state.as_ptr(), level);
            LZ4_compress_HC_continue_destSize(
                self.state.as_ptr(),
                input.as_ptr().cast(),
                output.as_mut_ptr().cast(),
                &raw mut taken,
                capacity,
            )
        };
        filled(taken, bytes)
    }

    /// With the table that is expected to take more input.
    fn fill_with_best_table(
        &mut self,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<EncodedSizes, ErrorKind> {
        if output.len() > NEAR_OUTPUT_BYTES_MAX || input.len() <= NEAR_INPUT_BYTES {
            return self.fill_far(input, output);
        }
        let tries_both = self.calls.is_multiple_of(TRY_BOTH);
        self.calls += 1;
        let expected = self.better_table;
        if !tries_both {
            let filled = self.fill_with(expected, input, output)?;
            return match expected {
                Table::Near if filled.input_bytes >= NEAR_INPUT_BYTES => {
                    self.fill_far(input, output)
                }
                _ => Ok(filled),
            };
        }
        // The expected one goes last, since the output then has its bytes.
        let (near, far) = match expected {
            Table::Near => {
                let far = self.fill_far(input, output)?;
                (self.fill_with(Table::Near, input, output)?, far)
            }
            Table::Far => {
                let near = self.fill_with(Table::Near, input, output)?;
                (near, self.fill_far(input, output)?)
            }
        };
        let best = if near.input_bytes >= NEAR_INPUT_BYTES {
            // It took all that it is given, which says nothing about the next call.
            Table::Far
        } else {
            self.better_table =
                if near.input_bytes > far.input_bytes { Table::Near } else { Table::Far };
            self.better_table
        };
        match best {
            _ if best != expected => self.fill_with(best, input, output),
            Table::Near => Ok(near),
            Table::Far => Ok(far),
        }
    }

    /// With the table of 16-bit positions, only the first [`NEAR_INPUT_BYTES`] are encoded.
    fn fill_with(
        &mut self,
        table: Table,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<EncodedSizes, ErrorKind> {
        match table {
            Table::Near => self.fill_fast(&input[..NEAR_INPUT_BYTES], output),
            Table::Far => self.fill_far(input, output),
        }
    }

    /// The same bytes as [`LibLz4Encoder::fill_fast`] with all of the input. The library searches for the next match up to
    /// the end of its input, even if the literals before it fill the output already. In random bytes, that would be the whole
    /// input for each output.
    fn fill_far(&mut self, input: &[u8], output: &mut [u8]) -> Result<EncodedSizes, ErrorKind> {
        let front_bytes = output.len().saturating_mul(USUAL_RATIO).max(NEAR_INPUT_BYTES + 1);
        if let Some(front) = input.get(..front_bytes).filter(|front| front.len() < input.len()) {
            let filled = self.fill_fast(front, output)?;
            // A match that the output has room for starts before this. Else more input could change the last sequences.
            if filled.input_bytes + output.len() + END_BYTES <= front.len() {
                return Ok(filled);
            }
        }
        self.fill_fast(input, output)
    }

    fn fill_fast(&mut self, input: &[u8], output: &mut [u8]) -> Result<EncodedSizes, ErrorKind> {
        let (mut taken, capacity) = (c_length(input)?, c_length(output)?);
        // SAFETY: the state is as long as the library says that it must be, aligned to more than
        // the 8 that it asks for, and initialised by the call. The slices are given with their
        // lengths, and `taken` outlives the call.
        let bytes = unsafe {
            LZ4_compress_destSize_extState(
                self.state.as_ptr(),
                input.as_ptr().cast(),
                output.as_mut_ptr().cast(),
                &raw mut taken,
                capacity,
                1,
            )
        };
        filled(taken, bytes)
    }
}

fn filled(taken: c_int, bytes: c_int) -> Result<EncodedSizes, ErrorKind> {
    match (usize::try_from(taken), usize::try_from(bytes)) {
        (Ok(taken), Ok(bytes @ 1..)) => {
            Ok(EncodedSizes { input_bytes: taken, output_bytes: bytes })
        }
        _ => Err(ErrorKind::EncodingFailed),
    }
}

fn state_bytes(level: Option<u8>) -> usize {
    // SAFETY: both return a constant.
    let bytes = unsafe { if level.is_some() { LZ4_sizeofStateHC() } else { LZ4_sizeofState() } };
    bytes.unsigned_abs() as usize
}

fn library_bytes_max(level: Option<u8>) -> usize {
    state_bytes(level) + c_heap::HEADER_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes from a linear congruential generator; of each, only the bits in `mask`.
    fn bytes(count: usize, mask: u8, initial_state: u64) -> Vec<u8> {
        let mut state = initial_state;
        let next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state.to_le_bytes()[6] & mask
        };
        std::iter::repeat_with(next).take(count).collect()
    }

    #[test]
    fn the_front_of_the_input_gives_the_bytes_of_all_of_it() {
        for output_bytes in [4096, 16_384, 65_536] {
            let front = (output_bytes * USUAL_RATIO).max(NEAR_INPUT_BYTES + 1);
            let mut encoder = LibLz4Encoder::new(None).unwrap();
            for (number, mask) in [0xff, 0x7f, 0x3f, 0x07, 0x01, 0x00].into_iter().enumerate() {
                let noise = bytes(front * 3, mask, number as u64);
                // Noise begins or ends at several distances from the end of the front.
                for distance in
                    [0, 1, 5, 12, 13, 40, output_bytes, output_bytes + 40, 3 * output_bytes]
                {
                    for is_noise_first in [false, true] {
                        let mut input = noise.clone();
                        let at = front - distance;
                        if is_noise_first { &mut input[at..] } else { &mut input[..at] }.fill(7);
                        let (mut one, mut other) = (vec![0; output_bytes], vec![0; output_bytes]);
                        let far = encoder.fill_far(&input, &mut one).unwrap();
                        let all = encoder.fill_fast(&input, &mut other).unwrap();
                        assert_eq!(far, all, "{output_bytes} {mask} {distance} {is_noise_first}");
                        assert_eq!(one[..far.output_bytes], other[..all.output_bytes]);
                    }
                }
            }
        }
    }

    // The library searched all 4 MB of random bytes for each cluster of 4 KiB, so a build took four times as long.
    #[test]
    fn random_bytes_take_no_longer_if_there_are_more_of_them() {
        let noise = bytes(4 << 20, 0xff, 1);
        let mut encoder = LibLz4Encoder::new(None).unwrap();
        let mut output = vec![0; 4096];
        let mut fastest = |input: &[u8]| {
            let times = (0..20).map(|_| {
                let started_at = std::time::Instant::now();
                for _ in 0..16 {
                    assert!(encoder.fill(input, &mut output).unwrap().input_bytes < 4096);
                }
                started_at.elapsed()
            });
            times.min().unwrap()
        };
        let (few, many) = (fastest(&noise[..128 << 10]), fastest(&noise));
        assert!(many < few * 3, "{few:?} for 128 KiB, {many:?} for 4 MiB");
    }
}
