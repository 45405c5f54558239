//! How the memory limit is divided, so that no thread waits for memory that only waiting threads hold.
//!
//! Whoever waits for the output of an extent holds a decode slot with its window and decoder, and perhaps a buffer to
//! read into. The sum of all of these leaves room for the longest extent of the format. So the oldest waiter finds its
//! memory once caches and idle buffers have been freed, and then it waits for nothing more.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use ferrofs_ondisk::compression::EXTENT_MAX_BYTES;
use ferrofs_workers::memory::{Budget, CachedBuffer, ThreadCache};

use crate::error::Result;
use crate::memory::MemoryPool;
use crate::metadata_cache::MetadataCache;

/// About how many bytes a decode slot uses beside its decoder and the output: its input window and
/// frames.
const SLOT_BYTES: u64 = 1280 << 10;
/// What a mount charges beside reading: up to 512 KiB for parts of pages, and as much for a walk that finds the path of an
/// inode.
const OTHERS_BYTES: u64 = 1 << 20;
/// The least room for buffers to read into: a read of a mount has up to 1 MiB.
const READ_MIN_BYTES: u64 = 1 << 20;
/// Threads keep the buffers that they read into in at most this part of the room for such buffers, and of a reserve. What
/// is kept is freed for whoever must have memory, but best effort has that much less.
const KEPT_SHARE: u64 = 8;
/// The capacity of the cache of clusters for which it has one shard more, if there are as many CPUs.
const CACHE_SHARD_BYTES: u64 = 4 << 20;
/// So many CPUs hardly wait for one lock.
const ONE_SHARD_CPUS_MAX: usize = 2;
/// So long a thread waits at most until others have read. Each of them ends: it waits for memory at most for some stall
/// times, and for the storage as long as that takes.
const READ_STALL: Duration = Duration::from_secs(1 << 30);

/// How many shards the cache of clusters has: one for each CPU, since every read of a cached cluster takes the lock of a
/// shard, and at most one for each 4 MiB of capacity. Where there is room for a few clusters only, which may have megabytes,
/// the wrong one evicted is soon decoded again, and with few shards the order of evictions is nearly exact.
pub(crate) fn cache_shards(capacity_bytes: u64, cpus: usize) -> usize {
    if cpus <= ONE_SHARD_CPUS_MAX {
        return 1;
    }
    // A power of two, as the cache would round up.
    let most = (capacity_bytes / CACHE_SHARD_BYTES).checked_ilog2().map_or(1, |log| 1_u64 << log);
    cpus.min(usize::try_from(most).unwrap_or(usize::MAX))
}

/// Shares of the memory limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryShares {
    left: u64,
    slot_bytes: u64,
    /// Decode slots for which there is memory, at least one.
    pub(crate) slots: usize,
}

impl MemoryShares {
    /// Shares of what `memory` has left before an image has its metadata windows, for decoders of so many bytes.
    pub(crate) fn new(memory: &MemoryPool, decoder_bytes: u64) -> Self {
        let limit = memory.budget().limit_bytes();
        let metadata = MetadataCache::bytes_max(memory);
        let taken = [memory.budget().used_bytes(), metadata, OTHERS_BYTES, EXTENT_MAX_BYTES];
        let left = taken.into_iter().fold(limit, u64::saturating_sub);
        // A read for each listener of a mount where there is more than the least.
        let reads = (limit.saturating_sub(MemoryPool::MIN_BYTES) / 2)
            .clamp(READ_MIN_BYTES, (limit / 8).max(READ_MIN_BYTES));
        let slot_bytes = decoder_bytes.saturating_add(SLOT_BYTES);
        let most = (limit / 3).min(left.saturating_sub(reads));
        let slots = most.checked_div(slot_bytes).unwrap_or(1).max(1);
        Self { left, slot_bytes, slots: usize::try_from(slots).unwrap_or(usize::MAX) }
    }

