//! Compresses ranges of files into extents and whole-block pclusters. A thread owns its compressors; the
//! result depends on the range and the parameters only. It knows nothing of addresses in the image.
//!
//! The decisions are those of mkfs.erofs: an extent is kept if it takes at least a block less than its bytes;
//! otherwise as many blocks as its pcluster would have are stored plain, a block each, and encoding is tried
//! again behind them.

pub(crate) mod batch;
pub(crate) mod profiles;

use ferrofs_codec::{EncodedSizes, Encoder, Method};
use ferrofs_ondisk::compression::AlgorithmId;
use ferrofs_workers::CancelToken;

use crate::compress::batch::{
    BatchOutput, EncodedRange, FileTail, PlacedExtent, StoredForm, fits_inline, store_chunks,
    store_flat,
};
use crate::compress::profiles::{DataParams, disk_algorithm};
use crate::context::check_cancelled;
use crate::data_map::InlineExtent;
use crate::digest::Sha256Digest;
use crate::split::EncodeConstraints;
use crate::{Error, ErrorKind, Result};

/// Compresses ranges, with buffers and an encoder that are made once.
pub(crate) struct RangeCompressor {
    params: DataParams,
    algorithm: AlgorithmId,
    /// LZ4 is through with random bytes sooner than a test for them.
    tests_for_randomness: bool,
    encoder: Encoder,
    /// The pcluster that is being made, and a second one to compare with.
    pcluster: Vec<u8>,
    other: Vec<u8>,
}

/// A range of a file that is to be compressed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RangeInput<'b> {
    /// Its bytes.
    pub(crate) bytes: &'b [u8],
    /// Whether it ends the file.
    pub(crate) ends_file: bool,
    /// What it may end in.
    pub(crate) constraints: EncodeConstraints,
}

/// What became of the front of what is left.
enum EncodeStep {
    /// Extents of so many bytes.
    Extents(usize),
    /// All of it lies behind the inode.
    Inline(InlineExtent),
    /// All of it goes to the packed inode.
    Tail,
}

impl RangeCompressor {
    /// With an encoder for `method`.
    pub(crate) fn new(params: DataParams, method: &Method) -> Result<Self> {
        let encoder = Encoder::new(method, params.pcluster, params.extent_max);
        let encoder = encoder.map_err(|error| Error::new(ErrorKind::Encoder(error)))?;
        let algorithm = disk_algorithm(method.algorithm());
        let tests_for_randomness = !matches!(method, Method::Lz4 { .. });
        let (pcluster, other) = (vec![0; params.pcluster], Vec::new());
        Ok(Self { params, algorithm, tests_for_randomness, encoder, pcluster, other })
    }

