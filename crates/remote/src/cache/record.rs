//! The index file of a cached object: its header, and one record for each chunk that is present.
//! The format is in docs/remote.md. Both sides use it: the fetcher writes, readers check.
//!
//! Nothing is synced to the disk. A record is believed only if its own checksum is right and the
//! data has the checksum that it holds, so a record without data, data without a record, a hole or
//! a torn write is a chunk that is absent.

use std::fmt;
use std::ops::Range;

/// Bytes of the header of an index file.
pub(super) const HEADER_BYTES: usize = 64;
/// Bytes of a record.
pub(super) const RECORD_BYTES: usize = 16;
/// The longest object, in bytes: the largest file of common host file systems.
pub const OBJECT_MAX_BYTES: u64 = 1 << 44;

const MAGIC: [u8; 8] = *b"FFRCACHE";
const VERSION: u32 = 1;
/// Chunks have 1 MiB, so that one request of that size fills one. An object has at most
/// 2^[`CHUNKS_BITS`] chunks, so that a table of them stays small; chunks of longer objects are
/// longer.
const CHUNK_BITS: u32 = 20;
const CHUNKS_BITS: u32 = 20;

/// The identity of a cached object, hashed: the name of its files.
pub type CacheKey = [u8; 32];

/// How an object is divided into chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkLayout {
    length: u64,
    bits: u32,
}

impl ChunkLayout {
    /// The layout of an object of `length` bytes; `None` for more than [`OBJECT_MAX_BYTES`].
    #[must_use]
    pub fn new(length: u64) -> Option<Self> {
        let mut bits = CHUNK_BITS;
        while length.div_ceil(1 << bits) > 1 << CHUNKS_BITS {
            bits += 1;
        }
        (length <= OBJECT_MAX_BYTES).then_some(Self { length, bits })
    }

    /// Bytes of the object.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The number of chunks.
    #[must_use]
    pub fn count(&self) -> u32 {
        // At most 2^CHUNKS_BITS, by `new`.
        u32::try_from(self.length.div_ceil(1 << self.bits)).unwrap_or(u32::MAX)
    }

    /// The bytes of chunk `number`; empty behind the last one.
    #[must_use]
    pub fn bytes_of(&self, number: u32) -> Range<u64> {
        let start = (u64::from(number) << self.bits).min(self.length);
        start..(start + (1 << self.bits)).min(self.length)
    }

    /// The numbers of the chunks that have a byte of `range`.
    #[must_use]
    pub fn chunks_in(&self, range: &Range<u64>) -> Range<u32> {
        let end = range.end.min(self.length);
        if range.start >= end {
            return 0..0;
        }
        let number = |byte: u64| u32::try_from(byte >> self.bits).unwrap_or(u32::MAX);
        number(range.start)..number(end - 1) + 1
    }
}

/// Writes the header of the index of `layout`.
#[must_use]
pub(super) fn header(key: &CacheKey, layout: &ChunkLayout) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&layout.bits.to_le_bytes());
    bytes[16..24].copy_from_slice(&layout.length.to_le_bytes());
    bytes[24..56].copy_from_slice(key);
    let sum = crc32c::crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// What the header of an index says; `None` if it is damaged.
#[must_use]
pub(super) fn parse_header(bytes: &[u8; HEADER_BYTES]) -> Option<(CacheKey, ChunkLayout)> {
    let length = u64::from_le_bytes(bytes.get(16..24)?.try_into().ok()?);
    let key: CacheKey = bytes.get(24..56)?.try_into().ok()?;
    let layout = ChunkLayout::new(length)?;
    // All other bytes follow from these two.
    (header(&key, &layout) == *bytes).then_some((key, layout))
}

/// What the record of a chunk says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRecord {
    /// XXH3 (64 bits) of the bytes of the chunk.
    pub checksum: u64,
    /// Changes whenever the chunk is stored again; never 0.
    pub generation: u32,
}