    /// Memory for the buffers that threads read into, beside `held` decode slots.
    fn read_budget(&self, held: usize) -> Budget {
        let held = u64::try_from(held).unwrap_or(u64::MAX);
        let room = self.left.saturating_sub(self.slot_bytes.saturating_mul(held));
        Budget::with_stall(room.max(READ_MIN_BYTES), READ_STALL)
    }

    /// The buffers that threads read into, beside `held` decode slots.
    pub(crate) fn read_buffers(&self, memory: &MemoryPool, held: usize) -> Result<ThreadCache> {
        let read_budget = self.read_budget(held);
        let kept_bytes_max = kept_bytes_max(read_budget.limit_bytes(), memory.reserved_bytes());
        Ok(ThreadCache::new(&read_budget, memory.buffers(), held, kept_bytes_max)?)
    }
}

/// The most bytes that threads keep together for their next reads.
fn kept_bytes_max(read_limit: u64, reserved_bytes: u64) -> u64 {
    let most = if reserved_bytes > 0 { read_limit.min(reserved_bytes) } else { read_limit };
    most / KEPT_SHARE
}

/// A buffer to read into, on lease from [`Image::demand_buffer`](crate::Image::demand_buffer) or
/// [`Image::best_effort_buffer`](crate::Image::best_effort_buffer).
#[derive(Debug)]
pub struct ReadBuffer(pub(super) CachedBuffer);

impl Deref for ReadBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for ReadBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waiting_threads_hold_leaves_room_for_the_longest_extent() {
        for mebibytes in (20..300).chain([1 << 10]) {
            for decoder in [0, 60 << 10, 1_400_000, 1_540_000] {
                let memory = MemoryPool::new(mebibytes << 20).unwrap();
                let shares = MemoryShares::new(&memory, decoder);
                for held in [1, shares.slots.min(32)] {
                    let slots = held as u64 * (decoder + SLOT_BYTES);
                    let reads = shares.read_budget(held).limit_bytes();
                    let metadata = MetadataCache::bytes_max(&memory) + memory.budget().used_bytes();
                    let sum = metadata + OTHERS_BYTES + slots + reads + EXTENT_MAX_BYTES;
                    assert!(sum <= mebibytes << 20, "{mebibytes} MiB, {decoder}, {held}: {sum}");
                    assert!(reads >= READ_MIN_BYTES && shares.slots >= 1);
                }
            }
        }
    }

    #[test]
    fn what_threads_keep_is_a_small_part_of_what_they_read_into() {
        assert_eq!(kept_bytes_max(64 << 20, 0), 8 << 20);
        assert_eq!(kept_bytes_max(64 << 20, 16 << 20), 2 << 20, "of the reserve");
        assert_eq!(kept_bytes_max(READ_MIN_BYTES, 16 << 20), 128 << 10);
    }

    #[test]
    fn the_cache_has_a_shard_for_each_cpu_if_it_has_room_for_large_clusters() {
        let shards = |mebibytes: u64, cpus| cache_shards(mebibytes << 20, cpus);
        assert_eq!([shards(0, 64), shards(7, 64), shards(8, 64), shards(31, 64)], [1, 1, 2, 4]);
        assert_eq!([shards(128, 64), shards(256, 64), shards(1 << 40, 64)], [32, 64, 64]);
        assert_eq!([shards(128, 1), shards(128, 2), shards(128, 3), shards(128, 8)], [1, 1, 3, 8]);
        assert_eq!(cache_shards(u64::MAX, usize::MAX), 1 << 41);
    }

    #[test]
    fn memory_of_the_usual_size_has_slots_and_room_for_all_listeners() {
        let shares = MemoryShares::new(&MemoryPool::new(256 << 20).unwrap(), 1_400_000);
        assert!(shares.slots >= 31, "{shares:?}");
        assert!(shares.read_budget(32).limit_bytes() >= 64 << 20);
    }
}
