//! `ferrofs cache`: what the cache of remote images has. Lists and compares by itself; the fetcher,
//! which is the only writer, removes.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use ferrofs_remote::FetchClient;
use ferrofs_remote::cache::{CacheDirectory, CacheEntry, ChunkRead};
use ferrofs_remote::protocol::{FETCH_RANGES_MAX, PruneReport, PruneRequest, chunk_ranges};
use serde::Serialize;

use crate::amount::{counted, human_bytes, long_time};
use crate::arguments::cache::CacheAction;
use crate::arguments::{CacheArguments, ConnectionArguments};
use crate::exit_status::{CommandStatus, usage_error};
use crate::output::{self, Output};
use crate::remote;
use crate::signals::ExitOnSignals;

/// How long the fetcher may take: it removes many large files.
const PRUNE_TIMEOUT: Duration = Duration::from_secs(600);

#[derive(Debug, Serialize)]
struct JsonEntry {
    name: String,
    key: String,
    length: u64,
    disk_bytes: u64,
    unused_s: u64,
}

#[derive(Debug, Serialize)]
struct JsonPrune {
    images: u64,
    chunks: u64,
    freed_bytes: u64,
    disk_bytes: u64,
}

/// What `verify` has found.
#[derive(Debug, Default, Serialize)]
struct VerifyCounts {
    images: u64,
    chunks: u64,
    damaged_chunks: u64,
    /// Images whose index is damaged, so that nothing of them can be used.
    damaged_images: u64,
}

/// Does what the arguments say.
///
/// # Errors
/// The cache cannot be opened or listed, the fetcher not be reached, or standard output not be
/// written.
pub(crate) fn run(
    arguments: &CacheArguments,
    _signals: &ExitOnSignals,
) -> anyhow::Result<CommandStatus> {
    let is_prune = arguments.action == CacheAction::Prune;
    if !is_prune && (arguments.to.is_some() || arguments.older_than.is_some()) {
        return Err(usage_error("--to and --older-than are for `cache prune`"));
    }
    let connection =
        ConnectionArguments { cache: arguments.cache.clone(), ..ConnectionArguments::default() };
    match arguments.action {
        CacheAction::List => list(arguments, &remote::open_cache(&connection)?),
        CacheAction::Prune => prune(arguments, &remote::connect_to_change(&connection)?),
        CacheAction::Verify => {
            let cache = remote::open_cache(&connection)?;
            verify(arguments, &cache, || remote::connect_to_change(&connection))
        }
    }
}

/// All objects, what was used last first.
fn entries(cache: &CacheDirectory) -> anyhow::Result<Vec<CacheEntry>> {
    let mut entries = cache.list().context("the cache")?;
    entries.sort_by(|one, other| other.last_used.cmp(&one.last_used).then(one.key.cmp(&other.key)));
    Ok(entries)
}

fn list(arguments: &CacheArguments, cache: &CacheDirectory) -> anyhow::Result<CommandStatus> {
    let entries = entries(cache)?;
    let status = CommandStatus::Success.after_output(print_entries(arguments, &entries))?;
    if !arguments.json && !arguments.quiet {
        let bytes = entries.iter().map(|entry| entry.used_bytes).sum();
        let count = counted(entries.len() as u64, "image", "images");
        output::print_message(format_args!("{count}, {} on the disk", human_bytes(bytes)));
    }
    Ok(status)
}

fn print_entries(arguments: &CacheArguments, entries: &[CacheEntry]) -> io::Result<()> {
    let mut output = Output::new();
    if !arguments.json && !entries.is_empty() {
        writeln!(output, "{:>10} {:>10} {:>14}  IMAGE", "SIZE", "ON DISK", "UNUSED FOR")?;
    }
    for entry in entries {
        let unused = SystemTime::now().duration_since(entry.last_used).unwrap_or_default();
        if arguments.json {
            output.json(&JsonEntry {
                name: entry.name.clone(),
                key: entry.key_text(),
                length: entry.length,
                disk_bytes: entry.used_bytes,
                unused_s: unused.as_secs(),
            })?;
            continue;
        }
        let (length, used) = (human_bytes(entry.length), human_bytes(entry.used_bytes));
        write!(output, "{length:>10} {used:>10} {:>14}  ", long_time(unused))?;
        output.name(display_name(entry).as_bytes())?;
        writeln!(output)?;
    }
    output.flush()
}

/// The name of an object; its key if it has none.
fn display_name(entry: &CacheEntry) -> String {
    if entry.name.is_empty() { entry.key_text() } else { entry.name.clone() }
}

