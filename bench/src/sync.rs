//! The atomics, threads and futex of the queues to beat: here the real ones. The model has the same names in
//! bench/model/src/sync.rs, so that the same queues run over simulated CPUs.

pub(crate) use std::hint::spin_loop as pause;
pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};
pub(crate) use ferrofs_workers::workqueue as queue;
use rustix::thread::futex;

/// A running thread. Dropping this waits for its end.
#[derive(Debug)]
pub(crate) struct OwnedThread(Option<JoinHandle<()>>);

/// Starts a worker of a queue to beat.
pub(crate) fn start(worker: usize, body: impl FnOnce() + Send + 'static) -> Result<OwnedThread> {
    let thread = thread::Builder::new().name(format!("baseline/{worker}")).spawn(body);
    Ok(OwnedThread(Some(thread.with_context(|| format!("starting worker {worker}"))?)))
}

impl Drop for OwnedThread {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // A worker that panicked has left its pages uncounted, which the pass reported.
            thread.join().unwrap_or_default();
        }
    }
}

/// A word that threads can sleep on.
#[derive(Debug)]
pub(crate) struct Futex {
    pub(crate) word: AtomicU32,
}

impl Futex {
    pub(crate) const fn new(value: u32) -> Self {
        Self { word: AtomicU32::new(value) }
    }

    /// Sleeps while the word is `expected`. It may return early: callers look again.
    pub(crate) fn wait(&self, expected: u32) {
        // Another value by now, or a signal: both mean "look again".
        futex::wait(&self.word, futex::Flags::PRIVATE, expected, None).unwrap_or(());
    }

    pub(crate) fn wake_all(&self) {
        // No sleeper is no error.
        futex::wake(&self.word, futex::Flags::PRIVATE, i32::MAX.unsigned_abs()).unwrap_or(0);
    }
}

/// Tells a model where an array lies; here the allocator decides.
pub(crate) fn placed<T>(_values: &[T]) {}
