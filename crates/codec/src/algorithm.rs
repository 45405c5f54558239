//! The names of the four compressed formats. Owns no number of the disk format.

use std::fmt;

/// A compressed format that EROFS knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// An LZ4 block, without a frame.
    Lz4,
    /// MicroLZMA: an LZMA1 stream whose first byte is its inverted properties byte.
    Lzma,
    /// Raw DEFLATE, without a zlib or gzip wrapper.
    Deflate,
    /// One Zstandard frame.
    Zstd,
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lz4 => "lz4",
            Self::Lzma => "lzma",
            Self::Deflate => "deflate",
            Self::Zstd => "zstd",
        })
    }
}
