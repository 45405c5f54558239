//! The compression algorithms of an image and their configuration records.
//!
//! With the feature `COMPR_CFGS` a record for each algorithm of the bitmap follows the superblock,
//! in ascending order; without it the same superblock field is the window of LZ4
//! (docs/format.md F5, F6). A builder gets both from [`CompressionConfig`].

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use crate::algorithm::AlgorithmId;
use crate::bytes::{fit, to_u64, view};
use crate::error::{Error, ErrorKind, Result};

/// Encoded bytes of one pcluster: at most 1 MiB.
pub const PCLUSTER_MAX_BYTES: u32 = 1 << 20;
/// The most blocks of a pcluster: an index has 11 bits for their number (docs/format.md F27, F64).
pub const PCLUSTER_MAX_BLOCKS: u32 = 2047;
/// Decoded bytes of one extent: at most 12 MiB.
pub const EXTENT_MAX_BYTES: u64 = 12 << 20;
/// The largest dictionary of MicroLZMA: 8 MiB.
pub const LZMA_MAX_DICTIONARY_BYTES: u32 = 8 << 20;
/// The smallest dictionary of MicroLZMA.
pub const LZMA_MIN_DICTIONARY_BYTES: u32 = 4096;
/// The largest window of ZSTD as a shift: 1 MiB.
pub const ZSTD_MAX_WINDOW_LOG: u8 = 20;
/// The smallest window of ZSTD as a shift; stored window logs are relative to it.
pub const ZSTD_MIN_WINDOW_LOG: u8 = 10;

impl AlgorithmId {
    /// The algorithm with this number.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownAlgorithm`] above 3.
    pub fn from_number(number: u8) -> Result<Self> {
        let found = Self::ALL.get(usize::from(number)).copied();
        found.ok_or_else(|| Error::new(ErrorKind::UnknownAlgorithm(number), 0))
    }
}

