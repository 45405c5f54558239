//! One sum of bytes under one limit. It owns the count, the waiting wait_queue and the list of reclaimers,
//! never any memory: who maps, charges first. The page pool, scratch, and every cache, context, table
//! and buffer outside of this crate are counted here (docs/memory.md has the sum).
//!
//! docs/memory.md, protocol B.

use std::time::Duration;

use super::alloc_policy::AllocPolicy;
use super::fault_injection::FaultPlan;
use super::reclaim::{self, Reclaimers};
use super::system_memory::SystemMemory;
use super::wait_queue::{WaitPriority, WaitQueue};
use crate::cache_padded::CachePadded;
use crate::sync::{Arc, AtomicBool, AtomicU64, Ordering, PlainAtomicU64};
use crate::{Error, ErrorKind};

/// How long nothing at all may come back before a request that must succeed gives up: long enough for
/// a slow disk, short enough that a program that waits for itself says so.
pub const DEFAULT_STALL: Duration = Duration::from_secs(10);

/// A limit in bytes and what is used of it. Clones are handles of one budget.
#[derive(Debug, Clone)]
pub struct Budget {
    inner: Arc<BudgetInner>,
}

#[derive(Debug)]
struct BudgetInner {
    /// Bytes charged now; never above `limit`.
    used: CachePadded<AtomicU64>,
    /// Read by every request, written when somebody begins or ends to wait.
    wait_queue: CachePadded<WaitQueue>,
    limit: u64,
    stall: Duration,
    /// The highest `used` ever was.
    peak: PlainAtomicU64,
    /// What a pressure watcher saw last.
    is_pressed: AtomicBool,
    reclaimers: Reclaimers,
    system: SystemMemory,
    counts: BudgetCounters,
}

#[derive(Debug, Default)]
struct BudgetCounters {
    refused: PlainAtomicU64,
    waited: PlainAtomicU64,
    gave_up: PlainAtomicU64,
    reclaimed: PlainAtomicU64,
}

/// What a budget counted since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct BudgetStats {
    /// Requests that may fail and were refused, here and in the page pool.
    pub refused: u64,
    /// Requests that must succeed and had to wait.
    pub waited: u64,
    /// Requests that must succeed and got [`ErrorKind::OutOfMemory`] after waiting.
    pub gave_up: u64,
    /// Bytes that reclaimers said they gave back.
    pub reclaimed_bytes: u64,
    /// Calls to the system that mapped memory or changed a mapping's length.
    pub mapping_calls: u64,
    /// Calls to the system that faulted memory in.
    pub populating_calls: u64,
}

impl Budget {
    /// A budget of `limit_bytes`, of which nothing is used, with [`DEFAULT_STALL`].
    #[must_use]
    pub fn new(limit_bytes: u64) -> Self {
        Self::with_stall(limit_bytes, DEFAULT_STALL)
    }

    /// The same with the time without any return after which one that must succeed gives up. A wait
    /// as a whole lasts six times that at most.
    #[must_use]
    pub fn with_stall(limit_bytes: u64, stall: Duration) -> Self {
        let inner = BudgetInner {
            used: CachePadded(AtomicU64::new(0)),
            wait_queue: CachePadded(WaitQueue::new()),
            limit: limit_bytes,
            stall,
            peak: PlainAtomicU64::new(0),
            is_pressed: AtomicBool::new(false),
            reclaimers: Reclaimers::new(),
            system: SystemMemory::new(),
            counts: BudgetCounters::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// BudgetCounters `bytes` until the charge is dropped.
    ///
    /// Who holds a charge and needs more to finish should [`grow`](Charge::grow) it: that may pass
    /// those who wait for what it holds. A second charge waits behind them, and if they wait for the
    /// first, one of them gives up after the stall time.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] when more is asked than the limit, or, under
    /// [`AllocPolicy::MustSucceed`], when reclaiming and waiting did not help;
    /// [`ErrorKind::NotNow`] under [`AllocPolicy::MayFail`] when the bytes are not there now, when somebody
    /// waits for memory, or when the system is short of it.
    pub fn charge(&self, bytes: u64, policy: AllocPolicy) -> Result<Charge, Error> {
        self.charge_bytes(bytes, policy, WaitPriority::Normal)?;
        Ok(Charge { budget: self.clone(), bytes })
    }

    /// Adds one who can give memory back: called with the bytes that are missing, it frees about as
    /// much and says how much. It is called on the thread that needs the memory, outside of all locks
    /// of this crate, from several threads at once. It must not wait for anybody who may wait for
    /// memory; inside of it even [`AllocPolicy::MustSucceed`] neither reclaims nor waits.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidSetting`] when 4,096 are registered.
    pub fn register_reclaimer(
        &self,
        uncharge: impl Fn(u64) -> u64 + Send + Sync + 'static,
    ) -> Result<ReclaimerRegistration, Error> {
        let number = self.inner.reclaimers.add(Box::new(uncharge))?;
        Ok(ReclaimerRegistration { budget: self.clone(), number })
    }

    /// The limit in bytes.
    #[must_use]
    pub fn limit_bytes(&self) -> u64 {
        self.inner.limit
    }

    /// Bytes charged now.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.inner.used.load(Ordering::Relaxed)
    }

    /// The most bytes that were charged at one time.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        self.inner.peak.load(Ordering::Relaxed)
    }

