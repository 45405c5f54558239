//! The properties that hold for every algorithm, and the macro that points them at one.

use ferrofs_codec::{Algorithm, DecodeMode, Decoder, ErrorKind, Padding};

use crate::codecs::{Codec, SETTINGS, decoder};
use crate::guarded::Job;
use crate::samples::{self, Xorshift, grid, noise};

/// One sample as one encoder wrote it.
pub(crate) struct Stream {
    pub(crate) name: String,
    pub(crate) data: &'static [u8],
    pub(crate) bytes: Vec<u8>,
}

/// Every sample by every encoder, without what left padding cannot hold.
pub(crate) fn encode_all(codec: &Codec) -> Vec<Stream> {
    let mut streams = Vec::new();
    for (sample, data) in samples::all() {
        for (encoder, encode) in codec.encoders {
            let bytes = encode(data);
            if bytes[0] != 0 {
                streams.push(Stream { name: format!("{sample} by {encoder}"), data, bytes });
            }
        }
    }
    assert!(streams.len() > samples::all().len() * (codec.encoders.len() - 1));
    streams
}

fn job<'a>(codec: &Codec, input: &'a [u8], mode: DecodeMode) -> Job<'a> {
    Job { algorithm: codec.algorithm, padding: Padding::Left, input, mode }
}

pub(crate) fn whole(codec: &Codec, streams: &[Stream]) {
    let mut decoder = decoder();
    for Stream { name, data, bytes } in streams {
        let decoded = job(codec, bytes, DecodeMode::Whole).run(&mut decoder, data.len());
        assert!(decoded.as_deref() == Ok(*data), "{name}: {:?}", decoded.err());
    }
}

pub(crate) fn prefixes(codec: &Codec, streams: &[Stream]) {
    let mut decoder = decoder();
    for Stream { name, data, bytes } in streams {
        for length in grid(data.len()) {
            let decoded = job(codec, bytes, DecodeMode::Prefix).run(&mut decoder, length);
            assert!(decoded.as_deref() == Ok(&data[..length]), "{name}, {length} bytes");
        }
    }
}

pub(crate) fn left_padding(codec: &Codec, streams: &[Stream]) {
    let mut decoder = decoder();
    for Stream { name, data, bytes } in streams.iter().filter(|stream| stream.data.len() < 50_000) {
        for zeros in 0..=40 {
            let padded = [&vec![0; zeros], &bytes[..]].concat();
            for (mode, length) in
                [(DecodeMode::Whole, data.len()), (DecodeMode::Prefix, data.len() / 2)]
            {
                let decoded = job(codec, &padded, mode).run(&mut decoder, length);
                assert!(decoded.as_deref() == Ok(&data[..length]), "{name}, {zeros} zeros");
            }
        }
    }
}

pub(crate) fn wrong_lengths(codec: &Codec, streams: &[Stream]) {
    let mut decoder = decoder();
    for Stream { name, data, bytes } in streams {
        let length = data.len();
        for wrong in [length - 1, length + 1, length / 2, length + 4096] {
            let decoded = job(codec, bytes, DecodeMode::Whole).run(&mut decoder, wrong);
            // The range decoder of LZMA can be at its end for some symbols of no weight.
            let may_pass = codec.algorithm == Algorithm::Lzma && wrong > length;
            let passed = decoded.is_ok_and(|found| !(may_pass && found.starts_with(data)));
            assert!(!passed, "{name}: {length} bytes passed as {wrong}");
        }
        if codec.algorithm != Algorithm::Lzma {
            let decoded = job(codec, bytes, DecodeMode::Prefix).run(&mut decoder, length + 1);
            assert!(decoded.is_err(), "{name}: a prefix longer than the whole");
        }
    }
}

pub(crate) fn truncation(codec: &Codec, streams: &[Stream]) {
    let mut decoder = decoder();
    for Stream { name, data, bytes } in streams {
        for cut in grid(bytes.len()).into_iter().filter(|cut| *cut < bytes.len()) {
            let whole = job(codec, &bytes[..cut], DecodeMode::Whole).run(&mut decoder, data.len());
            assert!(whole.is_err(), "{name}: whole from {cut} of {} bytes", bytes.len());
            for length in [1, data.len() / 3, data.len()] {
                let prefix =
                    job(codec, &bytes[..cut], DecodeMode::Prefix).run(&mut decoder, length);
                let exact = prefix.as_deref().map_or(true, |found| *found == data[..length]);
                assert!(exact, "{name}: wrong bytes from {cut} of {} bytes", bytes.len());
            }
        }
    }
}

pub(crate) fn corruption(codec: &Codec, streams: &[Stream]) {
    let mut decoder = decoder();
    let mut random = Xorshift(0x5EED);
    for Stream { data, bytes, .. } in streams {
        for _ in 0..8 {
            let mut broken = bytes.clone();
            for _ in 0..=random.below(3) {
                let place = random.below(broken.len());
                broken[place] ^= random.next().to_le_bytes()[5] | 1;
            }
            // What `run` asserts is the property; the outcome may be either.
            drop(job(codec, &broken, DecodeMode::Whole).run(&mut decoder, data.len()));
            drop(job(codec, &broken, DecodeMode::Prefix).run(&mut decoder, data.len() * 2 / 3));
        }
        let decoded = job(codec, bytes, DecodeMode::Whole).run(&mut decoder, data.len());
        assert!(decoded.as_deref() == Ok(*data), "the failures before left something behind");
    }
}

