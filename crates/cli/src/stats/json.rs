//! The numbers of a mount as one JSON object. Times are in microseconds (`_us`) or seconds (`_s`);
//! a value that the system does not provide is `null`.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ferrofs_fuse::Capabilities;
use ferrofs_mount::stats::{
    CacheRecord, CpuRecord, DecodeRecord, LatencyQuantiles, MemoryRecord, MountStats,
    OperationKind, OperationRecord, PrefetchRecord, ProcessRecord, SessionRecord, StatsSummary,
    WorkerRecord, known,
};
use serde::Serialize;

use super::remote::JsonRemote;
use super::{MountsTotal, event_text, ratio, seconds};
use crate::output::JsonBytes;

#[derive(Debug, Serialize)]
pub(super) struct MountStatsJson {
    mount: JsonBytes,
    image: Option<JsonBytes>,
    release: String,
    pid: u64,
    uptime_s: f64,
    operations: BTreeMap<&'static str, JsonOperation>,
    clusters: JsonClusters,
    cache: JsonCache,
    prefetch: JsonPrefetch,
    memory: JsonMemory,
    process: JsonProcess,
    kernel: JsonKernel,
    cpu: JsonCpu,
    workers: JsonWorkers,
    log_events: JsonLogEvents,
    top_files: Vec<JsonFile>,
    /// `null` for a local image.
    remote: Option<JsonRemote>,
}

#[derive(Debug, Serialize)]
struct JsonLatency {
    count: u64,
    sum_us: f64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
}

#[derive(Debug, Serialize)]
struct JsonOperation {
    errors: u64,
    bytes: u64,
    #[serde(flatten)]
    time: JsonLatency,
}

#[derive(Debug, Serialize)]
struct JsonClusters {
    decoded: u64,
    decoded_through_window: u64,
    decoded_on_workers: u64,
    served: u64,
    bytes_decoded: u64,
    bytes_served: u64,
    decoded_per_served: f64,
    decode: JsonLatency,
}

