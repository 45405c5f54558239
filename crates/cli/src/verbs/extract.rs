//! `ferrofs extract`, and the extraction of fsck.erofs: into a directory or as a tar archive. The
//! library extracts; this file chooses its options, reports its events, and removes a tar archive
//! that is not complete.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use ferrofs_extract::{
    Error, ErrorKind, ExistingFiles, ExtractEvent, ExtractOptions, ExtractSummary, HolePolicy,
    OwnerPolicy, Selection, SkippedMetadata, WriteTarOptions, extract, measure, write_tar,
};
use ferrofs_image::Image;
use ferrofs_workers::workqueue::WorkQueueStats;
use serde::Serialize;

use super::metadata_files::{self, MetadataRequest, MetadataTargets};
use super::tar_output::{TarOutput, TarOutputError, TarTarget};
use crate::amount::{counted, human_bytes};
use crate::arguments::{
    ExtractArguments, ProgressStyle, ReadArguments, WorkArguments, WorkLimitArguments,
};
use crate::diagnostics::{self, DiagnosticList, JsonDiagnostic, MessageLimiter};
use crate::exit_status::{CommandStatus, usage_error};
use crate::output::{self, JsonBytes, Output, escape};
use crate::progress::{ProgressDisplay, WorkAmount};
use crate::read_stats::{self, StatsReport};
use crate::resources::Resources;
use crate::signals::{ExitOnSignals, SecondSignal, StopRequest};
use crate::source;
use crate::text_file::{InputFiles, check_apart};

/// What is to be extracted, where to, and how it is reported.
#[derive(Clone, Debug)]
pub(super) struct ExtractRequest {
    pub(super) image: PathBuf,
    pub(super) read: ReadArguments,
    pub(super) selected: SelectedParts,
    pub(super) target: ExtractTarget,
    /// Files that are written first.
    pub(super) metadata: MetadataRequest,
    pub(super) json: bool,
    pub(super) limit: WorkLimitArguments,
    pub(super) max_output: Option<u64>,
    pub(super) progress: ProgressStyle,
    pub(super) work: WorkArguments,
}

/// What of the image is to be extracted.
#[derive(Clone, Debug)]
pub(super) enum SelectedParts {
    /// Paths and patterns; none for everything.
    Patterns(Vec<OsString>),
    /// A path in which no character is special.
    Path(Vec<u8>),
}

impl SelectedParts {
    fn selection(&self) -> Selection {
        match self {
            Self::Patterns(patterns) => {
                Selection::new(patterns.iter().map(|pattern| pattern.as_bytes()))
            }
            Self::Path(path) => Selection::of_paths([path]),
        }
    }
}

impl Default for SelectedParts {
    fn default() -> Self {
        Self::Patterns(Vec::new())
    }
}

/// Where extracted entries go.
#[derive(Clone, Debug)]
pub(super) enum ExtractTarget {
    Directory {
        path: PathBuf,
        existing: ExistingFiles,
        owners: OwnerPolicy,
        /// The directory of the image that becomes `path`; empty for the root.
        source_directory: Vec<u8>,
        /// Permission bits that entries do not get.
        umask: u32,
        left_out: LeftOut,
    },
    /// A tar archive; `-` is standard output.
    Tar { path: PathBuf, holes: HolePolicy },
}

/// What is left out on request.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeftOut {
    pub(super) xattrs: bool,
    pub(super) set_id: bool,
    pub(super) devices: bool,
    /// The metadata of the directory itself.
    pub(super) of_target: bool,
}

impl ExtractTarget {
    fn path(&self) -> &Path {
        match self {
            Self::Directory { path, .. } | Self::Tar { path, .. } => path,
        }
    }
}

