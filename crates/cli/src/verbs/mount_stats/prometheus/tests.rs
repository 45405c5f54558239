//! The format, line by line, as its description has it.

use std::collections::BTreeSet;

use ferrofs_mount::stats::WorkerRecord;

use super::*;

fn stats() -> MountStats {
    let mut summary = StatsSummary { uptime_ns: 1_500_000_000, ..StatsSummary::default() };
    summary.operations[OperationKind::Read.index()].time =
        LatencyQuantiles { count: 3, sum_ns: 30_000, p50_ns: 9000, ..LatencyQuantiles::default() };
    summary.operations[OperationKind::Read.index()].bytes = 4096;
    summary.cpu.throttled = u64::MAX;
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
    let (mut family, mut families, mut seen) = (String::new(), BTreeSet::new(), BTreeSet::new());
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
