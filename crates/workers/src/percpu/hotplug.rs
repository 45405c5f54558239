//! CPUs that go offline and come online: when the system is asked, which CPUs get a worker, how the workers
//! follow, and the life of a worker on its CPU. Called by the pool's owner, and by submitters now and then.
//!
//! [`WorkerRegistry`] lives under a lock. It decides what is to be done next, and does nothing that takes time.
//! Threads are started and joined by [`PerCpuShared::reconcile`], never under the lock. A worker never spins: an
//! idle one sleeps, because at real-time priority it would keep all other threads off its CPU.
//!
//! docs/workers.md, steps P12 to P30.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use super::PerCpuShared;
use super::inbox::{CpuQueue, ItemBatch, TakeResult};
use crate::cpus::{self, AvailableCpus, CPUS_MAX, CpuSet, NumaNode};
use crate::sync::{Arc, Ordering, lock};
use crate::thread::{
    AffinityCheck, OwnedThread, ThreadInfo, ThreadOptions, ThreadPlacement, thread_name,
};
use crate::unbound::{CurrentPoolGuard, SubmitOutcome, WorkItem, WorkerCounters, is_pool_thread};

/// How often submitters query the system for its CPUs. A query is one system call, so four a second cost nothing. For
/// so long at most, a CPU that went offline keeps its worker (the kernel moves the thread), and one that came
/// online stays unused.
pub(super) const CPU_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Whether a caller waits for a change of workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitMode {
    /// It waits until every worker that starts serves and every worker that stops has ended.
    Block,
    /// It does what can be done at once; the next poll does the rest.
    NonBlocking,
}

impl PerCpuShared {
    /// Starts the workers at first use. Callers that come meanwhile wait for that.
    pub(super) fn ensure_started(this: &Arc<Self>) {
        // Acquire: pairs with the store below, so that the routes are seen.
        if this.is_started.load(Ordering::Acquire) || is_pool_thread(this.id()) {
            return;
        }
        let mut registry = lock(&this.registry);
        while registry.start_state == StartState::InProgress {
            registry = this.wait(registry);
        }
        if registry.start_state == StartState::Started {
            return;
        }
        registry.start_state = StartState::InProgress;
        drop(registry);
        Self::refresh(this, WaitMode::Block);
        lock(&this.registry).start_state = StartState::Started;
        // Release: pairs with the load above.
        this.is_started.store(true, Ordering::Release);
        this.phase_changed.notify_all();
    }

    /// Asks the system and follows it.
    pub(super) fn refresh(this: &Arc<Self>, wait_mode: WaitMode) {
        this.counters.refreshes.add_shared(1);
        let poll = lock(&this.registry).begin_poll();
        let mask = CpuSet::of_process();
        let usable = this.usable();
        this.fallback.bind_to(&mask);
        let mut registry = lock(&this.registry);
        if let Some(assignment) = registry.assign(poll, &usable, mask) {
            // Under the lock, so that the routes are those of the assignment.
            this.update_routes(&assignment);
        }
        let mut orphans = Vec::new();
        let rebound = registry.rebind_running(&this.cpu_queues, &mut orphans);
        drop(registry);
        this.counters.rebound.add_shared(rebound);
        orphans.into_iter().flatten().for_each(|work| this.requeue(work));
        Self::reconcile(this, wait_mode);
    }

    fn update_routes(&self, assignment: &CpuAssignment) {
        let mut servers: Vec<usize> = (0..self.routes.len()).collect();
        for route in &assignment.routes {
            if let Some(server) = servers.get_mut(route.cpu) {
                *server = route.server;
            }
        }
        // Each once: on the way from one server to the same one a submitter would meet a closed inbox.
        for (route, server) in self.routes.iter().zip(servers) {
            if let Ok(server) = u32::try_from(server) {
                // Relaxed: a submitter that reads the old one finds a slot that works or is closed.
                route.store(server, Ordering::Relaxed);
            }
        }
    }

