//! Which CPUs get a worker, and the phases that a CPU's worker goes through. This file decides what is to be done
//! next and does nothing that takes time: `hotplug` starts and joins threads, outside of the lock under which the
//! registry lives.
//!
//! docs/workers.md, steps P20 to P27.

use std::collections::BTreeMap;
use std::path::Path;

use super::inbox::{CpuQueue, ItemBatch};
use crate::cpus::{AvailableCpus, CPUS_MAX, CpuSet, NumaNode};
use crate::sync::Arc;
use crate::thread::{AffinityCheck, OwnedThread, ThreadInfo};
use crate::unbound::{WorkItem, WorkerCounters};

/// Whether the pool was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum StartState {
    #[default]
    NotStarted,
    /// A submitter starts it now.
    Starting,
    Started,
}

/// The phase of a CPU's worker. A worker goes through them in this order, and then begins again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorkerPhase {
    /// No thread.
    Absent,
    /// A thread is being started or has not reported from its CPU yet.
    Starting,
    /// The inbox is open.
    Running,
    /// The inbox is closed; the thread may still run its last item.
    Stopping,
    /// The thread touches the CPU's queue no more.
    Exited,
}

/// The worker of one CPU.
#[derive(Debug)]
struct WorkerState {
    phase: WorkerPhase,
    owned: Option<OwnedThread>,
    thread: Option<ThreadInfo>,
    counters: Arc<WorkerCounters>,
}

impl WorkerState {
    fn absent() -> Self {
        Self {
            phase: WorkerPhase::Absent,
            owned: None,
            thread: None,
            counters: Arc::new(WorkerCounters::new()),
        }
    }
}

/// The workers of all CPUs that ever had one, and which CPUs should have one.
#[derive(Debug, Default)]
pub(crate) struct WorkerRegistry {
    pub(crate) start_state: StartState,
    is_closing: bool,
    /// Taken offline by the pool's owner.
    offline: CpuSet,
    wanted: CpuSet,
    workers: BTreeMap<usize, WorkerState>,
    /// Looks at the system that began, and the last of them that became the assignment.
    polls: u64,
    assigned_poll: u64,
    /// The mask of the process at the last look.
    pub(crate) mask: CpuSet,
}

/// What is to be done outside of the lock.
#[derive(Debug, Default)]
pub(crate) struct Transitions {
    /// To be joined; none of them touches its CPU's queue any more.
    pub(crate) exited: Vec<OwnedThread>,
    /// To be run elsewhere.
    pub(crate) orphans: Vec<ItemBatch<WorkItem>>,
    pub(crate) starting: Vec<WorkerStart>,
}

/// A worker that is to be started.
#[derive(Debug)]
pub(crate) struct WorkerStart {
    pub(crate) cpu: usize,
    pub(crate) counters: Arc<WorkerCounters>,
}

impl Transitions {
    pub(crate) fn is_empty(&self) -> bool {
        self.exited.is_empty() && self.orphans.is_empty() && self.starting.is_empty()
    }
}

/// A worker as the statistics see it.
#[derive(Debug)]
pub(crate) struct WorkerRow {
    pub(crate) cpu: usize,
    pub(crate) thread: Option<ThreadInfo>,
    pub(crate) counters: Arc<WorkerCounters>,
}

impl WorkerRegistry {
    /// Marks a CPU as offline or not, whatever the system says.
    pub(crate) fn set_offline(&mut self, cpu: usize, is_offline: bool) {
        if is_offline {
            self.offline.insert(cpu);
        } else {
            self.offline.remove(cpu);
        }
    }

    /// From here on no worker is wanted.
    pub(crate) fn close(&mut self) {
        self.is_closing = true;
        self.wanted = CpuSet::new();
    }

    /// P20. Before the system is asked: the number of this look.
    pub(crate) fn begin_poll(&mut self) -> u64 {
        self.polls += 1;
        self.polls
    }

