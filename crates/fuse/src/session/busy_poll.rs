//! Busy polling: a listener that has just replied looks for the next request for a few microseconds before it sleeps. A
//! caller that makes one request after the other then finds a running thread, where it would have to wake one: on a virtual
//! machine, whose CPUs halt, that takes longer than most requests (docs/benchmarks.md).
//!
//! It polls only where that pays, which it finds out as halt polling does (`virt/kvm/kvm_main.c`): after several requests of
//! one caller, since with more callers there are requests in any case, and the callers need the CPUs; and after a short
//! wait, so that an idle mount never polls. Where polling finds nothing it stops for a while, twice as long each time: the
//! caller may need the very CPU on which the listener polls, which yields between two looks, but has a higher priority.
//! One listener polls at a time.
//!
//! Protocol:
//! 1. A listener polls only if it took `PollPermit`, and drops it before it reads.
//! 2. What polling finds is a hint: another listener may read that request. Reading waits as without polling.

use std::time::{Duration, Instant};

use crate::sync::{AtomicBool, Ordering};

/// After a wait that was longer by this than the longest time of polling, a listener does not poll. The wait includes the
/// time of the wake-up.
const WAKE_UP: Duration = Duration::from_micros(100);

/// The most waits without polling after polling that found nothing.
const MOST_SKIPPED: u32 = 1024;

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
    fn with<T>(&self, poll: impl FnOnce() -> T) -> Option<T> {
        // Relaxed: the flag publishes nothing. It is read first, so that listeners that find it taken do not write its line.
        let is_free = || !self.is_taken.load(Ordering::Relaxed);
        let take =
            || self.is_taken.compare_exchange(false, true, Ordering::Relaxed, Ordering::Relaxed);
        if !is_free() || take().is_err() {
            return None;
        }
        let found = poll();
        self.is_taken.store(false, Ordering::Relaxed);
        Some(found)
    }
}

/// What polling led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Polled {
    /// The listener did not poll.
    No,
    /// There is a message.
    Found,
    /// There was none in time.
    Nothing,
}

/// What a listener knows about its waits for requests.
#[derive(Debug, Default)]
pub(super) struct BusyPoll {
    /// The last wait was short.
    was_short: bool,
    /// Short waits to come without polling, and how many there were to be after polling that found nothing last.
    skips: u32,
    last_skips: u32,
    /// The thread that made the last request, and how many of the last ones.
    caller: u32,
    requests: u32,
}

