//! Metrics of a running mount. They are sharded by thread ([`Sharded`](ferrofs_workers::counters::Sharded)), so that threads
//! do not wait for each other. Written by `image_fs`, read by `collector`.
//!
//! Memory: 2.6 KiB for each shard and each kind of operation that has occurred. There is one shard for each listener, at
//! most 64: in all 2.2 MiB on a large machine, 70 KiB on two CPUs.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ferrofs_fuse::{Errno, ReplyOutcome, SessionEvent};
use ferrofs_workers::counters::{Histogram, HistogramSnapshot, Sharded};
use ferrofs_workers::cpus::CpuThrottling;

use super::record::{self, EVENT_TEXT_BYTES, OperationKind};
use crate::settings::{MountLogEvent, ServingProcess};

/// The metrics of a mount.
#[derive(Debug)]
pub(crate) struct MountMetrics {
    started_at: Instant,
    /// What the system had counted when the mount started.
    throttled_before: CpuThrottling,
    shards: Sharded<MetricsShard>,
    log_events: LogEventCounters,
    process: ServingProcess,
}

/// The metrics of some of the threads. All accesses are relaxed: the values publish nothing.
#[derive(Debug, Default)]
struct MetricsShard {
    operations: [OperationMetrics; OperationKind::ALL.len()],
    stores: AtomicU64,
    stored_bytes: AtomicU64,
    top_files: Mutex<TopFilesSketch>,
}

#[derive(Debug, Default)]
struct OperationMetrics {
    times: OnceLock<Histogram>,
    errors: AtomicU64,
    bytes: AtomicU64,
}

/// The values of one kind of operation.
#[derive(Debug, Default)]
pub(super) struct OperationTimes {
    pub(super) times: HistogramSnapshot,
    pub(super) errors: u64,
    pub(super) bytes: u64,
}

impl MountMetrics {
    /// Metrics for this number of listeners.
    pub(crate) fn new(listeners: usize) -> Self {
        let shards = Sharded::new(listeners, MetricsShard::default);
        let throttled_before = CpuThrottling::read();
        Self {
            started_at: Instant::now(),
            throttled_before,
            shards,
            log_events: LogEventCounters::default(),
            process: ServingProcess::default(),
        }
    }

    /// The same with what the statistics report about the process.
    pub(crate) fn of_process(mut self, process: ServingProcess) -> Self {
        self.process = process;
        self
    }

    pub(super) fn process(&self) -> ServingProcess {
        self.process
    }

    /// Records the reply to a request. A request without a reply panicked, and is counted as an event.
    pub(crate) fn record_reply(&self, kind: OperationKind, node: u64, outcome: &ReplyOutcome) {
        let Some(sent) = outcome.sent() else { return };
        let shard = self.shards.local();
        let Some(counters) = shard.operations.get(kind.index()) else { return };
        counters.times.get_or_init(Histogram::new).record(sent.elapsed);
        if sent.errno.is_some_and(is_failure) {
            counters.errors.fetch_add(1, Ordering::Relaxed);
        }
        let bytes = u64::try_from(sent.bytes).unwrap_or(0);
        counters.bytes.fetch_add(bytes, Ordering::Relaxed);
        // A read is not recorded while the statistics are being collected, so that no listener waits.
        if kind == OperationKind::Read
            && let Ok(mut files) = shard.top_files.try_lock()
        {
            files.read(node, bytes);
        }
    }

    /// Records a store in the kernel's page cache.
    pub(crate) fn record_store(&self, bytes: usize) {
        let shard = self.shards.local();
        shard.stores.fetch_add(1, Ordering::Relaxed);
        shard.stored_bytes.fetch_add(u64::try_from(bytes).unwrap_or(0), Ordering::Relaxed);
    }

    /// Records an event for the log.
    pub(crate) fn record_event(&self, event: &MountLogEvent<'_>) {
        self.log_events.add(event);
    }

    pub(super) fn uptime(&self) -> Duration {
        self.started_at.elapsed()
    }

    pub(super) fn throttling(&self) -> CpuThrottling {
        CpuThrottling::read().since(&self.throttled_before)
    }

