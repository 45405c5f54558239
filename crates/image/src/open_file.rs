//! Readahead: which bytes a sequential reader will want next, and having them decoded in time.
//!
//! The window starts small, doubles while the reader goes on in order and what was fetched is used, and
//! shrinks when best effort is refused, since memory or decode slots are short then. A jump gives up what
//! nobody has begun and starts anew. All of it is best effort: it takes no memory that is not at hand,
//! waits for nothing, and leaves no trace where it fails.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrofs_workers::single_flight::{Lookup, Urgency};

use crate::engine::{BATCH_MIN_BYTES, DecodeBatch, GenerationToken};
use crate::error::Result;
use crate::extent::ClusterPlace;
use crate::image::ImageInner;
use crate::inode::Inode;
use crate::plan::{Origin, ReadPlan};

/// The first window of a reader, in bytes of the file.
const FIRST_BYTES: u64 = 128 << 10;
/// The largest window, in bytes of the file for each CPU, and in all.
const LARGEST_BYTES_A_CPU: u64 = 1 << 20;
const LARGEST_BYTES: u64 = 8 << 20;
/// The share of the memory that one reader's window may be.
const MEMORY_SHARE: u64 = 8;

/// What is known of a reader.
#[derive(Debug)]
pub(crate) struct ReadaheadState {
    /// Where the next read starts if the reader goes on in order.
    next: u64,
    /// Bytes to keep ahead of the reader; 0 for one that has just jumped.
    window: u64,
    /// Up to where clusters have been requested.
    requested_until: u64,
    /// Changes when what was asked for is not wanted any more.
    generation: Arc<AtomicU64>,
    /// Refusals that had been counted when the window was last looked at.
    refusals: u64,
    /// Spreads batches over the CPUs.
    turn: usize,
}

impl ReadaheadState {
    pub(crate) fn new() -> Self {
        let generation = Arc::new(AtomicU64::new(0));
        Self { next: 0, window: 0, requested_until: 0, generation, refusals: 0, turn: 0 }
    }

    /// Notes a read; answers which bytes of the file are to be requested.
    pub(crate) fn advance(&mut self, offset: u64, bytes: u64, size: u64) -> Option<Range<u64>> {
        let end = offset.saturating_add(bytes).min(size);
        // Several threads that share the work on a file come a little early or late.
        let slack = self.window.max(bytes);
        let is_next = offset.abs_diff(self.next) <= slack && self.next > 0;
        let is_start = offset == 0;
        if !(is_next || is_start) {
            self.cancel();
            self.next = end;
            return None;
        }
        if is_start && !is_next {
            self.cancel();
        }
        self.next = self.next.max(end);
        if self.window == 0 {
            self.window = FIRST_BYTES.max(bytes);
            self.requested_until = end;
        }
        self.requested_until = self.requested_until.max(end);
        let left = self.requested_until.saturating_sub(self.next);
        let goal = self.next.saturating_add(self.window).min(size);
        // In large steps: half a window each time.
        if left >= self.window / 2 || self.requested_until >= goal {
            return None;
        }
        let range = self.requested_until..goal;
        self.requested_until = goal;
        self.window = self.window.saturating_mul(2).min(LARGEST_BYTES);
        Some(range)
    }

    /// Whether something behind this byte was requested.
    #[cfg(test)]
    pub(crate) fn is_ahead_of(&self, offset: u64) -> bool {
        self.requested_until > offset
    }

    /// Nothing that was requested is wanted any more.
    pub(crate) fn cancel(&mut self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        (self.next, self.window, self.requested_until) = (0, 0, 0);
    }

    /// Asks for the clusters of a range. What fails here fails the read that needs it, later and with
    /// a better message, or nobody.
    pub(crate) fn prefetch(&mut self, inner: &ImageInner, inode: &Inode, range: Range<u64>) {
        if inner.engine.workers.is_empty() || !inner.may_offload(inode) {
            return;
        }
        self.shrink_if_refused(inner);
        let cpus = u64::try_from(inner.engine.workers.parallelism()).unwrap_or(1);
        let memory = &inner.engine.memory;
        let most = memory.budget().limit_bytes() / MEMORY_SHARE;
        // More of a reserve would push out what was decoded ahead before it is read.
        let most = most.min(memory.reserve_share().unwrap_or(u64::MAX));
        let most = most.min(cpus.saturating_mul(LARGEST_BYTES_A_CPU)).max(FIRST_BYTES);
        self.window = self.window.min(most);
        self.try_prefetch(inner, inode, range).ok();
    }

