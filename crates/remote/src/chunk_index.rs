//! The chunk index of the EROFS image specification, `application/vnd.erofs.chunk-index.v1`: which
//! pieces an image is made of, and the digest of each. With it, a part of an image can be verified
//! alone. Read by the fetcher before it stores bytes, and written by `ferrofs build --chunk-index`.
//!
//! Layout (little endian; image specification, section 3.4): a header of 32 bytes, then one entry
//! for each chunk: its offset in the blob, its offset in the image, its digest.

use std::fmt;
use std::ops::Range;

use crate::digest::ContentDigest;

/// The media type of a chunk index.
pub const CHUNK_INDEX_MEDIA_TYPE: &str = "application/vnd.erofs.chunk-index.v1";
/// The longest chunk index that is read, in bytes: 1.4 million chunks.
pub const CHUNK_INDEX_MAX_BYTES: usize = 64 << 20;
/// The longest chunk that is accepted, in bytes. A chunk must be fetched as a whole.
pub const INDEXED_CHUNK_MAX_BYTES: u64 = 8 << 20;

const MAGIC: [u8; 4] = [0xcd, 0xe4, 0xec, 0x67];
const HEADER_BYTES: usize = 32;
const ENTRY_BYTES: usize = 48;

/// A checked chunk index of an uncompressed (raw) blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkIndex {
    length: u64,
    /// Where each chunk starts, in ascending order; the first one at 0.
    starts: Vec<u64>,
    digests: Vec<ContentDigest>,
}

/// What is wrong with a chunk index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChunkIndexError {
    /// It has another length than its header says, or is longer than [`CHUNK_INDEX_MAX_BYTES`].
    Length,
    /// It does not begin with the magic number.
    Magic,
    /// A version, compression, hash or flag that this reader does not know. The byte of the field.
    Unsupported(usize),
    /// A reserved byte is not 0. Its position.
    Reserved(usize),
    /// Chunk boundaries are not in ascending order, leave a gap, or make a chunk longer than
    /// [`INDEXED_CHUNK_MAX_BYTES`]. The number of the chunk.
    Boundary(usize),
}

impl ChunkIndex {
    /// Makes an index from the length of an image and the digests of its chunks of `chunk_bytes`
    /// bytes; the last one may be shorter. None if the number of digests does not fit, or a chunk
    /// would have no byte or more than [`INDEXED_CHUNK_MAX_BYTES`].
    #[must_use]
    pub fn uniform(length: u64, chunk_bytes: u64, digests: Vec<ContentDigest>) -> Option<Self> {
        let is_usable = (1..=INDEXED_CHUNK_MAX_BYTES).contains(&chunk_bytes);
        let count = usize::try_from(length.checked_add(chunk_bytes - u64::from(is_usable))?);
        let count = usize::try_from(u64::try_from(count.ok()?).ok()? / chunk_bytes.max(1)).ok()?;
        if !is_usable || count != digests.len() {
            return None;
        }
        let starts = (0u64..).step_by(usize::try_from(chunk_bytes).ok()?).take(count).collect();
        Some(Self { length, starts, digests })
    }

    /// Parses and checks an index.
    ///
    /// # Errors
    /// The index breaks a rule of its format, or uses a part of it that is not supported: zstd
    /// chunks, digests other than SHA-256, no digests, or chunks of a raw image that are not in
    /// the order of the image.
    pub fn parse(bytes: &[u8]) -> Result<Self, ChunkIndexError> {
        if bytes.len() > CHUNK_INDEX_MAX_BYTES {
            return Err(ChunkIndexError::Length);
        }
        let (header, entries) =
            bytes.split_first_chunk::<HEADER_BYTES>().ok_or(ChunkIndexError::Length)?;
        let (length, count) = parse_header(header)?;
        let expected = u64::from(count) * ENTRY_BYTES as u64;
        if entries.len() as u64 != expected {
            return Err(ChunkIndexError::Length);
        }
        let mut index = Self { length, starts: Vec::new(), digests: Vec::new() };
        for (number, entry) in entries.as_chunks::<ENTRY_BYTES>().0.iter().enumerate() {
            let stored = number_at(entry, 0);
            let start = number_at(entry, 8);
            let follows = index.starts.last().map_or(start == 0, |last| {
                *last < start && start - last <= INDEXED_CHUNK_MAX_BYTES
            });
            if stored != start || !follows || start >= length {
                return Err(ChunkIndexError::Boundary(number));
            }
            let mut digest = [0; 32];
            digest.copy_from_slice(&entry[16..]);
            index.starts.push(start);
            index.digests.push(ContentDigest::from_bytes(digest));
        }
        let rest = length - index.starts.last().copied().unwrap_or(0);
        if rest > INDEXED_CHUNK_MAX_BYTES || (index.starts.is_empty() && length > 0) {
            return Err(ChunkIndexError::Boundary(index.starts.len().saturating_sub(1)));
        }
        Ok(index)
    }

