//! The event that QEMU's queue sleeps on, for the baselines: set, free, or busy with a sleeper, and a
//! system call only in the last case.

use crate::sync::{Futex, Ordering, fence};

const SET: u32 = 0;
const FREE: u32 = 1;
const BUSY: u32 = u32::MAX;

/// An event of three states.
#[derive(Debug)]
pub(crate) struct Event(Futex);

impl Event {
    pub(crate) const fn new() -> Self {
        Self(Futex::new(FREE))
    }

    /// Sets it and wakes whoever sleeps.
    pub(crate) fn set(&self) {
        // The work published before is visible to whoever sees the event free: pairs with the fence
        // in `reset`.
        fence(Ordering::SeqCst);
        // Relaxed: the fence above orders it.
        let state = &self.0.word;
        if state.load(Ordering::Relaxed) != SET && state.swap(SET, Ordering::SeqCst) == BUSY {
            self.0.wake_all();
        }
    }

    /// Takes the set state away, before looking for work.
    pub(crate) fn reset(&self) {
        // Acquire pairs with the swap in `set`. `SET | FREE` is FREE; BUSY stays as it is.
        if self.0.word.load(Ordering::Acquire) == SET {
            self.0.word.fetch_or(FREE, Ordering::SeqCst);
        }
        // Pairs with the fence in `set`.
        fence(Ordering::SeqCst);
    }

    /// Sleeps unless set. It may return early: callers look again.
    pub(crate) fn wait(&self) {
        // Acquire pairs with the swap in `set`, here and below.
        let state = self.0.word.load(Ordering::Acquire);
        if state == SET {
            return;
        }
        if state == FREE {
            let word = &self.0.word;
            let taken = word.compare_exchange(FREE, BUSY, Ordering::SeqCst, Ordering::Acquire);
            if taken == Err(SET) {
                return;
            }
        }
        self.0.wait(BUSY);
    }
}

#[cfg(test)]
mod tests {
    use super::Event;

    #[test]
    fn a_set_event_does_not_hold_its_waiter() {
        let event = Event::new();
        event.set();
        event.wait();
        event.reset();
        std::thread::scope(|scope| {
            scope.spawn(|| event.set());
            event.wait();
        });
    }
}