    /// P28. One submitter asks the system, at most every [`CPU_POLL_INTERVAL`]. It does no more than that: a thread
    /// of the fallback does what follows.
    pub(super) fn poll_cpu_mask(this: &Arc<Self>, now: Instant) {
        if cfg!(loom) {
            return; // A model must not depend on the time.
        }
        let since = u64::try_from(now.saturating_duration_since(this.epoch).as_millis());
        let now_ms = since.unwrap_or(u64::MAX);
        // Relaxed: the exchange chooses one submitter, and nothing is published by it.
        let polled_ms = this.polled_ms.load(Ordering::Relaxed);
        let every_ms = u64::try_from(CPU_POLL_INTERVAL.as_millis()).unwrap_or(u64::MAX);
        if now_ms.saturating_sub(polled_ms) < every_ms {
            return;
        }
        let exchange = this.polled_ms.compare_exchange(
            polled_ms,
            now_ms,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        if exchange.is_err() || !this.has_changed() {
            return;
        }
        let shared = Arc::clone(this);
        let refresh = WorkItem::new(move || Self::refresh(&shared, WaitMode::NonBlocking), now);
        let _: SubmitOutcome = this.fallback.enqueue(refresh);
    }

    /// The mask of the process shows every change of affinity, of the cpuset and of the CPUs online: the kernel
    /// combines all three in it.
    fn has_changed(&self) -> bool {
        if self.wants_refresh.load(Ordering::Relaxed) {
            return true;
        }
        let mask = CpuSet::of_process();
        lock(&self.registry).mask != mask
    }

    /// What may be used: the available CPUs, or those of them that the caller has chosen.
    fn usable(&self) -> UsableCpus {
        let available = available_cpus();
        let (cpus, max_workers) = match &self.cpus {
            None => (available.cpus().clone(), available.parallelism()),
            Some(chosen) => (available.cpus().intersection(chosen), usize::MAX),
        };
        UsableCpus { cpus, max_workers, nodes: available.nodes().to_vec() }
    }

    /// P29. Takes the steps from the workers that there are to those that are wanted. Any number of threads may do
    /// this at once: a step belongs to the thread that took it out of the registry.
    pub(super) fn reconcile(this: &Arc<Self>, wait_mode: WaitMode) {
        let is_own_thread = is_pool_thread(this.id());
        let mut tried = CpuSet::new();
        loop {
            let mut registry = lock(&this.registry);
            let steps = registry.next_steps(&this.cpu_queues, &tried);
            if !steps.is_empty() {
                drop(registry);
                tried = tried.iter().chain(steps.starting.iter().map(|start| start.cpu)).collect();
                Self::apply(this, steps);
                continue;
            }
            // A worker must not wait for workers: it may be the one.
            if registry.is_changing() && wait_mode == WaitMode::Block && !is_own_thread {
                drop(this.wait(registry));
                continue;
            }
            // Relaxed: a hint for the next poll.
            this.wants_refresh.store(!registry.is_reconciled(), Ordering::Relaxed);
            return;
        }
    }

    /// P30. The steps that take time.
    fn apply(this: &Arc<Self>, steps: Transitions) {
        for work in steps.orphans.into_iter().flatten() {
            this.requeue(work);
        }
        for thread in steps.exited {
            thread.join();
        }
        for WorkerStart { cpu, counters } in steps.starting {
            let shared = Arc::clone(this);
            let name = thread_name(&this.name, &format!("/{cpu}"));
            let options = ThreadOptions { name, cpu: Some(cpu), priority: this.priority };
            let thread = this.spawner.start(options, move |placement| {
                run_worker(&shared, cpu, &counters, placement);
            });
            if thread.is_err() {
                this.counters.refused_threads.add_shared(1);
            }
            lock(&this.registry).thread_created(cpu, thread.ok());
            this.phase_changed.notify_all();
        }
    }
}

/// The CPUs that the system lets this process use.
#[cfg(not(loom))]
pub(super) fn available_cpus() -> AvailableCpus {
    AvailableCpus::read()
}

/// A model asks once: the answer must not change from one run to the next.
#[cfg(loom)]
pub(super) fn available_cpus() -> AvailableCpus {
    static AVAILABLE: std::sync::OnceLock<AvailableCpus> = std::sync::OnceLock::new();
    AVAILABLE.get_or_init(AvailableCpus::read).clone()
}

/// The body of a worker's thread.
fn run_worker(
    shared: &Arc<PerCpuShared>,
    cpu: usize,
    counters: &Arc<WorkerCounters>,
    placement: ThreadPlacement,
) {
    let Some(queue) = shared.cpu_queues.get(cpu) else { return };
    let _pool = CurrentPoolGuard::new(shared.id(), Arc::clone(counters));
    // A modelled thread has no CPU.
    let is_placed = placement.is_pinned || cfg!(loom);
    let thread = is_placed.then(|| ThreadInfo::of_current_thread(placement.priority_level));
    let is_serving = lock(&shared.registry).worker_ready(queue, cpu, thread);
    shared.phase_changed.notify_all();
    if !is_serving {
        return;
    }
    let mut worker = CpuWorker { shared, queue, cpu, counters, checked: Instant::now() };
    worker.serve();
    lock(&shared.registry).worker_exited(cpu);
    shared.phase_changed.notify_all();
}

/// A worker on its own thread.
struct CpuWorker<'a> {
    shared: &'a Arc<PerCpuShared>,
    queue: &'a CpuQueue,
    cpu: usize,
    counters: &'a WorkerCounters,
    /// When it last made sure that it is on its CPU.
    checked: Instant,
}

