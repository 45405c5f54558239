//! `ferrofs build` and mkfs.erofs. The library builds; this folder makes its options, reports
//! progress and errors, and compares the image with its source before the image gets its name.

mod algorithms;
mod android;
mod archive_copy;
mod arguments;
mod block_list;
mod block_map;
mod buffered_source;
mod import;
mod incremental;
mod inode_pairs;
mod memory;
mod mkfs;
mod mkfs_extended;
mod mkfs_hints;
mod mkfs_sizes;
mod mkfs_warnings;
mod monitor;
mod outputs;
mod overlay;
mod report;
mod request;
mod source_kind;
mod verify;
mod vmdk;

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow};
use archive_copy::{ArchiveCopy, CopyTarget};
use ferrofs_builder::tree::Tree;
use ferrofs_builder::{BuildOutputs, BuildReport, ErrorKind};
use ferrofs_image::OpenOptions;
use import::ImportedTree;
use monitor::BuildMonitor;
use outputs::TextTargets;
use report::BuildSummary;
use request::{BuildEnvironment, BuildRequest, OutputFormat, SourceKind, Verify};
use rustix::rand::GetRandomFlags;
use verify::ImageVerifier;

use crate::applets::mkfs::MkfsArguments;
use crate::arguments::BuildArguments;
use crate::exit_status::{CommandStatus, usage_error};
use crate::help;
use crate::output::{self, OutputClosed, escape};
use crate::progress::{ProgressDisplay, WorkAmount};
use crate::resources::Resources;
use crate::signals::{ExitOnSignals, SecondSignal, StopRequest};
use crate::text_file::{TextFile, read_text_file};

/// The largest file of compression hints, in bytes.
const HINTS_BYTES_MAX: u64 = 1 << 20;

/// Builds as the verb.
///
/// # Errors
/// The options are invalid, the source or the target cannot be used, or a signal arrived.
pub(crate) fn run(
    arguments: &BuildArguments,
    signals: ExitOnSignals,
) -> anyhow::Result<CommandStatus> {
    let environment = environment(arguments.compression.hints.as_deref())?;
    let mut request = arguments::request(arguments, &environment).map_err(usage_error)?;
    source_kind::check(arguments).map_err(usage_error)?;
    request.warnings.extend(arguments::unmatched_excludes(arguments));
    run_request(request, arguments.compression.hints.as_deref(), signals)
}

/// Builds as mkfs.erofs.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_mkfs(
    arguments: &MkfsArguments,
    signals: ExitOnSignals,
) -> anyhow::Result<CommandStatus> {
    if arguments.prints_version() {
        output::print_unread(help::MKFS_BANNER)?;
    }
    let environment = environment(arguments.compress_hints.as_deref())?;
    let request = mkfs::request(arguments, &environment).map_err(usage_error)?;
    vmdk::check(&request).map_err(usage_error)?;
    run_request(request, arguments.compress_hints.as_deref(), signals)
}

/// Reads the clock, environment variables, random bytes, and the file of hints.
fn environment(hints: Option<&Path>) -> anyhow::Result<BuildEnvironment> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let mut random = [0; 16];
    // Of so few bytes, the call returns all. It works without /dev, as in an empty chroot.
    rustix::io::retry_on_intr(|| rustix::rand::getrandom(&mut random, GetRandomFlags::empty()))
        .context("no random bytes from the system")?;
    Ok(BuildEnvironment {
        source_date_epoch: std::env::var_os("SOURCE_DATE_EPOCH"),
        now: now.map_or(0, |now| now.as_secs()),
        random,
        hints: hints
            .map(|path| read_text_file(path, HINTS_BYTES_MAX))
            .transpose()
            .map_err(|why| anyhow!("the hints: {why}"))?,
    })
}

