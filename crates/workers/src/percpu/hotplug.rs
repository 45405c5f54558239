//! CPUs that go offline and come online: when the system is asked, how the workers follow, and the life of a
//! worker on its CPU. Threads are started and joined here, never under a lock. Called by the pool's owner, and by
//! submitters now and then.
//!
//! A worker never spins: an idle one sleeps, because at real-time priority it would keep all other threads off
//! its CPU. docs/workers.md, steps P12 to P31.

use std::time::{Duration, Instant};

use super::PerCpuShared;
use super::inbox::{CpuQueue, ItemBatch, TakeResult};
use super::registry::{CpuAssignment, StartState, Transitions, UsableCpus, WorkerStart};
use crate::cpus::{self, AvailableCpus, CpuSet};
use crate::sync::{Arc, Ordering, lock};
use crate::thread::{ThreadInfo, ThreadOptions, ThreadPlacement, thread_name};
use crate::unbound::{CurrentPoolGuard, SubmitOutcome, WorkItem, WorkerCounters, is_pool_thread};

/// How often submitters ask the system for its CPUs. Asking is one system call, so four a second cost nothing. For
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
        while registry.start_state == StartState::Starting {
            registry = this.wait(registry);
        }
        if registry.start_state == StartState::Started {
            return;
        }
        registry.start_state = StartState::Starting;
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
            this.wants_refresh.store(!registry.is_as_wanted(), Ordering::Relaxed);
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
