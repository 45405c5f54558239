//! A set of inodes for callers that walk an image, such as the inodes with several names that they have
//! counted. A bit for each inode, charged to a budget; the walk itself has sets of its own (`walk`).

use ferrofs_ondisk::Nid;
use ferrofs_workers::memory::{AllocPolicy, Budget, Charge};

use crate::error::Result;
use crate::sparse_bit_set::SparseBitSet;

/// Memory is charged in steps of so many bytes.
const STEP_BYTES: u64 = 64 << 10;

/// A set of inodes of one image. Nothing is charged while it is empty.
#[derive(Debug)]
pub struct InodeSet {
    numbers: SparseBitSet,
    budget: Budget,
    charge: Option<Charge>,
}

impl InodeSet {
    /// An empty set, charged to `budget`, which is usually that of [`Image::memory`](crate::Image::memory).
    #[must_use]
    pub fn new(budget: &Budget) -> Self {
        Self { numbers: SparseBitSet::default(), budget: budget.clone(), charge: None }
    }

    /// Adds an inode; false if it was there.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory): the budget has no room for a larger set.
    pub fn insert(&mut self, nid: Nid) -> Result<bool> {
        // The next growth of the table is charged before it happens.
        let needed = self.numbers.bytes_after_insert();
        while self.charge.as_ref().map_or(0, Charge::bytes) < needed {
            let policy = AllocPolicy::MustSucceed;
            match &mut self.charge {
                Some(charge) => charge.grow(STEP_BYTES, policy)?,
                none => *none = Some(self.budget.charge(STEP_BYTES, policy)?),
            }
        }
        Ok(self.numbers.insert(nid.raw()))
    }

    /// Whether an inode is in the set.
    #[must_use]
    pub fn contains(&self, nid: Nid) -> bool {
        self.numbers.contains(nid.raw())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn inodes_are_in_the_set_once_and_their_memory_is_charged() {
        let budget = Budget::new(1 << 30);
        let mut set = InodeSet::new(&budget);
        assert_eq!(budget.used_bytes(), 0);
        for number in 0..20_000u64 {
            let nid = Nid::new(number << 20);
            assert!(!set.contains(nid));
            assert!(set.insert(nid).unwrap());
            assert!(!set.insert(nid).unwrap());
            assert!(set.contains(nid));
        }
        assert!(budget.used_bytes() >= set.numbers.bytes());
        drop(set);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn a_set_that_does_not_fit_into_the_budget_stops_growing() {
        let budget = Budget::with_stall(1 << 20, Duration::from_millis(1));
        let mut set = InodeSet::new(&budget);
        let mut numbers = 0..1_000_000u64;
        let refused = numbers.find(|number| set.insert(Nid::new(number << 20)).is_err());
        assert!(refused.is_some());
        assert!(set.numbers.bytes() <= 1 << 20);
    }
}
