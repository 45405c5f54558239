//! gzip (RFC 1952): any number of members, each with its checksum and length verified.

use std::io::{self, Read};
use std::ops::Range;

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_HAS_MORE_INPUT;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};

use super::{CorruptStream, CountingReader};

/// A power of two, at least DEFLATE's window of 32 KiB; more makes fewer and longer copies.
const RING_BYTES: usize = 128 << 10;

const HAS_HEADER_CHECKSUM: u8 = 2;
const HAS_EXTRA: u8 = 4;
const HAS_NAME: u8 = 8;
const HAS_COMMENT: u8 = 16;
const RESERVED: u8 = 0xE0;

/// What the reader expects next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GzipState {
    /// The first member's header.
    First,
    /// Another member's header, zeros, or the end.
    Next,
    /// Compressed data.
    Body,
    /// Checksum and length.
    Trailer,
    End,
}

/// The decompressed stream of a gzip file.
pub(super) struct GzipReader {
    input: CountingReader,
    inflater: Box<DecompressorOxide>,
    ring: Box<[u8]>,
    /// Where the inflater writes next.
    at: usize,
    /// Decompressed bytes that were not read yet.
    ready: Range<usize>,
    state: GzipState,
    checksum: Crc32,
    member_bytes: u64,
}

impl GzipReader {
    pub(super) fn new(input: CountingReader) -> Self {
        Self {
            input,
            inflater: Box::default(),
            ring: vec![0; RING_BYTES].into_boxed_slice(),
            at: 0,
            ready: 0..0,
            state: GzipState::First,
            checksum: Crc32::new(),
            member_bytes: 0,
        }
    }

    fn damage(&self, what: &str) -> io::Error {
        CorruptStream::error(format!("the gzip data {what}"), self.input.position())
    }

    /// The next byte of a header or trailer; it is added to the checksum of the header.
    fn byte(&mut self) -> io::Result<u8> {
        match self.input.byte()? {
            Some(byte) => {
                self.checksum.update(&[byte]);
                Ok(byte)
            }
            None => Err(self.damage("ends too early")),
        }
    }

    fn bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        for byte in &mut bytes {
            *byte = self.byte()?;
        }
        Ok(bytes)
    }

    fn header(&mut self) -> io::Result<()> {
        self.checksum = Crc32::new();
        let [first, second, method, flags, ..] = self.bytes::<10>()?;
        if (first, second) != (0x1F, 0x8B) {
            return Err(self.damage("has no header where a member should begin"));
        }
        if method != 8 || flags & RESERVED != 0 {
            return Err(self.damage("uses an unknown method or unknown flags"));
        }
        if flags & HAS_EXTRA != 0 {
            for _ in 0..u16::from_le_bytes(self.bytes()?) {
                self.byte()?;
            }
        }
        for text in [HAS_NAME, HAS_COMMENT] {
            while flags & text != 0 && self.byte()? != 0 {}
        }
        if flags & HAS_HEADER_CHECKSUM != 0 {
            let wanted = self.checksum.value() & 0xFFFF;
            if u32::from(u16::from_le_bytes(self.bytes()?)) != wanted {
                return Err(self.damage("has a header with a wrong checksum"));
            }
        }
        self.inflater.init();
        (self.at, self.ready) = (0, 0..0);
        (self.checksum, self.member_bytes) = (Crc32::new(), 0);
        self.state = GzipState::Body;
        Ok(())
    }

    /// After a member: another one, zeros as padding of tapes, or the end.
    fn next(&mut self) -> io::Result<()> {
        match self.input.fill()?.first() {
            None => self.state = GzipState::End,
            Some(0) => {
                while let Some(byte) = self.input.byte()? {
                    if byte != 0 {
                        return Err(self.damage("is followed by other data"));
                    }
                }
                self.state = GzipState::End;
            }
            Some(_) => self.header()?,
        }
        Ok(())
    }

    fn inflate(&mut self) -> io::Result<()> {
        let input = self.input.fill()?;
        let is_end = input.is_empty();
        let flags = if is_end { 0 } else { TINFL_FLAG_HAS_MORE_INPUT };
        let (status, used, made) =
            decompress(&mut self.inflater, input, &mut self.ring, self.at, flags);
        self.input.consume(used);
        self.ready = self.at..self.at + made;
        self.at = (self.at + made) % RING_BYTES;
        self.checksum.update(&self.ring[self.ready.clone()]);
        self.member_bytes += made as u64;
        match status {
            TINFLStatus::Done => self.state = GzipState::Trailer,
            TINFLStatus::HasMoreOutput => {}
            TINFLStatus::NeedsMoreInput if !is_end => {}
            _ if is_end => return Err(self.damage("ends too early")),
            _ => return Err(self.damage("is not a valid DEFLATE stream")),
        }
        Ok(())
    }

    fn trailer(&mut self) -> io::Result<()> {
        let checksum = self.checksum.value();
        if u32::from_le_bytes(self.bytes()?) != checksum {
            return Err(self.damage("has a wrong checksum"));
        }
        if u64::from(u32::from_le_bytes(self.bytes()?)) != self.member_bytes & 0xFFFF_FFFF {
            return Err(self.damage("has a wrong length"));
        }
        self.state = GzipState::Next;
        Ok(())
    }
}

