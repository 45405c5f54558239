//! How long runs of a decoder take, for those who want to know. Nothing is measured until somebody asks for it once:
//! two looks at the clock are 3 % of decoding a small LZ4 cluster, which is too much for whoever only extracts.

use std::sync::OnceLock;
use std::time::Instant;

use ferrofs_workers::counters::{Histogram, HistogramSnapshot, Sharded};

/// The times, if they are measured.
#[derive(Debug, Default)]
pub(crate) struct DecodeTimer(OnceLock<Sharded<Histogram>>);

impl DecodeTimer {
    /// From now on times are measured, on so many threads at the same moment: 2.5 KiB for each, 40 KiB at most.
    pub(crate) fn measure(&self, threads: usize) {
        self.0.get_or_init(|| Sharded::new(threads, Histogram::new));
    }

    /// Runs a decoder.
    pub(super) fn of<T>(&self, decode: impl FnOnce() -> T) -> T {
        let Some(times) = self.0.get() else { return decode() };
        let began = Instant::now();
        let decoded = decode();
        times.local().record(began.elapsed());
        decoded
    }

    pub(crate) fn all(&self) -> HistogramSnapshot {
        let mut all = HistogramSnapshot::default();
        if let Some(times) = self.0.get() {
            times.iter().for_each(|one| all.merge(&one.snapshot()));
        }
        all
    }
}
