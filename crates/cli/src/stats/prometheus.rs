//! The statistics of a mount in the text format of Prometheus (version 0.0.4): base units, a label
//! `mount` on every sample. The most read files are left out: each would be a separate series,
//! and their number is unlimited.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use ferrofs_mount::stats::{LatencyQuantiles, MountStats, OperationKind, StatsSummary, known};

use super::seconds;

/// The whole text.
pub(super) fn exposition(stats: &MountStats, directory: &Path) -> String {
    let summary = &stats.summary;
    let mut page = MetricsPage::new(directory);
    let image = stats.mount.as_ref().map(|mount| mount.source.to_string_lossy().into_owned());
    let of_mount = [("image", image.unwrap_or_default()), ("release", stats.release.clone())];
    page.family(
        "ferrofs_info",
        MetricType::Gauge,
        "The mounted image and the version that serves it.",
    );
    page.sample("", &of_mount, 1.0);
    operations(&mut page, summary);
    decoding(&mut page, summary);
    prefetches(&mut page, summary);
    memory(&mut page, summary);
    session(&mut page, summary);
    let process = &summary.process;
    page.counter("ferrofs_restarts_total", "Processes that were started again.", process.restarts);
    let help = "Whether another process starts this one again.";
    page.gauge("ferrofs_is_kept", help, u64::from(process.holder > 0));
    let help = "Whether system calls are filtered.";
    page.gauge("ferrofs_is_filtered", help, u64::from(process.filter_calls > 0));
    let help = "The version of Landlock that confines paths; 0 if they are not confined.";
    page.gauge("ferrofs_landlock_version", help, process.landlock);
    processor(&mut page, summary);
    workers(&mut page, stats);
    remote(&mut page, summary);
    log_events(&mut page, summary);
    page.text
}

