//! The target of LZ4 parts: any block, any part, through a window and by liblz4.
//!
//! Input: a byte of switches, three bytes each of extent length, bytes skipped and length, the
//! stream. Both ways end alike, in bytes or in the kind of error, and nothing outside the part is
//! written.

use ferrofs_codec::{
    Algorithm, DecodeMode, Decoder, Error, LZ4_WINDOW_PAGE_BYTES, Lz4Part, Padding,
    lz4_window_pages,
};

use crate::decoding::lz4_settings;
use crate::input::Input;

/// The longest extent: two pages more than the largest window.
const EXTENT_MAX_BYTES: usize = 19 * LZ4_WINDOW_PAGE_BYTES;
const GUARD: [u8; 64] = [0xC7; 64];

type Page = [u8; LZ4_WINDOW_PAGE_BYTES];

/// A part of an LZ4 extent.
pub fn lz4_window(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let switches = input.u8();
    let extent_bytes = number(&mut input) % (EXTENT_MAX_BYTES + 1);
    let skip_bytes = number(&mut input) % (extent_bytes + 1);
    let length = number(&mut input) % (extent_bytes - skip_bytes + 1);
    let padding = if switches & 1 == 0 { Padding::Left } else { Padding::Right };
    let mode = if switches & 16 == 0 { DecodeMode::Whole } else { DecodeMode::Prefix };
    let settings = lz4_settings(switches >> 1);
    let decoder = Decoder::new(&settings).expect("LZ4 needs nothing");
    let part = Lz4Part { padding, extent_bytes, skip_bytes, mode };
    let decoded_bytes = if mode == DecodeMode::Whole { extent_bytes } else { skip_bytes + length };
    let pages = lz4_window_pages(settings.lz4_max_distance.unwrap_or(0), decoded_bytes);
    // Alone in its allocation, the stream has an end that a sanitizer watches.
    let stream = input.rest().to_vec();
    let pass = |old| through_window(&decoder, &stream, part, length, pages, old);
    let window = pass(0x00);
    assert!(window == pass(0xFF), "the outcome depends on what pages or output held before");
    if length == 0 && mode == DecodeMode::Prefix {
        assert!(window == Ok(vec![]), "nothing is always there");
        return;
    }
    let library = by_library(decoder, &stream, part, length);
    assert!(
        window == library,
        "window: {:?}, library: {:?}",
        window.map(|bytes| bytes.len()),
        library.map(|bytes| bytes.len())
    );
}

fn number(input: &mut Input<'_>) -> usize {
    let [low, middle, high] = input.array();
    usize::try_from(u32::from_le_bytes([low, middle, high, 0])).unwrap_or(0)
}

fn through_window(
    decoder: &Decoder,
    stream: &[u8],
    part: Lz4Part,
    length: usize,
    pages: usize,
    old: u8,
) -> Result<Vec<u8>, Error> {
    let mut pages: Vec<Box<Page>> =
        (0..pages).map(|_| Box::new([old; LZ4_WINDOW_PAGE_BYTES])).collect();
    let mut pages: Vec<_> = pages.iter_mut().map(|page| page.as_mut_slice()).collect();
    let mut buffer = [&GUARD[..], &vec![old; length], &GUARD].concat();
    let output = &mut buffer[GUARD.len()..][..length];
    let result = decoder.decode_lz4_part(stream, part, output, &mut pages);
    let decoded = output.to_vec();
    assert!(buffer.starts_with(&GUARD), "a byte before the output was written");
    assert!(buffer.ends_with(&GUARD), "a byte behind the output was written");
    result.map(|()| decoded)
}

fn by_library(
    mut decoder: Decoder,
    stream: &[u8],
    part: Lz4Part,
    length: usize,
) -> Result<Vec<u8>, Error> {
    let Lz4Part { padding, extent_bytes, skip_bytes, mode } = part;
    let end = skip_bytes + length;
    let mut output = vec![0; if mode == DecodeMode::Whole { extent_bytes } else { end }];
    decoder.decode(Algorithm::Lz4, padding, stream, &mut output, mode)?;
    Ok(output[skip_bytes..end].to_vec())
}