    /// What was counted so far.
    #[must_use]
    pub fn stats(&self) -> BudgetStats {
        let counts = &self.inner.counts;
        BudgetStats {
            refused: counts.refused.load(Ordering::Relaxed),
            waited: counts.waited.load(Ordering::Relaxed),
            gave_up: counts.gave_up.load(Ordering::Relaxed),
            reclaimed_bytes: counts.reclaimed.load(Ordering::Relaxed),
            mapping_calls: self.inner.system.maps(),
            populating_calls: self.inner.system.populations(),
        }
    }

    /// Makes requests fail as if memory were short, for tests of whoever uses this budget; replaces the
    /// plan before.
    #[doc(hidden)]
    pub fn inject_failures(&self, plan: FaultPlan) {
        self.inner.system.fault_injector.plan(plan);
    }

    /// How many requests failed by [`Self::inject_failures`] since it was called last.
    #[doc(hidden)]
    #[must_use]
    pub fn injected_failures(&self) -> u64 {
        self.inner.system.fault_injector.injected()
    }

    /// Whether requests that may fail give way now. Two loads of one line.
    pub(super) fn best_effort_yields(&self) -> bool {
        // A hint on both sides: it orders nothing.
        self.is_pressed() || !self.inner.wait_queue.is_empty()
    }

    /// Whether nobody waits for memory.
    pub(super) fn has_no_waiters(&self) -> bool {
        self.inner.wait_queue.is_empty()
    }

    /// Whether the last look at the system found it short of memory.
    #[must_use]
    pub fn is_pressed(&self) -> bool {
        self.inner.is_pressed.load(Ordering::Relaxed)
    }

    /// Sets what [`Self::is_pressed`] says.
    pub(super) fn set_pressed(&self, is_pressed: bool) {
        // Relaxed: a hint; it guards no data.
        self.inner.is_pressed.store(is_pressed, Ordering::Relaxed);
    }

    /// Where mappings come from.
    pub(super) fn system(&self) -> &SystemMemory {
        &self.inner.system
    }

    /// The refusal of what may fail, counted.
    #[cold]
    pub(super) fn refuse(&self, what: &'static str) -> Error {
        self.inner.counts.refused.fetch_add(1, Ordering::Relaxed);
        Error::new(ErrorKind::NotNow, what)
    }

