//! Data of the kinds that files hold.

use std::sync::OnceLock;

const WORDS: [&str; 12] = [
    "fn ", "lcluster", "pcluster", " = ", "nid", ";\n    ", "return ", "0x", "(", ")", "image",
    "\n",
];

/// Marsaglia's xorshift: the same bytes in every run.
pub(crate) struct Xorshift(pub(crate) u64);

impl Xorshift {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }
}

pub(crate) fn text(length: usize, initial_state: u64) -> Vec<u8> {
    let mut random = Xorshift(initial_state | 1);
    let mut data = Vec::with_capacity(length + 16);
    while data.len() < length {
        data.extend_from_slice(WORDS[random.below(WORDS.len())].as_bytes());
        if random.below(9) == 0 {
            data.extend_from_slice(random.next().to_string().as_bytes());
        }
    }
    data.truncate(length);
    data
}

pub(crate) fn noise(length: usize, initial_state: u64) -> Vec<u8> {
    let mut random = Xorshift(initial_state | 1);
    (0..length).map(|_| random.next().to_le_bytes()[3]).collect()
}

fn machine_code(length: usize) -> Vec<u8> {
    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let start = program.len() / 3;
    program[start..start + length].to_vec()
}

/// Text first, so that no DEFLATE stream starts with a stored block, which starts with a zero.
fn mixture() -> Vec<u8> {
    [text(9_000, 3), noise(30_000, 5), vec![0; 5_000], noise(70_000, 7), text(20_000, 9)].concat()
}

fn far_matches() -> Vec<u8> {
    [text(50_000, 11), noise(10_000, 13), text(50_000, 11)].concat()
}

/// Each with its name.
pub(crate) fn all() -> &'static [(&'static str, Vec<u8>)] {
    static ALL: OnceLock<Vec<(&str, Vec<u8>)>> = OnceLock::new();
    ALL.get_or_init(|| {
        vec![
            ("one byte", vec![0x41]),
            ("one zero", vec![0]),
            ("thirteen bytes", b"thirteen byte".to_vec()),
            ("text", text(20_000, 1)),
            ("zeros", vec![0; 100_000]),
            ("noise", noise(40_000, 15)),
            ("machine code", machine_code(100_000)),
            ("mixture", mixture()),
            ("far matches", far_matches()),
        ]
    })
}

/// The lengths worth trying as prefixes of `length` bytes.
pub(crate) fn grid(length: usize) -> Vec<usize> {
    let fixed = [0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 255, 256, 257, 4095, 4096, 4097];
    let spread = (1..12).map(|part| length * part / 12);
    let end = (0..=12).map(|back| length.saturating_sub(back));
    let mut grid: Vec<_> = fixed.into_iter().chain(spread).chain(end).collect();
    grid.retain(|point| *point <= length);
    grid.sort_unstable();
    grid.dedup();
    grid
}
