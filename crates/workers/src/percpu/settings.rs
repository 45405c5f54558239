//! How per-CPU workers are to be: what callers may choose. It decides nothing.

use crate::cpus::CpuSet;
use crate::priority::PriorityRequest;
use crate::unbound::ThreadSpawner;

/// How a pool of per-CPU workers is to be.
#[derive(Debug, Clone)]
pub struct PerCpuSettings {
    pub(super) name: String,
    pub(super) priority: PriorityRequest,
    pub(super) cpus: Option<CpuSet>,
    pub(super) spawner: ThreadSpawner,
}

impl PerCpuSettings {
    /// A worker on every CPU that the system grants, at raised priority. The worker of CPU 3 is called
    /// `name/3`; the kernel keeps 15 bytes, so a long `name` is cut, never the number.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            priority: PriorityRequest::Raised,
            cpus: None,
            spawner: ThreadSpawner::default(),
        }
    }

    /// The switch of priority: [`PriorityRequest::Normal`] leaves the workers where every thread begins.
    #[must_use]
    pub fn priority(mut self, priority: PriorityRequest) -> Self {
        self.priority = priority;
        self
    }

    /// Workers on these CPUs only, as far as the system grants them. The quota of CPU time does not
    /// reduce their number: the caller has chosen.
    #[must_use]
    pub fn cpus(mut self, cpus: CpuSet) -> Self {
        self.cpus = Some(cpus);
        self
    }
}
