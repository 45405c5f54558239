//! How many workers and slots a queue has, and how it distributes its requests. Numbers that are not given are
//! chosen from the available CPUs.

use crate::cpus::AvailableCpus;
use crate::priority::PriorityRequest;
use crate::{Error, ErrorKind};

/// One bit a slot in a word of 64.
pub(super) const MAX_SLOTS: usize = 64;
/// More threads than this are a mistake of the caller.
pub(super) const MAX_WORKERS: usize = 1024;
/// Slots a worker by default; QEMU's default, too.
const DEFAULT_SLOTS: usize = 4;
/// How often a worker looks at the fill word before it sleeps. This takes about ten times what a wake-up
/// costs, so an idle worker stops using its CPU within some tens of microseconds.
const DEFAULT_SPINS: u32 = 1000;

/// In which order workers get requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DispatchPolicy {
    /// Fills the slots of one worker before it goes on to the next, so that one transfer of a cache line
    /// serves several requests.
    #[default]
    FillFirst,
    /// Gives the next request to the next worker.
    RoundRobin,
}

/// How many workers [`reserve_or_inline`](super::WorkQueue::reserve_or_inline) uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ActiveWorkers {
    /// One for each CPU beside the submitter's: for requests that compute.
    #[default]
    OnePerCpu,
    /// All: for requests that wait for something.
    All,
}

/// How a queue is made.
///
/// ```
/// use ferrofs_workers::workqueue::{ActiveWorkers, WorkQueueSettings};
///
/// let settings = WorkQueueSettings::new("hash").workers(3).active_workers(ActiveWorkers::All);
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct WorkQueueSettings {
    name: String,
    workers: Option<usize>,
    slots: Option<usize>,
    dispatch_policy: DispatchPolicy,
    active_workers: ActiveWorkers,
    priority: PriorityRequest,
    spins: Option<u32>,
    cpus: Option<usize>,
}

impl Default for WorkQueueSettings {
    fn default() -> Self {
        Self::new("queue")
    }
}

impl WorkQueueSettings {
    /// Workers for all available CPUs but one, with names that begin with `name`. The worker number 3 is called
    /// `name/3`; the kernel keeps 15 bytes of it.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            workers: None,
            slots: None,
            dispatch_policy: DispatchPolicy::default(),
            active_workers: ActiveWorkers::default(),
            priority: PriorityRequest::Batch,
            spins: None,
            cpus: None,
        }
    }

    /// Sets the number of worker threads, 0 to 1024. With 0 the submitter handles every request. Default: the
    /// available CPUs but one, because the submitter works, too.
    pub const fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// Sets the slots a worker, 1 to 64. Long requests need few, so that they spread; short ones need many, so
    /// that a worker has work for about 100 µs and need not sleep. Default: 4.
    pub const fn slots(mut self, slots: usize) -> Self {
        self.slots = Some(slots);
        self
    }

    /// Sets in which order workers get requests. Default: [`DispatchPolicy::FillFirst`].
    pub const fn dispatch_policy(mut self, policy: DispatchPolicy) -> Self {
        self.dispatch_policy = policy;
        self
    }

    /// Sets how many of the workers are used at a time. Default: [`ActiveWorkers::OnePerCpu`].
    pub const fn active_workers(mut self, active: ActiveWorkers) -> Self {
        self.active_workers = active;
        self
    }

    /// Sets the priority of the workers. Raised workers never spin. Default: [`PriorityRequest::Batch`], so that
    /// a worker that wakes up does not take the CPU from the submitter, which works itself.
    pub const fn priority(mut self, priority: PriorityRequest) -> Self {
        self.priority = priority;
        self
    }

    /// Sets how often a worker looks for work before it sleeps. Default: 1000, or 0 if there are more active
    /// workers than CPUs beside the submitter's.
    pub const fn spins(mut self, spins: u32) -> Self {
        self.spins = Some(spins);
        self
    }

    /// Sets the number of CPUs to count on. Default: the CPUs that are available when the queue is made.
    pub const fn cpus(mut self, cpus: usize) -> Self {
        self.cpus = Some(cpus);
        self
    }

    /// # Errors
    ///
    /// `InvalidSetting` if a number is outside its range.
    pub(super) fn resolve(&self) -> Result<ResolvedSettings, Error> {
        let slots = self.slots.unwrap_or(DEFAULT_SLOTS);
        check("slots a worker", slots, 1, MAX_SLOTS)?;
        let cpus = self.cpus.unwrap_or_else(|| AvailableCpus::read().parallelism()).max(1);
        let workers = self.workers.unwrap_or_else(|| (cpus - 1).min(MAX_WORKERS));
        check("workers of a queue", workers, 0, MAX_WORKERS)?;
        let active = match self.active_workers {
            ActiveWorkers::OnePerCpu => workers.min(cpus - 1),
            ActiveWorkers::All => workers,
        };
        let is_oversubscribed = active >= cpus;
        let never_spins = is_oversubscribed || self.priority == PriorityRequest::Raised;
        Ok(ResolvedSettings {
            name: if self.name.is_empty() { "queue".to_owned() } else { self.name.clone() },
            workers,
            slots,
            active,
            dispatch_policy: self.dispatch_policy,
            priority: self.priority,
            worker_spins: self.spins.unwrap_or(if never_spins { 0 } else { DEFAULT_SPINS }),
            submitter_spins: if is_oversubscribed { 0 } else { DEFAULT_SPINS },
        })
    }
}

