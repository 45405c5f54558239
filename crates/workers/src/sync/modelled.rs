//! What is modelled: loom's atomics and locks, and a futex made of them.

use std::time::Duration;

pub(crate) use loom::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
pub(crate) use loom::thread;
pub(crate) use loom::thread_local;
/// Shares what no model needs to see: trait objects, which loom's `Arc` cannot hold.
pub(crate) use std::sync::Arc as PlainArc;
/// Looks back at what `PlainArc` shares.
pub(crate) use std::sync::Weak as PlainWeak;
/// Writes to memory that only one thread has.
pub(crate) use std::sync::atomic::AtomicU8 as PlainAtomicU8;
/// Counts what no decision depends on: in a model it would only multiply the interleavings.
pub(crate) use std::sync::atomic::AtomicU64 as PlainAtomicU64;
/// The clock. A model has none, and no decision depends on it.
pub(crate) use std::time::Instant;

/// Lets another thread run: a loop that waits must yield to the model's scheduler.
pub(crate) fn pause() {
    thread::yield_now();
}

/// A word that threads can sleep on. Comparing and falling asleep are one step under the lock, as
/// in the kernel, and a wake-up takes the same lock.
#[derive(Debug)]
pub(crate) struct Futex {
    pub(crate) word: AtomicU32,
    gate: Mutex<()>,
    sleepers: Condvar,
}

impl Futex {
    pub(crate) fn new(value: u32) -> Self {
        Self { word: AtomicU32::new(value), gate: Mutex::new(()), sleepers: Condvar::new() }
    }

    pub(crate) fn wait(&self, expected: u32) {
        let gate = super::lock(&self.gate);
        if self.word.load(Ordering::SeqCst) == expected {
            drop(self.sleepers.wait(gate));
        }
    }

    pub(crate) fn wait_for(&self, expected: u32, _limit: Duration) {
        self.wait(expected);
    }

    pub(crate) fn wake_one(&self) {
        let _gate = super::lock(&self.gate);
        self.sleepers.notify_one();
    }

    pub(crate) fn wake_all(&self) {
        let _gate = super::lock(&self.gate);
        self.sleepers.notify_all();
    }
}

/// A cell whose accesses loom checks for races.
#[derive(Debug)]
pub(crate) struct Cell<T>(loom::cell::UnsafeCell<T>);

impl<T> Cell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::cell::UnsafeCell::new(value))
    }

    pub(crate) fn with_mut<R>(&self, change: impl FnOnce(*mut T) -> R) -> R {
        self.0.with_mut(change)
    }
}
