//! The threads of one job: the caller and as many helpers as it has tokens for, all gone when the
//! call returns, so that what they work on may be borrowed. It knows nothing of chunks or items; it
//! is called by [`ParallelFor`](super::ParallelFor) and [`OrderedPipeline`](super::OrderedPipeline).
//!
//! HelperBudget are threads of the standard library's scope, started for the job and ended with it:
//! nothing here needs unsafe code, and no helper outlives what it borrows. What that costs is
//! written down in docs/workers.md.

use super::helper_budget::{HelperPlacement, HelperTokens};
use super::pending_starts::PendingStarts;

/// Who took part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ThreadTeam {
    /// Threads, the caller among them.
    pub(super) threads: usize,
    /// HelperBudget that were bound to the CPUs of one node.
    pub(super) bound: usize,
}

impl ThreadTeam {
    /// A caller without helpers.
    pub(super) const ALONE: Self = Self { threads: 1, bound: 0 };
}

/// Runs `own` on this thread and `helper` on one named thread for each token, and returns when all
/// are done. A thread that cannot be started is a helper less. A panic of `own` or of a helper goes
/// on here, when all are done. Until every helper runs, `pending_starts` says so, if somebody asked for it.
#[cfg(not(loom))]
pub(super) fn run<R>(
    tokens: Option<HelperTokens<'_>>,
    placement: HelperPlacement,
    pending_starts: Option<&PendingStarts>,
    helper: impl Fn() + Sync,
    own: impl FnOnce() -> R,
) -> (ThreadTeam, R) {
    use super::task_failure::TaskFailure;
    use crate::sync::{AtomicUsize, Mutex, Ordering, lock, thread};

    let Some(mut tokens) = tokens.filter(|tokens| tokens.len() > 0) else {
        return (ThreadTeam::ALONE, own());
    };
    let by_node = placement == HelperPlacement::ByNode && tokens.know_nodes();
    let bound = AtomicUsize::new(0);
    if let Some(pending_starts) = pending_starts {
        pending_starts.expect(tokens.len());
    }
    let panicked = Mutex::new(None);
    let (threads, outcome) = thread::scope(|scope| {
        let mut threads = 1;
        while let Some(token) = tokens.split() {
            let cpus = tokens.next_cpus(placement);
            let (bound, panicked, helper) = (&bound, &panicked, &helper);
            let one = pending_starts.map(PendingStarts::one);
            let body = move || {
                // Dropped with this closure: at the end, after a panic, and if it never starts.
                let _token = token;
                drop(one);
                if cpus.is_some_and(is_bound_to) && by_node {
                    bound.fetch_add(1, Ordering::Relaxed); // read after the scope joined
                }
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
        // What no thread could be started for goes back now.
        if let Some(pending_starts) = pending_starts {
            pending_starts.give_up(tokens.len());
        }
        drop(tokens);
        (threads, own())
    });
    let panicked = lock(&panicked).take();
    if let Some(failure) = panicked {
        failure.into_error();
    }
    (ThreadTeam { threads, bound: bound.into_inner() }, outcome)
}

/// Lets this thread run on `cpus`; says whether it does. A new thread has its starter's CPUs, which
/// may be one that the starter is pinned to.
#[cfg(not(loom))]
fn is_bound_to(cpus: &crate::cpus::CpuSet) -> bool {
    crate::cpus::CpuSet::of_current_thread() == *cpus || cpus.bind_current_thread().is_ok()
}

/// The same in a model: loom has no scoped threads, so the caller is alone. The models of this
/// folder start threads of their own over `ChunkCursor` and `ReorderRing`.
#[cfg(loom)]
pub(super) fn run<R>(
    tokens: Option<HelperTokens<'_>>,
    _placement: HelperPlacement,
    _starting: Option<&PendingStarts>,
    _helper: impl Fn() + Sync,
    own: impl FnOnce() -> R,
) -> (ThreadTeam, R) {
    drop(tokens);
    (ThreadTeam::ALONE, own())
}
