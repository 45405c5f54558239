//! How a reserve goes round: who gets buffers of it, and what makes room for whom. Without a reserve it asks the
//! memory for a buffer and nothing else; it never holds one.
//!
//! What is reserved is resident, so that nobody who decodes stands in the reclaim of the system. A cache of decoded
//! clusters that only grew would use it up and then map: so what was kept longest makes room before anything is
//! mapped beyond the reserve.

use ferrofs_codec::lz4_window_pages;
use ferrofs_workers::memory::{AllocPolicy, Buffer};

use super::Engine;
use crate::error::Result;
use crate::memory::MemoryPool;

/// What the frames of the longest LZ4 window come to, in bytes.
const WINDOW_BYTES: u64 = 17 * MemoryPool::PAGE_BYTES;
const _: () = assert!(lz4_window_pages(u16::MAX, usize::MAX) == 17);

impl Engine {
    /// Memory for what somebody waits for: of the reserve, else what kept clusters leave, else from the system.
    pub(crate) fn demand_buffer(&self, bytes: usize) -> Result<Buffer> {
        Ok(self.memory.buffers().lease_from_reserve(bytes, |wanted| self.clusters.evict(wanted))?)
    }

    /// Whether so long an extent is more than one reader's part of a reserve, and more than the window that would
    /// take its place.
    pub(super) fn exceeds_reserve_share(&self, bytes: u64) -> bool {
        self.memory.reserve_share().is_some_and(|share| bytes > share.max(WINDOW_BYTES))
    }

    /// Memory for what may be wanted soon, as far as it takes none from anybody: what lies idle, else what kept
    /// clusters leave. Without a reserve free bytes of the budget, too; with one nothing is mapped beyond that, and one
    /// reader's part stays for those who must have memory.
    pub(crate) fn best_effort_buffer(&self, bytes: usize) -> Option<Buffer> {
        let Some(left) = self.memory.reserve_share() else {
            // First, so that a refusal says that there is no room, and makes readahead's metadata_cache smaller.
            self.memory.preallocate(bytes, 1);
            return self.memory.buffer(bytes, AllocPolicy::MayFail).ok();
        };
        let buffers = self.memory.buffers();
        let wanted = left.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
        // Short blocks would serve little else.
        let length = bytes.max(MemoryPool::PREFAULT_BYTES);
        while buffers.idle_bytes() < wanted && buffers.grow_reserve(length) {}
        let lacks = wanted.saturating_sub(buffers.idle_bytes());
        if lacks > 0 && self.clusters.weight_bytes() >= lacks {
            // One half is for what all readers have had decoded ahead, and did not read yet.
            self.clusters.evict_used(lacks, self.memory.reserved_bytes() / 2);
        }
        buffers.lease_above_watermark(bytes, left).ok()
    }
}
