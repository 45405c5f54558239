//! `ferrofs extract`: the library extracts; here its options are chosen and its events told.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use ferrofs_extract::{
    ExistingFiles, ExtractEvent, ExtractOptions, ExtractSummary, OwnerPolicy, Selection,
    SkippedMetadata, extract, measure,
};
use ferrofs_image::Image;
use ferrofs_workers::workqueue::WorkQueueStats as Queue;
use serde::Serialize;

use crate::amount::{counted, human_bytes};
use crate::arguments::ExtractArguments;
use crate::diagnostics::{self, DiagnosticList, JsonDiagnostic};
use crate::exit_status::CommandStatus;
use crate::output::{self, JsonBytes, Output, escape};
use crate::progress::{ProgressDisplay, WorkAmount};
use crate::read_stats::{self, StatsReport};
use crate::resources::Resources;
use crate::source;

#[derive(Serialize)]
struct ExtractReport {
    image: JsonBytes,
    destination: JsonBytes,
    entries: u64,
    files: u64,
    directories: u64,
    symlinks: u64,
    special: u64,
    hard_links: u64,
    bytes: u64,
    hole_bytes: u64,
    seconds: f64,
    failures: u64,
    withheld: WithheldReport,
    #[serde(flatten)]
    problems: DiagnosticList,
    #[serde(skip_serializing_if = "Option::is_none")]
    stats: Option<StatsReport>,
}

#[derive(Serialize)]
struct WithheldReport {
    owners: u64,
    set_id_bits: u64,
    special: u64,
    xattrs_denied: u64,
    xattrs_unsupported: u64,
    times: u64,
    copied_links: u64,
}

/// Extracts.
pub(crate) fn run(arguments: &ExtractArguments) -> anyhow::Result<CommandStatus> {
    let paths = arguments.paths.iter().map(|path| path.as_bytes());
    let selection = match Selection::new(paths) {
        Ok(selection) => selection,
        Err(error) => {
            output::print_path_message(error.path(), error.kind());
            return Ok(CommandStatus::UsageError);
        }
    };
    let resources = Resources::of(&arguments.work)?;
    let image = source::open_for_work(&arguments.image, &arguments.read, &resources)?;
    let options = ExtractOptions::new()
        .existing(existing(arguments))
        .owners(owners(arguments))
        .selection(selection)
        .source_directory(arguments.part.from.clone())
        .umask(arguments.part.masked_permissions)
        .skip_xattrs(arguments.part.omits_xattrs)
        .max_threads(Some(resources.threads));
    let mut problems = DiagnosticList::default();
    let started = Instant::now();
    let (summary, queue) = extract_all(arguments, &image, &options, &mut problems)?;
    if !arguments.read.quiet {
        print_withheld(&summary.skipped);
    }
    let stats = resources.stats(&image, queue.as_deref());
    let report =
        ExtractReport { stats, ..report(arguments, &summary, problems, started.elapsed()) };
    conclude(arguments, &report)?;
    read_stats::print_stats(report.stats.as_ref().filter(|_| !arguments.json));
    Ok(CommandStatus::from_failures(summary.failures))
}

/// Extracts and names each problem.
fn extract_all(
    arguments: &ExtractArguments,
    image: &Image,
    options: &ExtractOptions,
    problems: &mut DiagnosticList,
) -> anyhow::Result<(ExtractSummary, Option<Box<Queue>>)> {
    let total = || measure(image, &options.selection).into();
    let mut progress = ProgressDisplay::new(arguments.progress.progress, "extract", total);
    let (mut done, mut queue) = (WorkAmount::default(), None);
    let result = extract(image, arguments.directory(), options, &mut |event| match event {
        ExtractEvent::Progress(now) => {
            done = now.into();
            progress.update(done);
        }
        ExtractEvent::Failed(error) => {
            let suggestion = diagnostics::for_extract_error(&error);
            progress.print_path_message(
                &place(arguments, &error),
                format_args!("{}{suggestion}", error.reason()),
            );
            problems.add(json_diagnostic(&error));
        }
        ExtractEvent::Queue(snapshot) => queue = Some(snapshot),
        _ => {}
    });
    progress.finish(done);
    result.map(|summary| (summary, queue)).map_err(|error| {
        let suggestion = diagnostics::for_extract_error(&error);
        anyhow!("{}: {}{suggestion}", escape(&place(arguments, &error)), error.reason())
    })
}

