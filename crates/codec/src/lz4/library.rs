//! The calls into liblz4. Owns nothing and judges nothing but what the library says.
#![allow(unsafe_code, reason = "liblz4 is a C library")]

use std::ffi::{c_char, c_int};

use super::sequences::BlockEnd;
use crate::error::{ErrorKind, filled};

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

/// Fills `output` with what `stream` yields.
pub(super) fn decode(stream: &[u8], output: &mut [u8], end: BlockEnd) -> Result<(), ErrorKind> {
    let source_bytes = c_length(stream)?;
    let capacity_bytes = c_length(output)?;
    let source = stream.as_ptr().cast();
    let target = output.as_mut_ptr().cast();
    let got = match end {
        BlockEnd::Exact => {
            // SAFETY: `source` is readable for `source_bytes` and `target` writable for
            // `capacity_bytes`, as both are the lengths of live slices, which cannot overlap since
            // one is borrowed mutably. The function touches nothing else, whatever the input.
            unsafe { lz4_sys::LZ4_decompress_safe(source, target, source_bytes, capacity_bytes) }
        }
        BlockEnd::Open => {
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

/// A length that the library can count.
pub(super) fn c_length(slice: &[u8]) -> Result<c_int, ErrorKind> {
    c_int::try_from(slice.len()).map_err(|_| ErrorKind::TooLarge)
}
