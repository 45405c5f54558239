//! Truncates a DEFLATE stream so that it fits into fewer bytes.
//!
//! It follows the symbols to the last one behind which the end of its block still fits, writes the
//! end of the block there, and makes the block the last. The codes of that block were made for all
//! of it, which costs little while little is cut off. It handles only streams of our own encoder:
//! for input that breaks the format it returns none, without a reason.
#![forbid(unsafe_code)]

/// The symbols of literals and lengths; the last two are not used.
const LITERALS_LENGTHS: usize = 288;
const DISTANCES: usize = 32;
const END_OF_BLOCK: u16 = 256;
/// The longest code.
const CODE_BITS_MAX: usize = 15;
/// BlockCodes up to this length are looked up at once.
const TABLE_BITS: u32 = 10;
/// The order in which the lengths of the codes for code lengths are stored (RFC 1951, 3.2.7).
const ORDER: [usize; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
/// The shortest length of the symbols from 257 on (RFC 1951, 3.2.5).
const LENGTH_BASES: [u16; 29] = [
    3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131,
    163, 195, 227, 258,
];

/// What is left of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TruncatedStream {
    /// The bytes that it yields.
    pub(super) taken: usize,
    /// Its own bytes.
    pub(super) bytes: usize,
}

/// Makes `stream` end within its first `bytes_max` bytes, and not begin with a zero.
pub(super) fn truncate(stream: &mut [u8], bytes_max: usize) -> Option<TruncatedStream> {
    let limit = bytes_max.min(stream.len()) * 8;
    let mut at = 0;
    let mut taken = 0;
    let mut last_header = None;
    let end = loop {
        let header = at;
        let mut bits = BitReader { stream, at };
        let is_last = bits.take(1)? == 1;
        let block = match bits.take(2)? {
            0 => stored(&mut bits, limit)?,
            1 => coded(&mut bits, &BlockCodes::fixed()?, limit)?,
            2 => {
                let codes = BlockCodes::read(&mut bits)?;
                coded(&mut bits, &codes, limit)?
            }
            _ => return None,
        };
        taken += block.yields;
        if block.yields > 0 || block.is_whole {
            last_header = Some(header);
            at = block.end;
        }
        block.patch(stream);
        if is_last || !block.is_whole {
            break at;
        }
    };
    let Some(header) = last_header else { return Some(TruncatedStream { taken: 0, bytes: 0 }) };
    write_bits(stream, header, 1, 1);
    let bytes = end.div_ceil(8);
    // What is behind the end is padding.
    write_bits(stream, end, 0, bytes * 8 - end);
    // A last block begins with a one; another that is stored, and begins the stream, with a zero
    // and five bits that are never read.
    if stream[0] == 0 {
        stream[0] = 1 << 3;
    }
    Some(TruncatedStream { taken, bytes })
}

/// A block, as far as it fits.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DeflateBlock {
    /// The bytes that it yields.
    yields: usize,
    /// Where it ends, in bits from the start of the stream.
    end: usize,
    is_whole: bool,
    change: BlockPatch,
}

/// What is to be written when the block is truncated.
#[derive(Clone, Debug, PartialEq, Eq)]
enum BlockPatch {
    None,
    /// The end of the block: its code at a bit of the stream.
    End {
        at: usize,
        code: u16,
        bits: usize,
    },
    /// The length of a stored block, at a byte of the stream.
    Length {
        at: usize,
        length: u16,
    },
}

impl DeflateBlock {
    fn patch(&self, stream: &mut [u8]) {
        match self.change {
            BlockPatch::None => {}
            BlockPatch::End { at, code, bits } => write_bits(stream, at, code, bits),
            BlockPatch::Length { at, length } => {
                let lengths = [length.to_le_bytes(), (!length).to_le_bytes()];
                stream[at..at + 4].copy_from_slice(lengths.as_flattened());
            }
        }
    }
}

/// Follows a stored block.
fn stored(bits: &mut BitReader<'_>, limit: usize) -> Option<DeflateBlock> {
    let at = bits.at.div_ceil(8);
    let length = u16::from_le_bytes(*bits.stream.get(at..)?.first_chunk()?);
    let start = (at + 4) * 8;
    let room = limit.saturating_sub(start) / 8;
    let yields = room.min(length.into());
    let is_whole = start <= limit && yields == usize::from(length);
    let change = match u16::try_from(yields) {
        Ok(length) if !is_whole && yields > 0 => BlockPatch::Length { at, length },
        _ => BlockPatch::None,
    };
    Some(DeflateBlock { yields, end: start + yields * 8, is_whole, change })
}