/// Settings with every number decided.
#[derive(Debug, Clone)]
pub(super) struct ResolvedSettings {
    pub(super) name: String,
    pub(super) workers: usize,
    pub(super) slots: usize,
    /// Workers that `reserve_or_inline` uses.
    pub(super) active: usize,
    pub(super) dispatch_policy: DispatchPolicy,
    pub(super) priority: PriorityRequest,
    /// How often a worker looks for work before it sleeps.
    pub(super) worker_spins: u32,
    /// How often the submitter looks for finished requests before it sleeps.
    pub(super) submitter_spins: u32,
}

fn check(what: &'static str, value: usize, min: usize, max: usize) -> Result<(), Error> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    let limit = if value < min { min } else { max };
    Err(Error::new(ErrorKind::InvalidSetting, what).with_amount(value as u64, limit as u64))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{ActiveWorkers, WorkQueueSettings};
    use crate::ErrorKind;
    use crate::priority::PriorityRequest;

    fn settings(cpus: usize) -> WorkQueueSettings {
        WorkQueueSettings::new("test").cpus(cpus)
    }

    #[test]
    fn workers_are_the_available_cpus_but_the_submitters() {
        for (cpus, workers) in [(1, 0), (2, 1), (16, 15)] {
            let resolved = settings(cpus).resolve().unwrap();
            assert_eq!((resolved.workers, resolved.active), (workers, workers));
        }
    }

    #[test]
    fn more_workers_than_cpus_stay_asleep_unless_every_one_is_wanted() {
        let settings = settings(2).workers(64);
        let resolved = settings.resolve().unwrap();
        assert_eq!((resolved.active, resolved.worker_spins), (1, 1000));
        let resolved = settings.active_workers(ActiveWorkers::All).resolve().unwrap();
        assert_eq!((resolved.active, resolved.worker_spins), (64, 0));
    }

    #[test]
    fn raised_workers_never_spin() {
        let resolved = settings(4).priority(PriorityRequest::Raised).resolve().unwrap();
        assert_eq!((resolved.worker_spins, resolved.submitter_spins), (0, 1000));
    }

    /// 65 slots are refused, and so are none; no workers at all means inline.
    #[test]
    fn numbers_out_of_range_are_refused_with_the_bound() {
        for (slots, bound) in [(0, 1), (65, 64)] {
            let error = settings(2).slots(slots).resolve().unwrap_err();
            assert_eq!((error.kind(), error.limit()), (ErrorKind::InvalidSetting, Some(bound)));
        }
        let error = settings(2).workers(1025).resolve().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidSetting);
        assert_eq!(settings(8).workers(0).resolve().unwrap().active, 0);
    }

    #[test]
    fn a_queue_without_a_name_is_called_queue() {
        assert_eq!(WorkQueueSettings::new("").resolve().unwrap().name, "queue");
    }
}
