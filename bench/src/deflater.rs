//! The bench's only work: zlib at level 1, one page a call, as QEMU's bench does it. Owns the stream
//! and the room for its output. Every row of the workqueue experiment calls it; nothing else does.
#![allow(unsafe_code, reason = "calls into zlib")]

use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;

use anyhow::{Result, bail, ensure};
use libz_sys as zlib;

use crate::page_store::{PAGE_BYTES, Page};

/// Room for one page's output, as QEMU's bench gives each request.
const OUTPUT_BYTES: usize = 32 * 1024;
/// The length that stands before the output.
const LENGTH_BYTES: usize = 4;

/// A deflate stream with its output.
#[derive(Debug)]
pub(crate) struct Deflater {
    /// Boxed since zlib's state points back at it; it must not move.
    stream: Box<MaybeUninit<zlib::z_stream>>,
    output: Box<[u8]>,
}

// SAFETY: zlib keeps nothing about threads: its state is heap memory that only this stream points
// at, and `&mut self` lets one thread at a time near it.
unsafe impl Send for Deflater {}

impl Deflater {
    /// A stream of level 1.
    pub(crate) fn new() -> Result<Self> {
        // All zeros asks zlib for its own malloc, as QEMU's bench does.
        let mut stream: Box<MaybeUninit<zlib::z_stream>> = Box::new(MaybeUninit::zeroed());
        let size = c_int::try_from(size_of::<zlib::z_stream>())?;
        // SAFETY: the pointer is to writable memory of the size that is passed, zeroed as zlib asks;
        // the version is the text of the same library. zlib writes it without reading a Rust value.
        let outcome = unsafe {
            zlib::deflateInit_(stream.as_mut_ptr(), zlib::Z_BEST_SPEED, zlib::zlibVersion(), size)
        };
        ensure!(outcome == zlib::Z_OK, "zlib gives no stream: code {outcome}");
        Ok(Self { stream, output: vec![0; OUTPUT_BYTES].into_boxed_slice() })
    }

    /// Resets the stream and compresses the page in one call behind four bytes of length; gives the
    /// bytes written, those four included.
    pub(crate) fn compress(&mut self, page: &Page) -> Result<u64> {
        let stream = self.stream.as_mut_ptr();
        let room = self.output.get_mut(LENGTH_BYTES..).unwrap_or_default();
        // SAFETY: `new` returned only after deflateInit_ succeeded on this very address, so the
        // struct is initialised and stays where it is, in its box. Input and output are live for
        // the call and as long as said; zlib reads the input only. Nobody writes the page
        // meanwhile: the submitter does so before it hands the page over, and not again before the
        // pass has ended.
        let outcome = unsafe {
            let reset = zlib::deflateReset(stream);
            if reset != zlib::Z_OK {
                bail!("zlib does not reset its stream: code {reset}");
            }
            (*stream).next_in = page.address().cast_mut();
            (*stream).avail_in = u32::try_from(PAGE_BYTES)?;
            (*stream).next_out = room.as_mut_ptr();
            (*stream).avail_out = u32::try_from(room.len())?;
            zlib::deflate(stream, zlib::Z_FINISH)
        };
        ensure!(outcome == zlib::Z_STREAM_END, "zlib does not finish a page: code {outcome}");
        // SAFETY: initialised, as above, and no call is under way.
        let left = unsafe { (*stream).avail_out };
        let written = room.len() - usize::try_from(left)?.min(room.len());
        let length = u32::try_from(written)?.to_be_bytes();
        if let Some(head) = self.output.first_chunk_mut::<LENGTH_BYTES>() {
            *head = length;
        }
        Ok(u64::try_from(written + LENGTH_BYTES)?)
    }
}

impl Drop for Deflater {
    fn drop(&mut self) {
        // SAFETY: initialised in `new`, at the same address, and ended only here. The code says
        // whether data was discarded, which is all the same now.
        unsafe { zlib::deflateEnd(self.stream.as_mut_ptr()) };
    }
}

/// The version of zlib that is linked.
pub(crate) fn zlib_version() -> String {
    // SAFETY: zlib's function gives a constant text that ends in zero.
    unsafe { CStr::from_ptr(zlib::zlibVersion()) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::Deflater;
    use crate::page_store::PageStore;

    #[test]
    fn a_marked_page_becomes_46_bytes() {
        let pages = PageStore::new(1).unwrap();
        pages.mark(0);
        let mut deflater = Deflater::new().unwrap();
        for _ in 0..3 {
            assert_eq!(deflater.compress(pages.page(0).unwrap()).unwrap(), 46);
        }
        assert_eq!(deflater.output.first_chunk::<4>(), Some(&[0, 0, 0, 42]));
    }
}
