//! MicroLZMA streams that fill a pcluster, by liblzma, which has a mode for that.
#![allow(unsafe_code, reason = "liblzma is a C library")]

use std::ffi::c_void;

use liblzma_sys as c;

use super::LzmaContexts;
use crate::c_heap::{self, HEADER_BYTES};
use crate::error::ErrorKind;
use crate::stream::EncodedSizes;

/// liblzma takes no dictionary below this, and refuses an output below `OUTPUT_BYTES_MIN`.
const DICTIONARY_BYTES_MIN: usize = super::DICTIONARY_BYTES_MIN as usize;
/// Presets from this on are those of the rest, made extreme.
const EXTREME: u8 = 100;
/// How deep a tree is searched if the preset does not say: this much, and that share of the length
/// from which on a match is good enough. liblzma goes three times as deep, which takes 5 to 10 %
/// more time for 0.1 to 0.2 % of the size (64 KiB pclusters of programs and libraries, level 6).
const TREE_DEPTH_MIN: u32 = 4;
const TREE_DEPTH_SHARE: u32 = 5;
/// How many blocks liblzma takes, and what they hold beyond what it tells.
const BLOCKS_MAX: usize = 8;

/// One encoder, which keeps its memory from call to call.
pub(crate) struct LzmaEncoder {
    /// liblzma keeps a pointer to the allocator, but none to the stream itself between calls.
    stream: c::lzma_stream,
    allocator: Box<[c::lzma_allocator; 1]>,
    options: c::lzma_options_lzma,
    memory_bytes: usize,
}

// SAFETY: the stream owns heap memory without ties to a thread; it is used through &mut only.
unsafe impl Send for LzmaEncoder {}

