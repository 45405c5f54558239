//! More listeners where requests wait for the storage of the image. A session starts with a listener for each CPU, since
//! decoding takes CPU time. If reads wait instead, as those of a server or of slow storage do, other requests would wait
//! behind them. Then a listener that has no idle one beside it starts another, up to a limit, and all of them stay.
//!
//! How it is recognized: a listener compares the time that its requests took with the CPU time of its thread, which
//! includes none of its idle time. It reads that clock only after a request that took long.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Added listeners at most. They use the slots of spare ones, and leave half of these for requests that hang.
pub(super) const MAX_ADDED_LISTENERS: usize = 32;

/// A request that takes longer may have waited for storage: a page cache and a decoder are faster.
const SLOW: Duration = Duration::from_millis(4);
/// The least ratio of time to CPU time at which requests are said to wait: a thread that shares its CPU with a few others
/// stays below it.
const WAITS_RATIO: u32 = 8;

/// When listeners are added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListenerGrowth {
    /// Never.
    #[default]
    Never,
    /// After requests that waited, up to this number of listeners in all.
    IfSlow(usize),
    /// As soon as all listeners are busy, up to this number: every request may wait for a server.
    AtOnce(usize),
}

/// The listeners that were added.
#[derive(Debug)]
pub(super) struct AddedListeners {
    growth: ListenerGrowth,
    added: AtomicUsize,
}

impl AddedListeners {
    pub(super) fn new(growth: ListenerGrowth) -> Self {
        Self { growth, added: AtomicUsize::new(0) }
    }

    /// How many listeners there may be when a listener has read a request; 0 if none may be added then.
    pub(super) fn most_before_request(&self) -> usize {
        if let ListenerGrowth::AtOnce(most) = self.growth { most } else { 0 }
    }

    /// The same when it has handled a request, which took this long.
    pub(super) fn most_after_request(&self, times: &mut RequestTimes, taken: Duration) -> usize {
        match self.growth {
            ListenerGrowth::IfSlow(most) if times.has_waited(taken, thread_cpu_time) => most,
            _ => 0,
        }
    }

    /// Takes the right to add one, with `permanent` listeners from the start.
    pub(super) fn reserve(&self, permanent: usize, most: usize) -> bool {
        let most = most.saturating_sub(permanent).min(MAX_ADDED_LISTENERS);
        // Relaxed: a count that publishes nothing.
        let add = |added: usize| (added < most).then_some(added.saturating_add(1));
        self.added.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    pub(super) fn give_back(&self) {
        self.added.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a listener knows about the time of its requests.
#[derive(Debug, Default)]
pub(super) struct RequestTimes {
    /// The time of its requests since the CPU time was read.
    taken: Duration,
    /// The CPU time of its thread then.
    cpu: Duration,
}

impl RequestTimes {
    /// Records a request; true if requests have waited since the last time that this was asked.
    fn has_waited(&mut self, elapsed: Duration, cpu_time: impl FnOnce() -> Duration) -> bool {
        self.taken = self.taken.saturating_add(elapsed);
        if elapsed < SLOW {
            return false;
        }
        let now = cpu_time();
        let used = now.saturating_sub(self.cpu);
        let taken = std::mem::take(&mut self.taken);
        self.cpu = now;
        used.saturating_mul(WAITS_RATIO) < taken
    }
}

fn thread_cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn requests_that_use_the_cpu_do_not_wait() {
        let mut times = RequestTimes::default();
        assert!(!times.has_waited(ms(20), || ms(19)));
        assert!(!times.has_waited(ms(20), || ms(25)), "shares its CPU");
        assert!(times.has_waited(ms(20), || ms(26)));
    }

    #[test]
    fn quick_requests_read_no_clock() {
        let mut times = RequestTimes::default();
        for _ in 0..100 {
            assert!(!times.has_waited(ms(1), || unreachable!()));
        }
        assert!(!times.has_waited(ms(5), || ms(60)), "all of them count");
    }

    #[test]
    fn no_more_listeners_than_the_limit() {
        let added = AddedListeners::new(ListenerGrowth::AtOnce(5));
        let count = (0..10).filter(|_| added.reserve(2, 5)).count();
        assert_eq!(count, 3);
        added.give_back();
        assert!(added.reserve(2, 5) && !added.reserve(2, 5));
        let added = AddedListeners::new(ListenerGrowth::AtOnce(1000));
        assert_eq!((0..100).filter(|_| added.reserve(2, 1000)).count(), MAX_ADDED_LISTENERS);
    }
}
