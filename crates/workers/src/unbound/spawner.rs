//! Starts the threads of a pool. It exists so that tests can refuse threads where the system would.

use crate::error::Error;
use crate::thread::{self, OwnedThread, ThreadOptions, ThreadPlacement};

/// The kernel keeps 15 bytes of a thread's name.
const NAME_BYTES_MAX: usize = 15;

/// `name` and `suffix` in as many bytes as the kernel keeps: the name is cut, never the suffix.
pub(crate) fn thread_name(name: &str, suffix: &str) -> String {
    let room = NAME_BYTES_MAX.saturating_sub(suffix.len());
    let end = name.floor_char_boundary(room.min(name.len()));
    name.get(..end).unwrap_or_default().to_owned() + suffix
}

/// Starts threads.
#[derive(Debug, Clone, Default)]
pub(crate) struct ThreadSpawner {
    #[cfg(test)]
    pub(crate) faults: crate::sync::Arc<Faults>,
}

impl ThreadSpawner {
    /// [`thread::start`], unless a test refuses it.
    pub(crate) fn start(
        &self,
        start: ThreadOptions,
        body: impl FnOnce(ThreadPlacement) + Send + 'static,
    ) -> Result<OwnedThread, Error> {
        #[cfg(test)]
        if self.faults.refuse(start.cpu) {
            return Err(Error::new(crate::ErrorKind::NoThread, "starting a thread"));
        }
        thread::start(start, body)
    }
}

/// Which threads a test refuses.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct Faults(crate::sync::Mutex<Refusals>);

#[cfg(test)]
#[derive(Debug, Default)]
struct Refusals {
    cpus: crate::cpus::CpuSet,
    is_unbound_refused: bool,
    count: usize,
}

#[cfg(test)]
impl Default for Faults {
    fn default() -> Self {
        Self(crate::sync::Mutex::new(Refusals::default()))
    }
}

#[cfg(test)]
#[cfg_attr(loom, allow(dead_code, reason = "models refuse nothing"))]
impl Faults {
    /// From here on, threads on `cpus` are refused, and those on no CPU if `unbound` says so.
    pub(crate) fn set(&self, cpus: crate::cpus::CpuSet, unbound: bool) {
        let mut refusals = crate::sync::lock(&self.0);
        refusals.cpus = cpus;
        refusals.is_unbound_refused = unbound;
    }

    /// How many threads were refused.
    pub(crate) fn count(&self) -> usize {
        crate::sync::lock(&self.0).count
    }

    fn refuse(&self, cpu: Option<usize>) -> bool {
        let mut refusals = crate::sync::lock(&self.0);
        let is_refused = match cpu {
            Some(cpu) => refusals.cpus.contains(cpu),
            None => refusals.is_unbound_refused,
        };
        refusals.count += usize::from(is_refused);
        is_refused
    }
}
