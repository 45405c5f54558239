//! The threads of one parallel call: the budget that helpers come from, and the team of the caller and its
//! helpers, which has ended when the call returns, so that the helpers may borrow from the caller.
//!
//! Helpers are scoped threads of the standard library, started for one call and joined by it. This needs no
//! unsafe code, and no helper outlives what it borrows. docs/workers.md says what a start costs.
//!
//! The budget counts and knows the CPUs. It never waits: a caller that wants more than is free gets less, so
//! that jobs within jobs cannot deadlock each other.
#![cfg_attr(loom, allow(dead_code, reason = "a model starts its threads itself"))]

use crate::cpus::AvailableCpus;
#[cfg(not(loom))]
use crate::cpus::CpuSet;
use crate::sync::{AtomicUsize, Ordering};

/// The most helpers that a budget holds: the most CPUs that Linux can be built for on x86-64. It bounds what
/// a call may allocate for its threads.
pub const MAX_HELPERS: usize = 8192;

/// A budget of helper threads, shared by all calls that are given it.
///
/// Most callers use [`HelperBudget::process`], which is the default. A budget of one's own is for work that
/// needs another number of threads, or that must not take helpers from the rest of the process.
#[derive(Debug)]
pub struct HelperBudget {
    free: AtomicUsize,
    total: usize,
    /// Whether helpers may use all CPUs of the process, also those that the thread may not use which starts them.
    is_unbound: bool,
}

impl HelperBudget {
    /// The budget of this process: one helper for each available CPU, at most as many as the CPU quota of its
    /// control group pays for. Read from the system at the first call.
    #[cfg(not(loom))]
    pub fn process() -> &'static Self {
        static PROCESS: std::sync::OnceLock<HelperBudget> = std::sync::OnceLock::new();
        PROCESS.get_or_init(|| Self::on(&AvailableCpus::read()))
    }

    /// `total` helpers, at most [`MAX_HELPERS`], which run wherever the system puts them. With 0 every caller
    /// works alone.
    #[must_use]
    pub fn new(total: usize) -> Self {
        let total = total.min(MAX_HELPERS);
        Self { free: AtomicUsize::new(total), total, is_unbound: false }
    }

    /// One helper for each of `available`, as far as its quota pays, on the CPUs of the process.
    pub(super) fn on(available: &AvailableCpus) -> Self {
        Self { is_unbound: true, ..Self::new(available.parallelism()) }
    }

    /// Helpers in the budget, busy or not.
    #[must_use]
    pub const fn total(&self) -> usize {
        self.total
    }

    /// Helpers that are free now.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        // Relaxed: the number guards no data.
        self.free.load(Ordering::Relaxed)
    }

    /// Takes `wanted` helpers, or as many as are free, or none. Never waits.
    pub(super) fn take(&self, wanted: u64) -> HelperTokens<'_> {
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        let rest = |free: usize| (wanted > 0 && free > 0).then(|| free.saturating_sub(wanted));
        // Relaxed, both: the number guards no data. No helper is given out twice, because all changes of this
        // one word have a total order.
        let count = match self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest) {
            Ok(free) => free.min(wanted),
            Err(_) => 0,
        };
        HelperTokens { helpers: self, count }
    }
}

/// Helpers taken from a budget; they go back when this is dropped.
#[derive(Debug)]
pub(super) struct HelperTokens<'h> {
    helpers: &'h HelperBudget,
    count: usize,
}

impl<'h> HelperTokens<'h> {
    /// Helpers taken.
    pub(super) const fn len(&self) -> usize {
        self.count
    }

    /// One of them, to be owned by its thread: it goes back when that thread ends.
    fn split(&mut self) -> Option<Self> {
        self.count = self.count.checked_sub(1)?;
        Some(Self { helpers: self.helpers, count: 1 })
    }

    /// The CPUs for the helpers of this budget, as they are now: an operator may change them at any time. `None`:
    /// those of the thread that starts them.
    #[cfg(not(loom))]
    fn cpus(&self) -> Option<CpuSet> {
        self.helpers.is_unbound.then(CpuSet::of_process)
    }
}

impl Drop for HelperTokens<'_> {
    fn drop(&mut self) {
        if self.count > 0 {
            // Relaxed: see `take`.
            self.helpers.free.fetch_add(self.count, Ordering::Relaxed);
        }
    }
}