    /// P21. What a look found becomes the assignment, unless a later look was faster: then the result is None and
    /// nothing changes.
    pub(crate) fn assign(
        &mut self,
        poll: u64,
        usable: &UsableCpus,
        mask: CpuSet,
    ) -> Option<CpuAssignment> {
        if self.is_closing || poll < self.assigned_poll {
            return None;
        }
        self.assigned_poll = poll;
        self.mask = mask;
        let assignment = assign(usable, &self.offline, &self.wanted);
        self.wanted = assignment.serving.clone();
        Some(assignment)
    }

    /// Makes sure that every running worker is bound to its CPU; one that the system refuses to bind loses its
    /// inbox. Returns how many were bound again.
    ///
    /// Under the lock a running worker cannot end, so its number belongs to no other thread.
    pub(crate) fn rebind_running(
        &mut self,
        queues: &[CpuQueue],
        orphans: &mut Vec<ItemBatch<WorkItem>>,
    ) -> u64 {
        let mut rebound = 0;
        for (&cpu, worker) in &mut self.workers {
            let (Some(thread), Some(queue)) = (worker.thread, queues.get(cpu)) else { continue };
            if worker.phase != WorkerPhase::Running || !self.wanted.contains(cpu) {
                continue;
            }
            match thread.ensure_bound_to(cpu) {
                AffinityCheck::Bound => {}
                AffinityCheck::Rebound => rebound += 1,
                AffinityCheck::Lost => {
                    worker.phase = WorkerPhase::Stopping;
                    orphans.push(queue.close());
                }
            }
        }
        rebound
    }

    /// P22. Every step that can be taken now, from the workers that there are to those that are wanted. A CPU in
    /// `tried` is not started again.
    pub(crate) fn next_steps(&mut self, queues: &[CpuQueue], tried: &CpuSet) -> Transitions {
        let mut steps = Transitions::default();
        for (&cpu, worker) in &mut self.workers {
            // A thread that has exited but has no owner yet is joined by the thread that started it.
            if worker.phase == WorkerPhase::Exited && worker.owned.is_some() {
                worker.phase = WorkerPhase::Absent;
                worker.thread = None;
                steps.exited.extend(worker.owned.take());
            }
            if worker.phase == WorkerPhase::Running
                && !self.wanted.contains(cpu)
                && let Some(queue) = queues.get(cpu)
            {
                worker.phase = WorkerPhase::Stopping;
                steps.orphans.push(queue.close());
            }
        }
        for cpu in self.wanted.difference(tried).iter().filter(|&cpu| cpu < queues.len()) {
            let worker = self.workers.entry(cpu).or_insert_with(WorkerState::absent);
            if worker.phase == WorkerPhase::Absent {
                worker.phase = WorkerPhase::Starting;
                let counters = Arc::clone(&worker.counters);
                steps.starting.push(WorkerStart { cpu, counters });
            }
        }
        steps
    }

    /// P23. The thread of a starting worker exists, or the system gave none.
    pub(crate) fn thread_created(&mut self, cpu: usize, thread: Option<OwnedThread>) {
        let Some(worker) = self.workers.get_mut(&cpu) else { return };
        if thread.is_none() {
            worker.phase = WorkerPhase::Absent;
        }
        worker.owned = thread;
    }

    /// P24. A worker reports from its CPU, or without one. Returns whether it is to serve; then its inbox is open.
    pub(crate) fn worker_ready(
        &mut self,
        queue: &CpuQueue,
        cpu: usize,
        thread: Option<ThreadInfo>,
    ) -> bool {
        let is_wanted = self.wanted.contains(cpu) && thread.is_some();
        let Some(worker) = self.workers.get_mut(&cpu) else { return false };
        worker.thread = thread;
        if is_wanted {
            worker.phase = WorkerPhase::Running;
            queue.open();
        } else {
            worker.phase = WorkerPhase::Exited;
        }
        is_wanted
    }

    /// P25. A worker that cannot stay on its CPU closes its own inbox. None if it is closed already.
    pub(crate) fn worker_lost_cpu(
        &mut self,
        queue: &CpuQueue,
        cpu: usize,
    ) -> Option<ItemBatch<WorkItem>> {
        let worker = self.workers.get_mut(&cpu)?;
        if worker.phase != WorkerPhase::Running {
            return None;
        }
        worker.phase = WorkerPhase::Stopping;
        Some(queue.close())
    }

