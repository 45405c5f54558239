//! Which chunks were read from the cache since the fetcher was told: it evicts these later than
//! others, and does not see reads itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The fetcher is told so often, in milliseconds. Eviction needs the order of uses, not their time.
const REPORT_MS: u64 = 5_000;

/// The chunks of one object that were used. Threads share it.
#[derive(Debug)]
pub(crate) struct UseLog {
    /// A bit for each chunk.
    used: Box<[AtomicU64]>,
    started_at: Instant,
    reported_ms: AtomicU64,
}

impl UseLog {
    /// For an object of `count` chunks.
    pub(crate) fn new(count: u32) -> Self {
        let used = (0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self { used, started_at: Instant::now(), reported_ms: AtomicU64::new(0) }
    }

    /// Records a use. Returns the chunks to report, in ascending order, if it is time to.
    ///
    /// Relaxed throughout: a use that is reported late or twice changes only what is evicted first.
    pub(crate) fn record(&self, chunk: u32) -> Option<Vec<u32>> {
        let bit = 1 << (chunk % 64);
        if let Some(word) = self.used.get(chunk as usize / 64)
            && word.load(Ordering::Relaxed) & bit == 0
        {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        let now = u64::try_from(self.started_at.elapsed().as_millis()).unwrap_or(u64::MAX);
        let last = self.reported_ms.load(Ordering::Relaxed);
        let is_time = now.saturating_sub(last) >= REPORT_MS
            && self
                .reported_ms
                .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        is_time.then(|| self.take())
    }

    /// The chunks that were used since the last time.
    pub(crate) fn take(&self) -> Vec<u32> {
        let mut chunks = Vec::new();
        for (number, word) in (0..).zip(&self.used) {
            let mut bits = word.swap(0, Ordering::Relaxed);
            while bits != 0 {
                chunks.push(number * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
        chunks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_chunk_is_reported_once() {
        let log = UseLog::new(130);
        for chunk in [129, 0, 64, 0, 63, 500] {
            assert_eq!(log.record(chunk), None, "not yet");
        }
        assert_eq!(log.take(), [0, 63, 64, 129]);
        assert!(log.take().is_empty());
    }
}
