//! CPUs that come and go: when the system is asked, and how the workers follow. Threads are started and
//! joined here, never under a lock. Called by the pool's owner, and by submitters now and then.
//!
//! docs/workers.md, steps P20 to P31.

use std::time::{Duration, Instant};

use super::plan::{Plan, Usable};
use super::pool::Shared;
use super::roster::{Begun, Steps};
use super::worker;
use crate::cpus::{CpuSet, Granted};
use crate::sync::{Arc, Ordering, lock};
use crate::thread::Start;
use crate::unbound::{self, Work};

/// Submitters look at the system this often. A look is one system call, so that four a second cost
/// nothing; a CPU that has gone keeps its worker for so long at most (the kernel moves the thread), and
/// one that has come stays unused.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Whether a change of workers is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// Until every worker that comes serves and every worker that goes has ended.
    Wait,
    /// What can be done at once; the rest at the next look.
    Glance,
}

impl Shared {
    /// Starts the workers at first use; whoever comes meanwhile waits for that.
    pub(super) fn begin(this: &Arc<Self>) {
        // Acquire: pairs with the store below, so that the routes are seen.
        if this.is_begun.load(Ordering::Acquire) || unbound::is_member(this.id()) {
            return;
        }
        let mut roster = lock(&this.roster);
        while roster.begun == Begun::Now {
            roster = this.wait(roster);
        }
        if roster.begun == Begun::Yes {
            return;
        }
        roster.begun = Begun::Now;
        drop(roster);
        Self::refresh(this, Patience::Wait);
        lock(&this.roster).begun = Begun::Yes;
        // Release: pairs with the load above.
        this.is_begun.store(true, Ordering::Release);
        this.moved.notify_all();
    }

    /// Asks the system and follows it.
    pub(super) fn refresh(this: &Arc<Self>, patience: Patience) {
        this.counts.refreshes.add_shared(1);
        let look = lock(&this.roster).begin_look();
        let mask = CpuSet::of_process();
        let usable = this.usable();
        this.fallback.bind_to(&mask);
        let mut roster = lock(&this.roster);
        if let Some(plan) = roster.plan(look, &usable, mask) {
            // Under the lock, so that the routes are those of the plan.
            this.lay_routes(&plan);
        }
        let mut orphans = Vec::new();
        let rebound = roster.hold_serving(&this.slots, &mut orphans);
        drop(roster);
        this.counts.rebound.add_shared(rebound);
        orphans.into_iter().flatten().for_each(|work| this.hand_over(work));
        Self::settle(this, patience);
    }

    fn lay_routes(&self, plan: &Plan) {
        let set = |cpu: usize, server: usize| {
            if let (Some(route), Ok(server)) = (self.routes.get(cpu), u32::try_from(server)) {
                // Relaxed: a submitter that reads the old one finds a slot that works or is closed.
                route.store(server, Ordering::Relaxed);
            }
        };
        (0..self.routes.len()).for_each(|cpu| set(cpu, cpu));
        plan.routes.iter().for_each(|&(cpu, server)| set(cpu, server));
    }

    /// P28. A submitter looks at the system, at most every [`LOOK_EVERY`] and only one submitter. It
    /// never does more than look: what follows is done on a thread of the fallback.
    pub(super) fn look(this: &Arc<Self>, now: Instant) {
        if cfg!(loom) {
            return; // A model must not depend on the time.
        }
        let since = u64::try_from(now.saturating_duration_since(this.epoch).as_millis());
        let now_ms = since.unwrap_or(u64::MAX);
        // Relaxed: the exchange chooses one submitter, and nothing is published by it.
        let looked_ms = this.looked_ms.load(Ordering::Relaxed);
        let every_ms = u64::try_from(LOOK_EVERY.as_millis()).unwrap_or(u64::MAX);
        if now_ms.saturating_sub(looked_ms) < every_ms {
            return;
        }
        let exchange = this.looked_ms.compare_exchange(
            looked_ms,
            now_ms,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        if exchange.is_err() || !this.has_changed() {
            return;
        }
        let shared = Arc::clone(this);
        let follow = Work::new(move || Self::refresh(&shared, Patience::Glance), now);
        let _: unbound::Placed = this.fallback.place(follow);
    }

    /// The mask of the process shows every change of affinity, of the cpuset and of the CPUs online:
    /// the kernel folds all three into it.
    fn has_changed(&self) -> bool {
        if self.wants_refresh.load(Ordering::Relaxed) {
            return true;
        }
        let mask = CpuSet::of_process();
        lock(&self.roster).mask != mask
    }

    /// What may be used: what the system grants, or that part of it which the caller has chosen.
    fn usable(&self) -> Usable {
        let granted = granted();
        let (cpus, workers_max) = match &self.cpus {
            None => (granted.cpus().clone(), granted.parallelism()),
            Some(chosen) => (granted.cpus().intersection(chosen), usize::MAX),
        };
        Usable { cpus, workers_max, nodes: granted.nodes().to_vec() }
    }

    /// P29. Brings the workers to what is wanted. Any number of threads may do this at once: every
    /// step belongs to the one that took it out of the roster.
    pub(super) fn settle(this: &Arc<Self>, patience: Patience) {
        let is_own_thread = unbound::is_member(this.id());
        let mut tried = CpuSet::new();
        loop {
            let mut roster = lock(&this.roster);
            let steps = roster.next_steps(&this.slots, &tried);
            if !steps.is_empty() {
                drop(roster);
                tried = tried.iter().chain(steps.coming.iter().map(|step| step.0)).collect();
                Self::follow(this, steps);
                continue;
            }
            // A worker must not wait for workers: it may be the one.
            if roster.is_moving() && patience == Patience::Wait && !is_own_thread {
                drop(this.wait(roster));
                continue;
            }
            // Relaxed: a hint for the next look.
            this.wants_refresh.store(!roster.is_as_wanted(), Ordering::Relaxed);
            return;
        }
    }

    /// P30. The steps that take time.
    fn follow(this: &Arc<Self>, steps: Steps) {
        for work in steps.orphans.into_iter().flatten() {
            this.hand_over(work);
        }
        for thread in steps.gone {
            thread.join();
        }
        for (cpu, tally) in steps.coming {
            let shared = Arc::clone(this);
            let name = unbound::thread_name(&this.name, &format!("/{cpu}"));
            let start = Start { name, cpu: Some(cpu), priority: this.priority };
            let thread = this.starter.start(start, move |placement| {
                worker::live(&shared, cpu, &tally, placement);
            });
            if thread.is_err() {
                this.counts.refused_threads.add_shared(1);
            }
            lock(&this.roster).started(cpu, thread.ok());
            this.moved.notify_all();
        }
    }

    /// P31. Work that lost its CPU goes to the fallback; where that has no thread, it runs here.
    pub(super) fn hand_over(&self, work: Work) {
        self.counts.handed_over.add_shared(1);
        let _: unbound::Placed = self.fallback.place(work);
    }
}

/// What the system grants.
#[cfg(not(loom))]
pub(super) fn granted() -> Granted {
    Granted::read()
}

/// A model asks once: what it sees must not change from one run to the next.
#[cfg(loom)]
pub(super) fn granted() -> Granted {
    static GRANTED: std::sync::OnceLock<Granted> = std::sync::OnceLock::new();
    GRANTED.get_or_init(Granted::read).clone()
}
