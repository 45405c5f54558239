//! The statistics of a mount as text: a table of operations, and lines for everything else.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use ferrofs_fuse::Capabilities;
use ferrofs_mount::stats::{
    LatencyQuantiles, MountStats, OperationKind, StatsSummary, WorkerRecord, known,
};

use super::{MountsTotal, event_text, ratio};
use crate::amount::{counted, grouped, human_bytes, human_time, long_time};
use crate::output::escape;

/// Rows of workers that are shown.
const WORKERS_SHOWN: usize = 64;
/// Files that are shown.
const FILES_SHOWN: usize = 8;

#[derive(Debug)]
pub(super) struct MountStatsText<'a> {
    stats: &'a MountStats,
    directory: &'a Path,
}

impl<'a> MountStatsText<'a> {
    pub(super) fn new(stats: &'a MountStats, directory: &'a Path) -> Self {
        Self { stats, directory }
    }
}

impl fmt::Display for MountStatsText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let summary = &self.stats.summary;
        self.head(f)?;
        operations(f, summary)?;
        decoding(f, summary)?;
        memory(f, summary)?;
        process(f, summary)?;
        kernel(f, summary)?;
        cpu(f, summary)?;
        workers(f, self.stats)?;
        super::remote::text(f, &summary.remote)?;
        log_events(f, summary)?;
        top_files(f, summary)
    }
}

impl MountStatsText<'_> {
    fn head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let summary = &self.stats.summary;
        write!(f, "mount     {}", escape(self.directory.as_os_str().as_bytes()))?;
        if let Some(mount) = &self.stats.mount {
            write!(f, ": {}", escape(mount.source.as_bytes()))?;
        }
        let release = escape(self.stats.release.as_bytes());
        let uptime = long_time(Duration::from_nanos(summary.uptime_ns));
        writeln!(f, "; ferrofs {release}, process {}, up {uptime}", summary.pid)
    }
}

/// The sum of all mounts of a user.
#[derive(Debug)]
pub(super) struct TotalStatsText<'a> {
    pub(super) total: &'a MountsTotal,
}

impl fmt::Display for TotalStatsText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MountsTotal { summary, mounts, without_answer } = self.total;
        let restarts = summary.process.restarts;
        write!(f, "mounts    {}, ", grouped(*mounts))?;
        write!(f, "{}", counted(restarts, "restart", "restarts"))?;
        match without_answer {
            0 => writeln!(f)?,
            none => writeln!(f, "; {} more without statistics", grouped(*none))?,
        }
        operations(f, summary)?;
        decoding(f, summary)?;
        memory(f, summary)
    }
}

fn operations(f: &mut fmt::Formatter<'_>, summary: &StatsSummary) -> fmt::Result {
    writeln!(
        f,
        "{:<13} {:>12} {:>7} {:>9} {:>9} {:>9} {:>9} {:>10}",
        "operations", "count", "errors", "p50", "p99", "p999", "max", "bytes"
    )?;
    for kind in OperationKind::ALL {
        let row = summary.operation(kind);
        if row.time.count == 0 {
            continue;
        }
        writeln!(
            f,
            "  {:<11} {:>12} {:>7} {:>9} {:>9} {:>9} {:>9} {:>10}",
            kind.name(),
            grouped(row.time.count),
            grouped(row.errors),
            time(row.time.p50_ns),
            time(row.time.p99_ns),
            time(row.time.p999_ns),
            time(row.time.max_ns),
            human_bytes(row.bytes)
        )?;
    }
    Ok(())
}

fn decoding(f: &mut fmt::Formatter<'_>, summary: &StatsSummary) -> fmt::Result {
    let (clusters, cache, prefetch) = (&summary.clusters, &summary.cache, &summary.prefetch);
    writeln!(
        f,
        "clusters  {} decoded, of them {} on workers and {} through a window; served {}",
        grouped(clusters.decoded),
        grouped(clusters.on_workers),
        grouped(clusters.windowed),
        grouped(clusters.served)
    )?;
    writeln!(f, "decoding  {}", LatencyText(&clusters.time))?;
    writeln!(
        f,
        "bytes     {} decoded, {} served: {:.3} decoded for each served",
        human_bytes(clusters.bytes_decoded),
        human_bytes(clusters.bytes_served),
        ratio(clusters.bytes_decoded, clusters.bytes_served)
    )?;
    writeln!(
        f,
        "cache     {} hits, {} computed, {} waits, {} taken over, {} without a result; holds {}",
        grouped(cache.hits),
        grouped(cache.computed),
        grouped(cache.waits),
        grouped(cache.taken_over),
        grouped(cache.abandoned),
        human_bytes(cache.bytes)
    )?;
    writeln!(
        f,
        "prefetch  {} done: {} used, {} wasted; {} dropped, {} joined",
        grouped(prefetch.done),
        grouped(prefetch.used),
        grouped(prefetch.wasted),
        grouped(prefetch.dropped),
        grouped(prefetch.joined)
    )
}

