//! From metrics, image, session and system to a page of the record. Called when somebody reads the statistics; it takes
//! about a tenth of a millisecond, on the listener that got the request.

use super::metrics::MountMetrics;
use super::record::{
    CacheRecord, CpuRecord, DecodeRecord, IOCTL_BYTES, LatencyQuantiles, MemoryRecord,
    OperationKind, OperationRecord, PrefetchRecord, ProcessRecord, REQUEST_MAGIC, RESPONSE_MAGIC,
    RemoteRecord, SessionRecord, StatsHeader, StatsRequest, StatsSummary, TopFileRecord, UNKNOWN,
    VERSION, WORKERS_A_PAGE, WorkerRecord, WorkersRecord,
};
use crate::image_fs::NodeMap;
use crate::settings::{MountSettings, ServingProcess};
use ferrofs_fuse::{Errno, InitParameters, SessionStats};
use ferrofs_image::{Image, ImageStats, RemoteStats};
use ferrofs_workers::counters::HistogramSnapshot;
use ferrofs_workers::cpus::CpuThrottling;
use ferrofs_workers::percpu::PerCpuStats;
use ferrofs_workers::priority::PriorityLevel;
use ferrofs_workers::single_flight::SingleFlightStats;
use ferrofs_workers::unbound::WorkerStats;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// The sources of the values.
#[derive(Debug)]
pub(crate) struct StatsCollector<'a> {
    pub(crate) image: &'a Image,
    pub(crate) nodes: &'a NodeMap,
    pub(crate) settings: &'a MountSettings,
    pub(crate) metrics: &'a MountMetrics,
    pub(crate) init_parameters: InitParameters,
    /// `None` before the session has started.
    pub(crate) session: Option<SessionStats>,
}