    /// Takes bytes that are there now. It never waits.
    pub(super) fn try_charge_bytes(&self, bytes: u64) -> bool {
        if self.inner.system.fault_injector.is_next() {
            return false;
        }
        // The sum guards no data. SeqCst: a waiter sees what was given back before somebody missed it
        // in the wait_queue (B4).
        let used = &self.inner.used;
        let mut seen = used.load(Ordering::SeqCst);
        loop {
            let Some(sum) = seen.checked_add(bytes).filter(|sum| *sum <= self.inner.limit) else {
                return false;
            };
            match used.compare_exchange_weak(seen, sum, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    self.inner.peak.fetch_max(sum, Ordering::Relaxed);
                    return true;
                }
                Err(now) => seen = now,
            }
        }
    }

    /// A charge of bytes that are there now. It never waits, and gives way to nobody.
    pub(super) fn try_charge(&self, bytes: u64) -> Option<Charge> {
        self.try_charge_bytes(bytes).then(|| Charge { budget: self.clone(), bytes })
    }

    /// Takes bytes without a guard; [`Self::uncharge`] is its end.
    pub(super) fn charge_bytes(
        &self,
        bytes: u64,
        policy: AllocPolicy,
        priority: WaitPriority,
    ) -> Result<(), Error> {
        if bytes > self.inner.limit {
            return Err(Error::new(ErrorKind::OutOfMemory, "bytes of the memory budget")
                .with_amount(bytes, self.inner.limit));
        }
        match policy {
            AllocPolicy::MayFail if self.best_effort_yields() || !self.try_charge_bytes(bytes) => {
                Err(self.refuse("bytes of the memory budget"))
            }
            AllocPolicy::MayFail => Ok(()),
            AllocPolicy::MustSucceed => {
                if bytes == 0 || (self.has_no_waiters() && self.try_charge_bytes(bytes)) {
                    return Ok(());
                }
                self.wait_for(bytes, priority, || self.try_charge_bytes(bytes).then_some(()))
                    .ok_or_else(|| {
                        Error::new(ErrorKind::OutOfMemory, "bytes of the memory budget")
                            .with_amount(bytes, self.inner.limit)
                    })
            }
        }
    }

    /// Reclaims and waits until `attempt` gives something, or gives up. `bytes` is about how much is
    /// missing. Every reclaimer is asked before each sleep.
    #[cold]
    pub(super) fn wait_for<T>(
        &self,
        bytes: u64,
        priority: WaitPriority,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let counts = &self.inner.counts;
        counts.waited.fetch_add(1, Ordering::Relaxed);
        // A reclaimer that waits holds up the one that asked it, who may be the one it waits for.
        let taken = if reclaim::is_inside() {
            attempt()
        } else {
            self.inner.wait_queue.wait(self.inner.stall, priority, || {
                attempt().or_else(|| if self.reclaim(bytes) > 0 { attempt() } else { None })
            })
        };
        if taken.is_none() {
            counts.gave_up.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    /// Asks the reclaimers for `bytes`; says how many came back.
    fn reclaim(&self, bytes: u64) -> u64 {
        let came = self.inner.reclaimers.reclaim(bytes);
        self.inner.counts.reclaimed.fetch_add(came, Ordering::Relaxed);
        came
    }

    /// Gives back bytes that were taken without a guard.
    pub(super) fn uncharge(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        // SeqCst: given back before the look for waiters (B1).
        let before = self.inner.used.fetch_sub(bytes, Ordering::SeqCst);
        debug_assert!(before >= bytes, "{bytes} bytes given back of {before}");
        self.notify_waiters();
    }

    /// Says that something came back that waiters of the wait_queue may take.
    pub(super) fn notify_waiters(&self) {
        self.inner.wait_queue.notify_waiters();
    }

    /// Whether both are handles of one budget.
    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// How many wait now.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn waiters(&self) -> u32 {
        self.inner.wait_queue.waiters()
    }
}

/// Bytes counted in a budget until this is dropped.
#[derive(Debug)]
#[must_use = "dropping a charge gives its bytes back"]
pub struct Charge {
    budget: Budget,
    bytes: u64,
}

impl Charge {
    /// How many bytes this stands for.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds `bytes` to this charge. Under [`AllocPolicy::MustSucceed`] it may pass those who wait, once
    /// nothing came back for a while, since they may wait for this charge.
    ///
    /// # Errors
    ///
    /// As [`Budget::charge`]; the charge is then as it was.
    pub fn grow(&mut self, bytes: u64, policy: AllocPolicy) -> Result<(), Error> {
        let priority = if self.bytes > 0 { WaitPriority::Holder } else { WaitPriority::Normal };
        self.budget.charge_bytes(bytes, policy, priority)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Gives `bytes` of it back, or all when it has fewer.
    pub fn shrink(&mut self, bytes: u64) {
        let given = bytes.min(self.bytes);
        self.bytes -= given;
        self.budget.uncharge(given);
    }

    /// Ends the guard and leaves the bytes counted: [`Budget::uncharge`] is their end.
    pub(super) fn forget(&mut self) {
        self.bytes = 0;
    }

    /// Takes `bytes` out of this charge into one of their own; none when it has fewer.
    pub fn split(&mut self, bytes: u64) -> Option<Self> {
        self.bytes = self.bytes.checked_sub(bytes)?;
        Some(Self { budget: self.budget.clone(), bytes })
    }

    /// Makes one charge of two. A charge of another budget comes back unchanged.
    #[must_use = "a charge of another budget comes back"]
    pub fn merge(&mut self, mut other: Self) -> Option<Self> {
        if !self.budget.is(&other.budget) {
            return Some(other);
        }
        self.bytes += std::mem::take(&mut other.bytes);
        None
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.uncharge(self.bytes);
    }
}

/// A reclaimer is asked as long as this lives.
#[derive(Debug)]
#[must_use = "dropping a registration removes the reclaimer"]
pub struct ReclaimerRegistration {
    budget: Budget,
    number: u64,
}

impl Drop for ReclaimerRegistration {
    fn drop(&mut self) {
        self.budget.inner.reclaimers.remove(self.number);
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
