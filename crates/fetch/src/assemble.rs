//! From the bytes of a body to verified chunks of the cache: pieces of a chunk index are compared
//! with their digests as soon as they are complete, and a chunk is complete when all its bytes
//! are verified. Does no I/O.

use std::ops::Range;
use std::sync::Arc;

use ferrofs_remote::cache::ChunkLayout;
use ferrofs_remote::{ChunkIndex, ContentDigest};

/// Bytes of a body that come at once, about.
const SPARE_BYTES: usize = 256 << 10;
/// A buffer that is longer grows when it is needed.
const BUFFER_MAX_BYTES: usize = 4 << 20;

/// Collects a body that starts anywhere, piece by piece.
#[derive(Debug)]
pub(crate) struct Assembler {
    layout: ChunkLayout,
    index: Option<Arc<ChunkIndex>>,
    /// Bytes of the object from `start` on.
    buffer: Vec<u8>,
    start: u64,
    /// Bytes before this one are verified, as far as they can be.
    verified: u64,
    verified_bytes: u64,
}

/// A piece of a chunk index has not the digest that it should have, or what lies behind the image is
/// not the chunk index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DigestMismatch {
    /// The first byte of the piece.
    pub(crate) offset: u64,
}

impl Assembler {
    /// For a body whose first byte is byte `start` of the object.
    pub(crate) fn new(layout: ChunkLayout, index: Option<Arc<ChunkIndex>>, start: u64) -> Self {
        // Enough for a chunk and what comes with its end, so that the buffer hardly ever grows.
        let chunk = layout.bytes_of(0);
        let capacity =
            usize::try_from(chunk.end - chunk.start).unwrap_or(0).saturating_add(SPARE_BYTES);
        let buffer = Vec::with_capacity(capacity.min(BUFFER_MAX_BYTES));
        Self { layout, index, buffer, start, verified: start, verified_bytes: 0 }
    }

    /// The byte of the object that must come next.
    pub(crate) fn position(&self) -> u64 {
        self.start + self.buffer.len() as u64
    }

    /// Bytes that have come and belong to a chunk that is not complete.
    pub(crate) fn buffered(&self) -> u64 {
        self.buffer.len() as u64
    }

    /// Bytes that were compared with a digest.
    pub(crate) fn verified_bytes(&self) -> u64 {
        self.verified_bytes
    }