/// The page that a request asks for. A request of another version gets a header with this one's version only.
///
/// # Errors
/// `INVAL`: the bytes are not a request for statistics.
pub(crate) fn respond(request: &[u8], collector: &StatsCollector<'_>) -> Result<Vec<u8>, Errno> {
    let (request, _) = StatsRequest::read_from_prefix(request).map_err(|_| Errno::INVAL)?;
    if request.magic != REQUEST_MAGIC {
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
    match request.page {
        _ if request.version != VERSION => {}
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
            remote: self.image.remote_stats().map(remote).unwrap_or_default(),
            process: process_record(&self.metrics.process()),
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

fn process_record(process: &ServingProcess) -> ProcessRecord {
    ProcessRecord {
        restarts: process.restarts,
        holder: u64::from(process.holder.unwrap_or(0)),
        filter_calls: process.filter_calls.unwrap_or(0),
        landlock: u64::from(process.landlock.unwrap_or(0)),
        mount_age_ns: process.mounted_at.map_or(0, |at| nanoseconds(age(at))),
    }
}

/// How long ago `moment` of `CLOCK_BOOTTIME` was.
fn age(moment: Duration) -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::try_from(now).unwrap_or_default().saturating_sub(moment)
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
        abandoned: counts.abandoned,
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

fn remote(stats: RemoteStats) -> RemoteRecord {
    let fetcher = stats.fetcher.unwrap_or_default();
    RemoteRecord {
        is_remote: 1,
        is_connected: u64::from(stats.fetcher.is_some()),
        reconnects: stats.reconnects,
        fetches: stats.fetches,
        repeated: stats.repeated,
        fetched_bytes: stats.fetched_bytes,
        hits: stats.hits,
        waited_ns: stats.waited_ns,
        longest_ns: stats.longest_ns,
        requests: fetcher.requests,
        retries: fetcher.retries,
        in_flight: fetcher.in_flight,
        token_requests: fetcher.token_requests,
        mirror_requests: fetcher.mirror_requests,
        received_bytes: fetcher.received_bytes,
        requested_bytes: fetcher.requested_bytes,
        wasted_bytes: fetcher.wasted_bytes,
        verified_bytes: fetcher.verified_bytes,
        cache_hits: fetcher.cache_hits,
        latency_us: fetcher.latency_us,
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

/// The workers of the CPUs, then the unbound ones; each with whether it accepts work.
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
        handed_over: worker.requeued,
        rebound: worker.rebound,
        wait: quantiles(&worker.waits),
    }
}

/// The number of a level in [`WorkerRecord::priority_level`].
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

/// Values of `/proc/self/status`; [`UNKNOWN`] for a line that is missing or malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcessStatus {
    pub(super) resident_bytes: u64,
    pub(super) resident_peak_bytes: u64,
    pub(super) threads: u64,
}

impl ProcessStatus {
    pub(super) fn read() -> Self {
        Self::parse(&std::fs::read_to_string("/proc/self/status").unwrap_or_default())
    }

    fn parse(status: &str) -> Self {
        let value = |key| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        let bytes = |key| {
            let kilobytes: u64 = value(key)?.strip_suffix("kB")?.trim().parse().ok()?;
            kilobytes.checked_mul(1024)
        };
        let threads = value("Threads:").and_then(|count| count.parse().ok());
        Self {
            resident_bytes: bytes("VmRSS:").unwrap_or(UNKNOWN),
            resident_peak_bytes: bytes("VmHWM:").unwrap_or(UNKNOWN),
            threads: threads.unwrap_or(UNKNOWN),
        }
    }
}

#[cfg(test)]
mod tests {
    use ferrofs_fuse::Capabilities;
    use ferrofs_image::Nid;

    use super::*;
    use crate::stats::record;

    const INIT_PARAMETERS: InitParameters = InitParameters {
        protocol: (7, 45),
        offered: Capabilities::ASYNC_READ,
        requested: Capabilities::ASYNC_READ.union(Capabilities::MAX_PAGES),
        granted: Capabilities::ASYNC_READ,
        max_read: 131_072,
        offered_readahead: 131_072,
        requested_readahead: 1 << 23,
        max_background: 16,
    };

    fn image() -> Image {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/lz4.erofs");
        Image::open(path).unwrap()
    }

    fn query(request: &[u8], image: &Image) -> Result<Vec<u8>, Errno> {
        let nodes = NodeMap::new(Nid::new(36), false);
        let settings = MountSettings::default();
        let metrics = MountMetrics::new(2);
        let collector = StatsCollector {
            image,
            nodes: &nodes,
            settings: &settings,
            metrics: &metrics,
            init_parameters: INIT_PARAMETERS,
            session: None,
        };
        respond(request, &collector)
    }

    fn stats_request(version: u32, page: u32) -> StatsRequest {
        StatsRequest { magic: REQUEST_MAGIC, version, page }
    }

    #[test]
    fn page_0_has_everything_but_the_workers() {
        let page = query(stats_request(VERSION, 0).as_bytes(), &image()).unwrap();
        let (header, body) = StatsHeader::read_from_prefix(&page).unwrap();
        assert_eq!((header.magic, header.version), (RESPONSE_MAGIC, VERSION));
        assert_eq!(usize::try_from(header.bytes), Ok(page.len()));
        assert!(header.release.starts_with(env!("CARGO_PKG_VERSION").as_bytes()));
        let summary = StatsSummary::read_from_bytes(body).unwrap();
        assert_eq!(summary.pid, u64::from(std::process::id()));
        assert!(summary.memory.limit > 0 && summary.memory.used <= summary.memory.peak);
        assert!(record::known(summary.memory.resident).is_some_and(|bytes| bytes > 1 << 16));
        assert_eq!(summary.session.time_limit_ms, 120_000);
        assert_eq!((summary.session.granted, summary.session.max_readahead), (1, 131_072));
        assert_eq!(summary.log_events, record::LogEventRecord::default());
        assert_eq!(summary.remote, RemoteRecord::default(), "a local image");
    }

    #[test]
    fn decoding_is_measured() {
        let image = image();
        image.measure_decoding();
        let inode = image.resolve(b"/").unwrap().unwrap();
        assert!(inode.size() > 0);
        for visit in image.walk(b"/").unwrap() {
            if let ferrofs_image::WalkEvent::Leaf(node) = visit
                && node.inode.compressed_blocks().is_some()
            {
                image.for_each_piece(&node.inode, |_| Ok::<_, ferrofs_image::Error>(())).unwrap();
            }
        }
        let page = query(stats_request(VERSION, 0).as_bytes(), &image).unwrap();
        let (_, body) = StatsHeader::read_from_prefix(&page).unwrap();
        let clusters = StatsSummary::read_from_bytes(body).unwrap().clusters;
        assert!(clusters.decoded > 0);
        assert_eq!(clusters.time.count, clusters.decoded);
        assert!(clusters.time.p50_ns > 0 && clusters.time.p50_ns <= clusters.time.max_ns);
    }

    #[test]
    fn who_speaks_another_version_gets_a_header_that_says_so() {
        let page = query(stats_request(VERSION + 1, 0).as_bytes(), &image()).unwrap();
        assert_eq!(page.len(), size_of::<StatsHeader>());
    }

    #[test]
    fn pages_behind_the_last_one_are_empty() {
        for page in [1, 2, u32::MAX] {
            let page = query(stats_request(VERSION, page).as_bytes(), &image()).unwrap();
            let (header, body) = StatsHeader::read_from_prefix(&page).unwrap();
            assert!(body.len() % size_of::<WorkerRecord>() == 0);
            assert!(body.len() <= size_of::<WorkerRecord>() * header.workers as usize);
        }
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let whole = stats_request(VERSION, 0);
        for cut in 0..size_of::<StatsRequest>() {
            assert_eq!(query(&whole.as_bytes()[..cut], &image()), Err(Errno::INVAL));
        }
        let other = StatsRequest { magic: RESPONSE_MAGIC, ..whole };
        assert_eq!(query(other.as_bytes(), &image()), Err(Errno::INVAL));
    }

    #[test]
    fn numbers_are_found_by_their_names() {
        let status = "Name:\tferrofs\nVmHWM:\t    1200 kB\nVmRSS:\t    1000 kB\nThreads:\t5\n";
        let read = ProcessStatus::parse(status);
        assert_eq!((read.resident_bytes, read.resident_peak_bytes), (1_024_000, 1_228_800));
        assert_eq!(read.threads, 5);
    }

    #[test]
    fn what_is_missing_or_odd_is_unknown() {
        let read = ProcessStatus::parse("VmHWM: 99999999999999999999 kB\nThreads: x\n");
        let nothing = ProcessStatus {
            resident_bytes: UNKNOWN,
            resident_peak_bytes: UNKNOWN,
            threads: UNKNOWN,
        };
        assert_eq!(read, nothing);
    }
}
