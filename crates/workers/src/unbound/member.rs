//! Which pool the current thread works for. A worker sets it once; a submitter asks, because what a
//! worker submits to its own pool runs inside of the item that submits it.

use std::cell::RefCell;

use crate::sync::{Arc, thread_local};

use super::tally::Tally;

thread_local! {
    #[allow(clippy::missing_const_for_thread_local, reason = "loom's macro knows no const")]
    static OWN: RefCell<Option<(usize, Arc<Tally>)>> = RefCell::new(None);
}

/// Held by a worker while it works; dropping it ends the membership, so that nothing of the pool stays
/// behind in the thread.
#[derive(Debug)]
pub(crate) struct Membership(());

impl Membership {
    /// Makes the current thread a worker of the pool with this identity.
    pub(crate) fn new(pool: usize, tally: Arc<Tally>) -> Self {
        OWN.with(|own| own.replace(Some((pool, tally))));
        Self(())
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        OWN.with(|own| own.replace(None));
    }
}

/// Whether the current thread works for this pool.
pub(crate) fn is_member(pool: usize) -> bool {
    own_tally(pool).is_some()
}

/// The current thread's tally if it works for this pool.
pub(crate) fn own_tally(pool: usize) -> Option<Arc<Tally>> {
    // A thread whose local variables are gone already is nobody's worker.
    let own = OWN.try_with(|own| {
        own.borrow().as_ref().filter(|(of, _)| *of == pool).map(|(_, tally)| Arc::clone(tally))
    });
    own.ok().flatten()
}
