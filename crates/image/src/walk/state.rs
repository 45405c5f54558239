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
    /// Bytes beside the sets.
    others: u64,
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
            others: 0,
        })
    }

    /// Remembers a directory; false if it has been entered before.
    ///
    /// # Errors
    /// The budget has no room.
    pub(super) fn enter(&mut self, nid: Nid) -> Result<bool> {
        self.charge_growth(self.entered.bytes(), self.entered.bytes_after_insert())?;
        Ok(self.entered.insert(nid.raw()))
    }

    /// Remembers a file with one link; false if it has been named before.
    ///
    /// # Errors
    /// The budget has no room.
    pub(super) fn names(&mut self, nid: Nid) -> Result<bool> {
        self.charge_growth(self.named.bytes(), self.named.bytes_after_insert())?;
        Ok(self.named.insert(nid.raw()))
    }

    /// Remembers that `bytes` bytes of entries were read, which are stored at `location`, `skip`
    /// bytes into it. Returns whether most of them had been read before.
    ///
    /// # Errors
    /// The budget has no room.
    pub(super) fn repeats(
        &mut self,
        location: &DataLocation,
        skip: u64,
        bytes: u64,
    ) -> Result<bool> {
        let Some(first) = self.place(location, skip) else { return Ok(false) };
        let unit = |at: u64| at.saturating_add((1 << UNIT_LOG) - 1) >> UNIT_LOG;
        // Only units that begin in the range: ranges that do not overlap have none in common.
        let units = unit(first)..unit(first.saturating_add(bytes));
        let count = units.end.saturating_sub(units.start);
        self.charge_growth(self.read.bytes(), self.read.bytes_after_insert_range(&units))?;
        let new = self.read.insert_range(units);
        Ok(count > 0 && new.saturating_mul(2) < count)
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
        self.others = others;
        self.charge_growth(0, 0)
    }

    /// Charges all that is remembered, where a set is about to grow from `before` to `after` bytes.
    fn charge_growth(&mut self, before: u64, after: u64) -> Result<()> {
        let sets = [&self.entered, &self.named, &self.read].map(SparseBitSet::bytes);
        let sets = sets.into_iter().fold(0u64, u64::saturating_add);
        // A table that doubles is there twice until its entries have moved.
        let grown = if after > before { after } else { 0 };
        let bytes = sets.saturating_add(grown).saturating_add(self.others);
        while self.charge.bytes() < bytes {
            self.charge.grow(STEP_BYTES, AllocPolicy::MustSucceed)?;
        }
        let surplus = self.charge.bytes().saturating_sub(bytes.max(STEP_BYTES));
        self.charge.shrink(surplus.saturating_sub(surplus % STEP_BYTES));
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
        assert!(!state.repeats(&stored(4096), 0, 4096).unwrap());
        assert!(!state.repeats(&stored(8192), 0, 100).unwrap());
        assert!(!state.repeats(&stored(8292), 0, 200).unwrap());
        assert!(state.repeats(&stored(4096), 0, 4096).unwrap());
        assert!(state.repeats(&stored(4096 + 72), 0, 4096).unwrap());
        assert!(!state.repeats(&stored(4096 + 3000), 0, 12_000).unwrap());
        assert!(!state.repeats(&DataLocation::Fragment { offset: 4096 }, 0, 4096).unwrap());
        assert!(state.repeats(&DataLocation::Fragment { offset: 4100 }, 0, 4000).unwrap());
        assert!(!state.repeats(&DataLocation::Hole, 0, 4096).unwrap());
    }

    #[test]
    fn what_a_walk_remembers_is_charged() {
        let budget = Budget::new(1 << 30);
        let mut state = WalkState::new(&budget).unwrap();
        for number in 0..20_000 {
            assert!(state.enter(Nid::new(number << 20)).unwrap());
        }
        state.settle_charge(1 << 20).unwrap();
        assert!(budget.used_bytes() >= (1 << 20) + 20_000 * 64);
        drop(state);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn a_set_that_does_not_fit_into_the_budget_does_not_grow() {
        let few = |step: &mut dyn FnMut(&mut WalkState, u64) -> Result<bool>| {
            let budget = Budget::with_stall(1 << 20, std::time::Duration::from_millis(1));
            let mut state = WalkState::new(&budget).unwrap();
            let refused = (0..1_000_000).find(|number| step(&mut state, *number).is_err());
            assert!(refused.is_some());
            let sets = [&state.entered, &state.named, &state.read].map(SparseBitSet::bytes);
            assert!(sets.iter().sum::<u64>() <= 1 << 20, "{sets:?}");
        };
        few(&mut |state, number| state.enter(Nid::new(number << 20)));
        few(&mut |state, number| state.names(Nid::new(number << 20)));
        few(&mut |state, number| state.repeats(&stored(number << 20), 0, 4096));
    }
}
