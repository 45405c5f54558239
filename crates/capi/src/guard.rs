//! Where calls of C enter: a panic becomes an error of the caller, and nothing is printed about it.
#![allow(unsafe_code, reason = "writes the error through a pointer of the caller")]

use std::any::Any;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use crate::error::{CallError, CallResult, Code};
use crate::pointer;

/// Runs `body`, and returns its number. An error or a panic is written to `error`, and its code is
/// returned.
///
/// # Safety
/// `error` is NULL or valid for a write.
pub(crate) unsafe fn call(
    error: *mut *mut CallError,
    body: impl FnOnce() -> CallResult<c_int>,
) -> c_int {
    let failed = match catch(body) {
        Ok(Ok(number)) => return number,
        Ok(Err(failed)) => failed,
        Err(panic) => CallError::new(Code::Internal, format!("a bug: {}", message_of(&*panic))),
    };
    let code = failed.code() as c_int;
    if !error.is_null() {
        let boxed = Box::into_raw(Box::new(failed));
        // SAFETY: this function's contract.
        unsafe { pointer::write(error, boxed) };
    }
    code
}

/// Runs `body`, which frees something; a panic ends there.
pub(crate) fn drop_quietly(body: impl FnOnce()) {
    // What could not be freed leaks; the caller has no way to hear of it.
    catch(body).unwrap_or_default();
}

fn catch<T>(body: impl FnOnce() -> T) -> Result<T, Box<dyn Any + Send>> {
    silence_panics();
    // What a panic leaves half done is behind locks that the libraries recover, or is dropped here.
    catch_unwind(AssertUnwindSafe(body))
}

/// Removes the message that the standard library prints for a panic. The hook is that of the copy of
/// the standard library in this C library, so other Rust code of the process keeps its own.
fn silence_panics() {
    static SILENCED: Once = Once::new();
    if cfg!(not(test)) {
        SILENCED.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    }
}

fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic")
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    #[test]
    fn an_error_without_a_place_to_go_is_a_code() {
        // SAFETY: NULL is allowed.
        let code = unsafe { call(ptr::null_mut(), || Err(CallError::invalid("x"))) };
        assert_eq!(code, Code::Invalid as c_int);
        drop_quietly(|| panic!("ends here"));
    }

    /// Functions that only read or write numbers of an error cannot panic; all others are guarded.
    #[test]
    fn every_function_that_c_calls_is_guarded() {
        let sources = [
            include_str!("build.rs"),
            include_str!("dir.rs"),
            include_str!("error/functions.rs"),
            include_str!("inode.rs"),
            include_str!("open.rs"),
            include_str!("work.rs"),
        ];
        let mut count = 0;
        for source in sources {
            for function in source.split("#[unsafe(no_mangle)]").skip(1) {
                let body = function.split("\n}\n").next().unwrap_or_default();
                let is_getter = body.contains("fn ferrofs_error_") && !body.contains("_free(");
                let is_constant = body.contains("fn ferrofs_version(");
                let is_guarded =
                    body.contains("guard::call(") || body.contains("guard::drop_quietly(");
                assert!(is_guarded || is_getter || is_constant, "{body}");
                count += 1;
            }
        }
        assert_eq!(count, 30);
    }
}
