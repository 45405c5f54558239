//! Long operations: they run on a thread of their own while the caller's thread reports progress to
//! Python, and watches for signals.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use ferrofs_image::CancelToken;
use pyo3::prelude::*;

use crate::errors::{BindingResult, Failure};

/// How often progress is reported and signals are seen.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// What an operation has done so far. The numbers order nothing else.
#[derive(Debug, Default)]
pub(crate) struct WorkCounters {
    phase: AtomicU8,
    entries: AtomicU64,
    bytes: AtomicU64,
}

impl WorkCounters {
    pub(crate) fn set(&self, entries: u64, bytes: u64) {
        self.entries.store(entries, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_entry(&self) {
        self.entries.fetch_add(1, Ordering::Relaxed);
    }

    /// Begins the phase with this number in the list of [`supervise`].
    pub(crate) fn enter(&self, phase: u8) {
        self.phase.store(phase, Ordering::Relaxed);
    }
}

/// What a supervised operation can be told and asked.
#[derive(Debug)]
pub(crate) struct Supervision<'a> {
    pub(crate) phases: &'a [&'static str],
    pub(crate) counters: &'a WorkCounters,
    pub(crate) cancel: &'a CancelToken,
}

/// Runs `work` on another thread. `progress` is called now and then with the phase, entries and
/// bytes: if it raises, or returns False, the work is cancelled. The exception is raised once the
/// work has ended.
pub(crate) fn supervise<T: Send>(
    py: Python<'_>,
    given: &Supervision<'_>,
    progress: Option<&Py<PyAny>>,
    work: impl FnOnce() -> BindingResult<T> + Send,
) -> PyResult<T> {
    let ended = EndFlag::default();
    let mut raised = report(py, given, progress).err();
    if raised.is_some() {
        given.cancel.cancel();
    }
    let outcome = std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let _ends = ended.at_drop();
            work()
        });
        while !py.detach(|| ended.wait(REPORT_INTERVAL)) {
            if raised.is_none() {
                raised = py.check_signals().and_then(|()| report(py, given, progress)).err();
            }
            if raised.is_some() {
                given.cancel.cancel();
            }
        }
        // It has ended but for the last steps of its thread.
        py.detach(|| worker.join())
    });
    match (raised, outcome) {
        (Some(error), _) => Err(error),
        (None, Ok(Ok(value))) => report(py, given, progress).map(|()| value),
        (None, Ok(Err(failure))) => Err(failure.raise(py)),
        (None, Err(_)) => {
            Err(Failure::new("ErofsError", "EIO", "the operation panicked").raise(py))
        }
    }
}

fn report(py: Python<'_>, given: &Supervision<'_>, progress: Option<&Py<PyAny>>) -> PyResult<()> {
    let Some(progress) = progress else { return Ok(()) };
    let counters = given.counters;
    let phase = usize::from(counters.phase.load(Ordering::Relaxed));
    let phase = given.phases.get(phase).copied().unwrap_or_default();
    let entries = counters.entries.load(Ordering::Relaxed);
    let answer = progress.call1(py, (phase, entries, counters.bytes.load(Ordering::Relaxed)))?;
    match answer.extract::<bool>(py) {
        Ok(false) => Err(Failure::new("CancelledError", "ECANCELED", "cancelled").raise(py)),
        _ => Ok(()),
    }
}

/// Set when the work has ended, also by a panic.
#[derive(Debug, Default)]
struct EndFlag {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl EndFlag {
    fn wait(&self, limit: Duration) -> bool {
        let is_set = self.is_set.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(is_set, limit, |is_set| !*is_set);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn at_drop(&self) -> impl Drop + '_ {
        SetsFlag(self)
    }
}

struct SetsFlag<'a>(&'a EndFlag);

impl Drop for SetsFlag<'_> {
    fn drop(&mut self) {
        *self.0.is_set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.changed.notify_all();
    }
}
