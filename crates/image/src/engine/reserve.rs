//! How a reserve goes round: who gets buffers of it, and what makes room for whom. Without a reserve it asks the
//! memory for a buffer and nothing else; it never holds one.
//!
//! What is reserved is resident, so that nobody who decodes stands in the reclaim of the system. A cache of decoded
//! clusters that only grew would use it up and then map: so what was kept longest makes room before anything is
//! mapped beyond the reserve.

use ferrofs_workers::memory::{Buffer, Policy};

use super::Engine;
use crate::error::Result;

/// How often kept clusters make room for one buffer: what goes may be shorter than what is wanted, or come in pieces.
const SHED_MOST: usize = 4;
/// The part of the reserve that best effort leaves to those who must have memory, and that one extent may take: two
/// readers then find room for their requests and for what these decode.
const SHARE: u64 = 4;

impl Engine {
    /// Memory for what somebody waits for: of the reserve, else what kept clusters leave, else from the system.
    pub(crate) fn demand_buffer(&self, bytes: usize) -> Result<Buffer> {
        if self.memory.reserved_bytes() > 0 {
            let wanted = u64::try_from(bytes).unwrap_or(u64::MAX);
            for _ in 0..SHED_MOST {
                if let Ok(buffer) = self.memory.buffer(bytes, Policy::MayFail) {
                    return Ok(buffer);
                }
                if self.memory.is_reserve_growing() || self.clusters.shed(wanted) == 0 {
                    break;
                }
            }
        }
        self.memory.buffer(bytes, Policy::MustSucceed)
    }

    /// Whether so long an extent is more than one reader's part of a reserve.
    pub(super) fn is_beyond_reserve(&self, bytes: u64) -> bool {
        let reserved = self.memory.reserved_bytes();
        reserved > 0 && bytes > reserved / SHARE
    }

    /// Memory for what may be wanted soon, as far as it takes none from anybody: what lies idle, else what kept
    /// clusters leave. Without a reserve free bytes of the budget, too; with one nothing is mapped for it, and a
    /// quarter of the reserve stays for those who must have memory.
    pub(crate) fn spare_buffer(&self, bytes: usize) -> Option<Buffer> {
        let left = self.memory.reserved_bytes() / SHARE;
        let lacks = left.saturating_sub(self.memory.idle_bytes());
        if lacks > 0 {
            self.clusters.shed(lacks);
            if self.memory.idle_bytes() < left {
                return None;
            }
        }
        // First, so that a refusal says that there is no room, and makes readahead's windows smaller.
        self.memory.stock(bytes, 1);
        self.memory.buffer(bytes, Policy::MayFail).ok()
    }
}
