//! One sum of bytes under one limit. It owns the sum, the wait queue and the reclaimers, and no
//! memory: a pool charges memory before it maps it. The pools of this module, and every cache,
//! context, table and buffer outside of this crate, are charged here (docs/memory.md has the sum).
//!
//! Pools map and fault in through the budget's `SystemMemory`, which counts these calls, and makes
//! them fail where a test has planned that (`FaultPlan`).
//!
//! docs/workers.md, protocol B.

use std::time::Duration;

use rustix::io::Errno;

use super::AllocPolicy;
use super::mapping::{Mapping, PageSize, PopulateMethod, PrefaultReport};
use super::wait_queue::{WaitPriority, WaitQueue};
use crate::counters::CachePadded;
use crate::jobs::ParallelFor;
use crate::sync::{Arc, AtomicU64, AtomicUsize, Mutex, Ordering, PlainAtomicU64, lock};
use crate::{Error, ErrorKind};

/// How long nothing may come back before a request that must succeed gives up: long enough for a
/// slow disk, short enough that a program that waits for itself fails visibly.
pub const DEFAULT_STALL: Duration = Duration::from_secs(10);

/// A limit in bytes and what is used of it. Clones are handles of one budget.
///
/// ```
/// use ferrofs_workers::memory::{AllocPolicy, Budget};
///
/// let budget = Budget::new(1 << 20);
/// let table = budget.charge(4096, AllocPolicy::MustSucceed)?;
/// assert_eq!(budget.used_bytes(), 4096);
/// // What may fail is refused at the limit; what must succeed would wait for `table` to be dropped.
/// assert!(budget.charge(1 << 20, AllocPolicy::MayFail).is_err());
/// drop(table);
/// assert_eq!(budget.used_bytes(), 0);
/// # Ok::<(), ferrofs_workers::Error>(())
/// ```
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
    reclaimers: Reclaimers,
    system: SystemMemory,
    counters: BudgetCounters,
}

#[derive(Debug, Default)]
struct BudgetCounters {
    refused: PlainAtomicU64,
    waited: PlainAtomicU64,
    gave_up: PlainAtomicU64,
    reclaimed: PlainAtomicU64,
}

/// What a budget has counted since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct BudgetStats {
    /// Requests that may fail and were refused, here and by the pools.
    pub refused: u64,
    /// Requests that must succeed and had to wait.
    pub waited: u64,
    /// Requests that must succeed and failed with [`ErrorKind::OutOfMemory`] after waiting.
    pub gave_up: u64,
    /// Bytes that reclaimers reported as freed.
    pub reclaimed_bytes: u64,
    /// System calls that mapped memory.
    pub mapping_calls: u64,
    /// System calls that faulted memory in.
    pub populating_calls: u64,
}

impl Budget {
    /// A budget of `limit_bytes`, of which nothing is used, with [`DEFAULT_STALL`].
    #[must_use]
    pub fn new(limit_bytes: u64) -> Self {
        Self::with_stall(limit_bytes, DEFAULT_STALL)
    }

