//! MicroLZMA by liblzma, with one stream that is used again for ever.
//!
//! liblzma allocates its coders and the dictionary at the first decode and keeps them for the next
//! one as long as the dictionary size stays, so [`Lzma::new`] decodes a few bytes to be done with
//! it.
#![allow(unsafe_code, reason = "liblzma is a C library")]

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use liblzma_sys as c;

use crate::c_heap;
use crate::error::{ErrorKind, filled};
use crate::want::Want;

/// liblzma raises smaller dictionaries to this.
const DICTIONARY_BYTES_MIN: u32 = 4 << 10;
/// Linux's `Z_EROFS_LZMA_MAX_DICT_SIZE`: images that say more do not mount.
const DICTIONARY_BYTES_MAX: u32 = 8 << 20;

/// Properties lc = 3, lp = 0, pb = 2 inverted, then a range coder at zero: any number of zero bytes.
const WARM_UP: [u8; 6] = [!0x5D, 0, 0, 0, 0, 0];

/// What must not move while liblzma points into it.
struct State {
    stream: c::lzma_stream,
    allocator: c::lzma_allocator,
    live_bytes: usize,
}

/// A liblzma stream and its memory.
pub(crate) struct Lzma {
    /// From `Box::into_raw`; freed in `drop`. No reference into it outlives a statement, as the
    /// callbacks write to `live_bytes` in the middle of a call.
    state: NonNull<State>,
    dictionary_bytes: u32,
}

// SAFETY: the stream and its coders are heap memory without ties to a thread, reached only through
// this owner.
unsafe impl Send for Lzma {}

impl Lzma {
    pub(crate) fn new(dictionary_bytes: u32) -> Result<Self, ErrorKind> {
        if dictionary_bytes > DICTIONARY_BYTES_MAX {
            return Err(ErrorKind::UnsupportedWindow);
        }
        let dictionary_bytes = dictionary_bytes.max(DICTIONARY_BYTES_MIN);
        let mut lzma = Self { state: new_state(), dictionary_bytes };
        match lzma.decode(&WARM_UP, &mut [0], Want::Prefix) {
            Ok(()) => Ok(lzma),
            Err(_) => Err(ErrorKind::OutOfMemory),
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        // SAFETY: the state lives until `drop`, and no call into liblzma is under way.
        let live_bytes = unsafe { (*self.state.as_ptr()).live_bytes };
        live_bytes + size_of::<State>()
    }

    pub(crate) fn decode(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        want: Want,
    ) -> Result<(), ErrorKind> {
        let (result, unfilled) = self.run(input, output, want);
        match result {
            c::lzma_ret_LZMA_STREAM_END if unfilled == 0 => Ok(()),
            c::lzma_ret_LZMA_OK | c::lzma_ret_LZMA_BUF_ERROR if unfilled > 0 => {
                filled(output.len() - unfilled, output.len())
            }
            c::lzma_ret_LZMA_MEM_ERROR => Err(ErrorKind::OutOfMemory),
            _ => Err(ErrorKind::Corrupt),
        }
    }

    /// liblzma's verdict, and how much of the output it left unfilled.
    fn run(&mut self, input: &[u8], output: &mut [u8], want: Want) -> (c::lzma_ret, usize) {
        let state = self.state.as_ptr();
        // SAFETY: the state lives until `drop` and `&mut self` makes this its only user. Its stream
        // was zeroed, or set up by an earlier call, as liblzma asks.
        let ready = unsafe {
            c::lzma_microlzma_decoder(
                &raw mut (*state).stream,
                input.len() as u64,
                output.len() as u64,
                c::lzma_bool::from(want == Want::Whole),
                self.dictionary_bytes,
            )
        };
        if ready != c::lzma_ret_LZMA_OK {
            return (ready, output.len());
        }
        // SAFETY: as above; the pointers and lengths are those of live slices, and liblzma does not
        // follow them after the call: every later call is preceded by setting them anew.
        unsafe {
            (*state).stream.next_in = input.as_ptr();
            (*state).stream.avail_in = input.len();
            (*state).stream.next_out = output.as_mut_ptr();
            (*state).stream.avail_out = output.len();
            let result = c::lzma_code(&raw mut (*state).stream, c::lzma_action_LZMA_FINISH);
            (result, (*state).stream.avail_out)
        }
    }
}

impl Drop for Lzma {
    fn drop(&mut self) {
        let state = self.state.as_ptr();
        // SAFETY: the state came from `Box::into_raw` in `new_state` and is freed nowhere else;
        // `lzma_end` gives back everything that the allocator inside it handed out, before the
        // allocator goes.
        unsafe {
            c::lzma_end(&raw mut (*state).stream);
            drop(Box::from_raw(state));
        }
    }
}

/// A zeroed stream that allocates through [`claim`] and [`release`].
fn new_state() -> NonNull<State> {
    let allocator =
        c::lzma_allocator { alloc: Some(claim), free: Some(release), opaque: ptr::null_mut() };
    // SAFETY: lzma_stream is integers and raw pointers, for which zero is a value, and the value
    // that liblzma calls LZMA_STREAM_INIT.
    let stream = unsafe { std::mem::zeroed() };
    let state = NonNull::from(Box::leak(Box::new(State { stream, allocator, live_bytes: 0 })));
    let raw = state.as_ptr();
    // SAFETY: the state was just made, nobody else has it, and the pointers stay inside it.
    unsafe {
        (*raw).allocator.opaque = (&raw mut (*raw).live_bytes).cast();
        (*raw).stream.allocator = &raw const (*raw).allocator;
    }
    state
}

/// # Safety
///
/// Only for liblzma: `opaque` points at the `live_bytes` of a live [`State`].
unsafe extern "C" fn claim(opaque: *mut c_void, count: usize, bytes_each: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(bytes_each) else {
        return ptr::null_mut();
    };
    let block = c_heap::claim(bytes);
    if !block.is_null() {
        // SAFETY: `new_state` made `opaque` point at a usize that lives as long as the stream, and
        // nothing reads it while liblzma runs.
        unsafe { *opaque.cast::<usize>() += bytes };
    }
    block
}

/// # Safety
///
/// Only for liblzma: `opaque` as in [`claim`], and `block` is null or came from it.
unsafe extern "C" fn release(opaque: *mut c_void, block: *mut c_void) {
    if block.is_null() {
        return;
    }
    // SAFETY: `block` came from `claim` above, which counted its bytes into `opaque`.
    unsafe {
        *opaque.cast::<usize>() -= c_heap::block_bytes(block);
        c_heap::release(block);
    }
}