    /// P26. A worker touches its CPU's queue no more.
    pub(crate) fn worker_exited(&mut self, cpu: usize) {
        if let Some(worker) = self.workers.get_mut(&cpu) {
            worker.phase = WorkerPhase::Exited;
        }
    }

    /// Whether a worker is starting or stopping.
    pub(crate) fn is_changing(&self) -> bool {
        let is_changing = |phase| {
            matches!(phase, WorkerPhase::Starting | WorkerPhase::Stopping | WorkerPhase::Exited)
        };
        self.workers.values().any(|worker| is_changing(worker.phase))
    }

    /// P27. Whether every wanted worker runs and every other one is absent.
    pub(crate) fn is_as_wanted(&self) -> bool {
        let phase_of = |cpu| self.workers.get(&cpu).map(|worker| worker.phase);
        !self.is_changing()
            && self.wanted.iter().all(|cpu| phase_of(cpu) == Some(WorkerPhase::Running))
    }

    /// The CPUs whose inbox is open.
    pub(crate) fn serving(&self) -> CpuSet {
        let running =
            self.workers.iter().filter(|(_, worker)| worker.phase == WorkerPhase::Running);
        running.map(|(&cpu, _)| cpu).collect()
    }

    /// Every worker that there ever was.
    pub(crate) fn rows(&self) -> Vec<WorkerRow> {
        let row = |(&cpu, worker): (&usize, &WorkerState)| WorkerRow {
            cpu,
            thread: worker.thread,
            counters: Arc::clone(&worker.counters),
        };
        self.workers.iter().map(row).collect()
    }
}

/// Which CPUs have a worker, and which worker serves each CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CpuAssignment {
    /// The CPUs that are to have a worker.
    pub(crate) serving: CpuSet,
    /// One for every usable CPU.
    pub(crate) routes: Vec<CpuRoute>,
}

/// Whose worker takes the work of a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CpuRoute {
    pub(crate) cpu: usize,
    /// The CPU of the worker: `cpu` itself, or the nearest that has one.
    pub(crate) server: usize,
}

/// What an assignment is made of.
#[derive(Debug)]
pub(crate) struct UsableCpus {
    /// CPUs that may be used now; perhaps none.
    pub(crate) cpus: CpuSet,
    /// At most so many of them get a worker.
    pub(crate) max_workers: usize,
    /// On which node each of them is.
    pub(crate) nodes: Vec<NumaNode>,
}

/// Assigns workers to `usable` without the CPUs in `offline`. CPUs that are `current`ly serving go on, so that a
/// change elsewhere moves no worker.
fn assign(usable: &UsableCpus, offline: &CpuSet, current: &CpuSet) -> CpuAssignment {
    let cpus = usable.cpus.difference(offline);
    let by_node = ordered_by_node(&usable.nodes, &cpus);
    let wanted = usable.max_workers.min(cpus.len());
    let kept: Vec<usize> = by_node.iter().copied().filter(|&cpu| current.contains(cpu)).collect();
    let kept: CpuSet = evenly_spaced(&kept, wanted).collect();
    let rest: Vec<usize> = by_node.iter().copied().filter(|&cpu| !kept.contains(cpu)).collect();
    let missing = wanted.saturating_sub(kept.len());
    let serving: CpuSet = kept.iter().chain(evenly_spaced(&rest, missing)).collect();
    let route =
        |&cpu: &usize| Some(CpuRoute { cpu, server: nearest(&usable.nodes, &serving, cpu)? });
    let routes = by_node.iter().filter_map(route).collect();
    CpuAssignment { serving, routes }
}

