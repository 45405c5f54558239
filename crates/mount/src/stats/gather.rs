//! From meters, image, session and system to a page of the record. Called by `image_fs::tell` when somebody asks; it
//! takes about a tenth of a millisecond, on the listener that got the question.

use std::time::Duration;

use ferrofs_fuse::{Errno, SessionCounts, Terms};
use ferrofs_image::workers::claims::ClaimCounts;
use ferrofs_image::workers::counters::Times;
use ferrofs_image::workers::cpus::Throttling;
use ferrofs_image::workers::percpu::Snapshot;
use ferrofs_image::workers::priority::Rung;
use ferrofs_image::workers::unbound::WorkerSnapshot;
use ferrofs_image::{Image, Stats};
use zerocopy::{FromBytes, IntoBytes};

use super::kind::Kind;
use super::meters::Meters;
use super::process::Process;
use super::record::{
    ANSWER, Cache, Clusters, CpuTime, EXCHANGE_BYTES, Header, Memory, OperationRow, Prefetch,
    QUESTION, Quantiles, Question, SessionRow, Summary, TopFile, UNKNOWN, VERSION, WORKERS_A_PAGE,
    WorkerRow, WorkerTotals,
};
use crate::node::Nodes;
use crate::settings::Settings;

/// What the numbers are taken from.
#[derive(Debug)]
pub(crate) struct Gatherer<'a> {
    pub(crate) image: &'a Image,
    pub(crate) nodes: &'a Nodes,
    pub(crate) settings: &'a Settings,
    pub(crate) meters: &'a Meters,
    pub(crate) terms: Terms,
    /// Not there before the session has begun.
    pub(crate) session: Option<SessionCounts>,
}

/// The page that a question asks for. Who speaks another version gets a header, which says so.
///
/// # Errors
/// `INVAL`: this is no question.
pub(crate) fn answer(question: &[u8], gatherer: &Gatherer<'_>) -> Result<Vec<u8>, Errno> {
    let (question, _) = Question::read_from_prefix(question).map_err(|_| Errno::INVAL)?;
    if question.magic != QUESTION {
        return Err(Errno::INVAL);
    }
    let stats = gatherer.image.stats();
    let mut page = Header {
        magic: ANSWER,
        version: VERSION,
        bytes: 0,
        workers: narrow(rows(&stats.workers).count()),
        worker_bytes: narrow(size_of::<WorkerRow>()),
        release: release(),
    }
    .as_bytes()
    .to_vec();
    match question.page {
        _ if question.version != VERSION => {}
        0 => page.extend_from_slice(gatherer.summary(&stats).as_bytes()),
        number => {
            let before = usize::try_from(number).unwrap_or(usize::MAX).saturating_sub(1);
            let skipped = before.saturating_mul(WORKERS_A_PAGE);
            for (worker, is_serving) in rows(&stats.workers).skip(skipped).take(WORKERS_A_PAGE) {
                page.extend_from_slice(row(worker, is_serving).as_bytes());
            }
        }
    }
    page.truncate(EXCHANGE_BYTES);
    let bytes = narrow(page.len());
    if let Ok((header, _)) = Header::mut_from_prefix(&mut page) {
        header.bytes = bytes;
    }
    Ok(page)
}