    /// The index as bytes; [`parse`](Self::parse) reads them back.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.starts.len() * ENTRY_BYTES);
        bytes.extend(self.header());
        for (start, digest) in self.starts.iter().zip(&self.digests) {
            bytes.extend(entry(*start, digest));
        }
        bytes
    }

    fn header(&self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&MAGIC);
        header[4] = 1;
        header[8..16].copy_from_slice(&self.length.to_le_bytes());
        // `uniform` and `parse` bound the number of chunks.
        let count = u32::try_from(self.starts.len()).unwrap_or(u32::MAX);
        header[16..20].copy_from_slice(&count.to_le_bytes());
        header[20..22].copy_from_slice(&[1, 32]);
        header
    }

    /// Whether all bytes of an object of `length` bytes follow from the index: it has no more than the
    /// image, or the index itself behind the image.
    #[must_use]
    pub fn covers(&self, length: u64) -> bool {
        let own = HEADER_BYTES as u64 + self.starts.len() as u64 * ENTRY_BYTES as u64;
        length.checked_sub(self.length).is_some_and(|tail| tail == 0 || tail == own)
    }

    /// Whether `bytes` are those of the index, as [`to_bytes`](Self::to_bytes) gives it, from byte
    /// `offset` of it on.
    #[must_use]
    pub fn has_bytes_at(&self, offset: u64, bytes: &[u8]) -> bool {
        let Ok(mut at) = usize::try_from(offset) else { return bytes.is_empty() };
        let mut rest = bytes;
        while !rest.is_empty() {
            let header;
            let written;
            let part = match at.checked_sub(HEADER_BYTES) {
                None => {
                    header = self.header();
                    &header[at..]
                }
                Some(behind) => {
                    let (number, within) = (behind / ENTRY_BYTES, behind % ENTRY_BYTES);
                    let (Some(start), Some(digest)) =
                        (self.starts.get(number), self.digests.get(number))
                    else {
                        return false;
                    };
                    written = entry(*start, digest);
                    &written[within..]
                }
            };
            let (found, behind) = rest.split_at(part.len().min(rest.len()));
            if found != &part[..found.len()] {
                return false;
            }
            at += found.len();
            rest = behind;
        }
        true
    }

    /// Bytes of the image.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// How many chunks there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.starts.len()
    }

    /// The bytes and the digest of chunk `number`.
    #[must_use]
    pub fn chunk(&self, number: usize) -> Option<(Range<u64>, ContentDigest)> {
        let start = *self.starts.get(number)?;
        let end = self.starts.get(number + 1).copied().unwrap_or(self.length);
        Some((start..end, *self.digests.get(number)?))
    }

    /// The numbers of the chunks that have a byte of `range`.
    #[must_use]
    pub fn chunks_in(&self, range: Range<u64>) -> Range<usize> {
        if range.is_empty() || range.start >= self.length {
            return 0..0;
        }
        let first = self.starts.partition_point(|start| *start <= range.start).saturating_sub(1);
        let end = self.starts.partition_point(|start| *start < range.end);
        first..end
    }
}

/// An entry of a raw image, whose chunks are in the same place of the blob.
fn entry(start: u64, digest: &ContentDigest) -> [u8; ENTRY_BYTES] {
    let mut entry = [0; ENTRY_BYTES];
    entry[..8].copy_from_slice(&start.to_le_bytes());
    entry[8..16].copy_from_slice(&start.to_le_bytes());
    entry[16..].copy_from_slice(digest.as_bytes());
    entry
}

/// The length of the image and the number of chunks.
fn parse_header(header: &[u8; HEADER_BYTES]) -> Result<(u64, u32), ChunkIndexError> {
    if header[..4] != MAGIC {
        return Err(ChunkIndexError::Magic);
    }
    // Version 1, no compression, no flags, SHA-256.
    for (at, wanted) in [(4, 1), (5, 0), (6, 0), (7, 0), (20, 1), (21, 32)] {
        if header[at] != wanted {
            return Err(ChunkIndexError::Unsupported(at));
        }
    }
    if let Some(at) = (22..HEADER_BYTES).find(|at| header[*at] != 0) {
        return Err(ChunkIndexError::Reserved(at));
    }
    let mut count = [0; 4];
    count.copy_from_slice(&header[16..20]);
    Ok((number_at(header, 8), u32::from_le_bytes(count)))
}

fn number_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

