//! The decoder: picks the codec, strips the padding and names the algorithm in errors.

use std::fmt;

use crate::deflate::DeflateDecoder;
use crate::lz4::Lz4Decoder;
use crate::lzma::LzmaDecoder;
use crate::stream::{Algorithm, DecodeMode, Lz4Part, Padding, without_leading_zeros};
use crate::zstd::ZstdDecoder;
use crate::{Error, ErrorKind};

/// Which decoders [`Decoder::new`] makes.
///
/// The numbers are those of an image's compression configurations. The default is LZ4 alone.
///
/// ```
/// use ferrofs_codec::{Decoder, DecoderSettings};
///
/// let settings = DecoderSettings::none().deflate(true).zstd_window_log(Some(15));
/// assert!(Decoder::new(&settings)?.memory_bytes() <= settings.memory_bytes_max());
/// # Ok::<(), ferrofs_codec::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct DecoderSettings {
    /// Make an LZ4 decoder for streams whose matches reach back up to this many bytes; 0 stands for
    /// 65,535, as on disk. It needs no memory. A match that reaches back farther is an error.
    /// Looking for one takes a pass over the stream, except for 65,535, the largest distance that
    /// can be written.
    pub lz4_max_distance: Option<u16>,
    /// Make a MicroLZMA decoder for streams with a dictionary of this many bytes: at most 8 MiB;
    /// less than 4 KiB counts as 4 KiB. It costs no memory, as the output is the dictionary. A
    /// match that reaches back farther is an error.
    pub lzma_dictionary_bytes: Option<u32>,
    /// Make a DEFLATE decoder.
    pub deflate: bool,
    /// Make a ZSTD decoder for frames with a window of up to two to this power bytes, 10 to 20.
    pub zstd_window_log: Option<u8>,
}

impl DecoderSettings {
    /// No decoder at all, to start from.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            lz4_max_distance: None,
            lzma_dictionary_bytes: None,
            deflate: false,
            zstd_window_log: None,
        }
    }

    /// Sets [`lz4_max_distance`](Self::lz4_max_distance), in bytes.
    #[must_use]
    pub const fn lz4_max_distance(mut self, bytes: Option<u16>) -> Self {
        self.lz4_max_distance = bytes;
        self
    }

    /// Sets [`lzma_dictionary_bytes`](Self::lzma_dictionary_bytes).
    #[must_use]
    pub const fn lzma_dictionary_bytes(mut self, bytes: Option<u32>) -> Self {
        self.lzma_dictionary_bytes = bytes;
        self
    }

    /// Sets whether there is a DEFLATE decoder.
    #[must_use]
    pub const fn deflate(mut self, deflate: bool) -> Self {
        self.deflate = deflate;
        self
    }

    /// Sets [`zstd_window_log`](Self::zstd_window_log), the logarithm of a length in bytes.
    #[must_use]
    pub const fn zstd_window_log(mut self, log: Option<u8>) -> Self {
        self.zstd_window_log = log;
        self
    }

    /// The most heap memory, in bytes, that [`Decoder::new`] takes with these settings, found
    /// without taking any: what a budget can be charged with beforehand.
    ///
    /// At most a few hundred bytes more than it does take. A window or dictionary that `new`
    /// refuses counts as nothing.
    #[must_use]
    pub fn memory_bytes_max(&self) -> usize {
        let Self { lz4_max_distance: _, lzma_dictionary_bytes, deflate, zstd_window_log } = *self;
        lzma_dictionary_bytes.map_or(0, LzmaDecoder::memory_bytes_max)
            + if deflate { DeflateDecoder::MEMORY_BYTES_MAX } else { 0 }
            + zstd_window_log.map_or(0, ZstdDecoder::memory_bytes_max)
    }
}

impl Default for DecoderSettings {
    /// LZ4 with matches of any distance, and nothing else.
    fn default() -> Self {
        Self::none().lz4_max_distance(Some(u16::MAX))
    }
}

/// Decodes pclusters, one at a time, with contexts that are made once.
///
/// Each thread has its own: it is `Send`, and each call borrows it exclusively.
pub struct Decoder {
    lz4: Option<Lz4Decoder>,
    lzma: Option<LzmaDecoder>,
    deflate: Option<DeflateDecoder>,
    zstd: Option<ZstdDecoder>,
}

impl Decoder {
    /// Makes the decoders that `settings` name, with all the memory that they will ever use.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnsupportedWindow`] for a dictionary or window that EROFS does not allow, and
    /// [`ErrorKind::OutOfMemory`].
    pub fn new(settings: &DecoderSettings) -> Result<Self, Error> {
        let DecoderSettings { lz4_max_distance, lzma_dictionary_bytes, deflate, zstd_window_log } =
            *settings;
        let name = |algorithm| move |kind| Error::new(algorithm, kind);
        let lzma = lzma_dictionary_bytes.map(LzmaDecoder::new).transpose();
        let deflate = deflate.then(DeflateDecoder::new).transpose();
        let zstd = zstd_window_log.map(ZstdDecoder::new).transpose();
        Ok(Self {
            lz4: lz4_max_distance.map(Lz4Decoder::new),
            lzma: lzma.map_err(name(Algorithm::Lzma))?,
            deflate: deflate.map_err(name(Algorithm::Deflate))?,
            zstd: zstd.map_err(name(Algorithm::Zstd))?,
        })
    }