impl From<&ExtractArguments> for ExtractRequest {
    fn from(typed: &ExtractArguments) -> Self {
        let mut paths = typed.paths.clone();
        let target = match &typed.tar {
            Some(path) => {
                // Without a directory, the first operand is what to extract.
                let first = typed.destination.iter().map(|path| path.as_os_str().to_owned());
                paths.splice(0..0, first);
                let holes = if typed.no_sparse { HolePolicy::Zeros } else { HolePolicy::Sparse };
                ExtractTarget::Tar { path: path.clone(), holes }
            }
            None => ExtractTarget::Directory {
                // The parser demands one unless there is a tar.
                path: typed.destination.clone().unwrap_or_default(),
                existing: match typed.overwrite {
                    true => ExistingFiles::Replace,
                    false => ExistingFiles::Refuse,
                },
                owners: match (typed.preserve_owner, typed.no_preserve_owner) {
                    (true, _) => OwnerPolicy::Image,
                    (_, true) => OwnerPolicy::Caller,
                    _ => OwnerPolicy::IfRoot,
                },
                source_directory: Vec::new(),
                umask: 0,
                left_out: LeftOut {
                    xattrs: typed.no_xattrs,
                    set_id: typed.no_set_id,
                    devices: typed.no_devices,
                    of_target: false,
                },
            },
        };
        Self {
            image: typed.image.clone(),
            read: typed.read.clone(),
            selected: SelectedParts::Patterns(paths),
            target,
            metadata: typed.into(),
            json: typed.json,
            limit: typed.limit,
            max_output: typed.max_output,
            progress: typed.progress.progress,
            work: typed.work.clone(),
        }
    }
}

/// A summary in JSON; some members belong to a directory, and some to a tar archive.
#[derive(Serialize)]
struct ExtractReport {
    image: JsonBytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    destination: Option<JsonBytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tar: Option<JsonBytes>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped_metadata: Option<SkippedReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sockets_left_out: Option<u64>,
    #[serde(flatten)]
    problems: DiagnosticList,
    #[serde(skip_serializing_if = "Option::is_none")]
    stats: Option<StatsReport>,
}

#[derive(Serialize)]
struct SkippedReport {
    owners: u64,
    set_id_bits: u64,
    capabilities: u64,
    special: u64,
    xattrs_denied: u64,
    xattrs_unsupported: u64,
    times: u64,
    copied_links: u64,
}

/// Extracts.
///
/// # Errors
/// The image cannot be opened, the target cannot be used, or a signal arrived.
pub(super) fn run(
    request: &ExtractRequest,
    signals: ExitOnSignals,
) -> anyhow::Result<CommandStatus> {
    let opened = OpenedExtraction::new(request)?;
    opened.run(request, &signals.into_stop_request(SecondSignal::Ignored)?)
}

/// What an extraction needs before anything is created. While the image is opened, a signal still
/// ends the process at once.
pub(super) struct OpenedExtraction {
    selection: Selection,
    resources: Resources,
    image: Image,
    metadata: MetadataTargets,
    tar: Option<TarTarget>,
}

impl OpenedExtraction {
    /// Opens the image, and the places of files.
    ///
    /// # Errors
    /// The image cannot be opened, or a place not be used; one is that of an input or of another file.
    pub(super) fn new(request: &ExtractRequest) -> anyhow::Result<Self> {
        let selection = request.selected.selection();
        let resources = Resources::of(&request.work)?;
        let image = source::open_for_work(&request.image, &request.read, &resources)?;
        let inputs = InputFiles::new(&request.image, &request.read.devices);
        let metadata = MetadataTargets::open(&request.metadata, &inputs)?;
        let tar = match &request.target {
            ExtractTarget::Tar { path, .. } => {
                Some(TarTarget::open(path, &inputs).map_err(|refusal| tar_error(path, &refusal))?)
            }
            ExtractTarget::Directory { .. } => None,
        };
        check_places(&metadata, tar.as_ref())?;
        Ok(Self { selection, resources, image, metadata, tar })
    }

