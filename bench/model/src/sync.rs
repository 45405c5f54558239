//! The third backend of the atomics, locks, cells and threads of ferrofs-workers (crates/workers/src/sync.rs) and of the
//! queues to beat (bench/src/sync.rs), by the same names. Every access goes to the simulated machine first and then to a plain
//! atomic: all simulated threads run on one thread of the system, so nothing comes between.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
pub(crate) use std::sync::Arc;
/// Shares what no model needs to see. Who looks at a count of handles reports the accesses to it.
pub(crate) use std::sync::Arc as PlainArc;
pub(crate) use std::sync::Weak as PlainWeak;
/// Writes to memory that only one thread has.
pub(crate) use std::sync::atomic::AtomicU8 as PlainAtomicU8;
pub(crate) use std::sync::atomic::Ordering;
use std::sync::{self, LockResult, TryLockError, TryLockResult, atomic};
use std::time::Duration;

use zerocopy::FromZeros;

use crate::machine::{self, Access, access, picoseconds};
pub(crate) use crate::machine::{pause, place as placed};
pub(crate) use crate::thread::{self, OwnedThread, start_worker as start};
pub(crate) use crate::workqueue as queue;
/// Statistics are written like everything else.
pub(crate) use AtomicU64 as PlainAtomicU64;

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

/// An atomic by the name of the standard library's. All methods but those below go through `deref` and are updates: a
/// processor takes the line to write even if a comparison fails.
macro_rules! atomic {
    ($name:ident, $value:ty) => {
        #[derive(Debug, Default, FromZeros)]
        #[repr(transparent)]
        pub(crate) struct $name(atomic::$name);

        #[allow(dead_code, reason = "each type has the methods of the others")]
        impl $name {
            pub(crate) const fn new(value: $value) -> Self {
                Self(atomic::$name::new(value))
            }

            pub(crate) fn into_inner(self) -> $value {
                self.0.into_inner()
            }

            pub(crate) fn load(&self, order: Ordering) -> $value {
                access(self, Access::Load);
                self.0.load(order)
            }

            pub(crate) fn store(&self, value: $value, order: Ordering) {
                access(self, Access::Store);
                self.0.store(value, order);
            }
        }

        impl Deref for $name {
            type Target = atomic::$name;

            fn deref(&self) -> &atomic::$name {
                access(self, Access::Update);
                &self.0
            }
        }
    };
}

atomic!(AtomicBool, bool);
atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
atomic!(AtomicUsize, usize);

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

    /// As `wait`: nothing is late here.
    pub(crate) fn wait_for(&self, expected: u32, _limit: Duration) {
        self.wait(expected);
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

/// The only value of a thread in the sources: its number, which a simulated thread has anyway.
#[derive(Debug)]
pub(crate) struct LocalNumber;

impl LocalNumber {
    pub(crate) fn with<R>(&self, look: impl FnOnce(&u64) -> R) -> R {
        look(&(machine::current_thread() as u64))
    }
}

macro_rules! number_of_thread {
    (static $name:ident: u64 = $number:expr;) => {
        static $name: crate::sync::LocalNumber = crate::sync::LocalNumber;
        const _: fn() -> u64 = || $number;
    };
}
pub(crate) use number_of_thread as thread_local;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Somebody sleeps, or is about to.
const AWAITED: u32 = 2;
/// Looks before a thread sleeps.
const LOOKS: usize = 100;

/// As the standard library's: it looks for a while, then sleeps.
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

    pub(crate) fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        let word = &self.state.word;
        match word.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(self.guard()),
            Err(_) => Err(TryLockError::WouldBlock),
        }
    }

    /// Waits until nobody has the lock, or somebody sleeps, but not for long.
    fn spin(&self) {
        for _ in 0..LOOKS {
            if self.state.word.load(Ordering::Relaxed) != TAKEN {
                break;
            }
            pause();
        }
    }

    /// What the lock guards comes to this CPU.
    fn guard(&self) -> MutexGuard<'_, T> {
        access(&raw const self.value, Access::Store);
        let value = self.value.lock().unwrap_or_else(sync::PoisonError::into_inner);
        MutexGuard { value, right: Right(self) }
    }
}

/// The right to what a lock guards. The value is given back before the right.
#[derive(Debug)]
pub(crate) struct MutexGuard<'m, T> {
    value: sync::MutexGuard<'m, T>,
    right: Right<'m, T>,
}

#[derive(Debug)]
struct Right<'m, T>(&'m Mutex<T>);

/// Locks without looking at poison, as the other backends do.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    let again = |_| {
        mutex.spin();
        mutex.try_lock()
    };
    mutex.try_lock().or_else(again).unwrap_or_else(|_| {
        while mutex.state.word.swap(AWAITED, Ordering::Acquire) != FREE {
            mutex.state.wait(AWAITED);
            mutex.spin();
        }
        mutex.guard()
    })
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

impl<T> Drop for Right<'_, T> {
    fn drop(&mut self) {
        if self.0.state.word.swap(FREE, Ordering::Release) == AWAITED {
            self.0.state.wake_one();
        }
    }
}

/// Counts calls; a thread sleeps until there is one more.
#[derive(Debug)]
pub(crate) struct Condvar(Futex);

impl Condvar {
    pub(crate) const fn new() -> Self {
        Self(Futex::new(0))
    }

    #[allow(clippy::unnecessary_wraps, reason = "as in std")]
    pub(crate) fn wait<'m, T>(&self, guard: MutexGuard<'m, T>) -> LockResult<MutexGuard<'m, T>> {
        let (calls, mutex) = (self.0.word.load(Ordering::Relaxed), guard.right.0);
        drop(guard);
        self.0.wait(calls);
        Ok(lock(mutex))
    }

    /// As `wait`: nothing is late here.
    pub(crate) fn wait_timeout<'m, T>(
        &self,
        guard: MutexGuard<'m, T>,
        _limit: Duration,
    ) -> LockResult<MutexGuard<'m, T>> {
        self.wait(guard)
    }

    pub(crate) fn notify_all(&self) {
        self.0.word.fetch_add(1, Ordering::Relaxed);
        self.0.wake_all();
    }
}