/// Follows the symbols of a block.
fn coded(bits: &mut BitReader<'_>, codes: &BlockCodes, limit: usize) -> Option<DeflateBlock> {
    let (code, code_bits) = codes.end?;
    let (mut yields, mut end) = (0, bits.at);
    loop {
        let symbol = codes.literals.read(bits)?;
        if symbol == END_OF_BLOCK {
            if bits.at <= limit {
                return Some(DeflateBlock {
                    yields,
                    end: bits.at,
                    is_whole: true,
                    change: BlockPatch::None,
                });
            }
            break;
        }
        let length = if symbol < END_OF_BLOCK { 1 } else { matched(bits, codes, symbol)? };
        if bits.at + code_bits > limit {
            break;
        }
        yields += length;
        end = bits.at;
    }
    let change = if yields == 0 {
        BlockPatch::None
    } else {
        BlockPatch::End { at: end, code, bits: code_bits }
    };
    Some(DeflateBlock { yields, end: end + code_bits, is_whole: false, change })
}

/// The length of a match, whose distance is passed over.
fn matched(bits: &mut BitReader<'_>, codes: &BlockCodes, symbol: u16) -> Option<usize> {
    let index = usize::from(symbol - END_OF_BLOCK - 1);
    let extra = match index {
        0..8 | 28 => 0,
        _ => index / 4 - 1,
    };
    let length = usize::from(*LENGTH_BASES.get(index)?) + bits.take(extra)?;
    let distance = usize::from(codes.distances.read(bits)?);
    bits.skip(if distance < 4 { 0 } else { distance / 2 - 1 });
    Some(length)
}

/// A place in a stream.
struct BitReader<'a> {
    stream: &'a [u8],
    at: usize,
}

impl BitReader<'_> {
    /// The next bits, at least 25, zeros behind the end.
    #[inline]
    fn peek(&self) -> u32 {
        let byte = self.at / 8;
        let word = match self.stream.get(byte..).and_then(<[u8]>::first_chunk) {
            Some(word) => u32::from_le_bytes(*word),
            None => self.peek_at_end(byte),
        };
        word >> (self.at % 8)
    }

    #[cold]
    fn peek_at_end(&self, byte: usize) -> u32 {
        let mut word = [0; 4];
        for (place, byte) in word.iter_mut().zip(self.stream.iter().skip(byte)) {
            *place = *byte;
        }
        u32::from_le_bytes(word)
    }

    /// The next `count` bits, at most 16.
    #[inline]
    fn take(&mut self, count: usize) -> Option<usize> {
        let bits = self.peek() & ((1 << count) - 1);
        self.at += count;
        (self.at <= self.stream.len() * 8).then_some(bits as usize)
    }

    fn skip(&mut self, count: usize) {
        self.at += count;
    }
}

/// The two codes of a block.
struct BlockCodes {
    literals: HuffmanCode,
    distances: HuffmanCode,
    /// The code that ends the block, in the order of the stream, and its length.
    end: Option<(u16, usize)>,
}

impl BlockCodes {
    fn new(lengths: &[u8], literals: usize) -> Option<Self> {
        let (literals, distances) = lengths.split_at_checked(literals)?;
        Some(Self {
            end: bits_of(literals, END_OF_BLOCK),
            literals: HuffmanCode::new(literals)?,
            distances: HuffmanCode::new(distances)?,
        })
    }

    /// Those of RFC 1951, 3.2.6.
    fn fixed() -> Option<Self> {
        let mut lengths = [8; LITERALS_LENGTHS + DISTANCES];
        lengths[144..256].fill(9);
        lengths[256..280].fill(7);
        lengths[LITERALS_LENGTHS..].fill(5);
        Self::new(&lengths, LITERALS_LENGTHS)
    }

    /// Those that a block begins with (RFC 1951, 3.2.7).
    fn read(bits: &mut BitReader<'_>) -> Option<Self> {
        let literals = 257 + bits.take(5)?;
        let distances = 1 + bits.take(5)?;
        let order = 4 + bits.take(4)?;
        let mut lengths = [0; 19];
        for place in &ORDER[..order] {
            lengths[*place] = bits.take(3)?.to_le_bytes()[0];
        }
        let code = HuffmanCode::new(&lengths)?;
        let mut lengths = [0; LITERALS_LENGTHS + DISTANCES];
        let lengths = lengths.get_mut(..literals + distances)?;
        let mut count = 0;
        while count < lengths.len() {
            let symbol = code.read(bits)?;
            let (length, times) = match symbol {
                16 => (*lengths.get(count.checked_sub(1)?)?, 3 + bits.take(2)?),
                17 => (0, 3 + bits.take(3)?),
                18 => (0, 11 + bits.take(7)?),
                _ => (symbol.to_le_bytes()[0], 1),
            };
            lengths.get_mut(count..count + times)?.fill(length);
            count += times;
        }
        Self::new(lengths, literals)
    }
}