impl Gatherer<'_> {
    fn summary(&self, stats: &Stats) -> Summary {
        let mut summary = Summary {
            pid: u64::from(std::process::id()),
            uptime_ns: nanoseconds(self.meters.uptime()),
            clusters: clusters(stats),
            cache: cache(&stats.cache, stats.cached_bytes),
            prefetch: prefetch(&stats.cache),
            cpu: cpu_time(&self.meters.throttling()),
            workers: totals(&stats.workers),
            notices: self.meters.notices(),
            ..Summary::default()
        };
        let process = Process::read();
        summary.memory = memory(stats, &process);
        summary.session = self.session(&process);
        for (row, kind) in summary.operations.iter_mut().zip(Kind::ALL) {
            let read = self.meters.operation(kind);
            *row = OperationRow {
                errors: read.errors,
                bytes: read.bytes,
                time: quantiles(&read.times),
            };
        }
        for (row, file) in summary.top_files.iter_mut().zip(self.meters.top_files()) {
            let nid = self.nodes.nid(file.node);
            *row = TopFile {
                nid: nid.raw(),
                ino: self.nodes.ino(nid),
                bytes: file.bytes,
                uncertain_bytes: file.uncertain_bytes,
            };
        }
        summary
    }

    fn session(&self, process: &Process) -> SessionRow {
        let (stores, stored_bytes) = self.meters.stores();
        let limit = self.settings.time_limit;
        let limit = limit.map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
        let session = self.session.unwrap_or_default();
        let terms = &self.terms;
        SessionRow {
            protocol_major: u64::from(terms.protocol.0),
            protocol_minor: u64::from(terms.protocol.1),
            asked: terms.asked.0,
            granted: terms.granted.0,
            max_read: u64::from(terms.max_read),
            max_readahead: u64::from(terms.max_readahead.0.min(terms.max_readahead.1)),
            max_background: u64::from(terms.max_background),
            listeners: wide(session.listeners),
            spares: wide(session.spares),
            free: wide(session.free),
            interrupts: session.interrupts,
            time_limit_ms: limit.unwrap_or(UNKNOWN),
            stored_bytes,
            stores,
            threads: process.threads,
        }
    }
}

fn clusters(stats: &Stats) -> Clusters {
    Clusters {
        decoded: stats.clusters_decoded,
        windowed: stats.clusters_windowed,
        on_workers: stats.clusters_on_workers,
        served: stats.clusters_served,
        bytes_decoded: stats.bytes_decoded,
        bytes_served: stats.bytes_served,
        time: quantiles(&stats.decode_time),
    }
}

fn cache(counts: &ClaimCounts, bytes: u64) -> Cache {
    Cache {
        hits: counts.served,
        waits: counts.waited,
        computed: counts.computed,
        gone: counts.gone,
        taken_over: counts.taken_over,
        bytes,
    }
}

fn prefetch(counts: &ClaimCounts) -> Prefetch {
    Prefetch {
        done: counts.prefetched,
        used: counts.prefetch_used,
        wasted: counts.prefetch_wasted,
        dropped: counts.prefetch_dropped,
        joined: counts.upgraded,
    }
}

fn memory(stats: &Stats, process: &Process) -> Memory {
    Memory {
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

fn cpu_time(throttling: &Throttling) -> CpuTime {
    let microseconds = |time: Option<Duration>| {
        time.map_or(UNKNOWN, |time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
    };
    CpuTime {
        throttled: throttling.throttled.unwrap_or(UNKNOWN),
        throttled_us: microseconds(throttling.throttled_time),
        stalled_us: microseconds(throttling.stalled_time),
        is_stalled_of_system: u64::from(throttling.is_stalled_of_system),
    }
}

fn totals(workers: &Snapshot) -> WorkerTotals {
    WorkerTotals {
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
fn rows(workers: &Snapshot) -> impl Iterator<Item = (&WorkerSnapshot, bool)> {
    let serves = |cpu: Option<usize>| cpu.is_some_and(|cpu| workers.serving.contains(cpu));
    let bound = workers.workers.iter().map(move |worker| (worker, serves(worker.cpu)));
    bound.chain(workers.unbound.threads.iter().map(|worker| (worker, worker.thread_id.is_some())))
}

fn row(worker: &WorkerSnapshot, is_serving: bool) -> WorkerRow {
    WorkerRow {
        cpu: worker.cpu.map_or(UNKNOWN, wide),
        thread_id: worker.thread_id.and_then(|id| u64::try_from(id).ok()).unwrap_or(UNKNOWN),
        rung: worker.rung.map_or(0, rung),
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

/// As [`WorkerRow::rung`] has it.
fn rung(rung: Rung) -> u64 {
    match rung {
        Rung::RealTime => 1,
        Rung::Nice => 2,
        Rung::Normal => 3,
        Rung::Batch => 4,
    }
}

fn quantiles(times: &Times) -> Quantiles {
    let share = |share| nanoseconds(times.quantile(share));
    Quantiles {
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

fn wide(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn narrow(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
