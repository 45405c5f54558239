//! DEFLATE beyond the suite: which error tells what, and what may follow a stream.

use ferrofs_codec::{DecodeMode, ErrorKind, Padding};

use crate::codecs::{DEFLATE, decoder};
use crate::guarded::Job;

crate::suite::properties!(DEFLATE);

fn job(input: &[u8], mode: DecodeMode) -> Job<'_> {
    Job { algorithm: DEFLATE.algorithm, padding: Padding::Left, input, mode }
}

#[test]
fn a_wrong_length_is_told_as_too_short_or_too_long() {
    let mut decoder = decoder();
    for stream in streams() {
        let length = stream.data.len();
        let long = job(&stream.bytes, DecodeMode::Whole).run(&mut decoder, length - 1).unwrap_err();
        assert_eq!(long.kind(), ErrorKind::TooLong, "{}", stream.name);
        for mode in [DecodeMode::Whole, DecodeMode::Prefix] {
            let short = job(&stream.bytes, mode).run(&mut decoder, length + 1).unwrap_err();
            let kind = ErrorKind::TooShort { got: length, wanted: length + 1 };
            assert_eq!(short.kind(), kind, "{}", stream.name);
        }
    }
}

#[test]
fn bytes_behind_the_end_of_the_stream_are_ignored() {
    let mut decoder = decoder();
    for stream in streams() {
        let followed = [&stream.bytes[..], b"something else"].concat();
        for mode in [DecodeMode::Whole, DecodeMode::Prefix] {
            let decoded = job(&followed, mode).run(&mut decoder, stream.data.len());
            assert!(decoded.as_deref() == Ok(stream.data), "{}", stream.name);
        }
    }
}

#[test]
fn an_empty_stream_is_the_whole_of_nothing() {
    assert_eq!(job(&[3, 0], DecodeMode::Whole).run(&mut decoder(), 0), Ok(vec![]));
}

#[test]
fn right_padding_is_read_as_left_padding() {
    let stream = streams().last().unwrap();
    let padded = [&[0; 9], &stream.bytes[..]].concat();
    let job = Job { padding: Padding::Right, ..job(&padded, DecodeMode::Whole) };
    assert!(job.run(&mut decoder(), stream.data.len()).as_deref() == Ok(stream.data));
}