    pub(super) fn log_events(&self) -> record::LogEventRecord {
        self.log_events.read()
    }

    pub(super) fn operation(&self, kind: OperationKind) -> OperationTimes {
        let mut all = OperationTimes::default();
        for counters in self.shards.iter().filter_map(|shard| shard.operations.get(kind.index())) {
            if let Some(times) = counters.times.get() {
                all.times.merge(&times.snapshot());
            }
            all.errors = all.errors.wrapping_add(counters.errors.load(Ordering::Relaxed));
            all.bytes = all.bytes.wrapping_add(counters.bytes.load(Ordering::Relaxed));
        }
        all
    }

    /// The number of stores in the page cache, and their bytes.
    pub(super) fn stores(&self) -> (u64, u64) {
        self.shards.iter().fold((0, 0), |(stores, bytes): (u64, u64), shard| {
            let more = (&shard.stores, &shard.stored_bytes);
            (
                stores.wrapping_add(more.0.load(Ordering::Relaxed)),
                bytes.wrapping_add(more.1.load(Ordering::Relaxed)),
            )
        })
    }

    /// The most read files.
    pub(super) fn top_files(&self) -> Vec<FileCount> {
        let copy = |shard: &MetricsShard| {
            shard.top_files.lock().unwrap_or_else(PoisonError::into_inner).clone()
        };
        TopFilesSketch::merged(&self.shards.iter().map(copy).collect::<Vec<_>>())
    }
}

/// Whether an errno means that something is broken. The others are results: something does not exist or is not
/// supported.
fn is_failure(errno: Errno) -> bool {
    !matches!(
        errno,
        Errno::NOSYS
            | Errno::NODATA
            | Errno::RANGE
            | Errno::OPNOTSUPP
            | Errno::NXIO
            | Errno::NOTTY
            | Errno::INVAL
            | Errno::NOTDIR
            | Errno::NAMETOOLONG
    )
}

/// Events for the log, counted by kind, and the last one.
#[derive(Debug, Default)]
pub(super) struct LogEventCounters(Mutex<LogEventState>);

#[derive(Debug, Default)]
struct LogEventState {
    /// The age of the last event is not set here.
    counts: record::LogEventRecord,
    last: Option<Instant>,
}

impl LogEventCounters {
    pub(super) fn add(&self, event: &MountLogEvent<'_>) {
        let mut text = TruncatedText { bytes: [0; EVENT_TEXT_BYTES], length: 0 };
        // An error means that the text was truncated.
        write!(text, "{event}").unwrap_or_default();
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let by = match event {
            MountLogEvent::Session(SessionEvent::Refused { requests, .. }) => *requests,
            _ => 1,
        };
        let count = place(&mut state.counts, event);
        *count = count.saturating_add(u64::try_from(by).unwrap_or(u64::MAX));
        state.counts.last_text = text.bytes;
        state.last = Some(Instant::now());
    }

    pub(super) fn read(&self) -> record::LogEventRecord {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let age = |last: Instant| u64::try_from(last.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let last_age_ns = state.last.map_or(record::UNKNOWN, age);
        record::LogEventRecord { last_age_ns, ..state.counts }
    }
}

fn place<'a>(counts: &'a mut record::LogEventRecord, event: &MountLogEvent<'_>) -> &'a mut u64 {
    match event {
        MountLogEvent::Failed { .. } => &mut counts.failed,
        MountLogEvent::Banned { .. } => &mut counts.other,
        MountLogEvent::Session(event) => match event {
            SessionEvent::TimedOut { .. } | SessionEvent::Refused { .. } => &mut counts.timed_out,
            SessionEvent::Interrupted { .. } => &mut counts.interrupted,
            SessionEvent::SpareListenerStarted { .. } => &mut counts.spares,
            SessionEvent::Panicked { .. } | SessionEvent::ListenerStartPanicked => {
                &mut counts.panicked
            }
            SessionEvent::MalformedRequest => &mut counts.malformed,
            SessionEvent::DeviceFailed { .. } => &mut counts.device_failed,
            _ => &mut counts.other,
        },
    }
}

/// A text that is truncated between two characters.
struct TruncatedText {
    bytes: [u8; EVENT_TEXT_BYTES],
    length: usize,
}

impl Write for TruncatedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            let end = self.length.saturating_add(character.len_utf8());
            let room = self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?;
            character.encode_utf8(room);
            self.length = end;
        }
        Ok(())
    }
}

