//! Images that the caller reads: the table of functions as a source of the image library.
#![allow(unsafe_code, reason = "calls functions of C")]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use ferrofs_image::ImageSource;

use crate::error::{CallError, CallResult};
use crate::structs::{IoTable, ProblemFunction, ProgressFunction};

/// The tables of an image. All handles of the image share it, and the last one that is freed closes
/// the tables, since the image itself may live longer: a worker that decodes ahead keeps a part of it.
#[derive(Debug, Default)]
pub(crate) struct CallerTables(Vec<Arc<CallerSource>>);

impl CallerTables {
    /// Takes a table, of which `rest` says whether all of it is known; it is closed also if this fails.
    pub(crate) fn take(
        &mut self,
        table: IoTable,
        rest: CallResult<()>,
    ) -> CallResult<Arc<dyn ImageSource>> {
        let length = rest.and_then(|()| match (table.length, table.pread) {
            // SAFETY: the header asks for a function that can be called with `ctx`.
            (Some(length), Some(_)) => Ok(unsafe { length(table.ctx) }),
            _ => Err(CallError::invalid("struct ferrofs_io needs pread and length")),
        });
        let state = Mutex::new(TableState::default());
        let bytes = *length.as_ref().unwrap_or(&0);
        let source = Arc::new(CallerSource { table, length: bytes, state, ended: Condvar::new() });
        self.0.push(Arc::clone(&source));
        length.map(|_| source as _)
    }
}

impl Drop for CallerTables {
    fn drop(&mut self) {
        for source in &self.0 {
            source.close();
        }
    }
}

/// A table of the caller.
pub(crate) struct CallerSource {
    table: IoTable,
    length: u64,
    state: Mutex<TableState>,
    /// No pread runs any more.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct TableState {
    /// Calls of pread that run now.
    preads: usize,
    /// No further one begins.
    is_closed: bool,
    /// The last one that ends calls `close`.
    closes_at_end: bool,
}

thread_local! {
    /// How many preads this thread is in: a callback may read another image.
    static PREAD_DEPTH: Cell<usize> = const { Cell::new(0) };
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
    fn state(&self) -> MutexGuard<'_, TableState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no pread runs, and calls `close`. Further reads fail. Called once.
    ///
    /// A thread that is in a pread itself does not wait, as that pread may be waited for: then the
    /// last one that ends calls `close`.
    fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        if PREAD_DEPTH.get() > 0 && state.preads > 0 {
            state.closes_at_end = true;
            return;
        }
        let ended = self.ended.wait_while(state, |state| state.preads > 0);
        drop(ended.unwrap_or_else(PoisonError::into_inner));
        self.call_close();
    }

    fn call_close(&self) {
        if let Some(close) = self.table.close {
            // SAFETY: the header asks for a function that can be called with `ctx`, and this is the
            // only call.
            unsafe { close(self.table.ctx) };
        }
    }
}

/// A call of pread. While it is there, the table is not closed.
struct RunningPread<'a>(&'a CallerSource);

impl<'a> RunningPread<'a> {
    fn begin(source: &'a CallerSource) -> io::Result<Self> {
        let mut state = source.state();
        if state.is_closed {
            return Err(io::Error::other("the image is closed: all its handles were freed"));
        }
        state.preads = state.preads.saturating_add(1);
        PREAD_DEPTH.set(PREAD_DEPTH.get().saturating_add(1));
        Ok(Self(source))
    }
}

impl Drop for RunningPread<'_> {
    fn drop(&mut self) {
        PREAD_DEPTH.set(PREAD_DEPTH.get().saturating_sub(1));
        let mut state = self.0.state();
        state.preads = state.preads.saturating_sub(1);
        if state.preads > 0 {
            return;
        }
        self.0.ended.notify_all();
        let closes = std::mem::take(&mut state.closes_at_end);
        drop(state);
        if closes {
            self.0.call_close();
        }
    }
}

