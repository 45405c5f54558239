//! The budget of helper threads. It counts and it knows the CPUs; it starts no thread and it never
//! waits: who asks for more than there is gets less, so that jobs within jobs cannot lock each other
//! out. Asked by [`ParallelFor`](super::ParallelFor) and [`OrderedPipeline`](super::OrderedPipeline) before they start threads.

use crate::cpus::{AvailableCpus, CpuSet};
use crate::sync::{AtomicUsize, Ordering};

/// HelperBudget that a budget holds at most: the most CPUs that Linux can be built for on x86-64, and so
/// a bound for what a job may allocate for its chunks.
pub const MAX_HELPERS: usize = 8192;

/// Where helpers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum HelperPlacement {
    /// On any CPU that the system grants the process, even if the caller is pinned to one.
    #[default]
    Anywhere,
    /// Each helper on the CPUs of one node, the next helper on the next node that has granted CPUs;
    /// the round goes on from job to job. The same as `Anywhere` where there is one node.
    ByNode,
}

/// A budget of helper threads, shared by all jobs that are given it.
///
/// Most callers use [`HelperBudget::process`], and do so by saying nothing. A budget of one's own is for
/// tests and for work that must not take helpers from the rest.
#[derive(Debug)]
pub struct HelperBudget {
    free: AtomicUsize,
    total: usize,
    /// The node for the next helper, modulo the nodes.
    cursor: AtomicUsize,
    /// CPUs for helpers that may run anywhere; none: where the system puts them.
    cpus: Option<CpuSet>,
    /// CPUs of each node; empty where there is only one.
    nodes: Vec<CpuSet>,
}

impl HelperBudget {
    /// The budget of this process: one helper for each granted CPU, capped by the quota of its
    /// control group, read from the system when this is called for the first time.
    #[cfg(not(loom))]
    pub fn process() -> &'static Self {
        static PROCESS: std::sync::OnceLock<HelperBudget> = std::sync::OnceLock::new();
        PROCESS.get_or_init(|| Self::granted(&AvailableCpus::read()))
    }

    /// One helper for each CPU of `granted`, capped by its quota, placed on its CPUs.
    #[must_use]
    pub fn granted(granted: &AvailableCpus) -> Self {
        let nodes: Vec<CpuSet> = granted.nodes().iter().map(|node| node.cpus.clone()).collect();
        Self {
            cpus: (!granted.cpus().is_empty()).then(|| granted.cpus().clone()),
            ..Self::with_nodes(granted.parallelism(), nodes)
        }
    }

    /// `total` helpers, at most [`MAX_HELPERS`], which run where the system puts them. 0 is allowed:
    /// every caller then works alone.
    #[must_use]
    pub fn new(total: usize) -> Self {
        Self::with_nodes(total, Vec::new())
    }

    /// `total` helpers for nodes with these CPUs.
    pub(super) fn with_nodes(total: usize, mut nodes: Vec<CpuSet>) -> Self {
        let total = total.min(MAX_HELPERS);
        nodes.retain(|cpus| !cpus.is_empty());
        if nodes.len() == 1 {
            nodes.clear();
        }
        Self {
            free: AtomicUsize::new(total),
            total,
            cursor: AtomicUsize::new(0),
            cpus: None,
            nodes,
        }
    }

    /// HelperBudget in the budget, busy or not.
    #[must_use]
    pub const fn total(&self) -> usize {
        self.total
    }

    /// HelperBudget that nobody has now; old as soon as it is returned.
    #[must_use]
    pub fn free(&self) -> usize {
        // Relaxed: a number to look at, which guards no data.
        self.free.load(Ordering::Relaxed)
    }

    /// Takes `wanted` helpers, or as many as are free, or none. Never waits.
    pub(super) fn take(&self, wanted: u64) -> HelperTokens<'_> {
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        let rest = |free: usize| (wanted > 0 && free > 0).then(|| free.saturating_sub(wanted));
        // Relaxed, both: the number guards no data. That no helper is given out twice is the total
        // order of the changes of this one word.
        let count = match self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest) {
            Ok(free) => free.min(wanted),
            Err(_) => 0,
        };
        HelperTokens { helpers: self, count }
    }

    /// The CPUs for the next helper; none where the system may choose.
    fn next_cpus(&self, placement: HelperPlacement) -> Option<&CpuSet> {
        if placement == HelperPlacement::Anywhere || self.nodes.is_empty() {
            return self.cpus.as_ref();
        }
        // Relaxed: only that helpers take turns matters, which the order of this word gives.
        let turn = self.cursor.fetch_add(1, Ordering::Relaxed);
        self.nodes.get(turn % self.nodes.len())
    }
}

/// HelperBudget taken from a budget; they go back when this is dropped.
#[derive(Debug)]
pub(super) struct HelperTokens<'h> {
    helpers: &'h HelperBudget,
    count: usize,
}

impl<'h> HelperTokens<'h> {
    /// HelperBudget taken.
    pub(super) const fn len(&self) -> usize {
        self.count
    }

    /// One of them, to be owned by its thread: it goes back when that thread is done.
    pub(super) fn split(&mut self) -> Option<Self> {
        self.count = self.count.checked_sub(1)?;
        Some(Self { helpers: self.helpers, count: 1 })
    }

    /// Whether the budget knows more than one node.
    pub(super) const fn know_nodes(&self) -> bool {
        !self.helpers.nodes.is_empty()
    }

    /// The CPUs for the next helper of this budget.
    pub(super) fn next_cpus(&self, placement: HelperPlacement) -> Option<&'h CpuSet> {
        self.helpers.next_cpus(placement)
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
    fn helpers_take_turns_over_the_nodes_that_have_cpus() {
        let sets = [[0].as_slice(), &[], &[4, 5]];
        let nodes = sets.map(|cpus| cpus.iter().copied().collect::<CpuSet>());
        let helpers = HelperBudget::with_nodes(4, nodes.to_vec());
        let tokens = helpers.take(4);
        let turns = [0, 1, 2].map(|_| tokens.next_cpus(HelperPlacement::ByNode).unwrap().len());
        assert_eq!(turns, [1, 2, 1]);
        assert_eq!(tokens.next_cpus(HelperPlacement::Anywhere), None);
    }

    #[test]
    fn on_one_node_the_node_makes_no_difference() {
        let cpus: CpuSet = [0, 1].into_iter().collect();
        let helpers = HelperBudget::granted(&AvailableCpus::fixed(cpus));
        let tokens = helpers.take(1);
        let by_node = tokens.next_cpus(HelperPlacement::ByNode);
        assert_eq!(by_node, tokens.next_cpus(HelperPlacement::Anywhere));
        assert_eq!(helpers.cursor.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_budget_of_the_process_is_what_the_system_grants() {
        assert_eq!(
            HelperBudget::process().total(),
            AvailableCpus::read().parallelism().min(MAX_HELPERS)
        );
        assert!(HelperBudget::process().total() >= 1);
    }
}
