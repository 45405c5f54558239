//! What is counted: the third backend of the door to atomics, locks, cells and threads of
//! ferrofs-workers (crates/workers/src/sync.rs) and of the baselines (bench/src/sync.rs), by the same
//! names. Every access goes to the simulated machine first and then to a plain atomic: all simulated
//! threads run on one thread of the system, so nothing comes between.
#![allow(dead_code, reason = "the door is as wide as the other two, whoever uses it here")]

mod atomics;
mod mutex;
mod room;
pub(crate) mod thread;

pub(crate) use std::sync::Arc;
/// Shares what no model needs to see.
pub(crate) use std::sync::Arc as PlainArc;
/// Counts on a line that its only writer has for itself: part of the instructions around an access.
pub(crate) use std::sync::atomic::AtomicU64 as PlainAtomicU64;
pub(crate) use std::sync::atomic::Ordering;
pub(crate) use std::thread_local;

pub(crate) use crate::machine::{pause, place as placed};
pub(crate) use atomics::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
pub(crate) use mutex::{Mutex, MutexGuard};
pub(crate) use room::{Cell, Futex};

use crate::machine::{self, picoseconds};
use std::time::Duration;

/// Locks without looking at poison, as the other backends do.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

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
