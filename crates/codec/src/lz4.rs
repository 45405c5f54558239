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
///
/// A match of distance 0 is no error to the library: it yields zeros, but near the end of a partial
/// output whatever was there before, which may be a piece of another file. So that the same block
/// always yields the same bytes, a partial output starts as zeros.
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
    let is_partial = padding == Padding::Right || want == Want::Prefix;
    if is_partial {
        output.fill(0);
    }
    let source = stream.as_ptr().cast();
    let target = output.as_mut_ptr().cast();
    let got = if is_partial {
        // SAFETY: `source` is readable for `source_bytes` and `target` writable for
        // `capacity_bytes`, as both are the lengths of live slices, which cannot overlap since one
        // is borrowed mutably. The function touches nothing else, whatever the input. The wanted
        // length is not more than the capacity.
        unsafe {
            LZ4_decompress_safe_partial(
                source,
                target,
                source_bytes,
                capacity_bytes,
                capacity_bytes,
            )
        }
    } else {
        // SAFETY: as above.
        unsafe { lz4_sys::LZ4_decompress_safe(source, target, source_bytes, capacity_bytes) }
    };
    let got = usize::try_from(got).map_err(|_| ErrorKind::Corrupt)?;
    filled(got, output.len())
}

fn c_length(slice: &[u8]) -> Result<c_int, ErrorKind> {
    c_int::try_from(slice.len()).map_err(|_| ErrorKind::TooLarge)
}
