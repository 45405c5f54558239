//! The encoder and its methods: checks parameters and lengths, picks the codec, and names the
//! algorithm in errors.

use std::fmt;

use crate::lzma::{self, LzmaContexts};
use crate::stream::{Algorithm, EncodedSizes};
use crate::{Error, ErrorKind};
use crate::{deflate, lz4, zstd};

/// The longest pcluster, in bytes (docs/format.md).
pub(crate) const PCLUSTER_BYTES_MAX: usize = 1 << 20;
/// The longest extent, in decoded bytes (docs/format.md).
pub(crate) const EXTENT_BYTES_MAX: usize = 12 << 20;

/// An algorithm with its parameters, as [`Encoder::new`](crate::Encoder::new) takes them.
///
/// Window and dictionary are what the image declares, so a decoder that is set up by the image
/// reads what was encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// LZ4, fast.
    Lz4 {
        /// The farthest that a match may reach back, in bytes: 4,096 to 65,535.
        max_distance: u16,
    },
    /// LZ4, thorough.
    Lz4Hc {
        /// 0 to 12, where 0 stands for 9.
        level: u8,
        /// The farthest that a match may reach back, in bytes: 4,096 to 65,535.
        max_distance: u16,
    },
    /// MicroLZMA.
    Lzma {
        /// A preset of liblzma: 0 to 9, or 100 to 109 for the extreme ones.
        level: u8,
        /// The declared dictionary, in bytes: 4 KiB to 8 MiB.
        dictionary_bytes: u32,
        /// What its models depend on.
        contexts: LzmaContexts,
    },
    /// DEFLATE with a window of 32 KiB.
    Deflate {
        /// 0 to 12, as libdeflate counts. Level 0 compresses nothing.
        level: u8,
    },
    /// Zstandard.
    Zstd {
        /// 0 to 22, where 0 stands for 3.
        level: i32,
        /// The declared window: two to this power bytes, 10 to 20.
        window_log: u8,
    },
}

impl Method {
    /// The format that it yields.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        match self {
            Self::Lz4 { .. } | Self::Lz4Hc { .. } => Algorithm::Lz4,
            Self::Lzma { .. } => Algorithm::Lzma,
            Self::Deflate { .. } => Algorithm::Deflate,
            Self::Zstd { .. } => Algorithm::Zstd,
        }
    }

    /// The most heap memory, in bytes, that [`Encoder::new`](crate::Encoder::new) takes, found
    /// without taking any: what a budget can be charged with beforehand. What `new` refuses counts
    /// as nothing.
    #[must_use]
    pub fn memory_bytes_max(&self, pcluster_bytes: usize, extent_bytes_max: usize) -> usize {
        if self.check(pcluster_bytes, extent_bytes_max).is_err() {
            return 0;
        }
        match *self {
            Self::Lz4 { max_distance } => lz4::encode::memory_bytes_max(None, max_distance),
            Self::Lz4Hc { level, max_distance } => {
                lz4::encode::memory_bytes_max(Some(level), max_distance)
            }
            Self::Lzma { level, dictionary_bytes, contexts } => {
                lzma::encode::LzmaPreset { level, dictionary_bytes, contexts }
                    .memory_bytes_max(extent_bytes_max)
            }
            Self::Deflate { level } => deflate::encode::memory_bytes_max(level, pcluster_bytes),
            Self::Zstd { level, window_log } => {
                zstd::encode::memory_bytes_max(level, window_log, pcluster_bytes)
            }
        }
    }

    /// Whether the parameters and lengths are in range.
    pub(crate) fn check(
        &self,
        pcluster_bytes: usize,
        extent_bytes: usize,
    ) -> Result<(), ErrorKind> {
        let is_level = match *self {
            Self::Lz4 { .. } => true,
            Self::Lz4Hc { level, .. } | Self::Deflate { level } => level <= 12,
            Self::Lzma { level, contexts, .. } => {
                (level <= 9 || (100..=109).contains(&level)) && contexts.is_valid()
            }
            Self::Zstd { level, .. } => (0..=22).contains(&level),
        };
        let is_window = match *self {
            Self::Lz4 { max_distance } | Self::Lz4Hc { max_distance, .. } => max_distance >= 4096,
            Self::Lzma { dictionary_bytes, .. } => (4 << 10..=8 << 20).contains(&dictionary_bytes),
            Self::Deflate { .. } => true,
            Self::Zstd { window_log, .. } => zstd::WINDOW_LOGS.contains(&window_log),
        };
        let is_length = (1..=PCLUSTER_BYTES_MAX).contains(&pcluster_bytes)
            && (1..=EXTENT_BYTES_MAX).contains(&extent_bytes);
        match (is_level, is_window, is_length) {
            (false, _, _) => Err(ErrorKind::UnsupportedLevel),
            (_, false, _) => Err(ErrorKind::UnsupportedWindow),
            (_, _, false) => Err(ErrorKind::UnsupportedLength),
            _ => Ok(()),
        }
    }
}

/// A shorter output holds no stream of any algorithm that is worth it.
const OUTPUT_BYTES_MIN: usize = 32;

/// Fills pclusters, one at a time, with contexts that are made once.
///
/// Each thread has its own: it is `Send`, and each call borrows it exclusively.
pub struct Encoder {
    method: Method,
    kind: EncoderKind,
    pcluster_bytes_max: usize,
    extent_bytes_max: usize,
}

