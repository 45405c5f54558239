//! The system as a source of memory: calls that map, resize and fault in, counted, and made to fail
//! on demand for tests. It owns no memory. `Budget` has one; everything that maps goes through it.

use std::time::Duration;

use rustix::io::Errno;

use super::mapping::{Mapping, PageSize, PopulateMethod, PrefaultReport};
use crate::jobs::ParallelFor;
use crate::sync::{Ordering, PlainAtomicU64};
use crate::{Error, ErrorKind};

/// Which requests of a budget fail on purpose (fault injection).
///
/// A request is one attempt to take bytes from the budget, one call that maps memory, or one that
/// faults it in. A caller that must succeed tries again after a wait, which is one more request. So
/// `count: 1` is a shortage that passes: [`MustSucceed`](super::AllocPolicy::MustSucceed) survives
/// it. `count: u64::MAX` is one that stays: it ends in
/// [`OutOfMemory`](crate::ErrorKind::OutOfMemory) after the budget's stall time, which tests make
/// short.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultPlan {
    /// Requests that pass first.
    pub after: u64,
    /// Requests in a row that fail then; 0 ends the plan.
    pub count: u64,
    /// Whether only calls to the system count; attempts to take bytes pass then.
    pub system_calls_only: bool,
}

/// Calls to the system for memory.
#[derive(Debug)]
pub(crate) struct SystemMemory {
    maps: PlainAtomicU64,
    populations: PlainAtomicU64,
    pub(super) fault_injector: FaultInjector,
}

impl SystemMemory {
    pub(super) fn new() -> Self {
        let zero = || PlainAtomicU64::new(0);
        Self { maps: zero(), populations: zero(), fault_injector: FaultInjector::new() }
    }

    /// Maps `length` bytes, rounded up to whole pages, none of them resident.
    pub(super) fn map(&self, length: usize, pages: PageSize) -> Result<Mapping, Error> {
        self.maps.fetch_add(1, Ordering::Relaxed);
        self.fault_injector.check("mapping memory")?;
        Mapping::anonymous(length, pages)
    }

    /// Faults in `length` bytes from `offset`, for writing, without changing them.
    pub(super) fn populate(
        &self,
        mapping: &Mapping,
        offset: usize,
        length: usize,
    ) -> Result<PopulateMethod, Error> {
        self.before_populate()?;
        mapping.populate_range(offset, length)
    }

    /// Faults in the range of `job`, piece by piece, and returns the time that all threads together
    /// took.
    pub(super) fn populate_by(
        &self,
        mapping: &mut Mapping,
        job: ParallelFor<'_>,
    ) -> Result<Duration, Error> {
        self.before_populate()?;
        mapping.populate_by(job).map(|report| report.taken)
    }

    /// Faults in the first `length` bytes, on as many threads as that is worth.
    pub(super) fn prefault(
        &self,
        mapping: &mut Mapping,
        length: u64,
    ) -> Result<PrefaultReport, Error> {
        self.before_populate()?;
        mapping.prefault_first(length)
    }

    fn before_populate(&self) -> Result<(), Error> {
        self.populations.fetch_add(1, Ordering::Relaxed);
        self.fault_injector.check("faulting memory in")
    }

    /// Calls that mapped memory.
    pub(super) fn maps(&self) -> u64 {
        self.maps.load(Ordering::Relaxed)
    }

    /// Calls that faulted memory in.
    pub(super) fn populations(&self) -> u64 {
        self.populations.load(Ordering::Relaxed)
    }
}

/// The fault plan of one budget.
#[derive(Debug)]
pub(super) struct FaultInjector {
    /// Requests that still pass.
    after: PlainAtomicU64,
    /// Requests that still fail; 0 without a plan.
    left: PlainAtomicU64,
    /// Requests that failed by this plan.
    injected: PlainAtomicU64,
    /// Not 0 while attempts to take bytes pass.
    system_calls_only: PlainAtomicU64,
    /// Not 0 while requests that may fail are refused.
    refuses_best_effort: PlainAtomicU64,
}

impl FaultInjector {
    fn new() -> Self {
        let zero = || PlainAtomicU64::new(0);
        Self {
            after: zero(),
            left: zero(),
            injected: zero(),
            system_calls_only: zero(),
            refuses_best_effort: zero(),
        }
    }

    pub(super) fn plan(&self, plan: FaultPlan) {
        // No request fails while the plan changes.
        self.left.store(0, Ordering::SeqCst);
        self.after.store(plan.after, Ordering::SeqCst);
        self.injected.store(0, Ordering::SeqCst);
        self.system_calls_only.store(u64::from(plan.system_calls_only), Ordering::SeqCst);
        self.left.store(plan.count, Ordering::SeqCst);
    }

    pub(super) fn refuse_best_effort(&self, refuses: bool) {
        self.refuses_best_effort.store(u64::from(refuses), Ordering::SeqCst);
    }

    /// Whether requests that may fail are refused by plan.
    pub(super) fn refuses_best_effort(&self) -> bool {
        // Relaxed, here and below: a test makes its plan before it gives work to other threads.
        self.refuses_best_effort.load(Ordering::Relaxed) != 0
    }

    pub(super) fn injected(&self) -> u64 {
        self.injected.load(Ordering::SeqCst)
    }

    /// Whether the attempt to take bytes that the caller is about to make fails.
    pub(super) fn fails_next_charge(&self) -> bool {
        self.left.load(Ordering::Relaxed) != 0
            && self.system_calls_only.load(Ordering::Relaxed) == 0
            && self.fails_by_plan()
    }

    /// The error of the call to the system that the caller is about to make, if that fails.
    fn check(&self, what: &'static str) -> Result<(), Error> {
        if self.left.load(Ordering::Relaxed) != 0 && self.fails_by_plan() {
            return Err(Error::new(ErrorKind::OutOfMemory, what).with_errno(Errno::NOMEM));
        }
        Ok(())
    }

    #[cold]
    fn fails_by_plan(&self) -> bool {
        let decrement = |word: &PlainAtomicU64| {
            let less = |left: u64| left.checked_sub(1);
            word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
        };
        let fails = !decrement(&self.after) && decrement(&self.left);
        if fails {
            self.injected.fetch_add(1, Ordering::SeqCst);
        }
        fails
    }
}