impl ChunkRecord {
    /// The record as bytes of the file.
    #[must_use]
    pub fn to_bytes(self, key: &CacheKey, number: u32) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..8].copy_from_slice(&self.checksum.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.generation.to_le_bytes());
        let sum = seal(key, number, &bytes);
        bytes[12..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads the record of chunk `number`; `None` if the chunk is absent or the record damaged.
    #[must_use]
    pub fn parse(bytes: &[u8; RECORD_BYTES], key: &CacheKey, number: u32) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
        let generation = word(8);
        if generation == 0 || word(12) != seal(key, number, bytes) {
            return None;
        }
        let checksum = u64::from(word(0)) | u64::from(word(4)) << 32;
        Some(Self { checksum, generation })
    }

    /// Where the record of chunk `number` is in the index file.
    #[must_use]
    pub fn offset(number: u32) -> u64 {
        HEADER_BYTES as u64 + u64::from(number) * RECORD_BYTES as u64
    }
}

/// The checksum of a record. It covers the object and the chunk, so that a record in a wrong place
/// is not believed.
fn seal(key: &CacheKey, number: u32, record: &[u8; RECORD_BYTES]) -> u32 {
    let sum = crc32c::crc32c(key);
    let sum = crc32c::crc32c_append(sum, &number.to_le_bytes());
    crc32c::crc32c_append(sum, &record[..12])
}

/// Why an index file does not belong to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ForeignIndex;

impl fmt::Display for ForeignIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the index of the cache belongs to another object or is damaged")
    }
}

impl std::error::Error for ForeignIndex {}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: CacheKey = [7; 32];

    #[test]
    fn chunks_cover_an_object_without_gaps() {
        for length in [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5 << 40, OBJECT_MAX_BYTES] {
            let layout = ChunkLayout::new(length).unwrap();
            let count = layout.count();
            assert!(count <= 1 << 20);
            assert_eq!(layout.bytes_of(count).start, length);
            if count > 0 {
                assert_eq!(layout.bytes_of(count - 1).end, length);
                assert_eq!(layout.chunks_in(&(0..length)), 0..count);
                assert_eq!(layout.chunks_in(&(length - 1..u64::MAX)), count - 1..count);
            }
            assert!(layout.chunks_in(&(length..length + 9)).is_empty());
        }
        assert_eq!(ChunkLayout::new(OBJECT_MAX_BYTES + 1), None);
    }

    #[test]
    fn only_a_whole_record_in_its_place_is_believed() {
        let record = ChunkRecord { checksum: 0x0123_4567_89ab_cdef, generation: 3 };
        let bytes = record.to_bytes(&KEY, 5);
        assert_eq!(ChunkRecord::parse(&bytes, &KEY, 5), Some(record));
        assert_eq!(ChunkRecord::parse(&bytes, &KEY, 6), None);
        assert_eq!(ChunkRecord::parse(&bytes, &[8; 32], 5), None);
        assert_eq!(ChunkRecord::parse(&[0; RECORD_BYTES], &KEY, 5), None);
        for bit in 0..RECORD_BYTES * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(ChunkRecord::parse(&damaged, &KEY, 5), None, "bit {bit}");
        }
        let unborn = ChunkRecord { generation: 0, ..record };
        assert_eq!(ChunkRecord::parse(&unborn.to_bytes(&KEY, 5), &KEY, 5), None);
    }

    #[test]
    fn the_header_depends_on_object_and_layout() {
        let layout = |length| ChunkLayout::new(length).unwrap();
        let one = header(&KEY, &layout(9));
        assert_eq!(one, header(&KEY, &layout(9)));
        assert_ne!(one, header(&KEY, &layout(10)));
        assert_ne!(one, header(&[8; 32], &layout(9)));
        assert_eq!(parse_header(&one), Some((KEY, layout(9))));
        for bit in 0..HEADER_BYTES * 8 {
            let mut damaged = one;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse_header(&damaged), None, "bit {bit}");
        }
    }
}
