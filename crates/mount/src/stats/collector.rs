//! From metrics, image, session and system to a page of the record. Called by `image_fs::ioctl` when somebody asks; it
//! takes about a tenth of a millisecond, on the listener that got the question.

use std::time::Duration;

use ferrofs_fuse::{Errno, InitParameters, SessionStats};
use ferrofs_image::{Image, ImageStats};
use ferrofs_workers::counters::HistogramSnapshot;
use ferrofs_workers::cpus::CpuThrottling;
use ferrofs_workers::percpu::PerCpuStats;
use ferrofs_workers::priority::PriorityLevel;
use ferrofs_workers::single_flight::SingleFlightStats;
use ferrofs_workers::unbound::WorkerStats;
use zerocopy::{FromBytes, IntoBytes};

use super::kind::OperationKind;
use super::metrics::MountMetrics;
use super::process::ProcessStatus;
use super::record::{
    CacheRecord, CpuRecord, DecodeRecord, IOCTL_BYTES, LatencyQuantiles, MemoryRecord,
    OperationRecord, PrefetchRecord, REQUEST_MAGIC, RESPONSE_MAGIC, SessionRecord, StatsHeader,
    StatsRequest, StatsSummary, TopFileRecord, UNKNOWN, VERSION, WORKERS_A_PAGE, WorkerRecord,
    WorkersRecord,
};
use crate::image_fs::NodeMap;
use crate::settings::MountSettings;

/// What the numbers are taken from.
#[derive(Debug)]
pub(crate) struct StatsCollector<'a> {
    pub(crate) image: &'a Image,
    pub(crate) nodes: &'a NodeMap,
    pub(crate) settings: &'a MountSettings,
    pub(crate) metrics: &'a MountMetrics,
    pub(crate) init_parameters: InitParameters,
    /// Not there before the session has begun.
    pub(crate) session: Option<SessionStats>,
}

/// The page that a question asks for. Who speaks another version gets a header, which says so.
///
/// # Errors
/// `INVAL`: this is no question.
pub(crate) fn respond(question: &[u8], collector: &StatsCollector<'_>) -> Result<Vec<u8>, Errno> {
    let (question, _) = StatsRequest::read_from_prefix(question).map_err(|_| Errno::INVAL)?;
    if question.magic != REQUEST_MAGIC {
        return Err(Errno::INVAL);
    }
    let stats = collector.image.stats();
    let mut page = StatsHeader {
        magic: RESPONSE_MAGIC,
        version: VERSION,
        bytes: 0,
        workers: to_u32(worker_threads(&stats.workers).count()),
        worker_bytes: to_u32(size_of::<WorkerRecord>()),
        release: release(),
    }
    .as_bytes()
    .to_vec();
    match question.page {
        _ if question.version != VERSION => {}
        0 => page.extend_from_slice(collector.summary(&stats).as_bytes()),
        number => {
            let before = usize::try_from(number).unwrap_or(usize::MAX).saturating_sub(1);
            let skipped = before.saturating_mul(WORKERS_A_PAGE);
            for (worker, is_serving) in
                worker_threads(&stats.workers).skip(skipped).take(WORKERS_A_PAGE)
            {
                page.extend_from_slice(worker_record(worker, is_serving).as_bytes());
            }
        }
    }
    page.truncate(IOCTL_BYTES);
    let bytes = to_u32(page.len());
    if let Ok((header, _)) = StatsHeader::mut_from_prefix(&mut page) {
        header.bytes = bytes;
    }
    Ok(page)
}

impl StatsCollector<'_> {
    fn summary(&self, stats: &ImageStats) -> StatsSummary {
        let mut summary = StatsSummary {
            pid: u64::from(std::process::id()),
            uptime_ns: nanoseconds(self.metrics.uptime()),
            clusters: clusters(stats),
            cache: cache(&stats.cache, stats.cached_bytes),
            prefetch: prefetch(&stats.cache),
            cpu: cpu_time(&self.metrics.throttling()),
            workers: totals(&stats.workers),
            log_events: self.metrics.log_events(),
            ..StatsSummary::default()
        };
        let process = ProcessStatus::read();
        summary.memory = memory(stats, &process);
        summary.session = self.session(&process);
        for (row, kind) in summary.operations.iter_mut().zip(OperationKind::ALL) {
            let read = self.metrics.operation(kind);
            *row = OperationRecord {
                errors: read.errors,
                bytes: read.bytes,
                time: quantiles(&read.times),
            };
        }
        for (row, file) in summary.top_files.iter_mut().zip(self.metrics.top_files()) {
            let nid = self.nodes.nid(file.node);
            *row = TopFileRecord {
                nid: nid.raw(),
                ino: self.nodes.ino(nid),
                bytes: file.bytes,
                uncertain_bytes: file.uncertain_bytes,
            };
        }
        summary
    }

    fn session(&self, process: &ProcessStatus) -> SessionRecord {
        let (stores, stored_bytes) = self.metrics.stores();
        let limit = self.settings.time_limit;
        let limit = limit.map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
        let session = self.session.unwrap_or_default();
        let init_parameters = &self.init_parameters;
        SessionRecord {
            protocol_major: u64::from(init_parameters.protocol.0),
            protocol_minor: u64::from(init_parameters.protocol.1),
            requested: init_parameters.requested.0,
            granted: init_parameters.granted.0,
            max_read: u64::from(init_parameters.max_read),
            max_readahead: u64::from(init_parameters.max_readahead()),
            max_background: u64::from(init_parameters.max_background),
            listeners: to_u64(session.listeners),
            spares: to_u64(session.spares),
            idle: to_u64(session.idle),
            interrupts: session.interrupts,
            time_limit_ms: limit.unwrap_or(UNKNOWN),
            stored_bytes,
            stores,
            threads: process.threads,
        }
    }
}

