//! The one entry of encoding: checks lengths, picks the kind and names the algorithm in errors.

use std::fmt;

use crate::{Error, ErrorKind, Method};
use crate::{deflate, lz4, lzma, zstd};

/// Less output than this holds no stream of any algorithm that would gain something.
const OUTPUT_BYTES_MIN: usize = 32;

/// Fills pclusters, one at a time, with contexts that are made once.
///
/// A worker owns one; it can be sent to another thread and not be shared.
pub struct Encoder {
    method: Method,
    kind: EncoderKind,
    pcluster_bytes_max: usize,
    extent_bytes_max: usize,
}

/// What went into a pcluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EncodedSizes {
    /// The bytes of input, from its start, that the stream yields: more than `bytes`.
    pub taken: usize,
    /// The bytes of the stream, at the start of the output.
    pub bytes: usize,
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
    /// [`ErrorKind::UnsupportedLength`] for parameters that are out of range (a pcluster has at most
    /// 1 MiB and an extent at most 12 MiB, docs/format.md), and [`ErrorKind::OutOfMemory`].
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
            Method::Lzma { level, dictionary_bytes } => EncoderKind::Lzma(
                lzma::encode::LzmaEncoder::new(level, dictionary_bytes, extent_bytes)?,
            ),
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

    /// Encodes as long a prefix of `input` as fits into `output`, of which the stream takes the
    /// start; it never begins with a zero byte, so it can be moved to the end behind zeros. What is
    /// in the rest of `output` afterwards is unspecified. Of `input` no more than the
    /// `extent_bytes_max` of [`new`](Self::new) are looked at.
    ///
    /// None: no prefix was found that gets shorter, and the input is better stored as it is.
    ///
    /// LZ4 and MicroLZMA are encoded in one go that ends when the output is full, and the result
    /// depends on nothing but the method, `input` and the length of `output`. For DEFLATE and ZSTD
    /// the length is found by trying, starting where the ratio of the call before points to, so the
    /// result depends on the calls since [`restart`](Self::restart), and on nothing before that.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TooLarge`] for an output longer than the `pcluster_bytes_max` of `new`, and
    /// [`ErrorKind::EncodingFailed`]. The encoder is as good as before then.
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
        Ok(Some(filled).filter(|filled| filled.taken > filled.bytes))
    }

    /// Forgets the calls before: what follows depends on the method and on later calls alone.
    ///
    /// To be called at the start of each piece of work that must come out the same whoever does it.
    pub fn restart(&mut self) {
        match &mut self.kind {
            EncoderKind::Lz4(_) | EncoderKind::Lzma(_) => {}
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
