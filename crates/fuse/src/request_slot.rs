//! A request in flight: which one a listener is at, since when, and who may answer it. The listener that handles
//! a request and the watchdog that gives up on it both want to; exactly one does (docs/workers.md, protocol F).
//! Owned by `session`, used by `listener`, `reply` and `watchdog`.

use crate::sync::{AtomicU64, Ordering};

/// Set in a slot's word once somebody answers. Numbers of requests are even.
const ANSWERED: u64 = 1;

/// The place of one listener.
#[derive(Debug)]
pub(crate) struct RequestSlot {
    /// The number of the request, with [`ANSWERED`] once it has an answer; 0 between requests.
    word: AtomicU64,
    /// When the listener took it, in milliseconds of the session.
    since_ms: AtomicU64,
    /// The request that is not wanted any more, and since when.
    interrupted: AtomicU64,
    interrupted_since_ms: AtomicU64,
    /// Who asks: a thread number.
    pid: AtomicU64,
}

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InFlightRequest {
    pub(crate) unique: u64,
    /// Whether somebody has answered it already.
    pub(crate) is_answered: bool,
    /// When it was taken.
    pub(crate) since_ms: u64,
    /// Since when it is not wanted any more.
    pub(crate) interrupted_since_ms: Option<u64>,
    pub(crate) pid: u32,
}

