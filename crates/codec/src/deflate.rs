//! Raw DEFLATE: libdeflate for whole streams, `miniz_oxide` for prefixes.
//!
//! libdeflate stops before a match or a stored block that does not fit, so it does not fill a short
//! output to the end. `miniz_oxide` does. A prefix goes straight to `miniz_oxide`: trying
//! libdeflate first would pay for both whenever the stream is longer than the prefix.
#![allow(unsafe_code, reason = "libdeflate is a C library")]

pub(crate) mod encode;
mod truncate;

use std::ptr::NonNull;

use libdeflate_sys as c;
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};

use crate::c_heap;
use crate::error::{ErrorKind, filled};
use crate::stream::DecodeMode;

/// More than the decompressor of libdeflate, which does not report its size before it is made:
/// tables of 2342 and 402 four-byte entries, 288 sorted symbols, a few fields. A test compares.
const LIBDEFLATE_BYTES_MAX: usize = (2342 + 402) * 4 + 288 * 2 + 256;

/// The contexts of both libraries.
pub(crate) struct DeflateDecoder {
    whole: NonNull<c::libdeflate_decompressor>,
    /// One, in an array since only a vector can be refused its memory.
    prefix: Box<[DecompressorOxide; 1]>,
}

// SAFETY: the decompressor is heap memory without ties to a thread; it is used through &mut only.
unsafe impl Send for DeflateDecoder {}

impl DeflateDecoder {
    /// The most that `new` takes.
    pub(crate) const MEMORY_BYTES_MAX: usize =
        LIBDEFLATE_BYTES_MAX + c_heap::HEADER_BYTES + size_of::<DecompressorOxide>();

    pub(crate) fn new() -> Result<Self, ErrorKind> {
        let mut prefix = Vec::new();
        prefix.try_reserve_exact(1).map_err(|_| ErrorKind::OutOfMemory)?;
        prefix.push(DecompressorOxide::new());
        let prefix = prefix.into_boxed_slice().try_into().map_err(|_| ErrorKind::OutOfMemory)?;
        let options = c::libdeflate_options {
            sizeof_options: size_of::<c::libdeflate_options>(),
            malloc_func: Some(malloc),
            free_func: Some(c_heap::free),
        };
        // SAFETY: the options are initialised, say their own size and name a matching pair of
        // functions; the library copies them.
        let whole = unsafe { c::libdeflate_alloc_decompressor_ex(&raw const options) };
        let whole = NonNull::new(whole).ok_or(ErrorKind::OutOfMemory)?;
        Ok(Self { whole, prefix })
    }

    pub(crate) fn decode(
        &mut self,
        stream: &[u8],
        output: &mut [u8],
        mode: DecodeMode,
    ) -> Result<(), ErrorKind> {
        match mode {
            DecodeMode::Whole => self.decode_whole(stream, output),
            DecodeMode::Prefix => self.decode_prefix(stream, output),
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        // SAFETY: the decompressor is a block from `c_heap::malloc`: libdeflate makes exactly one
        // allocation for it and returns its address.
        let whole = unsafe { c_heap::block_bytes(self.whole.as_ptr().cast_const().cast()) };
        whole + size_of::<DecompressorOxide>()
    }

    fn decode_whole(&mut self, stream: &[u8], output: &mut [u8]) -> Result<(), ErrorKind> {
        let mut got = 0;
        // SAFETY: the decompressor is live until `drop` and borrowed mutably here; both slices are
        // given with their lengths, and `got` outlives the call.
        let result = unsafe {
            c::libdeflate_deflate_decompress(
                self.whole.as_ptr(),
                stream.as_ptr().cast(),
                stream.len(),
                output.as_mut_ptr().cast(),
                output.len(),
                &raw mut got,
            )
        };
        match result {
            c::libdeflate_result_LIBDEFLATE_SUCCESS => filled(got, output.len()),
            c::libdeflate_result_LIBDEFLATE_INSUFFICIENT_SPACE => Err(ErrorKind::TooLong),
            _ => Err(ErrorKind::Corrupt),
        }
    }

    fn decode_prefix(&mut self, stream: &[u8], output: &mut [u8]) -> Result<(), ErrorKind> {
        let [prefix] = &mut *self.prefix;
        prefix.init();
        let flags = TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
        let (status, _, got) = decompress(prefix, stream, output, 0, flags);
        match status {
            TINFLStatus::Done
            | TINFLStatus::HasMoreOutput
            | TINFLStatus::NeedsMoreInput
            | TINFLStatus::FailedCannotMakeProgress => filled(got, output.len()),
            _ => Err(ErrorKind::Corrupt),
        }
    }
}

impl Drop for DeflateDecoder {
    fn drop(&mut self) {
        // SAFETY: the decompressor came from `new` and is freed nowhere else.
        unsafe { c::libdeflate_free_decompressor(self.whole.as_ptr()) };
    }
}

/// [`c_heap::malloc`] under the unsafe type that libdeflate declares.
unsafe extern "C" fn malloc(bytes: usize) -> *mut std::ffi::c_void {
    c_heap::malloc(bytes)
}
