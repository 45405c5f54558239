//! Zstandard frames that fill a pcluster, by the reference C code in a workspace of fixed size.
//!
//! libzstd encodes a given input and has no mode for a given output, so the length of the input is
//! searched for: `InputSizeSearch` says which length to try next. Most pclusters take two attempts.
#![allow(unsafe_code, reason = "libzstd is a C library")]

use std::ffi::c_int;
use std::ptr::NonNull;

use zstd_sys as c;

use super::cost_model::{self, CostModel};
use super::{checked, kind_of};
use crate::c_heap::{self, CBlock};
use crate::error::ErrorKind;
use crate::stream::EncodedSizes;

/// The library has parameters of its own for inputs up to these sizes, and for all others, which
/// its number for an unknown size stands for.
const TIERS: [u64; 4] = [16 << 10, 128 << 10, 256 << 10, u64::MAX];

/// The bytes of a frame for the costs of an [`CostModel`], in this part of one.
const SCALE: u64 = 1 << 16;
/// That of programs and texts, for the first frame.
const FIRST_YIELD: u64 = SCALE / 15;

/// One context.
pub(crate) struct ZstdEncoder {
    /// At the start of the workspace; valid as long as that is.
    context: NonNull<c::ZSTD_CCtx>,
    workspace: CBlock,
    /// Where a frame is written that may be too long.
    scratch: Box<[u8]>,
    cost_model: CostModel,
    /// The bytes that the frame before yielded for its cost, scaled.
    scaled_yield: u64,
    #[cfg(test)]
    encodes: usize,
}

// SAFETY: the context lies in memory that this value owns and has no ties to a thread.
unsafe impl Send for ZstdEncoder {}

impl ZstdEncoder {
    pub(crate) fn new(
        level: i32,
        window_log: u8,
        pcluster_bytes: usize,
    ) -> Result<Self, ErrorKind> {
        let mut scratch = Vec::new();
        let bytes = scratch_bytes(pcluster_bytes);
        scratch.try_reserve_exact(bytes).map_err(|_| ErrorKind::OutOfMemory)?;
        scratch.resize(bytes, 0);
        let bytes = workspace_bytes(level, window_log);
        let workspace = CBlock::allocate(bytes).ok_or(ErrorKind::OutOfMemory)?;
        // SAFETY: the workspace is `bytes` long, aligned to more than the 8 that are asked for, and
        // it lives as long as the context since both are fields of one value.
        let context = unsafe { c::ZSTD_initStaticCCtx(workspace.as_ptr(), bytes) };
        let context = NonNull::new(context).ok_or(ErrorKind::OutOfMemory)?;
        for (parameter, value) in [
            (c::ZSTD_cParameter::ZSTD_c_compressionLevel, level),
            (c::ZSTD_cParameter::ZSTD_c_windowLog, window_log.into()),
            // The extent says how long the contents are; the window needs a byte, the size up to
            // four.
            (c::ZSTD_cParameter::ZSTD_c_contentSizeFlag, 0),
            (c::ZSTD_cParameter::ZSTD_c_checksumFlag, 0),
            (c::ZSTD_cParameter::ZSTD_c_dictIDFlag, 0),
        ] {
            // SAFETY: the context was just made; values are checked by the library.
            checked(unsafe { c::ZSTD_CCtx_setParameter(context.as_ptr(), parameter, value) })?;
        }
        let scratch = scratch.into_boxed_slice();
        Ok(Self {
            context,
            workspace,
            scratch,
            cost_model: CostModel::new()?,
            scaled_yield: FIRST_YIELD,
            #[cfg(test)]
            encodes: 0,
        })
    }

    pub(crate) fn restart(&mut self) {
        self.scaled_yield = FIRST_YIELD;
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.workspace.bytes() + self.scratch.len() + cost_model::BYTES
    }

