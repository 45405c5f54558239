//! Reads sparse images (simg) of Android as if they were expanded. A sparse image is a list of
//! chunks: data, a repeated word, or nothing. Used by `source`.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use ferrofs_image::ImageSource;

/// The first bytes of a sparse image.
pub(super) const MAGIC: [u8; 4] = [0x3a, 0xff, 0x26, 0xed];
const FILE_HEADER_BYTES: usize = 28;
const CHUNK_HEADER_BYTES: usize = 12;
/// Chunks of an image: with one for each block of 4 KiB, 64 GiB.
const CHUNKS_MAX: u32 = 16 << 20;

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

/// An opened sparse image.
#[derive(Debug)]
pub(super) struct SparseSource {
    file: File,
    /// In ascending order, apart from each other.
    chunks: Vec<SparseChunk>,
    length: u64,
}

impl SparseSource {
    /// Whether the file at `path` is a sparse image.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn is_one(path: &Path) -> io::Result<bool> {
        let mut start = Vec::new();
        File::open(path)?.take(4).read_to_end(&mut start)?;
        Ok(start == MAGIC)
    }

    /// Opens a sparse image and reads its list of chunks.
    ///
    /// # Errors
    /// The file cannot be read, or the list is damaged.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let file_bytes = file.metadata()?.len();
        let mut header = [0; FILE_HEADER_BYTES];
        file.read_exact_at(&mut header, 0)?;
        let header_bytes = u64::from(half(&header, 8));
        let chunk_header_bytes = u64::from(half(&header, 10));
        let (block_bytes, blocks, count) =
            (word(&header, 12), word(&header, 16), word(&header, 20));
        if half(&header, 4) != 1
            || header_bytes < FILE_HEADER_BYTES as u64
            || chunk_header_bytes < CHUNK_HEADER_BYTES as u64
        {
            return Err(damaged("its header is of another version"));
        }
        if block_bytes == 0 || !block_bytes.is_multiple_of(4) || count > CHUNKS_MAX {
            return Err(damaged("its header has impossible sizes"));
        }
        let block = u64::from(block_bytes);
        let mut chunks = Vec::new();
        let (mut at, mut start) = (header_bytes, 0u64);
        for _ in 0..count {
            let mut header = [0; CHUNK_HEADER_BYTES];
            file.read_exact_at(&mut header, at)?;
            let bytes = u64::from(word(&header, 4)) * block;
            let total = u64::from(word(&header, 8));
            let data_at = at + chunk_header_bytes;
            let stored = total
                .checked_sub(chunk_header_bytes)
                .ok_or_else(|| damaged("a chunk is too short"))?;
            at = data_at
                .checked_add(stored)
                .filter(|end| *end <= file_bytes)
                .ok_or_else(|| damaged("it is truncated"))?;
            let end = start.checked_add(bytes).ok_or_else(|| damaged("it is too long"))?;
            let data = match half(&header, 0) {
                0xcac1 if stored == bytes => Some(ChunkData::Raw(data_at)),
                0xcac2 if stored >= 4 => {
                    let mut fill = [0; 4];
                    file.read_exact_at(&mut fill, data_at)?;
                    (fill != [0; 4]).then_some(ChunkData::Fill(fill))
                }
                0xcac3 => None,
                // A checksum, which takes no blocks.
                0xcac4 if bytes == 0 => None,
                _ => return Err(damaged("a chunk is of unknown type or has another size")),
            };
            if let Some(data) = data.filter(|_| bytes > 0) {
                chunks.push(SparseChunk { start, end, data });
            }
            start = end;
        }
        if start > u64::from(blocks) * block {
            return Err(damaged("its chunks are longer than the image"));
        }
        Ok(Self { file, chunks, length: u64::from(blocks) * block })
    }
}

impl ImageSource for SparseSource {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.length.saturating_sub(offset);
        let count = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let Some(buffer) = buffer.get_mut(..count).filter(|buffer| !buffer.is_empty()) else {
            return Ok(0);
        };
        buffer.fill(0);
        let end = offset + count as u64;
        let first = self.chunks.partition_point(|chunk| chunk.end <= offset);
        for chunk in self.chunks.iter().skip(first).take_while(|chunk| chunk.start < end) {
            let (from, to) = (chunk.start.max(offset), chunk.end.min(end));
            let part = usize::try_from(from - offset).unwrap_or(0)
                ..usize::try_from(to - offset).unwrap_or(0);
            let Some(part) = buffer.get_mut(part) else { continue };
            match chunk.data {
                ChunkData::Raw(at) => self.file.read_exact_at(part, at + (from - chunk.start))?,
                ChunkData::Fill(fill) => {
                    let phase = usize::try_from((from - chunk.start) % 4).unwrap_or(0);
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
}

fn half(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|part| part.try_into().ok()).map_or(0, u16::from_le_bytes)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|part| part.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn damaged(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the sparse image is damaged: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        SparseSource::open(file.path())
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
