//! Counters and histograms that the mechanisms of this crate keep while they work. Most numbers
//! have one writer and any number of readers. Counting is cheap enough to be always on: nothing
//! here locks, and nothing allocates after it is made. `CachePadded` and [`Sharded`] keep what
//! different threads write on different cache lines; the queues and pools use the first one, too.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::sync::{Ordering, PlainAtomicU64, thread_local};

/// A number that goes up. It orders nothing: a reader sees some recent value. A counter whose
/// writer is busy should have a cache line of its own.
#[derive(Debug, Default)]
pub(crate) struct Counter(PlainAtomicU64);

impl Counter {
    /// Adds for the only thread that ever adds: no locked instruction.
    pub(crate) fn add(&self, amount: u64) {
        let sum = self.0.load(Ordering::Relaxed).wrapping_add(amount);
        self.0.store(sum, Ordering::Relaxed);
    }

    /// Adds while other threads may add, too.
    pub(crate) fn add_shared(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Each power of two has two to this power buckets.
const FINE_BITS: u32 = 3;
/// The highest power of two that has buckets of its own; 2^40 ns are 18 minutes.
const HIGHEST_POWER: u32 = 40;
/// The first eight values have a bucket each, then every power of two has eight.
const BUCKETS: usize = ((HIGHEST_POWER - FINE_BITS + 2) << FINE_BITS) as usize;

/// A histogram that any thread may add to: about 15 ns, more where several do at once (see
/// [`Sharded`]).
#[derive(Debug)]
pub struct Histogram {
    buckets: Box<[PlainAtomicU64]>,
    sum: PlainAtomicU64,
    longest: PlainAtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self {
            buckets: (0..BUCKETS).map(|_| PlainAtomicU64::new(0)).collect(),
            sum: PlainAtomicU64::new(0),
            longest: PlainAtomicU64::new(0),
        }
    }

    /// Records one time. Relaxed throughout: the numbers order nothing.
    pub fn record(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        if let Some(bucket) = self.buckets.get(bucket_of(nanoseconds)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.sum.fetch_add(nanoseconds, Ordering::Relaxed);
        if nanoseconds > self.longest.load(Ordering::Relaxed) {
            self.longest.fetch_max(nanoseconds, Ordering::Relaxed);
        }
    }

    /// What has been recorded so far.
    #[must_use]
    pub fn snapshot(&self) -> HistogramSnapshot {
        HistogramSnapshot {
            buckets: self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect(),
            sum: self.sum.load(Ordering::Relaxed),
            longest: self.longest.load(Ordering::Relaxed),
        }
    }
}

/// The bucket of a value; the last one takes everything that is longer.
fn bucket_of(nanoseconds: u64) -> usize {
    let Some(power) = nanoseconds.checked_ilog2().filter(|power| *power >= FINE_BITS) else {
        return usize::try_from(nanoseconds).unwrap_or(0);
    };
    let fine = (nanoseconds >> (power - FINE_BITS)) & ((1 << FINE_BITS) - 1);
    let index = (u64::from(power - FINE_BITS + 1) << FINE_BITS) + fine;
    usize::try_from(index).unwrap_or(usize::MAX).min(BUCKETS - 1)
}

/// The longest time that falls into a bucket.
fn longest_in(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let row = bucket >> FINE_BITS;
    if row == 0 {
        return bucket;
    }
    let fine = bucket & ((1 << FINE_BITS) - 1);
    let width = 1_u64 << (row - 1);
    ((1 << FINE_BITS) + fine) * width + (width - 1)
}

/// The recorded times of a histogram: their number, sum and distribution.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistogramSnapshot {
    buckets: Vec<u64>,
    sum: u64,
    longest: u64,
}

impl HistogramSnapshot {
    /// How many times were recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Their sum.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum)
    }

    /// The longest time, exact.
    #[must_use]
    pub fn longest(&self) -> Duration {
        Duration::from_nanos(self.longest)
    }

    /// Their average; zero if there are none.
    #[must_use]
    pub fn average(&self) -> Duration {
        Duration::from_nanos(self.sum.checked_div(self.count()).unwrap_or(0))
    }

    /// The time that `share` of them (0.0 to 1.0) do not exceed, at most 12.5 % too long; zero if
    /// there are none.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        let count = self.count();
        // Counts are far below 2^52, so the way through f64 is exact enough for a rank.
        #[allow(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rank between 0 and count"
        )]
        let rank = ((count as f64) * share.clamp(0.0, 1.0)).ceil() as u64;
        let mut seen = 0;
        for (index, bucket) in self.buckets.iter().enumerate() {
            seen += bucket;
            if seen >= rank.max(1) {
                return Duration::from_nanos(longest_in(index).min(self.longest));
            }
        }
        self.longest()
    }

    /// Adds the times of another histogram.
    pub fn merge(&mut self, other: &Self) {
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.sum = self.sum.wrapping_add(other.sum);
        self.longest = self.longest.max(other.longest);
    }
}