/// One more than the largest number that a CPU of this machine may ever have, as far as is known.
pub(crate) fn cpu_numbers(available: &AvailableCpus) -> usize {
    let possible = std::fs::read_to_string(Path::new("/sys/devices/system/cpu/possible"));
    let possible = possible.ok().and_then(|list| CpuSet::parse(&list).ok()).unwrap_or_default();
    let largest = possible.iter().chain(available.cpus().iter()).max().unwrap_or(0);
    largest.saturating_add(1).min(CPUS_MAX)
}

/// Node by node, ascending within each, so that an even choice is even over the nodes, too.
fn ordered_by_node(nodes: &[NumaNode], usable: &CpuSet) -> Vec<usize> {
    nodes
        .iter()
        .flat_map(|node| node.cpus.intersection(usable).iter().collect::<Vec<_>>())
        .collect()
}

/// `count` of `cpus` at even distances; all of them if there are no more.
fn evenly_spaced(cpus: &[usize], count: usize) -> impl Iterator<Item = usize> + '_ {
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

    use super::{CpuRoute, UsableCpus, assign, evenly_spaced, nearest};
    use crate::cpus::{AvailableCpus, CpuSet, NumaNode};

    fn all_of(cpus: CpuSet, max_workers: usize) -> UsableCpus {
        let nodes = AvailableCpus::fixed(cpus.clone()).nodes().to_vec();
        UsableCpus { cpus, max_workers, nodes }
    }

    fn routes(pairs: &[(usize, usize)]) -> Vec<CpuRoute> {
        pairs.iter().map(|&(cpu, server)| CpuRoute { cpu, server }).collect()
    }

    fn set(list: &str) -> CpuSet {
        CpuSet::parse(list).expect("a list of CPUs")
    }

    #[test]
    fn every_available_cpu_serves_itself() {
        let found = assign(&all_of(set("0-3"), 4), &CpuSet::new(), &CpuSet::new());
        assert_eq!(found.serving, set("0-3"));
        assert_eq!(found.routes, routes(&[(0, 0), (1, 1), (2, 2), (3, 3)]));
    }

    #[test]
    fn a_withdrawn_cpu_neither_serves_nor_is_routed() {
        let found = assign(&all_of(set("0-3"), 4), &set("2"), &set("0-3"));
        assert_eq!(found.serving, set("0-1,3"));
        assert_eq!(found.routes, routes(&[(0, 0), (1, 1), (3, 3)]));
        let none = assign(&all_of(set("0-3"), 4), &set("0-3"), &set("0-3"));
        assert!(none.serving.is_empty() && none.routes.is_empty());
    }

    #[test]
    fn a_quota_leaves_fewer_workers_which_serve_their_neighbours() {
        let found = assign(&all_of(set("0-7"), 2), &CpuSet::new(), &CpuSet::new());
        assert_eq!(found.serving, set("0,4"));
        let servers: Vec<usize> = found.routes.iter().map(|route| route.server).collect();
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
        assert_eq!(evenly_spaced(&cpus, 4).collect::<Vec<_>>(), [0, 2, 4, 6]);
        assert_eq!(evenly_spaced(&cpus, 3).collect::<Vec<_>>(), [0, 2, 5]);
        assert_eq!(evenly_spaced(&cpus, 9).count(), 8);
        assert_eq!(evenly_spaced(&[], 3).count(), 0);
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
            available in prop::collection::btree_set(0_usize..64, 1..32),
            offline in prop::collection::btree_set(0_usize..64, 0..32),
            current in prop::collection::btree_set(0_usize..64, 0..32),
            max_workers in 1_usize..40,
        ) {
            let available = all_of(available.into_iter().collect(), max_workers);
            let offline: CpuSet = offline.into_iter().collect();
            let current: CpuSet = current.into_iter().collect();
            let found = assign(&available, &offline, &current);
            let usable = available.cpus.difference(&offline);
            prop_assert_eq!(found.serving.len(), max_workers.min(usable.len()));
            prop_assert!(found.serving.is_subset(&usable));
            prop_assert_eq!(found.routes.iter().map(|route| route.cpu).collect::<CpuSet>(), usable);
            prop_assert!(found.routes.iter().all(|route| found.serving.contains(route.server)));
        }
    }
}
