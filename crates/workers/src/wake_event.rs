//! A wake-up that costs a system call only if somebody sleeps. One thread waits, any thread sets.
//!
//! docs/workers.md, protocol E. Workers sleep on it, and so does a submitter that waits for results.

use crate::sync::{Futex, Ordering, fence};

/// Set: the next wait returns at once.
const SET: u32 = 0;
/// Not set, and nobody sleeps.
const CLEAR: u32 = 1;
/// Not set, and the waiter sleeps or is about to.
const ASLEEP: u32 = 2;

/// An event with three states. Many may set, one may wait.
#[derive(Debug)]
pub(crate) struct WakeEvent {
    state: Futex,
}

impl WakeEvent {
    /// An event that is not set.
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self { state: Futex::new(CLEAR) }
    }

    /// An event that is not set.
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self { state: Futex::new(CLEAR) }
    }

    /// Sets the event. Returns whether that took a system call. While the event stays set this is one load of a
    /// cache line that nobody writes.
    pub(crate) fn set(&self) -> bool {
        // E1. What was published before must not be seen later than the look at the state: pairs
        // with the fence in `clear` (E4).
        fence(Ordering::SeqCst);
        if self.state.word.load(Ordering::Relaxed) == SET {
            return false;
        }
        // E2. Only the one that takes ASLEEP away wakes.
        if self.state.word.swap(SET, Ordering::AcqRel) == ASLEEP {
            self.state.wake_one();
            return true;
        }
        false
    }

    /// Clears the event. The waiter looks for work after this and before it waits.
    pub(crate) fn clear(&self) {
        // E3. Acquire: what the setter published is seen by the look that follows.
        self.state.word.compare_exchange(SET, CLEAR, Ordering::AcqRel, Ordering::Acquire).ok();
        // E4. The look for work comes after the state says CLEAR: pairs with the fence in `set`.
        fence(Ordering::SeqCst);
    }

    /// Whether the event is set, for a waiter that spins before it sleeps.
    pub(crate) fn is_set(&self) -> bool {
        self.state.word.load(Ordering::Acquire) == SET
    }

    /// Sleeps until the event is set. Returns whether it slept.
    pub(crate) fn wait(&self) -> bool {
        let mut slept = false;
        while self.prepare_to_wait() {
            self.state.wait(ASLEEP);
            slept = true;
        }
        slept
    }

    /// E5. From CLEAR to ASLEEP; false when the event is set.
    fn prepare_to_wait(&self) -> bool {
        let word = &self.state.word;
        match word.compare_exchange(CLEAR, ASLEEP, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(state) => state == ASLEEP,
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::WakeEvent;
    use crate::sync::{Arc, AtomicBool, Ordering, thread};

    /// E1 to E5: what was published before `set` is seen by a waiter that looks after `clear`, or
    /// the waiter does not sleep.
    #[test]
    fn no_wake_up_is_lost() {
        loom::model(|| {
            let shared = Arc::new((WakeEvent::new(), AtomicBool::new(false)));
            let setter = Arc::clone(&shared);
            let thread = thread::spawn(move || {
                setter.1.store(true, Ordering::Relaxed);
                setter.0.set();
            });
            loop {
                shared.0.clear();
                if shared.1.load(Ordering::Relaxed) {
                    break;
                }
                shared.0.wait();
            }
            thread.join().unwrap();
        });
    }

    /// E2: of two setters one wakes, and the waiter sees what both published in the end.
    #[test]
    fn two_setters_wake_one_waiter() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let shared =
                Arc::new((WakeEvent::new(), AtomicBool::new(false), AtomicBool::new(false)));
            let setters = [0, 1].map(|which| {
                let setter = Arc::clone(&shared);
                thread::spawn(move || {
                    let flag = if which == 0 { &setter.1 } else { &setter.2 };
                    flag.store(true, Ordering::Relaxed);
                    setter.0.set();
                })
            });
            loop {
                shared.0.clear();
                if shared.1.load(Ordering::Relaxed) && shared.2.load(Ordering::Relaxed) {
                    break;
                }
                shared.0.wait();
            }
            for setter in setters {
                setter.join().unwrap();
            }
        });
    }
}