    /// A budget with its own stall time. A request that must succeed gives up when nothing came
    /// back for the stall time, and after six times that in all.
    #[must_use]
    pub fn with_stall(limit_bytes: u64, stall: Duration) -> Self {
        let inner = BudgetInner {
            used: CachePadded(AtomicU64::new(0)),
            wait_queue: CachePadded(WaitQueue::new()),
            limit: limit_bytes,
            stall,
            peak: PlainAtomicU64::new(0),
            reclaimers: Reclaimers::new(),
            system: SystemMemory::new(),
            counters: BudgetCounters::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Counts `bytes` until the charge is dropped.
    ///
    /// A caller that holds a charge and needs more to finish should [`grow`](Charge::grow) it: that
    /// may pass requests that wait for what it holds. A second charge waits behind them, and if
    /// they wait for the first, one of them gives up after the stall time.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] for more than the limit or, under [`AllocPolicy::MustSucceed`],
    /// when reclaiming and waiting did not help. [`ErrorKind::NotNow`] under
    /// [`AllocPolicy::MayFail`] when the bytes are not free now or somebody waits for memory.
    pub fn charge(&self, bytes: u64, policy: AllocPolicy) -> Result<Charge, Error> {
        self.charge_bytes(bytes, policy, WaitPriority::Normal)?;
        Ok(Charge { budget: self.clone(), bytes })
    }

    /// Registers a reclaimer: a function that is called with the bytes that are missing, frees
    /// about as many, and returns how many. It runs on the thread that needs the memory, outside of
    /// all locks of this crate, and on several threads at once. It must not wait for a thread that
    /// may wait for memory: inside of it even [`AllocPolicy::MustSucceed`] neither reclaims nor
    /// waits.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidSetting`] when 4,096 reclaimers are registered.
    pub fn register_reclaimer(
        &self,
        reclaim: impl Fn(u64) -> u64 + Send + Sync + 'static,
    ) -> Result<ReclaimerRegistration, Error> {
        let number = self.inner.reclaimers.add(Box::new(reclaim))?;
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

    /// The counters so far.
    #[must_use]
    pub fn stats(&self) -> BudgetStats {
        let counters = &self.inner.counters;
        BudgetStats {
            refused: counters.refused.load(Ordering::Relaxed),
            waited: counters.waited.load(Ordering::Relaxed),
            gave_up: counters.gave_up.load(Ordering::Relaxed),
            reclaimed_bytes: counters.reclaimed.load(Ordering::Relaxed),
            mapping_calls: self.inner.system.maps(),
            populating_calls: self.inner.system.populations(),
        }
    }

    /// Makes requests fail as if memory were short, for tests of this budget's users. It replaces
    /// the plan before.
    #[doc(hidden)]
    pub fn inject_failures(&self, plan: FaultPlan) {
        self.inner.system.fault_injector.plan(plan);
    }

    /// How many requests have failed by the plan of [`Self::inject_failures`].
    #[doc(hidden)]
    #[must_use]
    pub fn injected_failures(&self) -> u64 {
        self.inner.system.fault_injector.injected()
    }

    /// While true, refuses all requests that may fail, as if somebody waited for memory. For tests
    /// of this budget's users.
    #[doc(hidden)]
    pub fn refuse_best_effort(&self, refuses: bool) {
        self.inner.system.fault_injector.refuse_best_effort(refuses);
    }

    /// Whether requests that may fail are refused now. Two loads of cache lines that are rarely
    /// written.
    pub(super) fn best_effort_yields(&self) -> bool {
        // A hint: it orders nothing.
        self.inner.system.fault_injector.refuses_best_effort() || !self.inner.wait_queue.is_empty()
    }

    /// Whether nobody waits for memory.
    pub(super) fn has_no_waiters(&self) -> bool {
        self.inner.wait_queue.is_empty()
    }

    /// Where mappings come from.
    pub(super) fn system(&self) -> &SystemMemory {
        &self.inner.system
    }

    /// The refusal of a request that may fail, counted.
    #[cold]
    pub(super) fn refuse(&self, what: &'static str) -> Error {
        self.inner.counters.refused.fetch_add(1, Ordering::Relaxed);
        Error::new(ErrorKind::NotNow, what)
    }

    /// Counts bytes if they are free now, without a guard. It never waits.
    pub(super) fn try_charge_bytes(&self, bytes: u64) -> bool {
        if self.inner.system.fault_injector.fails_next_charge() {
            return false;
        }
        // The sum guards no data. SeqCst: a waiter sees what was given back before somebody missed
        // it in the queue (B4).
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

    /// A charge of bytes that are free now. It never waits, and ignores waiters.
    pub(super) fn try_charge(&self, bytes: u64) -> Option<Charge> {
        self.try_charge_bytes(bytes).then(|| Charge { budget: self.clone(), bytes })
    }

    /// Counts bytes without a guard; [`Self::uncharge`] gives them back.
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

    /// Reclaims and waits until `attempt` returns something, or gives up. `bytes` is about how many
    /// are missing. All reclaimers are called before each sleep.
    #[cold]
    pub(super) fn wait_for<T>(
        &self,
        bytes: u64,
        priority: WaitPriority,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let counters = &self.inner.counters;
        counters.waited.fetch_add(1, Ordering::Relaxed);
        // A reclaimer that waits holds up its caller, which may be the one that it waits for.
        let taken = if inside_reclaimer::is_inside() {
            attempt()
        } else {
            self.inner.wait_queue.wait(self.inner.stall, priority, || {
                attempt().or_else(|| if self.reclaim(bytes) > 0 { attempt() } else { None })
            })
        };
        if taken.is_none() {
            counters.gave_up.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    /// Calls the reclaimers for `bytes`, and returns how many came back.
    fn reclaim(&self, bytes: u64) -> u64 {
        let reclaimed = self.inner.reclaimers.reclaim(bytes);
        self.inner.counters.reclaimed.fetch_add(reclaimed, Ordering::Relaxed);
        reclaimed
    }

    /// Gives back bytes that were counted without a guard.
    pub(super) fn uncharge(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        // SeqCst: given back before the look for waiters (B1).
        let before = self.inner.used.fetch_sub(bytes, Ordering::SeqCst);
        debug_assert!(before >= bytes, "{bytes} bytes given back of {before}");
        self.notify_waiters();
    }

    /// Wakes waiters after something came back that they may take.
    pub(super) fn notify_waiters(&self) {
        self.inner.wait_queue.notify();
    }

    /// How many wait now.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn waiters(&self) -> u32 {
        self.inner.wait_queue.waiters()
    }
}

/// Bytes that count in a budget until this is dropped.
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

    /// Adds `bytes` to this charge. Under [`AllocPolicy::MustSucceed`] it may pass requests that
    /// wait, once nothing has come back for a while, since they may wait for this charge.
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

    /// Gives `bytes` of it back, or all if it has fewer.
    pub fn shrink(&mut self, bytes: u64) {
        let given = bytes.min(self.bytes);
        self.bytes -= given;
        self.budget.uncharge(given);
    }

    /// Ends the guard and leaves the bytes counted: [`Budget::uncharge`] gives them back.
    pub(super) fn forget(&mut self) {
        self.bytes = 0;
    }

    /// Takes over bytes that were counted without a guard.
    pub(super) fn adopt(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Moves `bytes` out of this charge into a new one; none if it has fewer.
    pub fn split(&mut self, bytes: u64) -> Option<Self> {
        self.bytes = self.bytes.checked_sub(bytes)?;
        Some(Self { budget: self.budget.clone(), bytes })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.uncharge(self.bytes);
    }
}

/// A reclaimer is called for as long as this lives.
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

/// Reclaimers that one budget takes: caches are few, and each is called at every shortage.
const RECLAIMERS_MAX: usize = 4096;

/// Frees about as many bytes as asked, and returns how many.
type ReclaimFn = Box<dyn Fn(u64) -> u64 + Send + Sync>;

struct Reclaimer {
    number: u64,
    reclaim: ReclaimFn,
}

impl std::fmt::Debug for Reclaimer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reclaimer").field("number", &self.number).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct ReclaimerList {
    entries: Vec<Arc<Reclaimer>>,
    next_number: u64,
}

/// The reclaimers of a budget, in the order of their registration. They are called outside of the
/// lock.
#[derive(Debug)]
struct Reclaimers {
    list: Mutex<ReclaimerList>,
    /// The list's length, so that a budget without reclaimers takes no lock.
    length: AtomicUsize,
}

impl Reclaimers {
    fn new() -> Self {
        Self { list: Mutex::new(ReclaimerList::default()), length: AtomicUsize::new(0) }
    }

    /// Adds one at the end, and returns its number.
    fn add(&self, reclaim: ReclaimFn) -> Result<u64, Error> {
        let mut list = lock(&self.list);
        if list.entries.len() >= RECLAIMERS_MAX {
            return Err(Error::new(ErrorKind::InvalidSetting, "reclaimers of a budget")
                .with_amount(list.entries.len() as u64 + 1, RECLAIMERS_MAX as u64));
        }
        if list.entries.try_reserve(1).is_err() {
            return Err(Error::new(ErrorKind::OutOfMemory, "the list of reclaimers"));
        }
        let number = list.next_number;
        list.next_number += 1;
        list.entries.push(Arc::new(Reclaimer { number, reclaim }));
        self.length.store(list.entries.len(), Ordering::Release);
        Ok(number)
    }

    /// Removes one. A call of it that has begun goes on to its end.
    fn remove(&self, number: u64) {
        let mut list = lock(&self.list);
        let index = list.entries.iter().position(|entry| entry.number == number);
        let removed = index.map(|index| list.entries.remove(index));
        self.length.store(list.entries.len(), Ordering::Release);
        drop(list);
        // Outside of the lock: the closure may own a cache, whose drop may take any lock.
        drop(removed);
    }

    /// Calls one after the other until `bytes` came back, and returns how many did.
    ///
    /// Inside of a reclaimer nothing more is reclaimed: one that itself needs memory would
    /// otherwise call all reclaimers again, until the stack ends.
    fn reclaim(&self, bytes: u64) -> u64 {
        // Acquire pairs with the stores of `add` and `remove`; a late look costs one round.
        if self.length.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let Some(_inside) = inside_reclaimer::enter() else {
            return 0;
        };
        let mut reclaimed = 0_u64;
        let mut index = 0;
        while reclaimed < bytes {
            let entry = lock(&self.list).entries.get(index).map(Arc::clone);
            let Some(entry) = entry else { break };
            reclaimed = reclaimed.saturating_add((entry.reclaim)(bytes - reclaimed));
            index += 1;
        }
        reclaimed
    }
}

/// Whether this thread is inside of a reclaimer.
#[cfg(not(loom))]
mod inside_reclaimer {
    use std::cell::Cell;

    std::thread_local! {
        static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    }

    /// Inside until this is dropped.
    pub(super) struct Inside;

    /// Whether this thread is.
    pub(super) fn is_inside() -> bool {
        IS_INSIDE.get()
    }

    /// None if this thread is inside already.
    pub(super) fn enter() -> Option<Inside> {
        (!IS_INSIDE.replace(true)).then(|| Inside)
    }

    impl Drop for Inside {
        fn drop(&mut self) {
            IS_INSIDE.set(false);
        }
    }
}

/// Models register no reclaimer that needs memory, and their threads share one thread of the
/// system.
#[cfg(loom)]
mod inside_reclaimer {
    pub(super) fn is_inside() -> bool {
        false
    }

    pub(super) fn enter() -> Option<()> {
        Some(())
    }
}

/// Calls to the system for memory.
#[derive(Debug)]
pub(super) struct SystemMemory {
    maps: PlainAtomicU64,
    populations: PlainAtomicU64,
    fault_injector: FaultInjector,
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

/// The fault plan of one budget.
#[derive(Debug)]
struct FaultInjector {
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

    fn plan(&self, plan: FaultPlan) {
        // No request fails while the plan changes.
        self.left.store(0, Ordering::SeqCst);
        self.after.store(plan.after, Ordering::SeqCst);
        self.injected.store(0, Ordering::SeqCst);
        self.system_calls_only.store(u64::from(plan.system_calls_only), Ordering::SeqCst);
        self.left.store(plan.count, Ordering::SeqCst);
    }

    fn refuse_best_effort(&self, refuses: bool) {
        self.refuses_best_effort.store(u64::from(refuses), Ordering::SeqCst);
    }

    /// Whether requests that may fail are refused by plan.
    fn refuses_best_effort(&self) -> bool {
        // Relaxed, here and below: a test makes its plan before it gives work to other threads.
        self.refuses_best_effort.load(Ordering::Relaxed) != 0
    }

    fn injected(&self) -> u64 {
        self.injected.load(Ordering::SeqCst)
    }

    /// Whether the attempt to take bytes that the caller is about to make fails.
    fn fails_next_charge(&self) -> bool {
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

/// Every interleaving of charges of both policies.
#[cfg(all(test, loom))]
mod loom_tests {
    #![allow(
        clippy::unwrap_used,
        clippy::assertions_on_result_states,
        reason = "a test may fail where it stands"
    )]

    use super::*;
    use crate::sync::thread;

    #[test]
    fn a_charge_that_waits_gets_what_is_dropped_and_the_sum_never_passes_the_limit() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let budget = Budget::with_stall(2, Duration::from_secs(3600));
            let held = budget.charge(2, AllocPolicy::MayFail).unwrap();
            let own = budget.clone();
            let waiter = thread::spawn(move || {
                let charge = own.charge(1, AllocPolicy::MustSucceed).unwrap();
                assert!(own.used_bytes() <= 2);
                drop(charge);
            });
            drop(held);
            if let Ok(charge) = budget.charge(2, AllocPolicy::MayFail) {
                assert_eq!(budget.used_bytes(), 2, "nobody else has any");
                drop(charge);
            }
            waiter.join().unwrap();
            assert_eq!(budget.used_bytes(), 0);
        });
    }
}

#[cfg(all(test, not(loom)))]
#[path = "budget_tests.rs"]
mod tests;
