//! Threads that have a name, an owner, perhaps a CPU, and a priority which is known. It owns their
//! start and their end, never what they do. Called by everything here that needs a thread.
//!
//! Under loom a thread is loom's, without a CPU and without a priority.

use crate::error::Error;
#[cfg(not(loom))]
use crate::error::ErrorKind;
use crate::priority::{PriorityLevel, PriorityRequest};
use crate::sync::thread::{self, JoinHandle, ThreadId};

/// The kernel keeps 15 bytes of a thread's name.
#[cfg(not(loom))]
const NAME_BYTES_MAX: usize = 15;

/// What a thread is to be.
#[derive(Debug, Clone)]
#[cfg_attr(loom, allow(dead_code, reason = "a modelled thread has no name, CPU or priority"))]
pub(crate) struct ThreadOptions {
    /// Shown by the system's tools; cut after 15 bytes, at a character's edge.
    pub(crate) name: String,
    /// The one CPU that it stays on. None: wherever the process may run.
    pub(crate) cpu: Option<usize>,
    /// Whether it asks for more than normal priority.
    pub(crate) priority: PriorityRequest,
}

/// What a thread became.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ThreadPlacement {
    /// The priority_level that was reached.
    pub(crate) priority_level: PriorityLevel,
    /// Whether it is bound to the CPU that it asked for. False when it asked for none.
    pub(crate) is_pinned: bool,
}

/// A running thread. Dropping this waits for its end, except on the thread itself.
#[derive(Debug)]
pub(crate) struct OwnedThread {
    handle: Option<JoinHandle<()>>,
    id: ThreadId,
}

/// Starts a thread, places it, and runs `body` on it with the placement that was reached. Failing to
/// bind or to raise is no error: the placement says so.
///
/// # Errors
/// [`ErrorKind::NoThread`], with the system's number, when there is no thread to be had.
pub(crate) fn start(
    start: ThreadOptions,
    body: impl FnOnce(ThreadPlacement) + Send + 'static,
) -> Result<OwnedThread, Error> {
    let handle = spawn(start, body)?;
    let id = handle.thread().id();
    Ok(OwnedThread { handle: Some(handle), id })
}

impl OwnedThread {
    /// Waits for the thread's end. On the thread itself it lets go instead.
    pub(crate) fn join(self) {
        drop(self);
    }

    /// Whether the caller is this thread.
    pub(crate) fn is_current(&self) -> bool {
        thread::current().id() == self.id
    }
}

impl Drop for OwnedThread {
    fn drop(&mut self) {
        let is_current = self.is_current();
        if let Some(handle) = self.handle.take()
            && !is_current
        {
            // An error here is the body's panic, which ended at the thread's edge.
            drop(handle.join());
        }
    }
}

#[cfg(not(loom))]
fn spawn(
    start: ThreadOptions,
    body: impl FnOnce(ThreadPlacement) + Send + 'static,
) -> Result<JoinHandle<()>, Error> {
    let ThreadOptions { name, cpu, priority } = start;
    let builder = thread::Builder::new().name(fitting(name));
    builder.spawn(move || body(place(cpu, priority))).map_err(|refusal| {
        let error = Error::new(ErrorKind::NoThread, "starting a thread");
        match refusal.raw_os_error() {
            Some(number) => error.with_errno(rustix::io::Errno::from_raw_os_error(number)),
            None => error,
        }
    })
}

#[cfg(loom)]
fn spawn(
    _start: ThreadOptions,
    body: impl FnOnce(ThreadPlacement) + Send + 'static,
) -> Result<JoinHandle<()>, Error> {
    Ok(thread::spawn(move || {
        body(ThreadPlacement { priority_level: PriorityLevel::Normal, is_pinned: false })
    }))
}

/// On the new thread: the CPU first, so that a raised thread does not disturb another one.
#[cfg(not(loom))]
fn place(cpu: Option<usize>, priority: PriorityRequest) -> ThreadPlacement {
    use crate::cpus::CpuSet;

    let is_pinned = match cpu {
        Some(cpu) => CpuSet::from_iter([cpu]).bind_current_thread().is_ok(),
        None => {
            // The starter may be bound to one CPU; what it starts is not. Refused, it stays where
            // the starter may run.
            CpuSet::of_process().bind_current_thread().ok();
            false
        }
    };
    ThreadPlacement { priority_level: crate::priority::apply(priority), is_pinned }
}

/// The part of a name that the kernel keeps: what comes before a zero byte, 15 bytes at most.
#[cfg(not(loom))]
fn fitting(mut name: String) -> String {
    let end = name.find('\0').unwrap_or(name.len());
    name.truncate(name.floor_char_boundary(end.min(NAME_BYTES_MAX)));
    name
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