pub(crate) fn noise_as_stream(codec: &Codec) {
    let mut decoder = decoder();
    let mut random = Xorshift(0xBAD);
    for initial_state in 1..600 {
        let input = noise(1 + random.below(300), initial_state);
        let length = random.below(5000);
        for mode in [DecodeMode::Whole, DecodeMode::Prefix] {
            drop(job(codec, &input, mode).run(&mut decoder, length));
        }
    }
}

pub(crate) fn second_implementation(codec: &Codec, streams: &[Stream]) {
    for Stream { name, data, bytes } in streams {
        assert!((codec.second_decode)(bytes, data.len()) == *data, "{name}");
    }
}

pub(crate) fn no_stream(codec: &Codec) {
    let mut decoder = decoder();
    for input in [&[][..], &[0], &[0; 15], &[0; 16], &[0; 4096]] {
        for (mode, length) in
            [(DecodeMode::Whole, 10), (DecodeMode::Whole, 0), (DecodeMode::Prefix, 10)]
        {
            let error = job(codec, input, mode).run(&mut decoder, length).unwrap_err();
            assert_eq!((error.kind(), error.algorithm()), (ErrorKind::EmptyInput, codec.algorithm));
        }
    }
}

pub(crate) fn empty_output(codec: &Codec, streams: &[Stream]) {
    let mut decoder = decoder();
    for Stream { name, bytes, .. } in streams {
        let prefix = job(codec, bytes, DecodeMode::Prefix).run(&mut decoder, 0);
        assert_eq!(prefix, Ok(vec![]), "{name}");
        let whole = job(codec, bytes, DecodeMode::Whole).run(&mut decoder, 0);
        assert!(whole.is_err(), "{name}: a stream of some bytes passed as one of none");
        let unpadded =
            decoder.decode(codec.algorithm, Padding::Left, bytes, &mut [], DecodeMode::Prefix);
        assert_eq!(unpadded, Ok(()), "{name}");
    }
}

pub(crate) fn other_threads(codec: &Codec, streams: &[Stream]) {
    let mut decoder = decoder();
    for Stream { data, bytes, .. } in &streams[streams.len() - 2..] {
        std::thread::scope(|scope| {
            let decoder = &mut decoder;
            let job = job(codec, bytes, DecodeMode::Whole);
            let decoded = scope.spawn(move || job.run(decoder, data.len())).join().unwrap();
            assert!(decoded.as_deref() == Ok(*data));
        });
    }
}

pub(crate) fn not_configured(codec: &Codec, streams: &[Stream]) {
    let settings = match codec.algorithm {
        Algorithm::Lz4 => SETTINGS.lz4_max_distance(None),
        Algorithm::Lzma => SETTINGS.lzma_dictionary_bytes(None),
        Algorithm::Deflate => SETTINGS.deflate(false),
        Algorithm::Zstd => SETTINGS.zstd_window_log(None),
    };
    let mut decoder = Decoder::new(&settings).unwrap();
    let error = job(codec, &streams[0].bytes, DecodeMode::Whole).run(&mut decoder, 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotConfigured);
}

/// Points every property at one algorithm; brings its encoded samples as `streams()`.
macro_rules! properties {
    ($codec:path) => {
        pub(crate) fn streams() -> &'static [crate::suite::Stream] {
            static STREAMS: std::sync::OnceLock<Vec<crate::suite::Stream>> =
                std::sync::OnceLock::new();
            STREAMS.get_or_init(|| crate::suite::encode_all(&$codec))
        }

        #[test]
        fn what_was_encoded_comes_back_whole() {
            crate::suite::whole(&$codec, streams());
        }

        #[test]
        fn every_prefix_is_filled_to_its_last_byte() {
            crate::suite::prefixes(&$codec, streams());
        }

        #[test]
        fn any_number_of_zeros_on_the_left_is_skipped() {
            crate::suite::left_padding(&$codec, streams());
        }

        #[test]
        fn a_length_that_is_not_the_streams_is_refused() {
            crate::suite::wrong_lengths(&$codec, streams());
        }

        #[test]
        fn a_truncated_stream_is_an_error_or_exact() {
            crate::suite::truncation(&$codec, streams());
        }

        #[test]
        fn a_corrupt_stream_stays_inside_the_output_and_leaves_nothing_behind() {
            crate::suite::corruption(&$codec, streams());
        }

        #[test]
        fn noise_is_safe_to_decode() {
            crate::suite::noise_as_stream(&$codec);
        }

        #[test]
        fn a_second_implementation_reads_the_same() {
            crate::suite::second_implementation(&$codec, streams());
        }

        #[test]
        fn zeros_alone_hold_no_stream() {
            crate::suite::no_stream(&$codec);
        }

        #[test]
        fn nothing_is_a_prefix_of_everything_but_not_the_whole() {
            crate::suite::empty_output(&$codec, streams());
        }

        #[test]
        fn a_decoder_can_move_to_another_thread() {
            crate::suite::other_threads(&$codec, streams());
        }

        #[test]
        fn an_algorithm_that_the_settings_do_not_name_is_refused() {
            crate::suite::not_configured(&$codec, streams());
        }

        #[test]
        fn random_data_survives_and_random_damage_is_contained() {
            crate::random::check(&$codec);
        }

        #[test]
        fn decoding_does_not_allocate() {
            crate::allocation::none_while_decoding(&$codec, streams());
        }
    };
}

pub(crate) use properties;
