//! Zstandard frames, by the reference C code in a workspace of fixed size.
//!
//! Whole frames are decoded in one step, straight into the output. Prefixes are streamed through a
//! window at the end of the workspace, whose pages are untouched until the first prefix. Both
//! decode the first frame alone: what follows it is ignored. Both refuse a frame whose window is
//! larger than configured, as Linux does; the library's one-step decoder does not check that.
#![allow(unsafe_code, reason = "libzstd is a C library")]

mod cost_model;
pub(crate) mod encode;

use std::ffi::c_uint;
use std::mem::MaybeUninit;
use std::ops::RangeInclusive;
use std::ptr::NonNull;

use zstd_sys as c;

use crate::c_heap::{self, CBlock};
use crate::error::{ErrorKind, filled};
use crate::stream::DecodeMode;

/// The windows of docs/format.md: the image stores the logarithm less ten, and Linux stops at 1
/// MiB.
pub(crate) const WINDOW_LOGS: RangeInclusive<u8> = 10..=20;

/// One context that serves both ways of decoding.
pub(crate) struct ZstdDecoder {
    /// At the start of the workspace; valid as long as that is.
    context: NonNull<c::ZSTD_DCtx>,
    workspace: CBlock,
    window_bytes: usize,
}

// SAFETY: the context lies in memory that this value owns and has no ties to a thread.
unsafe impl Send for ZstdDecoder {}

impl ZstdDecoder {
    pub(crate) fn new(window_log: u8) -> Result<Self, ErrorKind> {
        if !WINDOW_LOGS.contains(&window_log) {
            return Err(ErrorKind::UnsupportedWindow);
        }
        let window_bytes = 1 << window_log;
        let bytes = workspace_bytes(window_bytes);
        let workspace = CBlock::allocate(bytes).ok_or(ErrorKind::OutOfMemory)?;
        // SAFETY: the workspace is `bytes` long, aligned to more than the 8 that are asked for, and
        // it lives as long as the context since both are fields of one value.
        let context = unsafe { c::ZSTD_initStaticDStream(workspace.as_ptr(), bytes) };
        let context = NonNull::new(context).ok_or(ErrorKind::OutOfMemory)?;
        // SAFETY: the context was just made. The value is within the bounds of the parameter.
        let result = unsafe {
            let parameter = c::ZSTD_dParameter::ZSTD_d_windowLogMax;
            c::ZSTD_DCtx_setParameter(context.as_ptr(), parameter, window_log.into())
        };
        checked(result)?;
        Ok(Self { context, workspace, window_bytes })
    }

