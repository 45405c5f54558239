//! A lock whose waiters sleep on a word of the simulated machine. Called by whoever names the `sync`
//! door.

use std::ops::{Deref, DerefMut};
use std::sync::{self, LockResult, TryLockError};

use super::{Futex, Ordering};

const FREE: u32 = 0;
const TAKEN: u32 = 1;

/// A lock and what it guards.
#[derive(Debug)]
pub(crate) struct Mutex<T> {
    state: Futex,
    /// Never waited for: `state` decides whose it is.
    value: sync::Mutex<T>,
}

/// The right to what a lock guards.
#[derive(Debug)]
pub(crate) struct MutexGuard<'m, T> {
    mutex: &'m Mutex<T>,
    value: Option<sync::MutexGuard<'m, T>>,
}

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { state: Futex::new(FREE), value: sync::Mutex::new(value) }
    }

    /// Waits for the right; poison is passed over as the door's `lock` does.
    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        while self.state.word.swap(TAKEN, Ordering::Acquire) == TAKEN {
            self.state.wait(TAKEN);
        }
        let value = match self.value.try_lock() {
            Ok(value) => Some(value),
            Err(TryLockError::Poisoned(poison)) => Some(poison.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        Ok(MutexGuard { mutex: self, value })
    }
}

const TAKEN_ONCE: &str = "a lock is given to one thread at a time";

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_deref().expect(TAKEN_ONCE)
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_deref_mut().expect(TAKEN_ONCE)
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.value = None;
        self.mutex.state.word.store(FREE, Ordering::Release);
        self.mutex.state.wake_one();
    }
}
