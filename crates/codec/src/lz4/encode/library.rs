//! The calls of liblz4 that fill an output.
#![allow(unsafe_code, reason = "liblz4 is a C library")]

use std::ffi::{c_char, c_int, c_void};

use crate::c_heap::{self, CBlock};
use crate::encoder::EncodedSizes;
use crate::error::ErrorKind;
use crate::lz4::library::c_length;

// Not declared by lz4-sys, but compiled into the archive that it links.
unsafe extern "C" {
    fn LZ4_sizeofState() -> c_int;
    fn LZ4_sizeofStateHC() -> c_int;
    fn LZ4_compress_destSize_extState(
        state: *mut c_void,
        source: *const c_char,
        target: *mut c_char,
        source_bytes: *mut c_int,
        capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_initStreamHC(state: *mut c_void, bytes: usize) -> *mut c_void;
    fn LZ4_resetStreamHC_fast(stream: *mut c_void, level: c_int);
    fn LZ4_compress_HC_continue_destSize(
        stream: *mut c_void,
        source: *const c_char,
        target: *mut c_char,
        source_bytes: *mut c_int,
        capacity: c_int,
    ) -> c_int;
}

/// For inputs below this the library has a table of 16-bit positions, which are twice as many in the
/// same memory and so find more.
const NEAR_INPUT_BYTES: usize = (64 << 10) + 10;

/// The state of one of the two encoders.
pub(super) struct LibLz4Encoder {
    state: CBlock,
    /// Of LZ4HC.
    level: Option<c_int>,
}

impl LibLz4Encoder {
    pub(super) fn new(level: Option<u8>) -> Result<Self, ErrorKind> {
        let bytes = state_bytes(level);
        let state = CBlock::allocate(bytes).ok_or(ErrorKind::OutOfMemory)?;
        if level.is_some() {
            // SAFETY: the block is writable for `bytes`.
            let stream = unsafe { LZ4_initStreamHC(state.as_ptr(), bytes) };
            if stream.is_null() {
                return Err(ErrorKind::EncodingFailed);
            }
        }
        Ok(Self { state, level: level.map(c_int::from) })
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.state.bytes()
    }

    pub(super) fn fill(
        &mut self,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<EncodedSizes, ErrorKind> {
        let Some(level) = self.level else {
            let near = &input[..input.len().min(NEAR_INPUT_BYTES)];
            let filled = self.fill_fast(near, output)?;
            let is_all = filled.taken < near.len() || near.len() == input.len();
            return if is_all { Ok(filled) } else { self.fill_fast(input, output) };
        };
        let (mut taken, capacity) = (c_length(input)?, c_length(output)?);
        // SAFETY: the state was made by `LZ4_initStreamHC` and is borrowed mutably. Resetting makes
        // it forget the input of the call before, of which it keeps a pointer; it does so without
        // clearing its tables, whose old entries then lie before all that it looks at. Both slices
        // are given with their lengths, and `taken` outlives the call.
        let bytes = unsafe {
            LZ4_resetStreamHC_fast(self.state.as_ptr(), level);
            LZ4_compress_HC_continue_destSize(
                self.state.as_ptr(),
                input.as_ptr().cast(),
                output.as_mut_ptr().cast(),
                &raw mut taken,
                capacity,
            )
        };
        filled(taken, bytes)
    }

    fn fill_fast(&mut self, input: &[u8], output: &mut [u8]) -> Result<EncodedSizes, ErrorKind> {
        let (mut taken, capacity) = (c_length(input)?, c_length(output)?);
        // SAFETY: the state is as long as the library says that it must be, aligned to more than the
        // 8 that it asks for, and initialised by the call. The slices are given with their lengths,
        // and `taken` outlives the call.
        let bytes = unsafe {
            LZ4_compress_destSize_extState(
                self.state.as_ptr(),
                input.as_ptr().cast(),
                output.as_mut_ptr().cast(),
                &raw mut taken,
                capacity,
                1,
            )
        };
        filled(taken, bytes)
    }
}

fn filled(taken: c_int, bytes: c_int) -> Result<EncodedSizes, ErrorKind> {
    match (usize::try_from(taken), usize::try_from(bytes)) {
        (Ok(taken), Ok(bytes @ 1..)) => Ok(EncodedSizes { taken, bytes }),
        _ => Err(ErrorKind::EncodingFailed),
    }
}

fn state_bytes(level: Option<u8>) -> usize {
    // SAFETY: both return a constant.
    let bytes = unsafe { if level.is_some() { LZ4_sizeofStateHC() } else { LZ4_sizeofState() } };
    bytes.unsigned_abs() as usize
}

pub(super) fn memory_bytes_max(level: Option<u8>) -> usize {
    state_bytes(level) + c_heap::HEADER_BYTES
}
