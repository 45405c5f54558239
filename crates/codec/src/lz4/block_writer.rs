//! Writes the sequences of an LZ4 block into an output of fixed length.
//!
//! It accepts a sequence only if the block can end behind it by the rules of the format: the last
//! five bytes are literals, and the last match starts twelve bytes before the end.
#![forbid(unsafe_code)]

use crate::error::ErrorKind;
use crate::stream::EncodedSizes;

/// The shortest match; lengths are counted from it.
pub(super) const MATCH_MIN: usize = 4;
/// The last bytes of an input are literals.
pub(super) const LAST_LITERALS: usize = 5;
/// The last match starts at least this far before the end of the input.
pub(super) const LAST_MATCH_BYTES: usize = 12;
/// A length of four bits that goes on in the bytes behind.
const LENGTH_MASK: usize = 15;

/// A match at `at` with the bytes `distance` before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lz4Match {
    pub(super) at: usize,
    pub(super) distance: u16,
    pub(super) length: usize,
}

/// A block that is being written.
#[derive(Debug)]
pub(super) struct BlockWriter<'a> {
    input: &'a [u8],
    output: &'a mut [u8],
    /// Written so far.
    bytes: usize,
    /// Of the input, what the sequences so far yield.
    taken: usize,
}

impl<'a> BlockWriter<'a> {
    pub(super) fn new(input: &'a [u8], output: &'a mut [u8]) -> Self {
        Self { input, output, bytes: 0, taken: 0 }
    }

    /// Of the input, what the sequences so far yield.
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    /// Writes the literals up to a match and the match, or tells that there is no room for them.
    ///
    /// The match lies behind [`taken`](Self::taken) and ends [`LAST_LITERALS`] before the input's
    /// end or earlier; it starts [`LAST_MATCH_BYTES`] before it or earlier.
    #[must_use]
    pub(super) fn push(&mut self, found: Lz4Match) -> bool {
        let literals = found.at - self.taken;
        let coded = found.length - MATCH_MIN;
        let behind = LAST_LITERALS.max(LAST_MATCH_BYTES.saturating_sub(found.length));
        let room = 1 + more_bytes(literals) + literals + 2 + more_bytes(coded) + 1 + behind;
        let left = self.output.len() - self.bytes;
        if left < room {
            // A long match is cut to what fits.
            let min = 1 + more_bytes(literals) + literals + 2 + 1 + LAST_MATCH_BYTES;
            let Some(more) = left.checked_sub(min) else { return false };
            let cut = coded.min(LENGTH_MASK - 1 + 255 * more);
            self.put_literals(literals, cut.min(LENGTH_MASK));
            self.put(&found.distance.to_le_bytes());
            self.put_more(cut);
            self.taken += MATCH_MIN + cut;
            return false;
        }
        self.put_literals(literals, coded.min(LENGTH_MASK));
        self.put(&found.distance.to_le_bytes());
        self.put_more(coded);
        self.taken += found.length;
        true
    }

    /// Writes as many literals as there is room for.
    pub(super) fn finish(mut self) -> EncodedSizes {
        let room = self.output.len() - self.bytes - 1;
        let mut literals = room.min(self.input.len() - self.taken);
        // The bytes of the length take room from the literals.
        while literals + more_bytes(literals) > room {
            literals -= 1;
        }
        self.put_literals(literals, 0);
        EncodedSizes { input_bytes: self.taken, output_bytes: self.bytes }
    }

    fn put_literals(&mut self, literals: usize, match_bits: usize) {
        let token = (literals.min(LENGTH_MASK) << 4 | match_bits).to_le_bytes()[0];
        self.put(&[token]);
        self.put_more(literals);
        let from = self.taken;
        self.taken += literals;
        let input = self.input;
        self.put(&input[from..self.taken]);
    }

    /// The bytes of a length that do not fit into four bits.
    fn put_more(&mut self, length: usize) {
        if length < LENGTH_MASK {
            return;
        }
        let more = length - LENGTH_MASK;
        let end = self.bytes + more / 255;
        self.output[self.bytes..end].fill(u8::MAX);
        self.bytes = end;
        self.put(&[(more % 255).to_le_bytes()[0]]);
    }

    fn put(&mut self, bytes: &[u8]) {
        let end = self.bytes + bytes.len();
        self.output[self.bytes..end].copy_from_slice(bytes);
        self.bytes = end;
    }
}

/// How many bytes the rest of a length takes behind its four bits.
pub(super) fn more_bytes(length: usize) -> usize {
    if length < LENGTH_MASK { 0 } else { 1 + (length - LENGTH_MASK) / 255 }
}

/// How many bytes from `earlier` on are equal to those from `later` on, up to `end`.
#[inline]
pub(super) fn common(input: &[u8], earlier: usize, later: usize, end: usize) -> usize {
    let limit = end - later;
    let (left, right) = (&input[earlier..earlier + limit], &input[later..end]);
    let mut length = 0;
    let words = left.as_chunks::<8>().0.iter().zip(right.as_chunks::<8>().0);
    for (left, right) in words {
        let differ = u64::from_le_bytes(*left) ^ u64::from_le_bytes(*right);
        if differ != 0 {
            return length + differ.trailing_zeros() as usize / 8;
        }
        length += 8;
    }
    let rest = left[length..].iter().zip(&right[length..]);
    length + rest.take_while(|(left, right)| left == right).count()
}

/// The four bytes at `at`.
#[inline]
pub(super) fn word(input: &[u8], at: usize) -> u32 {
    input.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u32::from_le_bytes(*word))
}

/// A table of `length` zeros.
pub(super) fn zeroed_table<T: Copy + Default>(length: usize) -> Result<Box<[T]>, ErrorKind> {
    let mut table = Vec::new();
    table.try_reserve_exact(length).map_err(|_| ErrorKind::OutOfMemory)?;
    table.resize(length, T::default());
    Ok(table.into_boxed_slice())
}
