//! Compresses ranges of files into extents and whole-block pclusters. A worker owns one compressor; the
//! result depends on the range and the rules only. It knows nothing of addresses in the image.
//!
//! The decisions are those that keep images as small as the reference builder's: an extent is kept if
//! it takes at least a block less than its bytes; otherwise as many blocks as its pcluster would
//! have are stored plain, a block each, and encoding is tried again behind them.

pub(crate) mod digest;
#[cfg(test)]
pub(crate) mod memory_store;
pub(crate) mod output;
mod randomness;
pub(crate) mod recipes;
pub(crate) mod rules;
pub(crate) mod worker;

use ferrofs_codec::{Encoder, Filled, Method};
use ferrofs_ondisk::compression::AlgorithmId;

use crate::data::InlineExtent;
use crate::flat::{fits_inline, lay_chunks, lay_flat};
use crate::segment::Freedom;
use crate::{Error, ErrorKind, Result};
use digest::Digest;
use output::{Encoded, Form, Laid, Output, Tail};
use randomness::looks_random;
use rules::Rules;

/// Compresses ranges, with buffers and an encoder that are made once.
pub(crate) struct Compressor {
    rules: Rules,
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
pub(crate) struct Part<'b> {
    /// Its bytes.
    pub(crate) bytes: &'b [u8],
    /// Whether it ends the file.
    pub(crate) closes: bool,
    /// What it may end in.
    pub(crate) freedom: Freedom,
}

/// What became of the front of what is left.
enum Step {
    /// Extents of so many bytes.
    Extents(usize),
    /// All of it lies behind the inode.
    Inline(InlineExtent),
    /// All of it goes to the packed inode.
    Tail,
}

impl Compressor {
    /// With an encoder for `method`.
    pub(crate) fn new(rules: Rules, method: &Method) -> Result<Self> {
        let encoder = Encoder::new(method, rules.pcluster, rules.extent_max);
        let encoder = encoder.map_err(|error| Error::new(ErrorKind::Encoder(error)))?;
        let algorithm = match method {
            Method::Lz4 { .. } | Method::Lz4Hc { .. } => AlgorithmId::Lz4,
            Method::Lzma { .. } => AlgorithmId::Lzma,
            Method::Deflate { .. } => AlgorithmId::Deflate,
            Method::Zstd { .. } => AlgorithmId::Zstd,
        };
        let tests_for_randomness = !matches!(method, Method::Lz4 { .. });
        let (pcluster, other) = (vec![0; rules.pcluster], Vec::new());
        Ok(Self { rules, algorithm, tests_for_randomness, encoder, pcluster, other })
    }