/// A canonical code.
struct HuffmanCode {
    /// By the next bits of a stream: a symbol above its length, or 0 if its code is longer.
    table: [u16; 1 << TABLE_BITS],
    /// How many codes there are of each length.
    counts: [u16; CODE_BITS_MAX + 1],
    /// The symbols, in the order of their codes.
    symbols: [u16; LITERALS_LENGTHS],
}

impl HuffmanCode {
    fn new(lengths: &[u8]) -> Option<Self> {
        let mut code = Self { table: [0; _], counts: [0; _], symbols: [0; LITERALS_LENGTHS] };
        for length in lengths {
            *code.counts.get_mut(usize::from(*length))? += 1;
        }
        code.counts[0] = 0;
        let mut places = [0; CODE_BITS_MAX + 1];
        let mut firsts = [0_u16; CODE_BITS_MAX + 1];
        for bits in 1..=CODE_BITS_MAX {
            places[bits] = places[bits - 1] + usize::from(code.counts[bits - 1]);
            firsts[bits] = firsts[bits - 1].wrapping_add(code.counts[bits - 1]) << 1;
        }
        for (symbol, length) in (0..).zip(lengths).filter(|(_, length)| **length > 0) {
            let bits = usize::from(*length);
            *code.symbols.get_mut(places[bits])? = symbol;
            places[bits] += 1;
            code.enter(symbol, firsts[bits], bits);
            firsts[bits] = firsts[bits].wrapping_add(1);
        }
        Some(code)
    }

    /// Puts a symbol where all that begins with its code is looked up.
    fn enter(&mut self, symbol: u16, value: u16, bits: usize) {
        if bits <= TABLE_BITS as usize {
            let first = usize::from(reversed(value, bits));
            let entries = self.table.iter_mut().skip(first).step_by(1 << bits);
            entries.for_each(|entry| *entry = symbol << 4 | u16::from(bits.to_le_bytes()[0]));
        }
    }

    #[inline]
    fn read(&self, bits: &mut BitReader<'_>) -> Option<u16> {
        let entry = self.table[bits.peek() as usize % (1 << TABLE_BITS)];
        if entry == 0 {
            return self.read_long(bits);
        }
        bits.skip(usize::from(entry & 15));
        Some(entry >> 4)
    }

    /// Bit by bit, as the codes of one length follow each other in value.
    #[cold]
    fn read_long(&self, bits: &mut BitReader<'_>) -> Option<u16> {
        let word = bits.peek() as usize;
        let (mut value, mut first, mut place) = (0, 0, 0);
        for length in 1..=CODE_BITS_MAX {
            value = value << 1 | word >> (length - 1) & 1;
            let count = usize::from(self.counts[length]);
            if let Some(index) = value.checked_sub(first).filter(|index| *index < count) {
                bits.skip(length);
                return self.symbols.get(place + index).copied();
            }
            place += count;
            first = (first + count) << 1;
        }
        None
    }
}

/// The code of `symbol`, in the order of the stream, and its length; none if it has none.
fn bits_of(lengths: &[u8], symbol: u16) -> Option<(u16, usize)> {
    let own = *lengths.get(usize::from(symbol)).filter(|length| **length > 0)?;
    let with = |length, symbols: &[u8]| symbols.iter().filter(|own| **own == length).count();
    let shorter = (1..own).fold(0, |value, length| (value + with(length, lengths)) << 1);
    let value = shorter + with(own, &lengths[..usize::from(symbol)]);
    let value = u16::try_from(value).ok()?;
    let bits = usize::from(own);
    Some((reversed(value, bits), bits))
}

fn reversed(value: u16, bits: usize) -> u16 {
    value.reverse_bits() >> (16 - bits)
}

/// Writes the low `bits` of `value` at a bit of the stream.
fn write_bits(stream: &mut [u8], at: usize, value: u16, bits: usize) {
    for bit in 0..bits {
        if let Some(byte) = stream.get_mut((at + bit) / 8) {
            let mask = 1 << ((at + bit) % 8);
            *byte = if value >> bit & 1 == 1 { *byte | mask } else { *byte & !mask };
        }
    }
}
