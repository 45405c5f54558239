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
        (self.library.near_is_better, self.library.calls) = (true, 0);
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
/// One call in so many tries both tables.
const TRY_BOTH: u32 = 16;

/// The state of one of the two encoders.
struct LibLz4Encoder {
    state: CBlock,
    /// Of LZ4HC.
    level: Option<c_int>,
    /// Of LZ4: whether the small table took more input when both were tried last, and the calls since.
    near_is_better: bool,
    calls: u32,
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
        Ok(Self { state, level: level.map(c_int::from), near_is_better: true, calls: 0 })
    }

    fn memory_bytes(&self) -> usize {
        self.state.bytes()
    }

    fn fill(&mut self, input: &[u8], output: &mut [u8]) -> Result<EncodedSizes, ErrorKind> {
        let Some(level) = self.level else {
            if output.len() > NEAR_OUTPUT_BYTES_MAX {
                return self.fill_fast(input, output);
            }
            let near = &input[..input.len().min(NEAR_INPUT_BYTES)];
            let tries_both = near.len() < input.len() && self.calls.is_multiple_of(TRY_BOTH);
            self.calls += u32::from(near.len() < input.len());
            if near.len() < input.len() && !tries_both && !self.near_is_better {
                return self.fill_fast(input, output);
            }
            let filled = self.fill_fast(near, output)?;
            let is_all = filled.input_bytes < near.len() || near.len() == input.len();
            if is_all && !tries_both {
                return Ok(filled);
            }
            let far = self.fill_fast(input, output)?;
            if !is_all {
                return Ok(far);
            }
            self.near_is_better = filled.input_bytes > far.input_bytes;
            return if self.near_is_better { self.fill_fast(near, output) } else { Ok(far) };
        };
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