impl ImageSource for CallerSource {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(pread) = self.table.pread else { return Ok(0) };
        let _running = RunningPread::begin(self)?;
        let (target, count) = (buffer.as_mut_ptr().cast::<c_void>(), buffer.len());
        // SAFETY: the header asks for a function that can be called with `ctx`, and `count` bytes
        // can be written. The table is not closed meanwhile.
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
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::Duration;

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
        let mut tables = CallerTables::default();
        let source = tables.take(table, Ok(())).unwrap();
        let mut buffer = [0; 4];
        assert_eq!(source.read_at(0, &mut buffer).unwrap_err().raw_os_error(), Some(5));
        source.read_at(1, &mut buffer).unwrap_err();
        assert!(source.read_at(2, &mut buffer).unwrap_err().to_string().contains("returned 5"));
        drop(tables);
        assert_eq!(closed.load(Ordering::Relaxed), 1);
        let error = source.read_at(2, &mut buffer).unwrap_err();
        assert!(error.to_string().contains("closed"), "{error}");
        CallerTables::default().take(IoTable { pread: None, ..table }, Ok(())).unwrap_err();
        assert_eq!(closed.load(Ordering::Relaxed), 2);
        CallerTables::default().take(table, Err(CallError::invalid("unknown"))).unwrap_err();
        assert_eq!(closed.load(Ordering::Relaxed), 3);
    }

    /// What the callbacks of the tests below share.
    #[derive(Default)]
    struct Reader {
        closed: AtomicUsize,
        is_running: AtomicBool,
        may_end: AtomicBool,
        /// Dropped within pread.
        last: Mutex<Option<CallerTables>>,
    }

    impl Reader {
        fn tables(&self) -> (CallerTables, Arc<dyn ImageSource>) {
            let table = IoTable {
                ctx: std::ptr::from_ref(self).cast_mut().cast(),
                pread: Some(waits),
                length: Some(ten),
                close: Some(count_closed),
                ..IoTable::new()
            };
            let mut tables = CallerTables::default();
            let source = tables.take(table, Ok(())).unwrap();
            (tables, source)
        }
    }

    unsafe extern "C" fn waits(ctx: *mut c_void, _: *mut c_void, _: usize, _: u64) -> i64 {
        // SAFETY: the test passes a reader.
        let reader = unsafe { &*ctx.cast::<Reader>() };
        let last = reader.last.lock().unwrap().take();
        drop(last);
        reader.is_running.store(true, Ordering::SeqCst);
        while !reader.may_end.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        i64::try_from(reader.closed.load(Ordering::SeqCst)).unwrap()
    }

    unsafe extern "C" fn count_closed(ctx: *mut c_void) {
        // SAFETY: the test passes a reader.
        unsafe { &*ctx.cast::<Reader>() }.closed.fetch_add(1, Ordering::SeqCst);
    }

    #[test]
    fn a_table_is_closed_when_the_reads_that_run_have_ended() {
        let reader = Reader::default();
        let (tables, source) = reader.tables();
        let closed = || reader.closed.load(Ordering::SeqCst);
        std::thread::scope(|scope| {
            let read = scope.spawn(|| source.read_at(0, &mut [0; 4]));
            while !reader.is_running.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let closing = scope.spawn(|| {
                drop(tables);
                closed()
            });
            std::thread::sleep(Duration::from_millis(50));
            assert!(!closing.is_finished() && closed() == 0);
            reader.may_end.store(true, Ordering::SeqCst);
            assert_eq!(read.join().unwrap().unwrap(), 0);
            assert_eq!(closing.join().unwrap(), 1);
        });
        source.read_at(0, &mut [0; 4]).unwrap_err();
    }

    #[test]
    fn a_table_that_is_freed_within_a_read_is_closed_behind_it() {
        let reader = Reader::default();
        let (tables, source) = reader.tables();
        *reader.last.lock().unwrap() = Some(tables);
        reader.may_end.store(true, Ordering::SeqCst);
        assert_eq!(source.read_at(0, &mut [0; 4]).unwrap(), 0);
        assert_eq!(reader.closed.load(Ordering::SeqCst), 1);
        source.read_at(0, &mut [0; 4]).unwrap_err();
    }
}