    /// Adds bytes, and calls `store` with the number and the bytes of each chunk that is complete
    /// now, in ascending order.
    pub(crate) fn push<E: From<DigestMismatch>>(
        &mut self,
        bytes: &[u8],
        mut store: impl FnMut(u32, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.buffer.extend_from_slice(bytes);
        self.verify()?;
        let mut used = self.start;
        for number in self.layout.chunks_in(&(self.start..self.verified)) {
            let chunk = self.layout.bytes_of(number);
            // A body may start inside of a chunk, which is then left out.
            if chunk.start >= self.start && chunk.end <= self.verified {
                let bytes = self.slice(&chunk);
                store(number, bytes)?;
            }
            if chunk.end <= self.verified {
                used = chunk.end;
            }
        }
        let consumed = usize::try_from(used - self.start).unwrap_or(0);
        self.buffer.drain(..consumed);
        self.start = used;
        Ok(())
    }

    /// Whether a chunk is complete, and maybe stored, when so many more bytes have come.
    pub(crate) fn completes_chunk(&self, bytes: usize) -> bool {
        let end = self.position() + bytes as u64;
        let mut chunks = self.layout.chunks_in(&(self.start..end));
        chunks.next().is_some_and(|chunk| self.layout.bytes_of(chunk).end <= end)
    }

    fn slice(&self, range: &Range<u64>) -> &[u8] {
        let at = |byte: u64| usize::try_from(byte - self.start).unwrap_or(usize::MAX);
        self.buffer.get(at(range.start)..at(range.end)).unwrap_or_default()
    }

    fn verify(&mut self) -> Result<(), DigestMismatch> {
        let end = self.start + self.buffer.len() as u64;
        let Some(index) = self.index.clone() else {
            self.verified = end;
            return Ok(());
        };
        while self.verified < end {
            // After the image comes the index itself.
            if let Some(offset) = self.verified.checked_sub(index.length()) {
                let tail = self.verified..end;
                if !index.has_bytes_at(offset, self.slice(&tail)) {
                    return Err(DigestMismatch { offset: self.verified });
                }
                self.verified_bytes += end - self.verified;
                self.verified = end;
                break;
            }
            let number = index.chunks_in(self.verified..self.verified + 1).start;
            let Some((piece, digest)) = index.chunk(number) else { break };
            if piece.end > end {
                break;
            }
            // A body that starts inside of a piece cannot prove it.
            if piece.start >= self.start {
                if ContentDigest::of(self.slice(&piece)) != digest {
                    return Err(DigestMismatch { offset: piece.start });
                }
                self.verified_bytes += piece.end - piece.start;
            } else {
                let skipped = usize::try_from(piece.end - self.start).unwrap_or(0);
                self.buffer.drain(..skipped);
                self.start = piece.end;
            }
            self.verified = piece.end;
        }
        Ok(())
    }
}

/// The bytes to request for chunks `numbers`, so that each can be verified.
pub(crate) fn bytes_to_request(
    layout: &ChunkLayout,
    index: Option<&ChunkIndex>,
    numbers: &Range<u32>,
) -> Range<u64> {
    let start = layout.bytes_of(numbers.start).start;
    let end = layout.bytes_of(numbers.end).start;
    let Some(index) = index else { return start..end };
    let pieces = index.chunks_in(start..end);
    // After the image, no piece proves anything: there is the index itself.
    if pieces.is_empty() {
        return start..end;
    }
    let first = index.chunk(pieces.start).map_or(start, |(piece, _)| piece.start.min(start));
    let last = pieces.end.checked_sub(1).and_then(|last| index.chunk(last));
    first..last.map_or(end, |(piece, _)| piece.end.max(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const LENGTH: u64 = 5 * MIB + 100;

    fn byte(at: u64) -> u8 {
        u8::try_from((at * 7 + (at >> 13)) % 251).unwrap()
    }

    fn bytes(range: Range<u64>) -> Vec<u8> {
        range.map(byte).collect()
    }

    fn index(length: u64, piece: u64) -> Arc<ChunkIndex> {
        let digest = |start: u64| ContentDigest::of(&bytes(start..(start + piece).min(length)));
        let step = usize::try_from(piece).unwrap();
        let digests = (0..length).step_by(step).map(digest).collect();
        Arc::new(ChunkIndex::uniform(length, piece, digests).unwrap())
    }

    /// The chunks that come out when `range` of an object is sent in parts of `part` bytes.
    fn assembled(
        index: Option<Arc<ChunkIndex>>,
        object: &[u8],
        range: Range<u64>,
        part: usize,
    ) -> Result<Vec<u32>, DigestMismatch> {
        let place = |range: Range<u64>| {
            usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()
        };
        let layout = ChunkLayout::new(object.len() as u64).unwrap();
        let mut assembler = Assembler::new(layout, index, range.start);
        let mut stored = Vec::new();
        for part in object[place(range)].chunks(part) {
            assembler.push(part, |number, found| {
                assert!(found == &object[place(layout.bytes_of(number))], "chunk {number}");
                stored.push(number);
                Ok::<_, DigestMismatch>(())
            })?;
            assert!(assembler.buffer.len() < 6 << 20);
        }
        Ok(stored)
    }

    #[test]
    fn whole_chunks_come_out_whatever_the_parts_are() {
        let object = bytes(0..LENGTH);
        for part in [777, 65_536, 1 << 20, 9 << 20] {
            let assembled = |range| assembled(None, &object, range, part);
            assert_eq!(assembled(0..LENGTH), Ok((0..6).collect()));
            assert_eq!(assembled(MIB - 1..3 * MIB + 1), Ok(vec![1, 2]));
            assert_eq!(assembled(5 * MIB..LENGTH), Ok(vec![5]));
            assert_eq!(assembled(10..20), Ok(vec![]));
        }
    }

    /// Of a whole number of chunks, the index lies in a chunk of its own: the whole image was requested for it.
    #[test]
    fn chunks_behind_the_image_are_requested_without_it() {
        for length in [5 * MIB, LENGTH] {
            let index = index(length, 300_000);
            let layout = ChunkLayout::new(length + index.to_bytes().len() as u64).unwrap();
            let last = layout.count() - 1;
            let range = bytes_to_request(&layout, Some(&index), &(last..last + 1));
            assert!(range.start >= 4_800_000 && range.end == layout.length(), "{range:?}");
        }
        let index = index(5 * MIB, MIB);
        let object = [bytes(0..5 * MIB), index.to_bytes()].concat();
        let layout = ChunkLayout::new(object.len() as u64).unwrap();
        let range = bytes_to_request(&layout, Some(&index), &(5..6));
        assert_eq!(range, 5 * MIB..object.len() as u64);
        assert_eq!(assembled(Some(index), &object, range, 999), Ok(vec![5]));
    }

    #[test]
    fn chunks_come_out_when_their_pieces_are_verified() {
        for piece in [4096, 300_000, MIB, 3 * MIB, LENGTH] {
            // The blob ends with its index, which has no piece.
            let index = index(LENGTH, piece);
            let object = [bytes(0..LENGTH), index.to_bytes()].concat();
            let length = object.len() as u64;
            for part in [65_535, 2 << 20] {
                let stored = assembled(Some(Arc::clone(&index)), &object, 0..length, part);
                assert_eq!(stored, Ok((0..6).collect()), "{piece}");
            }
            let layout = ChunkLayout::new(length).unwrap();
            for numbers in [0..1, 1..3, 4..5, 5..6] {
                let range = bytes_to_request(&layout, Some(&index), &numbers);
                let range = range.start..range.end.min(length);
                let stored = assembled(Some(Arc::clone(&index)), &object, range, 65_536).unwrap();
                assert!(
                    numbers.clone().all(|number| stored.contains(&number)),
                    "{piece} {numbers:?}"
                );
            }
        }
    }

    /// Once they were taken as they came, and counted as verified.
    #[test]
    fn bytes_behind_the_image_are_the_index_or_refused() {
        let index = index(LENGTH, MIB);
        let right = [bytes(0..LENGTH), index.to_bytes()].concat();
        let length = right.len() as u64;
        for at in [LENGTH, LENGTH + 40, length - 1] {
            let mut object = right.clone();
            object[usize::try_from(at).unwrap()] ^= 1;
            for range in [0..length, 5 * MIB..length] {
                let stored = assembled(Some(Arc::clone(&index)), &object, range, 4096);
                let Err(DigestMismatch { offset }) = stored else { panic!("{at}: {stored:?}") };
                assert!((LENGTH..=at).contains(&offset), "{at}: {offset}");
            }
        }
    }

    #[test]
    fn a_wrong_byte_stops_before_its_chunk() {
        let index = index(LENGTH, 300_000);
        let layout = ChunkLayout::new(LENGTH).unwrap();
        let mut body = bytes(0..LENGTH);
        body[(2 << 20) + 5] ^= 1;
        let mut assembler = Assembler::new(layout, Some(index), 0);
        let mut stored = Vec::new();
        let result = assembler.push(&body, |number, _| {
            stored.push(number);
            Ok::<_, DigestMismatch>(())
        });
        assert_eq!(result, Err(DigestMismatch { offset: 1_800_000 }));
        assert!(stored.is_empty() || stored.iter().all(|number| *number < 2));
    }
}
