//! Who serves which CPU: the phases that a slot's worker goes through, and what is to be done next. It
//! does nothing itself that takes time: threads are started and joined by `hotplug`, outside of the
//! lock under which this lives.
//!
//! docs/workers.md, steps P20 to P27.

use std::collections::BTreeMap;

use super::inbox::Batch;
use super::plan::{self, Plan, Usable};
use super::slot::Slot;
use crate::cpus::CpuSet;
use crate::sync::Arc;
use crate::thread::Owned;
use crate::unbound::{Hold, Seat, Tally, Work};

/// Whether the pool has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Begun {
    #[default]
    No,
    /// Somebody starts it now.
    Now,
    Yes,
}

/// Where the worker of a CPU is in its life. In this order, and then round again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No thread.
    Absent,
    /// A thread is being started or has not come to its CPU yet.
    Coming,
    /// The inbox is open.
    Serving,
    /// The inbox is closed; the thread may still run its last item.
    Leaving,
    /// The thread touches the slot no more.
    Gone,
}

/// The worker of one CPU.
#[derive(Debug)]
struct Member {
    phase: Phase,
    thread: Option<Owned>,
    seat: Option<Seat>,
    tally: Arc<Tally>,
}

/// The workers of all CPUs that ever had one, and what is wanted of them.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    pub(crate) begun: Begun,
    is_closing: bool,
    withdrawn: CpuSet,
    wanted: CpuSet,
    members: BTreeMap<usize, Member>,
    /// Looks at the system that were begun, and the last of them that became the plan.
    looks: u64,
    planned_look: u64,
    /// The process's mask at the last look.
    pub(crate) mask: CpuSet,
}

/// What is to be done outside of the lock.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    /// To be joined; each has let go of its slot.
    pub(crate) gone: Vec<Owned>,
    /// To be run by others.
    pub(crate) orphans: Vec<Batch<Work>>,
    /// To be started.
    pub(crate) coming: Vec<(usize, Arc<Tally>)>,
}

impl Steps {
    pub(crate) fn is_empty(&self) -> bool {
        self.gone.is_empty() && self.orphans.is_empty() && self.coming.is_empty()
    }
}

/// A member as a reader sees it: its CPU, its seat, and its counters.
pub(crate) type Row = (usize, Option<Seat>, Arc<Tally>);

impl Roster {
    /// Marks a CPU as gone or back, whatever the system says.
    pub(crate) fn set_withdrawn(&mut self, cpu: usize, is_withdrawn: bool) {
        if is_withdrawn {
            self.withdrawn.insert(cpu);
        } else {
            self.withdrawn.remove(cpu);
        }
    }

    /// From here on no worker is wanted.
    pub(crate) fn close(&mut self) {
        self.is_closing = true;
        self.wanted = CpuSet::new();
    }

    /// P20. Before the system is asked: the number of this look.
    pub(crate) fn begin_look(&mut self) -> u64 {
        self.looks += 1;
        self.looks
    }

    /// P21. What a look found becomes the plan, unless a later look was faster. None when nothing
    /// changes because of that.
    pub(crate) fn plan(&mut self, look: u64, usable: &Usable, mask: CpuSet) -> Option<Plan> {
        if self.is_closing || look < self.planned_look {
            return None;
        }
        self.planned_look = look;
        self.mask = mask;
        let plan = plan::plan(usable, &self.withdrawn, &self.wanted);
        self.wanted = plan.serving.clone();
        Some(plan)
    }

    /// Makes sure that every serving worker is on its CPU; one that cannot be brought back there loses
    /// its slot. Says how many were brought back.
    ///
    /// Under the lock a serving worker cannot end, so that its number is not another thread's.
    pub(crate) fn hold_serving(&mut self, slots: &[Slot], orphans: &mut Vec<Batch<Work>>) -> u64 {
        let mut rebound = 0;
        for (&cpu, member) in &mut self.members {
            let (Some(seat), Some(slot)) = (member.seat, slots.get(cpu)) else { continue };
            if member.phase != Phase::Serving || !self.wanted.contains(cpu) {
                continue;
            }
            match seat.hold(cpu) {
                Hold::Bound => {}
                Hold::Rebound => rebound += 1,
                Hold::Lost => {
                    member.phase = Phase::Leaving;
                    orphans.push(slot.close());
                }
            }
        }
        rebound
    }

