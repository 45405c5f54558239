//! The compressed formats of archives, each as a reader of the decompressed stream:
//!
//! * gzip (RFC 1952): any number of members, each with its checksum and length verified.
//! * xz: any number of streams with their checks. The library decodes them; the length of the first window is read from
//!   its header here, for the message of one that is too long.
//! * Zstandard (RFC 8878): any number of frames, each with its checksum and length verified where it has them.

use std::io::{self, Read};
use std::ops::Range;

use lzma_rust2::XzReader;
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_HAS_MORE_INPUT;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use xxhash_rust::xxh64::Xxh64;

use super::{CorruptStream, CountingReader, WindowMemory};

/// A power of two, at least DEFLATE's window of 32 KiB; more makes fewer and longer copies.
const RING_BYTES: usize = 128 << 10;

// Flags of the header of a gzip member.
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

/// Memory of a decoder of xz beside its window, in KiB, as the library counts it.
const XZ_DECODER_KIB: u64 = 104;
/// Bytes of the header of a stream.
const XZ_STREAM_HEADER_BYTES: usize = 12;
/// Bytes of the header of a block at most.
const XZ_BLOCK_HEADER_BYTES_MAX: usize = 1024;
/// The number of the filter that has a window.
const LZMA2: u64 = 0x21;

/// The decompressed stream of an xz file.
pub(super) struct XzStream {
    inner: XzReader<CountingReader>,
    window: WindowMemory,
}

impl XzStream {
    /// # Errors
    /// The first window is too long, or the host cannot read.
    pub(super) fn new(mut input: CountingReader, mut window: WindowMemory) -> io::Result<Self> {
        let header = input.peek(XZ_STREAM_HEADER_BYTES + XZ_BLOCK_HEADER_BYTES_MAX)?;
        if let Some(bytes) = first_xz_window(header) {
            let offset = input.position();
            window.reserve("xz", bytes, offset)?;
            // A later block may have a longer one, of which only the library knows.
            window.reserve("xz", window.bytes_max(), offset)?;
        }
        let kib = (window.bytes_max() / 1024).saturating_add(XZ_DECODER_KIB);
        let kib = u32::try_from(kib).unwrap_or(u32::MAX);
        Ok(Self { inner: XzReader::new_mem_limit(input, true, kib), window })
    }
}

impl Read for XzStream {
    fn read(&mut self, output: &mut [u8]) -> io::Result<usize> {
        let result = self.inner.read(output);
        if result.is_err() {
            self.inner.inner().check_cancelled()?;
        }
        result.map_err(|error| match error.kind() {
            io::ErrorKind::OutOfMemory => {
                self.window.too_long("xz", None, self.inner.inner().position())
            }
            io::ErrorKind::InvalidData
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::Unsupported
            | io::ErrorKind::Other => {
                let at = self.inner.inner().position();
                CorruptStream::error(format!("the xz data cannot be decoded ({error})"), at)
            }
            _ => error,
        })
    }
}

/// The bytes of the window of the first block, if there is a block and its header is whole. Whatever else is wrong with it,
/// the library reports.
fn first_xz_window(start: &[u8]) -> Option<u64> {
    let header = start.get(XZ_STREAM_HEADER_BYTES..)?;
    let (&size, header) = header.split_first()?;
    // 0 is the index behind the last block.
    let mut fields = header.get(..usize::from(size).checked_mul(4)?)?;
    let flags = take(&mut fields, 1)?.first().copied()?;
    for has_size in [flags & 0x40 != 0, flags & 0x80 != 0] {
        if has_size {
            number(&mut fields)?;
        }
    }
    for _ in 0..=flags & 3 {
        let filter = number(&mut fields)?;
        let property_bytes = usize::try_from(number(&mut fields)?).ok()?;
        let properties = take(&mut fields, property_bytes)?;
        if let (LZMA2, [bits]) = (filter, properties) {
            return match bits {
                0..=39 => Some((2 | u64::from(bits & 1)) << (bits / 2 + 11)),
                40 => Some(u64::from(u32::MAX)),
                _ => None,
            };
        }
    }
    None
}

/// The next `count` bytes of the fields of an xz header.
fn take<'a>(fields: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = fields.split_at_checked(count)?;
    *fields = rest;
    Some(taken)
}

/// A number of an xz header: seven bits a byte, the lowest first.
fn number(fields: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..63).step_by(7) {
        let byte = take(fields, 1)?.first().copied()?;
        value |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Bytes of the header of a frame at most: magic, descriptor, window, dictionary, length of the contents.
const ZSTD_FRAME_HEADER_BYTES_MAX: usize = 4 + 1 + 1 + 4 + 8;

/// What the reader expects next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ZstdState {
    /// A frame, or the end.
    Start {
        is_first: bool,
    },
    /// The data of a frame.
    Frame,
    End,
}