/// How many helpers of a running call have not begun yet. It is a hint that may lag behind: a body chooses by
/// it how it works, and no result depends on it. Relaxed throughout, for the same reason.
///
/// While helpers are being started, a body that faults memory in takes a way that does not block the start
/// of threads (docs/workers.md, "Helpers").
#[derive(Debug, Default)]
pub(crate) struct PendingStarts(AtomicUsize);

impl PendingStarts {
    /// Whether some helper has not begun.
    pub(crate) fn is_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// Counts helpers that are going to be started.
    pub(crate) fn add(&self, helpers: usize) {
        self.0.fetch_add(helpers, Ordering::Relaxed);
    }

    /// Takes helpers back that are not started after all.
    pub(super) fn remove(&self, helpers: usize) {
        self.0.fetch_sub(helpers, Ordering::Relaxed);
    }

    /// One of the counted helpers, until this is dropped.
    pub(super) fn guard(&self) -> PendingStart<'_> {
        PendingStart(self)
    }
}

/// A helper that has not begun. Its thread's closure owns this, so that a thread that never starts does not
/// stay counted.
#[derive(Debug)]
#[must_use = "dropping it says that the helper has begun"]
pub(super) struct PendingStart<'s>(&'s PendingStarts);

impl Drop for PendingStart<'_> {
    fn drop(&mut self) {
        self.0.remove(1);
    }
}

/// Runs `own` on this thread and `helper` on one named thread for each token, and returns the number of
/// threads and the result of `own` when all have ended. `own` is told how many helpers were started: a thread
/// that the system refuses is a helper less. A panic of a helper resumes here, when all have ended; a panic
/// of `own` does, too. `pending_starts` counts the helpers that have not begun.
#[cfg(not(loom))]
pub(super) fn run<R>(
    tokens: Option<HelperTokens<'_>>,
    pending_starts: Option<&PendingStarts>,
    helper: impl Fn() + Sync,
    own: impl FnOnce(usize) -> R,
) -> (usize, R) {
    use crate::error::TaskFailure;
    use crate::sync::{Mutex, lock, thread};

    let Some(mut tokens) = tokens.filter(|tokens| tokens.len() > 0) else {
        return (1, own(0));
    };
    if let Some(pending_starts) = pending_starts {
        pending_starts.add(tokens.len());
    }
    let panicked = Mutex::new(None);
    let cpus = tokens.cpus();
    let (threads, result) = thread::scope(|scope| {
        let mut threads = 1;
        while let Some(token) = tokens.split() {
            let (panicked, helper, cpus) = (&panicked, &helper, cpus.as_ref());
            let pending = pending_starts.map(PendingStarts::guard);
            let body = move || {
                // Dropped with this closure: at the end, after a panic, and if the thread never starts.
                let _token = token;
                drop(pending);
                bind_to(cpus);
                let end: Result<(), TaskFailure<()>> = TaskFailure::catch(|| {
                    helper();
                    Ok(())
                });
                if let Err(failure) = end {
                    lock(panicked).get_or_insert(failure);
                }
            };
            let name = format!("job/{threads}");
            if thread::Builder::new().name(name).spawn_scoped(scope, body).is_err() {
                break;
            }
            threads += 1;
        }
        // The tokens for which no thread could be started go back now.
        if let Some(pending_starts) = pending_starts {
            pending_starts.remove(tokens.len());
        }
        drop(tokens);
        (threads, own(threads - 1))
    });
    let panicked = lock(&panicked).take();
    if let Some(failure) = panicked {
        failure.into_error();
    }
    (threads, result)
}

/// Lets this thread run on `cpus`. A new thread inherits the CPUs of the thread that starts it, which may be
/// pinned to one. If the system refuses, the helper runs where the caller may.
#[cfg(not(loom))]
fn bind_to(cpus: Option<&CpuSet>) {
    if let Some(cpus) = cpus
        && !cpus.is_empty()
        && CpuSet::of_current_thread() != *cpus
    {
        cpus.bind_current_thread().ok();
    }
}

