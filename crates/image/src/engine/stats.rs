//! Statistics of an image, for its users. Nothing is decided by them.

use ferrofs_workers::counters::HistogramSnapshot;
use ferrofs_workers::memory::{BudgetStats, BufferPoolStats, PagePoolStats};
use ferrofs_workers::percpu::PerCpuStats;
use ferrofs_workers::single_flight::SingleFlightStats;

use super::{DecodeCounters, Engine};

/// What was done since the image was opened. The numbers are not one snapshot: they need not add up
/// while threads read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ImageStats {
    /// Compressed clusters decoded: runs of a decoder that ended well.
    pub clusters_decoded: u64,
    /// Bytes that those runs produced.
    pub bytes_decoded: u64,
    /// Runs that decoded through a window of frames, as there was no room for the whole extent.
    pub clusters_windowed: u64,
    /// Runs on the per-CPU workers. The others ran on the thread that read.
    pub clusters_on_workers: u64,
    /// How long each run of a decoder took, failed ones included; empty unless it is
    /// [measured](crate::Image::measure_decoding).
    pub decode_time: HistogramSnapshot,
    /// Parts of clusters that were copied to readers, cached or decoded.
    pub clusters_served: u64,
    /// Bytes that were copied to readers, without holes.
    pub bytes_served: u64,
    /// The cache of clusters: hits, misses, prefetches used, dropped and wasted.
    pub cache: SingleFlightStats,
    /// Bytes that the cache holds now.
    pub cached_bytes: u64,
    /// Waits for memory, and refusals of best effort.
    pub budget: BudgetStats,
    /// The limit of the memory, in bytes.
    pub memory_limit_bytes: u64,
    /// Bytes of it that are charged now.
    pub memory_used_bytes: u64,
    /// The most bytes of it that were charged at a time.
    pub memory_peak_bytes: u64,
    /// Contiguous buffers: used again, mapped, refused. A buffer that a thread kept for its next read
    /// is not counted when it is used again.
    pub buffers: BufferPoolStats,
    /// Frames by where they came from.
    pub frames: PagePoolStats,
    /// The workers, with the times from submission to start. All images of a process that use the
    /// same workers share these.
    pub workers: PerCpuStats,
}

impl ImageStats {
    pub(crate) fn of(engine: &Engine) -> Self {
        let DecodeCounters {
            decoded,
            decoded_bytes,
            surplus_input_bytes: _,
            windowed,
            on_workers,
            served,
            served_bytes,
        } = engine.decode_slots.counters();
        let budget = engine.memory.budget();
        Self {
            clusters_decoded: decoded,
            bytes_decoded: decoded_bytes,
            decode_time: engine.decode_timer.all(),
            clusters_windowed: windowed,
            clusters_on_workers: on_workers,
            clusters_served: served,
            bytes_served: served_bytes,
            cache: engine.clusters.stats(),
            cached_bytes: engine.clusters.weight_bytes(),
            budget: budget.stats(),
            memory_limit_bytes: budget.limit_bytes(),
            memory_used_bytes: budget.used_bytes(),
            memory_peak_bytes: budget.peak_bytes(),
            buffers: engine.memory.buffers().stats(),
            frames: engine.memory.frames().stats(),
            workers: engine.workers.stats(),
        }
    }

    /// Bytes decoded for each byte that was copied to a reader. If everything is compressed, 1 is
    /// the least; uncompressed data lowers it.
    #[must_use]
    pub fn decoded_per_served(&self) -> f64 {
        if self.bytes_served == 0 { 0.0 } else { ratio(self.bytes_decoded, self.bytes_served) }
    }
}

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "a ratio to look at")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}
