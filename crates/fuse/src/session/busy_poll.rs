//! Busy polling: a listener that has just replied looks for the next request for a few microseconds before it sleeps. A
//! caller that makes one request after the other then finds a running thread, where it would have to wake one: on a virtual
//! machine, whose CPUs halt, that takes longer than most requests (docs/benchmarks.md).
//!
//! It polls after several requests of one caller. With more callers there are requests in any case, and the callers need
//! the CPUs. How long it polls adapts as in the kernel's halt polling (`virt/kvm/kvm_main.c`): longer after a short sleep,
//! not at all after a long one. So an idle mount never polls, and the end of a burst costs one window. One listener polls
//! at a time, and yields its CPU between two looks.
//!
//! Protocol:
//! 1. A listener polls only if it took `PollPermit`, and drops it before it reads.
//! 2. What polling finds is a hint: another listener may read that request. Reading waits as without polling.

use std::time::{Duration, Instant};

use crate::sync::{AtomicBool, Ordering};

/// How long a listener polls after the first short wait.
const SHORTEST: Duration = Duration::from_micros(10);
/// After a wait that was longer by this than the longest time of polling, a listener does not poll. The wait includes the
/// time of the wake-up.
const WAKE_UP: Duration = Duration::from_micros(100);

/// So many requests of one thread follow each other before a listener polls.
const SAME_CALLER: u32 = 16;

/// The permit to poll, for one of the listeners of a session.
#[derive(Debug)]
pub(super) struct PollPermit {
    is_taken: AtomicBool,
    /// The longest time of polling.
    longest: Duration,
}

impl PollPermit {
    pub(super) fn new(longest: Duration) -> Self {
        Self { is_taken: AtomicBool::new(false), longest }
    }

    /// Runs `poll`, unless another listener is polling. Returns what it returned.
    fn with(&self, poll: impl FnOnce() -> bool) -> bool {
        // Relaxed: the flag publishes nothing. It is read first, so that listeners that find it taken do not write its line.
        let is_free = || !self.is_taken.load(Ordering::Relaxed);
        let take =
            || self.is_taken.compare_exchange(false, true, Ordering::Relaxed, Ordering::Relaxed);
        if !is_free() || take().is_err() {
            return false;
        }
        let found = poll();
        self.is_taken.store(false, Ordering::Relaxed);
        found
    }
}

/// What a listener knows about its waits for requests.
#[derive(Debug, Default)]
pub(super) struct BusyPoll {
    window: Duration,
    /// The thread that made the last request, and how many of the last ones.
    caller: u32,
    requests: u32,
}

impl BusyPoll {
    /// Polls with `is_ready` for as long as recent waits suggest. Returns whether it became true.
    pub(super) fn poll(&self, permit: &PollPermit, mut is_ready: impl FnMut() -> bool) -> bool {
        if self.window.is_zero() || self.requests < SAME_CALLER {
            return false;
        }
        permit.with(|| {
            let began = Instant::now();
            loop {
                if is_ready() {
                    return true;
                }
                if began.elapsed() >= self.window {
                    return false;
                }
                std::thread::yield_now();
            }
        })
    }

    /// Records that the last message was a request of this thread; 0 if it is unknown.
    pub(super) fn record_caller(&mut self, pid: u32) {
        self.requests = match pid {
            0 => 0,
            same if same == self.caller => self.requests.saturating_add(1),
            _ => 1,
        };
        self.caller = pid;
    }

    /// Records a wait for a request, polling included.
    pub(super) fn record(&mut self, permit: &PollPermit, has_found: bool, waited: Duration) {
        let longest = permit.longest;
        self.window = match waited {
            _ if has_found => return,
            long if long > longest.saturating_add(WAKE_UP) => Duration::ZERO,
            _ => self.window.saturating_mul(2).max(SHORTEST).min(longest),
        };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const fn us(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    /// A listener that polls, as far as callers count.
    fn with_one_caller() -> BusyPoll {
        let mut listener = BusyPoll::default();
        (0..SAME_CALLER).for_each(|_| listener.record_caller(7));
        listener
    }

    #[test]
    fn a_listener_polls_after_short_waits_only() {
        let permit = PollPermit::new(us(50));
        let mut listener = with_one_caller();
        assert!(!listener.poll(&permit, || unreachable!("it has not waited yet")));
        for expected in [10, 20, 40, 50, 50] {
            listener.record(&permit, false, us(150));
            assert_eq!(listener.window, us(expected));
        }
        listener.record(&permit, true, us(3));
        assert_eq!(listener.window, us(50));
        assert!(listener.poll(&permit, || true));
        let began = Instant::now();
        assert!(!listener.poll(&permit, || false));
        assert!(began.elapsed() >= us(50));
        listener.record(&permit, false, us(151));
        assert!(!listener.poll(&permit, || unreachable!("it has waited long")));
    }

    #[test]
    fn a_listener_polls_for_one_caller_only() {
        let permit = PollPermit::new(us(50));
        for callers in [[7, 8], [7, 0], [0, 0]] {
            let mut listener = BusyPoll::default();
            listener.record(&permit, false, us(1));
            for _ in 0..SAME_CALLER {
                callers.iter().for_each(|pid| listener.record_caller(*pid));
                assert!(!listener.poll(&permit, || unreachable!("{callers:?}")));
            }
            (0..SAME_CALLER).for_each(|_| listener.record_caller(9));
            assert!(listener.poll(&permit, || true));
        }
    }

    #[test]
    fn a_listener_without_a_window_never_polls() {
        let permit = PollPermit::new(Duration::ZERO);
        let mut listener = with_one_caller();
        for _ in 0..5 {
            listener.record(&permit, false, us(1));
            assert!(!listener.poll(&permit, || unreachable!("0 turns it off")));
        }
    }

    #[test]
    fn one_listener_polls_at_a_time() {
        let permit = PollPermit::new(us(50));
        let mut listener = with_one_caller();
        listener.record(&permit, false, us(1));
        assert!(listener.poll(&permit, || {
            assert!(!listener.poll(&permit, || unreachable!("another one is polling")));
            true
        }));
        assert!(listener.poll(&permit, || true), "the permit is free again");
    }

    #[test]
    fn threads_that_poll_again_and_again_never_meet() {
        let permit = PollPermit::new(us(50));
        let polling = std::sync::atomic::AtomicUsize::new(0);
        let poll_often = || {
            let found = (0..20_000).filter(|_| {
                permit.with(|| {
                    assert_eq!(polling.fetch_add(1, Ordering::Relaxed), 0);
                    polling.fetch_sub(1, Ordering::Relaxed);
                    true
                })
            });
            found.count()
        };
        let found: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(poll_often)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        assert!(found > 0);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn one_listener_polls_at_a_time_and_the_permit_comes_back() {
        loom::model(|| {
            let permit = Arc::new(PollPermit::new(Duration::ZERO));
            let polling = Arc::new(AtomicUsize::new(0));
            let others: Vec<_> = (0..2)
                .map(|_| {
                    let (permit, polling) = (Arc::clone(&permit), Arc::clone(&polling));
                    loom::thread::spawn(move || {
                        permit.with(|| {
                            assert_eq!(polling.fetch_add(1, Ordering::Relaxed), 0);
                            polling.fetch_sub(1, Ordering::Relaxed);
                            true
                        })
                    })
                })
                .collect();
            let found = others.into_iter().map(|other| other.join().unwrap());
            assert!(found.filter(|found| *found).count() >= 1);
            assert!(permit.with(|| true));
        });
    }
}
