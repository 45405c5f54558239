//! Requests for memory that fail on purpose: how tests of this crate's users reach every point at which
//! memory may be short. It owns the plan and its count, and decides nothing else. `Budget` asks it before
//! bytes are taken, `SystemMemory` before it maps or faults in; without a plan that is one load.

use rustix::io::Errno;

use crate::sync::{Ordering, PlainAtomicU64};
use crate::{Error, ErrorKind};

/// Which requests of a budget fail on purpose. A request is one attempt to take bytes of the budget, one
/// call that maps memory, or one that faults it in; who must succeed and is refused tries again after a
/// wait, which is one more request.
///
/// So `count: 1` is a shortage that passes: [`AllocPolicy::MustSucceed`](super::AllocPolicy::MustSucceed) survives
/// it. `count: u64::MAX` is one that stays: it ends in
/// [`OutOfMemory`](crate::ErrorKind::OutOfMemory) after the stall time of the budget, which tests make
/// short.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultPlan {
    /// Requests that pass first.
    pub after: u64,
    /// Requests that fail then, one after the other; 0 ends the plan.
    pub count: u64,
}

/// The plan of one budget.
#[derive(Debug)]
pub(super) struct FaultInjector {
    /// Requests that still pass.
    after: PlainAtomicU64,
    /// Requests that still fail; 0 without a plan.
    left: PlainAtomicU64,
    /// Requests that failed by this plan.
    injected: PlainAtomicU64,
}

impl FaultInjector {
    pub(super) fn new() -> Self {
        let none = || PlainAtomicU64::new(0);
        Self { after: none(), left: none(), injected: none() }
    }

    pub(super) fn plan(&self, plan: FaultPlan) {
        // No request fails while the plan changes.
        self.left.store(0, Ordering::SeqCst);
        self.after.store(plan.after, Ordering::SeqCst);
        self.injected.store(0, Ordering::SeqCst);
        self.left.store(plan.count, Ordering::SeqCst);
    }

    pub(super) fn injected(&self) -> u64 {
        self.injected.load(Ordering::SeqCst)
    }

    /// Whether the request that is just made fails.
    pub(super) fn is_next(&self) -> bool {
        // Relaxed: who made the plan gave it to the threads that it is about.
        self.left.load(Ordering::Relaxed) != 0 && self.is_planned()
    }

    /// The same as an error.
    pub(super) fn before(&self, what: &'static str) -> Result<(), Error> {
        if self.is_next() {
            return Err(Error::new(ErrorKind::OutOfMemory, what).with_errno(Errno::NOMEM));
        }
        Ok(())
    }

    #[cold]
    fn is_planned(&self) -> bool {
        let less = |word: &PlainAtomicU64| {
            let lower = |left: u64| left.checked_sub(1);
            word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, lower).is_ok()
        };
        let fails = !less(&self.after) && less(&self.left);
        if fails {
            self.injected.fetch_add(1, Ordering::SeqCst);
        }
        fails
    }
}
