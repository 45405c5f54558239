//! Whether the watchdog sleeps until there is a request: an idle mount wakes no thread. A listener that reads the first
//! request wakes or starts it (docs/workers.md, protocol R, steps R6 and R7). It decides only; `session::state` has the lock and the
//! condition variable for the sleep itself.

use crate::sync::{AtomicBool, Ordering, fence};

/// The flag of a sleeping watchdog. Listeners read it for each request, and it is written only when the watchdog falls
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
    use super::WatchdogParker;

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

    use super::WatchdogParker;
    use crate::request_slot::RequestSlot;

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
