//! Values of a process, which a forked child must neither use nor drop, since threads that are not
//! there own a part of them.

use std::mem::ManuallyDrop;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value of the process that made it. In a forked child it is as if it were not there.
///
/// The lock is held for single statements that neither wait nor call Python, by threads that are
/// attached to the interpreter. `os.fork` is called by such a thread, too, so the lock is free in
/// the child.
#[derive(Debug)]
pub(crate) struct PerProcess<T>(Mutex<OwnedByProcess<T>>);

#[derive(Debug)]
struct OwnedByProcess<T> {
    process: u32,
    value: Option<ManuallyDrop<T>>,
}

impl<T: Clone> PerProcess<T> {
    pub(crate) const fn empty() -> Self {
        Self(Mutex::new(OwnedByProcess { process: 0, value: None }))
    }

    pub(crate) fn of(value: T) -> Self {
        let value = Some(ManuallyDrop::new(value));
        Self(Mutex::new(OwnedByProcess { process: std::process::id(), value }))
    }

    fn slot(&self) -> MutexGuard<'_, OwnedByProcess<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value, if this process made it.
    pub(crate) fn get(&self) -> Option<T> {
        let slot = self.slot();
        let value = slot.value.as_ref().filter(|_| slot.process == std::process::id());
        value.map(|value| T::clone(value))
    }

    /// Keeps `value`, unless another thread was faster; returns what is kept. What the parent left
    /// is leaked.
    pub(crate) fn get_or_keep(&self, value: T) -> T {
        let mut slot = self.slot();
        let process = std::process::id();
        if let Some(kept) = slot.value.as_ref().filter(|_| slot.process == process) {
            return T::clone(kept);
        }
        *slot = OwnedByProcess { process, value: Some(ManuallyDrop::new(value.clone())) };
        value
    }

    /// Takes the value out, if this process made it. What the parent left is leaked.
    pub(crate) fn take(&self) -> Option<T> {
        let mut slot = self.slot();
        let value = slot.value.take()?;
        (slot.process == std::process::id()).then(|| ManuallyDrop::into_inner(value))
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let slot = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        if slot.process == std::process::id() {
            slot.value.take().map(ManuallyDrop::into_inner);
        }
    }
}
