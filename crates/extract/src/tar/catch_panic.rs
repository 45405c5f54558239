//! Keeps a panic in reading an image from ending more than the reading: a source is code of the
//! library's user.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::ErrorKind;

/// Calls `read` and makes an error of its panic. What `read` was writing to must not be looked at
/// after an error, whichever it is.
pub(super) fn catch_panic<T>(read: impl FnOnce() -> Result<T, ErrorKind>) -> Result<T, ErrorKind> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|payload| {
        // The payload is of any type, and dropping it may panic in turn.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            let _leaked = std::mem::ManuallyDrop::new(again);
        }
        Err(ErrorKind::Panicked)
    })
}
