//! Whether something was used since the last check. Any thread records a use, one thread checks from time to time and ends
//! when there is nothing to do. While uses go on, recording one writes nothing.
//!
//! docs/workers.md, protocol I. The idle reclaimer of an image uses it.

use crate::sync::{AtomicU32, Ordering};

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
    use super::ActivityFlag;

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
    use super::ActivityFlag;
    use crate::sync::{Arc, AtomicBool, AtomicUsize, Ordering, thread};

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