    /// The memory that this holds, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.encoder.memory_bytes() + 2 * self.rules.pcluster) as u64
    }

    /// Compresses a part of a file, behind what `output` holds.
    pub(crate) fn compress(&mut self, part: Part<'_>, output: &mut Output) -> Result<Form> {
        self.encoder.restart();
        let (bytes_before, extents_before) = (output.bytes.len(), output.extents.len());
        let mut encoded = Encoded::default();
        let mut rest = part.bytes;
        while !rest.is_empty() {
            let step = self.step(Part { bytes: rest, ..part }, output)?;
            let taken = match step {
                Step::Extents(taken) => taken,
                Step::Inline(extent) => {
                    encoded.inline = Some(extent);
                    rest.len()
                }
                Step::Tail => {
                    encoded.tail = Some(Tail::of(rest));
                    rest.len()
                }
            };
            rest = rest.get(taken..).unwrap_or_default();
        }
        encoded.extents = extents_before..output.extents.len();
        if part.freedom.may_be_flat && self.gains_nothing(part, &encoded, output, bytes_before) {
            output.bytes.truncate(bytes_before);
            output.extents.truncate(extents_before);
            let Rules { block, inline_data, .. } = self.rules;
            return Ok(match self.rules.chunk {
                Some(chunk) => lay_chunks(part.bytes, (chunk, block), output),
                None => lay_flat(part.bytes, block, inline_data, output),
            });
        }
        if self.rules.shares_pclusters {
            encoded.digests = digests(output, &encoded, bytes_before);
        }
        Ok(Form::Encoded(encoded))
    }

    /// Whether the file would be no longer without compression, its index included.
    fn gains_nothing(
        &self,
        part: Part<'_>,
        encoded: &Encoded,
        output: &Output,
        bytes_before: usize,
    ) -> bool {
        // What a full index takes: a header, a gap, and 8 bytes for each block.
        let index = 16 + 8 * part.bytes.len().div_ceil(self.rules.block);
        let inline = encoded.inline.as_ref().map_or(0, |extent| extent.pcluster.len());
        let stored = output.bytes.len() - bytes_before + inline;
        encoded.tail.is_none() && stored + index >= part.bytes.len()
    }

    fn step(&mut self, part: Part<'_>, output: &mut Output) -> Result<Step> {
        let Rules { block, pcluster, .. } = self.rules;
        let rest = part.bytes;
        let may_end_apart = part.closes && part.freedom.may_end_apart;
        let may_pack = may_end_apart && self.rules.packs_tails;
        let may_inline = may_end_apart && self.rules.inline_pclusters && !may_pack;
        if may_pack && rest.len() <= pcluster {
            return Ok(Step::Tail);
        }
        if !may_inline && rest.len() <= block {
            return Ok(self.lay_plain(rest, 1, output));
        }
        let filled = self.fill(rest)?;
        let is_whole = filled.is_some_and(|filled| filled.taken == rest.len());
        let inline =
            filled.filter(|filled| may_inline && is_whole && fits_inline(filled.bytes, block));
        if let Some(Filled { bytes, .. }) = inline {
            let pcluster = self.pcluster.get(..bytes).unwrap_or_default().into();
            let algorithm = Some(self.algorithm);
            return Ok(Step::Inline(InlineExtent {
                bytes: rest.len() as u64,
                algorithm,
                pcluster,
            }));
        }
        let kept = filled.filter(|filled| filled.bytes.next_multiple_of(block) < filled.taken);
        let Some(kept) = kept else {
            if may_inline && fits_inline(rest.len(), block) {
                let extent = InlineExtent {
                    bytes: rest.len() as u64,
                    algorithm: None,
                    pcluster: rest.into(),
                };
                return Ok(Step::Inline(extent));
            }
            let taken = filled.map_or(pcluster, |filled| filled.taken.min(pcluster));
            return Ok(self.lay_plain(rest, (taken / block).max(1), output));
        };
        if may_pack && is_whole && kept.bytes < pcluster {
            return Ok(Step::Tail);
        }
        let kept = if may_inline && is_whole { self.try_shorter(rest, kept)? } else { kept };
        self.keep(kept, output);
        Ok(Step::Extents(kept.taken))
    }

    /// Encodes the front of `rest` into the scratch pcluster.
    fn fill(&mut self, rest: &[u8]) -> Result<Option<Filled>> {
        let window = rest.get(..self.rules.extent_max).unwrap_or(rest);
        // A pcluster's worth of random bytes gains nothing; that there is more behind it changes nothing.
        let front = window.get(..self.rules.pcluster).unwrap_or(window);
        if self.tests_for_randomness && looks_random(front) {
            return Ok(None);
        }
        let filled = self.encoder.fill(window, &mut self.pcluster);
        filled.map_err(|error| Error::new(ErrorKind::Encoder(error)))
    }

    /// The end of the file fills its last block only partly: if without that block nearly all of it is
    /// encoded, what is left may lie inline and a block is saved.
    fn try_shorter(&mut self, rest: &[u8], kept: Filled) -> Result<Filled> {
        let block = self.rules.block;
        let whole = kept.bytes - kept.bytes % block;
        if whole == kept.bytes || whole == 0 {
            return Ok(kept);
        }
        self.other.resize(whole, 0);
        let shorter = self.encoder.fill(rest, &mut self.other);
        let shorter = shorter.map_err(|error| Error::new(ErrorKind::Encoder(error)))?;
        let Some(shorter) = shorter else { return Ok(kept) };
        let left = rest.len().saturating_sub(shorter.taken);
        let is_better = shorter.bytes.next_multiple_of(block) < shorter.taken
            && shorter.bytes + left < kept.bytes.next_multiple_of(block);
        if !is_better {
            return Ok(kept);
        }
        if let (Some(to), Some(from)) =
            (self.pcluster.get_mut(..shorter.bytes), self.other.get(..shorter.bytes))
        {
            to.copy_from_slice(from);
        }
        Ok(shorter)
    }

    /// Appends the scratch pcluster, behind the zeros that fill up its blocks.
    fn keep(&self, kept: Filled, output: &mut Output) {
        let whole = kept.bytes.next_multiple_of(self.rules.block);
        let padded = output.bytes.len() + whole - kept.bytes;
        output.bytes.resize(padded, 0);
        output.bytes.extend_from_slice(self.pcluster.get(..kept.bytes).unwrap_or_default());
        output.extents.push(Laid {
            bytes: as_u32(kept.taken),
            algorithm: Some(self.algorithm),
            pcluster_bytes: as_u32(whole),
        });
    }

    /// Appends at most so many blocks of `rest` as they are, each an extent.
    fn lay_plain(&self, rest: &[u8], blocks: usize, output: &mut Output) -> Step {
        let block = self.rules.block;
        let taken = rest.len().min(blocks * block);
        for chunk in rest.get(..taken).unwrap_or_default().chunks(block) {
            output.bytes.extend_from_slice(chunk);
            let pcluster_bytes = as_u32(block);
            let bytes = as_u32(chunk.len());
            output.extents.push(Laid { bytes, algorithm: None, pcluster_bytes });
        }
        // Only the last block can be short.
        let missing = taken.next_multiple_of(block) - taken;
        output.bytes.resize(output.bytes.len() + missing, 0);
        Step::Extents(taken)
    }
}

/// Lengths of extents and pclusters, which are shorter than a segment.
fn as_u32(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// The digests of all pclusters that were appended.
fn digests(output: &Output, encoded: &Encoded, mut at: usize) -> Vec<Digest> {
    let extents = output.extents.get(encoded.extents.clone()).unwrap_or_default();
    let digest = |extent: &Laid| {
        let end = at + extent.pcluster_bytes as usize;
        let digest = Digest::of(output.bytes.get(at..end).unwrap_or_default());
        at = end;
        digest
    };
    extents.iter().map(digest).collect()
}