    /// Extracts.
    ///
    /// # Errors
    /// The target cannot be used, or a stop was requested.
    pub(super) fn run(
        self,
        request: &ExtractRequest,
        stop: &StopRequest,
    ) -> anyhow::Result<CommandStatus> {
        let Self { selection, resources, image, metadata, tar } = self;
        metadata_files::write(&image, &request.metadata, metadata, stop)?;
        if tar.as_ref().is_some_and(|tar| tar.name().is_none()) {
            // A pipe or a device may block, and nothing has to be removed.
            stop.exit_on_signals()?;
        }
        let started = Instant::now();
        let total = || measure(&image, &selection, stop.token()).into();
        let mut events = Events::new(request, stop, total);
        if let Err(stopped) = stop.check() {
            events.progress.finish(events.done);
            return Err(stopped.into());
        }
        let (summary, stdout_is_free) = match (&request.target, tar) {
            (ExtractTarget::Tar { path, holes }, Some(tar)) => {
                let inputs = InputFiles::new(&request.image, &request.read.devices);
                let file = tar.create(&inputs).map_err(|refusal| tar_error(path, &refusal))?;
                let is_stream = file.is_stream();
                let options = WriteTarOptions::new()
                    .selection(selection)
                    .holes(*holes)
                    .max_threads(Some(resources.threads.min(image.decode_slots())))
                    .budget(image.memory().budget())
                    .max_work(request.limit.max_work)
                    .max_output(request.max_output)
                    .cancel(stop.token());
                (write_archive(&image, file, &options, &mut events)?, !is_stream)
            }
            (target, _) => {
                let options = directory_options(target, selection, &resources, stop)
                    .max_work(request.limit.max_work)
                    .max_output(request.max_output);
                let result =
                    extract(&image, target.path(), &options, &mut |event| events.handle(event));
                (events.finish(result)?, true)
            }
        };
        report_skipped(request, &summary.skipped);
        let stats = read_stats::collect(&resources, &image, events.queue.as_deref());
        let report = report(request, &summary, events.problems, started.elapsed());
        let report = ExtractReport { stats, ..report };
        let written = print_report(request, &report, stdout_is_free);
        let status = CommandStatus::from_failures(summary.failures).after_output(written)?;
        read_stats::print_stats(report.stats.as_ref().filter(|_| !request.json));
        Ok(status)
    }
}

fn directory_options(
    target: &ExtractTarget,
    selection: Selection,
    resources: &Resources,
    stop: &StopRequest,
) -> ExtractOptions {
    let options = ExtractOptions::new()
        .selection(selection)
        .max_threads(Some(resources.threads))
        .cancel(stop.token());
    match target {
        ExtractTarget::Directory {
            existing, owners, source_directory, umask, left_out, ..
        } => options
            .existing(*existing)
            .owners(*owners)
            .source_directory(source_directory.clone())
            .umask(*umask)
            .skip_xattrs(left_out.xattrs)
            .skip_set_id(left_out.set_id)
            .skip_devices(left_out.devices)
            .skip_destination_metadata(left_out.of_target),
        ExtractTarget::Tar { .. } => options,
    }
}

/// Refuses files of which one would replace another one.
fn check_places(metadata: &MetadataTargets, tar: Option<&TarTarget>) -> anyhow::Result<()> {
    if let Some(TarTarget::Stdout(_)) = tar {
        let stdout = Path::new("/proc/self/fd/1");
        if let Some((what, target)) = metadata.named().find(|(_, target)| target.is_file(stdout)) {
            let name = escape(target.path().as_os_str().as_bytes());
            return Err(usage_error(format_args!(
                "{name}: {what} would replace the file of the tar archive; use another name"
            )));
        }
    }
    let tar = tar.and_then(TarTarget::name).map(|target| ("the tar archive", target));
    check_apart(&metadata.named().chain(tar).collect::<Vec<_>>())
}

fn tar_error(path: &Path, refusal: &TarOutputError) -> anyhow::Error {
    let text = format!("{}: {refusal}", escape(path.as_os_str().as_bytes()));
    match refusal {
        TarOutputError::Io(_) | TarOutputError::Target(_) => anyhow!(text),
        TarOutputError::Terminal | TarOutputError::Input(_) => usage_error(text),
    }
}

/// Writes the archive and gives it its name. If that fails, the file is removed.
fn write_archive(
    image: &Image,
    mut file: TarOutput,
    options: &WriteTarOptions,
    events: &mut Events<'_>,
) -> anyhow::Result<ExtractSummary> {
    let result = write_tar(image, &mut file, options, &mut |event| events.handle(event));
    let summary = events.finish(result)?;
    file.finish().map_err(|error| {
        let path = events.request.target.path().as_os_str().as_bytes();
        anyhow!("{}: {}", escape(path), error.kind())
    })?;
    Ok(summary)
}

