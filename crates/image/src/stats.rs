//! What reading an image came to, in numbers: for users who want to know why it is as fast as it is.

use ferrofs_workers::claims::ClaimCounts;
use ferrofs_workers::counters::Times;
use ferrofs_workers::memory::{BudgetCounts, BufferCounts, FrameCounts};
use ferrofs_workers::percpu::Snapshot;

use crate::engine::{Engine, Tally};

/// What was done since the image was opened. Numbers of one moment need not add up while threads read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Compressed clusters decoded: runs of a decoder that ended well.
    pub clusters_decoded: u64,
    /// Bytes that they yielded.
    pub bytes_decoded: u64,
    /// Those that went through a window of frames, since the whole extent had no room.
    pub clusters_windowed: u64,
    /// Those that ran on the per-CPU workers; the others ran on the thread that wanted them.
    pub clusters_on_workers: u64,
    /// How long each run of a decoder took, those that failed among them; none unless they are
    /// [measured](crate::Image::measure_decoding).
    pub decode_time: Times,
    /// Pieces of clusters that readers got, from wherever.
    pub clusters_served: u64,
    /// Bytes that readers got, holes left out.
    pub bytes_served: u64,
    /// How the cache of clusters was used, with prefetches used, dropped and wasted.
    pub cache: ClaimCounts,
    /// Bytes that the cache holds now.
    pub cached_bytes: u64,
    /// Waits for memory, and refusals of best effort.
    pub budget: BudgetCounts,
    /// The limit of the memory, in bytes.
    pub memory_limit_bytes: u64,
    /// Bytes of it that are charged now.
    pub memory_used_bytes: u64,
    /// The most bytes of it that were charged at a time.
    pub memory_peak_bytes: u64,
    /// Contiguous buffers: used again, mapped, refused.
    pub buffers: BufferCounts,
    /// Frames by where they came from.
    pub frames: FrameCounts,
    /// The workers, with the times from handing over to start; all images of a process share them.
    pub workers: Snapshot,
}

impl Stats {
    pub(crate) fn of(engine: &Engine) -> Self {
        let Tally { decoded, decoded_bytes, windowed, on_workers, served, served_bytes } =
            engine.stations.tally();
        let budget = engine.memory.budget();
        Self {
            clusters_decoded: decoded,
            bytes_decoded: decoded_bytes,
            decode_time: engine.decode_times.all(),
            clusters_windowed: windowed,
            clusters_on_workers: on_workers,
            clusters_served: served,
            bytes_served: served_bytes,
            cache: engine.clusters.counts(),
            cached_bytes: engine.clusters.weight_bytes(),
            budget: budget.counts(),
            memory_limit_bytes: budget.limit_bytes(),
            memory_used_bytes: budget.used_bytes(),
            memory_peak_bytes: budget.peak_bytes(),
            buffers: engine.memory.buffers().counts(),
            frames: engine.memory.frames().counts(),
            workers: engine.workers.snapshot(),
        }
    }

    /// Bytes decoded for each byte that readers got. 1 is the least where everything is compressed;
    /// bytes that are stored plainly bring it below.
    #[must_use]
    pub fn decoded_per_served(&self) -> f64 {
        if self.bytes_served == 0 { 0.0 } else { ratio(self.bytes_decoded, self.bytes_served) }
    }
}

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "a ratio to look at")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}