fn run_request(
    mut request: BuildRequest,
    hints: Option<&Path>,
    signals: ExitOnSignals,
) -> anyhow::Result<CommandStatus> {
    let started_at = Instant::now();
    import::print_warnings(&request, &request.warnings);
    let image = escape(request.image.as_os_str().as_bytes());
    let mut targets = (!request.is_dry_run).then(|| outputs::open(&request, hints)).transpose()?;
    let resources = Resources::of_machine(&request.machine)?;
    memory::limit(&mut request, &resources, std::env::var_os("TMPDIR"));
    request.options.check().map_err(usage_error)?;
    let stop = signals.into_stop_request(SecondSignal::Ignored)?;
    if let Some(targets) = &targets {
        let checked = incremental::check(&request, &targets.image.image)
            .and_then(|()| begin_in_place(&request, &targets.image));
        checked.map_err(|error| with_suggestion(&error, &stop))?;
    }
    let copy = targets.as_mut().and_then(|targets| targets.archive_copy.take());
    let copy = copy.map(CopyTarget::create).transpose()?;
    request.tar.uncompressed_copy = copy.as_ref().map(ArchiveCopy::file);
    let monitor = BuildMonitor::new(&stop, request.output.print_warnings);
    let imported = import::import(&mut request, &resources, &monitor);
    let ImportedTree { mut tree, devices, container_config } =
        imported.map_err(|error| with_suggestion(&error, &stop))?;
    copy.map(ArchiveCopy::publish).transpose()?;
    if let Some(name) = &request.options.digest_xattr {
        ferrofs_builder::add_digests(&mut tree, name, monitor.cancel_token())
            .map_err(|error| with_suggestion(&error, &stop))?;
    }
    if let OutputFormat::Mkfs { lists_files: true } = request.output.form {
        // The image is built though nobody reads them.
        OutputClosed::ignored_in(report::print_names(&tree))?;
    }
    let Some(targets) = targets else {
        let estimate = report::estimate(&tree, &request.options, stop.token());
        let estimate = estimate.map_err(|error| with_suggestion(&error, &stop))?;
        let printed = report::print_estimate(&request, &estimate);
        return CommandStatus::Success.after_output(printed);
    };
    if request.verify == Verify::Yes && devices.is_none() {
        request.verify = Verify::ButContents;
    }
    let places = block_map::places(&request, stop.token())
        .map_err(|error| with_suggestion(&error, &stop))?;
    let verifier = ImageVerifier {
        tree: &tree,
        offset: request.options.output_mode.offset(),
        devices: devices.as_deref(),
        resources: &resources,
    };
    let is_verified = request.verify != Verify::No;
    let progress =
        ProgressDisplay::new(request.output.progress, "build", || work(&tree, is_verified));
    let monitor = monitor.for_build(progress, is_verified.then_some(verifier));
    let built = import::build(&request, &tree, targets.image, &monitor);
    let warnings = monitor.warnings();
    let steps = monitor.finish();
    let report = built.map_err(|error| match error.kind() {
        ErrorKind::Rejected(why) if !stop.is_requested() => {
            anyhow!("{why}; {image} was not created")
        }
        _ => with_suggestion(&error, &stop),
    })?;
    let built = BuiltImage { tree: &tree, report: &report, places, container_config };
    write_texts(&request, targets.texts, &built, &resources)?;
    let (options, elapsed) = (&request.options, started_at.elapsed());
    let summary =
        BuildSummary { request: &request, options, report: &report, warnings, steps, elapsed };
    CommandStatus::Success.after_output(summary.print())
}

/// What the texts beside the image are made from.
struct BuiltImage<'a> {
    tree: &'a Tree,
    report: &'a BuildReport,
    /// Where an archive has the contents.
    places: Option<Tree>,
    container_config: Vec<u8>,
}

/// Writes the texts beside the image, when that is complete.
fn write_texts(
    request: &BuildRequest,
    targets: TextTargets,
    built: &BuiltImage<'_>,
    resources: &Resources,
) -> anyhow::Result<()> {
    let open = || {
        let options = OpenOptions::new().offset(request.options.output_mode.offset());
        let options = options.memory(&resources.memory).retain_memory(true);
        let image = options.cache_limit_bytes(resources.shared_bytes()).open(&request.image);
        let terminal_form = escape(request.image.as_os_str().as_bytes());
        image.map_err(|error| anyhow!("{terminal_form}: {error}"))
    };
    if let Some(target) = targets.block_list {
        block_list::write(target, &open()?, &android::mount_point(&request.android))?;
    }
    if let Some(target) = targets.block_map {
        let contents = built.places.as_ref().map(|places| anyhow::Ok((open()?, places)));
        block_map::write(target, contents.transpose()?)?;
    }
    if let Some(target) = targets.vmdk {
        vmdk::write_descriptor(target, request, built.report, built.tree)?;
    }
    if let Some(target) = targets.container_config {
        let mut output = TextFile::at(target)?;
        output.write_all(&built.container_config)?;
        output.publish()?;
    }
    Ok(())
}

/// Empties files that are written in place: if anything fails from here on, they hold no image.
/// They stay as they are if a source is missing.
fn begin_in_place(
    request: &BuildRequest,
    outputs: &BuildOutputs,
) -> Result<(), ferrofs_builder::Error> {
    for target in [Some(&outputs.image), outputs.blob.as_ref()].into_iter().flatten() {
        if !target.is_in_place() {
            continue;
        }
        let paths = if request.kind == SourceKind::Container { &[][..] } else { &request.sources };
        for source in paths {
            import::is_directory(source)?;
        }
        target.begin()?;
    }
    Ok(())
}

/// The amount of work.
fn work(tree: &Tree, is_verified: bool) -> WorkAmount {
    let bytes = report::content_bytes(tree);
    match is_verified {
        true => WorkAmount { entries: tree.len() as u64, bytes: bytes.saturating_mul(2) },
        false => WorkAmount { entries: 0, bytes },
    }
}

/// An error of the library with a suggestion, or the signal that caused it.
fn with_suggestion(error: &ferrofs_builder::Error, stop: &StopRequest) -> anyhow::Error {
    if let Err(stopped) = stop.check() {
        return stopped.into();
    }
    let suggestion = match error.kind() {
        ErrorKind::SourceChanged { .. } => "; build again while nothing writes to the source",
        ErrorKind::Exists => "; another process created it during the build",
        ErrorKind::InvalidOptions(_) => return usage_error(error),
        _ => "",
    };
    anyhow!("{error}{suggestion}")
}
