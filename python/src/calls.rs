//! Calls of the library, detached from the interpreter. What a source object or a signal raises reaches the
//! caller even where the library goes on without the bytes, as after readahead that failed.

use std::cell::RefCell;
use std::io;

use pyo3::prelude::*;

use crate::errors::BindingResult;

enum ExitSlot {
    NoCall,
    Empty,
    Raised(PyErr),
}

thread_local! {
    /// What a source object raised on this thread in the call that runs, if it is no `Exception`. A
    /// signal is seen once, so that no later read would raise its `KeyboardInterrupt` again.
    static EXIT: RefCell<ExitSlot> = const { RefCell::new(ExitSlot::NoCall) };
}

/// Runs `work` detached. An exit that a source object raised on this thread meanwhile is raised,
/// whatever `work` returns.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> BindingResult<T> + Send,
) -> PyResult<T> {
    // A source object may read another image.
    let outer = EXIT.replace(ExitSlot::Empty);
    let result = py.detach(work);
    match EXIT.replace(outer) {
        ExitSlot::Raised(exit) => Err(exit),
        _ => result.map_err(|failure| failure.raise(py)),
    }
}

/// Keeps what a source object raised for the call that runs on this thread, if one does.
pub(crate) fn keep_exit(exit: PyErr) {
    EXIT.with_borrow_mut(|slot| {
        if matches!(slot, ExitSlot::Empty) {
            *slot = ExitSlot::Raised(exit);
        }
    });
}

/// Lets Python handle its signals while the call that runs on this thread waits for a server. What a handler
/// raises, such as `KeyboardInterrupt`, is kept for the call.
///
/// # Errors
/// Something was raised.
pub(crate) fn handle_signals() -> io::Result<()> {
    let interrupted = || io::Error::other("interrupted");
    match EXIT.with_borrow(|slot| match slot {
        ExitSlot::NoCall => None,
        ExitSlot::Empty => Some(false),
        ExitSlot::Raised(_) => Some(true),
    }) {
        // Threads of the library never attach for this, and see no signals.
        None => Ok(()),
        Some(true) => Err(interrupted()),
        Some(false) => match Python::try_attach(|py| py.check_signals()) {
            Some(Err(raised)) => {
                keep_exit(raised);
                Err(interrupted())
            }
            _ => Ok(()),
        },
    }
}
