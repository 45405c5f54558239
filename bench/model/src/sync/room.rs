//! A word to sleep on and a cell for data that changes hands. Called by whoever names the `sync` door.

use std::cell::UnsafeCell;
use std::time::Duration;

use super::{AtomicU32, Ordering};
use crate::machine::{self, Access};

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

    /// The same: as in loom's backend, no time runs out.
    pub(crate) fn wait_for(&self, expected: u32, _limit: Duration) {
        self.wait(expected);
    }

    /// Wakes one sleeper.
    pub(crate) fn wake_one(&self) {
        machine::wake(&raw const self.word, 1);
    }

    /// Wakes every sleeper.
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
        machine::access(self.0.get().cast_const(), Access::Store);
        change(self.0.get())
    }
}
