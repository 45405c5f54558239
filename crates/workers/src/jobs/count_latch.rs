//! A number that rises and that threads of a test wait for, so that a test sees what it is about and
//! not what the clock made of it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// Longer than anything here takes; a test that waits so long has failed.
const FAR_TOO_LONG: Duration = Duration::from_secs(60);

/// The number.
#[derive(Default)]
pub(super) struct CountLatch {
    count: Mutex<usize>,
    changed: Condvar,
}

impl CountLatch {
    pub(super) fn add_one(&self) {
        *self.count.lock().unwrap() += 1;
        self.changed.notify_all();
    }

    pub(super) fn wait_for(&self, goal: usize) {
        let count = self.count.lock().unwrap();
        let waited = self.changed.wait_timeout_while(count, FAR_TOO_LONG, |now| *now < goal);
        assert!(!waited.unwrap().1.timed_out(), "{goal} were not count_latch");
    }

    pub(super) fn into_inner(self) -> usize {
        self.count.into_inner().unwrap()
    }
}
