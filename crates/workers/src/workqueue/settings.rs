//! How many workers and slots a queue has, and how it spreads its requests. Numbers that are not
//! given are chosen from the CPUs that are granted and from what a request costs.

use std::time::Duration;

use crate::cpus::AvailableCpus;
use crate::priority::PriorityRequest;
use crate::{Error, ErrorKind};

/// One bit a slot in a word of 64.
pub(super) const MOST_SLOTS: usize = 64;
/// More threads than this are a mistake of the caller.
pub(super) const MOST_WORKERS: usize = 1024;
/// Slots a worker when nobody says what a request costs; QEMU's default, too.
const USUAL_SLOTS: usize = 4;
/// What should lie ready for a worker, so that it need not sleep while the submitter works itself.
const READY_WORK: Duration = Duration::from_micros(100);
/// Looks at the fill word before a worker sleeps. About ten times what a wake-up costs, so an idle
/// worker stops using its CPU within some tens of microseconds.
const USUAL_SPIN: u32 = 1000;

/// In which order workers get requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DispatchPolicy {
    /// Stay on a worker until its slots are full: one hand-over of the line serves several requests.
    #[default]
    FillFirst,
    /// The next request goes to the next worker. The seed's first policy, kept to compare.
    RoundRobin,
}

/// Which workers [`reserve_or_inline`](super::WorkQueue::reserve_or_inline) uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ActiveWorkers {
    /// As many as there are CPUs beside the submitter's: for requests that compute.
    #[default]
    OnePerCpu,
    /// All: for requests that wait for something.
    All,
}

/// How a queue is made. `WorkQueueSettings::default()` fits most.
#[derive(Debug, Clone, Default)]
pub struct WorkQueueSettings {
    /// Name of the threads, before `/0`; cut at the system's 15 bytes. Empty: "queue".
    pub name: String,
    /// Worker threads, 0 to 1024; 0 means that the submitter does everything. `None`: the granted
    /// CPUs but one, since the submitter works, too.
    pub workers: Option<usize>,
    /// Slots a worker, 1 to 64. `None`: from `cost`.
    pub slots: Option<usize>,
    /// What a request costs, about.
    pub cost: Option<Duration>,
    /// How many requests there will be, if that is known: no more workers than they can fill.
    pub requests: Option<u64>,
    /// In which order workers get requests.
    pub dispatch_policy: DispatchPolicy,
    /// How many of the workers are used at a time.
    pub active_workers: ActiveWorkers,
    /// Priority of the workers. `None`: [`PriorityRequest::Batch`], so that a worker that wakes up does not
    /// take the CPU from the submitter, which works itself. Raised workers never spin.
    pub priority: Option<PriorityRequest>,
    /// Looks before a worker sleeps. `None`: 1000, and none where workers outnumber CPUs.
    pub spin: Option<u32>,
    /// CPUs to count on. `None`: what the system grants when the queue is made.
    pub cpus: Option<usize>,
}

/// WorkQueueSettings with every number decided.
#[derive(Debug, Clone)]
pub(super) struct ResolvedSettings {
    pub(super) name: String,
    pub(super) workers: usize,
    pub(super) slots: usize,
    /// Workers that `reserve_or_inline` uses.
    pub(super) active: usize,
    pub(super) dispatch_policy: DispatchPolicy,
    pub(super) priority: PriorityRequest,
    pub(super) spin: u32,
    /// Looks before the submitter sleeps.
    pub(super) submitter_spin: u32,
}

impl WorkQueueSettings {
    /// # Errors
    ///
    /// `InvalidSetting` when a number is outside its range.
    pub(super) fn plan(&self) -> Result<ResolvedSettings, Error> {
        let slots = self.slots.unwrap_or_else(|| usual_slots(self.cost));
        check("slots a worker", slots, 1, MOST_SLOTS)?;
        let cpus = self.cpus.unwrap_or_else(|| AvailableCpus::read().parallelism()).max(1);
        let workers = self.workers.unwrap_or_else(|| self.usual_workers(cpus, slots));
        check("workers of a queue", workers, 0, MOST_WORKERS)?;
        let active = match self.active_workers {
            ActiveWorkers::OnePerCpu => workers.min(cpus - 1),
            ActiveWorkers::All => workers,
        };
        let priority = self.priority.unwrap_or(PriorityRequest::Batch);
        let is_crowded = active >= cpus || priority == PriorityRequest::Raised;
        let spin = self.spin.unwrap_or(if is_crowded { 0 } else { USUAL_SPIN });
        let submitter_spin = if active >= cpus { 0 } else { USUAL_SPIN };
        let name = if self.name.is_empty() { "queue".to_owned() } else { self.name.clone() };
        let dispatch_policy = self.dispatch_policy;
        Ok(ResolvedSettings {
            name,
            workers,
            slots,
            active,
            dispatch_policy,
            priority,
            spin,
            submitter_spin,
        })
    }