impl CpuWorker<'_> {
    /// Returns when the inbox is closed.
    fn serve(&mut self) {
        loop {
            // P12. Everything at once: one locked instruction for any number of items.
            match self.queue.inbox.take() {
                TakeResult::Items(batch) => {
                    self.run(batch);
                    continue;
                }
                TakeResult::Closed => return,
                TakeResult::Empty => {}
            }
            // P13. Nothing: clear the event, look again, and only then sleep (E3 to E5).
            self.queue.event().clear();
            match self.queue.inbox.take() {
                TakeResult::Items(batch) => self.run(batch),
                TakeResult::Closed => return,
                TakeResult::Empty => {
                    if self.queue.event().wait() {
                        self.counters.slept();
                    }
                }
            }
        }
    }

    fn run(&mut self, mut batch: ItemBatch<WorkItem>) {
        while let Some(work) = batch.next() {
            // P14. The CPU goes offline: the fallback gets what has not begun.
            if self.queue.is_leaving() {
                self.counters.requeued(batch.len() as u64 + 1);
                self.shared.requeue(work);
                batch.by_ref().for_each(|work| self.shared.requeue(work));
                return;
            }
            let now = work.run(self.counters);
            if now.saturating_duration_since(self.checked) >= CPU_POLL_INTERVAL {
                self.checked = now;
                self.check_affinity();
            }
        }
    }

    /// P15. Makes sure that this thread is still bound to its CPU. The kernel widens the mask of a thread whose last
    /// CPU goes offline, and anyone may change it (`taskset -a`).
    fn check_affinity(&self) {
        if cfg!(loom) || cpus::is_bound_to(self.cpu) {
            return;
        }
        if CpuSet::from_iter([self.cpu]).bind_current_thread().is_ok() {
            self.counters.rebound();
            return;
        }
        // P16. Its CPU is offline: it closes its own inbox, and the next poll starts a refresh.
        let orphans = lock(&self.shared.registry).worker_lost_cpu(self.queue, self.cpu);
        self.shared.request_refresh();
        for work in orphans.into_iter().flatten() {
            self.shared.requeue(work);
        }
    }
}

/// Whether the pool was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum StartState {
    #[default]
    NotStarted,
    /// A submitter starts it now.
    InProgress,
    Started,
}

/// The phase of a CPU's worker. A worker goes through them in this order, and then begins again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorkerPhase {
    /// No thread.
    Absent,
    /// A thread is being started or has not reported from its CPU yet.
    Spawning,
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
pub(super) struct WorkerRegistry {
    pub(super) start_state: StartState,
    is_closing: bool,
    /// Taken offline by the pool's owner.
    offline: CpuSet,
    wanted: CpuSet,
    workers: BTreeMap<usize, WorkerState>,
    /// Looks at the system that began, and the last of them that became the assignment.
    polls: u64,
    assigned_poll: u64,
    /// The mask of the process at the last look.
    mask: CpuSet,
}

/// What is to be done outside of the lock.
#[derive(Debug, Default)]
struct Transitions {
    /// To be joined; none of them touches its CPU's queue any more.
    exited: Vec<OwnedThread>,
    /// To be run elsewhere.
    orphans: Vec<ItemBatch<WorkItem>>,
    starting: Vec<WorkerStart>,
}

/// A worker that is to be started.
#[derive(Debug)]
struct WorkerStart {
    cpu: usize,
    counters: Arc<WorkerCounters>,
}

impl Transitions {
    fn is_empty(&self) -> bool {
        self.exited.is_empty() && self.orphans.is_empty() && self.starting.is_empty()
    }
}

