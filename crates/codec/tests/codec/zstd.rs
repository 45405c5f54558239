//! ZSTD beyond the suite: windows, frames that follow, and which error tells what.

use ferrofs_codec::{DecodeMode, Decoder, ErrorKind, Padding};

use crate::codecs::{Frame, SETTINGS, ZSTD, decoder, zstd};
use crate::guarded::Job;
use crate::samples::text;

crate::suite::properties!(ZSTD);

fn job(input: &[u8], mode: DecodeMode) -> Job<'_> {
    Job { algorithm: ZSTD.algorithm, padding: Padding::Left, input, mode }
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
fn only_the_first_frame_counts() {
    let mut decoder = decoder();
    let data = text(9_000, 21);
    let frame = zstd(&data, 3, Frame::default());
    for behind in [&b"something else"[..], &frame, &[0; 9]] {
        let followed = [&frame[..], behind].concat();
        for mode in [DecodeMode::Whole, DecodeMode::Prefix] {
            let decoded = job(&followed, mode).run(&mut decoder, data.len());
            assert!(decoded.as_deref() == Ok(&data));
            job(&followed, mode).run(&mut decoder, data.len() + 1).unwrap_err();
        }
    }
}

#[test]
fn a_skippable_frame_is_a_frame_of_nothing() {
    let mut decoder = decoder();
    let skippable = [0x50, 0x2A, 0x4D, 0x18, 3, 0, 0, 0, 1, 2, 3];
    let input = [&skippable[..], &zstd(b"hello", 3, Frame::default())].concat();
    for mode in [DecodeMode::Whole, DecodeMode::Prefix] {
        let error = job(&input, mode).run(&mut decoder, 5).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooShort { got: 0, wanted: 5 });
    }
}

#[test]
fn every_window_that_is_configured_suffices_for_its_frames_and_no_larger_ones() {
    let data = text((2 << 20) + 9, 25);
    for log in 10..=20 {
        let settings = SETTINGS.zstd_window_log(Some(log));
        let mut decoder = Decoder::new(&settings).unwrap();
        for size in [true, false] {
            let fits = zstd(&data, 1, Frame { window_log: log, size, checksum: true });
            let larger = zstd(&data, 1, Frame { window_log: log + 1, size, checksum: true });
            for (mode, length) in
                [(DecodeMode::Whole, data.len()), (DecodeMode::Prefix, data.len() - 9)]
            {
                let decoded = job(&fits, mode).run(&mut decoder, length);
                assert!(decoded.as_deref() == Ok(&data[..length]), "window log {log}");
                let error = job(&larger, mode).run(&mut decoder, length).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::UnsupportedWindow, "window log {log}");
            }
        }
    }
}

#[test]
fn a_wrong_checksum_is_an_error_once_it_is_reached() {
    let data = text(9_000, 23);
    let mut frame = zstd(&data, 3, Frame { checksum: true, ..Frame::default() });
    *frame.last_mut().unwrap() ^= 1;
    let mut decoder = decoder();
    let whole = job(&frame, DecodeMode::Whole).run(&mut decoder, data.len());
    assert_eq!(whole.unwrap_err().kind(), ErrorKind::Corrupt);
    let prefix = job(&frame, DecodeMode::Prefix).run(&mut decoder, data.len() - 1);
    assert!(prefix.as_deref() == Ok(&data[..data.len() - 1]));
}

#[test]
fn an_empty_frame_is_the_whole_of_nothing() {
    let frame = zstd(&[], 3, Frame::default());
    assert_eq!(job(&frame, DecodeMode::Whole).run(&mut decoder(), 0), Ok(vec![]));
}

#[test]
fn a_match_beyond_the_window_of_its_frame_gives_whole_and_prefix_the_same_bytes() {
    // A frame with a window of 1 KiB, runs of 1,088 bytes, and a match from before the window.
    const FRAME: [u8; 33] = [
        0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x00, 0x02, 0x20, 0x00, 0x41, 0x02, 0x20, 0x00, 0x42, 0x02,
        0x20, 0x00, 0x43, 0x02, 0x20, 0x00, 0x44, 0x45, 0x00, 0x00, 0x00, 0x01, 0x54, 0x00, 0x0b,
        0x1f, 0x0f, 0x0e,
    ];
    let mut decoder = decoder();
    let mut wholes = 0;
    for length in 1..8192 {
        let whole = job(&FRAME, DecodeMode::Whole).run(&mut decoder, length);
        let prefix = job(&FRAME, DecodeMode::Prefix).run(&mut decoder, length);
        if let Ok(whole) = whole {
            assert_eq!(prefix, Ok(whole), "{length} bytes");
            wholes += 1;
        }
    }
    assert_eq!(wholes, 1, "the frame has one length");
}

#[test]
fn a_match_beyond_the_window_gives_all_prefixes_the_same_bytes_if_the_frame_says_its_size() {
    // As above with runs of 1,024 bytes, 4,130 bytes in all, and that number in the header: given
    // room for as many, the library would decode in one step.
    const FRAME: [u8; 35] = [
        0x28, 0xb5, 0x2f, 0xfd, 0x40, 0x00, 0x22, 0x0f, 0x02, 0x20, 0x00, 0x41, 0x02, 0x20, 0x00,
        0x42, 0x02, 0x20, 0x00, 0x43, 0x02, 0x20, 0x00, 0x44, 0x45, 0x00, 0x00, 0x00, 0x01, 0x54,
        0x00, 0x0b, 0x1f, 0x0f, 0x0e,
    ];
    let mut decoder = decoder();
    let whole = job(&FRAME, DecodeMode::Whole).run(&mut decoder, 4130).unwrap();
    for length in 4090..=4130 {
        let prefix = job(&FRAME, DecodeMode::Prefix).run(&mut decoder, length);
        assert!(prefix.as_deref() == Ok(&whole[..length]), "{length} bytes");
    }
}
