//! Which CPUs get a worker, and which worker serves a CPU that has none. Pure: from what may be
//! used to a plan. Called at every look at the CPUs.

use std::path::Path;

use crate::cpus::{AvailableCpus, CPUS_MAX, CpuSet, NumaNode};

/// Who serves whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CpuAssignment {
    /// The CPUs that are to have a worker.
    pub(crate) serving: CpuSet,
    /// For every usable CPU the one whose worker takes its work: itself, or the nearest.
    pub(crate) routes: Vec<(usize, usize)>,
}

/// What a plan is made of.
#[derive(Debug)]
pub(crate) struct UsableCpus {
    /// CPUs that may be used now; perhaps none.
    pub(crate) cpus: CpuSet,
    /// At most so many of them get a worker.
    pub(crate) workers_max: usize,
    /// On which node each lies.
    pub(crate) nodes: Vec<NumaNode>,
}

/// Plans for `usable` without the CPUs in `offline`. Those that are `current`ly serving keep on, so
/// that a change elsewhere moves no worker.
pub(crate) fn assign(usable: &UsableCpus, offline: &CpuSet, current: &CpuSet) -> CpuAssignment {
    let cpus = usable.cpus.difference(offline);
    let by_node = ordered(&usable.nodes, &cpus);
    let wanted = usable.workers_max.min(cpus.len());
    let kept: Vec<usize> = by_node.iter().copied().filter(|&cpu| current.contains(cpu)).collect();
    let kept: CpuSet = evenly(&kept, wanted).collect();
    let rest: Vec<usize> = by_node.iter().copied().filter(|&cpu| !kept.contains(cpu)).collect();
    let missing = wanted.saturating_sub(kept.len());
    let serving: CpuSet = kept.iter().chain(evenly(&rest, missing)).collect();
    let routes = by_node
        .iter()
        .filter_map(|&cpu| Some((cpu, nearest(&usable.nodes, &serving, cpu)?)))
        .collect();
    CpuAssignment { serving, routes }
}

/// One more than the largest number that a CPU of this machine may ever have, as far as is known.
pub(crate) fn cpu_numbers(granted: &AvailableCpus) -> usize {
    let possible = std::fs::read_to_string(Path::new("/sys/devices/system/cpu/possible"));
    let possible = possible.ok().and_then(|list| CpuSet::parse(&list).ok()).unwrap_or_default();
    let largest = possible.iter().chain(granted.cpus().iter()).max().unwrap_or(0);
    largest.saturating_add(1).min(CPUS_MAX)
}

/// NumaNode by node, ascending within each, so that an even choice is even over the nodes, too.
fn ordered(nodes: &[NumaNode], usable: &CpuSet) -> Vec<usize> {
    nodes
        .iter()
        .flat_map(|node| node.cpus.intersection(usable).iter().collect::<Vec<_>>())
        .collect()
}

/// `count` of `cpus` at even distances; all of them if there are no more.
fn evenly(cpus: &[usize], count: usize) -> impl Iterator<Item = usize> + '_ {
    let count = count.min(cpus.len());
    (0..count).filter_map(move |index| cpus.get(index * cpus.len() / count).copied())
}

