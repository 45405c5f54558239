//! Which pool the current thread works for. A worker sets it once; a submitter asks, because what a
//! worker submits to its own pool runs inside of the item that submits it.

use std::cell::RefCell;

use crate::sync::{Arc, thread_local};

use super::worker_counters::WorkerCounters;

thread_local! {
    #[allow(clippy::missing_const_for_thread_local, reason = "loom's macro knows no const")]
    static OWN: RefCell<Option<(usize, Arc<WorkerCounters>)>> = RefCell::new(None);
}

/// Held by a worker while it works; dropping it ends the membership, so that nothing of the pool stays
/// behind in the thread.
#[derive(Debug)]
pub(crate) struct CurrentPoolGuard(());

impl CurrentPoolGuard {
    /// Makes the current thread a worker of the pool with this identity.
    pub(crate) fn new(pool: usize, counters: Arc<WorkerCounters>) -> Self {
        OWN.with(|own| own.replace(Some((pool, counters))));
        Self(())
    }
}

impl Drop for CurrentPoolGuard {
    fn drop(&mut self) {
        OWN.with(|own| own.replace(None));
    }
}

/// Whether the current thread works for this pool.
pub(crate) fn is_pool_thread(pool: usize) -> bool {
    current_counters(pool).is_some()
}

/// The current thread's counters if it works for this pool.
pub(crate) fn current_counters(pool: usize) -> Option<Arc<WorkerCounters>> {
    // A thread whose local variables are gone already is nobody's worker.
    let own = OWN.try_with(|own| {
        own.borrow()
            .as_ref()
            .filter(|(of, _)| *of == pool)
            .map(|(_, counters)| Arc::clone(counters))
    });
    own.ok().flatten()
}
