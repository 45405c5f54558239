//! Threads of the simulated machine: by the names of the standard library's, which whoever names the `sync` module uses,
//! and by those of ferrofs-workers (crates/workers/src/thread.rs), which the queue uses: a CPU each, in the order of their
//! start, no name, and of all priorities only whether a thread that wakes up takes the CPU from another.
#![allow(unsafe_code, reason = "threads of a scope borrow from whoever waits for them")]

use std::cell::RefCell;
use std::io;
use std::marker::PhantomData;
use std::mem;

use crate::error::{Error, ErrorKind};
use crate::machine::{self, ThreadNumber, Wakes};
use crate::priority::PriorityRequest;

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
pub(crate) struct OwnedThread(ThreadNumber);

/// Starts a thread and runs `body` on it.
///
/// # Errors
/// [`ErrorKind::NoThread`] when there is no stack to be had.
#[allow(clippy::needless_pass_by_value, reason = "as in ferrofs-workers")]
pub(crate) fn start(
    start: ThreadOptions,
    body: impl FnOnce(ThreadPlacement) + Send + 'static,
) -> Result<OwnedThread, Error> {
    let is_batch = start.priority == PriorityRequest::Batch;
    let wakes = if is_batch { Wakes::Waiting } else { Wakes::Preempting };
    machine::spawn(Box::new(move || body(ThreadPlacement)), wakes)
        .map(OwnedThread)
        .map_err(|_| Error::new(ErrorKind::NoThread, "starting a simulated thread"))
}

/// Starts a thread of a queue to beat.
///
/// # Errors
/// When there is no memory for a stack, or no machine.
pub(crate) fn start_worker(
    _worker: usize,
    body: impl FnOnce() + 'static,
) -> anyhow::Result<OwnedThread> {
    Ok(OwnedThread(machine::spawn(Box::new(body), Wakes::Preempting)?))
}

impl Drop for OwnedThread {
    fn drop(&mut self) {
        if self.0 != machine::current_thread() {
            // A simulated thread that panics ends the run, so there is no error.
            machine::join(self.0);
        }
    }
}

/// What starts a thread. It has no name here.
#[derive(Debug)]
pub(crate) struct Builder(());

#[allow(clippy::unused_self, clippy::needless_pass_by_value, reason = "as in std")]
impl Builder {
    pub(crate) const fn new() -> Self {
        Self(())
    }

    pub(crate) fn name(self, _name: String) -> Self {
        self
    }

    /// A thread that ends before the scope does.
    pub(crate) fn spawn_scoped<'scope>(
        self,
        scope: &'scope Scope<'scope, '_>,
        body: impl FnOnce() + Send + 'scope,
    ) -> io::Result<()> {
        let body: Box<dyn FnOnce() + 'scope> = Box::new(body);
        // SAFETY: only the lifetime changes. `scope` does not return, nor unwind, before every
        // thread in `threads` has ended, and what 'scope borrows outlives that call. A machine that
        // is abandoned never resumes the body and never drops it.
        #[allow(clippy::disallowed_methods, reason = "no typed cast changes a lifetime alone")]
        let body: Box<dyn FnOnce() + 'static> = unsafe { mem::transmute(body) };
        let number = machine::spawn(body, Wakes::Preempting).map_err(io::Error::other)?;
        scope.threads.borrow_mut().push(number);
        Ok(())
    }
}

/// Threads that borrow from whoever waits for them.
#[derive(Debug)]
pub(crate) struct Scope<'scope, 'env: 'scope> {
    threads: RefCell<Vec<ThreadNumber>>,
    /// Invariant in both, as in the standard library.
    lifetimes: PhantomData<(&'scope mut &'scope (), &'env mut &'env ())>,
}

/// Runs `body`, which may start threads, and returns when all of them have ended.
pub(crate) fn scope<'env, R>(body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R) -> R {
    /// Waits for all threads when dropped, on the way out of a panic, too.
    struct Waiting<'s>(&'s RefCell<Vec<ThreadNumber>>);

    impl Drop for Waiting<'_> {
        fn drop(&mut self) {
            self.0.take().into_iter().for_each(machine::join);
        }
    }

    let scope = Scope { threads: RefCell::new(Vec::new()), lifetimes: PhantomData };
    let _waiting = Waiting(&scope.threads);
    body(&scope)
}