/// A worker as the statistics see it.
#[derive(Debug)]
pub(super) struct WorkerRow {
    pub(super) cpu: usize,
    pub(super) thread: Option<ThreadInfo>,
    pub(super) counters: Arc<WorkerCounters>,
}

impl WorkerRegistry {
    /// Marks a CPU as offline or not, whatever the system says.
    pub(super) fn set_offline(&mut self, cpu: usize, is_offline: bool) {
        if is_offline {
            self.offline.insert(cpu);
        } else {
            self.offline.remove(cpu);
        }
    }

    /// From here on no worker is wanted.
    pub(super) fn close(&mut self) {
        self.is_closing = true;
        self.wanted = CpuSet::new();
    }

    /// P20. Before the system is asked: the number of this look.
    fn begin_poll(&mut self) -> u64 {
        self.polls += 1;
        self.polls
    }

    /// P21. What a look found becomes the assignment, unless a later look was faster: then the result is None and
    /// nothing changes.
    fn assign(&mut self, poll: u64, usable: &UsableCpus, mask: CpuSet) -> Option<CpuAssignment> {
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
    fn rebind_running(
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
    fn next_steps(&mut self, queues: &[CpuQueue], tried: &CpuSet) -> Transitions {
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
                worker.phase = WorkerPhase::Spawning;
                let counters = Arc::clone(&worker.counters);
                steps.starting.push(WorkerStart { cpu, counters });
            }
        }
        steps
    }

    /// P23. The thread of a starting worker exists, or the system gave none.
    fn thread_created(&mut self, cpu: usize, thread: Option<OwnedThread>) {
        let Some(worker) = self.workers.get_mut(&cpu) else { return };
        if thread.is_none() {
            worker.phase = WorkerPhase::Absent;
        }
        worker.owned = thread;
    }

    /// P24. A worker reports from its CPU, or without one. Returns whether it is to serve; then its inbox is open.
    fn worker_ready(&mut self, queue: &CpuQueue, cpu: usize, thread: Option<ThreadInfo>) -> bool {
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
    fn worker_lost_cpu(&mut self, queue: &CpuQueue, cpu: usize) -> Option<ItemBatch<WorkItem>> {
        let worker = self.workers.get_mut(&cpu)?;
        if worker.phase != WorkerPhase::Running {
            return None;
        }
        worker.phase = WorkerPhase::Stopping;
        Some(queue.close())
    }

    /// P26. A worker touches its CPU's queue no more.
    fn worker_exited(&mut self, cpu: usize) {
        if let Some(worker) = self.workers.get_mut(&cpu) {
            worker.phase = WorkerPhase::Exited;
        }
    }

    /// Whether a worker is starting or stopping.
    fn is_changing(&self) -> bool {
        let is_changing = |phase| {
            matches!(phase, WorkerPhase::Spawning | WorkerPhase::Stopping | WorkerPhase::Exited)
        };
        self.workers.values().any(|worker| is_changing(worker.phase))
    }

    /// P27. Whether every wanted worker runs and every other one is absent.
    fn is_reconciled(&self) -> bool {
        let phase_of = |cpu| self.workers.get(&cpu).map(|worker| worker.phase);
        !self.is_changing()
            && self.wanted.iter().all(|cpu| phase_of(cpu) == Some(WorkerPhase::Running))
    }

    /// The CPUs whose inbox is open.
    pub(super) fn serving(&self) -> CpuSet {
        let running =
            self.workers.iter().filter(|(_, worker)| worker.phase == WorkerPhase::Running);
        running.map(|(&cpu, _)| cpu).collect()
    }

    /// Every worker that there ever was.
    pub(super) fn rows(&self) -> Vec<WorkerRow> {
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
struct CpuAssignment {
    /// The CPUs that are to have a worker.
    serving: CpuSet,
    /// One for every usable CPU.
    routes: Vec<CpuRoute>,
}

/// Whose worker takes the work of a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CpuRoute {
    cpu: usize,
    /// The CPU of the worker: `cpu` itself, or the nearest that has one.
    server: usize,
}

/// What an assignment is made of.
#[derive(Debug)]
struct UsableCpus {
    /// CPUs that may be used now; perhaps none.
    cpus: CpuSet,
    /// At most so many of them get a worker.
    max_workers: usize,
    /// On which node each of them is.
    nodes: Vec<NumaNode>,
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
pub(super) fn cpu_numbers(available: &AvailableCpus) -> usize {
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
