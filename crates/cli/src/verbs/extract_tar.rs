//! `ferrofs extract --tar`: the library writes the tar; here it gets its options and a way out, and its
//! events are told.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use ferrofs_extract::{
    Error, ErrorKind, ExtractEvent, ExtractSummary, HolePolicy, Selection, WriteTarOptions,
    measure, write_tar,
};
use ferrofs_image::Image;
use serde::Serialize;

use super::extract::json_diagnostic;
use super::tar_output::{TarOutput, TarOutputError};
use crate::amount::{counted, human_bytes};
use crate::arguments::ExtractArguments;
use crate::diagnostics::{self, DiagnosticList};
use crate::exit_status::CommandStatus;
use crate::output::{self, JsonBytes, Output, escape};
use crate::progress::{ProgressDisplay, WorkAmount};
use crate::read_stats::{self, StatsReport};
use crate::resources::Resources;
use crate::source;

#[derive(Serialize)]
struct TarReport {
    image: JsonBytes,
    tar: JsonBytes,
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
    sockets_left_out: u64,
    #[serde(flatten)]
    problems: DiagnosticList,
    #[serde(skip_serializing_if = "Option::is_none")]
    stats: Option<StatsReport>,
}

/// Extracts into the tar `path`.
pub(crate) fn run(arguments: &ExtractArguments, path: &Path) -> anyhow::Result<CommandStatus> {
    // Without a directory, the first operand is what to extract.
    let first = arguments.destination.as_ref().map(|path| path.as_os_str());
    let operands = first.into_iter().chain(arguments.paths.iter().map(|path| path.as_os_str()));
    let selection = match Selection::new(operands.map(OsStrExt::as_bytes)) {
        Ok(selection) => selection,
        Err(error) => {
            output::print_path_message(error.path(), error.kind());
            return Ok(CommandStatus::UsageError);
        }
    };
    let resources = Resources::of(&arguments.work)?;
    let image = source::open_for_work(&arguments.image, &arguments.read, &resources)?;
    let mut file = match TarOutput::create(path, &arguments.image) {
        Ok(file) => file,
        Err(refusal) => {
            output::print_path_message(path.as_os_str().as_bytes(), &refusal);
            let is_misuse = !matches!(refusal, TarOutputError::Io(_));
            return Ok(if is_misuse { CommandStatus::UsageError } else { CommandStatus::Failure });
        }
    };
    let options = WriteTarOptions::new()
        .selection(selection)
        .holes(if arguments.no_sparse { HolePolicy::Zeros } else { HolePolicy::Sparse })
        .max_threads(Some(resources.threads.min(image.decode_slots())))
        .budget(image.memory().budget());
    let mut problems = DiagnosticList::default();
    let started = Instant::now();
    let summary = write_all(arguments, &image, (&mut file, path), &options, &mut problems)?;
    let is_stream = file.is_stream();
    file.finish().map_err(|error| {
        anyhow!("{}: cannot name the tar: {error}", escape(path.as_os_str().as_bytes()))
    })?;
    let sockets = summary.skipped.special;
    if sockets > 0 && !arguments.read.quiet {
        let sockets = counted(sockets, "socket", "sockets");
        output::print_message(format_args!("{sockets} left out: no tar can hold them"));
    }
    let stats = resources.stats(&image, None);
    let report =
        TarReport { stats, ..report(arguments, path, &summary, problems, started.elapsed()) };
    conclude(arguments, &report, is_stream)?;
    read_stats::print_stats(report.stats.as_ref().filter(|_| !arguments.json));
    Ok(CommandStatus::from_failures(summary.failures))
}

/// Writes the tar and names each problem.
fn write_all(
    arguments: &ExtractArguments,
    image: &Image,
    (file, path): (&mut TarOutput, &Path),
    options: &WriteTarOptions,
    problems: &mut DiagnosticList,
) -> anyhow::Result<ExtractSummary> {
    let total = || measure(image, &options.selection).into();
    let mut progress = ProgressDisplay::new(arguments.progress.progress, "extract", total);
    let mut done = WorkAmount::default();
    let image_path = arguments.image.as_os_str().as_bytes();
    let result = write_tar(image, file, options, &mut |event| match event {
        ExtractEvent::Progress(now) => {
            done = now.into();
            progress.update(done);
        }
        ExtractEvent::Failed(error) => {
            let suggestion = diagnostics::for_extract_error(&error);
            let path = if error.path().is_empty() { image_path } else { error.path() };
            progress.print_path_message(path, format_args!("{}{suggestion}", error.reason()));
            problems.add(json_diagnostic(&error));
        }
        _ => {}
    });
    progress.finish(done);
    // Its cause is in the text: a pipe without a reader is no success, as the tar is not complete.
    result.map_err(|error: Error| {
        let path = match error.kind() {
            ErrorKind::Output { .. } => path.as_os_str().as_bytes(),
            _ if error.path().is_empty() => image_path,
            _ => error.path(),
        };
        anyhow!("{}: {}{}", escape(path), error.reason(), diagnostics::for_extract_error(&error))
    })
}

/// Says what was done; on standard output only if the tar is elsewhere.
fn conclude(
    arguments: &ExtractArguments,
    report: &TarReport,
    is_stream: bool,
) -> anyhow::Result<()> {
    if is_stream {
        if arguments.json {
            output::print_line(serde_json::to_string(report)?);
        }
        return Ok(());
    }
    let mut output = Output::new();
    if arguments.json {
        output.json(report)?;
    } else if !arguments.read.quiet {
        let entries = counted(report.entries, "entry", "entries");
        let (bytes, seconds) = (human_bytes(report.bytes), report.seconds);
        write!(output, "wrote {entries}, {bytes} in {seconds:.2} s")?;
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
    path: &Path,
    summary: &ExtractSummary,
    problems: DiagnosticList,
    time: Duration,
) -> TarReport {
    TarReport {
        image: arguments.image.as_os_str().as_bytes().into(),
        tar: path.as_os_str().as_bytes().into(),
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
        sockets_left_out: summary.skipped.special,
        problems,
        stats: None,
    }
}
