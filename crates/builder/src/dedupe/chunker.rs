//! The content-defined chunker: it reads each byte of all files once, in parallel, and passes the chunks on in
//! order. Where a chunk ends depends on the bytes in front of its end only, so equal ranges fall into equal chunks
//! wherever they lie, but for a chunk or two at their edges.

use ferrofs_workers::CancelToken;
use ferrofs_workers::jobs::OrderedPipeline;
use xxhash_rust::xxh3::xxh3_64;

use crate::Result;
use crate::context::check_cancelled;
use crate::dedupe::ConcatenatedFiles;

/// Bytes of a file that one thread reads in a row. Large files are split there whatever the number of
/// threads, so that the chunks depend on the files only.
const PART_BYTES: u64 = 8 << 20;

/// Parts that make a batch at most: enough that a thread is not woken for a small file alone.
const PARTS_MAX: usize = 128;

/// Bytes that are read at once: they stay in the cache of a core while they are hashed.
const BUFFER_BYTES: usize = 256 << 10;

/// A chunk: its length and its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CdcChunk {
    /// Not 0.
    pub(super) bytes: u32,
    /// Of its bytes.
    pub(super) digest: u64,
}

/// The pass over all files.
pub(super) struct ChunkScan<'a> {
    /// The files.
    pub(super) concat: &'a ConcatenatedFiles<'a>,
    /// Where chunks end.
    pub(super) cdc: CdcParams,
    /// What chunks are compared by.
    pub(super) digest: ChunkHash,
    /// Ends the pass early.
    pub(super) cancel: &'a CancelToken,
}

/// A part of a file.
#[derive(Clone, Copy, Debug)]
struct ScanRange {
    file: usize,
    start: u64,
    end: u64,
}

impl ChunkScan<'_> {
    /// Calls `commit` with the chunks of all files, in order, some at a time.
    ///
    /// # Errors
    /// A source that cannot be read or changed, the first in the order of the files; what `commit`
    /// returns; [`ErrorKind::Cancelled`].
    pub(super) fn run(
        &self,
        ordered: &OrderedPipeline<'_>,
        mut commit: impl FnMut(&[CdcChunk]) -> Result<()>,
    ) -> Result<()> {
        let longest = self.cdc.longest();
        let report = ordered.run(
            ScanBatches { concat: self.concat, next: (0, 0) },
            || vec![0; BUFFER_BYTES.max(longest * 2)],
            |buffer, batch: Vec<ScanRange>| {
                let mut chunks = Vec::new();
                for part in batch {
                    self.read(part, buffer, &mut chunks)?;
                }
                Ok(chunks)
            },
            |chunks| commit(&chunks),
        );
        report.map(drop)
    }

    fn read(&self, part: ScanRange, buffer: &mut [u8], chunks: &mut Vec<CdcChunk>) -> Result<()> {
        check_cancelled(self.cancel)?;
        let source = self.concat.source(part.file);
        self.read_open(part, buffer, chunks).map_err(|error| error.at(source.name()))
    }

    fn read_open(
        &self,
        part: ScanRange,
        buffer: &mut [u8],
        chunks: &mut Vec<CdcChunk>,
    ) -> Result<()> {
        let mut reader = self.concat.source(part.file).open()?;
        let longest = self.cdc.longest();
        let mut offset = part.start;
        let mut kept = 0;
        while offset < part.end {
            let room = &mut buffer[kept..];
            let bytes =
                usize::try_from(part.end - offset).map_or(room.len(), |n| n.min(room.len()));
            reader.read_exact_at(offset, &mut room[..bytes])?;
            offset += bytes as u64;
            let filled = kept + bytes;
            let mut start = 0;
            // A chunk ends for sure where the longest would; at the end of the part everything does.
            while start < filled && (filled - start >= longest || offset == part.end) {
                let chunk = &buffer[start..filled];
                let chunk = &chunk[..self.cdc.end(chunk)];
                start += chunk.len();
                // No chunk is longer than 32 bits count: the longest is 128 KiB.
                let bytes = u32::try_from(chunk.len()).unwrap_or(u32::MAX);
                chunks.push(CdcChunk { bytes, digest: (self.digest)(chunk) });
            }
            buffer.copy_within(start..filled, 0);
            kept = filled - start;
        }
        reader.check_unchanged()
    }
}

/// All files in order, in batches of about equal size.
struct ScanBatches<'a> {
    concat: &'a ConcatenatedFiles<'a>,
    /// The next file, and the next byte in it.
    next: (usize, u64),
}

impl Iterator for ScanBatches<'_> {
    type Item = Vec<ScanRange>;

    fn next(&mut self) -> Option<Vec<ScanRange>> {
        let mut batch = Vec::new();
        let mut room = PART_BYTES;
        while room > 0 && batch.len() < PARTS_MAX && self.next.0 < self.concat.len() {
            let (file, start) = self.next;
            let places = self.concat.range(file);
            let bytes = places.end - places.start;
            // Counted within the file: a split must not depend on what comes before the file.
            let end = bytes.min(start.saturating_add(PART_BYTES));
            if start < end {
                if end - start > room && !batch.is_empty() {
                    break;
                }
                batch.push(ScanRange { file, start, end });
                room = room.saturating_sub(end - start);
            }
            self.next = if end == bytes { (file + 1, 0) } else { (file, end) };
        }
        (!batch.is_empty()).then_some(batch)
    }
}

