//! CRC-32 as gzip has it (RFC 1952, 8), eight bytes at a time.

const POLYNOMIAL: u32 = 0xEDB8_8320;

/// For a byte, and for one that is followed by one to seven zeros.
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

/// The table of bytes that one more zero follows.
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

/// A checksum in the making.
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
