//! Images that the caller reads: the table of functions as a source of the image library.
#![allow(unsafe_code, reason = "calls functions of C")]

use std::ffi::{c_int, c_void};
use std::fmt;
use std::io;

use ferrofs_image::ImageSource;

use crate::error::{CallError, CallResult};
use crate::structs::{IoTable, ProblemFunction, ProgressFunction};

/// A table of the caller. The last owner closes it.
pub(crate) struct CallerSource {
    table: IoTable,
    length: u64,
}

// SAFETY: the header says that the functions are called from many threads at once, with `ctx`; this
// file passes the pointer on and never reads what it points to.
unsafe impl Send for CallerSource {}
// SAFETY: as for `Send`.
unsafe impl Sync for CallerSource {}

impl fmt::Debug for CallerSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallerSource").field("length", &self.length).finish_non_exhaustive()
    }
}

impl CallerSource {
    /// Takes a table, of which `rest` says whether all of it is known; it is closed also if this fails.
    pub(crate) fn new(table: IoTable, rest: CallResult<()>) -> CallResult<Self> {
        let mut source = Self { table, length: 0 };
        rest?;
        let (Some(length), Some(_)) = (table.length, table.pread) else {
            return Err(CallError::invalid("struct ferrofs_io needs pread and length"));
        };
        // SAFETY: the header asks for a function that can be called with `ctx`.
        source.length = unsafe { length(table.ctx) };
        Ok(source)
    }
}

impl Drop for CallerSource {
    fn drop(&mut self) {
        if let Some(close) = self.table.close {
            // SAFETY: the header asks for a function that can be called with `ctx`, and this is the
            // only call.
            unsafe { close(self.table.ctx) };
        }
    }
}

impl ImageSource for CallerSource {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(pread) = self.table.pread else { return Ok(0) };
        let (target, count) = (buffer.as_mut_ptr().cast::<c_void>(), buffer.len());
        // SAFETY: the header asks for a function that can be called with `ctx`, and `count` bytes
        // can be written.
        let result = unsafe { pread(self.table.ctx, target, count, offset) };
        match usize::try_from(result) {
            Ok(done) if done <= count => Ok(done),
            Ok(done) => {
                Err(io::Error::other(format!("pread returned {done} for a buffer of {count}")))
            }
            Err(_) => {
                let errno = i32::try_from(result.unsigned_abs()).unwrap_or(i32::MAX);
                Err(io::Error::from_raw_os_error(errno))
            }
        }
    }

    fn length(&self) -> u64 {
        self.length
    }
}

/// The callbacks of a long operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Callbacks {
    pub(crate) problem: Option<ProblemFunction>,
    pub(crate) progress: Option<ProgressFunction>,
    pub(crate) ctx: *mut c_void,
}

/// Whether an operation goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Continue,
    Stop,
}

impl Answer {
    fn of(number: c_int) -> Self {
        if number == 0 { Self::Continue } else { Self::Stop }
    }
}

impl Callbacks {
    pub(crate) fn problem(&self, problem: &CallError) -> Answer {
        let Some(function) = self.problem else { return Answer::Continue };
        // SAFETY: the header asks for a function that can be called with `ctx`; the error lives
        // until it returns.
        Answer::of(unsafe { function(self.ctx, problem) })
    }

    pub(crate) fn progress(&self, entries: u64, bytes: u64) -> Answer {
        let Some(function) = self.progress else { return Answer::Continue };
        // SAFETY: the header asks for a function that can be called with `ctx`.
        Answer::of(unsafe { function(self.ctx, entries, bytes) })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    unsafe extern "C" fn fails(_: *mut c_void, _: *mut c_void, count: usize, offset: u64) -> i64 {
        match offset {
            0 => -5,
            1 => i64::MIN,
            _ => i64::try_from(count).unwrap() + 1,
        }
    }

    unsafe extern "C" fn ten(_: *mut c_void) -> u64 {
        10
    }

    unsafe extern "C" fn count_close(ctx: *mut c_void) {
        // SAFETY: the test passes an atomic number.
        unsafe { &*ctx.cast::<AtomicUsize>() }.fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn a_source_that_misbehaves_is_an_error_and_closed_once() {
        let mut closed = AtomicUsize::new(0);
        let table = IoTable {
            ctx: (&raw mut closed).cast(),
            pread: Some(fails),
            length: Some(ten),
            close: Some(count_close),
            ..IoTable::new()
        };
        let source = CallerSource::new(table, Ok(())).unwrap();
        let mut buffer = [0; 4];
        assert_eq!(source.read_at(0, &mut buffer).unwrap_err().raw_os_error(), Some(5));
        source.read_at(1, &mut buffer).unwrap_err();
        assert!(source.read_at(2, &mut buffer).unwrap_err().to_string().contains("returned 5"));
        drop(source);
        assert_eq!(closed.load(Ordering::Relaxed), 1);
        CallerSource::new(IoTable { pread: None, ..table }, Ok(())).unwrap_err();
        assert_eq!(closed.load(Ordering::Relaxed), 2);
        CallerSource::new(table, Err(CallError::invalid("unknown"))).unwrap_err();
        assert_eq!(closed.load(Ordering::Relaxed), 3);
    }
}