/// How files are split: by content, at least `2^bits` bytes, twice that on the average, [`MAX_TO_MIN_RATIO`] times that
/// at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CdcParams {
    /// From [`BITS_MIN`] to [`BITS_MAX`].
    pub(super) bits: u32,
}

/// What chunks are compared by. Equal digests prove nothing: the bytes are compared afterwards.
pub(super) type ChunkHash = fn(&[u8]) -> u64;

/// The hash in use. Collisions made on purpose cost their author a larger image, and nothing else.
pub(super) const CHUNK_HASH: ChunkHash = xxh3_64;

/// The shortest chunks: 2 KiB on the average. Shorter ones find little more, and each chunk costs memory.
pub(super) const BITS_MIN: u32 = 10;

/// The longest chunks. A buffer holds several of them.
pub(super) const BITS_MAX: u32 = 14;

/// The longest chunk over the shortest one. Bytes without a boundary, such as zeros, make the longest ones.
const MAX_TO_MIN_RATIO: usize = 8;

/// Bytes that a boundary depends on: each one is shifted out of the 64 bits of the hash after 64 more.
const WINDOW: usize = 64;

/// A number for each byte value, as a rolling hash by shift and addition needs them.
static GEAR: [u64; 256] = gear();

impl CdcParams {
    /// The longest chunk, in bytes.
    pub(super) fn longest(self) -> usize {
        MAX_TO_MIN_RATIO << self.bits
    }

    /// Where the chunk ends that starts with `data`: 1 to `data.len()`, which is not 0. `data` is as
    /// long as the longest chunk, or ends where the file or the part of it ends.
    pub(super) fn end(self, data: &[u8]) -> usize {
        let data = &data[..data.len().min(self.longest())];
        content_end(data, self.bits)
    }
}

/// The end of a chunk by content: the first place behind the shortest chunk whose hash is small.
fn content_end(data: &[u8], bits: u32) -> usize {
    let shortest = 1 << bits;
    let Some((head, rest)) = data.split_at_checked(shortest) else {
        return data.len();
    };
    let roll = |hash: u64, byte: &u8| (hash << 1).wrapping_add(GEAR[usize::from(*byte)]);
    let limit = 1_u64 << (u64::BITS - bits);
    let mut hash = head[shortest - WINDOW..].iter().fold(0, roll);
    for (number, byte) in rest.iter().enumerate() {
        hash = roll(hash, byte);
        if hash < limit {
            return shortest + number + 1;
        }
    }
    data.len()
}

/// 256 numbers without a pattern: the generator that is known as splitmix64.
const fn gear() -> [u64; 256] {
    let mut numbers = [0; 256];
    let mut state = 0_u64;
    let mut index = 0;
    while index < numbers.len() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        numbers[index] = mixed ^ (mixed >> 31);
        index += 1;
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::super::tests::noise;
    use super::*;

    /// The same without any trick.
    fn plain_end(data: &[u8], bits: u32) -> usize {
        let data = &data[..data.len().min(MAX_TO_MIN_RATIO << bits)];
        for end in (1 << bits) + 1..=data.len() {
            let hash = data[end - WINDOW..end]
                .iter()
                .fold(0_u64, |hash, &byte| (hash << 1).wrapping_add(GEAR[usize::from(byte)]));
            if hash >> (u64::BITS - bits) == 0 {
                return end;
            }
        }
        data.len()
    }

    #[test]
    fn cuts_are_where_the_plain_rule_has_them() {
        for number in 0..40 {
            let data = noise(number, 9000 + usize::try_from(number).unwrap());
            let cdc = CdcParams { bits: BITS_MIN };
            assert_eq!(cdc.end(&data), plain_end(&data, BITS_MIN));
        }
    }

    #[test]
    fn chunks_are_twice_the_shortest_on_the_average() {
        let data = noise(7, 4 << 20);
        let cdc = CdcParams { bits: BITS_MIN };
        let mut rest = data.as_slice();
        let mut count = 0;
        while !rest.is_empty() {
            rest = &rest[cdc.end(rest)..];
            count += 1;
        }
        let average = data.len() / count;
        assert!((1900..2200).contains(&average), "{average}");
    }

    #[test]
    fn zeros_are_cut_at_the_longest() {
        let cdc = CdcParams { bits: BITS_MIN };
        assert_eq!(cdc.end(&vec![0; 100_000]), cdc.longest());
        assert_eq!(cdc.end(&[0; 5]), 5);
    }

    #[test]
    fn an_insertion_moves_no_cut_behind_the_next_few() {
        let data = noise(3, 200_000);
        let mut moved = vec![1, 2, 3];
        moved.extend_from_slice(&data);
        let ends = |data: &[u8]| {
            let cdc = CdcParams { bits: BITS_MIN };
            let mut ends = vec![0];
            while let rest @ [_, ..] = &data[*ends.last().unwrap()..] {
                ends.push(ends.last().unwrap() + cdc.end(rest));
            }
            ends
        };
        let (before, after) = (ends(&data), ends(&moved));
        let common = before.iter().filter(|&end| after.contains(&(end + 3))).count();
        assert!(common * 10 > before.len() * 9, "{common} of {}", before.len());
    }
}