/// The path to name with an error: in the image, or the image itself.
fn place(arguments: &ExtractArguments, error: &ferrofs_extract::Error) -> Vec<u8> {
    match error.path() {
        [] => arguments.image.as_os_str().as_bytes().to_vec(),
        path if path.starts_with(b"/")
            && !path.starts_with(arguments.directory().as_os_str().as_bytes()) =>
        {
            [&arguments.part.from, path].concat()
        }
        path => path.to_vec(),
    }
}

fn existing(arguments: &ExtractArguments) -> ExistingFiles {
    match (arguments.overwrite, arguments.part.keeps_existing) {
        (true, _) => ExistingFiles::Replace,
        (_, true) => ExistingFiles::Keep,
        _ => ExistingFiles::Refuse,
    }
}

fn owners(arguments: &ExtractArguments) -> OwnerPolicy {
    match (arguments.preserve_owner, arguments.no_preserve_owner) {
        (true, _) => OwnerPolicy::Image,
        (_, true) => OwnerPolicy::Caller,
        _ => OwnerPolicy::IfRoot,
    }
}

pub(crate) fn json_diagnostic(error: &ferrofs_extract::Error) -> JsonDiagnostic {
    JsonDiagnostic::new(error.path(), &error.reason()).at(error.nid(), error.offset())
}

/// Says once for each kind of thing that it was left out.
pub(crate) fn print_withheld(withheld: &SkippedMetadata) {
    let say = |count, one, many, why: &str| {
        if count > 0 {
            output::print_message(format_args!("{} {why}", counted(count, one, many)));
        }
    };
    let entry = ("entry", "entries");
    say(withheld.owners, entry.0, entry.1, "not given to their owners: that needs root");
    say(withheld.set_id_bits, "file", "files", "without set-id bits, as their owner is not kept");
    say(withheld.special, "special file", "special files", "left out: that needs root");
    let xattr = ("extended attribute", "extended attributes");
    say(withheld.xattrs_denied, xattr.0, xattr.1, "left out: not permitted here");
    say(withheld.xattrs_unsupported, xattr.0, xattr.1, "left out: DEST does not take them");
    say(withheld.times, entry.0, entry.1, "with the nearest time that DEST can hold");
    say(withheld.copied_links, "hard link", "hard links", "became copies");
}

fn conclude(arguments: &ExtractArguments, report: &ExtractReport) -> anyhow::Result<()> {
    let mut output = Output::new();
    if arguments.json {
        output.json(report)?;
    } else if !arguments.read.quiet {
        let entries = counted(report.entries, "entry", "entries");
        let (bytes, seconds) = (human_bytes(report.bytes), report.seconds);
        write!(output, "extracted {entries}, {bytes} in {seconds:.2} s")?;
        if report.failures > 0 {
            write!(output, "; {}", counted(report.failures, "failure", "failures"))?;
        }
        writeln!(output)?;
    }
    output.flush()?;
    Ok(())
}

fn report(
    arguments: &ExtractArguments,
    summary: &ExtractSummary,
    problems: DiagnosticList,
    time: Duration,
) -> ExtractReport {
    ExtractReport {
        image: arguments.image.as_os_str().as_bytes().into(),
        destination: arguments.directory().as_os_str().as_bytes().into(),
        entries: summary.entries(),
        files: summary.files,
        directories: summary.directories,
        symlinks: summary.symlinks,
        special: summary.special,
        hard_links: summary.hard_links,
        bytes: summary.bytes,
        hole_bytes: summary.hole_bytes,
        seconds: time.as_secs_f64(),
        failures: summary.failures,
        withheld: (&summary.skipped).into(),
        problems,
        stats: None,
    }
}

impl From<&SkippedMetadata> for WithheldReport {
    fn from(withheld: &SkippedMetadata) -> Self {
        Self {
            owners: withheld.owners,
            set_id_bits: withheld.set_id_bits,
            special: withheld.special,
            xattrs_denied: withheld.xattrs_denied,
            xattrs_unsupported: withheld.xattrs_unsupported,
            times: withheld.times,
            copied_links: withheld.copied_links,
        }
    }
}