    pub(crate) fn fill(
        &mut self,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<EncodedSizes, ErrorKind> {
        self.cost_model.begin(output.len());
        let cost = InputSizeSearch::target_bytes(output.len()) as u64 * SCALE / self.scaled_yield;
        let first = self.cost_model.length(input, cost).max(output.len());
        let mut search = InputSizeSearch::new(input.len(), output.len(), first);
        let room = scratch_bytes(output.len()).min(self.scratch.len());
        while let Some(length) = search.next() {
            let attempted = self.encode(&input[..length], room)?;
            if let AttemptResult::Yields(bytes) = attempted
                && let Some(output) = output.get_mut(..bytes)
            {
                output.copy_from_slice(&self.scratch[..bytes]);
            }
            search.record(length, attempted, input, &mut self.cost_model);
        }
        let best = search.best();
        // The short end of a file says little.
        if best.input_bytes < input.len() && best.output_bytes > 0 {
            let cost = self.cost_model.cost(input, best.input_bytes).max(1);
            self.scaled_yield = (best.output_bytes as u64 * SCALE / cost).max(1);
        }
        Ok(best)
    }

    fn encode(&mut self, input: &[u8], room: usize) -> Result<AttemptResult, ErrorKind> {
        #[cfg(test)]
        {
            self.encodes += 1;
        }
        let scratch = &mut self.scratch[..room];
        // SAFETY: the context is live and borrowed mutably; both slices are given with their
        // lengths.
        let result = unsafe {
            c::ZSTD_compress2(
                self.context.as_ptr(),
                scratch.as_mut_ptr().cast(),
                scratch.len(),
                input.as_ptr().cast(),
                input.len(),
            )
        };
        match checked(result) {
            Ok(bytes) => Ok(AttemptResult::Yields(bytes)),
            Err(ErrorKind::TooLong) => Ok(AttemptResult::YieldsMore),
            Err(_) => Err(match kind_of(result) {
                ErrorKind::OutOfMemory => ErrorKind::OutOfMemory,
                _ => ErrorKind::EncodingFailed,
            }),
        }
    }
}

/// Enough for a frame that is half as long again as the output: by how much a frame is too long is
/// worth knowing.
fn scratch_bytes(pcluster_bytes: usize) -> usize {
    pcluster_bytes + pcluster_bytes / 2 + 64
}

/// What one context needs for inputs of any length.
fn workspace_bytes(level: c_int, window_log: u8) -> usize {
    let of_tier = |input_bytes| {
        // SAFETY: calculations without pointers.
        unsafe {
            let mut parameters = c::ZSTD_getCParams(level, input_bytes, 0);
            parameters.windowLog = window_log.into();
            // What the library does, too, as it knows the length of each input: no table larger than the window
            // can use.
            let longest = crate::encoder::EXTENT_BYTES_MAX as u64;
            c::ZSTD_estimateCCtxSize_usingCParams(c::ZSTD_adjustCParams(parameters, longest, 0))
        }
    };
    TIERS.into_iter().map(of_tier).max().unwrap_or(0)
}

/// The most that `new` takes.
pub(crate) fn memory_bytes_max(level: i32, window_log: u8, pcluster_bytes: usize) -> usize {
    workspace_bytes(level, window_log)
        + c_heap::HEADER_BYTES
        + scratch_bytes(pcluster_bytes)
        + cost_model::BYTES
}

/// It ends when less than one in this many bytes of the output is left after the first attempt,
/// after the next ones, and after [`ATTEMPTS`].
const SLACK_DIVISORS: [usize; 3] = [400, 128, 64];
/// All attempts but the first aim to leave one in this many bytes, so that most fit.
const TARGET_SLACK_DIVISOR: usize = 800;
const ATTEMPTS: usize = 6;
/// It ends after this many in any case: inputs whose prefixes do not get shorter are not worth
/// more.
const ATTEMPTS_MAX: usize = 12;

/// What an attempt came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttemptResult {
    /// As many bytes.
    Yields(usize),
    /// More bytes than were counted.
    YieldsMore,
}

#[derive(Clone, Copy, Debug)]
struct InputSizeSearch {
    input: usize,
    output: usize,
    /// What is attempted next; none at the end.
    next: Option<usize>,
    attempts: usize,
    /// The longest that fits.
    fits: EncodedSizes,
    /// The shortest that does not fit, and what it yielded, if that is known.
    exceeds: Option<(usize, Option<usize>)>,
    /// How many attempts before the last one, in a row, missed on the same side.
    repeated: u32,
    last_fitted: bool,
}

impl InputSizeSearch {
    /// A search that begins with `first`.
    fn new(input: usize, output: usize, first: usize) -> Self {
        let next = Some(first.min(input));
        let fits = EncodedSizes { input_bytes: 0, output_bytes: 0 };
        Self {
            input,
            output,
            next,
            attempts: 0,
            fits,
            exceeds: None,
            repeated: 0,
            last_fitted: false,
        }
    }

    /// The length to try next.
    fn next(&self) -> Option<usize> {
        self.next
    }

    /// The longest that fits, which is nothing if nothing did.
    fn best(&self) -> EncodedSizes {
        self.fits
    }

