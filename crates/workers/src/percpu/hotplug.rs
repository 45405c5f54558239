//! CPUs that come and go: when the system is asked, and how the workers follow. Threads are started and
//! joined here, never under a lock. Called by the pool's owner, and by submitters now and then.
//!
//! docs/workers.md, steps P20 to P31.

use std::time::{Duration, Instant};

use super::cpu_assignment::{CpuAssignment, UsableCpus};
use super::pool::PerCpuShared;
use super::registry::{StartState, Transitions};
use super::worker;
use crate::cpus::{AvailableCpus, CpuSet};
use crate::sync::{Arc, Ordering, lock};
use crate::thread::ThreadOptions;
use crate::unbound::{self, WorkItem};

/// Submitters look at the system this often. A look is one system call, so that four a second cost
/// nothing; a CPU that has gone keeps its worker for so long at most (the kernel moves the thread), and
/// one that has come stays unused.
pub(super) const CPU_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Whether a change of workers is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitMode {
    /// Until every worker that comes serves and every worker that goes has ended.
    Block,
    /// What can be done at once; the rest at the next look.
    NonBlocking,
}

impl PerCpuShared {
    /// Starts the workers at first use; whoever comes meanwhile waits for that.
    pub(super) fn ensure_started(this: &Arc<Self>) {
        // Acquire: pairs with the store below, so that the routes are seen.
        if this.is_started.load(Ordering::Acquire) || unbound::is_pool_thread(this.id()) {
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
        this.moved.notify_all();
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
        let set = |cpu: usize, server: usize| {
            if let (Some(route), Ok(server)) = (self.routes.get(cpu), u32::try_from(server)) {
                // Relaxed: a submitter that reads the old one finds a slot that works or is closed.
                route.store(server, Ordering::Relaxed);
            }
        };
        (0..self.routes.len()).for_each(|cpu| set(cpu, cpu));
        assignment.routes.iter().for_each(|&(cpu, server)| set(cpu, server));
    }

    /// P28. A submitter looks at the system, at most every [`CPU_POLL_INTERVAL`] and only one submitter. It
    /// never does more than look: what follows is done on a thread of the fallback.
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
        let _: unbound::SubmitOutcome = this.fallback.enqueue(refresh);
    }

    /// The mask of the process shows every change of affinity, of the cpuset and of the CPUs online:
    /// the kernel folds all three into it.
    fn has_changed(&self) -> bool {
        if self.wants_refresh.load(Ordering::Relaxed) {
            return true;
        }
        let mask = CpuSet::of_process();
        lock(&self.registry).mask != mask
    }

    /// What may be used: what the system grants, or that part of it which the caller has chosen.
    fn usable(&self) -> UsableCpus {
        let granted = granted();
        let (cpus, workers_max) = match &self.cpus {
            None => (granted.cpus().clone(), granted.parallelism()),
            Some(chosen) => (granted.cpus().intersection(chosen), usize::MAX),
        };
        UsableCpus { cpus, workers_max, nodes: granted.nodes().to_vec() }
    }

    /// P29. Brings the workers to what is wanted. Any number of threads may do this at once: every
    /// step belongs to the one that took it out of the registry.
    pub(super) fn reconcile(this: &Arc<Self>, wait_mode: WaitMode) {
        let is_own_thread = unbound::is_pool_thread(this.id());
        let mut tried = CpuSet::new();
        loop {
            let mut registry = lock(&this.registry);
            let steps = registry.next_steps(&this.cpu_queues, &tried);
            if !steps.is_empty() {
                drop(registry);
                tried = tried.iter().chain(steps.starting.iter().map(|step| step.0)).collect();
                Self::apply(this, steps);
                continue;
            }
            // A worker must not wait for workers: it may be the one.
            if registry.is_moving() && wait_mode == WaitMode::Block && !is_own_thread {
                drop(this.wait(registry));
                continue;
            }
            // Relaxed: a hint for the next look.
            this.wants_refresh.store(!registry.is_as_wanted(), Ordering::Relaxed);
            return;
        }
    }

    /// P30. The steps that take time.
    fn apply(this: &Arc<Self>, steps: Transitions) {
        for work in steps.orphans.into_iter().flatten() {
            this.requeue(work);
        }
        for thread in steps.gone {
            thread.join();
        }
        for (cpu, counters) in steps.starting {
            let shared = Arc::clone(this);
            let name = unbound::thread_name(&this.name, &format!("/{cpu}"));
            let start = ThreadOptions { name, cpu: Some(cpu), priority: this.priority };
            let thread = this.spawner.start(start, move |placement| {
                worker::run_worker(&shared, cpu, &counters, placement);
            });
            if thread.is_err() {
                this.counters.refused_threads.add_shared(1);
            }
            lock(&this.registry).thread_created(cpu, thread.ok());
            this.moved.notify_all();
        }
    }

    /// P31. WorkItem that lost its CPU goes to the fallback; where that has no thread, it runs here.
    pub(super) fn requeue(&self, work: WorkItem) {
        self.counters.handed_over.add_shared(1);
        let _: unbound::SubmitOutcome = self.fallback.enqueue(work);
    }
}

/// What the system grants.
#[cfg(not(loom))]
pub(super) fn granted() -> AvailableCpus {
    AvailableCpus::read()
}

/// A model asks once: what it sees must not change from one run to the next.
#[cfg(loom)]
pub(super) fn granted() -> AvailableCpus {
    static GRANTED: std::sync::OnceLock<AvailableCpus> = std::sync::OnceLock::new();
    GRANTED.get_or_init(AvailableCpus::read).clone()
}