    fn usual_workers(&self, cpus: usize, slots: usize) -> usize {
        let most = (cpus - 1).min(MOST_WORKERS);
        let Some(requests) = self.requests else { return most };
        let filled = requests.div_ceil(slots as u64);
        usize::try_from(filled).unwrap_or(most).min(most)
    }
}

/// Enough slots that work for [`READY_WORK`] lies ready, and two at least, so that a worker has the
/// next request when it ends one.
fn usual_slots(cost: Option<Duration>) -> usize {
    let Some(cost) = cost else { return USUAL_SLOTS };
    let slots = READY_WORK.as_nanos().div_ceil(cost.as_nanos().max(1));
    usize::try_from(slots).unwrap_or(MOST_SLOTS).clamp(2, MOST_SLOTS)
}

fn check(what: &'static str, value: usize, least: usize, most: usize) -> Result<(), Error> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    let limit = if value < least { least } else { most };
    Err(Error::new(ErrorKind::InvalidSetting, what).with_amount(value as u64, limit as u64))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::{ActiveWorkers, WorkQueueSettings};
    use crate::ErrorKind;

    fn settings(cpus: usize) -> WorkQueueSettings {
        WorkQueueSettings { cpus: Some(cpus), ..WorkQueueSettings::default() }
    }

    #[test]
    fn workers_are_the_granted_cpus_but_the_submitters() {
        for (cpus, workers) in [(1, 0), (2, 1), (16, 15)] {
            let plan = settings(cpus).plan().unwrap();
            assert_eq!((plan.workers, plan.active), (workers, workers));
        }
    }

    #[test]
    fn few_requests_take_no_more_workers_than_they_fill() {
        let asked = WorkQueueSettings { requests: Some(9), slots: Some(4), ..settings(16) };
        assert_eq!(asked.plan().unwrap().workers, 3);
    }

    #[test]
    fn long_requests_have_few_slots_and_short_ones_many() {
        for (micros, slots) in [(1, 64), (5, 20), (25, 4), (100, 2), (50_000, 2)] {
            let asked =
                WorkQueueSettings { cost: Some(Duration::from_micros(micros)), ..settings(4) };
            assert_eq!(asked.plan().unwrap().slots, slots, "{micros} µs");
        }
    }

    #[test]
    fn more_workers_than_cpus_stay_asleep_unless_every_one_is_wanted() {
        let asked = WorkQueueSettings { workers: Some(64), ..settings(2) };
        let plan = asked.plan().unwrap();
        assert_eq!((plan.active, plan.spin), (1, 1000));
        let plan =
            WorkQueueSettings { active_workers: ActiveWorkers::All, ..asked }.plan().unwrap();
        assert_eq!((plan.active, plan.spin), (64, 0));
    }

    /// A-Q1: 65 slots are refused, and so are none; no workers at all means inline.
    #[test]
    fn numbers_out_of_range_are_refused_with_the_bound() {
        for (slots, bound) in [(0, 1), (65, 64)] {
            let asked = WorkQueueSettings { slots: Some(slots), ..settings(2) };
            let error = asked.plan().unwrap_err();
            assert_eq!((error.kind(), error.limit()), (ErrorKind::InvalidSetting, Some(bound)));
        }
        let asked = WorkQueueSettings { workers: Some(1025), ..settings(2) };
        assert_eq!(asked.plan().unwrap_err().kind(), ErrorKind::InvalidSetting);
        assert_eq!(WorkQueueSettings { workers: Some(0), ..settings(8) }.plan().unwrap().active, 0);
    }
}
