//! The memory of the tables of a verification: charged to the budget of the image, up to a limit for each table. A table
//! that may not grow forgets what comes later; `Verified` and `DamagedData` say what that means.

use ferrofs_workers::memory::{AllocPolicy, Budget, Charge};

/// Memory is charged in steps of so many bytes.
const STEP_BYTES: u64 = 64 << 10;

/// The charge of one table.
#[derive(Debug)]
pub(super) struct TableMemory {
    budget: Budget,
    charge: Option<Charge>,
    limit_bytes: u64,
}

impl TableMemory {
    /// For a table of at most so many bytes.
    pub(super) fn new(budget: &Budget, limit_bytes: u64) -> Self {
        Self { budget: budget.clone(), charge: None, limit_bytes }
    }

    /// Charges a table that takes `bytes` bytes; false if it may not grow to that.
    pub(super) fn try_grow_to(&mut self, bytes: u64) -> bool {
        let charged = self.charge.as_ref().map_or(0, Charge::bytes);
        if bytes <= charged {
            return true;
        }
        if bytes > self.limit_bytes {
            return false;
        }
        let more = bytes.saturating_sub(charged);
        let more = more.max(STEP_BYTES).min(self.limit_bytes.saturating_sub(charged));
        let policy = AllocPolicy::MayFail;
        let grown = match &mut self.charge {
            Some(charge) => charge.grow(more, policy),
            none => self.budget.charge(more, policy).map(|charge| *none = Some(charge)),
        };
        grown.is_ok()
    }
}

/// The capacity that a table needs for so many entries, at most one more than it has: a full one doubles.
pub(super) fn capacity_with(entries: usize, capacity: usize) -> u64 {
    let next = if entries <= capacity { capacity } else { capacity.saturating_mul(2).max(4) };
    u64::try_from(next).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_grows_up_to_its_limit() {
        let budget = Budget::new(20 << 20);
        let mut memory = TableMemory::new(&budget, 100 << 10);
        assert!(memory.try_grow_to(0) && budget.used_bytes() == 0);
        assert!(memory.try_grow_to(1) && memory.try_grow_to(64 << 10));
        assert_eq!(budget.used_bytes(), 64 << 10);
        assert!(memory.try_grow_to(100 << 10) && !memory.try_grow_to((100 << 10) + 1));
        assert_eq!(budget.used_bytes(), 100 << 10);
        assert_eq!(
            [(1, 4), (5, 4)].map(|(entries, capacity)| capacity_with(entries, capacity)),
            [4, 8]
        );
    }
}
