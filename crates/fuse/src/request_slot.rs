//! The request that one listener handles: its number, when it was read, and who may reply to it. The listener and the
//! watchdog may both want to reply; exactly one does (docs/workers.md, protocol R). Owned by `session::state`, used by
//! the listener, its [`Reply`](crate::Reply) and the watchdog.

use std::sync::PoisonError;

use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, fence};

/// How many listeners may be started in addition to the permanent ones.
pub(crate) const MAX_SPARE_LISTENERS: usize = 64;

/// Set in a slot's word once somebody replies. The numbers of requests are even.
const ANSWERED: u64 = 1;
/// The listener waits for a request. It is no request: 0 is not the number of one.
const WAITING: u64 = ANSWERED;

/// The slot of one listener. Its listener writes it several times for each request, so it shares no cache line, nor the
/// pair of lines that a CPU fetches at once, with the slot of another listener.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct RequestSlot {
    /// The number of the request, with [`ANSWERED`] once it has a reply; [`WAITING`], or 0 between requests.
    word: AtomicU64,
    /// When the listener read it, in milliseconds of the session.
    since_ms: AtomicU64,
    /// The thread that made it.
    pid: AtomicU64,
    /// The last request that was interrupted here. A lock, since several listeners can read interrupts for this slot
    /// at the same time, and a number must not be combined with the time of another one. Interrupts are rare.
    interrupt: Mutex<Interrupt>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Interrupt {
    unique: u64,
    since_ms: u64,
}

/// A request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InFlightRequest {
    pub(crate) unique: u64,
    /// Whether somebody has replied already.
    pub(crate) is_answered: bool,
    /// When the listener read it, in milliseconds of the session.
    pub(crate) since_ms: u64,
    /// When its interrupt was read, if there was one.
    pub(crate) interrupted_since_ms: Option<u64>,
    pub(crate) pid: u32,
}

