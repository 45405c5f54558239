//! Where memory really comes from: mapping, growing and faulting in, each counted, and each able to
//! fail on demand in tests. It owns no memory. `PagePool` and `Scratch` ask it through their budget.

use std::time::Duration;

use super::fault_injection::FaultInjector;
use super::mapping::{Mapping, PageSize, PopulateMethod};
use super::prefault::PrefaultReport;
use crate::Error;
use crate::jobs::ParallelFor;
use crate::sync::{Ordering, PlainAtomicU64};

/// The system as a source of memory.
#[derive(Debug)]
pub(crate) struct SystemMemory {
    maps: PlainAtomicU64,
    populations: PlainAtomicU64,
    pub(super) fault_injector: FaultInjector,
    #[cfg(test)]
    pub(super) failures: failures::Failures,
}

impl SystemMemory {
    pub(super) fn new() -> Self {
        Self {
            maps: PlainAtomicU64::new(0),
            populations: PlainAtomicU64::new(0),
            fault_injector: FaultInjector::new(),
            #[cfg(test)]
            failures: failures::Failures::new(),
        }
    }

    /// Maps `length` bytes, size_class up to whole pages, none of them resident.
    pub(super) fn map(&self, length: usize, pages: PageSize) -> Result<Mapping, Error> {
        self.maps.fetch_add(1, Ordering::Relaxed);
        self.fault_injector.before("mapping memory")?;
        #[cfg(test)]
        self.failures.before_map()?;
        Mapping::anonymous(length, pages)
    }

    /// Changes the length of a mapping, which may move it. On an error it is as it was.
    pub(super) fn resize(&self, mapping: &mut Mapping, length: usize) -> Result<(), Error> {
        self.maps.fetch_add(1, Ordering::Relaxed);
        self.fault_injector.before("mapping memory")?;
        #[cfg(test)]
        self.failures.before_map()?;
        mapping.resize(length)
    }

    /// Faults `length` bytes from `offset` in, for writing, without changing them.
    pub(super) fn populate(
        &self,
        mapping: &Mapping,
        offset: usize,
        length: usize,
    ) -> Result<PopulateMethod, Error> {
        self.populations.fetch_add(1, Ordering::Relaxed);
        self.fault_injector.before("faulting memory in")?;
        #[cfg(test)]
        self.failures.before_populate()?;
        mapping.populate_range(offset, length)
    }

    /// Faults in what `job` is over, piece by piece; says how long all threads together took.
    pub(super) fn populate_by(
        &self,
        mapping: &mut Mapping,
        job: ParallelFor<'_>,
    ) -> Result<Duration, Error> {
        self.populations.fetch_add(1, Ordering::Relaxed);
        self.fault_injector.before("faulting memory in")?;
        #[cfg(test)]
        self.failures.before_populate()?;
        mapping.populate_by(job).map(|populating| populating.taken)
    }

    /// Faults the first `length` bytes in, on as many threads as that is worth.
    pub(super) fn prefault(
        &self,
        mapping: &mut Mapping,
        length: u64,
    ) -> Result<PrefaultReport, Error> {
        self.populations.fetch_add(1, Ordering::Relaxed);
        self.fault_injector.before("faulting memory in")?;
        #[cfg(test)]
        self.failures.before_populate()?;
        mapping.prefault_first(length)
    }

    /// Calls that mapped or grew a mapping.
    pub(super) fn maps(&self) -> u64 {
        self.maps.load(Ordering::Relaxed)
    }

    /// Calls that faulted pages in.
    pub(super) fn populations(&self) -> u64 {
        self.populations.load(Ordering::Relaxed)
    }
}

/// FaultPlan that tests ask for.
#[cfg(test)]
pub(super) mod failures {
    use rustix::io::Errno;

    use crate::sync::{AtomicU32, Ordering};
    use crate::{Error, ErrorKind};

    /// "After so many calls, fail so many": skip in the high half, failures in the low half.
    #[derive(Debug)]
    pub(crate) struct Failures {
        maps: [AtomicU32; 2],
        populations: [AtomicU32; 2],
    }

    impl Failures {
        pub(super) fn new() -> Self {
            let none = || [AtomicU32::new(0), AtomicU32::new(0)];
            Self { maps: none(), populations: none() }
        }

        /// The mapping after the next `skipped` ones fails, `count` times in a row.
        #[cfg(not(loom))]
        pub(crate) fn refuse_maps(&self, skipped: u32, count: u32) {
            self.maps[0].store(skipped, Ordering::SeqCst);
            self.maps[1].store(count, Ordering::SeqCst);
        }

        /// The same for faulting in.
        #[cfg(not(loom))]
        pub(crate) fn refuse_populations(&self, skipped: u32, count: u32) {
            self.populations[0].store(skipped, Ordering::SeqCst);
            self.populations[1].store(count, Ordering::SeqCst);
        }

        pub(super) fn before_map(&self) -> Result<(), Error> {
            Self::before(&self.maps, "mapping memory")
        }

        pub(super) fn before_populate(&self) -> Result<(), Error> {
            Self::before(&self.populations, "faulting memory in")
        }

        fn before(plan: &[AtomicU32; 2], what: &'static str) -> Result<(), Error> {
            let lower = |left: u32| left.checked_sub(1);
            let one_less = |word: &AtomicU32| {
                word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, lower).is_ok()
            };
            if one_less(&plan[0]) || !one_less(&plan[1]) {
                return Ok(());
            }
            Err(Error::new(ErrorKind::OutOfMemory, what).with_errno(Errno::NOMEM))
        }
    }
}
