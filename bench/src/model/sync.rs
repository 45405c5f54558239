//! The third backend of the atomics, locks, cells and threads of ferrofs-workers (crates/workers/src/sync.rs) and of the
//! queues to beat (bench/src/sync.rs), by the same names. Every access goes to the simulated machine first and then to a plain
//! atomic: all simulated threads run on one thread of the system, so nothing comes between.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
pub(crate) use std::sync::Arc;
/// Shares what no model needs to see.
pub(crate) use std::sync::Arc as PlainArc;
/// Counts on a cache line that its only writer has for itself: part of the instructions around an access.
pub(crate) use std::sync::atomic::AtomicU64 as PlainAtomicU64;
pub(crate) use std::sync::atomic::Ordering;
use std::sync::{self, atomic};
pub(crate) use std::thread_local;
use std::time::Duration;

use crate::machine::{self, Access, access, picoseconds};
pub(crate) use crate::machine::{pause, place as placed};
pub(crate) use crate::thread::{self, OwnedThread, start_worker as start};
pub(crate) use crate::workqueue as queue;

/// A fence; weaker ones than `SeqCst` cost nothing on x86-64.
pub(crate) fn fence(order: Ordering) {
    if order == Ordering::SeqCst {
        machine::fence();
    }
}

/// A moment of simulated time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Instant(u64);

impl Instant {
    pub(crate) fn now() -> Self {
        Self(machine::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        Duration::from_nanos(machine::now().saturating_sub(self.0) / picoseconds(1.0))
    }
}

/// An atomic by the name of the standard library's, whose methods of one value are listed.
macro_rules! atomic {
    ($name:ident, $value:ty $(, $update:ident)*) => {
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub(crate) struct $name(atomic::$name);

        #[allow(dead_code, reason = "each type has the methods of the others")]
        impl $name {
            pub(crate) const fn new(value: $value) -> Self {
                Self(atomic::$name::new(value))
            }

            pub(crate) fn load(&self, order: Ordering) -> $value {
                access(self, Access::Load);
                self.0.load(order)
            }

            pub(crate) fn store(&self, value: $value, order: Ordering) {
                access(self, Access::Store);
                self.0.store(value, order);
            }

            /// A processor takes the line to write even if the comparison fails.
            pub(crate) fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                access(self, Access::Update);
                self.0.compare_exchange(current, new, success, failure)
            }

            pub(crate) fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }

            pub(crate) fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                mut change: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut current = self.load(failure);
                while let Some(new) = change(current) {
                    match self.compare_exchange(current, new, success, failure) {
                        Ok(old) => return Ok(old),
                        Err(other) => current = other,
                    }
                }
                Err(current)
            }

            $(pub(crate) fn $update(&self, value: $value, order: Ordering) -> $value {
                access(self, Access::Update);
                self.0.$update(value, order)
            })*
        }
    };
}

atomic!(AtomicBool, bool);
atomic!(AtomicU32, u32, swap, fetch_or, fetch_add, fetch_sub);
atomic!(AtomicU64, u64, swap, fetch_xor, fetch_add);
atomic!(AtomicUsize, usize, fetch_add, fetch_sub);

/// A word that threads can sleep on.
#[derive(Debug)]
pub(crate) struct Futex {
    pub(crate) word: AtomicU32,
}

impl Futex {
    pub(crate) const fn new(value: u32) -> Self {
        Self { word: AtomicU32::new(value) }
    }

    /// Sleeps while the word is `expected`.
    pub(crate) fn wait(&self, expected: u32) {
        machine::sleep_on(&raw const self.word, || self.word.load(Ordering::SeqCst) == expected);
    }

    pub(crate) fn wake_one(&self) {
        machine::wake(&raw const self.word, 1);
    }

    pub(crate) fn wake_all(&self) {
        machine::wake(&raw const self.word, usize::MAX);
    }
}

/// A cell whose lines go to whoever uses it.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Cell<T>(UnsafeCell<T>);

impl<T> Cell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// Runs `change` with a pointer for reading and writing.
    pub(crate) fn with_mut<R>(&self, change: impl FnOnce(*mut T) -> R) -> R {
        access(self.0.get().cast_const(), Access::Store);
        change(self.0.get())
    }
}

const FREE: u32 = 0;
const TAKEN: u32 = 1;

#[derive(Debug)]
pub(crate) struct Mutex<T> {
    state: Futex,
    /// Never waited for: `state` decides whose it is.
    value: sync::Mutex<T>,
}

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { state: Futex::new(FREE), value: sync::Mutex::new(value) }
    }
}

/// The right to what a lock guards. The value is given back before the right.
#[derive(Debug)]
pub(crate) struct MutexGuard<'m, T> {
    value: sync::MutexGuard<'m, T>,
    _right: Right<'m>,
}

#[derive(Debug)]
struct Right<'m>(&'m Futex);

/// Locks without looking at poison, as the other backends do.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    while mutex.state.word.swap(TAKEN, Ordering::Acquire) == TAKEN {
        mutex.state.wait(TAKEN);
    }
    let value = mutex.value.lock().unwrap_or_else(sync::PoisonError::into_inner);
    MutexGuard { value, _right: Right(&mutex.state) }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl Drop for Right<'_> {
    fn drop(&mut self) {
        self.0.word.store(FREE, Ordering::Release);
        self.0.wake_one();
    }
}
