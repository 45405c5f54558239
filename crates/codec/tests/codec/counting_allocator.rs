//! The global allocator of these tests: counts for each thread, and refuses when told to.
#![allow(unsafe_code, reason = "a global allocator is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    static LIVE_BYTES: Cell<usize> = const { Cell::new(0) };
    static REFUSED_FROM_BYTES: Cell<usize> = const { Cell::new(usize::MAX) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: every call is handed to `System` as it came, or refused with null; the counters are
// constants at thread start and have no destructor, so they never allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= REFUSED_FROM_BYTES.get() {
            return std::ptr::null_mut();
        }
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        LIVE_BYTES.set(LIVE_BYTES.get().wrapping_add(layout.size()));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        LIVE_BYTES.set(LIVE_BYTES.get().wrapping_sub(layout.size()));
        // SAFETY: the block came from `alloc` above, that is from `System`, with this layout.
        unsafe { System.dealloc(block, layout) }
    }
}

/// How often this thread has allocated.
pub(crate) fn allocations() -> usize {
    ALLOCATIONS.get()
}

/// What this thread has allocated and not freed.
pub(crate) fn live_bytes() -> usize {
    LIVE_BYTES.get()
}

/// Runs `work` while this thread gets no block of `bytes` or more.
pub(crate) fn without_blocks_from<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    REFUSED_FROM_BYTES.set(bytes);
    let result = work();
    REFUSED_FROM_BYTES.set(usize::MAX);
    result
}
