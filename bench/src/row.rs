//! What a row of the workqueue experiment is. The model includes this file.

use anyhow::Result;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolShape {
    pub(crate) workers: usize,
    /// Requests that each worker may have before it.
    pub(crate) slots: usize,
}

/// What the done-callbacks saw.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PassStats {
    pub(crate) pages: u64,
    pub(crate) bytes: u64,
}

impl PassStats {
    /// A page that became this many bytes; none when it failed.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.pages += u64::from(bytes > 0);
        self.bytes += bytes;
    }

    pub(crate) fn with(self, other: Self) -> Self {
        Self { pages: self.pages + other.pages, bytes: self.bytes + other.bytes }
    }
}

/// A way to have all pages touched, submitted and compressed.
pub(crate) trait Row {
    /// Each page once, in the order of addresses; returns when all are done.
    fn pass(&mut self) -> Result<PassStats>;
}