fn memory(f: &mut fmt::Formatter<'_>, summary: &StatsSummary) -> fmt::Result {
    let memory = &summary.memory;
    writeln!(
        f,
        "memory    {} of {}, peak {}; {} refused, {} waits, {} given up",
        human_bytes(memory.used),
        human_bytes(memory.limit),
        human_bytes(memory.peak),
        grouped(memory.refused),
        grouped(memory.waited),
        grouped(memory.gave_up)
    )?;
    let bytes = |bytes| known(bytes).map_or_else(|| "unknown".to_owned(), human_bytes);
    let threads = known(summary.session.threads);
    let threads = threads.map_or_else(|| "unknown".to_owned(), grouped);
    let (resident, peak) = (bytes(memory.resident), bytes(memory.resident_peak));
    writeln!(f, "process   {resident} resident, peak {peak}; threads: {threads}")
}

fn process(f: &mut fmt::Formatter<'_>, summary: &StatsSummary) -> fmt::Result {
    let process = &summary.process;
    match process.holder {
        0 => writeln!(f, "holder    none: the mount ends with its process")?,
        holder => {
            writeln!(f, "holder    process {holder}; restarts: {}", grouped(process.restarts))?;
        }
    }
    match process.filter_calls {
        0 => write!(f, "sandbox   system calls not filtered")?,
        calls => write!(f, "sandbox   {} system calls allowed", grouped(calls))?,
    }
    match process.landlock {
        0 => writeln!(f, ", paths not confined"),
        version => writeln!(f, ", paths confined (Landlock {version})"),
    }
}

fn kernel(f: &mut fmt::Formatter<'_>, summary: &StatsSummary) -> fmt::Result {
    let session = &summary.session;
    writeln!(
        f,
        "kernel    protocol {}.{}: reads of {}, {} ahead, {} in the background",
        session.protocol_major,
        session.protocol_minor,
        human_bytes(session.max_read),
        human_bytes(session.max_readahead),
        grouped(session.max_background)
    )?;
    let missing = Capabilities(session.requested & !session.granted).to_string();
    writeln!(f, "granted   {}", Capabilities(session.granted))?;
    writeln!(f, "refused   {}", if missing.is_empty() { "nothing" } else { &missing })?;
    writeln!(
        f,
        "listeners {} and {} spare, {} free; {} interrupts; page cache: {} stored in {}",
        grouped(session.listeners),
        grouped(session.spares),
        grouped(session.idle),
        grouped(session.interrupts),
        human_bytes(session.stored_bytes),
        grouped(session.stores)
    )
}

fn cpu(f: &mut fmt::Formatter<'_>, summary: &StatsSummary) -> fmt::Result {
    let cpu = &summary.cpu;
    let of_us = |us| known(us).map(|us| time(us.saturating_mul(1000)));
    match (known(cpu.throttled), of_us(cpu.throttled_us)) {
        (Some(times), Some(long)) => {
            write!(f, "cpu       throttled {} times, {long}", grouped(times))
        }
        (Some(times), None) => write!(f, "cpu       throttled {} times", grouped(times)),
        (None, _) => f.write_str("cpu       throttling unknown"),
    }?;
    match of_us(cpu.stalled_us) {
        Some(long) => {
            let of_system = if cpu.is_stalled_of_system == 0 { "" } else { " of the system" };
            writeln!(f, "; tasks{of_system} had to wait for a CPU for {long}")
        }
        None => writeln!(f),
    }
}

fn workers(f: &mut fmt::Formatter<'_>, stats: &MountStats) -> fmt::Result {
    let totals = &stats.summary.workers;
    writeln!(
        f,
        "workers   {} items, {} inline, {} fallback, {} full, {} panics, {} threads refused",
        grouped(totals.items),
        grouped(totals.inline),
        grouped(totals.fallback),
        grouped(totals.full),
        grouped(totals.panics),
        grouped(totals.refused_threads)
    )?;
    writeln!(f, "queue     {}", LatencyText(&totals.wait))?;
    for worker in stats.workers.iter().take(WORKERS_SHOWN) {
        show_worker(f, worker)?;
    }
    match stats.workers.len().saturating_sub(WORKERS_SHOWN) {
        0 => Ok(()),
        more => writeln!(f, "  and {more} more: see --json"),
    }
}