/// The decompressed stream of a zstd file.
pub(super) struct ZstdReader {
    input: CountingReader,
    window: WindowMemory,
    decoder: FrameDecoder,
    state: ZstdState,
    checksum: Xxh64,
    frame_bytes: u64,
}

impl ZstdReader {
    pub(super) fn new(input: CountingReader, window: WindowMemory) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(window.bytes_max());
        let state = ZstdState::Start { is_first: true };
        Self { input, window, decoder, state, checksum: Xxh64::new(0), frame_bytes: 0 }
    }

    fn damage(&self, what: &str) -> io::Error {
        CorruptStream::error(format!("the zstd data {what}"), self.input.position())
    }

    fn start(&mut self, is_first: bool) -> io::Result<()> {
        match *self.input.peek(4)? {
            [] if !is_first => self.state = ZstdState::End,
            [0x28, 0xB5, 0x2F, 0xFD] => {
                if let Some(bytes) = zstd_window(self.input.peek(ZSTD_FRAME_HEADER_BYTES_MAX)?) {
                    // The buffer of the decoder has a power of two.
                    let bytes = bytes.checked_next_power_of_two().unwrap_or(u64::MAX);
                    self.window.reserve("zstd", bytes, self.input.position())?;
                }
                if let Err(error) = self.decoder.reset(&mut self.input) {
                    self.input.check_cancelled()?;
                    return Err(
                        self.damage(&format!("has a frame that cannot be decoded ({error})"))
                    );
                }
                (self.checksum, self.frame_bytes) = (Xxh64::new(0), 0);
                self.state = ZstdState::Frame;
            }
            [0x50..=0x5F, 0x2A, 0x4D, 0x18] => {
                self.skip_frame()?;
                self.state = ZstdState::Start { is_first: false };
            }
            _ => return Err(self.damage("has no frame where one should begin")),
        }
        Ok(())
    }

    /// Skips a skippable frame.
    fn skip_frame(&mut self) -> io::Result<()> {
        let mut header = [0; 8];
        for byte in &mut header {
            *byte = self.input.byte()?.ok_or_else(|| self.damage("ends too early"))?;
        }
        let [.., a, b, c, d] = header;
        let mut left = u64::from(u32::from_le_bytes([a, b, c, d]));
        while left > 0 {
            let ready = self.input.fill()?.len();
            if ready == 0 {
                return Err(self.damage("ends too early"));
            }
            let count = ready.min(usize::try_from(left).unwrap_or(usize::MAX));
            self.input.consume(count);
            left -= count as u64;
        }
        Ok(())
    }

    /// Decodes until there are bytes to return or the frame has ended.
    fn decode(&mut self) -> io::Result<()> {
        while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
            let strategy = BlockDecodingStrategy::UptoBlocks(1);
            if let Err(error) = self.decoder.decode_blocks(&mut self.input, strategy) {
                self.input.check_cancelled()?;
                return Err(self.damage(&format!("cannot be decoded ({error})")));
            }
        }
        Ok(())
    }

    fn end_frame(&mut self) -> io::Result<()> {
        let wanted = self.decoder.content_size();
        if wanted != 0 && wanted != self.frame_bytes {
            return Err(self.damage("has a frame whose length differs from its header"));
        }
        // A frame stores the lower half of the hash.
        let checksum = self.checksum.digest() & 0xFFFF_FFFF;
        if self.decoder.get_checksum_from_data().is_some_and(|kept| u64::from(kept) != checksum) {
            return Err(self.damage("has a frame with a wrong checksum"));
        }
        self.state = ZstdState::Start { is_first: false };
        Ok(())
    }
}

impl Read for ZstdReader {
    fn read(&mut self, output: &mut [u8]) -> io::Result<usize> {
        if output.is_empty() {
            return Ok(0);
        }
        loop {
            match self.state {
                ZstdState::End => return Ok(0),
                ZstdState::Start { is_first } => self.start(is_first)?,
                ZstdState::Frame => {
                    self.decode()?;
                    let count = self.decoder.read(output)?;
                    if count == 0 {
                        self.end_frame()?;
                        continue;
                    }
                    self.checksum.update(&output[..count]);
                    self.frame_bytes += count as u64;
                    return Ok(count);
                }
            }
        }
    }
}

/// The bytes of the window of a frame of zstd, if its header is whole; if not, the decoder reports it.
fn zstd_window(header: &[u8]) -> Option<u64> {
    let descriptor = *header.get(4)?;
    if descriptor & 0x20 == 0 {
        let window = *header.get(5)?;
        let base = 1u64.checked_shl(10 + u32::from(window >> 3))?;
        return base.checked_add(base / 8 * u64::from(window & 7));
    }
    // The window is all of the contents.
    let at = 5 + [0, 1, 2, 4][usize::from(descriptor & 3)];
    let (count, more) = [(1, 0), (2, 256), (4, 0), (8, 0)][usize::from(descriptor >> 6)];
    let bytes = header.get(at..)?.get(..count)?;
    let value = bytes.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
    value.checked_add(more)
}