fn prune(arguments: &CacheArguments, client: &FetchClient) -> anyhow::Result<CommandStatus> {
    let what = match (arguments.to, arguments.older_than) {
        (Some(bytes), _) => PruneRequest::DownTo(bytes),
        (None, Some(seconds)) => PruneRequest::OlderThan(seconds),
        (None, None) => PruneRequest::Unused,
    };
    let PruneReport { objects, chunks, freed_bytes, used_bytes } =
        client.prune(what, PRUNE_TIMEOUT).context("the cache")?;
    let mut written = Ok(());
    if arguments.json {
        let mut output = Output::new();
        let (images, disk_bytes) = (objects, used_bytes);
        written = output
            .json(&JsonPrune { images, chunks, freed_bytes, disk_bytes })
            .and_then(|()| output.flush());
    } else if !arguments.quiet {
        output::print_message(format_args!(
            "removed {} and {} of other images: {} freed, {} left",
            counted(objects, "image", "images"),
            counted(chunks, "chunk", "chunks"),
            human_bytes(freed_bytes),
            human_bytes(used_bytes)
        ));
    }
    CommandStatus::Success.after_output(written)
}

fn verify(
    arguments: &CacheArguments,
    cache: &CacheDirectory,
    connect: impl Fn() -> anyhow::Result<FetchClient>,
) -> anyhow::Result<CommandStatus> {
    let mut counts = VerifyCounts::default();
    let mut client = None;
    for entry in entries(cache)? {
        let damaged = match damaged_chunks(cache, &entry, &mut counts) {
            Ok(damaged) if damaged.is_empty() => continue,
            Ok(damaged) => {
                counts.damaged_chunks += damaged.len() as u64;
                damaged
            }
            // It was evicted meanwhile, or its removal was interrupted.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                counts.damaged_images += 1;
                Vec::new()
            }
            Err(error) => return Err(error).context(display_name(&entry)),
        };
        let client = match &client {
            Some(client) => client,
            None => client.insert(connect()?),
        };
        let is_whole = damaged.is_empty();
        let removed = discard(client, &entry, damaged)?;
        let diagnostic = match (is_whole, removed.objects) {
            (true, 0) => "its index is damaged, but it is in use and was not removed".to_owned(),
            (true, _) => "its index is damaged; the whole image was removed".to_owned(),
            (false, _) => {
                let chunks = counted(removed.chunks, "damaged chunk was", "damaged chunks were");
                format!("{chunks} removed")
            }
        };
        output::print_path_message(display_name(&entry).as_bytes(), diagnostic);
    }
    let mut written = Ok(());
    if arguments.json {
        let mut output = Output::new();
        written = output.json(&counts).and_then(|()| output.flush());
    } else if !arguments.quiet {
        output::print_message(format_args!(
            "{} with {} compared, {} damaged",
            counted(counts.images, "image", "images"),
            counted(counts.chunks, "chunk", "chunks"),
            counts.damaged_chunks + counts.damaged_images
        ));
    }
    let status = CommandStatus::from_failures(counts.damaged_chunks + counts.damaged_images);
    status.after_output(written)
}

fn damaged_chunks(
    cache: &CacheDirectory,
    entry: &CacheEntry,
    counts: &mut VerifyCounts,
) -> io::Result<Vec<u32>> {
    let object = cache.open_object(&entry.key)?;
    counts.images += 1;
    let mut damaged = Vec::new();
    for number in 0..object.layout().count() {
        match object.check(number)? {
            ChunkRead::Absent => continue,
            ChunkRead::Served => {}
            ChunkRead::Damaged => damaged.push(number),
        }
        counts.chunks += 1;
    }
    Ok(damaged)
}

/// Has the fetcher remove chunks, or all of an object if there are none.
fn discard(
    client: &FetchClient,
    entry: &CacheEntry,
    damaged: Vec<u32>,
) -> anyhow::Result<PruneReport> {
    let key = entry.key_text();
    let ranges = chunk_ranges(damaged);
    if ranges.is_empty() {
        return client.discard(&key, &[], PRUNE_TIMEOUT).with_context(|| display_name(entry));
    }
    let mut removed = PruneReport::default();
    for some in ranges.chunks(FETCH_RANGES_MAX) {
        let report =
            client.discard(&key, some, PRUNE_TIMEOUT).with_context(|| display_name(entry))?;
        removed.chunks += report.chunks;
    }
    Ok(removed)
}