/// The text of several mounts: each family once, with the samples of all mounts that have it.
pub(super) fn joined(pages: &[String]) -> String {
    let mut families: Vec<(&str, String)> = Vec::new();
    let mut places = BTreeMap::new();
    for page in pages {
        let mut samples = 0;
        let mut lines = page.lines().peekable();
        while let Some(line) = lines.next() {
            if line.starts_with("# HELP ") {
                samples = *places.entry(line).or_insert_with(|| {
                    let form = lines.peek().copied().unwrap_or_default();
                    families.push((line, format!("{line}\n{form}\n")));
                    families.len() - 1
                });
            } else if !line.starts_with('#')
                && let Some((_, text)) = families.get_mut(samples)
            {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    families.into_iter().map(|(_, text)| text).collect()
}

/// The type of a family of samples.
#[derive(Clone, Copy, Debug)]
enum MetricType {
    Counter,
    Gauge,
    Summary,
}

type Labels<'a> = [(&'a str, String)];

struct MetricsPage {
    text: String,
    /// The label of the mount, as written between braces.
    mount: String,
    name: &'static str,
}

impl MetricsPage {
    fn new(directory: &Path) -> Self {
        let mount = format!("mount=\"{}\"", value(&directory.to_string_lossy()));
        Self { text: String::new(), mount, name: "" }
    }

    /// Begins a family; its samples come next.
    fn family(&mut self, name: &'static str, form: MetricType, help: &str) {
        self.name = name;
        let form = match form {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Summary => "summary",
        };
        // Writing to a String cannot fail, here and below.
        write!(self.text, "# HELP {name} {help}\n# TYPE {name} {form}\n").unwrap_or_default();
    }

    fn sample(&mut self, suffix: &str, labels: &Labels<'_>, number: f64) {
        write!(self.text, "{}{suffix}{{{}", self.name, self.mount).unwrap_or_default();
        for (key, text) in labels {
            write!(self.text, ",{key}=\"{}\"", value(text)).unwrap_or_default();
        }
        writeln!(self.text, "}} {number}").unwrap_or_default();
    }

    fn counter(&mut self, name: &'static str, help: &str, number: u64) {
        self.family(name, MetricType::Counter, help);
        self.sample("", &[], float(number));
    }

    fn gauge(&mut self, name: &'static str, help: &str, number: u64) {
        self.family(name, MetricType::Gauge, help);
        self.sample("", &[], float(number));
    }

    fn times(&mut self, labels: &Labels<'_>, times: &LatencyQuantiles) {
        let quantiles = [("0.5", times.p50_ns), ("0.99", times.p99_ns), ("0.999", times.p999_ns)];
        for (quantile, nanoseconds) in quantiles {
            let mut labels = labels.to_vec();
            labels.push(("quantile", quantile.to_owned()));
            // Without samples there is no quantile.
            let number = if times.count == 0 { f64::NAN } else { seconds(nanoseconds) };
            self.sample("", &labels, number);
        }
        self.sample("_sum", labels, seconds(times.sum_ns));
        self.sample("_count", labels, float(times.count));
    }
}

fn operations(page: &mut MetricsPage, summary: &StatsSummary) {
    page.gauge_seconds(
        "ferrofs_uptime_seconds",
        "Time since the start of the process that serves the mount.",
        summary.uptime_ns,
    );
    let label = |kind: OperationKind| [("operation", kind.name().to_owned())];
    let help = "Time from receiving a request to sending its reply.";
    page.family("ferrofs_operation_duration_seconds", MetricType::Summary, help);
    for kind in OperationKind::ALL {
        page.times(&label(kind), &summary.operation(kind).time);
    }
    let help = "Replies that report damage or an I/O failure.";
    page.family("ferrofs_operation_errors_total", MetricType::Counter, help);
    for kind in OperationKind::ALL {
        page.sample("", &label(kind), float(summary.operation(kind).errors));
    }
    page.family(
        "ferrofs_operation_bytes_total",
        MetricType::Counter,
        "Bytes that replies carried.",
    );
    for kind in OperationKind::ALL {
        page.sample("", &label(kind), float(summary.operation(kind).bytes));
    }
}

fn decoding(page: &mut MetricsPage, summary: &StatsSummary) {
    let (clusters, cache) = (&summary.clusters, &summary.cache);
    page.family("ferrofs_decode_duration_seconds", MetricType::Summary, "Runs of a decoder.");
    page.times(&[], &clusters.time);
    for (name, help, number) in [
        ("ferrofs_clusters_decoded_total", "Clusters decoded.", clusters.decoded),
        (
            "ferrofs_clusters_decoded_on_workers_total",
            "Clusters decoded on the workers.",
            clusters.on_workers,
        ),
        (
            "ferrofs_clusters_decoded_windowed_total",
            "Clusters decoded through a window.",
            clusters.windowed,
        ),
        ("ferrofs_clusters_served_total", "Pieces of clusters served to readers.", clusters.served),
        ("ferrofs_decoded_bytes_total", "Bytes that decoders produced.", clusters.bytes_decoded),
        ("ferrofs_served_bytes_total", "Bytes served to readers.", clusters.bytes_served),
        ("ferrofs_cache_hits_total", "Requests that found the cluster in the cache.", cache.hits),
        ("ferrofs_cache_waits_total", "Requests that waited for another thread.", cache.waits),
        ("ferrofs_cache_computed_total", "Clusters decoded for the cache.", cache.computed),
        (
            "ferrofs_cache_abandoned_total",
            "Cache computations that ended without a result.",
            cache.abandoned,
        ),
        ("ferrofs_cache_taken_over_total", "Clusters taken back from a queue.", cache.taken_over),
    ] {
        page.counter(name, help, number);
    }
    page.gauge("ferrofs_cache_bytes", "Bytes of decoded clusters that are kept.", cache.bytes);
}

fn prefetches(page: &mut MetricsPage, summary: &StatsSummary) {
    let prefetch = &summary.prefetch;
    for (name, help, number) in [
        ("ferrofs_prefetch_done_total", "Clusters decoded ahead.", prefetch.done),
        ("ferrofs_prefetch_used_total", "Prefetched clusters that were requested.", prefetch.used),
        (
            "ferrofs_prefetch_wasted_total",
            "Prefetched clusters that were never requested.",
            prefetch.wasted,
        ),
        ("ferrofs_prefetch_dropped_total", "Prefetches that were dropped.", prefetch.dropped),
        ("ferrofs_prefetch_joined_total", "Prefetches that a reader joined.", prefetch.joined),
    ] {
        page.counter(name, help, number);
    }
}

fn memory(page: &mut MetricsPage, summary: &StatsSummary) {
    let memory = &summary.memory;
    page.gauge("ferrofs_memory_used_bytes", "Bytes charged to the memory budget.", memory.used);
    page.gauge(
        "ferrofs_memory_peak_bytes",
        "Peak of the bytes charged to the memory budget.",
        memory.peak,
    );
    page.gauge("ferrofs_memory_limit_bytes", "Limit of the memory budget.", memory.limit);
    if let Some(bytes) = known(memory.resident) {
        page.gauge("ferrofs_resident_bytes", "Resident memory of the process.", bytes);
    }
    if let Some(bytes) = known(memory.resident_peak) {
        page.gauge("ferrofs_resident_peak_bytes", "Peak resident memory of the process.", bytes);
    }
    page.counter(
        "ferrofs_memory_refused_total",
        "Optional allocations that were refused.",
        memory.refused,
    );
    page.counter("ferrofs_memory_waits_total", "Requests that waited for memory.", memory.waited);
    page.counter("ferrofs_memory_given_up_total", "Requests that got no memory.", memory.gave_up);
}

fn session(page: &mut MetricsPage, summary: &StatsSummary) {
    let session = &summary.session;
    page.gauge("ferrofs_listeners", "Threads that always read requests.", session.listeners);
    page.gauge(
        "ferrofs_listeners_spare",
        "Threads that read requests while others hang.",
        session.spares,
    );
    page.gauge("ferrofs_listeners_free", "Listeners that wait for a request.", session.idle);
    page.counter("ferrofs_interrupts_total", "Interrupted requests.", session.interrupts);
    page.counter("ferrofs_page_cache_stores_total", "Stores into the page cache.", session.stores);
    let help = "Bytes stored into the page cache ahead.";
    page.counter("ferrofs_page_cache_stored_bytes_total", help, session.stored_bytes);
    if let Some(threads) = known(session.threads) {
        page.gauge("ferrofs_threads", "Threads of the process.", threads);
    }
}

fn processor(page: &mut MetricsPage, summary: &StatsSummary) {
    let cpu = &summary.cpu;
    if let Some(times) = known(cpu.throttled) {
        let help = "Times that control groups were throttled.";
        page.counter("ferrofs_cpu_throttled_total", help, times);
    }
    let of_time = [
        (
            "ferrofs_cpu_throttled_seconds_total",
            "Time that control groups were throttled.",
            cpu.throttled_us,
        ),
        (
            "ferrofs_cpu_stalled_seconds_total",
            "Time that tasks of the group, or of the system, waited for a CPU.",
            cpu.stalled_us,
        ),
    ];
    for (name, help, microseconds) in of_time {
        if let Some(microseconds) = known(microseconds) {
            page.family(name, MetricType::Counter, help);
            page.sample("", &[], seconds(microseconds.saturating_mul(1000)));
        }
    }
}

fn workers(page: &mut MetricsPage, stats: &MountStats) {
    let totals = &stats.summary.workers;
    for (name, help, number) in [
        ("ferrofs_workers_items_total", "Items that workers ran.", totals.items),
        ("ferrofs_workers_inline_total", "Items that their submitter ran.", totals.inline),
        ("ferrofs_workers_fallback_total", "Items that had no worker.", totals.fallback),
        ("ferrofs_workers_full_total", "Items that found a full queue.", totals.full),
        ("ferrofs_workers_panics_total", "Items that panicked.", totals.panics),
        ("ferrofs_workers_refused_threads_total", "Threads refused.", totals.refused_threads),
    ] {
        page.counter(name, help, number);
    }
    page.family(
        "ferrofs_queue_wait_seconds",
        MetricType::Summary,
        "Time from submission to start.",
    );
    page.times(&[], &totals.wait);
    // One series for each CPU, even if the response lists a CPU twice.
    let by_cpu = stats.workers.iter().filter_map(|worker| Some((known(worker.cpu)?, worker)));
    let by_cpu: BTreeMap<_, _> = by_cpu.collect();
    let label = |cpu: &u64| ("cpu", cpu.to_string());
    page.family(
        "ferrofs_worker_items_total",
        MetricType::Counter,
        "Items that the worker of a CPU ran.",
    );
    for (cpu, worker) in &by_cpu {
        page.sample("", &[label(cpu)], float(worker.items));
    }
    page.family(
        "ferrofs_worker_serving",
        MetricType::Gauge,
        "Whether the worker takes items, and its priority.",
    );
    for (cpu, worker) in &by_cpu {
        let priority = worker.priority_name().unwrap_or("unknown").to_owned();
        let is_serving = u64::from(worker.is_serving != 0);
        page.sample("", &[label(cpu), ("priority", priority)], float(is_serving));
    }
    page.family(
        "ferrofs_worker_wait_seconds",
        MetricType::Summary,
        "Time from submission to start, by CPU.",
    );
    for (cpu, worker) in &by_cpu {
        page.times(&[label(cpu)], &worker.wait);
    }
}

fn remote(page: &mut MetricsPage, summary: &StatsSummary) {
    let remote = &summary.remote;
    for (name, help, number) in super::remote::counters(remote) {
        page.counter(name, help, number);
    }
    if remote.is_remote == 0 {
        return;
    }
    let help = "Time that readers waited for the fetcher.";
    page.family("ferrofs_remote_wait_seconds_total", MetricType::Counter, help);
    page.sample("", &[], seconds(remote.waited_ns));
    let help = "Whether the fetcher can be reached.";
    page.gauge("ferrofs_fetcher_connected", help, remote.is_connected);
    if remote.is_connected != 0 {
        page.gauge("ferrofs_fetcher_in_flight", "Requests in flight.", remote.in_flight);
        let help = "Sum of the times to the first byte of an answer.";
        page.family("ferrofs_fetcher_latency_seconds_total", MetricType::Counter, help);
        page.sample("", &[], seconds(remote.latency_us.saturating_mul(1000)));
    }
}

fn log_events(page: &mut MetricsPage, summary: &StatsSummary) {
    let events = &summary.log_events;
    page.family("ferrofs_log_events_total", MetricType::Counter, "Events in the log, by kind.");
    for (kind, number) in [
        ("failed", events.failed),
        ("timed_out", events.timed_out),
        ("interrupted", events.interrupted),
        ("spare_listener", events.spares),
        ("panicked", events.panicked),
        ("malformed", events.malformed),
        ("device_failed", events.device_failed),
        ("other", events.other),
    ] {
        page.sample("", &[("kind", kind.to_owned())], float(number));
    }
}

impl MetricsPage {
    fn gauge_seconds(&mut self, name: &'static str, help: &str, nanoseconds: u64) {
        self.family(name, MetricType::Gauge, help);
        self.sample("", &[], seconds(nanoseconds));
    }
}

/// A label's value with the escapes of the format. Other control characters are replaced to protect
/// a terminal.
fn value(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' => escaped.push_str("\\\\"),
            '"' => escaped.push_str("\\\""),
            '\n' => escaped.push_str("\\n"),
            other if other.is_control() => escaped.push(char::REPLACEMENT_CHARACTER),
            other => escaped.push(other),
        }
    }
    escaped
}

