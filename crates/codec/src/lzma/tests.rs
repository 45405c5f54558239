//! The two implementations of `BitTrees` against each other, on streams, prefixes and damaged
//! streams.

use lzma_rust2::{LzmaOptions, MicroLzmaEncoder};

use super::bit_trees_portable::Portable;
use super::range_decoder::BitTrees;
use super::{Fastest, LzmaDecoder};
use crate::error::ErrorKind;
use crate::stream::DecodeMode;

/// Guard bytes before and after every output.
const GUARD: [u8; 80] = [0xA5; 80];

/// How many cases are passed over after each one: Miri is a thousand times slower.
const STEP: usize = if cfg!(miri) { 31 } else { 1 };

/// Marsaglia's xorshift: the same numbers in every run.
struct Xorshift(u64);

impl Xorshift {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }
}

/// Literals, runs and repeats from all distances, the short ones more often.
fn mixture(length: usize, initial_state: u64) -> Vec<u8> {
    let mut random = Xorshift(initial_state | 1);
    let mut data: Vec<u8> = Vec::with_capacity(length + 400);
    while data.len() < length {
        if data.is_empty() || random.below(3) == 0 {
            for _ in 0..=random.below(6) {
                data.push(b'a' + random.next().to_le_bytes()[1] % 23);
            }
        } else {
            let bits = random.below(usize::BITS as usize - data.len().leading_zeros() as usize);
            let distance = (1 + random.below(2 << bits)).min(data.len());
            let length_max = if random.below(4) == 0 { 300 } else { 12 };
            for _ in 0..2 + random.below(length_max) {
                data.push(data[data.len() - distance]);
            }
        }
    }
    data.truncate(length);
    data
}

fn encoded(data: &[u8], [lc, lp, pb]: [u32; 3]) -> Vec<u8> {
    let mut options = LzmaOptions::with_preset(4);
    (options.lc, options.lp, options.pb, options.dict_size) = (lc, lp, pb, 1 << 20);
    let mut stream = vec![0; data.len() + data.len() / 8 + 100];
    let mut encoder = MicroLzmaEncoder::new(&options).unwrap();
    let (taken, length) = encoder.compress_prefix(data, &mut stream).unwrap();
    assert_eq!(taken, data.len());
    stream.truncate(length);
    stream
}

/// The outcome, and what is in the output, also after an error.
type DecodeResult = (Result<(), ErrorKind>, Vec<u8>);

fn decoded<T: BitTrees>(
    lzma: &mut LzmaDecoder,
    stream: &[u8],
    length: usize,
    mode: DecodeMode,
) -> DecodeResult {
    let mut buffer = [&GUARD[..], &vec![0x5A; length], &GUARD[..]].concat();
    let output = &mut buffer[GUARD.len()..][..length];
    let result = lzma.decode_by::<T>(stream, output, mode);
    let output = output.to_vec();
    assert!(buffer.starts_with(&GUARD), "a byte before the output was written");
    assert!(buffer.ends_with(&GUARD), "a byte behind the output was written");
    (result, output)
}

/// What both implementations make of `stream`.
fn both(lzma: &mut LzmaDecoder, stream: &[u8], length: usize, mode: DecodeMode) -> DecodeResult {
    let fastest = decoded::<Fastest>(lzma, stream, length, mode);
    let portable = decoded::<Portable>(lzma, stream, length, mode);
    assert_eq!(fastest.0, portable.0, "the outcomes differ");
    assert!(fastest.1 == portable.1, "the outputs differ");
    fastest
}

/// All that the format has; lc + lp is at most 4.
fn all_properties() -> impl Iterator<Item = [u32; 3]> {
    let pairs = (0..=4).flat_map(|lc| (0..=4 - lc).map(move |lp| (lc, lp)));
    pairs.flat_map(|(lc, lp)| (0..=4).map(move |pb| [lc, lp, pb]))
}

#[test]
fn both_decode_with_all_properties() {
    let mut lzma = LzmaDecoder::new(1 << 20).unwrap();
    for (properties, initial_state) in all_properties().zip(1..).step_by(STEP) {
        let data = mixture(6000, initial_state);
        let stream = encoded(&data, properties);
        assert!(both(&mut lzma, &stream, data.len(), DecodeMode::Whole) == (Ok(()), data.clone()));
        for length in [1, 2, 17, 500, 5999] {
            let prefix = both(&mut lzma, &stream, length, DecodeMode::Prefix);
            assert!(prefix == (Ok(()), data[..length].to_vec()), "{properties:?} {length}");
        }
    }
}

#[test]
fn both_decode_outputs_of_every_small_length() {
    let mut lzma = LzmaDecoder::new(1 << 20).unwrap();
    for length in (0..400).step_by(STEP) {
        for data in [mixture(length, 77), vec![b'x'; length]] {
            let stream = encoded(&data, [3, 0, 2]);
            let whole = both(&mut lzma, &stream, length, DecodeMode::Whole);
            assert!(whole == (Ok(()), data), "{length}");
            if length > 0 {
                let short = both(&mut lzma, &stream, length - 1, DecodeMode::Whole);
                assert_eq!(short.0, Err(ErrorKind::Corrupt), "{length}");
            }
        }
    }
}

#[test]
fn every_distance_repeats_right_up_to_the_last_byte() {
    let mut lzma = LzmaDecoder::new(1 << 20).unwrap();
    for distance in (1..=70).step_by(STEP) {
        for length in [2, 15, 16, 17, 31, 32, 33, 64, 272, 273, 274, 700] {
            let pattern = mixture(distance, 5);
            let run = pattern.iter().copied().cycle().take(distance + length);
            let data: Vec<u8> = run.chain(*b"end").collect();
            let stream = encoded(&data, [3, 0, 2]);
            for end in [distance + length, data.len()] {
                let prefix = both(&mut lzma, &stream, end, DecodeMode::Prefix);
                assert!(prefix == (Ok(()), data[..end].to_vec()), "{length} at {distance}");
            }
        }
    }
}

#[test]
fn both_say_the_same_of_damaged_and_cut_streams() {
    let mut lzma = LzmaDecoder::new(4096).unwrap();
    let mut random = Xorshift(0xDA3A6E);
    for (properties, initial_state) in all_properties().zip(100..).step_by(STEP) {
        let data = mixture(3000, initial_state);
        let stream = encoded(&data, properties);
        for _ in 0..20 {
            let mut broken = stream.clone();
            broken.truncate(1 + random.below(broken.len()));
            for _ in 0..random.below(3) {
                let place = random.below(broken.len());
                broken[place] ^= random.next().to_le_bytes()[2];
            }
            let length = random.below(data.len() + 300);
            for mode in [DecodeMode::Whole, DecodeMode::Prefix] {
                drop(both(&mut lzma, &broken, length, mode));
            }
        }
    }
}

#[test]
fn a_cut_stream_says_how_far_it_went() {
    let mut lzma = LzmaDecoder::new(1 << 20).unwrap();
    let data = mixture(2000, 9);
    let stream = encoded(&data, [3, 0, 2]);
    for cut in (1..stream.len() - 8).step_by(STEP) {
        let (result, output) = both(&mut lzma, &stream[..cut], data.len(), DecodeMode::Prefix);
        let Err(ErrorKind::TooShort { got, wanted }) = result else {
            panic!("{cut} of {} bytes gave {result:?}", stream.len());
        };
        assert!(wanted == data.len() && output[..got] == data[..got], "{cut}: {got}");
    }
}
