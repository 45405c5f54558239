//! The numbers of a remote image, in the three forms of `ferrofs stats` and for `--explain`. They are
//! left out for a local image.

use std::fmt::{self, Write as _};

use ferrofs_mount::stats::RemoteRecord;
use serde::Serialize;

use super::seconds;
use crate::amount::{grouped, human_bytes};

/// As JSON.
#[derive(Debug, Serialize)]
pub(super) struct JsonRemote {
    fetches: u64,
    repeated: u64,
    fetched_bytes: u64,
    hits: u64,
    waited_us: u64,
    longest_wait_us: u64,
    reconnects: u64,
    /// `null` if it cannot be reached.
    fetcher: Option<JsonFetcher>,
}

/// The process that fetches, for all its images.
#[derive(Debug, Serialize)]
struct JsonFetcher {
    requests: u64,
    retries: u64,
    in_flight: u64,
    token_requests: u64,
    mirror_requests: u64,
    received_bytes: u64,
    requested_bytes: u64,
    wasted_bytes: u64,
    verified_bytes: u64,
    cache_hits: u64,
    latency_us: u64,
}

impl JsonRemote {
    /// `None` for a local image.
    pub(super) fn new(record: &RemoteRecord) -> Option<Self> {
        let fetcher = (record.is_connected != 0).then_some(JsonFetcher {
            requests: record.requests,
            retries: record.retries,
            in_flight: record.in_flight,
            token_requests: record.token_requests,
            mirror_requests: record.mirror_requests,
            received_bytes: record.received_bytes,
            requested_bytes: record.requested_bytes,
            wasted_bytes: record.wasted_bytes,
            verified_bytes: record.verified_bytes,
            cache_hits: record.cache_hits,
            latency_us: record.latency_us,
        });
        (record.is_remote != 0).then_some(Self {
            fetches: record.fetches,
            repeated: record.repeated,
            fetched_bytes: record.fetched_bytes,
            hits: record.hits,
            waited_us: record.waited_ns / 1000,
            longest_wait_us: record.longest_ns / 1000,
            reconnects: record.reconnects,
            fetcher,
        })
    }
}

/// As lines of text.
pub(super) fn text(f: &mut fmt::Formatter<'_>, record: &RemoteRecord) -> fmt::Result {
    if record.is_remote == 0 {
        return Ok(());
    }
    writeln!(
        f,
        "remote    {} fetches of {}, {} repeated; {} reads needed none; waited {:.3} s, {:.3} s at \
         most; {} reconnects",
        grouped(record.fetches),
        human_bytes(record.fetched_bytes),
        grouped(record.repeated),
        grouped(record.hits),
        seconds(record.waited_ns),
        seconds(record.longest_ns),
        grouped(record.reconnects)
    )?;
    if record.is_connected == 0 {
        return writeln!(f, "fetcher   not connected; what is cached is served");
    }
    writeln!(
        f,
        "fetcher   {} requests, {} retries, {} in flight, {} tokens, {} answers of mirrors; {} ms on \
         average to the first byte",
        grouped(record.requests),
        grouped(record.retries),
        grouped(record.in_flight),
        grouped(record.token_requests),
        grouped(record.mirror_requests),
        record.latency_us.checked_div(record.requests).unwrap_or(0) / 1000
    )?;
    writeln!(
        f,
        "  bytes   {} requested, {} received, {} wasted, {} verified; {} chunks were cached",
        human_bytes(record.requested_bytes),
        human_bytes(record.received_bytes),
        human_bytes(record.wasted_bytes),
        human_bytes(record.verified_bytes),
        grouped(record.cache_hits)
    )
}

/// Name, help and value of each counter for Prometheus; whole numbers.
pub(super) fn counters(record: &RemoteRecord) -> Vec<(&'static str, &'static str, u64)> {
    if record.is_remote == 0 {
        return Vec::new();
    }
    let mut all = vec![
        ("ferrofs_remote_fetches_total", "Fetches that readers waited for.", record.fetches),
        ("ferrofs_remote_repeated_total", "Fetches that were repeated.", record.repeated),
        (
            "ferrofs_remote_fetched_bytes_total",
            "Bytes that readers waited for.",
            record.fetched_bytes,
        ),
        ("ferrofs_remote_hits_total", "Reads that needed no fetch.", record.hits),
        (
            "ferrofs_remote_reconnects_total",
            "How often the fetcher was reached again.",
            record.reconnects,
        ),
    ];
    if record.is_connected == 0 {
        return all;
    }
    all.extend([
        ("ferrofs_fetcher_requests_total", "Requests sent to servers.", record.requests),
        ("ferrofs_fetcher_retries_total", "Requests that were repeated.", record.retries),
        ("ferrofs_fetcher_tokens_total", "Tokens requested of registries.", record.token_requests),
        (
            "ferrofs_fetcher_mirror_requests_total",
            "Requests that mirrors have answered.",
            record.mirror_requests,
        ),
        ("ferrofs_fetcher_received_bytes_total", "Bytes that servers sent.", record.received_bytes),
        (
            "ferrofs_fetcher_requested_bytes_total",
            "Bytes that were missing.",
            record.requested_bytes,
        ),
        ("ferrofs_fetcher_wasted_bytes_total", "Bytes that were not stored.", record.wasted_bytes),
        (
            "ferrofs_fetcher_verified_bytes_total",
            "Bytes compared with a digest.",
            record.verified_bytes,
        ),
        (
            "ferrofs_fetcher_cache_hits_total",
            "Chunks that were in the cache already.",
            record.cache_hits,
        ),
    ]);
    all
}

/// One line for `--explain`.
pub(crate) fn fetcher_line(record: &ferrofs_image::RemoteStats) -> String {
    let mut line = String::new();
    // Writing to a String cannot fail.
    match &record.fetcher {
        None => line.push_str("not connected"),
        Some(fetcher) => write!(
            line,
            "connected; {} requests, {} retries, {} received, {} wasted, {} verified",
            grouped(fetcher.requests),
            grouped(fetcher.retries),
            human_bytes(fetcher.received_bytes),
            human_bytes(fetcher.wasted_bytes),
            human_bytes(fetcher.verified_bytes)
        )
        .unwrap_or_default(),
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Text(RemoteRecord);

    impl fmt::Display for Text {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            text(f, &self.0)
        }
    }

    #[test]
    fn a_local_image_has_no_such_numbers() {
        let record = RemoteRecord::default();
        assert!(JsonRemote::new(&record).is_none() && counters(&record).is_empty());
        assert_eq!(Text(record).to_string(), "");
    }

    #[test]
    fn without_a_fetcher_only_the_numbers_of_the_mount_are_shown() {
        let mut record = RemoteRecord { is_remote: 1, fetches: 1200, ..RemoteRecord::default() };
        let text = Text(record).to_string();
        assert!(text.contains("1,200 fetches") && text.contains("not connected"), "{text}");
        assert!(JsonRemote::new(&record).unwrap().fetcher.is_none());
        let few = counters(&record).len();
        (record.is_connected, record.requests, record.latency_us) = (1, 4, 200_000);
        assert!(Text(record).to_string().contains("50 ms on average"), "{}", Text(record));
        assert!(counters(&record).len() > few);
    }
}