/// What an extraction reports while it runs.
struct Events<'a> {
    request: &'a ExtractRequest,
    stop: &'a StopRequest,
    progress: ProgressDisplay,
    done: WorkAmount,
    queue: Option<Box<WorkQueueStats>>,
    problems: DiagnosticList,
    messages: MessageLimiter,
}

impl<'a> Events<'a> {
    fn new(
        request: &'a ExtractRequest,
        stop: &'a StopRequest,
        total: impl FnOnce() -> WorkAmount,
    ) -> Self {
        Self {
            request,
            stop,
            progress: ProgressDisplay::new(request.progress, "extract", total),
            done: WorkAmount::default(),
            queue: None,
            problems: DiagnosticList::default(),
            messages: MessageLimiter::default(),
        }
    }

    fn handle(&mut self, event: ExtractEvent) {
        match event {
            ExtractEvent::Progress(now) => {
                self.done = now.into();
                self.progress.update(self.done);
            }
            // An item that fails because the work was stopped is not a failure. All others are, also
            // then: a file that is left must be named.
            ExtractEvent::Failed(error) if matches!(error.kind(), ErrorKind::Cancelled) => {}
            ExtractEvent::Failed(error) => {
                let suggestion = diagnostics::for_extract_error(&error);
                let text = format_args!("{}{suggestion}", error.reason());
                if let Some(message) = self.messages.message(&self.path_of(&error), text) {
                    self.progress.print_message(message);
                }
                if self.request.json {
                    let diagnostic = JsonDiagnostic::new(error.path(), &error.reason());
                    self.problems.add(diagnostic.at(error.nid(), error.offset()));
                }
            }
            ExtractEvent::Leftover(path) if !self.request.read.quiet => {
                let path = escape(path.as_os_str().as_bytes());
                let text =
                    "belongs to another extraction into DEST, which is running or was killed";
                self.progress.print_message(format_args!("{path} {text}"));
            }
            ExtractEvent::Queue(stats) => self.queue = Some(stats),
            _ => {}
        }
    }

    /// Ends the progress display; an error of the library gets its path, and what to do about it.
    fn finish(&mut self, result: Result<ExtractSummary, Error>) -> anyhow::Result<ExtractSummary> {
        self.progress.finish(self.done);
        self.messages.print_rest();
        result.map_err(|error| match self.stop.check() {
            Err(stopped) => stopped.into(),
            // The error keeps only the text of its cause: the archive is not complete, so a pipe
            // without a reader must not count as success.
            Ok(()) => anyhow!(
                "{}: {}{}",
                escape(&self.path_of(&error)),
                error.reason(),
                diagnostics::for_extract_error(&error)
            ),
        })
    }

    /// The path to print with an error: in the image, or that of the image or the target itself.
    fn path_of(&self, error: &Error) -> Vec<u8> {
        let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
        match (&self.request.target, error.path()) {
            _ if error.is_about_destination() => error.path().to_vec(),
            (ExtractTarget::Tar { path, .. }, _)
                if matches!(error.kind(), ErrorKind::Output { .. }) =>
            {
                bytes(path)
            }
            (_, []) => bytes(&self.request.image),
            (ExtractTarget::Directory { source_directory, .. }, b"/")
                if !source_directory.is_empty() =>
            {
                source_directory.clone()
            }
            (ExtractTarget::Directory { source_directory, .. }, path) if path.starts_with(b"/") => {
                [source_directory, path].concat()
            }
            (_, path) => path.to_vec(),
        }
    }
}

