//! Cooperative cancellation: a flag that one side sets and the other side reads between two steps of work.
//!
//! The token never interrupts a blocking call and never runs code in a signal handler's thread: whoever
//! does long work reads it at points where the work can stop.

use crate::sync::{Arc, AtomicBool, Ordering};

/// Asks a long operation to stop. Clones share one flag, so a signal handler's thread keeps one clone and
/// the operation reads the other. A token that is cancelled stays cancelled.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

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
}
