//! The numbers and names of the compression algorithms. A file of its own, since errors name algorithms.

use std::fmt;

/// A compression algorithm by its number on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AlgorithmId {
    /// 0: LZ4 blocks.
    Lz4,
    /// 1: MicroLZMA.
    Lzma,
    /// 2: raw DEFLATE.
    Deflate,
    /// 3: ZSTD frames.
    Zstd,
}

impl AlgorithmId {
    /// All algorithms, by number.
    pub const ALL: [Self; 4] = [Self::Lz4, Self::Lzma, Self::Deflate, Self::Zstd];

    /// The number of this algorithm.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Lz4 => 0,
            Self::Lzma => 1,
            Self::Deflate => 2,
            Self::Zstd => 3,
        }
    }

    /// The bit of this algorithm in the superblock's bitmap.
    #[must_use]
    pub const fn bit(self) -> u16 {
        match self {
            Self::Lz4 => 1,
            Self::Lzma => 2,
            Self::Deflate => 4,
            Self::Zstd => 8,
        }
    }

    /// The name that tools use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lz4 => "lz4",
            Self::Lzma => "lzma",
            Self::Deflate => "deflate",
            Self::Zstd => "zstd",
        }
    }
}

impl fmt::Display for AlgorithmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
