//! Environment variables that a mount must not keep: credentials which it has passed on. They would
//! stay in the memory that decodes hostile images, and in `/proc/PID/environ`.
#![allow(unsafe_code, reason = "std can remove a variable, but leaves its value in memory")]

use std::ffi::CString;

/// Overwrites the values of these variables where the system has put them; they are empty afterwards.
/// Must be called while the process has one thread, which a mount has until it enters its sandbox.
pub fn clear_environment(names: &[&str]) {
    for name in names.iter().filter(|name| std::env::var_os(name).is_some()) {
        let Ok(name) = CString::new(*name) else { continue };
        // SAFETY: `name` is a string with a NUL. The result is null or points to the value in the environment of this
        // process, which has a NUL and which nobody else reads or changes meanwhile, as there is one thread. Writing as
        // many zeros as it has bytes stays inside of it. It is writable memory: the initial stack, or that of `setenv`.
        unsafe {
            let value = libc::getenv(name.as_ptr());
            if !value.is_null() {
                value.write_bytes(0, libc::strlen(value));
            }
        }
    }
}