    /// Best effort was refused since the last time: half a window is more than there is room for.
    fn shrink_if_refused(&mut self, inner: &ImageInner) {
        let refusals = inner.engine.memory.buffers().stats().refused;
        if refusals > self.refusals {
            self.window = (self.window / 4).max(FIRST_BYTES);
        }
        self.refusals = refusals;
    }

    fn try_prefetch(&mut self, inner: &ImageInner, inode: &Inode, range: Range<u64>) -> Result<()> {
        let engine = &inner.engine;
        let mut at = range.start;
        let mut batch =
            DecodeBatch::new(engine, Some(GenerationToken::of_generation(&self.generation)), false);
        while at < range.end {
            let bytes = usize::try_from(range.end.saturating_sub(at)).unwrap_or(usize::MAX);
            let plan = ReadPlan::build(inner, inode, at, bytes)?;
            for part in &plan.parts {
                match part.origin {
                    Origin::Raw { device, offset } => {
                        engine.devices.will_need(device, offset, part.target.len());
                    }
                    Origin::Cluster { cluster, .. }
                        if is_data(cluster.id.place) && inner.offloads(&cluster) =>
                    {
                        let bytes = usize::try_from(cluster.decoded_bytes).unwrap_or(usize::MAX);
                        let claim = engine.clusters.lookup(cluster.id, bytes, Urgency::Prefetch);
                        if let Lookup::Miss(permit) = claim {
                            // Dropped without it: nobody will know. The reader maps it, who may: a
                            // worker's best effort maps nothing.
                            let output = engine.best_effort_buffer(bytes);
                            let Some(output) = output else { return Ok(()) };
                            drop(batch.add(cluster, permit, Some(output)));
                        }
                    }
                    Origin::Hole | Origin::MetaBytes { .. } | Origin::Cluster { .. } => {}
                }
                if batch.decoded_bytes() >= BATCH_MIN_BYTES {
                    let token = Some(GenerationToken::of_generation(&self.generation));
                    let full =
                        std::mem::replace(&mut batch, DecodeBatch::new(engine, token, false));
                    self.dispatch(inner, full);
                }
            }
            if plan.length == 0 {
                break;
            }
            at = at.saturating_add(u64::try_from(plan.length).unwrap_or(u64::MAX));
        }
        if !batch.is_empty() {
            self.dispatch(inner, batch);
        }
        Ok(())
    }

    /// Sends a batch, with something at hand for the bytes that it will read: the slot of its worker
    /// may have no buffer yet, or a shorter one.
    fn dispatch(&mut self, inner: &ImageInner, batch: DecodeBatch) {
        let engine = &inner.engine;
        let decode_slots = engine.workers.parallelism();
        engine.memory.preallocate(batch.encoded_bytes(), decode_slots);
        batch.dispatch(self.turn);
        self.turn = self.turn.wrapping_add(1);
    }
}

fn is_data(place: ClusterPlace) -> bool {
    matches!(place, ClusterPlace::Data(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 30;

    #[test]
    fn the_window_grows_while_the_reader_goes_on_in_order() {
        let mut ahead = ReadaheadState::new();
        let mut requested_until = 0;
        for step in 0..400u64 {
            if let Some(range) = ahead.advance(step << 17, 1 << 17, SIZE) {
                assert!(range.start >= requested_until && range.start < range.end);
                requested_until = range.end;
            }
            let ahead_by = requested_until.saturating_sub((step + 1) << 17);
            assert!(ahead_by <= LARGEST_BYTES);
        }
        assert_eq!(ahead.window, LARGEST_BYTES);
    }

    #[test]
    fn a_jump_gives_up_what_was_asked_for() {
        let mut ahead = ReadaheadState::new();
        assert!(ahead.advance(0, 4096, SIZE).is_some());
        let token = GenerationToken::of_generation(&ahead.generation);
        assert!(ahead.advance(SIZE / 2, 4096, SIZE).is_none());
        assert!(token.is_stale());
        assert_eq!(ahead.window, 0);
        // From there on it may be in order again.
        assert!(ahead.advance(SIZE / 2 + 4096, 4096, SIZE).is_some());
    }

    #[test]
    fn nothing_is_asked_for_behind_the_end() {
        let mut ahead = ReadaheadState::new();
        for step in 0..20u64 {
            if let Some(range) = ahead.advance(step * 50_000, 50_000, 1_000_000) {
                assert!(range.end <= 1_000_000);
            }
        }
    }
}