impl Read for GzipReader {
    fn read(&mut self, output: &mut [u8]) -> io::Result<usize> {
        while self.ready.is_empty() && self.state != GzipState::End {
            match self.state {
                GzipState::First => self.header()?,
                GzipState::Next => self.next()?,
                GzipState::Body => self.inflate()?,
                GzipState::Trailer => self.trailer()?,
                GzipState::End => {}
            }
        }
        let count = self.ready.len().min(output.len());
        let taken = self.ready.start..self.ready.start + count;
        output[..count].copy_from_slice(&self.ring[taken]);
        self.ready.start += count;
        Ok(count)
    }
}

const POLYNOMIAL: u32 = 0xEDB8_8320;

/// The CRC of a byte, and of a byte that one to seven zeros follow.
static TABLES: [[u32; 256]; 8] = [T0, T1, T2, T3, T4, T5, T6, T7];

const T0: [u32; 256] = of_bytes();
const T1: [u32; 256] = with_a_zero(&T0);
const T2: [u32; 256] = with_a_zero(&T1);
const T3: [u32; 256] = with_a_zero(&T2);
const T4: [u32; 256] = with_a_zero(&T3);
const T5: [u32; 256] = with_a_zero(&T4);
const T6: [u32; 256] = with_a_zero(&T5);
const T7: [u32; 256] = with_a_zero(&T6);

const fn of_bytes() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    let mut value = 0_u32;
    while byte < 256 {
        let mut state = value;
        let mut bit = 0;
        while bit < 8 {
            state = if state & 1 == 1 { state >> 1 ^ POLYNOMIAL } else { state >> 1 };
            bit += 1;
        }
        table[byte] = state;
        byte += 1;
        value += 1;
    }
    table
}

/// The table for bytes that one more zero follows.
const fn with_a_zero(last: &[u32; 256]) -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let state = last[byte];
        table[byte] = state >> 8 ^ T0[(state & 0xFF) as usize];
        byte += 1;
    }
    table
}

/// A running CRC-32 as in gzip (RFC 1952, 8), eight bytes at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crc32(u32);

impl Crc32 {
    pub(super) fn new() -> Self {
        Self(!0)
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        let mut state = self.0;
        for word in words {
            let [a, b, c, d, e, f, g, h] = *word;
            let [i, j, k, l] = (state ^ u32::from_le_bytes([a, b, c, d])).to_le_bytes();
            state = 0;
            for (table, byte) in TABLES.iter().rev().zip([i, j, k, l, e, f, g, h]) {
                state ^= table[usize::from(byte)];
            }
        }
        for byte in rest {
            let [low, ..] = state.to_le_bytes();
            state = state >> 8 ^ TABLES[0][usize::from(low ^ byte)];
        }
        self.0 = state;
    }

    pub(super) fn value(self) -> u32 {
        !self.0
    }
}