    /// P22. Everything that can be done now to come from what is to what is wanted. A CPU in `tried`
    /// is not started again.
    pub(crate) fn next_steps(&mut self, slots: &[Slot], tried: &CpuSet) -> Steps {
        let mut steps = Steps::default();
        for (&cpu, member) in &mut self.members {
            // A thread that is gone but not yet owned is collected by the one who started it.
            if member.phase == Phase::Gone && member.thread.is_some() {
                member.phase = Phase::Absent;
                member.seat = None;
                steps.gone.extend(member.thread.take());
            }
            if member.phase == Phase::Serving
                && !self.wanted.contains(cpu)
                && let Some(slot) = slots.get(cpu)
            {
                member.phase = Phase::Leaving;
                steps.orphans.push(slot.close());
            }
        }
        for cpu in self.wanted.difference(tried).iter().filter(|&cpu| cpu < slots.len()) {
            let member = self.members.entry(cpu).or_insert_with(Member::absent);
            if member.phase == Phase::Absent {
                member.phase = Phase::Coming;
                steps.coming.push((cpu, Arc::clone(&member.tally)));
            }
        }
        steps
    }

    /// P23. The thread of a coming worker exists, or could not be had.
    pub(crate) fn started(&mut self, cpu: usize, thread: Option<Owned>) {
        let Some(member) = self.members.get_mut(&cpu) else { return };
        if thread.is_none() {
            member.phase = Phase::Absent;
        }
        member.thread = thread;
    }

    /// P24. A worker has come to its CPU, or could not. Says whether it is to serve; then its inbox is
    /// open.
    pub(crate) fn arrive(&mut self, slot: &Slot, cpu: usize, seat: Option<Seat>) -> bool {
        let is_wanted = self.wanted.contains(cpu) && seat.is_some();
        let Some(member) = self.members.get_mut(&cpu) else { return false };
        member.seat = seat;
        if is_wanted {
            member.phase = Phase::Serving;
            slot.open();
        } else {
            member.phase = Phase::Gone;
        }
        is_wanted
    }

    /// P25. A worker that cannot stay on its CPU closes its own slot. None when that has happened.
    pub(crate) fn retire(&mut self, slot: &Slot, cpu: usize) -> Option<Batch<Work>> {
        let member = self.members.get_mut(&cpu)?;
        if member.phase != Phase::Serving {
            return None;
        }
        member.phase = Phase::Leaving;
        Some(slot.close())
    }

    /// P26. A worker touches its slot no more.
    pub(crate) fn leave(&mut self, cpu: usize) {
        if let Some(member) = self.members.get_mut(&cpu) {
            member.phase = Phase::Gone;
        }
    }

    /// Whether a worker is on its way in or out.
    pub(crate) fn is_moving(&self) -> bool {
        let is_moving = |phase| matches!(phase, Phase::Coming | Phase::Leaving | Phase::Gone);
        self.members.values().any(|member| is_moving(member.phase))
    }

    /// P27. Whether every wanted worker serves and every other one is absent.
    pub(crate) fn is_as_wanted(&self) -> bool {
        let phase_of = |cpu| self.members.get(&cpu).map(|member| member.phase);
        !self.is_moving() && self.wanted.iter().all(|cpu| phase_of(cpu) == Some(Phase::Serving))
    }

    /// The CPUs whose inbox is open.
    pub(crate) fn serving(&self) -> CpuSet {
        let open = self.members.iter().filter(|(_, member)| member.phase == Phase::Serving);
        open.map(|(&cpu, _)| cpu).collect()
    }

    /// Every worker that there ever was.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let row = |(&cpu, member): (&usize, &Member)| (cpu, member.seat, Arc::clone(&member.tally));
        self.members.iter().map(row).collect()
    }
}

impl Member {
    fn absent() -> Self {
        Self { phase: Phase::Absent, thread: None, seat: None, tally: Arc::new(Tally::new()) }
    }
}
