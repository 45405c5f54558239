//! What `Decoder::new` accepts, and what errors say.

use ferrofs_codec::{Algorithm, DecodeMode, Decoder, DecoderSettings, Error, ErrorKind, Padding};

const LZ4: DecoderSettings = DecoderSettings::none().lz4_max_distance(Some(u16::MAX));

fn refusal(settings: DecoderSettings) -> Option<(ErrorKind, Algorithm)> {
    Decoder::new(&settings).err().map(|error| (error.kind(), error.algorithm()))
}

#[test]
fn the_default_is_lz4_alone() {
    assert_eq!(DecoderSettings::default(), LZ4);
}

#[test]
fn a_dictionary_may_have_up_to_eight_mebibytes() {
    for bytes in [0, 1, 4095, 4096, 65536, 1_000_001, 8 << 20] {
        assert_eq!(refusal(LZ4.lzma_dictionary_bytes(Some(bytes))), None);
    }
    for bytes in [(8 << 20) + 1, u32::MAX] {
        assert_eq!(
            refusal(LZ4.lzma_dictionary_bytes(Some(bytes))),
            Some((ErrorKind::UnsupportedWindow, Algorithm::Lzma))
        );
    }
}

#[test]
fn a_window_has_one_kibibyte_to_one_mebibyte() {
    for log in 10..=20 {
        assert_eq!(refusal(LZ4.zstd_window_log(Some(log))), None);
    }
    for log in [0, 9, 21, 31, 64, 255] {
        assert_eq!(
            refusal(LZ4.zstd_window_log(Some(log))),
            Some((ErrorKind::UnsupportedWindow, Algorithm::Zstd))
        );
    }
}

#[test]
fn an_error_names_the_algorithm_and_the_lengths() {
    let mut decoder = Decoder::new(&LZ4).unwrap();
    let mut decode = |algorithm, input: &[u8]| -> Error {
        decoder.decode(algorithm, Padding::Left, input, &mut [0; 9], DecodeMode::Whole).unwrap_err()
    };
    let short = decode(Algorithm::Lz4, b"\x50erofs");
    assert_eq!(short.to_string(), "lz4: the stream ended after 5 of 9 bytes");
    assert_eq!(short.kind(), ErrorKind::TooShort { got: 5, wanted: 9 });
    let other = decode(Algorithm::Zstd, b"\x50erofs");
    assert_eq!(other.to_string(), "zstd: this decoder is not configured");
}

#[test]
fn a_decoder_is_sent_but_not_shared() {
    fn is_send<T: Send>() {}
    is_send::<Decoder>();
    assert_eq!(format!("{:?}", Decoder::new(&LZ4).unwrap()).matches("true").count(), 1);
}