/// Entries of a sketch: twice as many as are shown, so that those that are shown are stable.
const ENTRIES: usize = 32;

/// A file and what was read of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FileCount {
    pub(super) node: u64,
    /// 0 for an unused entry.
    pub(super) bytes: u64,
    pub(super) uncertain_bytes: u64,
}

/// A sketch of the most read files: the space-saving algorithm of Metwally, Agrawal and El Abbadi. It needs one pass and a
/// table of fixed size. A file that is not in the table replaces the one with the fewest bytes, and inherits these bytes as
/// its uncertainty.
#[derive(Clone, Debug, Default)]
pub(super) struct TopFilesSketch {
    entries: [FileCount; ENTRIES],
}

impl TopFilesSketch {
    /// Records that bytes of a file were read.
    pub(super) fn read(&mut self, node: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        if let Some(known) = self.entries.iter_mut().find(|one| one.node == node && one.bytes > 0) {
            known.bytes = known.bytes.saturating_add(bytes);
        } else if let Some(min_entry) = self.entries.iter_mut().min_by_key(|one| one.bytes) {
            let uncertain_bytes = min_entry.bytes;
            *min_entry =
                FileCount { node, bytes: uncertain_bytes.saturating_add(bytes), uncertain_bytes };
        }
    }

    /// The most bytes that a file outside of the table can have.
    fn min_bytes(&self) -> u64 {
        self.entries.iter().map(|one| one.bytes).min().unwrap_or(0)
    }

    /// Merges several sketches. The files with the largest certain number of bytes come first.
    pub(super) fn merged(tables: &[Self]) -> Vec<FileCount> {
        let mut all: Vec<FileCount> = Vec::new();
        for counted in tables.iter().flat_map(|table| &table.entries).filter(|one| one.bytes > 0) {
            match all.iter_mut().find(|one| one.node == counted.node) {
                Some(known) => {
                    known.bytes = known.bytes.saturating_add(counted.bytes);
                    known.uncertain_bytes =
                        known.uncertain_bytes.saturating_add(counted.uncertain_bytes);
                }
                None => all.push(*counted),
            }
        }
        for one in &mut all {
            let lacks = |table: &&Self| !table.entries.iter().any(|other| other.node == one.node);
            let missed = tables.iter().filter(lacks).map(Self::min_bytes);
            one.uncertain_bytes = missed.fold(one.uncertain_bytes, u64::saturating_add);
        }
        all.sort_by_key(|one| std::cmp::Reverse(one.bytes.saturating_sub(one.uncertain_bytes)));
        all
    }
}

#[cfg(test)]
mod tests {
    use ferrofs_fuse::SentReply;

    use super::*;

    fn sent(errno: Option<Errno>, bytes: usize, elapsed: Duration) -> ReplyOutcome {
        ReplyOutcome::of(SentReply { errno, bytes, elapsed })
    }

    #[test]
    fn an_operation_is_counted_with_its_time_and_its_bytes() {
        let metrics = MountMetrics::new(2);
        let elapsed = Duration::from_micros(80);
        metrics.record_reply(OperationKind::Read, 5, &sent(None, 4096, elapsed));
        metrics.record_reply(OperationKind::Read, 5, &sent(Some(Errno::IO), 0, elapsed));
        let read = metrics.operation(OperationKind::Read);
        assert_eq!((read.times.count(), read.errors, read.bytes), (2, 1, 4096));
        assert_eq!(read.times.longest(), Duration::from_micros(80));
        assert_eq!(metrics.operation(OperationKind::Lookup).times.count(), 0);
        assert_eq!(metrics.top_files()[0].node, 5);
    }

