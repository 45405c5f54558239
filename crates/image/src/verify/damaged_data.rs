//! Data that a verification could not read. Each cluster and each stored range is read for one inode only; when
//! everything was read, this table says which other inodes have the same data. `Verified` keeps it and knows the keys of
//! clusters.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use foldhash::fast::RandomState;

use super::table_memory::{TableMemory, capacity_with};

/// About how many bytes a range takes, in a node that may be half empty.
const RANGE_BYTES: u64 = 48;
/// About how many bytes a cluster takes.
const CLUSTER_BYTES: u64 = 18;

/// What is known of the data of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Soundness {
    /// It was read.
    Sound,
    /// It was read, and is damaged.
    Damaged,
    /// It has to be read: a part of it may be damaged, reading it may only fail now and then, or the table is full.
    Unknown,
}

/// Clusters and stored ranges that could not be read.
#[derive(Debug)]
pub(super) struct DamagedData {
    /// What is known of clusters, by their keys.
    clusters: HashMap<u64, Soundness, RandomState>,
    /// Where ranges of stored bytes start and end. They neither overlap nor touch.
    stored: BTreeMap<u64, u64>,
    memory: TableMemory,
    /// Something did not fit.
    is_incomplete: bool,
}

impl DamagedData {
    /// Nothing is damaged.
    pub(super) fn new(memory: TableMemory) -> Self {
        let (clusters, stored) = (HashMap::default(), BTreeMap::new());
        Self { clusters, stored, memory, is_incomplete: false }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.clusters.is_empty() && self.stored.is_empty() && !self.is_incomplete
    }

    /// Adds a cluster, by its key.
    pub(super) fn add_cluster(&mut self, key: u64, known: Soundness) {
        if self.try_reserve(1, 0) {
            self.clusters.insert(key, known);
        }
    }

    /// Adds a range of stored bytes, some of which are damaged.
    pub(super) fn add_stored(&mut self, range: Range<u64>) {
        if range.is_empty() || !self.try_reserve(0, 1) {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        while let Some((&before, &until)) = self.stored.range(..=end).next_back()
            && until >= start
        {
            self.stored.remove(&before);
            (start, end) = (start.min(before), end.max(until));
        }
        self.stored.insert(start, end);
    }

    pub(super) fn cluster(&self, key: u64) -> Soundness {
        self.clusters.get(&key).copied().unwrap_or_else(|| self.otherwise())
    }

    /// Reading a range says nothing of its parts, so it is never known to be damaged.
    pub(super) fn stored(&self, range: &Range<u64>) -> Soundness {
        match self.stored.range(..range.end).next_back() {
            Some((_, until)) if *until > range.start => Soundness::Unknown,
            _ => self.otherwise(),
        }
    }

    fn otherwise(&self) -> Soundness {
        if self.is_incomplete { Soundness::Unknown } else { Soundness::Sound }
    }

    fn try_reserve(&mut self, clusters: usize, ranges: usize) -> bool {
        let entries = self.clusters.len().saturating_add(clusters);
        let keys = capacity_with(entries, self.clusters.capacity()).saturating_mul(CLUSTER_BYTES);
        let ranges = u64::try_from(self.stored.len().saturating_add(ranges)).unwrap_or(u64::MAX);
        let fits = self.memory.try_grow_to(keys.saturating_add(ranges.saturating_mul(RANGE_BYTES)));
        self.is_incomplete |= !fits;
        fits
    }
}

#[cfg(test)]
mod tests {
    use ferrofs_workers::memory::Budget;

    use super::*;

    fn table(bytes: u64) -> DamagedData {
        DamagedData::new(TableMemory::new(&Budget::new(20 << 20), bytes))
    }

    #[test]
    fn ranges_that_overlap_or_touch_are_merged() {
        let mut damaged = table(1 << 20);
        assert!(damaged.is_empty());
        for range in [10..20, 40..50, 20..30, 60..60, 49..55, 5..12] {
            damaged.add_stored(range);
        }
        assert_eq!(damaged.stored, BTreeMap::from([(5, 30), (40, 55)]));
        let is_known = |range| damaged.stored(&range) == Soundness::Unknown;
        assert!(is_known(0..6) && is_known(29..30) && is_known(0..100) && is_known(54..60));
        assert!(!is_known(0..5) && !is_known(30..40) && !is_known(55..100));
        damaged.add_stored(0..100);
        assert_eq!(damaged.stored, BTreeMap::from([(0, 100)]));
    }

    #[test]
    fn what_does_not_fit_makes_everything_unknown() {
        let mut damaged = table(128 << 10);
        damaged.add_cluster(1, Soundness::Damaged);
        assert_eq!([1, 2].map(|key| damaged.cluster(key)), [Soundness::Damaged, Soundness::Sound]);
        (0..100_000).for_each(|key| damaged.add_cluster(key, Soundness::Damaged));
        assert!(damaged.clusters.len() > 1000 && damaged.clusters.len() < 100_000);
        assert_eq!(damaged.cluster(1), Soundness::Damaged);
        assert_eq!(damaged.cluster(99_999), Soundness::Unknown);
        assert_eq!(damaged.stored(&(0..1)), Soundness::Unknown);
    }
}
