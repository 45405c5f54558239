//! Flags by which threads signal each other, of one word each: a `WakeEvent` ends a thread's sleep, a [`CancelToken`] asks
//! an operation to stop, and an [`ActivityFlag`] says whether something was used since the last check. None of them carries
//! data or takes a lock.
//!
//! docs/workers.md, protocols E (wake events) and I (activity flags). Workers sleep on a wake event, and so does a submitter
//! that waits for results. The idle reclaimer of an image uses an activity flag.

use crate::sync::{Arc, AtomicBool, AtomicU32, Futex, Ordering, fence};

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

/// Asks a long operation to stop. Clones share one flag, so a signal handler's thread keeps one clone and
/// the operation reads the other. A token that is cancelled stays cancelled.
///
/// It never interrupts a blocking call and never runs code in a signal handler's thread: whoever does long work reads it
/// at points where the work can stop.
///
/// ```
/// let token = ferrofs_workers::CancelToken::new();
/// let in_the_operation = token.clone();
/// token.cancel();
/// assert!(in_the_operation.is_cancelled());
/// ```
#[derive(Clone, Debug)]
pub struct CancelToken {
    cancelled: Arc<AtomicBool>,
}

impl CancelToken {
    /// A token that is not cancelled.
    #[must_use]
    pub fn new() -> Self {
        Self { cancelled: Arc::new(AtomicBool::new(false)) }
    }

    /// Cancels this token and all its clones. A second call changes nothing.
    pub fn cancel(&self) {
        // Pairs with the load in `is_cancelled`: a thread that finds it cancelled sees what was written before.
        self.cancelled.store(true, Ordering::Release);
    }

    /// Whether [`CancelToken::cancel`] was called on this token or on one of its clones.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        // Pairs with the store in `cancel`.
        self.cancelled.load(Ordering::Acquire)
    }
}

impl Default for CancelToken {
    fn default() -> Self {
        Self::new()
    }
}

/// No thread checks.
const UNCHECKED: u32 = 0;
/// A thread checks, and there was no use since its last check.
const IDLE: u32 = 1;
/// A thread checks or is being started, and there was a use since its last check.
const USED: u32 = 2;

/// A flag that many threads set and one thread checks.
///
/// All orderings are relaxed. The word guards no memory: every promise is about the order of the changes of this one word.
///
/// # Examples
/// ```
/// use ferrofs_workers::ActivityFlag;
///
/// let flag = ActivityFlag::new();
/// assert!(flag.record_use(), "no thread checks yet, so the caller starts one");
/// assert!(!flag.record_use(), "another use");
/// assert!(flag.take_use() && !flag.take_use());
/// assert!(flag.try_end(), "the thread may end");
/// ```
#[derive(Debug)]
pub struct ActivityFlag {
    state: AtomicU32,
}

impl Default for ActivityFlag {
    fn default() -> Self {
        Self::new()
    }
}

impl ActivityFlag {
    /// A flag that no thread checks.
    #[must_use]
    pub fn new() -> Self {
        Self { state: AtomicU32::new(UNCHECKED) }
    }

    /// Records a use. Returns whether the caller has to start the thread that checks: true for one
    /// caller until that thread has ended, or [`cancel_start`](Self::cancel_start) was called.
    ///
    /// Only the first use after a check writes.
    #[must_use]
    pub fn record_use(&self) -> bool {
        // I1.
        if self.state.load(Ordering::Relaxed) == USED {
            return false;
        }
        // I2. Only one swap can find that no thread checks.
        self.state.swap(USED, Ordering::Relaxed) == UNCHECKED
    }

    /// For the caller that was to start the thread and cannot: the next use will try it again.
    pub fn cancel_start(&self) {
        // I6.
        self.state.store(UNCHECKED, Ordering::Relaxed);
    }

    /// For the thread that checks: whether there was a use since the last call.
    #[must_use]
    pub fn take_use(&self) -> bool {
        // I3.
        self.state.swap(IDLE, Ordering::Relaxed) == USED
    }