fn clusters(stats: &ImageStats) -> DecodeRecord {
    DecodeRecord {
        decoded: stats.clusters_decoded,
        windowed: stats.clusters_windowed,
        on_workers: stats.clusters_on_workers,
        served: stats.clusters_served,
        bytes_decoded: stats.bytes_decoded,
        bytes_served: stats.bytes_served,
        time: quantiles(&stats.decode_time),
    }
}

fn cache(counts: &SingleFlightStats, bytes: u64) -> CacheRecord {
    CacheRecord {
        hits: counts.hits,
        waits: counts.waited,
        computed: counts.computed,
        gone: counts.abandoned,
        taken_over: counts.taken_over,
        bytes,
    }
}

fn prefetch(counts: &SingleFlightStats) -> PrefetchRecord {
    PrefetchRecord {
        done: counts.prefetched,
        used: counts.prefetch_used,
        wasted: counts.prefetch_wasted,
        dropped: counts.prefetch_dropped,
        joined: counts.upgraded,
    }
}

fn memory(stats: &ImageStats, process: &ProcessStatus) -> MemoryRecord {
    MemoryRecord {
        used: stats.memory_used_bytes,
        peak: stats.memory_peak_bytes,
        limit: stats.memory_limit_bytes,
        resident: process.resident_bytes,
        resident_peak: process.resident_peak_bytes,
        refused: stats.budget.refused,
        waited: stats.budget.waited,
        gave_up: stats.budget.gave_up,
    }
}

fn cpu_time(throttling: &CpuThrottling) -> CpuRecord {
    let microseconds = |time: Option<Duration>| {
        time.map_or(UNKNOWN, |time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
    };
    CpuRecord {
        throttled: throttling.throttled.unwrap_or(UNKNOWN),
        throttled_us: microseconds(throttling.throttled_time),
        stalled_us: microseconds(throttling.stalled_time),
        is_stalled_of_system: u64::from(throttling.is_stalled_of_system),
    }
}

fn totals(workers: &PerCpuStats) -> WorkersRecord {
    WorkersRecord {
        items: workers.items(),
        inline: workers.inline(),
        fallback: workers.fallback,
        full: workers.full,
        panics: workers.panics(),
        refused_threads: workers.refused_threads,
        wait: quantiles(&workers.waits()),
    }
}

/// Those of the CPUs, and then those that are bound to none; each with whether it takes work.
fn worker_threads(workers: &PerCpuStats) -> impl Iterator<Item = (&WorkerStats, bool)> {
    let serves = |cpu: Option<usize>| cpu.is_some_and(|cpu| workers.serving.contains(cpu));
    let bound = workers.workers.iter().map(move |worker| (worker, serves(worker.cpu)));
    bound.chain(workers.unbound.threads.iter().map(|worker| (worker, worker.thread_id.is_some())))
}

fn worker_record(worker: &WorkerStats, is_serving: bool) -> WorkerRecord {
    WorkerRecord {
        cpu: worker.cpu.map_or(UNKNOWN, to_u64),
        thread_id: worker.thread_id.and_then(|id| u64::try_from(id).ok()).unwrap_or(UNKNOWN),
        priority_level: worker.priority_level.map_or(0, priority_level),
        is_serving: u64::from(is_serving),
        items: worker.items,
        inline: worker.inline,
        panics: worker.panics,
        sleeps: worker.sleeps,
        wake_ups: worker.wake_ups,
        handed_over: worker.handed_over,
        rebound: worker.rebound,
        wait: quantiles(&worker.waits),
    }
}

/// As [`WorkerRecord::priority_level`] has it.
fn priority_level(priority_level: PriorityLevel) -> u64 {
    match priority_level {
        PriorityLevel::RealTime => 1,
        PriorityLevel::Nice => 2,
        PriorityLevel::Normal => 3,
        PriorityLevel::Batch => 4,
    }
}

fn quantiles(times: &HistogramSnapshot) -> LatencyQuantiles {
    let share = |share| nanoseconds(times.quantile(share));
    LatencyQuantiles {
        count: times.count(),
        sum_ns: nanoseconds(times.sum()),
        p50_ns: share(0.5),
        p99_ns: share(0.99),
        p999_ns: share(0.999),
        max_ns: nanoseconds(times.longest()),
    }
}

fn release() -> [u8; 16] {
    let mut release = [0; 16];
    for (byte, of_version) in release.iter_mut().zip(env!("CARGO_PKG_VERSION").bytes()) {
        *byte = of_version;
    }
    release
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn to_u64(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn to_u32(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
