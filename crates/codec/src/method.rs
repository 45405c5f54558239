//! How to encode: one algorithm and its parameters, and what they cost. Checked by `Encoder::new`.

use crate::Algorithm;
use crate::error::ErrorKind;
use crate::{deflate, lz4, lzma, zstd};

/// The longest pcluster, in bytes (docs/format.md).
pub(crate) const PCLUSTER_BYTES_MAX: usize = 1 << 20;
/// The longest extent, in decoded bytes (docs/format.md).
pub(crate) const EXTENT_BYTES_MAX: usize = 12 << 20;

/// An algorithm with its parameters, as [`Encoder::new`](crate::Encoder::new) takes them.
///
/// Window and dictionary are what the image declares, so a decoder that is set up by the image reads
/// what was encoded.
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
            Self::Lzma { level, dictionary_bytes } => {
                lzma::encode::memory_bytes_max(level, dictionary_bytes, extent_bytes_max)
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
            Self::Lzma { level, .. } => level <= 9 || (100..=109).contains(&level),
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
