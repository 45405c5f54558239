//! All memory is taken in `new` and all of it is given back.
//!
//! The C libraries allocate through the Rust allocator, so the counters see them too: that is what
//! `a_decoder_reports_the_memory_that_it_holds` shows.

use ferrofs_codec::{Algorithm, DecodeMode, Decoder, DecoderSettings, ErrorKind, Padding};

use crate::codecs::{Codec, SETTINGS};
use crate::counting_allocator::{allocations, live_bytes, without_blocks_from};
use crate::suite::Stream;

const ONLY: [(DecoderSettings, Algorithm); 3] = {
    let none = DecoderSettings::none();
    [
        (none.lzma_dictionary_bytes(Some(8 << 20)), Algorithm::Lzma),
        (none.deflate(true), Algorithm::Deflate),
        (none.zstd_window_log(Some(20)), Algorithm::Zstd),
    ]
};

pub(crate) fn none_while_decoding(codec: &Codec, streams: &[Stream]) {
    let mut decoder = Decoder::new(&SETTINGS).unwrap();
    let mut output = vec![0; 200_000];
    let broken: Vec<_> = streams.iter().map(|stream| broken(&stream.bytes)).collect();
    let before = allocations();
    let mut failures = 0;
    for (stream, broken) in streams.iter().zip(&broken) {
        let length = stream.data.len();
        for (input, mode, length) in [
            (&stream.bytes, DecodeMode::Whole, length),
            (&stream.bytes, DecodeMode::Prefix, length / 2),
            (broken, DecodeMode::Whole, length),
            (broken, DecodeMode::Prefix, length / 2),
            (&stream.bytes, DecodeMode::Prefix, length),
            (&stream.bytes, DecodeMode::Whole, length + 1),
        ] {
            let output = &mut output[..length];
            let result = decoder.decode(codec.algorithm, Padding::Left, input, output, mode);
            failures += usize::from(result.is_err());
        }
    }
    assert_eq!(allocations(), before);
    assert!(failures >= streams.len(), "the failing paths were not taken");
}

fn broken(stream: &[u8]) -> Vec<u8> {
    let mut broken = stream.to_vec();
    let middle = broken.len() / 2;
    broken[middle] ^= 0x55;
    broken
}

#[test]
fn a_decoder_reports_the_memory_that_it_holds() {
    for (settings, algorithm) in ONLY {
        let before = live_bytes();
        let decoder = Decoder::new(&settings).unwrap();
        let held = live_bytes() - before;
        let told = decoder.memory_bytes();
        assert!(told <= held && held <= told + 512, "{algorithm}: {told} told, {held} held");
        drop(decoder);
        assert_eq!(live_bytes(), before, "{algorithm} kept something");
    }
}

#[test]
fn the_most_memory_is_known_before_it_is_taken() {
    for lzma_dictionary_bytes in [None, Some(0), Some(4096), Some(8 << 20)] {
        for zstd_window_log in (9..=21).map(Some).chain([None]) {
            for deflate in [false, true] {
                let settings = DecoderSettings::default()
                    .lzma_dictionary_bytes(lzma_dictionary_bytes)
                    .deflate(deflate)
                    .zstd_window_log(zstd_window_log);
                let before = (allocations(), live_bytes());
                let most = settings.memory_bytes_max();
                assert_eq!((allocations(), live_bytes()), before);
                let Ok(decoder) = Decoder::new(&settings) else { continue };
                let held = live_bytes() - before.1;
                assert!(decoder.memory_bytes() <= held && held <= most, "{settings:?}");
                assert!(most <= held + 512, "{settings:?}: {held} held, {most} told");
            }
        }
    }
    let refused = DecoderSettings::default()
        .lzma_dictionary_bytes(Some(u32::MAX))
        .zstd_window_log(Some(u8::MAX));
    assert_eq!(refused.memory_bytes_max(), 0);
}

#[test]
fn an_lzma_dictionary_costs_no_memory() {
    let (largest, _) = ONLY[0];
    let smallest = largest.lzma_dictionary_bytes(Some(4096));
    let bytes = |settings| Decoder::new(settings).unwrap().memory_bytes();
    assert!(bytes(&largest) == bytes(&smallest) && bytes(&largest) < 32 << 10);
}

#[test]
fn lz4_needs_no_memory() {
    let before = allocations();
    let decoder = Decoder::new(&DecoderSettings::default()).unwrap();
    assert_eq!((decoder.memory_bytes(), allocations()), (0, before));
}

#[test]
fn no_memory_is_an_error_wherever_it_runs_out() {
    for (settings, algorithm) in ONLY {
        let before = live_bytes();
        for bytes in [100_000, 20_000, 12_000, 11_700, 11_000, 10_000, 5_000] {
            let made = without_blocks_from(bytes, || Decoder::new(&settings).map(drop));
            let Err(error) = made else { continue };
            assert_eq!((error.kind(), error.algorithm()), (ErrorKind::OutOfMemory, algorithm));
            assert_eq!(live_bytes(), before, "{algorithm} leaks when memory runs out");
        }
    }
}
