//! How many helpers of a running job are still being started: a hint for bodies that know a way to work which does not
//! hold pending_starts threads up. It is set by the [thread_team](super::thread_team) and read by bodies; no result depends on it.

use crate::sync::{AtomicUsize, Ordering};

/// The hint. It may lag behind: a body chooses by it how it works, never whether its work is right. Relaxed
/// throughout, for the same reason.
#[derive(Debug, Default)]
pub(crate) struct PendingStarts(AtomicUsize);

impl PendingStarts {
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

    /// PendingStart of those that are expected, until this is dropped.
    pub(super) fn one(&self) -> PendingStart<'_> {
        PendingStart(self)
    }
}

/// A helper that has not begun. Belongs to its thread's closure, so that one which never starts is not waited for
/// either.
#[derive(Debug)]
#[must_use = "dropped, it says that the helper has begun"]
pub(super) struct PendingStart<'s>(&'s PendingStarts);

impl Drop for PendingStart<'_> {
    fn drop(&mut self) {
        self.0.give_up(1);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::PendingStarts;

    #[test]
    fn it_ends_with_the_last_that_begins_or_is_given_up() {
        let pending_starts = PendingStarts::default();
        assert!(!pending_starts.is_any());
        pending_starts.expect(3);
        let (one, other) = (pending_starts.one(), pending_starts.one());
        drop(one);
        pending_starts.give_up(1);
        assert!(pending_starts.is_any());
        drop(other);
        assert!(!pending_starts.is_any());
    }
}