impl RequestSlot {
    pub(crate) fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
            since_ms: AtomicU64::new(0),
            pid: AtomicU64::new(0),
            interrupt: Mutex::new(Interrupt::default()),
        }
    }

    /// R0: the listener is about to wait for a request.
    pub(crate) fn begin_wait(&self) {
        // Relaxed, here and below: whether a listener waits decides, but publishes nothing.
        self.word.store(WAITING, Ordering::Relaxed);
    }

    /// R0: the listener has read a message.
    pub(crate) fn end_wait(&self) {
        self.word.store(0, Ordering::Relaxed);
    }

    /// Whether the listener waits for a request.
    pub(crate) fn is_waiting(&self) -> bool {
        self.word.load(Ordering::Relaxed) == WAITING
    }

    /// R1: the listener has read a request. Its number becomes visible last, and before anything that the listener reads
    /// of other slots or of the watchdog from here on.
    pub(crate) fn begin(&self, unique: u64, pid: u32, now_ms: u64) {
        self.since_ms.store(now_ms, Ordering::Relaxed);
        self.pid.store(u64::from(pid), Ordering::Relaxed);
        // Release: pairs with the loads in `in_flight` and `interrupt`.
        self.word.store(unique, Ordering::Release);
        // Pairs with this fence in other listeners (`is_waiting`), and with that in `WatchdogParker::park`.
        fence(Ordering::SeqCst);
    }

    /// R2: the caller that gets `true` replies, and nobody else does.
    pub(crate) fn claim(&self, unique: u64) -> bool {
        // Numbers are never used twice, so the word cannot have come back to this one. Relaxed: no data is published
        // with it.
        self.word
            .compare_exchange(unique, unique | ANSWERED, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    /// Whether somebody has replied to request `unique`, which is here.
    pub(crate) fn is_answered(&self, unique: u64) -> bool {
        // Relaxed: who reads it only stops to work, and nothing is published with it.
        self.word.load(Ordering::Relaxed) != unique
    }

    /// R3: the listener is done with the request. Returns whether somebody has replied.
    pub(crate) fn end(&self, unique: u64) -> bool {
        // One step, so that no claim can come between a load and a store.
        self.word.swap(0, Ordering::Relaxed) != unique
    }

    /// R4: the kernel interrupts request `unique`. `false`: the request is not here. Of several interrupts of one
    /// request the first one counts.
    pub(crate) fn interrupt(&self, unique: u64, now_ms: u64) -> bool {
        // Most slots hold another request: they are passed over without taking the lock.
        if !self.holds(unique) {
            return false;
        }
        let mut interrupt = self.interrupt.lock().unwrap_or_else(PoisonError::into_inner);
        // Checked again under the lock: if another thread has recorded an interrupt of a later request meanwhile, its
        // unlock made the later number visible here, and this one is over.
        if !self.holds(unique) {
            return false;
        }
        if interrupt.unique != unique {
            *interrupt = Interrupt { unique, since_ms: now_ms };
        }
        true
    }

    /// R5: the request that is here now. Its other parts may belong to a later request if `unique` was answered
    /// meanwhile; then claiming `unique` fails.
    pub(crate) fn in_flight(&self) -> Option<InFlightRequest> {
        // Acquire: pairs with `begin`.
        let word = self.word.load(Ordering::Acquire);
        if matches!(word, 0 | WAITING) {
            return None;
        }
        let unique = word & !ANSWERED;
        let interrupt = *self.interrupt.lock().unwrap_or_else(PoisonError::into_inner);
        Some(InFlightRequest {
            unique,
            is_answered: word & ANSWERED != 0,
            since_ms: self.since_ms.load(Ordering::Relaxed),
            interrupted_since_ms: (interrupt.unique == unique).then_some(interrupt.since_ms),
            pid: u32::try_from(self.pid.load(Ordering::Relaxed)).unwrap_or(0),
        })
    }

    fn holds(&self, unique: u64) -> bool {
        // Acquire: pairs with `begin`.
        self.word.load(Ordering::Acquire) & !ANSWERED == unique
    }
}

/// Whether the watchdog sleeps until there is a request: an idle mount wakes no thread. A listener that reads the first
/// request wakes or starts it (docs/workers.md, protocol R, steps R6 and R7). This type only decides; `session::state` has
/// the lock and the condition variable for the sleep itself. Listeners read the flag for each request, and it is written only when the watchdog falls
/// asleep and is woken.
#[derive(Debug)]
pub(crate) struct WatchdogParker {
    is_parked: AtomicBool,
}

impl WatchdogParker {
    /// Of a session whose watchdog is started by the first request.
    pub(crate) fn new() -> Self {
        Self { is_parked: AtomicBool::new(true) }
    }

    /// R6: the watchdog is about to sleep. It must look at all slots once more after this, and call [`wake`](Self::wake)
    /// if one has a request.
    pub(crate) fn park(&self) {
        self.is_parked.store(true, Ordering::Relaxed);
        // Pairs with the fence in `RequestSlot::begin`: either the listener sees the flag, or the watchdog the request.
        fence(Ordering::SeqCst);
    }

    /// R7: a listener has begun with a request. The caller that gets `true` has to wake the watchdog.
    pub(crate) fn wake(&self) -> bool {
        // The load first, so that listeners do not write the line. Relaxed: what the watchdog reads of the request, it
        // reads from its slot.
        self.is_parked.load(Ordering::Relaxed) && self.is_parked.swap(false, Ordering::Relaxed)
    }

    /// Whether the watchdog has to sleep on.
    pub(crate) fn is_parked(&self) -> bool {
        self.is_parked.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::{RequestSlot, WatchdogParker};

    #[test]
    fn a_request_is_answered_once() {
        let slot = RequestSlot::new();
        slot.begin(4, 77, 10);
        assert!(!slot.is_answered(4));
        assert!(slot.claim(4));
        assert!(slot.is_answered(4));
        assert!(!slot.claim(4));
        assert!(slot.end(4));
        assert!(!slot.claim(4));
    }

    #[test]
    fn a_listener_that_waits_has_no_request() {
        let slot = RequestSlot::new();
        assert!(!slot.is_waiting());
        slot.begin_wait();
        assert!(slot.is_waiting());
        assert_eq!(slot.in_flight(), None);
        assert!(!slot.interrupt(2, 0));
        slot.end_wait();
        assert!(!slot.is_waiting());
        slot.begin(4, 0, 0);
        assert!(!slot.is_waiting());
    }

    #[test]
    fn end_reports_that_nobody_replied() {
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

    /// A stress test of protocol R: a listener, and two threads that reply in its place.
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

    #[test]
    fn one_listener_wakes_a_sleeping_watchdog() {
        let parker = WatchdogParker::new();
        assert!(parker.wake());
        assert!(!parker.wake());
        parker.park();
        assert!(parker.is_parked());
        assert!(parker.wake());
        assert!(!parker.wake());
        assert!(!parker.is_parked());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::{RequestSlot, WatchdogParker};
    use crate::sync::Mutex;

    #[test]
    fn the_listener_and_the_watchdog_do_not_both_reply() {
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

    /// A watchdog that lost a message to a listener would wait in the device, and refuse a later request in its stead.
    #[test]
    fn a_listener_whose_request_hung_does_not_take_what_the_watchdog_reads() {
        loom::model(|| {
            let slot = Arc::new(RequestSlot::new());
            let overdue = Arc::new(Mutex::new(()));
            let messages = Arc::new(AtomicUsize::new(1));
            slot.begin(2, 5, 1);
            assert!(slot.claim(2));
            let watchdog = {
                let (slot, overdue, messages) = (slot.clone(), overdue.clone(), messages.clone());
                loom::thread::spawn(move || {
                    let _overdue = overdue.lock().unwrap();
                    let is_ready = || messages.load(Ordering::SeqCst) == 1;
                    if slot.in_flight().is_some_and(|request| request.is_answered) && is_ready() {
                        loom::thread::yield_now();
                        assert_eq!(messages.swap(0, Ordering::SeqCst), 1);
                    }
                })
            };
            slot.end(2);
            drop(overdue.lock().unwrap());
            messages.swap(0, Ordering::SeqCst);
            watchdog.join().unwrap();
        });
    }

    /// Each would store in the page cache while no listener is left to reply to the reads that the store waits for.
    #[test]
    fn two_listeners_with_a_request_do_not_both_see_the_other_wait() {
        loom::model(|| {
            let slots = Arc::new([RequestSlot::new(), RequestSlot::new()]);
            slots.iter().for_each(RequestSlot::begin_wait);
            let other = {
                let slots = slots.clone();
                loom::thread::spawn(move || {
                    slots[1].begin(4, 5, 1);
                    slots[0].is_waiting()
                })
            };
            slots[0].begin(2, 5, 1);
            let sees_other = slots[1].is_waiting();
            assert!(!(sees_other && other.join().unwrap()));
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

    /// A listener that is slow to record the interrupt of an earlier request must not overwrite the interrupt of the
    /// present one.
    #[test]
    fn two_interrupts_at_a_time_do_not_overwrite_each_other() {
        loom::model(|| {
            let slot = Arc::new(RequestSlot::new());
            slot.begin(2, 5, 1);
            let earlier = {
                let slot = slot.clone();
                loom::thread::spawn(move || slot.interrupt(2, 7))
            };
            slot.end(2);
            slot.begin(4, 5, 8);
            assert!(slot.interrupt(4, 9));
            earlier.join().unwrap();
            assert_eq!(slot.in_flight().unwrap().interrupted_since_ms, Some(9));
        });
    }

    #[test]
    fn the_first_of_two_interrupts_of_a_request_counts() {
        loom::model(|| {
            let slot = Arc::new(RequestSlot::new());
            slot.begin(2, 5, 1);
            let other = {
                let slot = slot.clone();
                loom::thread::spawn(move || slot.interrupt(2, 7))
            };
            assert!(slot.interrupt(2, 9));
            let first = slot.in_flight().unwrap().interrupted_since_ms;
            assert!(other.join().unwrap());
            assert_eq!(slot.in_flight().unwrap().interrupted_since_ms, first);
        });
    }

    #[test]
    fn no_request_is_missed_by_a_watchdog_that_falls_asleep() {
        loom::model(|| {
            let shared = Arc::new((RequestSlot::new(), WatchdogParker::new()));
            // A watchdog was started, and is awake.
            assert!(shared.1.wake());
            shared.0.begin_wait();
            let listener = {
                let shared = shared.clone();
                loom::thread::spawn(move || {
                    shared.0.end_wait();
                    shared.0.begin(2, 5, 1);
                    shared.1.wake()
                })
            };
            shared.1.park();
            let sees_request = shared.0.in_flight().is_some();
            let was_woken = listener.join().unwrap();
            assert!(sees_request || was_woken);
            assert_eq!(shared.1.is_parked(), !was_woken);
        });
    }
}