    /// The memory that this holds, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.encoder.memory_bytes() + 2 * self.params.pcluster) as u64
    }

    /// Compresses a part of a file, behind what `output` holds. It reads `cancel` before each extent, as a segment can
    /// take seconds.
    pub(crate) fn compress(
        &mut self,
        part: RangeInput<'_>,
        output: &mut BatchOutput,
        cancel: &CancelToken,
    ) -> Result<StoredForm> {
        self.encoder.restart();
        let (bytes_before, extents_before) = (output.bytes.len(), output.extents.len());
        let mut encoded = EncodedRange::default();
        let mut rest = part.bytes;
        while !rest.is_empty() {
            check_cancelled(cancel)?;
            let step = self.step(RangeInput { bytes: rest, ..part }, output)?;
            let taken = match step {
                EncodeStep::Extents(taken) => taken,
                EncodeStep::Inline(extent) => {
                    encoded.inline = Some(extent);
                    rest.len()
                }
                EncodeStep::Tail => {
                    encoded.tail = Some(FileTail::of(rest));
                    rest.len()
                }
            };
            rest = rest.get(taken..).unwrap_or_default();
        }
        encoded.extents = extents_before..output.extents.len();
        if part.constraints.may_be_flat && self.gains_nothing(part, &encoded, output, bytes_before)
        {
            output.bytes.truncate(bytes_before);
            output.extents.truncate(extents_before);
            let DataParams { block, inline_data, .. } = self.params;
            return Ok(match self.params.chunk {
                Some(chunk) => store_chunks(part.bytes, chunk, block, output),
                None => store_flat(part.bytes, block, inline_data, output),
            });
        }
        if self.params.shares_pclusters {
            encoded.digests = digests(output, &encoded, bytes_before);
        }
        Ok(StoredForm::Encoded(encoded))
    }

    /// Whether the file would be no longer without compression, its index included.
    fn gains_nothing(
        &self,
        part: RangeInput<'_>,
        encoded: &EncodedRange,
        output: &BatchOutput,
        bytes_before: usize,
    ) -> bool {
        // What a full index takes: a header, a gap, and 8 bytes for each block.
        let index = 16 + 8 * part.bytes.len().div_ceil(self.params.block);
        let inline = encoded.inline.as_ref().map_or(0, |extent| extent.pcluster.len());
        let stored = output.bytes.len() - bytes_before + inline;
        encoded.tail.is_none() && stored + index >= part.bytes.len()
    }

    fn step(&mut self, part: RangeInput<'_>, output: &mut BatchOutput) -> Result<EncodeStep> {
        let DataParams { block, pcluster, .. } = self.params;
        let rest = part.bytes;
        let may_end_apart = part.ends_file && part.constraints.may_end_apart;
        let may_pack = may_end_apart && self.params.packs_tails;
        let may_inline = may_end_apart && self.params.inline_pclusters && !may_pack;
        if may_pack && rest.len() <= pcluster {
            return Ok(EncodeStep::Tail);
        }
        if !may_inline && rest.len() <= block {
            return Ok(self.store_plain(rest, 1, output));
        }
        let filled = self.fill(rest)?;
        let is_whole = filled.is_some_and(|filled| filled.input_bytes == rest.len());
        let inline = filled
            .filter(|filled| may_inline && is_whole && fits_inline(filled.output_bytes, block));
        if let Some(EncodedSizes { output_bytes: bytes, .. }) = inline {
            let pcluster = self.pcluster.get(..bytes).unwrap_or_default().into();
            let algorithm = Some(self.algorithm);
            return Ok(EncodeStep::Inline(InlineExtent {
                bytes: rest.len() as u64,
                algorithm,
                pcluster,
            }));
        }
        let kept = filled
            .filter(|filled| filled.output_bytes.next_multiple_of(block) < filled.input_bytes);
        let Some(kept) = kept else {
            if may_inline && fits_inline(rest.len(), block) {
                let extent = InlineExtent {
                    bytes: rest.len() as u64,
                    algorithm: None,
                    pcluster: rest.into(),
                };
                return Ok(EncodeStep::Inline(extent));
            }
            let taken = filled.map_or(pcluster, |filled| filled.input_bytes.min(pcluster));
            return Ok(self.store_plain(rest, (taken / block).max(1), output));
        };
        if may_pack && is_whole && kept.output_bytes < pcluster {
            return Ok(EncodeStep::Tail);
        }
        let kept = if may_inline && is_whole { self.try_shorter(rest, kept)? } else { kept };
        self.keep(kept, output);
        Ok(EncodeStep::Extents(kept.input_bytes))
    }

    /// Encodes the front of `rest` into the scratch pcluster.
    fn fill(&mut self, rest: &[u8]) -> Result<Option<EncodedSizes>> {
        let window = rest.get(..self.params.extent_max).unwrap_or(rest);
        // A pcluster's worth of random bytes gains nothing; that there is more behind it changes nothing.
        let front = window.get(..self.params.pcluster).unwrap_or(window);
        if self.tests_for_randomness && looks_random(front) {
            return Ok(None);
        }
        let filled = self.encoder.fill(window, &mut self.pcluster);
        filled.map_err(|error| Error::new(ErrorKind::Encoder(error)))
    }

    /// The end of the file fills its last block only partly: if without that block nearly all of it is
    /// encoded, what is left may lie inline and a block is saved.
    fn try_shorter(&mut self, rest: &[u8], kept: EncodedSizes) -> Result<EncodedSizes> {
        let block = self.params.block;
        let whole = kept.output_bytes - kept.output_bytes % block;
        if whole == kept.output_bytes || whole == 0 {
            return Ok(kept);
        }
        self.other.resize(whole, 0);
        let shorter = self.encoder.fill(rest, &mut self.other);
        let shorter = shorter.map_err(|error| Error::new(ErrorKind::Encoder(error)))?;
        let Some(shorter) = shorter else { return Ok(kept) };
        let left = rest.len().saturating_sub(shorter.input_bytes);
        let is_better = shorter.output_bytes.next_multiple_of(block) < shorter.input_bytes
            && shorter.output_bytes + left < kept.output_bytes.next_multiple_of(block);
        if !is_better {
            return Ok(kept);
        }
        if let (Some(to), Some(from)) =
            (self.pcluster.get_mut(..shorter.output_bytes), self.other.get(..shorter.output_bytes))
        {
            to.copy_from_slice(from);
        }
        Ok(shorter)
    }

    /// Appends the scratch pcluster, behind the zeros that fill up its blocks.
    fn keep(&self, kept: EncodedSizes, output: &mut BatchOutput) {
        let whole = kept.output_bytes.next_multiple_of(self.params.block);
        let padded = output.bytes.len() + whole - kept.output_bytes;
        output.bytes.resize(padded, 0);
        output.bytes.extend_from_slice(self.pcluster.get(..kept.output_bytes).unwrap_or_default());
        output.extents.push(PlacedExtent {
            bytes: as_u32(kept.input_bytes),
            algorithm: Some(self.algorithm),
            pcluster_bytes: as_u32(whole),
        });
    }

    /// Appends at most so many blocks of `rest` as they are, each an extent.
    fn store_plain(&self, rest: &[u8], blocks: usize, output: &mut BatchOutput) -> EncodeStep {
        let block = self.params.block;
        let taken = rest.len().min(blocks * block);
        for chunk in rest.get(..taken).unwrap_or_default().chunks(block) {
            output.bytes.extend_from_slice(chunk);
            let pcluster_bytes = as_u32(block);
            let bytes = as_u32(chunk.len());
            output.extents.push(PlacedExtent { bytes, algorithm: None, pcluster_bytes });
        }
        // Only the last block can be short.
        let missing = taken.next_multiple_of(block) - taken;
        output.bytes.resize(output.bytes.len() + missing, 0);
        EncodeStep::Extents(taken)
    }
}