impl RequestSlot {
    pub(crate) fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
            since_ms: AtomicU64::new(0),
            interrupted: AtomicU64::new(0),
            interrupted_since_ms: AtomicU64::new(0),
            pid: AtomicU64::new(0),
        }
    }

    /// F1: the listener has read a request. What belongs to it is written before its number can be seen.
    pub(crate) fn begin(&self, unique: u64, pid: u32, now: u64) {
        self.since_ms.store(now, Ordering::Relaxed);
        self.pid.store(u64::from(pid), Ordering::Relaxed);
        // Release: with the load of `in_flight` and of `interrupt`.
        self.word.store(unique, Ordering::Release);
    }

    /// F2: whoever gets `true` answers, and nobody else.
    pub(crate) fn claim(&self, unique: u64) -> bool {
        // Numbers are never used twice, so the word cannot have come back to this one. Nothing is handed over
        // with it: relaxed.
        self.word
            .compare_exchange(unique, unique | ANSWERED, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    /// F3: the listener is done with it. Answers whether somebody has answered.
    pub(crate) fn end(&self, unique: u64) -> bool {
        // Read and written in one step: an answer between two steps would be seen by nobody.
        self.word.swap(0, Ordering::Relaxed) != unique
    }

    /// F4: the kernel says that request `unique` is not wanted any more. `false`: it is not here.
    pub(crate) fn interrupt(&self, unique: u64, now: u64) -> bool {
        // Acquire: with `begin`.
        if self.word.load(Ordering::Acquire) & !ANSWERED != unique {
            return false;
        }
        self.interrupted_since_ms.store(now, Ordering::Relaxed);
        // Release: with the load in `in_flight`.
        self.interrupted.store(unique, Ordering::Release);
        true
    }

    /// F5: what is here now. Its parts may belong to a later request than `unique` if that has been answered
    /// meanwhile, and then claiming `unique` fails.
    pub(crate) fn in_flight(&self) -> Option<InFlightRequest> {
        // Acquire: with `begin`.
        let word = self.word.load(Ordering::Acquire);
        if word == 0 {
            return None;
        }
        let unique = word & !ANSWERED;
        // Acquire: with `interrupt`.
        let is_interrupted = self.interrupted.load(Ordering::Acquire) == unique;
        let interrupted_since_ms = self.interrupted_since_ms.load(Ordering::Relaxed);
        Some(InFlightRequest {
            unique,
            is_answered: word & ANSWERED != 0,
            since_ms: self.since_ms.load(Ordering::Relaxed),
            interrupted_since_ms: is_interrupted.then_some(interrupted_since_ms),
            pid: u32::try_from(self.pid.load(Ordering::Relaxed)).unwrap_or(0),
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::RequestSlot;

    #[test]
    fn a_request_is_answered_once() {
        let slot = RequestSlot::new();
        slot.begin(4, 77, 10);
        assert!(slot.claim(4));
        assert!(!slot.claim(4));
        assert!(slot.end(4));
        assert!(!slot.claim(4));
    }

    #[test]
    fn the_end_tells_that_nobody_answered() {
        let slot = RequestSlot::new();
        slot.begin(4, 0, 0);
        assert!(!slot.end(4));
        assert_eq!(slot.in_flight(), None);
    }

    #[test]
    fn an_interrupt_finds_its_request_only() {
        let slot = RequestSlot::new();
        slot.begin(4, 77, 10);
        assert!(!slot.interrupt(6, 20));
        assert_eq!(slot.in_flight().unwrap().interrupted_since_ms, None);
        assert!(slot.interrupt(4, 20));
        let in_flight = slot.in_flight().unwrap();
        assert_eq!((in_flight.unique, in_flight.pid, in_flight.since_ms), (4, 77, 10));
        assert_eq!(in_flight.interrupted_since_ms, Some(20));
        slot.end(4);
        slot.begin(8, 1, 30);
        assert_eq!(slot.in_flight().unwrap().interrupted_since_ms, None);
    }

    /// A stress test of protocol F: a listener and two who give up on it.
    #[test]
    fn each_of_many_requests_is_answered_once_under_stress() {
        const REQUESTS: u64 = 20_000;
        let slot = Arc::new(RequestSlot::new());
        let answers = Arc::new(AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    loop {
                        let Some(in_flight) = slot.in_flight() else { continue };
                        if in_flight.unique == 2 * REQUESTS {
                            return;
                        }
                        if slot.claim(in_flight.unique) {
                            answers.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            for number in 1..REQUESTS {
                slot.begin(2 * number, 0, 0);
                if slot.claim(2 * number) {
                    answers.fetch_add(1, Ordering::Relaxed);
                }
                assert!(slot.end(2 * number));
            }
            slot.begin(2 * REQUESTS, 0, 0);
        });
        assert_eq!(answers.load(Ordering::Relaxed), 19_999);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::RequestSlot;

    #[test]
    fn the_listener_and_the_watch_do_not_both_answer() {
        loom::model(|| {
            let slot = Arc::new(RequestSlot::new());
            let answers = Arc::new(AtomicUsize::new(0));
            slot.begin(2, 5, 1);
            let watchdog = {
                let (slot, answers) = (slot.clone(), answers.clone());
                loom::thread::spawn(move || {
                    let Some(in_flight) = slot.in_flight() else { return };
                    // A number that can be seen has its parts, or later ones.
                    assert!(in_flight.since_ms >= in_flight.unique / 2);
                    if slot.claim(in_flight.unique) {
                        answers.fetch_add(1, Ordering::Relaxed);
                    }
                })
            };
            for number in [2, 4] {
                if number > 2 {
                    slot.begin(number, 5, number / 2);
                }
                if slot.claim(number) {
                    answers.fetch_add(1, Ordering::Relaxed);
                }
                assert!(slot.end(number));
            }
            watchdog.join().unwrap();
            assert_eq!(answers.load(Ordering::Relaxed), 2);
        });
    }

    #[test]
    fn an_interrupt_is_seen_with_its_time() {
        loom::model(|| {
            let slot = Arc::new(RequestSlot::new());
            slot.begin(2, 5, 1);
            let interrupter = {
                let slot = slot.clone();
                loom::thread::spawn(move || slot.interrupt(2, 9))
            };
            if let Some(since_ms) = slot.in_flight().unwrap().interrupted_since_ms {
                assert_eq!(since_ms, 9);
            }
            assert!(interrupter.join().unwrap());
            assert_eq!(slot.in_flight().unwrap().interrupted_since_ms, Some(9));
        });
    }
}
