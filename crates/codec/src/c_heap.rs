//! Memory for the C libraries, taken from Rust's global allocator.
//!
//! One place for it means that a counting or failing allocator of a test sees the C side too, and
//! that the decoder can say how much memory it holds. C's `free` knows no size and Rust's `dealloc`
//! wants one, so each block carries its size in a header.
#![allow(unsafe_code, reason = "malloc and free for the C libraries are made of raw pointers")]

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::c_void;
use std::ptr::{self, NonNull};

/// As `malloc` aligns on the 64-bit targets; also the length of the header, which keeps it so.
const ALIGN: usize = 16;

/// What a block takes beyond the bytes that were asked for.
pub(crate) const HEADER_BYTES: usize = ALIGN;

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.checked_add(ALIGN)?, ALIGN).ok()
}

/// Like `malloc`: `bytes` bytes of undefined content, aligned to 16, or null.
pub(crate) extern "C" fn malloc(bytes: usize) -> *mut c_void {
    let Some(layout) = layout(bytes) else {
        return ptr::null_mut();
    };
    // SAFETY: the layout's size is at least ALIGN, so it is not zero.
    let Some(base) = NonNull::new(unsafe { alloc(layout) }) else {
        return ptr::null_mut();
    };
    // SAFETY: the block is ALIGN bytes longer than `bytes` and aligned to ALIGN, so a usize fits at
    // its start and the address ALIGN bytes on is inside it or one past its end.
    unsafe {
        base.cast::<usize>().write(bytes);
        base.add(ALIGN).as_ptr().cast()
    }
}

/// Like `free`: null is allowed.
///
/// # Safety
///
/// `block` is null, or came from [`malloc`] and was not freed.
pub(crate) unsafe extern "C" fn free(block: *mut c_void) {
    if block.is_null() {
        return;
    }
    // SAFETY: the caller promises that the block is live and from `malloc`.
    let bytes = unsafe { block_bytes(block) };
    if let Some(layout) = layout(bytes) {
        // SAFETY: `malloc` allocated ALIGN bytes before `block` with the layout of the same size.
        unsafe { dealloc(block.cast::<u8>().sub(ALIGN), layout) };
    }
}

/// The bytes that `block` was allocated with.
///
/// # Safety
///
/// `block` came from [`malloc`] and was not freed.
pub(crate) unsafe fn block_bytes(block: *const c_void) -> usize {
    // SAFETY: `malloc` wrote a usize ALIGN bytes before every pointer that it returned.
    unsafe { block.cast::<u8>().sub(ALIGN).cast::<usize>().read() }
}

/// A block with an owner.
///
/// Claiming does not touch the memory, so what is never used costs no page.
#[derive(Debug)]
pub(crate) struct CBlock(NonNull<c_void>);

// SAFETY: a block is plain memory with one owner; Rust's allocator lets any thread free it.
unsafe impl Send for CBlock {}

impl CBlock {
    pub(crate) fn allocate(bytes: usize) -> Option<Self> {
        NonNull::new(malloc(bytes)).map(Self)
    }

    pub(crate) fn as_ptr(&self) -> *mut c_void {
        self.0.as_ptr()
    }

    pub(crate) fn bytes(&self) -> usize {
        // SAFETY: the block came from `malloc` and is freed only in `drop`.
        unsafe { block_bytes(self.as_ptr()) }
    }
}

impl Drop for CBlock {
    fn drop(&mut self) {
        // SAFETY: the block came from `malloc` and its only owner goes away now.
        unsafe { free(self.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::CBlock;

    #[test]
    fn a_block_is_aligned_and_knows_its_size() {
        for bytes in [0, 1, 15, 16, 17, 4096] {
            let block = CBlock::allocate(bytes).unwrap();
            assert_eq!(block.as_ptr().addr() % 16, 0);
            assert_eq!(block.bytes(), bytes);
        }
    }

    #[test]
    fn a_size_that_no_machine_has_is_refused() {
        assert!(CBlock::allocate(usize::MAX).is_none());
        assert!(CBlock::allocate(isize::MAX.unsigned_abs()).is_none());
    }
}