    /// The most that `new` takes; nothing for a window that it refuses.
    pub(crate) fn memory_bytes_max(window_log: u8) -> usize {
        if WINDOW_LOGS.contains(&window_log) {
            workspace_bytes(1 << window_log) + c_heap::HEADER_BYTES
        } else {
            0
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.workspace.bytes()
    }

    pub(crate) fn decode(
        &mut self,
        stream: &[u8],
        output: &mut [u8],
        mode: DecodeMode,
    ) -> Result<(), ErrorKind> {
        let header = frame_header(stream)?;
        let window_bytes = header.window_bytes;
        if window_bytes > self.window_bytes as u64 {
            return Err(ErrorKind::UnsupportedWindow);
        }
        // In one step the library takes all of the output for the window, and so accepts matches
        // that reach farther back than the frame allows. Streaming finds other bytes there, as
        // Linux does. Frames as builders make them have a window for their whole contents.
        let got = match mode {
            DecodeMode::Whole if window_bytes >= output.len() as u64 => {
                self.decode_at_once(stream, output)?
            }
            _ => self.decode_in_steps(header.header_bytes, stream, output, mode)?,
        };
        filled(got, output.len())
    }

    fn decode_at_once(&mut self, stream: &[u8], output: &mut [u8]) -> Result<usize, ErrorKind> {
        // SAFETY: the slice is given with its length, and the function only reads it.
        let frame_bytes =
            unsafe { c::ZSTD_findFrameCompressedSize(stream.as_ptr().cast(), stream.len()) };
        let frame = stream.get(..checked(frame_bytes)?).ok_or(ErrorKind::Corrupt)?;
        // SAFETY: the context is live and borrowed mutably; both slices are given with their
        // lengths.
        checked(unsafe {
            c::ZSTD_decompressDCtx(
                self.context.as_ptr(),
                output.as_mut_ptr().cast(),
                output.len(),
                frame.as_ptr().cast(),
                frame.len(),
            )
        })
    }

    /// The first step is the header alone: given a whole frame whose contents fit into the output,
    /// the library decodes it at once after all.
    fn decode_in_steps(
        &mut self,
        header_bytes: usize,
        stream: &[u8],
        output: &mut [u8],
        mode: DecodeMode,
    ) -> Result<usize, ErrorKind> {
        let mut target =
            c::ZSTD_outBuffer { dst: output.as_mut_ptr().cast(), size: output.len(), pos: 0 };
        let mut source = c::ZSTD_inBuffer { src: stream.as_ptr().cast(), size: 0, pos: 0 };
        let mut ends = [header_bytes.min(stream.len()), stream.len()].into_iter();
        // SAFETY: the context is live and borrowed mutably. Resetting the session makes it forget
        // the buffers and the failures of earlier calls, and keeps its workspace.
        checked(unsafe {
            let session = c::ZSTD_ResetDirective::ZSTD_reset_session_only;
            c::ZSTD_DCtx_reset(self.context.as_ptr(), session)
        })?;
        while target.pos < target.size || mode == DecodeMode::Whole {
            source.size = ends.next().unwrap_or(stream.len());
            let before = (source.pos, target.pos);
            // SAFETY: as above; both buffers describe live slices, and the library keeps their
            // positions within their sizes.
            let more = checked(unsafe {
                c::ZSTD_decompressStream(self.context.as_ptr(), &raw mut target, &raw mut source)
            })?;
            if more == 0 {
                break;
            }
            if before == (source.pos, target.pos) {
                // Nothing moves: the output is full, or the input has ended.
                let is_full = target.pos == target.size;
                let rest = source.pos < source.size;
                if mode == DecodeMode::Whole && is_full {
                    return Err(if rest { ErrorKind::TooLong } else { ErrorKind::Corrupt });
                }
                break;
            }
        }
        Ok(target.pos)
    }
}

/// What one context with this window needs.
fn workspace_bytes(window_bytes: usize) -> usize {
    // SAFETY: a calculation without pointers.
    unsafe { c::ZSTD_estimateDStreamSize(window_bytes) }
}

/// What is needed of the header of a frame.
struct FrameHeader {
    window_bytes: u64,
    header_bytes: usize,
}

/// The header of the first frame of `stream`; a skippable one has no window.
fn frame_header(stream: &[u8]) -> Result<FrameHeader, ErrorKind> {
    let mut header = MaybeUninit::<c::ZSTD_FrameHeader>::zeroed();
    // SAFETY: the header is writable, and the slice is given with its length.
    let missing = unsafe {
        c::ZSTD_getFrameHeader(header.as_mut_ptr(), stream.as_ptr().cast(), stream.len())
    };
    if checked(missing)? > 0 {
        return Err(ErrorKind::Corrupt);
    }
    let header = header.as_ptr();
    // SAFETY: `header` points at zeros, over which the library wrote a header, so both numbers are
    // initialised. They are read alone: the frame's type is an enumeration, and a library that
    // knows a new one must not make a value of it that Rust does not know.
    let (window_bytes, header_bytes) = unsafe {
        ((&raw const (*header).windowSize).read(), (&raw const (*header).headerSize).read())
    };
    Ok(FrameHeader { window_bytes, header_bytes: header_bytes as usize })
}

unsafe extern "C" {
    /// The bindings declare the result as a Rust enumeration, of which a code that they do not know
    /// would be an invalid value. C's enumerations are integers.
    #[link_name = "ZSTD_getErrorCode"]
    safe fn error_code(result: usize) -> c_uint;
}

/// Separates lengths from the error codes that libzstd packs into one integer.
fn checked(result: usize) -> Result<usize, ErrorKind> {
    // SAFETY: a test of a number.
    if unsafe { c::ZSTD_isError(result) } == 0 { Ok(result) } else { Err(kind_of(result)) }
}

#[cold]
fn kind_of(result: usize) -> ErrorKind {
    const TOO_LONG: c_uint = c::ZSTD_ErrorCode::ZSTD_error_dstSize_tooSmall as c_uint;
    const OUT_OF_MEMORY: c_uint = c::ZSTD_ErrorCode::ZSTD_error_memory_allocation as c_uint;
    const WINDOW: c_uint = c::ZSTD_ErrorCode::ZSTD_error_frameParameter_windowTooLarge as c_uint;
    match error_code(result) {
        TOO_LONG => ErrorKind::TooLong,
        OUT_OF_MEMORY => ErrorKind::OutOfMemory,
        WINDOW => ErrorKind::UnsupportedWindow,
        _ => ErrorKind::Corrupt,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_code_of_libzstd_is_a_number_and_may_be_one_that_nobody_knows() {
        // Its type: the library may add codes, and a Rust enumeration must never be made of one.
        let code_of: extern "C" fn(usize) -> c_uint = error_code;
        let result_of = |code: usize| 0_usize.wrapping_sub(code);
        for code in 1..120 {
            assert_eq!(code_of(result_of(code)) as usize, code);
        }
        // 99 and 119 have no name, as most of these numbers.
        for (code, kind) in [
            (70, ErrorKind::TooLong),
            (64, ErrorKind::OutOfMemory),
            (16, ErrorKind::UnsupportedWindow),
            (99, ErrorKind::Corrupt),
            (119, ErrorKind::Corrupt),
        ] {
            assert_eq!(kind_of(result_of(code)), kind, "{code}");
        }
    }
}
