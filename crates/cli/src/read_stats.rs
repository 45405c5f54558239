//! Statistics of a run for `--stats`: lines on standard error, or an object in the JSON summary.

use std::fmt;
use std::time::Duration;

use ferrofs_image::{Image, ImageStats};
use ferrofs_workers::counters::HistogramSnapshot;
use ferrofs_workers::workqueue::WorkQueueStats as Queue;
use serde::Serialize;

use crate::amount::{grouped, human_bytes};
use crate::output;
use crate::resources::Resources;

/// The numbers of one run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct StatsReport {
    threads: usize,
    clusters: ClusterReport,
    cache: CacheReport,
    prefetch: PrefetchReport,
    memory: MemoryReport,
    frames: FrameReport,
    buffers: BufferReport,
    /// Batches of work for the threads of an extraction.
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<QueueReport>,
    workers: WorkerReport,
}

#[derive(Clone, Debug, Serialize)]
struct ClusterReport {
    decoded: u64,
    decoded_through_window: u64,
    decoded_on_workers: u64,
    served: u64,
    bytes_decoded: u64,
    bytes_served: u64,
    decoded_per_served: f64,
}

#[derive(Clone, Debug, Serialize)]
struct CacheReport {
    hits: u64,
    waits: u64,
    computed: u64,
    taken_over: u64,
    upgraded: u64,
    bytes: u64,
}

#[derive(Clone, Debug, Serialize)]
struct PrefetchReport {
    done: u64,
    used: u64,
    dropped: u64,
    wasted: u64,
}

#[derive(Clone, Debug, Serialize)]
struct MemoryReport {
    limit_bytes: u64,
    peak_bytes: u64,
    waits: u64,
    refused: u64,
    gave_up: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    process_peak_bytes: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
struct FrameReport {
    from_list: u64,
    from_reserve: u64,
    from_system: u64,
}

#[derive(Clone, Debug, Serialize)]
struct BufferReport {
    used_again: u64,
    mapped: u64,
    refused: u64,
}

#[derive(Clone, Debug, Serialize)]
struct QueueReport {
    submitted: u64,
    inline: u64,
    helped: u64,
    wake_ups: u64,
    waits: u64,
    sleeps: u64,
    start: LatencyReport,
}

#[derive(Clone, Debug, Serialize)]
struct WorkerReport {
    threads: usize,
    priority: Vec<String>,
    items: u64,
    inline: u64,
    fallback: u64,
    wake_ups: u64,
    start: LatencyReport,
}

/// Times from handing over to start, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
struct LatencyReport {
    count: u64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
}

/// The statistics of a run, if `--stats` is given.
pub(crate) fn collect(
    resources: &Resources,
    image: &Image,
    queue: Option<&Queue>,
) -> Option<StatsReport> {
    resources.stats.then(|| StatsReport::new(resources, &image.stats(), queue))
}

/// Prints the statistics on standard error.
pub(crate) fn print_stats(report: Option<&StatsReport>) {
    if let Some(report) = report {
        output::print_line(report);
    }
}

impl StatsReport {
    fn new(resources: &Resources, stats: &ImageStats, queue: Option<&Queue>) -> Self {
        let ImageStats { cache, budget, frames, buffers, workers, .. } = stats;
        Self {
            threads: resources.threads,
            clusters: ClusterReport {
                decoded: stats.clusters_decoded,
                decoded_through_window: stats.clusters_windowed,
                decoded_on_workers: stats.clusters_on_workers,
                served: stats.clusters_served,
                bytes_decoded: stats.bytes_decoded,
                bytes_served: stats.bytes_served,
                decoded_per_served: stats.decoded_per_served(),
            },
            cache: CacheReport {
                hits: cache.hits,
                waits: cache.waited,
                computed: cache.computed,
                taken_over: cache.taken_over,
                upgraded: cache.upgraded,
                bytes: stats.cached_bytes,
            },
            prefetch: PrefetchReport {
                done: cache.prefetched,
                used: cache.prefetch_used,
                dropped: cache.prefetch_dropped,
                wasted: cache.prefetch_wasted,
            },
            memory: MemoryReport {
                limit_bytes: stats.memory_limit_bytes,
                peak_bytes: stats.memory_peak_bytes,
                waits: budget.waited,
                refused: budget.refused,
                gave_up: budget.gave_up,
                process_peak_bytes: process_peak_bytes(),
            },
            frames: FrameReport {
                from_list: frames.from_list,
                from_reserve: frames.from_reserve,
                from_system: frames.from_system,
            },
            buffers: BufferReport {
                used_again: buffers.from_idle,
                mapped: buffers.mapped,
                refused: buffers.refused,
            },
            queue: queue.map(QueueReport::new),
            workers: WorkerReport {
                threads: workers.workers.iter().filter(|one| one.thread_id.is_some()).count(),
                priority: priority_levels(stats),
                items: workers.items(),
                inline: workers.inline(),
                fallback: workers.fallback,
                wake_ups: workers.workers.iter().map(|one| one.wake_ups).sum(),
                start: LatencyReport::of(&workers.waits()),
            },
        }
    }
}

impl QueueReport {
    fn new(queue: &Queue) -> Self {
        let mut start = HistogramSnapshot::default();
        queue.workers.iter().for_each(|worker| start.merge(&worker.start_delay));
        Self {
            submitted: queue.submitted,
            inline: queue.handled_inline,
            helped: queue.handled_helping,
            wake_ups: queue.wake_calls,
            waits: queue.waits,
            sleeps: queue.workers.iter().map(|worker| worker.sleeps).sum(),
            start: LatencyReport::of(&start),
        }
    }
}

impl LatencyReport {
    fn of(times: &HistogramSnapshot) -> Self {
        let quantile = |share| micros(times.quantile(share));
        Self {
            count: times.count(),
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
        }
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The priority levels that the workers reached, each once.
fn priority_levels(stats: &ImageStats) -> Vec<String> {
    let reached = stats.workers.workers.iter().filter_map(|worker| worker.priority_level);
    let mut priority_levels: Vec<String> =
        reached.map(|priority_level| priority_level.to_string()).collect();
    priority_levels.sort();
    priority_levels.dedup();
    priority_levels
}

/// The most memory that this process ever had resident, as the system counts it.
pub(crate) fn process_peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

impl fmt::Display for LatencyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, p50_us, p99_us, p999_us } = self;
        if *count == 0 {
            return f.write_str("none");
        }
        write!(f, "p50 {p50_us:.1} µs, p99 {p99_us:.1} µs, p999 {p999_us:.1} µs of {count}")
    }
}

