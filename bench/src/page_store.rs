//! The memory that the workqueue experiment compresses (whole pages, aligned and present before the clock starts), and
//! the only work of that experiment: zlib at level 1, one page a call, as QEMU's bench does it.
#![allow(unsafe_code, reason = "calls into zlib")]

use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context, Result, bail, ensure};
use libz_sys as zlib;

/// The size of a page here, whatever the system's is.
pub(crate) const PAGE_BYTES: usize = 4096;
pub(crate) const PAGES_PER_GIB: usize = (1 << 30) / PAGE_BYTES;
/// What the submitter writes into each page, as QEMU's bench does.
const FIRST_BYTE: u8 = 0x10;

#[derive(Debug)]
#[repr(C, align(4096))]
pub(crate) struct Page([AtomicU8; PAGE_BYTES]);

impl Default for Page {
    fn default() -> Self {
        Self([const { AtomicU8::new(0) }; PAGE_BYTES])
    }
}

impl Page {
    pub(crate) fn address(&self) -> *const u8 {
        self.0.as_ptr().cast()
    }
}

#[derive(Debug)]
pub(crate) struct PageStore {
    pages: Box<[Page]>,
}

impl PageStore {
    /// Pages of zeros, written once so that none of them faults later.
    pub(crate) fn new(count: usize) -> Result<Self> {
        let mut pages: Vec<Page> = Vec::new();
        pages.try_reserve_exact(count).with_context(|| format!("no memory for {count} pages"))?;
        pages.resize_with(count, Page::default);
        Ok(Self { pages: pages.into_boxed_slice() })
    }

    pub(crate) fn count(&self) -> usize {
        self.pages.len()
    }

    pub(crate) fn all(&self) -> &[Page] {
        &self.pages
    }

    pub(crate) fn page(&self, number: usize) -> Option<&Page> {
        self.pages.get(number)
    }

    /// Writes the byte that each repetition begins with. Relaxed: the submission to the worker
    /// publishes it.
    pub(crate) fn touch(&self, number: usize) {
        if let Some(Page([first, ..])) = self.pages.get(number) {
            first.store(FIRST_BYTE, Ordering::Relaxed);
        }
    }
}

/// Space for one page's output, as QEMU's bench gives each request.
const OUTPUT_BYTES: usize = 32 * 1024;
/// The length that stands before the output.
const LENGTH_BYTES: usize = 4;

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
    pub(crate) fn new() -> Result<Self> {
        // All zeros asks zlib for its own malloc, as QEMU's bench does.
        let mut stream: Box<MaybeUninit<zlib::z_stream>> = Box::new(MaybeUninit::zeroed());
        let size = c_int::try_from(size_of::<zlib::z_stream>())?;
        // SAFETY: the pointer is to writable memory of the size that is passed, zeroed as zlib asks;
        // the version is the text of the same library. zlib writes it without reading a Rust value.
        let code = unsafe {
            zlib::deflateInit_(stream.as_mut_ptr(), zlib::Z_BEST_SPEED, zlib::zlibVersion(), size)
        };
        ensure!(code == zlib::Z_OK, "deflateInit fails: code {code}");
        Ok(Self { stream, output: vec![0; OUTPUT_BYTES].into_boxed_slice() })
    }

    /// Resets the stream and compresses the page in one call behind four bytes of length; gives the
    /// bytes written, those four included.
    pub(crate) fn compress(&mut self, page: &Page) -> Result<u64> {
        let stream = self.stream.as_mut_ptr();
        let space = self.output.get_mut(LENGTH_BYTES..).unwrap_or_default();
        // SAFETY: `new` returned only after deflateInit_ succeeded on this very address, so the
        // struct is initialised and stays in its box. Input and output live for the call and have the
        // stated lengths; zlib only reads the input. Nobody writes the page meanwhile: the submitter
        // does so before it submits the page, and not again before the pass has ended.
        let code = unsafe {
            let reset = zlib::deflateReset(stream);
            if reset != zlib::Z_OK {
                bail!("deflateReset fails: code {reset}");
            }
            (*stream).next_in = page.address().cast_mut();
            (*stream).avail_in = u32::try_from(PAGE_BYTES)?;
            (*stream).next_out = space.as_mut_ptr();
            (*stream).avail_out = u32::try_from(space.len())?;
            zlib::deflate(stream, zlib::Z_FINISH)
        };
        ensure!(code == zlib::Z_STREAM_END, "deflate fails: code {code}");
        // SAFETY: initialised, as above, and no call is under way.
        let left = unsafe { (*stream).avail_out };
        let written = space.len() - usize::try_from(left)?.min(space.len());
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
        // whether data was discarded, which no longer matters.
        unsafe { zlib::deflateEnd(self.stream.as_mut_ptr()) };
    }
}

pub(crate) fn zlib_version() -> String {
    // SAFETY: zlib's function gives a constant text that ends in zero.
    unsafe { CStr::from_ptr(zlib::zlibVersion()) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::{Deflater, PAGE_BYTES, PageStore};

    #[test]
    fn pages_are_aligned_and_a_touched_one_becomes_46_bytes() {
        let pages = PageStore::new(3).unwrap();
        assert_eq!(pages.count(), 3);
        assert!(pages.all().iter().all(|page| page.address().addr().is_multiple_of(PAGE_BYTES)));
        pages.touch(0);
        let mut deflater = Deflater::new().unwrap();
        for _ in 0..3 {
            assert_eq!(deflater.compress(pages.page(0).unwrap()).unwrap(), 46);
        }
        assert_eq!(deflater.output.first_chunk::<4>(), Some(&[0, 0, 0, 42]));
    }
}