    /// For the thread that checks and has nothing left to do: whether it may end. If not, there was a
    /// use since its last check, whose caller relies on it. After `true` the thread must not use
    /// the flag again.
    #[must_use]
    pub fn try_end(&self) -> bool {
        // I4, I5.
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        self.state.compare_exchange(IDLE, UNCHECKED, success, failure).is_ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{ActivityFlag, CancelToken};

    #[test]
    fn a_cancelled_token_is_cancelled_in_every_clone_and_stays_so() {
        let token = CancelToken::default();
        let clone = token.clone();
        assert!(!token.is_cancelled());
        clone.cancel();
        clone.cancel();
        assert!(token.is_cancelled());
        assert!(token.clone().is_cancelled());
        assert!(!CancelToken::new().is_cancelled());
    }

    #[test]
    fn a_use_after_the_last_check_keeps_the_thread_running() {
        let flag = ActivityFlag::new();
        assert!(flag.record_use());
        assert!(!flag.try_end(), "the use was not checked");
        assert!(flag.take_use());
        assert!(!flag.record_use(), "the thread still runs");
        assert!(!flag.try_end() && flag.take_use());
        assert!(flag.try_end());
        assert!(flag.record_use(), "the thread has ended");
    }

    #[test]
    fn a_start_that_failed_is_tried_again_at_the_next_use() {
        let flag = ActivityFlag::new();
        assert!(flag.record_use());
        flag.cancel_start();
        assert!(flag.record_use());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::{ActivityFlag, WakeEvent};
    use crate::sync::{Arc, AtomicBool, AtomicUsize, Ordering, thread};

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

    /// The flag, with what the thread that checks does.
    struct Checked {
        flag: ActivityFlag,
        is_checking: AtomicBool,
        uses_found: AtomicUsize,
    }

    impl Checked {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                flag: ActivityFlag::new(),
                is_checking: AtomicBool::new(false),
                uses_found: AtomicUsize::new(0),
            })
        }

        /// What the thread does. It may end only after a check that found no use.
        fn check_until_idle(&self) {
            assert!(!self.is_checking.swap(true, Ordering::SeqCst), "two threads check");
            loop {
                if self.flag.take_use() {
                    self.uses_found.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
                // Before the end, as the next thread may start right after it.
                self.is_checking.store(false, Ordering::SeqCst);
                if self.flag.try_end() {
                    return;
                }
                assert!(!self.is_checking.swap(true, Ordering::SeqCst), "two threads check");
            }
        }

        /// A user, which becomes the thread that checks if there is none.
        fn use_once(&self) {
            if self.flag.record_use() {
                self.check_until_idle();
            }
        }
    }

    /// I1 to I5: a use that races with the end of the thread is found by a check, of that thread or
    /// of the one that is started for it.
    #[test]
    fn no_use_is_lost_while_the_thread_ends() {
        loom::model(|| {
            let checked = Checked::new();
            let user = Arc::clone(&checked);
            assert!(checked.flag.record_use());
            assert!(checked.flag.take_use());
            let thread = thread::spawn(move || user.use_once());
            checked.check_until_idle();
            thread.join().unwrap();
            assert_eq!(checked.uses_found.load(Ordering::SeqCst), 1);
            assert!(checked.flag.record_use(), "no thread checks at the end");
        });
    }

    /// I2: of two first uses one starts the thread, there is never a second one, and a check follows
    /// the last use.
    #[test]
    fn of_two_users_one_starts_the_thread() {
        loom::model(|| {
            let checked = Checked::new();
            let threads = [0, 1].map(|_| {
                let user = Arc::clone(&checked);
                thread::spawn(move || user.use_once())
            });
            for thread in threads {
                thread.join().unwrap();
            }
            let found = checked.uses_found.load(Ordering::SeqCst);
            assert!((1..=2).contains(&found), "{found}");
            assert!(checked.flag.record_use(), "no thread checks at the end");
        });
    }
}
