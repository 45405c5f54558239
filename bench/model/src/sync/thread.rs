//! Threads of the simulated machine by the names of the standard library's. Called by whoever names
//! the `sync` module.
#![allow(unsafe_code, reason = "threads of a scope borrow from whoever waits for them")]

use std::cell::RefCell;
use std::io;
use std::marker::PhantomData;
use std::mem;

use crate::machine::{self, ThreadNumber, Wakes};

/// Waits for its end when asked to.
#[derive(Debug)]
pub(crate) struct JoinHandle<T> {
    number: ThreadNumber,
    result: PhantomData<T>,
}

impl JoinHandle<()> {
    /// A thread that does `body`.
    ///
    /// # Errors
    /// When there is no memory for a stack, or no machine.
    pub(crate) fn start(body: impl FnOnce() + 'static, wakes: Wakes) -> anyhow::Result<Self> {
        let number = machine::spawn(Box::new(body), wakes)?;
        Ok(Self { number, result: PhantomData })
    }

    pub(crate) fn join(self) -> std::thread::Result<()> {
        machine::join(self.number);
        Ok(())
    }

    pub(crate) fn number(&self) -> ThreadNumber {
        self.number
    }
}

/// What starts a thread. It has no name here.
#[derive(Debug)]
pub(crate) struct Builder(());

impl Builder {
    pub(crate) const fn new() -> Self {
        Self(())
    }

    #[allow(
        clippy::unused_self,
        clippy::needless_pass_by_value,
        reason = "as in the standard library"
    )]
    pub(crate) fn name(self, _name: String) -> Self {
        self
    }

    /// A thread that ends before the scope does.
    #[allow(clippy::unused_self, reason = "as in the standard library")]
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
    let scope = Scope { threads: RefCell::new(Vec::new()), lifetimes: PhantomData };
    let waiting = Waiting(&scope.threads);
    let result = body(&scope);
    drop(waiting);
    result
}

/// Waits for all threads when dropped, on the way out of a panic, too.
struct Waiting<'s>(&'s RefCell<Vec<ThreadNumber>>);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        for thread in self.0.take() {
            machine::join(thread);
        }
    }
}
