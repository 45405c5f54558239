//! How many helpers of a running job are still being started: a hint for bodies that know a way to work which does not
//! hold starting threads up. It is set by the [crew](super::crew) and read by bodies; no result depends on it.

use crate::sync::{AtomicUsize, Ordering};

/// The hint. It may lag behind: a body chooses by it how it works, never whether its work is right. Relaxed
/// throughout, for the same reason.
#[derive(Debug, Default)]
pub(crate) struct Starting(AtomicUsize);

impl Starting {
    /// Whether some helper has not begun yet.
    pub(crate) fn is_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// So many helpers are going to be started.
    pub(crate) fn expect(&self, helpers: usize) {
        self.0.fetch_add(helpers, Ordering::Relaxed);
    }

    /// So many of them are not, after all.
    pub(super) fn give_up(&self, helpers: usize) {
        self.0.fetch_sub(helpers, Ordering::Relaxed);
    }

    /// One of those that are expected, until this is dropped.
    pub(super) fn one(&self) -> One<'_> {
        One(self)
    }
}

/// A helper that has not begun. Belongs to its thread's closure, so that one which never starts is not waited for
/// either.
#[derive(Debug)]
#[must_use = "dropped, it says that the helper has begun"]
pub(super) struct One<'s>(&'s Starting);

impl Drop for One<'_> {
    fn drop(&mut self) {
        self.0.give_up(1);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Starting;

    #[test]
    fn it_ends_with_the_last_that_begins_or_is_given_up() {
        let starting = Starting::default();
        assert!(!starting.is_any());
        starting.expect(3);
        let (one, other) = (starting.one(), starting.one());
        drop(one);
        starting.give_up(1);
        assert!(starting.is_any());
        drop(other);
        assert!(!starting.is_any());
    }
}