/// The serving CPU nearest to `cpu`: itself, else one of its node, else by number; the lower of two.
fn nearest(nodes: &[NumaNode], serving: &CpuSet, cpu: usize) -> Option<usize> {
    let home = nodes.iter().find(|node| node.cpus.contains(cpu));
    let is_far = |other: usize| !home.is_some_and(|node| node.cpus.contains(other));
    serving.iter().min_by_key(|&other| (is_far(other), other.abs_diff(cpu)))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::{UsableCpus, assign, evenly, nearest};
    use crate::cpus::{AvailableCpus, CpuSet, NumaNode};

    fn all_of(cpus: CpuSet, workers_max: usize) -> UsableCpus {
        let nodes = AvailableCpus::fixed(cpus.clone()).nodes().to_vec();
        UsableCpus { cpus, workers_max, nodes }
    }

    fn set(list: &str) -> CpuSet {
        CpuSet::parse(list).expect("a list of CPUs")
    }

    #[test]
    fn every_granted_cpu_serves_itself() {
        let found = assign(&all_of(set("0-3"), 4), &CpuSet::new(), &CpuSet::new());
        assert_eq!(found.serving, set("0-3"));
        assert_eq!(found.routes, [(0, 0), (1, 1), (2, 2), (3, 3)]);
    }

    #[test]
    fn a_withdrawn_cpu_neither_serves_nor_is_routed() {
        let found = assign(&all_of(set("0-3"), 4), &set("2"), &set("0-3"));
        assert_eq!(found.serving, set("0-1,3"));
        assert_eq!(found.routes, [(0, 0), (1, 1), (3, 3)]);
        let none = assign(&all_of(set("0-3"), 4), &set("0-3"), &set("0-3"));
        assert!(none.serving.is_empty() && none.routes.is_empty());
    }

    #[test]
    fn a_quota_leaves_fewer_workers_which_serve_their_neighbours() {
        let found = assign(&all_of(set("0-7"), 2), &CpuSet::new(), &CpuSet::new());
        assert_eq!(found.serving, set("0,4"));
        let servers: Vec<usize> = found.routes.iter().map(|route| route.1).collect();
        assert_eq!(servers, [0, 0, 0, 4, 4, 4, 4, 4]);
    }

    #[test]
    fn who_serves_keeps_on_serving() {
        let found = assign(&all_of(set("0-7"), 3), &set("0"), &set("0,3,5"));
        assert!(set("3,5").is_subset(&found.serving));
        assert_eq!(found.serving.len(), 3);
    }

    #[test]
    fn no_usable_cpu_is_no_worker() {
        let found = assign(&all_of(CpuSet::new(), 4), &CpuSet::new(), &set("1"));
        assert!(found.serving.is_empty() && found.routes.is_empty());
    }

    #[test]
    fn fewer_are_chosen_at_even_distances() {
        let cpus: Vec<usize> = (0..8).collect();
        assert_eq!(evenly(&cpus, 4).collect::<Vec<_>>(), [0, 2, 4, 6]);
        assert_eq!(evenly(&cpus, 3).collect::<Vec<_>>(), [0, 2, 5]);
        assert_eq!(evenly(&cpus, 9).count(), 8);
        assert_eq!(evenly(&[], 3).count(), 0);
    }

    #[test]
    fn the_nearest_one_is_of_the_same_node_if_there_is_one() {
        let nodes =
            [NumaNode { id: 0, cpus: set("0-1,4-5") }, NumaNode { id: 1, cpus: set("2-3,6-7") }];
        assert_eq!(nearest(&nodes, &set("0,2"), 4), Some(0));
        assert_eq!(nearest(&nodes, &set("0,2"), 7), Some(2));
        assert_eq!(nearest(&nodes, &set("0"), 7), Some(0));
        assert_eq!(nearest(&nodes, &set("2,6"), 3), Some(2));
        assert_eq!(nearest(&nodes, &CpuSet::new(), 3), None);
    }

    proptest! {
        #[test]
        fn every_usable_cpu_is_routed_to_one_that_serves(
            granted in prop::collection::btree_set(0_usize..64, 1..32),
            offline in prop::collection::btree_set(0_usize..64, 0..32),
            current in prop::collection::btree_set(0_usize..64, 0..32),
            workers_max in 1_usize..40,
        ) {
            let granted = all_of(granted.into_iter().collect(), workers_max);
            let offline: CpuSet = offline.into_iter().collect();
            let current: CpuSet = current.into_iter().collect();
            let found = assign(&granted, &offline, &current);
            let usable = granted.cpus.difference(&offline);
            prop_assert_eq!(found.serving.len(), workers_max.min(usable.len()));
            prop_assert!(found.serving.is_subset(&usable));
            prop_assert_eq!(found.routes.iter().map(|route| route.0).collect::<CpuSet>(), usable);
            prop_assert!(found.routes.iter().all(|route| found.serving.contains(route.1)));
        }
    }
}