impl fmt::Display for StatsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clusters, cache, prefetch, memory, frames, buffers, workers, .. } = self;
        writeln!(f, "threads   {}", self.threads)?;
        writeln!(
            f,
            "clusters  decoded {}, of them {} on workers and {} through a window; served {}",
            grouped(clusters.decoded),
            grouped(clusters.decoded_on_workers),
            grouped(clusters.decoded_through_window),
            grouped(clusters.served)
        )?;
        writeln!(
            f,
            "bytes     decoded {}, served {}: {:.3} decoded for each served",
            human_bytes(clusters.bytes_decoded),
            human_bytes(clusters.bytes_served),
            clusters.decoded_per_served
        )?;
        writeln!(
            f,
            "cache     {} hits, {} computed, {} waits, {} taken over, {} upgraded; holds {}",
            grouped(cache.hits),
            grouped(cache.computed),
            grouped(cache.waits),
            grouped(cache.taken_over),
            grouped(cache.upgraded),
            human_bytes(cache.bytes)
        )?;
        let PrefetchReport { done, used, dropped, wasted } = prefetch;
        writeln!(f, "prefetch  {done} done: {used} used, {wasted} wasted; {dropped} dropped")?;
        write!(
            f,
            "memory    peak {} of {}; {} waits, {} refused, {} given up",
            human_bytes(memory.peak_bytes),
            human_bytes(memory.limit_bytes),
            memory.waits,
            memory.refused,
            memory.gave_up
        )?;
        match memory.process_peak_bytes {
            Some(peak) => writeln!(f, "; the process {}", human_bytes(peak))?,
            None => writeln!(f)?,
        }
        let BufferReport { used_again, mapped, refused } = buffers;
        writeln!(f, "buffers   {used_again} used again, {mapped} mapped, {refused} refused")?;
        let FrameReport { from_list, from_reserve, from_system } = frames;
        writeln!(f, "frames    {from_list} listed, {from_reserve} reserved, {from_system} mapped")?;
        if let Some(queue) = &self.queue {
            write!(f, "{queue}")?;
        }
        write!(f, "{workers}")
    }
}

impl fmt::Display for QueueReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "queue     {} batches: {} inline, {} helped; {} wake-ups, {} sleeps, {} waits",
            self.submitted, self.inline, self.helped, self.wake_ups, self.sleeps, self.waits
        )?;
        writeln!(f, "          start: {}", self.start)
    }
}

impl fmt::Display for WorkerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "workers   {} at {}: {} items, {} inline, {} fallback, {} wake-ups; start: {}",
            self.threads,
            if self.priority.is_empty() { "rest".to_owned() } else { self.priority.join(", ") },
            self.items,
            self.inline,
            self.fallback,
            self.wake_ups,
            self.start
        )
    }
}