#[derive(Debug, Serialize)]
struct JsonCache {
    hits: u64,
    waits: u64,
    computed: u64,
    abandoned: u64,
    taken_over: u64,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct JsonPrefetch {
    done: u64,
    used: u64,
    wasted: u64,
    dropped: u64,
    joined: u64,
}

#[derive(Debug, Serialize)]
struct JsonMemory {
    used_bytes: u64,
    peak_bytes: u64,
    limit_bytes: u64,
    resident_bytes: Option<u64>,
    resident_peak_bytes: Option<u64>,
    refused: u64,
    waited: u64,
    gave_up: u64,
}

#[derive(Debug, Serialize)]
struct JsonKernel {
    protocol: String,
    asked: Vec<&'static str>,
    granted: Vec<&'static str>,
    max_read_bytes: u64,
    max_readahead_bytes: u64,
    max_background: u64,
    listeners: u64,
    spare_listeners: u64,
    free_listeners: u64,
    interrupts: u64,
    time_limit_ms: Option<u64>,
    stores: u64,
    stored_bytes: u64,
    threads: Option<u64>,
}

#[derive(Debug, Serialize)]
struct JsonCpu {
    throttled: Option<u64>,
    throttled_us: Option<u64>,
    stalled_us: Option<u64>,
    is_stalled_of_system: bool,
}

#[derive(Debug, Serialize)]
struct JsonWorkers {
    items: u64,
    inline: u64,
    fallback: u64,
    full: u64,
    panics: u64,
    refused_threads: u64,
    wait: JsonLatency,
    each: Vec<JsonWorker>,
}

#[derive(Debug, Serialize)]
struct JsonWorker {
    cpu: Option<u64>,
    thread_id: Option<u64>,
    priority: Option<&'static str>,
    is_serving: bool,
    items: u64,
    inline: u64,
    panics: u64,
    sleeps: u64,
    wake_ups: u64,
    handed_over: u64,
    rebound: u64,
    wait: JsonLatency,
}

#[derive(Debug, Serialize)]
struct JsonLogEvents {
    failed: u64,
    timed_out: u64,
    interrupted: u64,
    spare_listeners: u64,
    panicked: u64,
    malformed: u64,
    device_failed: u64,
    other: u64,
    last: Option<JsonLogEvent>,
}

#[derive(Debug, Serialize)]
struct JsonLogEvent {
    age_s: f64,
    text: String,
}

#[derive(Debug, Serialize)]
struct JsonProcess {
    restarts: u64,
    holder_pid: Option<u64>,
    sandbox_system_calls: Option<u64>,
    sandbox_landlock: Option<u64>,
}

impl From<&ProcessRecord> for JsonProcess {
    fn from(process: &ProcessRecord) -> Self {
        let some = |number: u64| (number > 0).then_some(number);
        Self {
            restarts: process.restarts,
            holder_pid: some(process.holder),
            sandbox_system_calls: some(process.filter_calls),
            sandbox_landlock: some(process.landlock),
        }
    }
}

#[derive(Debug, Serialize)]
struct JsonFile {
    nid: u64,
    inode: u64,
    bytes: u64,
    uncertain_bytes: u64,
}

impl MountStatsJson {
    pub(super) fn new(stats: &MountStats, directory: &Path) -> Self {
        let summary = &stats.summary;
        let operation = |kind: OperationKind| (kind.name(), (&summary.operation(kind)).into());
        let files = summary.top_files.iter().filter(|file| file.bytes > 0);
        Self {
            mount: directory.as_os_str().as_bytes().into(),
            image: stats.mount.as_ref().map(|mount| mount.source.as_bytes().into()),
            release: stats.release.clone(),
            pid: summary.pid,
            uptime_s: seconds(summary.uptime_ns),
            operations: OperationKind::ALL.into_iter().map(operation).collect(),
            clusters: (&summary.clusters).into(),
            cache: (&summary.cache).into(),
            prefetch: (&summary.prefetch).into(),
            memory: (&summary.memory).into(),
            process: (&summary.process).into(),
            kernel: (&summary.session).into(),
            cpu: (&summary.cpu).into(),
            workers: workers(stats),
            log_events: log_events(summary),
            remote: JsonRemote::new(&summary.remote),
            top_files: files
                .map(|file| JsonFile {
                    nid: file.nid,
                    inode: file.ino,
                    bytes: file.bytes,
                    uncertain_bytes: file.uncertain_bytes,
                })
                .collect(),
        }
    }
}

/// The sum of all mounts of a user.
#[derive(Debug, Serialize)]
pub(super) struct TotalStatsJson {
    mounts: u64,
    mounts_without_statistics: u64,
    restarts: u64,
    operations: BTreeMap<&'static str, JsonOperation>,
    clusters: JsonClusters,
    cache: JsonCache,
    prefetch: JsonPrefetch,
    memory: JsonMemory,
}

impl TotalStatsJson {
    pub(super) fn new(total: &MountsTotal) -> Self {
        let summary = &total.summary;
        let operation = |kind: OperationKind| (kind.name(), (&summary.operation(kind)).into());
        Self {
            mounts: total.mounts,
            mounts_without_statistics: total.without_answer,
            restarts: summary.process.restarts,
            operations: OperationKind::ALL.into_iter().map(operation).collect(),
            clusters: (&summary.clusters).into(),
            cache: (&summary.cache).into(),
            prefetch: (&summary.prefetch).into(),
            memory: (&summary.memory).into(),
        }
    }
}

fn workers(stats: &MountStats) -> JsonWorkers {
    let totals = &stats.summary.workers;
    JsonWorkers {
        items: totals.items,
        inline: totals.inline,
        fallback: totals.fallback,
        full: totals.full,
        panics: totals.panics,
        refused_threads: totals.refused_threads,
        wait: (&totals.wait).into(),
        each: stats.workers.iter().map(JsonWorker::from).collect(),
    }
}

fn log_events(summary: &StatsSummary) -> JsonLogEvents {
    let events = &summary.log_events;
    let last = known(events.last_age_ns)
        .map(|age| JsonLogEvent { age_s: seconds(age), text: event_text(&events.last_text) });
    JsonLogEvents {
        failed: events.failed,
        timed_out: events.timed_out,
        interrupted: events.interrupted,
        spare_listeners: events.spares,
        panicked: events.panicked,
        malformed: events.malformed,
        device_failed: events.device_failed,
        other: events.other,
        last,
    }
}

impl From<&LatencyQuantiles> for JsonLatency {
    fn from(times: &LatencyQuantiles) -> Self {
        Self {
            count: times.count,
            sum_us: micros(times.sum_ns),
            p50_us: micros(times.p50_ns),
            p99_us: micros(times.p99_ns),
            p999_us: micros(times.p999_ns),
            max_us: micros(times.max_ns),
        }
    }
}

impl From<&OperationRecord> for JsonOperation {
    fn from(row: &OperationRecord) -> Self {
        Self { errors: row.errors, bytes: row.bytes, time: (&row.time).into() }
    }
}

impl From<&DecodeRecord> for JsonClusters {
    fn from(clusters: &DecodeRecord) -> Self {
        Self {
            decoded: clusters.decoded,
            decoded_through_window: clusters.windowed,
            decoded_on_workers: clusters.on_workers,
            served: clusters.served,
            bytes_decoded: clusters.bytes_decoded,
            bytes_served: clusters.bytes_served,
            decoded_per_served: ratio(clusters.bytes_decoded, clusters.bytes_served),
            decode: (&clusters.time).into(),
        }
    }
}

impl From<&CacheRecord> for JsonCache {
    fn from(cache: &CacheRecord) -> Self {
        let CacheRecord { hits, waits, computed, abandoned, taken_over, bytes } = *cache;
        Self { hits, waits, computed, abandoned, taken_over, bytes }
    }
}

impl From<&PrefetchRecord> for JsonPrefetch {
    fn from(prefetch: &PrefetchRecord) -> Self {
        let PrefetchRecord { done, used, wasted, dropped, joined } = *prefetch;
        Self { done, used, wasted, dropped, joined }
    }
}

impl From<&MemoryRecord> for JsonMemory {
    fn from(memory: &MemoryRecord) -> Self {
        Self {
            used_bytes: memory.used,
            peak_bytes: memory.peak,
            limit_bytes: memory.limit,
            resident_bytes: known(memory.resident),
            resident_peak_bytes: known(memory.resident_peak),
            refused: memory.refused,
            waited: memory.waited,
            gave_up: memory.gave_up,
        }
    }
}

impl From<&SessionRecord> for JsonKernel {
    fn from(session: &SessionRecord) -> Self {
        Self {
            protocol: format!("{}.{}", session.protocol_major, session.protocol_minor),
            asked: Capabilities(session.requested).names().collect(),
            granted: Capabilities(session.granted).names().collect(),
            max_read_bytes: session.max_read,
            max_readahead_bytes: session.max_readahead,
            max_background: session.max_background,
            listeners: session.listeners,
            spare_listeners: session.spares,
            free_listeners: session.idle,
            interrupts: session.interrupts,
            time_limit_ms: known(session.time_limit_ms),
            stores: session.stores,
            stored_bytes: session.stored_bytes,
            threads: known(session.threads),
        }
    }
}

impl From<&CpuRecord> for JsonCpu {
    fn from(cpu: &CpuRecord) -> Self {
        Self {
            throttled: known(cpu.throttled),
            throttled_us: known(cpu.throttled_us),
            stalled_us: known(cpu.stalled_us),
            is_stalled_of_system: cpu.is_stalled_of_system != 0,
        }
    }
}

impl From<&WorkerRecord> for JsonWorker {
    fn from(worker: &WorkerRecord) -> Self {
        Self {
            cpu: known(worker.cpu),
            thread_id: known(worker.thread_id),
            priority: worker.priority_name(),
            is_serving: worker.is_serving != 0,
            items: worker.items,
            inline: worker.inline,
            panics: worker.panics,
            sleeps: worker.sleeps,
            wake_ups: worker.wake_ups,
            handed_over: worker.handed_over,
            rebound: worker.rebound,
            wait: (&worker.wait).into(),
        }
    }
}

fn micros(nanoseconds: u64) -> f64 {
    seconds(nanoseconds) * 1e6
}