/// The algorithms of an image and their parameters; `None` where an image has not declared one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompressionConfig {
    /// LZ4: the farthest a match reaches back, in bytes (1..=65,535; 65,535 where unstated).
    pub lz4_max_distance: Option<u16>,
    /// MicroLZMA: dictionary in bytes (4 KiB..=8 MiB).
    pub lzma_dictionary_bytes: Option<u32>,
    /// DEFLATE: window as a shift (8..=15).
    pub deflate_window_bits: Option<u8>,
    /// ZSTD: window as a shift (10..=20).
    pub zstd_window_log: Option<u8>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawLz4 {
    max_distance: U16,
    max_pcluster_blocks: U16,
    _reserved: [u8; 10],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawLzma {
    dictionary_bytes: U32,
    format: U16,
    _reserved: [u8; 8],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawDeflate {
    window_bits: u8,
    _reserved: [u8; 5],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawZstd {
    format: u8,
    window_log: u8,
    _reserved: [u8; 4],
}

impl CompressionConfig {
    /// What an image without configuration records declares: LZ4 with this window.
    #[must_use]
    pub fn lz4_only(max_distance: u16) -> Self {
        let lz4_max_distance = Some(if max_distance == 0 { u16::MAX } else { max_distance });
        Self { lz4_max_distance, ..Self::default() }
    }

    /// Whether the image declares `algorithm`.
    #[must_use]
    pub const fn has(&self, algorithm: AlgorithmId) -> bool {
        match algorithm {
            AlgorithmId::Lz4 => self.lz4_max_distance.is_some(),
            AlgorithmId::Lzma => self.lzma_dictionary_bytes.is_some(),
            AlgorithmId::Deflate => self.deflate_window_bits.is_some(),
            AlgorithmId::Zstd => self.zstd_window_log.is_some(),
        }
    }

    /// The bitmap of the algorithms, for the superblock of an image with `COMPR_CFGS`.
    #[must_use]
    pub fn algorithm_bits(&self) -> u16 {
        let declared = AlgorithmId::ALL.into_iter().filter(|algorithm| self.has(*algorithm));
        declared.fold(0, |bits, algorithm| bits | algorithm.bit())
    }

    /// The configuration records, as they follow the superblock of an image with `COMPR_CFGS`: in
    /// ascending order, each with its length in front and aligned to 4 bytes (F6).
    /// `max_pcluster_blocks` is the largest pcluster of LZ4 in blocks; the others do not record it.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a parameter out of its range.
    pub fn records(&self, max_pcluster_blocks: u16) -> Result<Vec<u8>> {
        let mut records = Vec::new();
        if let Some(distance) = self.lz4_max_distance {
            push_record(&mut records, &lz4_record(distance, max_pcluster_blocks)?)?;
        }
        if let Some(size) = self.lzma_dictionary_bytes {
            push_record(&mut records, &lzma_record(size)?)?;
        }
        if let Some(bits) = self.deflate_window_bits {
            push_record(&mut records, &deflate_record(bits)?)?;
        }
        if let Some(log) = self.zstd_window_log {
            push_record(&mut records, &zstd_record(log)?)?;
        }
        Ok(records)
    }

    /// Adds the record of `algorithm`; `record` is the payload after its length field.
    ///
    /// # Errors
    /// [`ErrorKind::ConfigTooShort`], or [`ErrorKind::Config`] for a value out of range.
    pub fn add_record(&mut self, algorithm: AlgorithmId, record: &[u8]) -> Result<()> {
        let added = match algorithm {
            AlgorithmId::Lz4 => self.add_lz4(record),
            AlgorithmId::Lzma => self.add_lzma(record),
            AlgorithmId::Deflate => self.add_deflate(record),
            AlgorithmId::Zstd => self.add_zstd(record),
        };
        added.map_err(|error| match error.kind() {
            ErrorKind::Truncated { got, .. } => {
                let length = u16::try_from(*got).unwrap_or(u16::MAX);
                Error::new(ErrorKind::ConfigTooShort { algorithm, length }, 0)
            }
            _ => error,
        })
    }

    fn add_lz4(&mut self, record: &[u8]) -> Result<()> {
        let raw: &RawLz4 = view(record)?;
        let blocks = raw.max_pcluster_blocks.get();
        // The smallest block has 512 bytes; more blocks than this never fit a pcluster.
        if u32::from(blocks) > PCLUSTER_MAX_BYTES >> 9 {
            return Err(out_of_range(AlgorithmId::Lz4, "pcluster blocks", u32::from(blocks), 2));
        }
        self.lz4_max_distance = Self::lz4_only(raw.max_distance.get()).lz4_max_distance;
        Ok(())
    }

    fn add_lzma(&mut self, record: &[u8]) -> Result<()> {
        let raw: &RawLzma = view(record)?;
        let (size, format) = (raw.dictionary_bytes.get(), raw.format.get());
        if format != 0 {
            return Err(out_of_range(AlgorithmId::Lzma, "format", u32::from(format), 4));
        }
        if !(LZMA_MIN_DICTIONARY_BYTES..=LZMA_MAX_DICTIONARY_BYTES).contains(&size) {
            return Err(out_of_range(AlgorithmId::Lzma, "dictionary size", size, 0));
        }
        self.lzma_dictionary_bytes = Some(size);
        Ok(())
    }

    fn add_deflate(&mut self, record: &[u8]) -> Result<()> {
        let raw: &RawDeflate = view(record)?;
        let bits = raw.window_bits;
        if bits > 15 {
            return Err(out_of_range(AlgorithmId::Deflate, "window bits", u32::from(bits), 0));
        }
        // One builder writes 0 for "the usual window" (F6).
        self.deflate_window_bits = Some(if bits < 8 { 15 } else { bits });
        Ok(())
    }

    fn add_zstd(&mut self, record: &[u8]) -> Result<()> {
        let raw: &RawZstd = view(record)?;
        if raw.format != 0 {
            return Err(out_of_range(AlgorithmId::Zstd, "format", u32::from(raw.format), 0));
        }
        let log = raw.window_log.saturating_add(ZSTD_MIN_WINDOW_LOG);
        if log > ZSTD_MAX_WINDOW_LOG {
            return Err(out_of_range(AlgorithmId::Zstd, "window log", u32::from(log), 1));
        }
        self.zstd_window_log = Some(log);
        Ok(())
    }
}

/// Appends a record with its length. Payloads have 4n + 2 bytes, so that each record ends aligned.
fn push_record(records: &mut Vec<u8>, payload: &[u8]) -> Result<()> {
    let length: u16 = fit(to_u64(payload.len()), "the length of a record", to_u64(records.len()))?;
    records.extend_from_slice(&length.to_le_bytes());
    records.extend_from_slice(payload);
    records.resize(records.len().next_multiple_of(4), 0);
    Ok(())
}

fn lz4_record(distance: u16, blocks: u16) -> Result<Vec<u8>> {
    if distance == 0 {
        return Err(out_of_range(AlgorithmId::Lz4, "distance", 0, 0));
    }
    if u32::from(blocks) > PCLUSTER_MAX_BYTES >> 9 {
        return Err(out_of_range(AlgorithmId::Lz4, "pcluster blocks", u32::from(blocks), 2));
    }
    let raw = RawLz4 {
        max_distance: distance.into(),
        max_pcluster_blocks: blocks.into(),
        _reserved: [0; 10],
    };
    Ok(raw.as_bytes().to_vec())
}

fn lzma_record(size: u32) -> Result<Vec<u8>> {
    if !(LZMA_MIN_DICTIONARY_BYTES..=LZMA_MAX_DICTIONARY_BYTES).contains(&size) {
        return Err(out_of_range(AlgorithmId::Lzma, "dictionary size", size, 0));
    }
    let raw = RawLzma { dictionary_bytes: size.into(), format: 0.into(), _reserved: [0; 8] };
    Ok(raw.as_bytes().to_vec())
}

fn deflate_record(bits: u8) -> Result<Vec<u8>> {
    if !(8..=15).contains(&bits) {
        return Err(out_of_range(AlgorithmId::Deflate, "window bits", u32::from(bits), 0));
    }
    Ok(RawDeflate { window_bits: bits, _reserved: [0; 5] }.as_bytes().to_vec())
}

fn zstd_record(log: u8) -> Result<Vec<u8>> {
    let wrong = || out_of_range(AlgorithmId::Zstd, "window log", u32::from(log), 1);
    let window_log = log.checked_sub(ZSTD_MIN_WINDOW_LOG).ok_or_else(wrong)?;
    if log > ZSTD_MAX_WINDOW_LOG {
        return Err(wrong());
    }
    Ok(RawZstd { format: 0, window_log, _reserved: [0; 4] }.as_bytes().to_vec())
}

fn out_of_range(algorithm: AlgorithmId, field: &'static str, value: u32, at: u64) -> Error {
    Error::new(ErrorKind::Config { algorithm, field, value }, at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_zero_distance_is_the_whole_window() {
        assert_eq!(CompressionConfig::lz4_only(0).lz4_max_distance, Some(65535));
        assert_eq!(CompressionConfig::lz4_only(16384).lz4_max_distance, Some(16384));
    }

    proptest! {
        #[test]
        fn records_are_read_as_they_were_written(
            distance in proptest::option::of(1u16..), lzma in proptest::option::of(4096u32..=8 << 20),
            bits in proptest::option::of(8u8..=15), log in proptest::option::of(10u8..=20),
            blocks in 0u16..=2048,
        ) {
            let compression = CompressionConfig {
                lz4_max_distance: distance,
                lzma_dictionary_bytes: lzma,
                deflate_window_bits: bits,
                zstd_window_log: log,
            };
            let records = compression.records(blocks).unwrap();
            let (mut read, mut rest) = (CompressionConfig::default(), records.as_slice());
            for algorithm in AlgorithmId::ALL {
                if compression.algorithm_bits() & algorithm.bit() != 0 {
                    let length = usize::from(rest[0]) | usize::from(rest[1]) << 8;
                    read.add_record(algorithm, &rest[2..2 + length]).unwrap();
                    rest = &rest[(2 + length).next_multiple_of(4)..];
                }
            }
            prop_assert!(rest.is_empty());
            prop_assert_eq!(read, compression);
        }
    }

    #[test]
    fn a_parameter_out_of_range_is_not_written() {
        let none = CompressionConfig::default();
        let lz4 = CompressionConfig { lz4_max_distance: Some(0), ..none.clone() };
        assert!(lz4.records(1).is_err());
        assert!(CompressionConfig::lz4_only(0).records(2049).is_err());
        for size in [4095, (8 << 20) + 1] {
            let lzma = CompressionConfig { lzma_dictionary_bytes: Some(size), ..none.clone() };
            assert!(lzma.records(1).is_err());
        }
        for bits in [7, 16] {
            let deflate = CompressionConfig { deflate_window_bits: Some(bits), ..none.clone() };
            assert!(deflate.records(1).is_err());
        }
        for log in [9, 21] {
            let zstd = CompressionConfig { zstd_window_log: Some(log), ..none.clone() };
            assert!(zstd.records(1).is_err());
        }
    }

    #[test]
    fn a_short_record_is_named_by_its_algorithm() {
        let error =
            CompressionConfig::default().add_record(AlgorithmId::Lzma, &[0; 13]).unwrap_err();
        assert_eq!(
            *error.kind(),
            ErrorKind::ConfigTooShort { algorithm: AlgorithmId::Lzma, length: 13 }
        );
    }

    #[test]
    fn a_record_may_be_longer_than_known() {
        let mut compression = CompressionConfig::default();
        compression.add_record(AlgorithmId::Zstd, &[0, 7, 0, 0, 0, 0, 9, 9]).unwrap();
        assert_eq!(compression.zstd_window_log, Some(17));
        assert!(!compression.has(AlgorithmId::Lz4));
    }

    #[test]
    fn deflate_without_window_bits_means_the_usual_window() {
        let mut compression = CompressionConfig::default();
        compression.add_record(AlgorithmId::Deflate, &[0; 6]).unwrap();
        assert_eq!(compression.deflate_window_bits, Some(15));
        assert!(compression.add_record(AlgorithmId::Deflate, &[16, 0, 0, 0, 0, 0]).is_err());
    }

    #[test]
    fn parameters_out_of_range_are_refused() {
        let mut compression = CompressionConfig::default();
        let mut lzma = [0u8; 14];
        lzma[..4].copy_from_slice(&((8 << 20) + 1u32).to_le_bytes());
        assert!(compression.add_record(AlgorithmId::Lzma, &lzma).is_err());
        assert!(compression.add_record(AlgorithmId::Zstd, &[0, 11, 0, 0, 0, 0]).is_err());
        assert!(compression.add_record(AlgorithmId::Zstd, &[1, 1, 0, 0, 0, 0]).is_err());
        assert_eq!(compression, CompressionConfig::default());
    }
}
