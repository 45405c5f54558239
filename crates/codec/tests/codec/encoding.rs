//! Filling pclusters: what goes in comes out, as much as can, and of nothing but the arguments.

use ferrofs_codec::{
    Algorithm, DecodeMode, Decoder, DecoderSettings, EncodedSizes, Encoder, Error, ErrorKind,
    LzmaContexts, Method, Padding,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::codecs::{DEFLATE, LZ4, LZMA, ZSTD};
use crate::counting_allocator::{allocations, live_bytes, without_blocks_from};
use crate::samples::{self, noise, text};

const PCLUSTER_BYTES_MAX: usize = 1 << 20;
const EXTENT_BYTES_MAX: usize = 3 << 20;

const METHODS: [Method; 18] = [
    Method::Lz4 { max_distance: 65_535 },
    Method::Lz4 { max_distance: 16_384 },
    Method::Lz4 { max_distance: 4096 },
    Method::Lz4Hc { level: 9, max_distance: 65_535 },
    Method::Lz4Hc { level: 2, max_distance: 65_535 },
    Method::Lz4Hc { level: 12, max_distance: 4096 },
    Method::Lz4Hc { level: 0, max_distance: 16_384 },
    Method::Lzma { level: 0, dictionary_bytes: 4096, contexts: LzmaContexts::PRESET },
    Method::Lzma { level: 6, dictionary_bytes: 32 << 10, contexts: LzmaContexts::PRESET },
    Method::Lzma { level: 103, dictionary_bytes: 8 << 20, contexts: LzmaContexts::PRESET },
    Method::Lzma {
        level: 6,
        dictionary_bytes: 32 << 10,
        contexts: LzmaContexts { literal_bits: 0, literal_position_bits: 4, position_bits: 4 },
    },
    Method::Deflate { level: 1 },
    Method::Deflate { level: 6 },
    Method::Deflate { level: 12 },
    Method::Zstd { level: 0, window_log: 10 },
    Method::Zstd { level: 1, window_log: 15 },
    Method::Zstd { level: 9, window_log: 20 },
    Method::Zstd { level: 19, window_log: 17 },
];

fn encoder(method: &Method) -> Encoder {
    Encoder::new(method, PCLUSTER_BYTES_MAX, EXTENT_BYTES_MAX).unwrap()
}

/// A decoder that is set up for exactly what the method may use.
fn decoder(method: &Method) -> Decoder {
    let mut settings = DecoderSettings::none();
    match *method {
        Method::Lz4 { max_distance } | Method::Lz4Hc { max_distance, .. } => {
            settings.lz4_max_distance = Some(max_distance);
        }
        Method::Lzma { dictionary_bytes, .. } => {
            settings.lzma_dictionary_bytes = Some(dictionary_bytes);
        }
        Method::Deflate { .. } => settings.deflate = true,
        Method::Zstd { window_log, .. } => settings.zstd_window_log = Some(window_log),
    }
    Decoder::new(&settings).unwrap()
}

/// What a call yields, with the stream.
fn fill(
    encoder: &mut Encoder,
    input: &[u8],
    output_bytes: usize,
) -> Result<Option<(EncodedSizes, Vec<u8>)>, Error> {
    let mut output = vec![0x5A; output_bytes];
    let filled = encoder.fill(input, &mut output)?;
    Ok(filled.map(|filled| {
        output.truncate(filled.output_bytes);
        (filled, output)
    }))
}

/// The property: what is said of a filled pcluster is so, by two decoders.
fn comes_back(
    method: &Method,
    input: &[u8],
    output_bytes: usize,
    (filled, stream): &(EncodedSizes, Vec<u8>),
) {
    let EncodedSizes { input_bytes: taken, output_bytes: bytes, .. } = *filled;
    let what = format!("{method:?}: {taken} of {} in {bytes} of {output_bytes}", input.len());
    assert!(taken > bytes && bytes <= output_bytes && taken <= input.len(), "{what}");
    assert!(taken <= EXTENT_BYTES_MAX && stream[0] != 0, "{what}");
    let padded = [vec![0; output_bytes - bytes], stream.clone()].concat();
    let mut output = vec![0; taken];
    decoder(method)
        .decode(method.algorithm(), Padding::Left, &padded, &mut output, DecodeMode::Whole)
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(output == input[..taken], "{what}");
}

fn second_opinion(method: &Method, input: &[u8], (filled, stream): &(EncodedSizes, Vec<u8>)) {
    let codec = match method.algorithm() {
        Algorithm::Lz4 => LZ4,
        // The second decoder of the tests is set up with another dictionary; ours judges.
        Algorithm::Lzma if matches!(method, Method::Lzma { dictionary_bytes: 0x8001.., .. }) => {
            return;
        }
        Algorithm::Lzma => LZMA,
        Algorithm::Deflate => DEFLATE,
        Algorithm::Zstd => ZSTD,
    };
    assert!(
        (codec.second_decode)(stream, filled.input_bytes) == input[..filled.input_bytes],
        "{method:?}"
    );
}

#[test]
fn every_sample_comes_back_from_every_length_of_output() {
    for method in &METHODS {
        let mut encoder = encoder(method);
        for (_, input) in samples::all() {
            for output_bytes in [1, 31, 32, 100, 512, 4096, 16384, 65_536, 1 << 20] {
                encoder.restart();
                let filled = fill(&mut encoder, input, output_bytes).unwrap();
                if let Some(filled) = filled {
                    comes_back(method, input, output_bytes, &filled);
                    second_opinion(method, input, &filled);
                }
            }
        }
    }
}

#[test]
fn what_fits_is_taken_whole() {
    let input = text(20_000, 1);
    for method in METHODS {
        let (filled, _) = fill(&mut encoder(&method), &input, 20_000).unwrap().unwrap();
        assert_eq!(filled.input_bytes, 20_000, "{method:?}");
    }
}

#[test]
fn noise_is_not_worth_it_and_zeros_fill_the_extent() {
    for method in METHODS {
        let mut encoder = encoder(&method);
        assert_eq!(fill(&mut encoder, &noise(300_000, 3), 65_536).unwrap(), None, "{method:?}");
        encoder.restart();
        let zeros = vec![0; EXTENT_BYTES_MAX + 5];
        let filled = fill(&mut encoder, &zeros, 65_536).unwrap().unwrap();
        comes_back(&method, &zeros, 65_536, &filled);
        assert_eq!(filled.0.input_bytes, EXTENT_BYTES_MAX, "{method:?}");
    }
}

/// Text whose ratio changes, as in a program.
fn program(length: usize) -> Vec<u8> {
    let parts =
        (0..).flat_map(|number| [text(9000, 2 * number), noise(700, 2 * number), vec![0; 500]]);
    let mut data: Vec<u8> = parts.take(3 * (1 + length / 10_200)).flatten().collect();
    data.truncate(length);
    data
}

#[test]
fn little_of_the_output_is_left() {
    let input = program(1_000_000);
    for method in METHODS {
        for (output_bytes, left_max) in [(4096, 0.03), (16_384, 0.015), (65_536, 0.008)] {
            let mut encoder = encoder(&method);
            let (mut at, mut clusters, mut left) = (0, 0, 0);
            while input.len() - at > 400_000 {
                let (filled, _) = fill(&mut encoder, &input[at..], output_bytes)
                    .unwrap()
                    .unwrap_or_else(|| panic!("{method:?}: nothing at {at}"));
                (at, clusters) = (at + filled.input_bytes, clusters + 1);
                left += output_bytes - filled.output_bytes;
            }
            let left = left as f64 / (clusters * output_bytes) as f64;
            assert!(left < left_max, "{method:?}: {left} of {output_bytes}");
        }
    }
}

#[test]
fn more_output_holds_no_less() {
    let input = program(600_000);
    for method in METHODS {
        let mut encoder = encoder(&method);
        let mut before = 0;
        for output_bytes in (1..=24).map(|count| count * 4096) {
            encoder.restart();
            let (filled, _) = fill(&mut encoder, &input, output_bytes)
                .unwrap()
                .unwrap_or_else(|| panic!("{method:?}: {output_bytes}"));
            assert!(filled.input_bytes > before, "{method:?}: {output_bytes}");
            before = filled.input_bytes;
        }
    }
}

#[test]
fn a_result_depends_on_nothing_before_the_restart() {
    let (input, other) = (program(300_000), samples::all());
    for method in METHODS {
        let mut used = encoder(&method);
        for output_bytes in [512, 4096, 65_536] {
            let first = fill(&mut encoder(&method), &input, output_bytes).unwrap();
            for (_, other) in other {
                fill(&mut used, other, 20_000).unwrap();
            }
            used.restart();
            let again = fill(&mut used, &input.clone(), output_bytes).unwrap();
            assert!(first == again, "{method:?}");
        }
    }
}

#[test]
fn lzma_remembers_nothing_even_without_a_restart() {
    let input = program(300_000);
    for method in METHODS {
        if method.algorithm() != Algorithm::Lzma {
            continue;
        }
        let mut used = encoder(&method);
        for output_bytes in [512, 4096, 65_536] {
            let first = fill(&mut encoder(&method), &input, output_bytes).unwrap();
            fill(&mut used, &input[100_000..], 9000).unwrap();
            assert!(first == fill(&mut used, &input, output_bytes).unwrap(), "{method:?}");
        }
    }
}

#[test]
fn random_data_comes_back() {
    let part = prop_oneof![
        (1..30_000_usize, any::<u64>()).prop_map(|(length, state)| text(length, state)),
        (1..3000_usize, any::<u64>()).prop_map(|(length, state)| noise(length, state)),
        (1..30_000_usize, any::<u8>()).prop_map(|(length, byte)| vec![byte; length]),
        (1..3000_usize, 2..9_usize, any::<u64>())
            .prop_map(|(length, period, state)| noise(period, state).repeat(length / period + 1)),
    ];
    let data = prop::collection::vec(part, 1..7).prop_map(|parts| parts.concat());
    let case = (data, 0..METHODS.len(), prop_oneof![32..600_usize, Just(4096), 600..20_000_usize]);
    let config = Config { cases: 400, failure_persistence: None, ..Config::default() };
    let encoders = METHODS.map(|method| std::cell::RefCell::new(encoder(&method)));
    TestRunner::new(config)
        .run(&case, |(input, index, output_bytes)| {
            let mut encoder = encoders[index].borrow_mut();
            if let Some(filled) = fill(&mut encoder, &input, output_bytes).unwrap() {
                comes_back(&METHODS[index], &input, output_bytes, &filled);
                second_opinion(&METHODS[index], &input, &filled);
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn encoding_does_not_allocate() {
    let mut output = vec![0; 65_536];
    let zeros = vec![0; 1 << 20];
    for method in METHODS {
        let mut encoder = encoder(&method);
        let before = allocations();
        for (_, input) in samples::all() {
            for length in [512, 4096, 65_536] {
                encoder.fill(input, &mut output[..length]).unwrap();
            }
        }
        encoder.fill(&zeros, &mut output).unwrap();
        assert_eq!(allocations(), before, "{method:?}");
    }
}

#[test]
fn an_encoder_reports_the_memory_that_it_holds() {
    for method in METHODS {
        for (pcluster_bytes, extent_bytes) in
            [(4096, 65_536), (65_536, 1 << 20), (1 << 20, 12 << 20)]
        {
            let before = (allocations(), live_bytes());
            let most = method.memory_bytes_max(pcluster_bytes, extent_bytes);
            assert_eq!((allocations(), live_bytes()), before);
            let encoder = Encoder::new(&method, pcluster_bytes, extent_bytes).unwrap();
            let held = live_bytes() - before.1;
            let told = encoder.memory_bytes();
            assert!(held <= most && most <= held + held / 8 + 4096, "{method:?}: {held}, {most}");
            assert!(told <= most && held <= told + 512, "{method:?}: {held} held, {told} told");
            drop(encoder);
            assert_eq!(live_bytes(), before.1, "{method:?} kept something");
        }
    }
}

#[test]
fn no_memory_is_an_error_wherever_it_runs_out() {
    for method in METHODS {
        let before = live_bytes();
        for bytes in [2 << 20, 500_000, 200_000, 20_000, 9000, 3000, 100] {
            let made =
                without_blocks_from(bytes, || Encoder::new(&method, 4096, 1 << 20).map(drop));
            let Err(error) = made else { continue };
            assert_eq!(
                (error.kind(), error.algorithm()),
                (ErrorKind::OutOfMemory, method.algorithm())
            );
            assert_eq!(live_bytes(), before, "{method:?} leaks when memory runs out");
        }
        let made = without_blocks_from(100, || Encoder::new(&method, 4096, 1 << 20).map(drop));
        assert_eq!(made.unwrap_err().kind(), ErrorKind::OutOfMemory);
    }
}

#[test]
fn parameters_out_of_range_are_refused_by_name() {
    let level = |method| (method, ErrorKind::UnsupportedLevel);
    let window = |method| (method, ErrorKind::UnsupportedWindow);
    for (method, kind) in [
        level(Method::Lz4Hc { level: 13, max_distance: 65_535 }),
        level(Method::Lzma { level: 10, dictionary_bytes: 4096, contexts: LzmaContexts::PRESET }),
        level(Method::Lzma { level: 110, dictionary_bytes: 4096, contexts: LzmaContexts::PRESET }),
        level(Method::Deflate { level: 13 }),
        level(Method::Zstd { level: -1, window_log: 15 }),
        level(Method::Zstd { level: 23, window_log: 15 }),
        window(Method::Lz4 { max_distance: 4095 }),
        window(Method::Lz4Hc { level: 9, max_distance: 0 }),
        window(Method::Lzma { level: 6, dictionary_bytes: 4095, contexts: LzmaContexts::PRESET }),
        window(Method::Lzma {
            level: 6,
            dictionary_bytes: (8 << 20) + 1,
            contexts: LzmaContexts::PRESET,
        }),
        window(Method::Zstd { level: 3, window_log: 9 }),
        window(Method::Zstd { level: 3, window_log: 21 }),
    ] {
        let error = Encoder::new(&method, 4096, 65_536).unwrap_err();
        assert_eq!((error.kind(), error.algorithm()), (kind, method.algorithm()));
        assert_eq!(method.memory_bytes_max(4096, 65_536), 0);
    }
    for (pcluster_bytes, extent_bytes) in
        [(0, 4096), (4096, 0), ((1 << 20) + 1, 4096), (4096, (12 << 20) + 1)]
    {
        let error = Encoder::new(&METHODS[0], pcluster_bytes, extent_bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnsupportedLength);
    }
}

#[test]
fn an_output_longer_than_announced_is_refused_and_an_empty_input_is_nothing() {
    for method in METHODS {
        let mut encoder = Encoder::new(&method, 4096, 65_536).unwrap();
        let error = fill(&mut encoder, &vec![0; 9000], 4097).unwrap_err();
        assert_eq!((error.kind(), error.algorithm()), (ErrorKind::TooLarge, method.algorithm()));
        assert_eq!(fill(&mut encoder, &[], 4096), Ok(None));
        assert_eq!(fill(&mut encoder, &vec![0; 9000], 0), Ok(None));
        let (filled, _) = fill(&mut encoder, &vec![0; 100_000], 4096).unwrap().unwrap();
        assert!(filled.input_bytes <= 65_536, "{method:?}");
    }
}

#[test]
fn the_level_that_does_not_compress_gains_nothing() {
    let mut encoder = encoder(&Method::Deflate { level: 0 });
    assert_eq!(fill(&mut encoder, &text(20_000, 3), 4096), Ok(None));
    assert_eq!(fill(&mut encoder, &text(2000, 3), 4096), Ok(None));
}

#[test]
fn a_stream_that_starts_with_a_stored_block_does_not_start_with_a_zero() {
    let input = [noise(400_000, 5), vec![0; 200_000]].concat();
    for level in [1, 6, 12] {
        let method = Method::Deflate { level };
        let filled = fill(&mut encoder(&method), &input, 450_000).unwrap().unwrap();
        // Neither the last block, nor one that is coded.
        assert_eq!(filled.1[0] & 7, 0, "the sample does not make a stored block first");
        comes_back(&method, &input, 450_000, &filled);
    }
}

#[test]
fn an_encoder_can_move_to_another_thread() {
    let input = text(50_000, 9);
    for method in METHODS {
        let mut encoder = encoder(&method);
        let first = fill(&mut encoder, &input, 4096).unwrap();
        let work = || {
            encoder.restart();
            fill(&mut encoder, &input, 4096).unwrap()
        };
        let second = std::thread::scope(|scope| scope.spawn(work).join().unwrap());
        assert!(first == second, "{method:?}");
    }
}

/// Of a match whose length did not fit, not even a part was taken, and runs were stored as they are.
#[test]
fn a_run_that_is_longer_than_an_output_can_say_fills_it() {
    let run = vec![0; EXTENT_BYTES_MAX];
    let period: Vec<u8> = (0..EXTENT_BYTES_MAX).map(|at| (at % 250).to_le_bytes()[0]).collect();
    for method in METHODS.into_iter().filter(|method| method.algorithm() == Algorithm::Lz4) {
        for output_bytes in [512, 4096] {
            for input in [&run, &period] {
                let mut encoder = encoder(&method);
                let filled = fill(&mut encoder, input, output_bytes).unwrap().unwrap();
                comes_back(&method, input, output_bytes, &filled);
                // A byte says 255 more.
                let min = (100 * output_bytes).min(EXTENT_BYTES_MAX);
                let taken = filled.0.input_bytes;
                assert!(taken >= min, "{method:?}: {taken} in {output_bytes}");
            }
        }
    }
}

/// Each call tried far too much input, four times, until the end of the segment.
#[test]
fn what_lies_behind_a_run_is_encoded() {
    let input = [vec![0; 1 << 20], text(1 << 18, 3)].concat();
    for method in METHODS {
        let output_bytes = 4096;
        let mut encoder = Encoder::new(&method, output_bytes, EXTENT_BYTES_MAX).unwrap();
        let (mut at, mut raw, mut clusters) = (0, 0, 0);
        while input.len() - at > 2 * output_bytes {
            clusters += 1;
            match fill(&mut encoder, &input[at..], output_bytes).unwrap() {
                Some(filled) => {
                    comes_back(&method, &input[at..], output_bytes, &filled);
                    at += filled.0.input_bytes;
                }
                None => (at, raw) = (at + output_bytes, raw + 1),
            }
        }
        assert!(raw * 20 <= clusters, "{method:?}: {raw} of {clusters} are not encoded");
    }
}

/// The tables of the highest levels were taken to be as large as for an input of unknown length.
#[test]
fn each_level_of_zstd_has_the_memory_that_it_takes_for_each_length() {
    let input = text(300_000, 4);
    for level in 1..=22 {
        for window_log in [10, 14, 17, 20] {
            let method = Method::Zstd { level, window_log };
            let mut encoder = Encoder::new(&method, 65_536, EXTENT_BYTES_MAX).unwrap();
            assert!(encoder.memory_bytes() < 40 << 20, "{method:?}: {}", encoder.memory_bytes());
            // On both sides of the lengths from which the library takes other parameters.
            for length in [100, 16_384, 16_385, 131_073, 262_145, 300_000] {
                encoder.restart();
                let filled = fill(&mut encoder, &input[..length], 4096).unwrap();
                if let Some(filled) = filled {
                    comes_back(&method, &input[..length], 4096, &filled);
                }
            }
        }
    }
}

/// The table for short inputs hashes four bytes instead of five, which is worse for text.
#[test]
fn lz4_chooses_its_table_by_what_it_finds() {
    let method = Method::Lz4 { max_distance: 65_535 };
    let words: Vec<u8> = (0..200_000_u32)
        .flat_map(|number| {
            format!("{} item, ", number.wrapping_mul(2_654_435_761) >> 20).into_bytes()
        })
        .collect();
    let clusters = |longest: usize| {
        let (mut encoder, mut at, mut count) = (encoder(&method), 0, 0);
        while at + longest < words.len() {
            let (filled, _) = fill(&mut encoder, &words[at..at + longest], 4096).unwrap().unwrap();
            (at, count) = (at + filled.input_bytes, count + 1);
        }
        count
    };
    // With 64 KiB of input there is only the table for short ones.
    let (of_short, of_both) = (clusters(64 << 10), clusters(1 << 20));
    println!("{of_short} clusters, and {of_both} with the choice");
    assert!(of_both <= of_short, "{of_both} {of_short}");
}