/// The same in a model: loom has no scoped threads, so the caller is alone. The models of this folder start
/// their own threads over `ChunkCursor` and `ReorderRing`.
#[cfg(loom)]
pub(super) fn run<R>(
    tokens: Option<HelperTokens<'_>>,
    _pending_starts: Option<&PendingStarts>,
    _helper: impl Fn() + Sync,
    own: impl FnOnce(usize) -> R,
) -> (usize, R) {
    drop(tokens);
    (1, own(0))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_more_than_there_is_gets_less() {
        let helpers = HelperBudget::new(3);
        let two = helpers.take(2);
        let rest = helpers.take(u64::MAX);
        let none = helpers.take(1);
        assert_eq!((two.len(), rest.len(), none.len(), helpers.free()), (2, 1, 0, 0));
        drop(two);
        assert_eq!(helpers.free(), 2);
        drop((rest, none));
        assert_eq!(helpers.free(), 3);
    }

    #[test]
    fn a_token_that_was_split_off_goes_back_by_itself() {
        let helpers = HelperBudget::new(2);
        let mut tokens = helpers.take(2);
        let one = tokens.split().unwrap();
        drop(tokens.split().unwrap());
        assert!(tokens.split().is_none());
        assert_eq!(helpers.free(), 1);
        drop(tokens);
        assert_eq!(helpers.free(), 1);
        drop(one);
        assert_eq!(helpers.free(), 2);
    }

    #[test]
    fn helpers_run_on_the_cpus_that_the_process_has_then() {
        let cpus: CpuSet = [0, 1].into_iter().collect();
        let helpers = HelperBudget::on(&AvailableCpus::fixed(cpus));
        assert_eq!((helpers.total(), helpers.take(1).cpus()), (2, Some(CpuSet::of_process())));
        let anywhere = HelperBudget::new(2);
        assert_eq!(anywhere.take(1).cpus(), None);
    }

    #[test]
    fn the_budget_of_the_process_is_one_helper_for_each_available_cpu() {
        let available = AvailableCpus::read();
        let process = HelperBudget::process();
        assert_eq!(process.total(), available.parallelism().min(MAX_HELPERS));
        assert_eq!(process.take(1).cpus(), Some(CpuSet::of_process()));
        // The standard library reads the same mask and quota, but rounds the quota down.
        let by_std = std::thread::available_parallelism().unwrap().get();
        assert!((by_std..=by_std + 1).contains(&process.total()), "{by_std}");
    }

    #[test]
    fn a_budget_is_bounded() {
        assert_eq!(HelperBudget::new(usize::MAX).total(), MAX_HELPERS);
    }

    #[test]
    fn no_start_is_pending_once_the_last_helper_begins_or_is_taken_back() {
        let pending_starts = PendingStarts::default();
        assert!(!pending_starts.is_any());
        pending_starts.add(3);
        let (one, other) = (pending_starts.guard(), pending_starts.guard());
        drop(one);
        pending_starts.remove(1);
        assert!(pending_starts.is_any());
        drop(other);
        assert!(!pending_starts.is_any());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    //! Models of the budget that helpers come from, and of the starts that are pending.
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

    use std::sync::atomic::{AtomicU32 as Plain, Ordering as PlainOrdering};

    use super::{HelperBudget, PendingStarts};
    use crate::sync::{Arc, thread};

    #[test]
    fn no_helper_is_given_out_twice_and_all_come_back() {
        loom::model(|| {
            let helpers = Arc::new(HelperBudget::new(2));
            let taken = Arc::new(Plain::new(0));
            let take = |helpers: &HelperBudget, taken: &Plain| {
                let tokens = helpers.take(2);
                let count = u32::try_from(tokens.len()).unwrap();
                assert!(taken.fetch_add(count, PlainOrdering::SeqCst) + count <= 2);
                taken.fetch_sub(count, PlainOrdering::SeqCst);
            };
            let other = (Arc::clone(&helpers), Arc::clone(&taken));
            let other = thread::spawn(move || take(&other.0, &other.1));
            take(&helpers, &taken);
            other.join().unwrap();
            assert_eq!(helpers.free(), 2);
        });
    }

    #[test]
    fn who_is_being_started_ends_with_the_last_of_them() {
        loom::model(|| {
            let starting = Arc::new(PendingStarts::default());
            starting.add(3);
            let helpers = [0; 2].map(|_| {
                let starting = Arc::clone(&starting);
                thread::spawn(move || {
                    drop(starting.guard());
                })
            });
            assert!(starting.is_any(), "one was not given up yet");
            starting.remove(1);
            helpers.into_iter().for_each(|helper| helper.join().unwrap());
            assert!(!starting.is_any());
        });
    }
}
