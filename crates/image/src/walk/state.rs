//! What a walk remembers: the inodes that it has met, the stored bytes of entries that it
//! has read, and the charge for all of it. Owned by a [`TreeWalk`](super::TreeWalk).

use std::hash::BuildHasher;

use ferrofs_ondisk::Nid;
use ferrofs_workers::memory::{AllocPolicy, Budget, Charge};
use foldhash::fast::RandomState;

use crate::error::Result;
use crate::extent::DataLocation;
use crate::sparse_bit_set::SparseBitSet;

/// Memory is charged in steps of so many bytes.
const STEP_BYTES: u64 = 256 << 10;
/// The log of the bytes that one bit stands for: an inode slot, as two small directories that lie
/// behind their inodes share none.
const UNIT_LOG: u32 = 5;

/// The memory of a walk.
#[derive(Debug)]
pub(super) struct WalkState {
    /// Directories that have been entered.
    entered: SparseBitSet,
    /// Other inodes with one link that have been named.
    named: SparseBitSet,
    /// Units of stored bytes that entries were read from.
    read: SparseBitSet,
    hasher: RandomState,
    charge: Charge,
}

impl WalkState {
    /// Nothing yet. The first step is charged, so that small trees never wait for memory again.
    pub(super) fn new(budget: &Budget) -> Result<Self> {
        Ok(Self {
            entered: SparseBitSet::default(),
            named: SparseBitSet::default(),
            read: SparseBitSet::default(),
            hasher: RandomState::default(),
            charge: budget.charge(STEP_BYTES, AllocPolicy::MustSucceed)?,
        })
    }

    /// Remembers a directory; false if it has been entered before.
    pub(super) fn enter(&mut self, nid: Nid) -> bool {
        self.entered.insert(nid.raw())
    }

    /// Remembers a file with one link; false if it has been named before.
    pub(super) fn names(&mut self, nid: Nid) -> bool {
        self.named.insert(nid.raw())
    }

    /// Remembers that `bytes` bytes of entries were read, which are stored at `location`, `skip`
    /// bytes into it. Returns whether most of them had been read before.
    pub(super) fn repeats(&mut self, location: &DataLocation, skip: u64, bytes: u64) -> bool {
        let Some(first) = self.place(location, skip) else { return false };
        let unit = |at: u64| at.saturating_add((1 << UNIT_LOG) - 1) >> UNIT_LOG;
        // Only units that begin in the range: ranges that do not overlap have none in common.
        let units = unit(first)..unit(first.saturating_add(bytes));
        let count = units.end.saturating_sub(units.start);
        let new = self.read.insert_range(units);
        count > 0 && new.saturating_mul(2) < count
    }

    /// A number for stored bytes: the same bytes have the same one. Others have another one, but
    /// for an accident whose only effect is that reading counts as repeated.
    fn place(&self, location: &DataLocation, skip: u64) -> Option<u64> {
        match location {
            DataLocation::Hole => None,
            DataLocation::Fragment { offset } => Some((3 << 60) | offset),
            DataLocation::Stored(address) => Some(address.number()),
            // A cluster decodes to less than 16 MiB.
            DataLocation::Cluster(cluster) => {
                Some((self.hasher.hash_one(cluster.id) >> 24 << 24).wrapping_add(skip))
            }
        }
    }

    /// Charges what the sets and `others` bytes beside them take.
    ///
    /// # Errors
    /// The budget has no room.
    pub(super) fn settle_charge(&mut self, others: u64) -> Result<()> {
        let sets = [&self.entered, &self.named, &self.read].map(SparseBitSet::bytes);
        let sets = sets.into_iter().fold(0u64, u64::saturating_add);
        let bytes = sets.saturating_add(others);
        while self.charge.bytes() < bytes {
            self.charge.grow(STEP_BYTES, AllocPolicy::MustSucceed)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extent::Address;

    fn stored(offset: u64) -> DataLocation {
        DataLocation::Stored(Address::unified(offset))
    }

    #[test]
    fn bytes_that_overlap_are_repeated_and_neighbours_are_not() {
        let mut state = WalkState::new(&Budget::new(1 << 20)).unwrap();
        assert!(!state.repeats(&stored(4096), 0, 4096));
        assert!(!state.repeats(&stored(8192), 0, 100));
        assert!(!state.repeats(&stored(8292), 0, 200));
        assert!(state.repeats(&stored(4096), 0, 4096));
        assert!(state.repeats(&stored(4096 + 72), 0, 4096));
        assert!(!state.repeats(&stored(4096 + 3000), 0, 12_000));
        assert!(!state.repeats(&DataLocation::Fragment { offset: 4096 }, 0, 4096));
        assert!(state.repeats(&DataLocation::Fragment { offset: 4100 }, 0, 4000));
        assert!(!state.repeats(&DataLocation::Hole, 0, 4096));
    }

    #[test]
    fn what_a_walk_remembers_is_charged() {
        let budget = Budget::new(1 << 30);
        let mut state = WalkState::new(&budget).unwrap();
        for number in 0..20_000 {
            assert!(state.enter(Nid::new(number << 20)));
        }
        state.settle_charge(1 << 20).unwrap();
        assert!(budget.used_bytes() >= (1 << 20) + 20_000 * 64);
        drop(state);
        assert_eq!(budget.used_bytes(), 0);
    }
}