impl fmt::Display for ChunkIndexError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length => f.write_str("the chunk index has a wrong length"),
            Self::Magic => f.write_str("not a chunk index"),
            Self::Unsupported(at) => {
                write!(f, "byte {at} of the chunk index has a value that is not supported")
            }
            Self::Reserved(at) => write!(f, "byte {at} of the chunk index is reserved and not 0"),
            Self::Boundary(number) => {
                write!(f, "chunk {number} of the chunk index does not continue the one before it")
            }
        }
    }
}

impl std::error::Error for ChunkIndexError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> ChunkIndex {
        let digests = (0u8..3).map(|byte| ContentDigest::of(&[byte])).collect();
        ChunkIndex::uniform(2500, 1000, digests).unwrap()
    }

    #[test]
    fn an_index_is_read_back_as_it_was_written() {
        let index = sample();
        assert_eq!(ChunkIndex::parse(&index.to_bytes()), Ok(index.clone()));
        assert_eq!(index.chunk(2).map(|(range, _)| range), Some(2000..2500));
        assert_eq!(index.chunk(3), None);
        let empty = ChunkIndex::uniform(0, 1, Vec::new()).unwrap();
        assert_eq!(ChunkIndex::parse(&empty.to_bytes()), Ok(empty));
    }

    #[test]
    fn an_index_knows_its_own_bytes() {
        let index = sample();
        let bytes = index.to_bytes();
        for start in 0..bytes.len() {
            for end in [start, start + 1, start + 40, bytes.len()].map(|end| end.min(bytes.len())) {
                let mut part = bytes[start..end].to_vec();
                assert!(index.has_bytes_at(start as u64, &part), "{start}..{end}");
                if let Some(last) = part.last_mut() {
                    *last ^= 1;
                    assert!(!index.has_bytes_at(start as u64, &part), "{start}..{end}");
                }
            }
        }
        assert!(!index.has_bytes_at(bytes.len() as u64, &[0]));
        assert!(!index.has_bytes_at(u64::MAX, &[0]));
        let covers = |tail: usize| index.covers(2500 + tail as u64);
        assert!(covers(0) && covers(bytes.len()));
        assert!(!covers(1) && !covers(bytes.len() + 1) && !index.covers(2499));
    }

    #[test]
    fn a_range_is_covered_by_the_chunks_that_have_its_bytes() {
        let index = sample();
        for (range, chunks) in [
            (0..1, 0..1),
            (0..1000, 0..1),
            (999..1001, 0..2),
            (1000..1000, 0..0),
            (2499..9999, 2..3),
            (2500..2600, 0..0),
            (0..2500, 0..3),
        ] {
            assert_eq!(index.chunks_in(range.clone()), chunks, "{range:?}");
        }
    }

    #[test]
    fn the_number_of_digests_must_fit() {
        let digests = |count| vec![ContentDigest::of(b""); count];
        assert!(ChunkIndex::uniform(2000, 1000, digests(2)).is_some());
        assert!(ChunkIndex::uniform(2000, 1000, digests(3)).is_none());
        assert!(ChunkIndex::uniform(2000, 0, digests(0)).is_none());
        assert!(ChunkIndex::uniform(u64::MAX, u64::MAX, digests(1)).is_none());
    }

    #[test]
    fn every_field_is_checked() {
        let good = sample().to_bytes();
        let changed = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            ChunkIndex::parse(&bytes).unwrap_err()
        };
        assert_eq!(changed(0, 0), ChunkIndexError::Magic);
        for at in [4, 5, 6, 7, 20, 21] {
            assert_eq!(changed(at, 9), ChunkIndexError::Unsupported(at));
        }
        for at in 22..32 {
            assert_eq!(changed(at, 1), ChunkIndexError::Reserved(at));
        }
        assert_eq!(changed(16, 4), ChunkIndexError::Length);
        assert_eq!(changed(32, 1), ChunkIndexError::Boundary(0));
        // The second chunk: another place in the blob, and a place before the first.
        assert_eq!(changed(80, 1), ChunkIndexError::Boundary(1));
        assert_eq!(changed(9, 0), ChunkIndexError::Boundary(1), "the image ends before chunk 1");
        assert_eq!(changed(15, 1), ChunkIndexError::Boundary(2), "the last chunk is too long");
        assert_eq!(ChunkIndex::parse(&good[..31]), Err(ChunkIndexError::Length));
        assert_eq!(ChunkIndex::parse(&good[..good.len() - 1]), Err(ChunkIndexError::Length));
    }

    #[test]
    fn an_index_without_chunks_covers_no_bytes() {
        let mut bytes = ChunkIndex::uniform(0, 1, Vec::new()).unwrap().to_bytes();
        bytes[8] = 1;
        assert_eq!(ChunkIndex::parse(&bytes), Err(ChunkIndexError::Boundary(0)));
    }
}
