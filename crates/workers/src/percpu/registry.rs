//! Who serves which CPU: the phases that a slot's worker goes through, and what is to be done next. It
//! does nothing itself that takes time: threads are started and joined by `hotplug`, outside of the
//! lock under which this lives.
//!
//! docs/workers.md, steps P20 to P27.

use std::collections::BTreeMap;

use super::cpu_assignment::{self, CpuAssignment, UsableCpus};
use super::cpu_queue::CpuQueue;
use super::inbox::ItemBatch;
use crate::cpus::CpuSet;
use crate::sync::Arc;
use crate::thread::OwnedThread;
use crate::unbound::{AffinityCheck, ThreadInfo, WorkItem, WorkerCounters};

/// Whether the pool has start_state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum StartState {
    #[default]
    NotStarted,
    /// Somebody starts it now.
    Starting,
    Started,
}

/// Where the worker of a CPU is in its life. In this order, and then round again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorkerPhase {
    /// No thread.
    Absent,
    /// A thread is being started or has not come to its CPU yet.
    Starting,
    /// The inbox is open.
    Running,
    /// The inbox is closed; the thread may still run its last item.
    Stopping,
    /// The thread touches the slot no more.
    Exited,
}

/// The worker of one CPU.
#[derive(Debug)]
struct WorkerState {
    phase: WorkerPhase,
    thread: Option<OwnedThread>,
    thread_info: Option<ThreadInfo>,
    counters: Arc<WorkerCounters>,
}

/// The workers of all CPUs that ever had one, and what is wanted of them.
#[derive(Debug, Default)]
pub(crate) struct WorkerRegistry {
    pub(crate) start_state: StartState,
    is_closing: bool,
    offline: CpuSet,
    wanted: CpuSet,
    states: BTreeMap<usize, WorkerState>,
    /// Looks at the system that were start_state, and the last of them that became the assignment.
    polls: u64,
    assigned_poll: u64,
    /// The process's mask at the last look.
    pub(crate) mask: CpuSet,
}

/// What is to be done outside of the lock.
#[derive(Debug, Default)]
pub(crate) struct Transitions {
    /// To be joined; each has let go of its slot.
    pub(crate) gone: Vec<OwnedThread>,
    /// To be run by others.
    pub(crate) orphans: Vec<ItemBatch<WorkItem>>,
    /// To be started.
    pub(crate) starting: Vec<(usize, Arc<WorkerCounters>)>,
}

impl Transitions {
    pub(crate) fn is_empty(&self) -> bool {
        self.gone.is_empty() && self.orphans.is_empty() && self.starting.is_empty()
    }
}

/// A state as a reader sees it: its CPU, its thread_info, and its counters.
pub(crate) type WorkerRow = (usize, Option<ThreadInfo>, Arc<WorkerCounters>);

impl WorkerRegistry {
    /// Marks a CPU as gone or back, whatever the system says.
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