impl BusyPoll {
    /// Polls with `is_ready`, if recent waits suggest it.
    pub(super) fn poll(&self, permit: &PollPermit, mut is_ready: impl FnMut() -> bool) -> Polled {
        let pays = self.was_short && self.skips == 0 && self.requests >= SAME_CALLER;
        if !pays || permit.longest.is_zero() {
            return Polled::No;
        }
        let found = permit.with(|| {
            let began = Instant::now();
            loop {
                let is_ready = is_ready();
                // A message that comes late does not count: other threads had the CPU, and a listener that slept would have
                // been woken before them.
                match began.elapsed() < permit.longest {
                    true if is_ready => return Polled::Found,
                    true => std::thread::yield_now(),
                    false => return Polled::Nothing,
                }
            }
        });
        found.unwrap_or(Polled::No)
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
    pub(super) fn record(&mut self, permit: &PollPermit, polled: Polled, waited: Duration) {
        self.was_short = waited <= permit.longest.saturating_add(WAKE_UP);
        match polled {
            Polled::No => self.skips = self.skips.saturating_sub(u32::from(self.was_short)),
            Polled::Found => self.last_skips /= 2,
            Polled::Nothing => {
                self.last_skips = self.last_skips.saturating_mul(2).clamp(1, MOST_SKIPPED);
                self.skips = self.last_skips;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const fn us(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    /// No test takes longer, even where its thread loses the CPU.
    const HOUR: Duration = Duration::from_secs(3600);

    /// A listener that polls next.
    fn ready(permit: &PollPermit) -> BusyPoll {
        let mut listener = BusyPoll::default();
        (0..SAME_CALLER).for_each(|_| listener.record_caller(7));
        listener.record(permit, Polled::No, us(1));
        listener
    }

    fn does_not_poll(listener: &BusyPoll, permit: &PollPermit) -> bool {
        listener.poll(permit, || true) == Polled::No
    }

    #[test]
    fn a_listener_polls_after_short_waits_only() {
        let permit = PollPermit::new(us(50));
        let mut listener = ready(&permit);
        listener.record(&permit, Polled::No, us(150));
        let began = Instant::now();
        assert_eq!(listener.poll(&permit, || false), Polled::Nothing);
        assert!(began.elapsed() >= us(50));
        let late = || {
            std::thread::sleep(us(60));
            true
        };
        assert_eq!(listener.poll(&permit, late), Polled::Nothing, "it is ready, but late");
        listener.record(&permit, Polled::No, us(151));
        assert!(does_not_poll(&listener, &permit), "it has waited long");
    }

    #[test]
    fn polling_that_finds_nothing_stops_for_longer_each_time() {
        let permit = PollPermit::new(HOUR);
        let mut listener = ready(&permit);
        for skipped in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024] {
            listener.record(&permit, Polled::Nothing, us(60));
            for _ in 0..skipped {
                assert!(does_not_poll(&listener, &permit));
                listener.record(&permit, Polled::No, us(10));
            }
            assert_eq!(listener.poll(&permit, || true), Polled::Found, "after {skipped}");
        }
        (0..11).for_each(|_| listener.record(&permit, Polled::Found, us(5)));
        listener.record(&permit, Polled::Nothing, us(60));
        listener.record(&permit, Polled::No, us(10));
        assert_eq!(listener.poll(&permit, || true), Polled::Found, "it starts from the beginning");
    }

    #[test]
    fn a_listener_polls_for_one_caller_only() {
        let permit = PollPermit::new(HOUR);
        for callers in [[7, 8], [7, 0], [0, 0]] {
            let mut listener = ready(&permit);
            for _ in 0..SAME_CALLER {
                callers.iter().for_each(|pid| listener.record_caller(*pid));
                assert!(does_not_poll(&listener, &permit), "{callers:?}");
            }
            (0..SAME_CALLER).for_each(|_| listener.record_caller(9));
            assert_eq!(listener.poll(&permit, || true), Polled::Found);
        }
    }

    #[test]
    fn a_listener_without_a_window_never_polls() {
        let permit = PollPermit::new(Duration::ZERO);
        assert!(does_not_poll(&ready(&permit), &permit));
    }

    #[test]
    fn one_listener_polls_at_a_time() {
        let permit = PollPermit::new(HOUR);
        let listener = ready(&permit);
        let found = listener.poll(&permit, || does_not_poll(&listener, &permit));
        assert_eq!(found, Polled::Found);
        assert_eq!(listener.poll(&permit, || true), Polled::Found, "the permit is free again");
    }

    #[test]
    fn threads_that_poll_again_and_again_never_meet() {
        let permit = PollPermit::new(us(50));
        let polling = std::sync::atomic::AtomicUsize::new(0);
        let poll_often = || {
            let found = (0..20_000).filter(|_| {
                let once = permit.with(|| {
                    assert_eq!(polling.fetch_add(1, Ordering::Relaxed), 0);
                    polling.fetch_sub(1, Ordering::Relaxed);
                });
                once.is_some()
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
                        let once = permit.with(|| {
                            assert_eq!(polling.fetch_add(1, Ordering::Relaxed), 0);
                            polling.fetch_sub(1, Ordering::Relaxed);
                        });
                        once.is_some()
                    })
                })
                .collect();
            let found = others.into_iter().map(|other| other.join().unwrap());
            assert!(found.filter(|found| *found).count() >= 1);
            assert!(permit.with(|| ()).is_some());
        });
    }
}
