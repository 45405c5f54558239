//! Which decoders to make, and how large their windows are. Checked by `Decoder::new`.

use crate::deflate::DeflateDecoder;
use crate::lzma::LzmaDecoder;
use crate::zstd::ZstdDecoder;

/// Which decoders [`Decoder::new`](crate::Decoder::new) makes.
///
/// The numbers come from the compression configurations of an image. The default is LZ4 alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DecoderSettings {
    /// Make an LZ4 decoder for streams whose matches reach back up to this many bytes, where 0
    /// stands for 65,535, as on disk. It needs no memory. A match that reaches back farther is an
    /// error; looking for one costs a pass over the stream, but for 65,535, than which nothing is
    /// farther.
    pub lz4_max_distance: Option<u16>,
    /// Make a MicroLZMA decoder for streams with a dictionary of this many bytes: at most 8 MiB, and
    /// values under 4 KiB count as 4 KiB. It costs no memory, as the output is the dictionary; a
    /// match that reaches back farther than this is an error.
    pub lzma_dictionary_bytes: Option<u32>,
    /// Make a DEFLATE decoder.
    pub deflate: bool,
    /// Make a ZSTD decoder for frames with a window of up to two to this power bytes, 10 to 20.
    pub zstd_window_log: Option<u8>,
}

impl DecoderSettings {
    /// The most heap memory, in bytes, that [`Decoder::new`](crate::Decoder::new) takes with these
    /// settings, found without taking any: what a budget can be charged with beforehand.
    ///
    /// At most a few hundred bytes more than it does take. A window or dictionary that `new` refuses
    /// counts as nothing.
    #[must_use]
    pub fn memory_bytes_max(&self) -> usize {
        let Self { lz4_max_distance: _, lzma_dictionary_bytes, deflate, zstd_window_log } = *self;
        lzma_dictionary_bytes.map_or(0, LzmaDecoder::memory_bytes_max)
            + if deflate { DeflateDecoder::MEMORY_BYTES_MAX } else { 0 }
            + zstd_window_log.map_or(0, ZstdDecoder::memory_bytes_max)
    }
}

impl Default for DecoderSettings {
    fn default() -> Self {
        Self {
            lz4_max_distance: Some(u16::MAX),
            lzma_dictionary_bytes: None,
            deflate: false,
            zstd_window_log: None,
        }
    }
}
