//! The life of a worker: it comes to its CPU, serves the inbox, and leaves. It never spins: an idle
//! worker sleeps, since at real-time priority it would keep everybody else off its CPU.
//!
//! docs/workers.md, steps P12 to P17.

use std::time::Instant;

use super::hotplug::LOOK_EVERY;
use super::inbox::{Batch, Taken};
use super::pool::Shared;
use super::slot::Slot;
use crate::cpus::{self, CpuSet};
use crate::sync::{Arc, lock};
use crate::thread::Placement;
use crate::unbound::{Membership, Seat, Tally, Work};

/// The body of a worker's thread.
pub(super) fn live(shared: &Arc<Shared>, cpu: usize, tally: &Arc<Tally>, placement: Placement) {
    let Some(slot) = shared.slots.get(cpu) else { return };
    let _membership = Membership::new(shared.id(), Arc::clone(tally));
    // A modelled thread has no CPU.
    let is_placed = placement.is_pinned || cfg!(loom);
    let seat = is_placed.then(|| Seat::of_current_thread(placement.rung));
    let is_serving = lock(&shared.roster).arrive(slot, cpu, seat);
    shared.moved.notify_all();
    if !is_serving {
        return;
    }
    let mut worker = Worker { shared, slot, cpu, tally, checked: Instant::now() };
    worker.serve();
    lock(&shared.roster).leave(cpu);
    shared.moved.notify_all();
}

struct Worker<'a> {
    shared: &'a Arc<Shared>,
    slot: &'a Slot,
    cpu: usize,
    tally: &'a Tally,
    /// When it last made sure that it is on its CPU.
    checked: Instant,
}

impl Worker<'_> {
    /// Returns when the inbox is closed.
    fn serve(&mut self) {
        loop {
            // P12. Everything at once: one locked instruction for any number of items.
            match self.slot.inbox.take() {
                Taken::Items(batch) => {
                    self.run(batch);
                    continue;
                }
                Taken::Closed => return,
                Taken::Nothing => {}
            }
            // P13. Nothing: say so, look again, and only then sleep (E3 to E5).
            self.slot.event().clear();
            match self.slot.inbox.take() {
                Taken::Items(batch) => self.run(batch),
                Taken::Closed => return,
                Taken::Nothing => {
                    if self.slot.event().wait() {
                        self.tally.slept();
                    }
                }
            }
        }
    }

    fn run(&mut self, mut batch: Batch<Work>) {
        while let Some(work) = batch.next() {
            // P14. The CPU goes: what has not begun is for the fallback.
            if self.slot.is_leaving() {
                self.tally.handed_over(batch.len() as u64 + 1);
                self.shared.hand_over(work);
                batch.by_ref().for_each(|work| self.shared.hand_over(work));
                return;
            }
            let now = work.run(self.tally);
            if now.saturating_duration_since(self.checked) >= LOOK_EVERY {
                self.checked = now;
                self.stay();
            }
        }
    }

    /// P15. Makes sure that this thread is still bound to its CPU. The kernel widens the mask of a
    /// thread whose last CPU goes away, and anyone may change it (`taskset -a`).
    fn stay(&self) {
        if cfg!(loom) || cpus::is_bound_to(self.cpu) {
            return;
        }
        if CpuSet::from_iter([self.cpu]).bind_current_thread().is_ok() {
            self.tally.rebound();
            return;
        }
        // P16. Its CPU is gone: it closes its own slot, and submitters ask for a refresh.
        let orphans = lock(&self.shared.roster).retire(self.slot, self.cpu);
        self.shared.ask_for_refresh();
        for work in orphans.into_iter().flatten() {
            self.shared.hand_over(work);
        }
    }
}