fn show_worker(f: &mut fmt::Formatter<'_>, worker: &WorkerRecord) -> fmt::Result {
    let place = known(worker.cpu).map_or_else(|| "unbound".to_owned(), |cpu| format!("cpu {cpu}"));
    let state = match (worker.is_serving != 0, known(worker.thread_id)) {
        (true, Some(_)) => "serves",
        (true, None) => "no thread",
        (false, _) => "away",
    };
    writeln!(
        f,
        "  {place:<8} {:<9} {state:<9} {:>11} items, {} sleeps, {} wake-ups; queue {}",
        worker.priority_name().unwrap_or("-"),
        grouped(worker.items),
        grouped(worker.sleeps),
        grouped(worker.wake_ups),
        LatencyText(&worker.wait)
    )
}

fn log_events(f: &mut fmt::Formatter<'_>, summary: &StatsSummary) -> fmt::Result {
    let events = &summary.log_events;
    let counts = [
        (events.failed, "failed"),
        (events.timed_out, "timed out"),
        (events.interrupted, "interrupted"),
        (events.spares, "spare listeners"),
        (events.panicked, "panicked"),
        (events.malformed, "malformed"),
        (events.device_failed, "device failed"),
        (events.other, "other"),
    ];
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    let counts: Vec<_> = counts.map(|(count, what)| format!("{} {what}", grouped(count))).collect();
    writeln!(
        f,
        "log       {}",
        if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }
    )?;
    match known(events.last_age_ns) {
        Some(age) => {
            let text = escape(event_text(&events.last_text).as_bytes());
            writeln!(f, "  last, {} ago: {text}", long_time(Duration::from_nanos(age)))
        }
        None => Ok(()),
    }
}

fn top_files(f: &mut fmt::Formatter<'_>, summary: &StatsSummary) -> fmt::Result {
    // The sketch is too inexact for files that are read less.
    let files = summary.top_files.iter().filter(|file| file.bytes / 2 > file.uncertain_bytes);
    let files = files.take(FILES_SHOWN);
    for (number, file) in files.enumerate() {
        let key = if number == 0 { "top files" } else { "" };
        write!(f, "{key:<9} inode {}: {}", file.ino, human_bytes(file.bytes))?;
        match file.uncertain_bytes {
            0 => writeln!(f)?,
            bytes => writeln!(f, ", give or take {}", human_bytes(bytes))?,
        }
    }
    Ok(())
}

/// Times in a line.
struct LatencyText<'a>(&'a LatencyQuantiles);

impl fmt::Display for LatencyText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LatencyQuantiles { count, p50_ns, p99_ns, p999_ns, max_ns, .. } = self.0;
        if *count == 0 {
            return f.write_str("none");
        }
        let [p50, p99, p999, max] = [p50_ns, p99_ns, p999_ns, max_ns].map(|ns| time(*ns));
        write!(f, "p50 {p50}, p99 {p99}, p999 {p999}, max {max}")
    }
}

fn time(nanoseconds: u64) -> String {
    human_time(Duration::from_nanos(nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_the_numbers_are_they_can_be_shown() {
        let worker = WorkerRecord {
            cpu: u64::MAX,
            priority_level: 99,
            items: u64::MAX,
            ..WorkerRecord::default()
        };
        let mut summary = StatsSummary { uptime_ns: u64::MAX, ..StatsSummary::default() };
        summary.operations[4].time.count = u64::MAX;
        summary.operations[4].bytes = u64::MAX;
        summary.log_events.last_age_ns = 1;
        summary.log_events.last_text[..9].copy_from_slice(b"\x1b[2Jlong\n");
        summary.top_files[0].bytes = u64::MAX;
        let workers = vec![worker; WORKERS_SHOWN + 3];
        let release = "\x1b]0;x\x07".to_owned();
        let stats = MountStats { mount: None, release, summary, workers };
        let text = MountStatsText::new(&stats, Path::new("/m\x1b")).to_string();
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        assert!(text.contains("and 3 more"), "{text}");
        assert!(text.contains("15.9 EiB"), "{text}");
    }
}
