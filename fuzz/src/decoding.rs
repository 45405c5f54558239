//! The codec targets: a stream of any bytes, decoded whole and in prefixes.
//!
//! Input: a byte of switches, three bytes of output length, the stream. Whatever the stream is,
//! nothing outside the output is written, the outcome does not depend on what the output or the
//! decoder held before, and all ways of decoding agree where they succeed.

use std::io::Read;

use ferrofs_codec::{Algorithm, DecodeMode, Decoder, DecoderSettings, Error, Padding};

use crate::input::Input;

/// The longest output: a little more than the largest window that is configured here.
const OUTPUT_MAX_BYTES: usize = 0x1_1000;
const GUARD: [u8; 64] = [0xC7; 64];

/// LZ4, padded on the left or on the right.
pub fn lz4(bytes: &[u8]) {
    run(Algorithm::Lz4, bytes);
}

/// MicroLZMA.
pub fn lzma(bytes: &[u8]) {
    run(Algorithm::Lzma, bytes);
}

/// DEFLATE, by two libraries.
pub fn deflate(bytes: &[u8]) {
    run(Algorithm::Deflate, bytes);
}

/// ZSTD, in one step and streamed.
pub fn zstd(bytes: &[u8]) {
    run(Algorithm::Zstd, bytes);
}

fn run(algorithm: Algorithm, bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let switches = input.u8();
    let [low, middle, high] = input.array();
    let length = usize::try_from(u32::from_le_bytes([low, middle, high, 0])).unwrap_or(0);
    let padding = if switches & 1 == 0 { Padding::Left } else { Padding::Right };
    let job = Job { algorithm, padding, stream: input.rest() };
    job.check(&settings(algorithm, switches >> 1), length % (OUTPUT_MAX_BYTES + 1));
}

fn settings(algorithm: Algorithm, choice: u8) -> DecoderSettings {
    let none = DecoderSettings::none();
    match algorithm {
        Algorithm::Lz4 => lz4_settings(choice),
        Algorithm::Lzma => none.lzma_dictionary_bytes(Some(4096 << (choice & 7))),
        Algorithm::Deflate => none.deflate(true),
        Algorithm::Zstd => none.zstd_window_log(Some(10 + (choice & 7))),
    }
}

/// Declared distances near those where the window takes one page more, and none.
pub(crate) fn lz4_settings(choice: u8) -> DecoderSettings {
    let distances = [1, 100, 4095, 4096, 16_383, 16_385, 0, u16::MAX];
    let max_distance = distances[usize::from(choice & 7)];
    DecoderSettings::default().lz4_max_distance(Some(max_distance))
}

type DecodeResult = Result<Vec<u8>, Error>;

/// A stream to be decoded.
#[derive(Clone, Copy)]
struct Job<'a> {
    algorithm: Algorithm,
    padding: Padding,
    stream: &'a [u8],
}