    /// P21. What a look found becomes the assignment, unless a later look was faster. None when nothing
    /// changes because of that.
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
        let assignment = cpu_assignment::assign(usable, &self.offline, &self.wanted);
        self.wanted = assignment.serving.clone();
        Some(assignment)
    }

    /// Makes sure that every serving worker is on its CPU; one that cannot be brought back there loses
    /// its slot. Says how many were brought back.
    ///
    /// Under the lock a serving worker cannot end, so that its number is not another thread's.
    pub(crate) fn rebind_running(
        &mut self,
        cpu_queues: &[CpuQueue],
        orphans: &mut Vec<ItemBatch<WorkItem>>,
    ) -> u64 {
        let mut rebound = 0;
        for (&cpu, state) in &mut self.states {
            let (Some(thread_info), Some(slot)) = (state.thread_info, cpu_queues.get(cpu)) else {
                continue;
            };
            if state.phase != WorkerPhase::Running || !self.wanted.contains(cpu) {
                continue;
            }
            match thread_info.hold(cpu) {
                AffinityCheck::Bound => {}
                AffinityCheck::Rebound => rebound += 1,
                AffinityCheck::Lost => {
                    state.phase = WorkerPhase::Stopping;
                    orphans.push(slot.close());
                }
            }
        }
        rebound
    }

    /// P22. Everything that can be done now to come from what is to what is wanted. A CPU in `tried`
    /// is not started again.
    pub(crate) fn next_steps(&mut self, cpu_queues: &[CpuQueue], tried: &CpuSet) -> Transitions {
        let mut steps = Transitions::default();
        for (&cpu, state) in &mut self.states {
            // A thread that is gone but not yet owned is collected by the one who started it.
            if state.phase == WorkerPhase::Exited && state.thread.is_some() {
                state.phase = WorkerPhase::Absent;
                state.thread_info = None;
                steps.gone.extend(state.thread.take());
            }
            if state.phase == WorkerPhase::Running
                && !self.wanted.contains(cpu)
                && let Some(slot) = cpu_queues.get(cpu)
            {
                state.phase = WorkerPhase::Stopping;
                steps.orphans.push(slot.close());
            }
        }
        for cpu in self.wanted.difference(tried).iter().filter(|&cpu| cpu < cpu_queues.len()) {
            let state = self.states.entry(cpu).or_insert_with(WorkerState::absent);
            if state.phase == WorkerPhase::Absent {
                state.phase = WorkerPhase::Starting;
                steps.starting.push((cpu, Arc::clone(&state.counters)));
            }
        }
        steps
    }

    /// P23. The thread of a starting worker exists, or could not be had.
    pub(crate) fn thread_created(&mut self, cpu: usize, thread: Option<OwnedThread>) {
        let Some(state) = self.states.get_mut(&cpu) else { return };
        if thread.is_none() {
            state.phase = WorkerPhase::Absent;
        }
        state.thread = thread;
    }

    /// P24. A worker has come to its CPU, or could not. Says whether it is to serve; then its inbox is
    /// open.
    pub(crate) fn worker_ready(
        &mut self,
        slot: &CpuQueue,
        cpu: usize,
        thread_info: Option<ThreadInfo>,
    ) -> bool {
        let is_wanted = self.wanted.contains(cpu) && thread_info.is_some();
        let Some(state) = self.states.get_mut(&cpu) else { return false };
        state.thread_info = thread_info;
        if is_wanted {
            state.phase = WorkerPhase::Running;
            slot.open();
        } else {
            state.phase = WorkerPhase::Exited;
        }
        is_wanted
    }

    /// P25. A worker that cannot stay on its CPU closes its own slot. None when that has happened.
    pub(crate) fn worker_lost_cpu(
        &mut self,
        slot: &CpuQueue,
        cpu: usize,
    ) -> Option<ItemBatch<WorkItem>> {
        let state = self.states.get_mut(&cpu)?;
        if state.phase != WorkerPhase::Running {
            return None;
        }
        state.phase = WorkerPhase::Stopping;
        Some(slot.close())
    }

    /// P26. A worker touches its slot no more.
    pub(crate) fn worker_exited(&mut self, cpu: usize) {
        if let Some(state) = self.states.get_mut(&cpu) {
            state.phase = WorkerPhase::Exited;
        }
    }

    /// Whether a worker is on its way in or out.
    pub(crate) fn is_moving(&self) -> bool {
        let is_moving = |phase| {
            matches!(phase, WorkerPhase::Starting | WorkerPhase::Stopping | WorkerPhase::Exited)
        };
        self.states.values().any(|state| is_moving(state.phase))
    }

    /// P27. Whether every wanted worker serves and every other one is absent.
    pub(crate) fn is_as_wanted(&self) -> bool {
        let phase_of = |cpu| self.states.get(&cpu).map(|state| state.phase);
        !self.is_moving()
            && self.wanted.iter().all(|cpu| phase_of(cpu) == Some(WorkerPhase::Running))
    }

    /// The CPUs whose inbox is open.
    pub(crate) fn serving(&self) -> CpuSet {
        let open = self.states.iter().filter(|(_, state)| state.phase == WorkerPhase::Running);
        open.map(|(&cpu, _)| cpu).collect()
    }

    /// Every worker that there ever was.
    pub(crate) fn rows(&self) -> Vec<WorkerRow> {
        let row = |(&cpu, state): (&usize, &WorkerState)| {
            (cpu, state.thread_info, Arc::clone(&state.counters))
        };
        self.states.iter().map(row).collect()
    }
}

impl WorkerState {
    fn absent() -> Self {
        Self {
            phase: WorkerPhase::Absent,
            thread: None,
            thread_info: None,
            counters: Arc::new(WorkerCounters::new()),
        }
    }
}