#[allow(clippy::cast_precision_loss, reason = "the format has only floating-point numbers")]
fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {

    use std::collections::BTreeSet;

    use ferrofs_mount::stats::WorkerRecord;

    use super::*;

    fn stats() -> MountStats {
        let mut summary = StatsSummary { uptime_ns: 1_500_000_000, ..StatsSummary::default() };
        summary.operations[OperationKind::Read.index()].time = LatencyQuantiles {
            count: 3,
            sum_ns: 30_000,
            p50_ns: 9000,
            ..LatencyQuantiles::default()
        };
        summary.operations[OperationKind::Read.index()].bytes = 4096;
        summary.cpu.throttled = u64::MAX;
        (summary.remote.is_remote, summary.remote.is_connected) = (1, 1);
        let worker =
            |cpu| WorkerRecord { cpu, priority_level: 2, is_serving: 1, ..WorkerRecord::default() };
        let workers = vec![worker(0), worker(5), worker(5), worker(u64::MAX)];
        MountStats { mount: None, release: "1.0\"\n\x1b".to_owned(), summary, workers }
    }

    /// `name{key="value",...} number`: the name, the labels as they stand, the number.
    fn sample(line: &str) -> Option<(&str, &str, f64)> {
        let (name, rest) = line.split_once('{')?;
        let (labels, number) = rest.rsplit_once("} ")?;
        let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        Some((name, labels, number.parse().ok()?)).filter(|_| is_name)
    }

    #[test]
    fn every_sample_belongs_to_the_family_before_it_and_stands_once() {
        let text = exposition(&stats(), Path::new("/mnt"));
        let (mut family, mut families, mut seen) =
            (String::new(), BTreeSet::new(), BTreeSet::new());
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, explained) = help.split_once(' ').unwrap();
                let of_type = lines.next().unwrap().strip_prefix("# TYPE ").unwrap();
                let (same, form) = of_type.split_once(' ').unwrap();
                assert_eq!(name, same);
                assert!(name.starts_with("ferrofs_") && explained.ends_with('.'), "{line}");
                assert!(["counter", "gauge", "summary"].contains(&form), "{form}");
                assert_eq!(form == "counter", name.ends_with("_total"), "{name}");
                assert!(families.insert(name.to_owned()), "{name} comes twice");
                family = name.to_owned();
            } else {
                let (name, labels, _) = sample(line).unwrap_or_else(|| panic!("{line}"));
                let suffix = name.strip_prefix(&family).unwrap_or_else(|| panic!("{line}"));
                assert!(["", "_sum", "_count"].contains(&suffix), "{line}");
                assert!(labels.starts_with("mount=\"/mnt\""), "{line}");
                assert!(seen.insert((name, labels)), "{line} comes twice");
            }
        }
        assert!(text.ends_with('\n') && families.len() > 40);
    }

    #[test]
    fn several_mounts_share_families() {
        let mut other = stats();
        other.summary.cpu.throttled = 3;
        let page = |stats: &MountStats, name: &str| exposition(stats, Path::new(name));
        let pages = [page(&stats(), "/a"), page(&other, "/b")];
        let text = joined(&pages);
        let help = "# HELP ferrofs_uptime_seconds ";
        assert_eq!(text.matches(help).count(), 1);
        let samples =
            "ferrofs_uptime_seconds{mount=\"/a\"} 1.5\nferrofs_uptime_seconds{mount=\"/b\"} 1.5\n";
        assert!(text.contains(samples), "{text}");
        // A family that only one of them has.
        assert!(text.contains("# TYPE ferrofs_cpu_throttled_total counter\nferrofs_cpu_throttled_total{mount=\"/b\"} 3\n"));
        let samples = |text: &str| text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(samples(&text), samples(&pages[0]) + samples(&pages[1]));
        assert_eq!(joined(&[]), "");
    }

    #[test]
    fn numbers_are_in_base_units() {
        let text = exposition(&stats(), Path::new("/mnt"));
        for line in [
            "ferrofs_uptime_seconds{mount=\"/mnt\"} 1.5",
            "ferrofs_operation_duration_seconds{mount=\"/mnt\",operation=\"read\",quantile=\"0.5\"} 0.000009",
            "ferrofs_operation_duration_seconds_sum{mount=\"/mnt\",operation=\"read\"} 0.00003",
            "ferrofs_operation_duration_seconds_count{mount=\"/mnt\",operation=\"read\"} 3",
            "ferrofs_operation_bytes_total{mount=\"/mnt\",operation=\"read\"} 4096",
            "ferrofs_worker_serving{mount=\"/mnt\",cpu=\"5\",priority=\"nice -19\"} 1",
            "ferrofs_operation_duration_seconds{mount=\"/mnt\",operation=\"lookup\",quantile=\"0.5\"} NaN",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn what_the_system_does_not_say_is_left_out() {
        let text = exposition(&stats(), Path::new("/mnt"));
        assert!(!text.contains("ferrofs_cpu_throttled_total"), "{text}");
        assert!(text.contains("ferrofs_cpu_throttled_seconds_total"), "{text}");
    }

    #[test]
    fn names_cannot_leave_their_label() {
        let text = exposition(&stats(), Path::new("/a\"} 1\nb\\"));
        assert!(text.contains(r#"mount="/a\"} 1\nb\\""#), "{text}");
        assert!(text.contains("release=\"1.0\\\"\\n\u{fffd}\""), "{text}");
    }
}
