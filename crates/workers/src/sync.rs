//! The one door to atomics, locks, cells and threads. Behind it stands the standard library, or
//! loom when a model runs (`--cfg loom`), so that what is tested is what ships. A third one, which counts
//! cache lines, stands in bench/model, which includes these sources by their paths.
//!
//! Nothing else in this crate names `std::sync` or `std::thread`.

#[cfg(loom)]
mod modelled;
#[cfg(not(loom))]
mod real;

#[cfg(loom)]
pub(crate) use modelled::*;
#[cfg(not(loom))]
pub(crate) use real::*;

/// Locks without looking at poison: every lock of this crate guards data that is whole between two
/// statements, and jobs run outside of all locks.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