    #[test]
    fn replies_that_something_does_not_exist_are_not_errors() {
        let metrics = MountMetrics::new(1);
        for errno in [Errno::NODATA, Errno::NOSYS, Errno::NXIO, Errno::NOTTY, Errno::NAMETOOLONG] {
            metrics.record_reply(OperationKind::GetXattr, 1, &sent(Some(errno), 0, Duration::ZERO));
        }
        for errno in [Errno::IO, Errno::NOMEM, Errno::UCLEAN, Errno::CANCELED] {
            metrics.record_reply(OperationKind::GetXattr, 1, &sent(Some(errno), 0, Duration::ZERO));
        }
        let counted = metrics.operation(OperationKind::GetXattr);
        assert_eq!((counted.times.count(), counted.errors), (9, 4));
    }

    #[test]
    fn a_request_without_a_reply_is_not_counted() {
        let metrics = MountMetrics::new(1);
        metrics.record_reply(OperationKind::Read, 1, &ReplyOutcome::default());
        assert_eq!(metrics.operation(OperationKind::Read).times.count(), 0);
    }

    #[test]
    fn no_count_is_lost_between_threads() {
        const EACH: usize = 5000;
        let metrics = MountMetrics::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        metrics.record_reply(
                            OperationKind::Lookup,
                            1,
                            &sent(None, 128, Duration::ZERO),
                        );
                        metrics.record_store(10);
                    }
                });
            }
        });
        let counted = metrics.operation(OperationKind::Lookup);
        assert_eq!(counted.times.count(), 4 * EACH as u64);
        assert_eq!(counted.bytes, 4 * 128 * EACH as u64);
        assert_eq!(metrics.stores(), (4 * EACH as u64, 40 * EACH as u64));
    }

    #[test]
    fn events_are_counted_by_kind_and_the_last_one_is_kept() {
        let log_events = LogEventCounters::default();
        assert_eq!(log_events.read(), record::LogEventRecord::default());
        log_events.add(&MountLogEvent::Session(&SessionEvent::MalformedRequest));
        let slow = SessionEvent::TimedOut { pid: 7, after: Duration::from_secs(1) };
        log_events.add(&MountLogEvent::Session(&slow));
        let read = log_events.read();
        assert_eq!((read.malformed, read.timed_out, read.failed), (1, 1, 0));
        assert!(read.last_text.starts_with(b"request of thread 7 timed out after 1s"));
        assert!(record::known(read.last_age_ns).is_some());
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let mut text = TruncatedText { bytes: [0; EVENT_TEXT_BYTES], length: 0 };
        assert!(write!(text, "x{}", "\u{e9}".repeat(EVENT_TEXT_BYTES)).is_err());
        assert_eq!(text.length, EVENT_TEXT_BYTES - 1);
        assert!(std::str::from_utf8(&text.bytes[..text.length]).is_ok());
    }

    #[test]
    fn the_most_read_files_are_found_among_many() {
        let mut tables = [TopFilesSketch::default(), TopFilesSketch::default()];
        for round in 0..1000_u64 {
            for table in &mut tables {
                table.read(7, 1000);
                table.read(8, 400);
            }
            // As many files as rounds, each read once.
            tables[0].read(1000 + round, 10);
        }
        let found = TopFilesSketch::merged(&tables);
        assert_eq!((found[0].node, found[1].node), (7, 8));
        for (file, exact) in [(found[0], 2_000_000), (found[1], 800_000)] {
            assert!(file.bytes.abs_diff(exact) <= file.uncertain_bytes, "{file:?}");
            assert!(file.uncertain_bytes < exact / 100, "{file:?}");
        }
    }

    #[test]
    fn few_files_are_counted_exactly() {
        let mut table = TopFilesSketch::default();
        for node in 1..=ENTRIES as u64 {
            table.read(node, node);
            table.read(node, 0);
        }
        let found = TopFilesSketch::merged(&[table]);
        assert_eq!(found.len(), ENTRIES);
        assert!(found.iter().all(|one| one.bytes == one.node && one.uncertain_bytes == 0));
    }
}