/// Prints one line for each kind of entry or attribute that was left out.
fn report_skipped(request: &ExtractRequest, skipped: &SkippedMetadata) {
    if request.read.quiet {
        return;
    }
    let report = |count, one, many, why: &str| {
        if count > 0 {
            output::print_message(format_args!("{} {why}", counted(count, one, many)));
        }
    };
    let special = match &request.target {
        ExtractTarget::Tar { .. } => {
            report(skipped.special, "socket", "sockets", "left out: tar archives cannot hold them");
            return;
        }
        ExtractTarget::Directory { .. } => skipped.special,
    };
    report(
        skipped.owners,
        "entry",
        "entries",
        "did not get their owners: setting owners needs root",
    );
    let why = "got no set-id bits, because their owner is not preserved";
    report(skipped.set_id_bits, "file", "files", why);
    let why = "got no capabilities, because their owner is not preserved";
    report(skipped.capabilities, "file", "files", why);
    report(special, "special file", "special files", "left out: creating them needs root");
    let xattr = ("extended attribute", "extended attributes");
    report(skipped.xattrs_denied, xattr.0, xattr.1, "left out: permission denied");
    let why = "left out: the file system of DEST does not support them";
    report(skipped.xattrs_unsupported, xattr.0, xattr.1, why);
    let why = "got the nearest time that the file system of DEST can store";
    report(skipped.times, "entry", "entries", why);
    report(skipped.copied_links, "hard link", "hard links", "became copies");
}

/// Prints the summary; not on standard output if the archive is there.
fn print_report(
    request: &ExtractRequest,
    report: &ExtractReport,
    stdout_is_free: bool,
) -> anyhow::Result<()> {
    if !stdout_is_free {
        if request.json {
            output::print_line(output::json_text(report)?);
        }
        return Ok(());
    }
    let mut output = Output::new();
    if request.json {
        output.json(report)?;
    } else if !request.read.quiet {
        let entries = counted(report.entries, "entry", "entries");
        let (bytes, seconds) = (human_bytes(report.bytes), report.seconds);
        let verb = if report.tar.is_some() { "wrote" } else { "extracted" };
        write!(output, "{verb} {entries}, {bytes} in {seconds:.2} s")?;
        if report.failures > 0 {
            write!(output, "; {}", counted(report.failures, "failure", "failures"))?;
        }
        writeln!(output)?;
    }
    output.flush()?;
    Ok(())
}

fn report(
    request: &ExtractRequest,
    summary: &ExtractSummary,
    problems: DiagnosticList,
    time: Duration,
) -> ExtractReport {
    let is_tar = matches!(request.target, ExtractTarget::Tar { .. });
    let target = || JsonBytes::from(request.target.path().as_os_str().as_bytes());
    ExtractReport {
        image: request.image.as_os_str().as_bytes().into(),
        destination: (!is_tar).then(target),
        tar: is_tar.then(target),
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
        skipped_metadata: (!is_tar).then(|| (&summary.skipped).into()),
        sockets_left_out: is_tar.then_some(summary.skipped.special),
        problems,
        stats: None,
    }
}

impl From<&SkippedMetadata> for SkippedReport {
    fn from(skipped: &SkippedMetadata) -> Self {
        Self {
            owners: skipped.owners,
            set_id_bits: skipped.set_id_bits,
            capabilities: skipped.capabilities,
            special: skipped.special,
            xattrs_denied: skipped.xattrs_denied,
            xattrs_unsupported: skipped.xattrs_unsupported,
            times: skipped.times,
            copied_links: skipped.copied_links,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_after_a_signal_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/plain.erofs");
        let request = ExtractRequest {
            image: data.clone(),
            read: ReadArguments::default(),
            selected: SelectedParts::default(),
            target: ExtractTarget::Tar { path: "unused".into(), holes: HolePolicy::Sparse },
            metadata: MetadataRequest::default(),
            json: true,
            limit: WorkLimitArguments::default(),
            max_output: None,
            progress: ProgressStyle::None,
            work: WorkArguments::default(),
        };
        let stop = StopRequest::default();
        stop.token().cancel();
        let mut events = Events::new(&request, &stop, WorkAmount::default);
        let options = ExtractOptions::new().selection(Selection::of_paths(["/missing"]));
        let image = Image::open(data).unwrap();
        let summary = extract(&image, &folder.path().join("tree"), &options, &mut |event| {
            events.handle(event);
        });
        assert_eq!(summary.unwrap().failures, 1);
        let text = output::json_text(&events.problems).unwrap();
        assert!(text.contains("nothing in the image matches"), "{text}");
    }
}
