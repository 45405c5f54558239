//! What a row of the workqueue experiment is, by the names that the baselines use (bench/src/row.rs).

use anyhow::Result;

use crate::machine::Wakes;
use crate::sync::thread::JoinHandle;
pub(crate) use crate::workqueue as queue;

/// Workers, and the requests that each may have before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolShape {
    pub(crate) workers: usize,
    pub(crate) slots: usize,
}

/// What the done-callbacks saw.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PassStats {
    pub(crate) pages: u64,
}

impl PassStats {
    /// A page that became so many bytes; none when it failed.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.pages += u64::from(bytes > 0);
    }
}

/// A way to have all pages marked, submitted and compressed.
pub(crate) trait Row {
    /// Each page once; returns when all are done.
    fn pass(&mut self) -> Result<PassStats>;
}

/// A thread of a baseline.
pub(crate) fn start(_worker: usize, body: impl FnOnce() + 'static) -> Result<JoinHandle<()>> {
    JoinHandle::start(body, Wakes::Preempting)
}