impl Job<'_> {
    fn check(&self, settings: &DecoderSettings, length: usize) {
        let mut decoder = Decoder::new(settings).expect("the settings are sound");
        let whole = self.decode(&mut decoder, length, DecodeMode::Whole);
        let longest = self.decode(&mut decoder, length, DecodeMode::Prefix);
        if let Ok(whole) = &whole
            && !self.is_dubious(&longest)
        {
            let found = longest.as_ref();
            assert!(
                found == Ok(whole),
                "a prefix of all bytes is not the whole: {:?}",
                found.err()
            );
        }
        if self.algorithm == Algorithm::Lzma {
            self.check_twin(&whole, &longest, length);
        }
        for shorter in [0, 1, length / 3, length / 2, length.saturating_sub(1)] {
            let prefix = self.decode(&mut decoder, shorter.min(length), DecodeMode::Prefix);
            agree(&prefix, &longest);
        }
        let again = self.decode(&mut decoder, length, DecodeMode::Whole);
        assert!(again == whole, "decoding twice: {:?}, then {:?}", whole.err(), again.err());
        self.check_reuse(settings, &whole);
    }

    /// LZ4 matches of distance 0 are zeros to the whole decoder and an error to the partial one.
    fn is_dubious(&self, prefix: &DecodeResult) -> bool {
        let has_zeros = self.stream.windows(2).any(|pair| pair == [0, 0]);
        self.algorithm == Algorithm::Lz4 && has_zeros && prefix.is_err()
    }

    /// The decoder of MicroLZMA is our own, so another one judges it.
    fn check_twin(&self, whole: &DecodeResult, prefix: &DecodeResult, length: usize) {
        let twin = lzma_twin(self.stream, length);
        if let Ok(whole) = whole {
            assert!(twin.as_ref() == Some(whole), "another decoder does not find the same");
        }
        if let (Ok(prefix), Some(twin)) = (prefix, twin) {
            assert!(twin == *prefix, "another decoder finds other bytes");
        }
    }

    /// A decoder that has just failed, or decoded something else, answers as a fresh one does.
    fn check_reuse(&self, settings: &DecoderSettings, whole: &DecodeResult) {
        let mut decoder = Decoder::new(settings).expect("the settings are sound");
        let length = whole.as_ref().map_or(64, Vec::len);
        let halves = self.stream.split_at(self.stream.len() / 2);
        for stream in [halves.0, halves.1] {
            for mode in [DecodeMode::Prefix, DecodeMode::Whole] {
                // Whether it decodes is of no interest, only what stays behind.
                drop(Job { stream, ..*self }.decode(&mut decoder, length, mode));
            }
        }
        if whole.is_ok() {
            let reused = self.decode(&mut decoder, length, DecodeMode::Whole);
            assert!(reused == *whole, "a decoder that was used before: {:?}", reused.err());
        }
    }

    /// Decodes twice: a byte that is reported as decoded and was not written, or a byte behind the
    /// stream that was looked at, shows as a difference.
    fn decode(&self, decoder: &mut Decoder, length: usize, mode: DecodeMode) -> DecodeResult {
        // Alone in its allocation, the stream has an end that a sanitizer watches.
        let alone = self.stream.to_vec();
        let first = Job { stream: &alone, ..*self }.pass(decoder, length, mode, 0x00);
        // Assembly is not watched: what it reads too much are bytes that lead it elsewhere.
        let among = [&[0x5A; 64], self.stream, &[0xFF; 64]].concat();
        let stream = &among[64..][..self.stream.len()];
        let second = Job { stream, ..*self }.pass(decoder, length, mode, 0xFF);
        assert!(first == second, "the outcome depends on what lay beside the stream or the output");
        first
    }

    fn pass(
        &self,
        decoder: &mut Decoder,
        length: usize,
        mode: DecodeMode,
        old: u8,
    ) -> DecodeResult {
        let mut buffer = [&GUARD[..], &vec![old; length], &GUARD].concat();
        let output = &mut buffer[GUARD.len()..][..length];
        let result = decoder.decode(self.algorithm, self.padding, self.stream, output, mode);
        let decoded = output.to_vec();
        assert!(buffer.starts_with(&GUARD), "a byte before the output was written");
        assert!(buffer.ends_with(&GUARD), "a byte behind the output was written");
        result.map(|()| decoded)
    }
}

/// The front of a MicroLZMA stream by `lzma-rust2`.
fn lzma_twin(stream: &[u8], length: usize) -> Option<Vec<u8>> {
    let zeros = stream.iter().take_while(|byte| **byte == 0).count();
    let (properties, rest) = stream[zeros..].split_first()?;
    let lzma = [&[0], rest].concat();
    let dictionary_bytes = 4096 << 7;
    let size = length as u64;
    let reader = lzma_rust2::LzmaReader::new_with_props(
        &lzma[..],
        size,
        !properties,
        dictionary_bytes,
        None,
    );
    let mut output = vec![0; length];
    reader.ok()?.read_exact(&mut output).ok()?;
    Some(output)
}

/// A shorter prefix is the front of a longer one, and is there if the longer one is.
fn agree(shorter: &DecodeResult, longer: &DecodeResult) {
    match (shorter, longer) {
        (Ok(shorter), Ok(longer)) => {
            assert!(longer.starts_with(shorter), "two prefixes differ in their common part");
        }
        (Err(error), Ok(_)) => {
            panic!("a shorter prefix fails with {error} where a longer does not")
        }
        (_, Err(_)) => {}
    }
}
