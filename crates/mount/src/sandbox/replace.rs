//! Putting another file under the number of an open descriptor. Called by [`super::descriptor`].
#![allow(unsafe_code, reason = "a descriptor that nobody handed over is named by its number only")]

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{DupFlags, dup3};

/// Makes `number` another descriptor of `replacement`'s file. Whatever was open there is closed.
///
/// # Errors
///
/// As `dup3`.
pub(super) fn replace(number: RawFd, replacement: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the only use is dup3 below, which leaves the number open: it belongs after the call to
    // whom it belonged before, and ManuallyDrop keeps this stand-in from closing it. That owner sees
    // another file, which is no breach of memory: no descriptor of this project is mapped, as an image
    // is read (docs/trust.md). A number is never -1: it was parsed as unsigned.
    let mut stand_in = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
    dup3(replacement, &mut stand_in, DupFlags::CLOEXEC)?;
    Ok(())
}
