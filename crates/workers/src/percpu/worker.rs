//! The life of a worker: it comes to its CPU, serves the inbox, and leaves. It never spins: an idle
//! worker sleeps, since at real-time priority it would keep everybody else off its CPU.
//!
//! docs/workers.md, steps P12 to P17.

use std::time::Instant;

use super::cpu_queue::CpuQueue;
use super::hotplug::CPU_POLL_INTERVAL;
use super::inbox::{ItemBatch, TakeResult};
use super::pool::PerCpuShared;
use crate::cpus::{self, CpuSet};
use crate::sync::{Arc, lock};
use crate::thread::ThreadPlacement;
use crate::unbound::{CurrentPoolGuard, ThreadInfo, WorkItem, WorkerCounters};

/// The body of a worker's thread.
pub(super) fn run_worker(
    shared: &Arc<PerCpuShared>,
    cpu: usize,
    counters: &Arc<WorkerCounters>,
    placement: ThreadPlacement,
) {
    let Some(slot) = shared.cpu_queues.get(cpu) else { return };
    let _membership = CurrentPoolGuard::new(shared.id(), Arc::clone(counters));
    // A modelled thread has no CPU.
    let is_placed = placement.is_pinned || cfg!(loom);
    let thread_info = is_placed.then(|| ThreadInfo::of_current_thread(placement.priority_level));
    let is_serving = lock(&shared.registry).worker_ready(slot, cpu, thread_info);
    shared.moved.notify_all();
    if !is_serving {
        return;
    }
    let mut worker = Worker { shared, slot, cpu, counters, checked: Instant::now() };
    worker.serve();
    lock(&shared.registry).worker_exited(cpu);
    shared.moved.notify_all();
}

struct Worker<'a> {
    shared: &'a Arc<PerCpuShared>,
    slot: &'a CpuQueue,
    cpu: usize,
    counters: &'a WorkerCounters,
    /// When it last made sure that it is on its CPU.
    checked: Instant,
}

impl Worker<'_> {
    /// Returns when the inbox is closed.
    fn serve(&mut self) {
        loop {
            // P12. Everything at once: one locked instruction for any number of items.
            match self.slot.inbox.take() {
                TakeResult::Items(batch) => {
                    self.run(batch);
                    continue;
                }
                TakeResult::Closed => return,
                TakeResult::Nothing => {}
            }
            // P13. Nothing: say so, look again, and only then sleep (E3 to E5).
            self.slot.event().clear();
            match self.slot.inbox.take() {
                TakeResult::Items(batch) => self.run(batch),
                TakeResult::Closed => return,
                TakeResult::Nothing => {
                    if self.slot.event().wait() {
                        self.counters.slept();
                    }
                }
            }
        }
    }

    fn run(&mut self, mut batch: ItemBatch<WorkItem>) {
        while let Some(work) = batch.next() {
            // P14. The CPU goes: what has not begun is for the fallback.
            if self.slot.is_leaving() {
                self.counters.handed_over(batch.len() as u64 + 1);
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

    /// P15. Makes sure that this thread is still bound to its CPU. The kernel widens the mask of a
    /// thread whose last CPU goes away, and anyone may change it (`taskset -a`).
    fn check_affinity(&self) {
        if cfg!(loom) || cpus::is_bound_to(self.cpu) {
            return;
        }
        if CpuSet::from_iter([self.cpu]).bind_current_thread().is_ok() {
            self.counters.rebound();
            return;
        }
        // P16. Its CPU is gone: it closes its own slot, and submitters ask for a refresh.
        let orphans = lock(&self.shared.registry).worker_lost_cpu(self.slot, self.cpu);
        self.shared.request_refresh();
        for work in orphans.into_iter().flatten() {
            self.shared.requeue(work);
        }
    }
}
