//! Reads sparse images (simg) of Android as if they were expanded. A sparse image is a list of
//! chunks: data, a repeated word, or nothing. The list is untrusted.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::{le_u16, le_u32, read_exact};
use crate::source::{ImageSource, RemoteStats};

const MAGIC: [u8; 4] = [0x3a, 0xff, 0x26, 0xed];
const FILE_HEADER_BYTES: usize = 28;
const CHUNK_HEADER_BYTES: usize = 12;
/// Chunks of an image, which take 40 bytes of memory each. img2simg writes one for each change
/// between data, a repeated word and nothing: tens of thousands in an image of several GiB.
const CHUNKS_MAX: u32 = 1 << 20;

/// What a run of blocks contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkData {
    /// Bytes of the file from this offset on.
    Raw(u64),
    /// This word, repeated.
    Fill([u8; 4]),
}

/// A run of blocks that are not zeros.
#[derive(Clone, Copy, Debug)]
struct SparseChunk {
    start: u64,
    end: u64,
    data: ChunkData,
}

/// A sparse image, as a source.
#[derive(Debug)]
pub struct SparseSource {
    stored: Arc<dyn ImageSource>,
    /// In ascending order, apart from each other.
    chunks: Vec<SparseChunk>,
    length: u64,
}

impl SparseSource {
    /// Whether `source` begins as a sparse image does.
    ///
    /// # Errors
    /// The source cannot be read.
    pub fn is_sparse(source: &dyn ImageSource) -> io::Result<bool> {
        let mut start = [0; 4];
        match read_exact(source, 0, &mut start) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            read => read.map(|()| start == MAGIC),
        }
    }

    /// Reads the list of chunks of a sparse image.
    ///
    /// # Errors
    /// The source cannot be read, or the list is damaged (`InvalidData`, with the byte).
    pub fn open(stored: Arc<dyn ImageSource>) -> io::Result<Self> {
        let mut header = [0; FILE_HEADER_BYTES];
        read_exact(&*stored, 0, &mut header)?;
        let header_bytes = u64::from(le_u16(&header, 8));
        let chunk_header_bytes = u64::from(le_u16(&header, 10));
        let (block_bytes, blocks) = (le_u32(&header, 12), u64::from(le_u32(&header, 16)));
        let count = le_u32(&header, 20);
        let is_known = le_u16(&header, 4) == 1
            && header_bytes >= as_u64(FILE_HEADER_BYTES)
            && chunk_header_bytes >= as_u64(CHUNK_HEADER_BYTES);
        if !is_known {
            return Err(damaged("its header is of another version", 4));
        }
        if block_bytes == 0 || !block_bytes.is_multiple_of(4) {
            return Err(damaged("the size of its blocks", 12));
        }
        if count > CHUNKS_MAX {
            return Err(damaged("it has too many chunks", 20));
        }
        let block = u64::from(block_bytes);
        let mut chunks = Vec::new();
        let (mut at, mut start) = (header_bytes, 0u64);
        for _ in 0..count {
            let read = read_chunk(&*stored, at, chunk_header_bytes, block)?;
            let end = start
                .checked_add(read.bytes)
                .filter(|end| end.div_ceil(block) <= blocks)
                .ok_or_else(|| damaged("its chunks are longer than the image", at))?;
            if let Some(data) = read.data.filter(|_| read.bytes > 0) {
                chunks.push(SparseChunk { start, end, data });
            }
            (at, start) = (read.next_at, end);
        }
        let length = blocks.checked_mul(block).ok_or_else(|| damaged("it is too long", 16))?;
        Ok(Self { stored, chunks, length })
    }

    /// The chunks with a byte of `range`, and the bytes that they have of it.
    fn chunks_in(&self, range: Range<u64>) -> impl Iterator<Item = (&SparseChunk, Range<u64>)> {
        let first = self.chunks.partition_point(|chunk| chunk.end <= range.start);
        let chunks = self.chunks.iter().skip(first).take_while(move |c| c.start < range.end);
        chunks.map(move |chunk| (chunk, chunk.start.max(range.start)..chunk.end.min(range.end)))
    }

    /// Where the bytes of `range` that are stored lie.
    fn stored(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        self.chunks_in(range).filter_map(|(chunk, part)| {
            let ChunkData::Raw(at) = chunk.data else { return None };
            let moved = |byte: u64| at.saturating_add(byte.saturating_sub(chunk.start));
            Some(moved(part.start)..moved(part.end))
        })
    }
}

/// A chunk of the list.
struct ListedChunk {
    /// Of the expanded image.
    bytes: u64,
    /// `None`: zeros, or nothing.
    data: Option<ChunkData>,
    /// Where the next one begins.
    next_at: u64,
}

