//! DEFLATE streams that fill a pcluster, by libdeflate.
//!
//! libdeflate encodes a given input and has no mode for a given output. So more input is encoded
//! than fits (a little more, if the estimated ratio is good), and `truncate` cuts the stream where
//! the output ends. An input is encoded twice only when the estimate was too low.
#![allow(unsafe_code, reason = "libdeflate is a C library")]

use std::ptr::NonNull;

use libdeflate_sys as c;

use super::truncate::{TruncatedStream, truncate};
use crate::c_heap;
use crate::error::ErrorKind;
use crate::stream::EncodedSizes;

/// More than this is cut off only where a ratio changes much; one in this many bytes is added
/// to a estimate.
const SURPLUS: usize = 24;
/// A stream that leaves less than one in this many bytes of the output is not encoded again.
const SLACK_DIVISOR: usize = 256;
/// No more input is tried for an output than this many times its length: the least that a long run
/// takes is one bit in 258 bytes.
const RATIO_MAX: usize = 258 * 8;
/// How often an input is encoded at most; the best so far counts then.
const TRIES: usize = 10;

pub(crate) struct DeflateEncoder {
    compressor: NonNull<c::libdeflate_compressor>,
    /// Where a stream is written that may be too long.
    scratch: Box<[u8]>,
    ratio: RatioEstimate,
    level: u8,
}

// SAFETY: the compressor is heap memory without ties to a thread; it is used through &mut only.
unsafe impl Send for DeflateEncoder {}

impl DeflateEncoder {
    pub(crate) fn new(level: u8, pcluster_bytes: usize) -> Result<Self, ErrorKind> {
        let mut scratch = Vec::new();
        let bytes = scratch_bytes(pcluster_bytes);
        scratch.try_reserve_exact(bytes).map_err(|_| ErrorKind::OutOfMemory)?;
        scratch.resize(bytes, 0);
        let options = c::libdeflate_options {
            sizeof_options: size_of::<c::libdeflate_options>(),
            malloc_func: Some(super::malloc),
            free_func: Some(c_heap::free),
        };
        // SAFETY: the options are initialised, say their own size and name a matching pair of
        // functions; the library copies them.
        let compressor =
            unsafe { c::libdeflate_alloc_compressor_ex(level.into(), &raw const options) };
        let compressor = NonNull::new(compressor).ok_or(ErrorKind::OutOfMemory)?;
        Ok(Self {
            compressor,
            scratch: scratch.into_boxed_slice(),
            ratio: RatioEstimate::NONE,
            level,
        })
    }

    pub(crate) fn restart(&mut self) {
        self.ratio = RatioEstimate::NONE;
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        libdeflate_bytes(self.level) + self.scratch.len()
    }

    pub(crate) fn fill(
        &mut self,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<EncodedSizes, ErrorKind> {
        let most = input.len().min(output.len().saturating_mul(RATIO_MAX));
        let estimated = self.ratio.input_for(output.len());
        let (mut tried, mut least, mut beyond) =
            ((estimated + estimated / SURPLUS).min(most), 0, most + 1);
        let mut best = EncodedSizes { input_bytes: 0, output_bytes: 0 };
        for _ in 0..TRIES {
            let bytes = self.encode(&input[..tried]);
            if bytes == 0 {
                // Longer than the scratch: far too much input. Where the ratio changes, what it was says nothing of
                // where that is: lengths are halved on a logarithmic scale.
                beyond = tried;
                tried = between(least.max(output.len()), beyond);
                if least == 0 {
                    tried = tried.min(output.len() * FIRST_RATIO);
                }
            } else {
                let truncate = truncate(&mut self.scratch[..bytes], output.len())
                    .ok_or(ErrorKind::EncodingFailed)?;
                let TruncatedStream { taken, bytes } = truncate;
                if taken > best.input_bytes {
                    best = EncodedSizes { input_bytes: taken, output_bytes: bytes };
                    output[..bytes].copy_from_slice(&self.scratch[..bytes]);
                }
                let is_short =
                    taken == tried && output.len() - bytes > output.len() / SLACK_DIVISOR;
                if !is_short || tried == most {
                    break;
                }
                least = tried;
                let wanted = tried.saturating_mul(output.len()) / bytes;
                tried = (wanted + wanted / SURPLUS).min(most);
                if beyond <= most {
                    tried = tried.min(between(least, beyond));
                }
            }
            if tried <= least {
                break;
            }
        }
        self.ratio.update(best, best.input_bytes < input.len());
        Ok(best)
    }

    /// Encodes all of `input` into the scratch, or returns 0 if that is too short.
    fn encode(&mut self, input: &[u8]) -> usize {
        // SAFETY: the compressor is live until `drop` and borrowed mutably here; both slices are
        // given with their lengths.
        unsafe {
            c::libdeflate_deflate_compress(
                self.compressor.as_ptr(),
                input.as_ptr().cast(),
                input.len(),
                self.scratch.as_mut_ptr().cast(),
                self.scratch.len(),
            )
        }
    }
}

impl Drop for DeflateEncoder {
    fn drop(&mut self) {
        // SAFETY: the compressor came from `new` and is freed nowhere else.
        unsafe { c::libdeflate_free_compressor(self.compressor.as_ptr()) };
    }
}

/// The geometric mean.
fn between(least: usize, beyond: usize) -> usize {
    least.saturating_mul(beyond).isqrt()
}

/// Enough for a stream that is half as long again as the output, and for the library's tail.
fn scratch_bytes(pcluster_bytes: usize) -> usize {
    pcluster_bytes + pcluster_bytes / 2 + 64
}

/// What the compressor takes, which it does not report. A test compares.
fn libdeflate_bytes(level: u8) -> usize {
    match level {
        0 => 6119,
        1 => 202_759,
        2..=9 => 668_295,
        _ => 9_011_751,
    }
}

/// The most that `new` takes.
pub(crate) fn memory_bytes_max(level: u8, pcluster_bytes: usize) -> usize {
    libdeflate_bytes(level) + c_heap::HEADER_BYTES + scratch_bytes(pcluster_bytes)
}

/// The ratio that is tried when nothing is known.
const FIRST_RATIO: usize = 3;
/// Ratios are kept in this part of one.
const SCALE: usize = 1 << 16;

/// The ratio of the last call.
#[derive(Clone, Copy, Debug)]
struct RatioEstimate {
    scaled_ratio: usize,
}

impl RatioEstimate {
    const NONE: Self = Self { scaled_ratio: FIRST_RATIO * SCALE };

    /// The input that `bytes` of output would hold; at least as much as the output.
    fn input_for(self, bytes: usize) -> usize {
        // A ratio is at most 12 MiB in one byte, and an output at most 1 MiB: 60 bits.
        (bytes * self.scaled_ratio / SCALE).max(bytes)
    }

    /// Remembers a result; that of a short end of a file says little and is left out.
    fn update(&mut self, filled: EncodedSizes, is_full: bool) {
        if is_full && filled.output_bytes > 0 {
            self.scaled_ratio = filled.input_bytes * SCALE / filled.output_bytes;
        }
    }
}