    /// Decodes the stream in the pcluster `input` and fills `output` with it.
    ///
    /// After an error the content of `output` is unspecified, and the decoder can be used again. An
    /// empty [prefix](DecodeMode::Prefix) always succeeds, without a look at the input.
    ///
    /// DEFLATE and ZSTD streams flag their end, and bytes behind it are ignored. LZ4 and MicroLZMA
    /// streams end where `input` does.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotConfigured`] if the settings do not name the algorithm; otherwise any other
    /// kind, all of them caused by `input`.
    #[inline]
    pub fn decode(
        &mut self,
        algorithm: Algorithm,
        padding: Padding,
        input: &[u8],
        output: &mut [u8],
        mode: DecodeMode,
    ) -> Result<(), Error> {
        if output.is_empty() && mode == DecodeMode::Prefix {
            return Ok(());
        }
        let result = match algorithm {
            Algorithm::Lz4 => self.lz4().and_then(|lz4| lz4.decode(padding, input, output, mode)),
            Algorithm::Lzma => stream(self.lzma.as_mut(), input)
                .and_then(|(lzma, stream)| lzma.decode(stream, output, mode)),
            Algorithm::Deflate => stream(self.deflate.as_mut(), input)
                .and_then(|(deflate, stream)| deflate.decode(stream, output, mode)),
            Algorithm::Zstd => stream(self.zstd.as_mut(), input)
                .and_then(|(zstd, stream)| zstd.decode(stream, output, mode)),
        };
        result.map_err(|kind| Error::new(algorithm, kind))
    }

    /// Decodes the stream in the LZ4 pcluster `input` through `pages` and fills `output` with the
    /// bytes of the extent behind the first [`skip_bytes`](Lz4Part::skip_bytes).
    ///
    /// It takes no more memory than the pages, however long the extent is. There must be
    /// [`lz4_window_pages`](crate::lz4_window_pages) of them, for the declared distance and the
    /// bytes up to the end of the part (of the extent for [`DecodeMode::Whole`]), each at least
    /// [`LZ4_WINDOW_PAGE_BYTES`](crate::LZ4_WINDOW_PAGE_BYTES) long. No more pages are used, and no
    /// byte behind that length. Their content before the call is not read, and unspecified
    /// afterwards.
    ///
    /// It accepts what [`decode`](Self::decode) accepts of the same padding, mode and length (the
    /// extent's length for a whole, the part's end for a prefix), with the same bytes, and fails
    /// otherwise with the same kind of error. It is slower; docs/memory.md has the figures.
    ///
    /// After an error the content of `output` is unspecified. An empty part of a prefix always
    /// succeeds, without a look at the input.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotConfigured`] if the settings do not name LZ4; [`ErrorKind::OutsideExtent`]
    /// and [`ErrorKind::WindowTooSmall`] for mistakes of the caller; otherwise any other kind, all
    /// of them caused by `input`.
    pub fn decode_lz4_part<P: AsMut<[u8]>>(
        &self,
        input: &[u8],
        part: Lz4Part,
        output: &mut [u8],
        pages: &mut [P],
    ) -> Result<(), Error> {
        if output.is_empty() && part.mode == DecodeMode::Prefix {
            return Ok(());
        }
        let result = self.lz4().and_then(|lz4| lz4.decode_part(input, part, output, pages));
        result.map_err(|kind| Error::new(Algorithm::Lz4, kind))
    }

    fn lz4(&self) -> Result<Lz4Decoder, ErrorKind> {
        self.lz4.ok_or(ErrorKind::NotConfigured)
    }

    /// The heap memory that this decoder holds, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.lzma.as_ref().map_or(0, LzmaDecoder::memory_bytes)
            + self.deflate.as_ref().map_or(0, DeflateDecoder::memory_bytes)
            + self.zstd.as_ref().map_or(0, ZstdDecoder::memory_bytes)
    }
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder")
            .field("lz4", &self.lz4.is_some())
            .field("lzma", &self.lzma.is_some())
            .field("deflate", &self.deflate.is_some())
            .field("zstd", &self.zstd.is_some())
            .field("memory_bytes", &self.memory_bytes())
            .finish()
    }
}

/// The context, if it is configured, and the stream behind the padding, if there is one.
#[inline]
fn stream<T>(context: Option<T>, input: &[u8]) -> Result<(T, &[u8]), ErrorKind> {
    let context = context.ok_or(ErrorKind::NotConfigured)?;
    match without_leading_zeros(input) {
        [] => Err(ErrorKind::EmptyInput),
        stream => Ok((context, stream)),
    }
}