impl LzmaEncoder {
    pub(crate) fn new(preset: LzmaPreset, extent_bytes: usize) -> Result<Self, ErrorKind> {
        let mut allocator = Vec::new();
        allocator.try_reserve_exact(1).map_err(|_| ErrorKind::OutOfMemory)?;
        allocator.push(c::lzma_allocator {
            alloc: Some(malloc),
            free: Some(free),
            opaque: std::ptr::null_mut(),
        });
        let allocator =
            allocator.into_boxed_slice().try_into().map_err(|_| ErrorKind::OutOfMemory)?;
        let options = preset.options(extent_bytes)?;
        // SAFETY: zero is how liblzma wants a new stream.
        let stream = unsafe { std::mem::zeroed() };
        let memory_bytes = preset.memory_bytes_max(extent_bytes);
        let mut encode = Self { stream, allocator, options, memory_bytes };
        encode.stream.allocator = &raw const encode.allocator[0];
        encode.set_up()?;
        Ok(encode)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    pub(crate) fn fill(
        &mut self,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<EncodedSizes, ErrorKind> {
        self.set_up()?;
        self.stream.next_in = input.as_ptr();
        self.stream.avail_in = input.len();
        self.stream.next_out = output.as_mut_ptr();
        self.stream.avail_out = output.len();
        // SAFETY: the stream was set up, and describes two live slices with their lengths. The
        // library forgets them when it is set up again, which is before it is called again.
        let result = unsafe { c::lzma_code(&raw mut self.stream, c::lzma_action_LZMA_FINISH) };
        if result != c::lzma_ret_LZMA_STREAM_END {
            return Err(kind_of(result));
        }
        let taken = input.len().checked_sub(self.stream.avail_in);
        let bytes = output.len().checked_sub(self.stream.avail_out);
        match (taken, bytes) {
            (Some(taken), Some(bytes)) => {
                Ok(EncodedSizes { input_bytes: taken, output_bytes: bytes })
            }
            _ => Err(ErrorKind::EncodingFailed),
        }
    }

    /// Makes the encoder ready for another stream. All memory is taken the first time.
    fn set_up(&mut self) -> Result<(), ErrorKind> {
        // SAFETY: the stream is zeros or was set up before, its allocator lives as long as it does,
        // and the options outlive the call and name no preset dictionary.
        let result =
            unsafe { c::lzma_microlzma_encoder(&raw mut self.stream, &raw const self.options) };
        if result == c::lzma_ret_LZMA_OK { Ok(()) } else { Err(kind_of(result)) }
    }
}

impl Drop for LzmaEncoder {
    fn drop(&mut self) {
        // SAFETY: the stream is zeros or was set up, and its allocator is still there.
        unsafe { c::lzma_end(&raw mut self.stream) };
    }
}

/// What a stream is encoded with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LzmaPreset {
    pub(crate) level: u8,
    pub(crate) dictionary_bytes: u32,
    pub(crate) contexts: LzmaContexts,
}

impl LzmaPreset {
    /// The options of a preset; the dictionary no larger than what there is to find in it.
    fn options(self, extent_bytes: usize) -> Result<c::lzma_options_lzma, ErrorKind> {
        let Self { level, dictionary_bytes, contexts } = self;
        let preset = match level.checked_sub(EXTREME) {
            Some(level) => u32::from(level) | c::LZMA_PRESET_EXTREME,
            None => level.into(),
        };
        // SAFETY: zero is a value of every field: numbers, null pointers, and enumerations that the
        // bindings have as integers. The options are writable.
        let (options, is_bad) = unsafe {
            let mut options: c::lzma_options_lzma = std::mem::zeroed();
            let is_bad = c::lzma_lzma_preset(&raw mut options, preset);
            (options, is_bad)
        };
        if is_bad != 0 {
            return Err(ErrorKind::UnsupportedLevel);
        }
        let extent_bytes =
            u32::try_from(extent_bytes.max(DICTIONARY_BYTES_MIN)).unwrap_or(u32::MAX);
        let mut options = c::lzma_options_lzma {
            dict_size: dictionary_bytes.min(extent_bytes),
            lc: contexts.literal_bits.into(),
            lp: contexts.literal_position_bits.into(),
            pb: contexts.position_bits.into(),
            ..options
        };
        if options.mf == c::lzma_match_finder_LZMA_MF_BT4 && options.depth == 0 {
            options.depth = TREE_DEPTH_MIN + options.nice_len / TREE_DEPTH_SHARE;
        }
        Ok(options)
    }

    /// The most that `new` takes.
    pub(crate) fn memory_bytes_max(self, extent_bytes: usize) -> usize {
        let Ok(mut options) = self.options(extent_bytes) else { return 0 };
        let filters = [
            c::lzma_filter { id: c::LZMA_FILTER_LZMA1, options: (&raw mut options).cast() },
            c::lzma_filter { id: c::LZMA_VLI_UNKNOWN, options: std::ptr::null_mut() },
        ];
        // SAFETY: the array ends with its terminator, and the options outlive the call.
        let bytes = unsafe { c::lzma_raw_encoder_memusage(filters.as_ptr()) };
        usize::try_from(bytes).unwrap_or(0) + BLOCKS_MAX * HEADER_BYTES
    }
}

fn kind_of(result: c::lzma_ret) -> ErrorKind {
    if result == c::lzma_ret_LZMA_MEM_ERROR {
        ErrorKind::OutOfMemory
    } else {
        ErrorKind::EncodingFailed
    }
}

/// [`c_heap::malloc`] under the type that liblzma declares.
unsafe extern "C" fn malloc(_: *mut c_void, count: usize, bytes: usize) -> *mut c_void {
    count.checked_mul(bytes).map_or(std::ptr::null_mut(), |bytes| c_heap::malloc(bytes))
}

/// [`c_heap::free`] under the type that liblzma declares.
unsafe extern "C" fn free(_: *mut c_void, block: *mut c_void) {
    // SAFETY: liblzma frees what it got from `malloc`, once, or null.
    unsafe { c_heap::free(block) };
}