/// `T` at the start of 128 bytes of its own, so that two threads that write adjacent fields do not slow each other
/// down.
///
/// A cache line has 64 bytes on most processors, but x86-64 prefetches lines in pairs and some aarch64 processors
/// have lines of 128.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CachePadded<T>(pub(crate) T);

impl<T> Deref for CachePadded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for CachePadded<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// More shards than this would take memory for threads that seldom write at the same moment.
const SHARDS_MAX: usize = 64;

/// How many threads have a number.
static THREADS: PlainAtomicU64 = PlainAtomicU64::new(0);

thread_local! {
    static NUMBER: u64 = THREADS.fetch_add(1, Ordering::Relaxed);
}

/// Which of `shards` shards, a power of two, belongs to the calling thread: always the same.
pub(crate) fn local_shard(shards: usize) -> usize {
    // A power of two, so that this is no division; the mask fits, as it is that of a length.
    let mask = shards - 1;
    usize::try_from(NUMBER.with(|number| *number) & mask as u64).unwrap_or(0)
}

/// One `T` for each group of threads, so that threads that write at the same moment write to
/// different cache lines.
///
/// Which one belongs to a thread follows from a number that the thread has for life. Two threads
/// may share one, so a `T` must allow several writers.
#[derive(Debug)]
pub struct Sharded<T> {
    shards: Box<[CachePadded<T>]>,
}

impl<T> Sharded<T> {
    /// For `threads` that may write at the same moment: as many shards, rounded up to a power of
    /// two, but at most 64.
    #[must_use]
    pub fn new(threads: usize, mut make: impl FnMut() -> T) -> Self {
        let shards = threads.clamp(1, SHARDS_MAX).next_power_of_two();
        Self { shards: (0..shards).map(|_| CachePadded(make())).collect() }
    }

    /// The shard of the calling thread, which is always the same.
    #[must_use]
    pub fn local(&self) -> &T {
        &self.shards[local_shard(self.shards.len())]
    }

    /// All shards.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.shards.iter().map(|shard| &shard.0)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::{BUCKETS, Histogram, HistogramSnapshot, Sharded, bucket_of, longest_in};

    #[test]
    fn an_empty_histogram_answers_zero() {
        let times = Histogram::new().snapshot();
        assert_eq!((times.count(), times.average(), times.quantile(0.5)), Default::default());
        assert_eq!(HistogramSnapshot::default().quantile(1.0), Duration::ZERO);
    }

    #[test]
    fn a_quantile_is_the_time_that_the_share_does_not_exceed() {
        let histogram = Histogram::new();
        for microseconds in 1..=1000 {
            histogram.record(Duration::from_micros(microseconds));
        }
        let times = histogram.snapshot();
        assert_eq!(times.count(), 1000);
        assert_eq!(times.longest(), Duration::from_millis(1));
        assert_eq!(times.average(), Duration::from_nanos(500_500));
        for (share, exact) in [(0.5, 500.0), (0.99, 990.0), (0.001, 1.0), (1.0, 1000.0)] {
            let found = times.quantile(share).as_secs_f64() * 1e6;
            assert!(found >= exact && found <= exact * 1.125, "{share}: {found} for {exact}");
        }
    }

    #[test]
    fn times_longer_than_the_last_bucket_are_counted_in_it() {
        let histogram = Histogram::new();
        histogram.record(Duration::from_secs(1 << 33));
        assert_eq!(histogram.snapshot().count(), 1);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn merging_adds_counts_and_keeps_the_longest() {
        let (one, two) = (Histogram::new(), Histogram::new());
        one.record(Duration::from_nanos(5));
        two.record(Duration::from_nanos(700));
        let mut both = HistogramSnapshot::default();
        both.merge(&one.snapshot());
        both.merge(&two.snapshot());
        assert_eq!((both.count(), both.longest().as_nanos(), both.sum().as_nanos()), (2, 700, 705));
    }

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
        for (threads, shards) in [(0, 1), (1, 1), (3, 4), (16, 16), (1000, 64)] {
            assert_eq!(Sharded::new(threads, || ()).iter().count(), shards);
        }
    }

    #[test]
    fn nothing_is_lost_between_shards() {
        let spread = Sharded::new(4, Histogram::new);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for n in 0..1000 {
                        spread.local().record(Duration::from_nanos(n));
                    }
                });
            }
        });
        let mut all = HistogramSnapshot::default();
        spread.iter().for_each(|one| all.merge(&one.snapshot()));
        assert_eq!((all.count(), all.longest()), (8000, Duration::from_nanos(999)));
    }

    proptest! {
        #[test]
        fn every_value_lies_in_its_bucket_and_above_the_one_before(value in 0_u64..1 << 40) {
            let bucket = bucket_of(value);
            prop_assert!(value <= longest_in(bucket));
            prop_assert!(bucket == 0 || value > longest_in(bucket - 1));
        }
    }
}