enum EncoderKind {
    Lz4(lz4::encode::Lz4Encoder),
    Lzma(lzma::encode::LzmaEncoder),
    Deflate(deflate::encode::DeflateEncoder),
    Zstd(zstd::encode::ZstdEncoder),
}

impl Encoder {
    /// Makes an encoder for pclusters of up to `pcluster_bytes_max` and extents of up to
    /// `extent_bytes_max` decoded bytes, with all the memory that it will ever use.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnsupportedLevel`], [`ErrorKind::UnsupportedWindow`],
    /// [`ErrorKind::UnsupportedLength`] for parameters that are out of range (a pcluster has at
    /// most 1 MiB and an extent at most 12 MiB, docs/format.md), and [`ErrorKind::OutOfMemory`].
    pub fn new(
        method: &Method,
        pcluster_bytes_max: usize,
        extent_bytes_max: usize,
    ) -> Result<Self, Error> {
        Self::make(*method, pcluster_bytes_max, extent_bytes_max)
            .map_err(|kind| Error::new(method.algorithm(), kind))
    }

    fn make(method: Method, pcluster_bytes: usize, extent_bytes: usize) -> Result<Self, ErrorKind> {
        method.check(pcluster_bytes, extent_bytes)?;
        let kind = match method {
            Method::Lz4 { max_distance } => {
                EncoderKind::Lz4(lz4::encode::Lz4Encoder::new(None, max_distance)?)
            }
            Method::Lz4Hc { level, max_distance } => {
                EncoderKind::Lz4(lz4::encode::Lz4Encoder::new(Some(level), max_distance)?)
            }
            Method::Lzma { level, dictionary_bytes, contexts } => {
                let preset = lzma::encode::LzmaPreset { level, dictionary_bytes, contexts };
                EncoderKind::Lzma(lzma::encode::LzmaEncoder::new(preset, extent_bytes)?)
            }
            Method::Deflate { level } => {
                EncoderKind::Deflate(deflate::encode::DeflateEncoder::new(level, pcluster_bytes)?)
            }
            Method::Zstd { level, window_log } => EncoderKind::Zstd(
                zstd::encode::ZstdEncoder::new(level, window_log, pcluster_bytes)?,
            ),
        };
        let (pcluster_bytes_max, extent_bytes_max) = (pcluster_bytes, extent_bytes);
        Ok(Self { method, kind, pcluster_bytes_max, extent_bytes_max })
    }

    /// Encodes the longest prefix of `input` that fits into `output`. The stream is at the start of
    /// `output` and never begins with a zero byte, so it can be moved to the end, behind zeros. The
    /// rest of `output` is unspecified. No more of `input` is encoded than the `extent_bytes_max`
    /// of [`new`](Self::new).
    ///
    /// None if no prefix gets shorter: then the input is better stored uncompressed.
    ///
    /// MicroLZMA is encoded in one run that ends when the output is full; the result depends only on the method,
    /// `input` and the length of `output`. For DEFLATE and ZSTD the length is searched for, starting from the ratio of
    /// the call before, and LZ4 has one of two tables, whichever was better at one of the last calls. So their results
    /// also depend on the calls since [`restart`](Self::restart).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TooLarge`] for an output longer than the `pcluster_bytes_max` of `new`, and
    /// [`ErrorKind::EncodingFailed`]. The encoder can be used again.
    pub fn fill(&mut self, input: &[u8], output: &mut [u8]) -> Result<Option<EncodedSizes>, Error> {
        self.fill_kind(input, output).map_err(|kind| Error::new(self.method.algorithm(), kind))
    }

    fn fill_kind(
        &mut self,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<Option<EncodedSizes>, ErrorKind> {
        if output.len() > self.pcluster_bytes_max {
            return Err(ErrorKind::TooLarge);
        }
        let input = &input[..input.len().min(self.extent_bytes_max)];
        if input.is_empty() || output.len() < OUTPUT_BYTES_MIN {
            return Ok(None);
        }
        let filled = match &mut self.kind {
            EncoderKind::Lz4(encode) => encode.fill(input, output)?,
            EncoderKind::Lzma(encode) => encode.fill(input, output)?,
            EncoderKind::Deflate(encode) => encode.fill(input, output)?,
            EncoderKind::Zstd(encode) => encode.fill(input, output)?,
        };
        Ok(Some(filled).filter(|filled| filled.input_bytes > filled.output_bytes))
    }

    /// Forgets the calls before: later results depend on the method and later calls alone.
    ///
    /// Call it at the start of each piece of work whose result must not depend on the thread.
    pub fn restart(&mut self) {
        match &mut self.kind {
            EncoderKind::Lzma(_) => {}
            EncoderKind::Lz4(encode) => encode.restart(),
            EncoderKind::Deflate(encode) => encode.restart(),
            EncoderKind::Zstd(encode) => encode.restart(),
        }
    }

    /// The heap memory that this encoder holds, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        match &self.kind {
            EncoderKind::Lz4(encode) => encode.memory_bytes(),
            EncoderKind::Lzma(encode) => encode.memory_bytes(),
            EncoderKind::Deflate(encode) => encode.memory_bytes(),
            EncoderKind::Zstd(encode) => encode.memory_bytes(),
        }
    }
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoder")
            .field("method", &self.method)
            .field("pcluster_bytes_max", &self.pcluster_bytes_max)
            .field("extent_bytes_max", &self.extent_bytes_max)
            .field("memory_bytes", &self.memory_bytes())
            .finish()
    }
}