/// Lengths of extents and pclusters, which are shorter than a segment.
fn as_u32(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// The digests of all pclusters that were appended.
fn digests(output: &BatchOutput, encoded: &EncodedRange, mut at: usize) -> Vec<Sha256Digest> {
    let extents = output.extents.get(encoded.extents.clone()).unwrap_or_default();
    let digest = |extent: &PlacedExtent| {
        let end = at + extent.pcluster_bytes as usize;
        let digest = Sha256Digest::of(output.bytes.get(at..end).unwrap_or_default());
        at = end;
        digest
    };
    extents.iter().map(digest).collect()
}

/// Fewer bytes than this are no sample.
const SAMPLE_BYTES_MIN: usize = 2048;
/// More bytes than this do not improve the test.
const SAMPLE_BYTES_MAX: usize = 16 << 10;
/// The table in which repeats of four bytes are looked for.
const TABLE_BITS: u32 = 12;

/// Whether the bytes look as if they were random: all values equally frequent, and no run of four
/// bytes seen twice near each other. What an encoder of entropy or of matches would gain on such
/// bytes is less than a block in a hundred.
pub(crate) fn looks_random(bytes: &[u8]) -> bool {
    let Some(front) = bytes.get(..SAMPLE_BYTES_MIN) else { return false };
    // Most files fail on their first bytes.
    is_even(front) && {
        let mut samples =
            bytes.chunks(SAMPLE_BYTES_MAX).filter(|sample| sample.len() >= SAMPLE_BYTES_MIN);
        samples.all(is_even) && !has_repeats(bytes)
    }
}

/// Whether the values of the bytes are as evenly spread as those of random bytes.
///
/// The sum of the squares of the counts is n + n²/256 for random bytes, with a deviation of about
/// n·√(2/256); an order-0 encoder gains something only where it is clearly more.
fn is_even(bytes: &[u8]) -> bool {
    let mut counts = [0_u32; 256];
    for &byte in bytes {
        if let Some(count) = counts.get_mut(usize::from(byte)) {
            *count += 1;
        }
    }
    let squares: u64 = counts.iter().map(|&count| u64::from(count) * u64::from(count)).sum();
    let count = bytes.len() as u64;
    let expected = count + count * count / 256;
    squares < expected + count / 2
}

/// Whether more runs of four bytes come twice than chance explains.
fn has_repeats(bytes: &[u8]) -> bool {
    let mut seen = vec![0_u32; 1 << TABLE_BITS];
    let mut repeats = 0_usize;
    // Of one run in so many, chosen by its bytes, a second table keeps all there are: repeats of any distance. None of
    // equal bytes is chosen, as a few of these in random bytes gain nothing.
    let rate = (bytes.len() >> (TABLE_BITS - 1)).next_power_of_two();
    let choice = u32::try_from(rate - 1).unwrap_or(u32::MAX);
    let mut chosen = vec![0_u32; 1 << TABLE_BITS];
    let mut far = 0_usize;
    for run in bytes.windows(4) {
        let Ok(run) = <[u8; 4]>::try_from(run) else { continue };
        let value = u32::from_le_bytes(run);
        let slot = value.wrapping_mul(0x9e37_79b1) >> (32 - TABLE_BITS);
        if let Some(place) = seen.get_mut(slot as usize) {
            repeats += usize::from(*place == value);
            *place = value;
        }
        if value & choice == 0
            && value != value.rotate_left(8)
            && let Some(place) = chosen.get_mut(slot as usize)
        {
            far += usize::from(*place == value);
            *place = value;
        }
    }
    // A match of four bytes gains about one; one in 512 bytes is less than the loss elsewhere.
    repeats > bytes.len() / 512 + 2 || far > bytes.len() / rate / 512 + 2
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that nothing compresses.
    fn noise(count: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let step = |_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        (0..count).map(step).collect()
    }

    #[test]
    fn a_cancelled_range_is_encoded_no_further() {
        let methods = vec![Method::Lz4 { max_distance: u16::MAX }];
        let algorithms = Some(crate::Algorithms { default: 0, methods });
        let options = crate::BuildOptions::default().algorithms(algorithms);
        let mut compressor = profiles::CompressionProfiles::new(&options)
            .and_then(|profiles| profiles.compressor(0))
            .unwrap();
        let constraints = EncodeConstraints::default();
        let part = RangeInput { bytes: &vec![7; 100_000], ends_file: true, constraints };
        let (mut output, cancel) = (BatchOutput::default(), CancelToken::new());
        compressor.compress(part, &mut output, &cancel).unwrap();
        cancel.cancel();
        let error = compressor.compress(part, &mut output, &cancel).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Cancelled), "{error}");
    }

    #[test]
    fn noise_looks_random_and_text_does_not() {
        assert!(looks_random(&noise(65536)));
        let text = b"the bytes of a text have few values and come again ".repeat(1000);
        assert!(!looks_random(&text));
    }

    #[test]
    fn noise_that_comes_twice_does_not_look_random() {
        let mut twice = noise(2048);
        twice.extend_from_within(..);
        assert!(!looks_random(&twice));
    }

    #[test]
    fn few_bytes_never_look_random() {
        assert!(!looks_random(&noise(1000)));
    }

    #[test]
    fn repeats_at_any_distance_are_seen() {
        let bytes = noise(1 << 20);
        assert!(looks_random(&bytes));
        for distance in [100, 5000, 30_000, 60_000, 300_000, 500_000] {
            let repeated = [&bytes[..distance], &bytes[..distance]].concat();
            let is_sample = repeated.len() >= SAMPLE_BYTES_MIN;
            assert!(!is_sample || !looks_random(&repeated), "{distance}");
        }
    }

    #[test]
    fn a_few_equal_bytes_in_noise_are_no_repeats() {
        for length in [1 << 16, 1 << 18, 1 << 20] {
            for byte in [0, 0xff, 0xb1] {
                let mut bytes = noise(length);
                bytes[length / 2..length / 2 + 16].fill(byte);
                assert!(looks_random(&bytes), "{length} {byte}");
            }
        }
    }

    #[test]
    fn every_part_is_a_sample() {
        let bytes = noise(1 << 18);
        let digits: Vec<u8> = bytes.iter().map(|byte| byte & 0x3f).collect();
        for at in [SAMPLE_BYTES_MAX, 3 * SAMPLE_BYTES_MAX, 15 * SAMPLE_BYTES_MAX] {
            let mixed = [&bytes[..at], &digits[at..at + SAMPLE_BYTES_MAX]].concat();
            assert!(!looks_random(&mixed), "{at}");
        }
    }
}
