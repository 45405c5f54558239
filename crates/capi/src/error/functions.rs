//! `ferrofs_error_*`: what C reads of an error, and how it frees one.
#![allow(unsafe_code, reason = "functions that C calls read and free what they returned to C")]

use std::ffi::{c_char, c_int};

use super::{CallError, errno};
use crate::guard;
use crate::pointer;

/// `ferrofs_error_code`.
///
/// # Safety
/// `error` is NULL or an error of this library that was not freed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferrofs_error_code(error: *const CallError) -> c_int {
    // SAFETY: this function's contract.
    let error = unsafe { pointer::optional_handle(error) };
    error.map_or(0, |error| error.code as c_int)
}

/// `ferrofs_error_errno`.
///
/// # Safety
/// As [`ferrofs_error_code`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferrofs_error_errno(error: *const CallError) -> c_int {
    // SAFETY: this function's contract.
    let error = unsafe { pointer::optional_handle(error) };
    error.map_or(errno::EINVAL, |error| error.errno)
}

/// `ferrofs_error_message`.
///
/// # Safety
/// As [`ferrofs_error_code`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferrofs_error_message(error: *const CallError) -> *const c_char {
    // SAFETY: this function's contract.
    let error = unsafe { pointer::optional_handle(error) };
    error.map_or(c"no error".as_ptr(), |error| error.message.as_ptr())
}

/// `ferrofs_error_path`.
///
/// # Safety
/// As [`ferrofs_error_code`]; `length` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferrofs_error_path(
    error: *const CallError,
    length: *mut usize,
) -> *const c_char {
    // SAFETY: this function's contract.
    let path =
        unsafe { pointer::optional_handle(error) }.map_or(c"", |error| error.path.as_c_str());
    // SAFETY: this function's contract.
    unsafe { pointer::write(length, path.count_bytes()) };
    path.as_ptr()
}

/// `ferrofs_error_nid`.
///
/// # Safety
/// As [`ferrofs_error_code`]; `nid` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferrofs_error_nid(error: *const CallError, nid: *mut u64) -> c_int {
    // SAFETY: this function's contract.
    let found = unsafe { pointer::optional_handle(error) }.and_then(|error| error.nid);
    // SAFETY: this function's contract.
    unsafe { write_known(found, nid) }
}

/// `ferrofs_error_offset`.
///
/// # Safety
/// As [`ferrofs_error_code`]; `offset` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferrofs_error_offset(
    error: *const CallError,
    offset: *mut u64,
) -> c_int {
    // SAFETY: this function's contract.
    let found = unsafe { pointer::optional_handle(error) }.and_then(|error| error.offset);
    // SAFETY: this function's contract.
    unsafe { write_known(found, offset) }
}

/// Writes a number that is known.
///
/// # Safety
/// `target` is NULL or valid for a write.
unsafe fn write_known(number: Option<u64>, target: *mut u64) -> c_int {
    let Some(number) = number else { return 0 };
    // SAFETY: this function's contract.
    unsafe { pointer::write(target, number) };
    1
}

/// `ferrofs_error_free`.
///
/// # Safety
/// `error` is NULL or an error of this library that was not freed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferrofs_error_free(error: *mut CallError) {
    // SAFETY: this function's contract.
    guard::drop_quietly(|| unsafe { pointer::free(error) });
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;
    use crate::error::Code;

    #[test]
    fn a_panic_becomes_an_error() {
        let mut error = ptr::null_mut();
        // SAFETY: `error` is a variable.
        let code = unsafe { guard::call(&raw mut error, || panic!("number {}", 7)) };
        assert_eq!(code, Code::Internal as c_int);
        // SAFETY: `call` wrote an error, which is not freed before the last line.
        unsafe {
            assert_eq!(ferrofs_error_code(error), code);
            let message = std::ffi::CStr::from_ptr(ferrofs_error_message(error));
            assert_eq!(message, c"a bug: number 7");
            ferrofs_error_free(error);
        }
    }
}