    /// The output bytes that attempts aim at.
    fn target_bytes(output: usize) -> usize {
        output - output / TARGET_SLACK_DIVISOR
    }

    /// Records the result of an attempt; `input` and `cost_model` say which length is next.
    fn record(
        &mut self,
        length: usize,
        attempted: AttemptResult,
        input: &[u8],
        cost_model: &mut CostModel,
    ) {
        let fitted = matches!(attempted, AttemptResult::Yields(bytes) if bytes <= self.output);
        let is_same = self.attempts > 0 && fitted == self.last_fitted;
        self.repeated = if is_same { self.repeated + 1 } else { 0 };
        self.last_fitted = fitted;
        self.attempts += 1;
        match attempted {
            AttemptResult::Yields(bytes) if fitted => {
                self.fits = EncodedSizes { input_bytes: length, output_bytes: bytes };
            }
            AttemptResult::Yields(bytes) => self.exceeds = Some((length, Some(bytes))),
            AttemptResult::YieldsMore => self.exceeds = Some((length, None)),
        }
        self.next = if self.is_over() { None } else { self.place(input, cost_model) };
    }

    fn is_over(&self) -> bool {
        let [first, next, late] = SLACK_DIVISORS;
        let part = match self.attempts {
            ..=1 => first,
            2..ATTEMPTS => next,
            _ => late,
        };
        let is_near = self.output - self.fits.output_bytes <= self.output / part;
        is_near || self.fits.input_bytes == self.input || self.attempts >= ATTEMPTS_MAX
    }

    /// The next length, strictly between what fits and what does not.
    fn place(&self, input: &[u8], cost_model: &mut CostModel) -> Option<usize> {
        let target_bytes = Self::target_bytes(self.output) as u64;
        let EncodedSizes { input_bytes: taken, output_bytes: bytes } = self.fits;
        let (bytes, cost) = (bytes as u64, cost_model.cost(input, taken));
        let along =
            |rise: u64, run: u64, wanted: u64| (wanted * run / rise.max(1)) << self.repeated;
        let place = match self.exceeds {
            None => cost + along(bytes, cost, target_bytes.saturating_sub(bytes)).max(1),
            Some((length, more)) => {
                let beyond = cost_model.cost(input, length);
                let middle = cost.midpoint(beyond);
                let run = beyond.saturating_sub(cost);
                let place = more.map(|more| more as u64).map_or(middle, |more| {
                    let line = |wanted| along(more - bytes, run, wanted);
                    if self.last_fitted {
                        cost + line(target_bytes.saturating_sub(bytes))
                    } else {
                        beyond.saturating_sub(line(more - target_bytes))
                    }
                });
                if cost < place && place < beyond { place } else { middle }
            }
        };
        let place = cost_model.length(input, place);
        let beyond = self.exceeds.map_or(self.input + 1, |(length, _)| length);
        // Where costs do not help, halve what is between.
        let is_between = taken < place && (place < beyond || self.exceeds.is_none());
        let place = if is_between { place } else { taken.midpoint(beyond) };
        let place = place.min(beyond - 1).max(taken + 1);
        (place < beyond).then_some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of a vocabulary that grows and shrinks, with noise between them: no two parts are
    /// alike.
    fn changing(length: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_041);
            (state >> 40) as usize
        };
        let mut data = Vec::new();
        while data.len() < length {
            let (words, noise) = (16 << (next() % 8), next() % 8);
            for _ in 0..2000 {
                let word = (next() % words + 1) * 0x9E37_79B1;
                data.extend_from_slice(&word.to_le_bytes()[..3 + word % 5]);
                data.extend((0..noise % 4).map(|_| next().to_le_bytes()[0]));
            }
        }
        data.truncate(length);
        data
    }

    #[test]
    fn a_pcluster_takes_two_attempts_on_average_and_few_more() {
        let input = changing(3 << 20);
        for (level, output_bytes) in [(1, 4096), (3, 4096), (3, 16_384), (3, 65_536), (9, 65_536)] {
            let mut encode = ZstdEncoder::new(level, 19, output_bytes).unwrap();
            let mut output = vec![0; output_bytes];
            let (mut at, mut clusters) = (0, 0);
            while input.len() - at > 8 * output_bytes {
                at += encode.fill(&input[at..], &mut output).unwrap().input_bytes;
                clusters += 1;
            }
            let encodes = encode.encodes;
            assert!(encodes * 10 <= clusters * 24, "level {level}: {encodes} for {clusters}");
        }
    }
}
