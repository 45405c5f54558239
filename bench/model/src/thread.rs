//! The threads of ferrofs-workers (crates/workers/src/thread.rs) as threads of the simulated machine: a
//! CPU each, in the order of their start, no name, and of all priorities only whether a thread that
//! wakes up takes the CPU from another. Called by the queue.

use crate::error::{Error, ErrorKind};
use crate::machine::{self, Wakes};
use crate::priority::PriorityRequest;
use crate::sync::thread::JoinHandle;

/// What a thread is to be.
#[derive(Debug, Clone)]
#[allow(dead_code, reason = "a simulated thread has no name and a CPU of its own")]
pub(crate) struct ThreadOptions {
    pub(crate) name: String,
    pub(crate) cpu: Option<usize>,
    pub(crate) priority: PriorityRequest,
}

/// What a thread became: nothing that anybody asks for here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ThreadPlacement;

/// A running thread. Dropping this waits for its end, except on the thread itself.
#[derive(Debug)]
pub(crate) struct OwnedThread(Option<JoinHandle<()>>);

/// Starts a thread and runs `body` on it.
///
/// # Errors
/// [`ErrorKind::NoThread`] when there is no stack to be had.
#[allow(clippy::needless_pass_by_value, reason = "as in ferrofs-workers")]
pub(crate) fn start(
    start: ThreadOptions,
    body: impl FnOnce(ThreadPlacement) + Send + 'static,
) -> Result<OwnedThread, Error> {
    let wakes = match start.priority {
        PriorityRequest::Batch => Wakes::Waiting,
        PriorityRequest::Normal | PriorityRequest::Raised => Wakes::Preempting,
    };
    JoinHandle::start(move || body(ThreadPlacement), wakes)
        .map(|handle| OwnedThread(Some(handle)))
        .map_err(|_| Error::new(ErrorKind::NoThread, "starting a simulated thread"))
}

impl Drop for OwnedThread {
    fn drop(&mut self) {
        if let Some(handle) = self.0.take()
            && handle.number() != machine::current_thread()
        {
            // A simulated thread that panics ends the run, so there is no error.
            drop(handle.join());
        }
    }
}
