//! Atomics, locks, cells and threads, in one place. They are the standard library's, or loom's when a model runs
//! (`--cfg loom`), so that the tested code is the shipped code. bench/model includes the sources of this crate
//! with a third set, which counts cache-line transfers.
//!
//! What a model runs takes them from here; only what no model runs names `std::sync` or `std::thread`.

#[cfg(loom)]
pub(crate) use loom_backend::*;
#[cfg(not(loom))]
pub(crate) use std_backend::*;

/// Shares what no model needs to see: trait objects, which loom's `Arc` cannot hold.
pub(crate) use std::sync::Arc as PlainArc;
/// A weak reference to what a `PlainArc` shares.
pub(crate) use std::sync::Weak as PlainWeak;
/// Writes to memory that only one thread has.
pub(crate) use std::sync::atomic::AtomicU8 as PlainAtomicU8;
/// Counts what no decision depends on: in a model it would only multiply the interleavings.
pub(crate) use std::sync::atomic::AtomicU64 as PlainAtomicU64;
/// The clock. A model has none, and no decision depends on it.
pub(crate) use std::time::Instant;

/// Locks and ignores poison: every lock of this crate guards data that is consistent between two statements,
/// and jobs run outside of all locks.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The shipped set: the standard library's atomics and locks, and the kernel's futex.
#[cfg(not(loom))]
mod std_backend {
    use std::cell::UnsafeCell;
    use std::time::Duration;

    pub(crate) use std::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
    pub(crate) use std::thread;
    pub(crate) use std::thread_local;

    use rustix::thread::futex;

    /// Tells the processor that this thread waits in a loop.
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

    /// A cell whose accesses are closures, so that loom can see them. The caller proves exclusion.
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub(crate) struct Cell<T>(UnsafeCell<T>);

    impl<T> Cell<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(UnsafeCell::new(value))
        }

        /// Runs `access` with a pointer for reading and writing.
        pub(crate) fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
            access(self.0.get())
        }
    }
}

/// The set of a model: loom's atomics and locks, and a futex made of them.
#[cfg(loom)]
mod loom_backend {
    use std::time::Duration;

    pub(crate) use loom::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
    pub(crate) use loom::thread;
    pub(crate) use loom::thread_local;

    /// Lets another thread run: a loop that waits must yield to the model's scheduler.
    pub(crate) fn pause() {
        thread::yield_now();
    }

    /// A word that threads can sleep on. As in the kernel, comparing and falling asleep are one step under the
    /// lock, and a wake-up takes the same lock.
    #[derive(Debug)]
    pub(crate) struct Futex {
        pub(crate) word: AtomicU32,
        mutex: Mutex<()>,
        sleepers: Condvar,
    }

    impl Futex {
        pub(crate) fn new(value: u32) -> Self {
            Self { word: AtomicU32::new(value), mutex: Mutex::new(()), sleepers: Condvar::new() }
        }

        pub(crate) fn wait(&self, expected: u32) {
            let guard = crate::sync::lock(&self.mutex);
            if self.word.load(Ordering::SeqCst) == expected {
                drop(self.sleepers.wait(guard));
            }
        }

        pub(crate) fn wait_for(&self, expected: u32, _limit: Duration) {
            self.wait(expected);
        }

        pub(crate) fn wake_one(&self) {
            let _guard = crate::sync::lock(&self.mutex);
            self.sleepers.notify_one();
        }

        pub(crate) fn wake_all(&self) {
            let _guard = crate::sync::lock(&self.mutex);
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

        pub(crate) fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
            self.0.with_mut(access)
        }
    }
}
