//! How a reserve goes round: who gets buffers of it, and what makes room for whom. Without a reserve it asks the
//! memory for a buffer and nothing else; it never holds one.
//!
//! What is reserved is resident, so that nobody who decodes stands in the reclaim of the system. A cache of decoded
//! clusters that only grew would use it up and then map: so what was kept longest makes room before anything is
//! mapped beyond the reserve.

use ferrofs_workers::memory::{Buffer, Policy};

use super::Engine;
use crate::error::Result;

impl Engine {
    /// Memory for what somebody waits for: of the reserve, else what kept clusters leave, else from the system.
    pub(crate) fn demand_buffer(&self, bytes: usize) -> Result<Buffer> {
        Ok(self.memory.buffers().lease_of_reserve(bytes, |wanted| self.clusters.shed(wanted))?)
    }

    /// Whether so long an extent is more than one reader's part of a reserve.
    pub(super) fn is_beyond_reserve(&self, bytes: u64) -> bool {
        self.memory.reserve_share().is_some_and(|share| bytes > share)
    }

    /// Memory for what may be wanted soon, as far as it takes none from anybody: what lies idle, else what kept
    /// clusters leave. Without a reserve free bytes of the budget, too; with one nothing is mapped for it, and one
    /// reader's part stays for those who must have memory.
    pub(crate) fn spare_buffer(&self, bytes: usize) -> Option<Buffer> {
        match self.memory.reserve_share() {
            // First, so that a refusal says that there is no room, and makes readahead's windows smaller.
            None => self.memory.stock(bytes, 1),
            Some(left) => {
                let lacks = left.saturating_sub(self.memory.idle_bytes());
                if lacks > 0 && (self.clusters.shed(lacks) == 0 || self.memory.idle_bytes() < left)
                {
                    return None;
                }
            }
        }
        self.memory.buffer(bytes, Policy::MayFail).ok()
    }
}
