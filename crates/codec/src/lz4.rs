//! LZ4 blocks, by the reference C code. It needs no context and no memory.
#![allow(unsafe_code, reason = "liblz4 is a C library")]

use std::ffi::{c_char, c_int};

use crate::error::{ErrorKind, filled};
use crate::padding::{Padding, without_leading_zeros};
use crate::want::Want;

// Not declared by lz4-sys, but compiled into the archive that it links.
unsafe extern "C" {
    fn LZ4_decompress_safe_partial(
        source: *const c_char,
        target: *mut c_char,
        source_bytes: c_int,
        wanted_bytes: c_int,
        capacity_bytes: c_int,
    ) -> c_int;
}

/// Decodes the block in `input`.
///
/// A right-padded block does not say where it ends, so all that can be asked of it is to fill the
/// output.
pub(crate) fn decode(
    padding: Padding,
    input: &[u8],
    output: &mut [u8],
    want: Want,
) -> Result<(), ErrorKind> {
    let stream = match padding {
        Padding::Left => without_leading_zeros(input),
        Padding::Right => input,
    };
    if stream.is_empty() {
        return Err(ErrorKind::EmptyInput);
    }
    let source_bytes = c_length(stream)?;
    let capacity_bytes = c_length(output)?;
    let source = stream.as_ptr().cast();
    let target = output.as_mut_ptr().cast();
    let got = match (padding, want) {
        (Padding::Left, Want::Whole) => {
            // SAFETY: `source` is readable for `source_bytes` and `target` writable for
            // `capacity_bytes`, as both are the lengths of live slices, which cannot overlap since
            // one is borrowed mutably. The function touches nothing else, whatever the input.
            unsafe { lz4_sys::LZ4_decompress_safe(source, target, source_bytes, capacity_bytes) }
        }
        (Padding::Left, Want::Prefix) | (Padding::Right, _) => {
            if has_zero_distance(stream, output.len()) {
                return Err(ErrorKind::Corrupt);
            }
            // SAFETY: as above; the wanted length is not more than the capacity.
            unsafe {
                LZ4_decompress_safe_partial(
                    source,
                    target,
                    source_bytes,
                    capacity_bytes,
                    capacity_bytes,
                )
            }
        }
    };
    let got = usize::try_from(got).map_err(|_| ErrorKind::Corrupt)?;
    filled(got, output.len())
}

/// Whether a match among those that fill the first `wanted` bytes has the distance 0.
///
/// No encoder writes one. The library takes it for a run of zeros, but near the end of a partial
/// output it leaves what stood there before, which may be a piece of another file.
fn has_zero_distance(stream: &[u8], wanted: usize) -> bool {
    // Looking for the pair is cheaper, and most streams of text have none.
    stream.array_windows().any(|pair| *pair == [0, 0]) && reaches_zero_distance(stream, wanted)
}

/// Follows the sequences as far as the library would; what is broken is left to its judgement.
fn reaches_zero_distance(stream: &[u8], wanted: usize) -> bool {
    let (mut at, mut left) = (0, wanted);
    while let Some(token) = stream.get(at) {
        at += 1;
        let Some(literals) = run_length(token >> 4, stream, &mut at) else { return false };
        at += literals;
        let Some(distance) = stream.get(at..at + 2).filter(|_| literals < left) else {
            return false;
        };
        if distance == [0, 0] {
            return true;
        }
        at += 2;
        left -= literals;
        let Some(matched) = run_length(token & 15, stream, &mut at) else { return false };
        if matched + 4 >= left {
            return false;
        }
        left -= matched + 4;
    }
    false
}

/// A length of four bits, which 15 continues with bytes that add up to the first below 255.
fn run_length(start: u8, stream: &[u8], at: &mut usize) -> Option<usize> {
    let mut length = usize::from(start);
    if start == 15 {
        loop {
            let more = *stream.get(*at)?;
            *at += 1;
            length += usize::from(more);
            if more != 255 {
                break;
            }
        }
    }
    Some(length)
}

fn c_length(slice: &[u8]) -> Result<c_int, ErrorKind> {
    c_int::try_from(slice.len()).map_err(|_| ErrorKind::TooLarge)
}
