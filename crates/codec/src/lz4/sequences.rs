//! Reads the sequences of an LZ4 block by the rules of liblz4 1.10, to the byte.
//!
//! A block is a row of sequences, each a run of literals and a match. Which blocks the library
//! accepts depends on the distance to the ends of input and output, and on its shortcuts. All of
//! that is repeated here, so that both ways of decoding agree. This file copies nothing and looks
//! at no literal. It refuses two things that the library accepts: a distance beyond the declared
//! one, and, where the library's output is undefined, the distance 0.
#![forbid(unsafe_code)]

use crate::error::ErrorKind;

/// The shortest match; lengths are counted from it.
const MATCH_MIN: usize = 4;
/// A length of four bits that goes on in the bytes behind.
const LENGTH_MASK: usize = 15;
/// The bytes of a distance.
const DISTANCE_BYTES: usize = 2;
/// The last match starts at least this far before the end of the output.
const LAST_MATCH_BYTES: usize = 12;
/// The last bytes of the output are literals.
const LAST_LITERALS: usize = 5;
/// A token, its distance and the last literals: less input than that holds no match any more.
const LAST_INPUT: usize = DISTANCE_BYTES + 1 + LAST_LITERALS;
/// After the bytes of a literal length there are at least that many literals.
const INPUT_BEHIND_LITERAL_LENGTH: usize = 15;
/// After the bytes of a match length there are a token and literals.
const INPUT_BEHIND_MATCH_LENGTH: usize = LAST_LITERALS - 1;
/// With more input than this behind its token, a sequence of short lengths may take the shortcut,
const SHORTCUT_INPUT: usize = 16;
/// with that much output before it.
const SHORTCUT_OUTPUT: usize = 32;
/// The shortcut is not for matches that overlap within a word.
const SHORTCUT_DISTANCE: usize = 8;

/// Where the block has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockEnd {
    /// With the input, when the output is full.
    Exact,
    /// Anywhere behind the byte that fills the output.
    Open,
}

/// A run of literals and the match behind it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sequence {
    /// Where in the stream the literals begin.
    pub(super) from: usize,
    /// The count of literals, all of which are in the stream and wanted.
    pub(super) literals: usize,
    /// How far back the match begins: 0, which stands for zeros, to as much as was yielded.
    pub(super) distance: usize,
    /// The length of the match, all of which is wanted.
    pub(super) matched: usize,
    /// Whether the library would stop here.
    pub(super) is_last: bool,
}

/// The place in a block.
#[derive(Debug)]
pub(super) struct Sequences<'a> {
    stream: &'a [u8],
    at: usize,
    yielded: usize,
    wanted: usize,
    end: BlockEnd,
    max_distance: usize,
}

impl<'a> Sequences<'a> {
    /// `wanted` is the length of the output, and not 0: for an empty one the library has a rule of
    /// its own.
    pub(super) fn new(stream: &'a [u8], wanted: usize, end: BlockEnd, max_distance: u16) -> Self {
        Self { stream, at: 0, yielded: 0, wanted, end, max_distance: max_distance.into() }
    }

    /// What the sequences so far have yielded; after the last, what the block yields.
    pub(super) fn yielded(&self) -> usize {
        self.yielded
    }

    /// The next sequence, until one is the last.
    #[inline(always)]
    pub(super) fn next(&mut self) -> Result<Sequence, ErrorKind> {
        let token = *self.stream.get(self.at).ok_or(ErrorKind::Corrupt)?;
        self.at += 1;
        let mut literals = usize::from(token >> 4);
        let is_short = literals != LENGTH_MASK
            && self.at + SHORTCUT_INPUT < self.stream.len()
            && self.yielded + SHORTCUT_OUTPUT <= self.wanted;
        let mut nears_an_end = false;
        if !is_short {
            if literals == LENGTH_MASK {
                literals += self.literal_length()?;
            }
            nears_an_end = self.yielded + literals + LAST_MATCH_BYTES > self.wanted
                || self.at + literals + LAST_INPUT > self.stream.len();
            if nears_an_end {
                literals = self.literals_at_an_end(literals)?;
            }
        }
        let from = self.at;
        self.at += literals;
        self.yielded += literals;
        let mut sequence = Sequence { from, literals, distance: 0, matched: 0, is_last: true };
        if !(nears_an_end && self.ends_behind_literals()) {
            self.read_match(usize::from(token & 15), is_short, &mut sequence)?;
        }
        Ok(sequence)
    }

    /// As many of the literals as there are and as are wanted.
    #[cold]
    fn literals_at_an_end(&self, literals: usize) -> Result<usize, ErrorKind> {
        let (input, output) = (self.stream.len() - self.at, self.wanted - self.yielded);
        match self.end {
            BlockEnd::Exact if literals == input && literals <= output => Ok(literals),
            BlockEnd::Exact => Err(ErrorKind::Corrupt),
            BlockEnd::Open => Ok(literals.min(input).min(output)),
        }
    }

    /// Whether the literals near an end were the last bytes.
    fn ends_behind_literals(&self) -> bool {
        self.end == BlockEnd::Exact
            || self.yielded == self.wanted
            || self.at + DISTANCE_BYTES >= self.stream.len()
    }

    #[inline(always)]
    fn read_match(
        &mut self,
        length: usize,
        is_short: bool,
        sequence: &mut Sequence,
    ) -> Result<(), ErrorKind> {
        let distance = self.stream.get(self.at..).and_then(<[u8]>::first_chunk);
        let distance = usize::from(u16::from_le_bytes(*distance.ok_or(ErrorKind::Corrupt)?));
        self.at += DISTANCE_BYTES;
        let mut matched = MATCH_MIN + length;
        if length == LENGTH_MASK {
            matched += self.match_length()?;
        }
        if distance > self.max_distance {
            return Err(ErrorKind::DistanceTooFar { distance, limit: self.max_distance });
        }
        if distance > self.yielded || distance == 0 && self.end == BlockEnd::Open {
            return Err(ErrorKind::Corrupt);
        }
        let took_shortcut = is_short && length != LENGTH_MASK && distance >= SHORTCUT_DISTANCE;
        let left = self.wanted - self.yielded;
        sequence.is_last = false;
        if !took_shortcut && matched + LAST_LITERALS > left {
            if self.end == BlockEnd::Exact {
                return Err(ErrorKind::Corrupt);
            }
            sequence.is_last = matched >= left;
            matched = matched.min(left);
        }
        self.yielded += matched;
        (sequence.distance, sequence.matched) = (distance, matched);
        Ok(())
    }

    /// What the bytes behind the token add to the count of literals.
    fn literal_length(&mut self) -> Result<usize, ErrorKind> {
        if self.at + INPUT_BEHIND_LITERAL_LENGTH >= self.stream.len() {
            return Err(ErrorKind::Corrupt);
        }
        self.length(INPUT_BEHIND_LITERAL_LENGTH)
    }

    /// What the bytes behind the distance add to the length of the match.
    fn match_length(&mut self) -> Result<usize, ErrorKind> {
        self.length(INPUT_BEHIND_MATCH_LENGTH)
    }

    /// Bytes that add up, to the first below 255, and leave `behind` bytes of input.
    #[inline]
    fn length(&mut self, behind: usize) -> Result<usize, ErrorKind> {
        let mut length = 0;
        loop {
            let more = *self.stream.get(self.at).ok_or(ErrorKind::Corrupt)?;
            self.at += 1;
            if self.at + behind > self.stream.len() {
                return Err(ErrorKind::Corrupt);
            }
            length += usize::from(more);
            if more != u8::MAX {
                return Ok(length);
            }
        }
    }
}
