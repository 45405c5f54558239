//! One thing many times, so that threads which write at the same moment write to different cache lines. Which one is
//! a thread's follows from a number that the thread has for life; nothing is registered or given back.

use crate::cache_padded::CachePadded;
use crate::sync::{Ordering, PlainAtomicU64, thread_local};

/// More than this many would take memory for threads that seldom write at the same moment.
const SHARDS_MAX: usize = 16;

/// How many threads have a number.
static THREADS: PlainAtomicU64 = PlainAtomicU64::new(0);

thread_local! {
    static NUMBER: u64 = THREADS.fetch_add(1, Ordering::Relaxed);
}

/// A `T` for iter of a few groups of threads. Two threads may share one, so it must bear several writers.
#[derive(Debug)]
pub struct Sharded<T> {
    shards: Box<[CachePadded<T>]>,
}

impl<T> Sharded<T> {
    /// For `threads` that may write at the same moment: as many shards, but 16 at most, and a power of two.
    #[must_use]
    pub fn new(threads: usize, mut make: impl FnMut() -> T) -> Self {
        let shards = threads.clamp(1, SHARDS_MAX).next_power_of_two();
        Self { shards: (0..shards).map(|_| CachePadded(make())).collect() }
    }

    /// The one of the calling thread, which is always the same.
    #[must_use]
    pub fn local(&self) -> &T {
        // A power of two, so that this is no division; the mask fits, as it is that of a length.
        let mask = self.shards.len() - 1;
        let number = usize::try_from(NUMBER.with(|number| *number) & mask as u64);
        &self.shards[number.unwrap_or(0)]
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.shards.iter().map(|shard| &shard.0)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::Sharded;
    use crate::counters::{Histogram, HistogramSnapshot};

    #[test]
    fn a_thread_always_has_the_same_shard_and_threads_in_a_row_have_different_ones() {
        let spread = Sharded::new(4, || ());
        assert!(std::ptr::eq(spread.local(), spread.local()));
        let spread = Sharded::new(2, || 0_u64);
        let place = |local: &u64| spread.iter().position(|one| std::ptr::eq(one, local));
        let places = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..64).map(|_| scope.spawn(|| place(spread.local()))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(places.contains(&Some(0)) && places.contains(&Some(1)), "{places:?}");
    }

    #[test]
    fn there_are_as_many_shards_as_threads_within_bounds() {
        for (threads, shards) in [(0, 1), (1, 1), (3, 4), (16, 16), (1000, 16)] {
            assert_eq!(Sharded::new(threads, || ()).iter().count(), shards);
        }
    }

    #[test]
    fn nothing_is_lost_between_shards() {
        let spread = Sharded::new(4, Histogram::new);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    (0..1000).for_each(|n| spread.local().record(Duration::from_nanos(n)))
                });
            }
        });
        let mut all = HistogramSnapshot::default();
        spread.iter().for_each(|one| all.merge(&one.snapshot()));
        assert_eq!((all.count(), all.longest()), (8000, Duration::from_nanos(999)));
    }
}
