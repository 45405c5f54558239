//! What ships: the standard library's atomics and locks, and the kernel's futex.

use std::cell::UnsafeCell;
use std::time::Duration;

/// Shares what no model needs to see: trait objects, which loom's `Arc` cannot hold.
pub(crate) use std::sync::Arc as PlainArc;
/// Looks back at what `PlainArc` shares.
pub(crate) use std::sync::Weak as PlainWeak;
/// Writes to memory that only one thread has.
pub(crate) use std::sync::atomic::AtomicU8 as PlainAtomicU8;
/// Counts what no decision depends on: in a model it would only multiply the interleavings.
pub(crate) use std::sync::atomic::AtomicU64 as PlainAtomicU64;
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
pub(crate) use std::thread;
pub(crate) use std::thread_local;
/// The clock, which costs time where time is simulated.
pub(crate) use std::time::Instant;

use rustix::thread::futex;

/// Tells the processor that this thread is waiting in a loop.
pub(crate) fn pause() {
    std::hint::spin_loop();
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
        // Every error means "look again": the word differs (EAGAIN) or a signal came (EINTR).
        futex::wait(&self.word, futex::Flags::PRIVATE, expected, None).ok();
    }

    /// The same, for `limit` at most.
    pub(crate) fn wait_for(&self, expected: u32, limit: Duration) {
        let limit = rustix::thread::Timespec::try_from(limit).ok();
        futex::wait(&self.word, futex::Flags::PRIVATE, expected, limit.as_ref()).ok();
    }

    /// Wakes one sleeper.
    pub(crate) fn wake_one(&self) {
        futex::wake(&self.word, futex::Flags::PRIVATE, 1).ok();
    }

    /// Wakes every sleeper.
    pub(crate) fn wake_all(&self) {
        futex::wake(&self.word, futex::Flags::PRIVATE, i32::MAX as u32).ok();
    }
}

/// A cell whose accesses are bracketed, so that loom can see them; the caller proves exclusion.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Cell<T>(UnsafeCell<T>);

impl<T> Cell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// Runs `change` with a pointer for reading and writing.
    pub(crate) fn with_mut<R>(&self, change: impl FnOnce(*mut T) -> R) -> R {
        change(self.0.get())
    }
}
