//! Long operations: they run on a thread of their own while the caller's thread reports progress to
//! Python, watches for signals, and makes the calls of Python that the operation asks for.

use std::io;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use ferrofs_image::CancelToken;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use crate::errors::{BindingResult, Failure};
use crate::source::returned_bytes;

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

/// How a supervised operation reports and is cancelled.
#[derive(Debug)]
pub(crate) struct Supervision<'a> {
    pub(crate) phases: &'a [&'static str],
    pub(crate) counters: &'a WorkCounters,
    pub(crate) cancel: &'a CancelToken,
    /// The Python object that [`CallerLink::read`] reads.
    pub(crate) stream: Option<&'a Py<PyAny>>,
}

/// How an operation reaches the caller's thread, which has to wait for it.
#[derive(Clone, Debug)]
pub(crate) struct CallerLink(SyncSender<Request>);

enum Request {
    /// At most so many bytes of the stream.
    Read(usize, SyncSender<io::Result<Vec<u8>>>),
    /// The last report before the work takes effect; the answer is whether it may.
    Finish(SyncSender<bool>),
    /// The work has ended, also by a panic.
    Ended,
}

impl CallerLink {
    /// Reads at most `count` bytes of the stream, on the caller's thread: there a signal ends a read
    /// that waits, as in any program in Python.
    pub(crate) fn read(&self, count: usize) -> io::Result<Vec<u8>> {
        let read = self.call(|reply| Request::Read(count, reply));
        read.unwrap_or_else(|| Err(io::Error::other("nobody reads the stream")))
    }

    /// Makes the last report. False if the work must not take effect. No report follows, so that
    /// nothing but a signal is raised for work that has succeeded.
    pub(crate) fn may_finish(&self) -> bool {
        self.call(Request::Finish).unwrap_or_default()
    }

    fn call<T>(&self, request: impl FnOnce(SyncSender<T>) -> Request) -> Option<T> {
        let (reply, replied) = sync_channel(1);
        self.0.send(request(reply)).ok()?;
        replied.recv().ok()
    }
}

/// Runs `work` on another thread. `progress` is called now and then with the phase, entries and
/// bytes: if it raises, or returns False, the work is cancelled. The exception is raised once the
/// work has ended. The answer to a report after the end is not looked at: nothing is left to cancel.
pub(crate) fn supervise<T: Send>(
    py: Python<'_>,
    given: &Supervision<'_>,
    progress: Option<&Py<PyAny>>,
    work: impl FnOnce(&CallerLink) -> BindingResult<T> + Send,
) -> PyResult<T> {
    let (sender, requests) = sync_channel(1);
    let link = CallerLink(sender);
    let mut caller = Caller { given, progress, raised: None, stream_raised: None, is_last: false };
    caller.note(caller.report(py));
    let outcome = std::thread::scope(|scope| {
        let worker = std::thread::Builder::new().spawn_scoped(scope, || {
            let link = link;
            let _ends = SaysEnded(link.clone());
            work(&link)
        })?;
        caller.serve(py, requests);
        // It has ended but for the last steps of its thread.
        Ok::<_, io::Error>(py.detach(|| worker.join()))
    });
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => return Err(Failure::of_thread(&error).raise(py)),
    };
    let Caller { raised, stream_raised, is_last, .. } = caller;
    match (raised, outcome) {
        (Some(error), _) => Err(error),
        (None, Ok(Ok(value))) if is_last => Ok(value),
        (None, Ok(Ok(value))) => call_progress(py, given, progress).map(|_| value),
        (None, Ok(Err(failure))) => Err(match stream_raised {
            // A decompressor may have taken it for damage of the stream.
            Some(raised) if !failure.has_cause() => {
                Failure::of_io(&io::Error::other(raised)).raise(py)
            }
            _ => failure.raise(py),
        }),
        (None, Err(_)) => {
            Err(Failure::new("ErofsError", "EIO", "the operation panicked").raise(py))
        }
    }
}

/// What the caller's thread does meanwhile.
struct Caller<'a> {
    given: &'a Supervision<'a>,
    progress: Option<&'a Py<PyAny>>,
    /// What cancelled the work.
    raised: Option<PyErr>,
    /// The exception of the stream, which the work is told of.
    stream_raised: Option<PyErr>,
    /// Whether the last report was made.
    is_last: bool,
}

impl Caller<'_> {
    fn serve(&mut self, py: Python<'_>, mut requests: Receiver<Request>) {
        let mut due = Instant::now() + REPORT_INTERVAL;
        loop {
            let wait = due.saturating_duration_since(Instant::now());
            let receiver = &mut requests;
            match py.detach(move || receiver.recv_timeout(wait)) {
                Ok(Request::Read(count, answer)) => {
                    // The work is over if it does not wait for an answer.
                    answer.send(self.read(py, count)).ok();
                }
                Ok(Request::Finish(answer)) => {
                    self.look(py);
                    self.is_last = self.raised.is_none();
                    answer.send(self.is_last).ok();
                }
                Ok(Request::Ended) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if Instant::now() >= due {
                self.look(py);
                due = Instant::now() + REPORT_INTERVAL;
            }
        }
    }

    /// Sees signals, and reports unless the last report was made.
    fn look(&mut self, py: Python<'_>) {
        if self.raised.is_none() {
            let seen = py.check_signals();
            self.note(match self.is_last {
                true => seen,
                false => seen.and_then(|()| self.report(py)),
            });
        }
    }

    fn read(&mut self, py: Python<'_>, count: usize) -> io::Result<Vec<u8>> {
        let Some(stream) = self.given.stream.filter(|_| self.raised.is_none()) else {
            return Err(io::Error::other("cancelled"));
        };
        let read = || -> PyResult<Vec<u8>> {
            let read = stream.call_method1(py, "read", (count,))?;
            Ok(returned_bytes(read.bind(py), count)?.to_vec())
        };
        read().map_err(|error| {
            match error.is_instance_of::<PyException>(py) {
                true => self.stream_raised = Some(error.clone_ref(py)),
                false => self.note(Err(error.clone_ref(py))),
            }
            io::Error::other(error)
        })
    }

    fn report(&self, py: Python<'_>) -> PyResult<()> {
        match call_progress(py, self.given, self.progress)? {
            true => Ok(()),
            false => Err(Failure::new("CancelledError", "ECANCELED", "cancelled").raise(py)),
        }
    }

    /// Cancels the work if something was raised.
    fn note(&mut self, result: PyResult<()>) {
        if let Err(error) = result {
            self.raised.get_or_insert(error);
            self.given.cancel.cancel();
        }
    }
}

/// Calls `progress`; false if it returned False.
fn call_progress(
    py: Python<'_>,
    given: &Supervision<'_>,
    progress: Option<&Py<PyAny>>,
) -> PyResult<bool> {
    let Some(progress) = progress else { return Ok(true) };
    let counters = given.counters;
    let phase = usize::from(counters.phase.load(Ordering::Relaxed));
    let phase = given.phases.get(phase).copied().unwrap_or_default();
    let entries = counters.entries.load(Ordering::Relaxed);
    let answer = progress.call1(py, (phase, entries, counters.bytes.load(Ordering::Relaxed)))?;
    Ok(answer.extract::<bool>(py).unwrap_or(true))
}

/// Says that the work has ended, also by a panic.
struct SaysEnded(CallerLink);

impl Drop for SaysEnded {
    fn drop(&mut self) {
        // The caller's thread waits for this.
        self.0.0.send(Request::Ended).ok();
    }
}