fn read_chunk(
    stored: &dyn ImageSource,
    at: u64,
    header_bytes: u64,
    block: u64,
) -> io::Result<ListedChunk> {
    let mut header = [0; CHUNK_HEADER_BYTES];
    read_exact(stored, at, &mut header)?;
    let bytes = u64::from(le_u32(&header, 4)).saturating_mul(block);
    let kept = u64::from(le_u32(&header, 8))
        .checked_sub(header_bytes)
        .ok_or_else(|| damaged("a chunk is too short", at))?;
    let data_at = at.saturating_add(header_bytes);
    let next_at = data_at
        .checked_add(kept)
        .filter(|end| *end <= stored.length())
        .ok_or_else(|| damaged("a chunk ends behind the file", at))?;
    let data = match le_u16(&header, 0) {
        0xcac1 if kept == bytes => Some(ChunkData::Raw(data_at)),
        0xcac2 if kept >= 4 => {
            let mut fill = [0; 4];
            read_exact(stored, data_at, &mut fill)?;
            (fill != [0; 4]).then_some(ChunkData::Fill(fill))
        }
        0xcac3 => None,
        // A checksum, which takes no blocks.
        0xcac4 if bytes == 0 => None,
        _ => return Err(damaged("a chunk is of unknown type or has another size", at)),
    };
    Ok(ListedChunk { bytes, data, next_at })
}

impl ImageSource for SparseSource {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.length.saturating_sub(offset);
        let count = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let Some(buffer) = buffer.get_mut(..count).filter(|buffer| !buffer.is_empty()) else {
            return Ok(0);
        };
        buffer.fill(0);
        let index = |byte: u64| usize::try_from(byte.saturating_sub(offset)).unwrap_or(0);
        for (chunk, range) in self.chunks_in(offset..offset.saturating_add(as_u64(count))) {
            let Some(part) = buffer.get_mut(index(range.start)..index(range.end)) else { continue };
            let begin = range.start.saturating_sub(chunk.start);
            match chunk.data {
                ChunkData::Raw(at) => read_exact(&*self.stored, at.saturating_add(begin), part)?,
                ChunkData::Fill(fill) => {
                    let phase = usize::try_from(begin % 4).unwrap_or(0);
                    let bytes = fill.iter().cycle().skip(phase);
                    part.iter_mut().zip(bytes).for_each(|(byte, filled)| *byte = *filled);
                }
            }
        }
        Ok(count)
    }

    fn length(&self) -> u64 {
        self.length
    }

    fn will_need(&self, offset: u64, bytes: u64) {
        for part in self.stored(offset..offset.saturating_add(bytes)) {
            self.stored.will_need(part.start, part.end.saturating_sub(part.start));
        }
    }

    fn is_remote(&self) -> bool {
        self.stored.is_remote()
    }

    fn remote_stats(&self) -> Option<RemoteStats> {
        self.stored.remote_stats()
    }

    fn make_ready(&self, ranges: &[Range<u64>]) -> io::Result<()> {
        let parts = ranges.iter().flat_map(|range| self.stored(range.clone())).collect::<Vec<_>>();
        self.stored.make_ready(&parts)
    }
}

fn as_u64(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

fn damaged(why: &str, at: u64) -> io::Error {
    let message = format!("the sparse image is damaged at byte {at}: {why}");
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::android::tests::Bytes;

    /// A sparse image with these chunks: type, blocks of 4 bytes, and what follows the header.
    fn image(chunks: &[(u16, u32, &[u8])], blocks: u32) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for half in [1u16, 0, 28, 12] {
            bytes.extend(half.to_le_bytes());
        }
        for word in [4, blocks, u32::try_from(chunks.len()).unwrap(), 0] {
            bytes.extend(word.to_le_bytes());
        }
        for (kind, blocks, data) in chunks {
            bytes.extend(u32::from(*kind).to_le_bytes());
            bytes.extend(blocks.to_le_bytes());
            bytes.extend(u32::try_from(12 + data.len()).unwrap().to_le_bytes());
            bytes.extend(*data);
        }
        bytes
    }

    fn open(bytes: &[u8]) -> io::Result<SparseSource> {
        SparseSource::open(Arc::new(Bytes(bytes.to_vec())))
    }

    const CHUNKS: [(u16, u32, &[u8]); 5] = [
        (0xcac1, 2, b"abcdefgh"),
        (0xcac2, 2, b"1234"),
        (0xcac3, 1, b""),
        (0xcac4, 0, b"crc."),
        (0xcac1, 1, b"ijkl"),
    ];

    #[test]
    fn any_part_reads_as_the_expanded_image() {
        let source = open(&image(&CHUNKS, 7)).unwrap();
        let whole = b"abcdefgh12341234\0\0\0\0ijkl\0\0\0\0";
        assert_eq!(source.length(), 28);
        for start in 0..=30 {
            for length in 0..=30 {
                let mut buffer = vec![9; length];
                let count = source.read_at(start as u64, &mut buffer).unwrap();
                let expected = &whole[start.min(28)..(start + length).min(28).max(start.min(28))];
                assert_eq!(&buffer[..count], expected, "{start} {length}");
            }
        }
    }

    #[test]
    fn damaged_lists_are_refused() {
        let sound = image(&CHUNKS, 7);
        for (at, value) in
            [(4, 2), (12, 0), (12, 3), (16, 3), (23, 0xff), (28, 9), (36, 1), (36, 99)]
        {
            let mut bytes = sound.clone();
            bytes[at] = value;
            open(&bytes).map(drop).unwrap_err();
        }
        for length in [3, 27, 30, 45, sound.len() - 1] {
            open(&sound[..length]).map(drop).unwrap_err();
        }
    }
}
