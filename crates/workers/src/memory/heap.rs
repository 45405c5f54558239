//! The C library's heap. Threads free what others use up to the end of, so that most of what a burst took stays with the
//! process; the system gets it back only when asked. It owns nothing. Called by whoever gives memory back when
//! nobody works.
#![allow(unsafe_code, reason = "malloc_trim and mallopt have no safe binding")]

/// Gives the pages of the process's heap on which nothing lies back to the system. It takes milliseconds, in which
/// other threads may wait to allocate: not for a read path. Elsewhere than with the GNU C library it does nothing.
pub fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn malloc_trim(kept: usize) -> std::ffi::c_int;
        }
        // SAFETY: the declaration is that of malloc.h, any number is allowed, and the function is safe to call from
        // any thread. It changes no byte that is allocated.
        let _has_given = unsafe { malloc_trim(0) };
    }
}

/// Blocks of this length or more get a mapping of their own.
const MMAP_THRESHOLD_BYTES: std::ffi::c_int = 1 << 20;

/// Has the heap map large blocks on their own for good. The GNU C library stops doing so at the first large block that
/// is freed, and puts the next ones among the small ones of the thread, where they leave gaps that no other thread can
/// use. Called once, before threads that pass large buffers to each other.
pub fn set_mmap_threshold() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn mallopt(parameter: std::ffi::c_int, value: std::ffi::c_int) -> std::ffi::c_int;
        }
        /// The number of malloc.h.
        const M_MMAP_THRESHOLD: std::ffi::c_int = -3;
        // SAFETY: the declaration and the number are those of malloc.h, where the value is a length in bytes; it takes
        // its own lock, and changes only where later blocks come from.
        let _is_set = unsafe { mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES) };
    }
}
