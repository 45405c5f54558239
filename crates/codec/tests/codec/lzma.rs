//! MicroLZMA beyond the suite: its end is the end of the input.

use ferrofs_codec::{DecodeMode, Decoder, DecoderSettings, ErrorKind, Padding};

use crate::codecs::{LZMA, decoder};
use crate::guarded::Job;

crate::suite::properties!(LZMA);

fn job(input: &[u8], mode: DecodeMode) -> Job<'_> {
    Job { algorithm: LZMA.algorithm, padding: Padding::Left, input, mode }
}

#[test]
fn bytes_behind_the_end_of_the_whole_stream_are_an_error() {
    let mut decoder = decoder();
    for stream in streams() {
        let followed = [&stream.bytes[..], &[0]].concat();
        let decoded = job(&followed, DecodeMode::Whole).run(&mut decoder, stream.data.len());
        assert_eq!(decoded.unwrap_err().kind(), ErrorKind::Corrupt, "{}", stream.name);
    }
}

#[test]
fn properties_that_do_not_exist_are_an_error() {
    let mut decoder = decoder();
    let stream = streams().last().unwrap();
    for properties in (0..=254_u8).filter(|byte| *byte > 224 || byte % 45 / 9 + byte % 9 > 4) {
        let mut bytes = stream.bytes.clone();
        bytes[0] = !properties;
        let decoded = job(&bytes, DecodeMode::Prefix).run(&mut decoder, 100);
        assert_eq!(decoded.unwrap_err().kind(), ErrorKind::Corrupt, "{properties:#x}");
    }
}

#[test]
fn a_match_farther_back_than_the_dictionary_is_an_error() {
    let settings = DecoderSettings::default().lzma_dictionary_bytes(Some(4096));
    let mut small = Decoder::new(&settings).unwrap();
    let stream = streams().iter().find(|stream| stream.name.contains("far matches by liblzma 6"));
    let stream = stream.unwrap();
    let decoded = job(&stream.bytes, DecodeMode::Whole).run(&mut small, stream.data.len());
    assert_eq!(decoded.unwrap_err().kind(), ErrorKind::Corrupt);
}
