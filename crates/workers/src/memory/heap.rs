//! The C library's heap. Threads free what others use up to the end of, so that most of what a burst took stays with the
//! process; the system gets it back only when asked. It owns nothing. Called by whoever gives memory back when
//! nobody works.
#![allow(unsafe_code, reason = "malloc_trim has no safe binding")]

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
