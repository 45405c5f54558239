//! `ferrofs build` and mkfs.erofs. The library builds; this folder makes its options, reports
//! progress and errors, and compares the image with its source before the image gets its name.

mod algorithms;
mod android;
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
mod monitor;
mod overlay;
mod report;
mod request;
mod source_kind;
mod verify;
mod vmdk;

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow, bail};
use ferrofs_builder::output::OutputTarget;
use ferrofs_builder::tree::Tree;
use ferrofs_builder::{BuildOutputs, BuildReport, ChunkIndexOutput, ErrorKind};
use ferrofs_workers::memory::set_mmap_threshold;
use import::ImportedTree;
use monitor::BuildMonitor;
use report::BuildSummary;
use request::{BuildEnvironment, BuildRequest, OutputFormat, SourceKind, Verify};
use rustix::rand::GetRandomFlags;
use verify::ImageVerifier;

use crate::applets::mkfs::MkfsArguments;
use crate::arguments::BuildArguments;
use crate::exit_status::{CommandStatus, usage_error};
use crate::help;
use crate::output::{self, Output, escape};
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
    let request = arguments::request(arguments, &environment).map_err(usage_error)?;
    source_kind::check(arguments).map_err(usage_error)?;
    run_request(request, signals)
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
        let mut output = Output::new();
        writeln!(output, "{}", help::MKFS_BANNER)?;
        output.flush()?;
    }
    let environment = environment(arguments.compress_hints.as_deref())?;
    let request = mkfs::request(arguments, &environment).map_err(usage_error)?;
    for warning in request.warnings.iter().filter(|_| request.output.notices) {
        output::print_message(format_args!("warning: {warning}"));
    }
    run_request(request, signals)
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

fn run_request(mut request: BuildRequest, signals: ExitOnSignals) -> anyhow::Result<CommandStatus> {
    // Before there are threads, as large buffers move between them.
    set_mmap_threshold();
    let began = Instant::now();
    let image = escape(request.image.as_os_str().as_bytes());
    let outputs = (!request.is_dry_run).then(|| open_outputs(&request)).transpose()?;
    let resources = Resources::of_machine(&request.machine)?;
    request.options.jobs = Some(resources.threads);
    request.options.memory_bytes = resources.memory.budget().limit_bytes();
    memory::limit_import(&mut request, &resources, std::env::var_os("TMPDIR"));
    request.options.check().map_err(usage_error)?;
    let stop = signals.into_stop_request(SecondSignal::Ignored)?;
    if let Some(outputs) = &outputs {
        let checked = incremental::check(&request, &outputs.image)
            .and_then(|()| begin_in_place(&request, outputs));
        checked.map_err(|error| with_suggestion(&error, &stop))?;
    }
    let monitor = BuildMonitor::new(&stop, request.output.notices);
    let imported = import::import(&mut request, &resources, &monitor);
    let ImportedTree { mut tree, devices, container_config } =
        imported.map_err(|error| with_suggestion(&error, &stop))?;
    let image_target = outputs.as_ref().map(|outputs| &outputs.image);
    let is_image = |device: &PathBuf| image_target.is_some_and(|target| target.is_file(device));
    if devices.iter().flatten().any(is_image) {
        bail!("{image}: the image would refer to itself; use another name");
    }
    if let Some(name) = &request.options.digest_xattr {
        ferrofs_builder::add_digests(&mut tree, name, monitor.cancel_token())
            .map_err(|error| with_suggestion(&error, &stop))?;
    }
    if let OutputFormat::Mkfs { lists_files: true } = request.output.form {
        report::print_names(&tree)?;
    }
    let Some(outputs) = outputs else {
        let estimate = report::estimate(&tree, &request.options, stop.token());
        let estimate = estimate.map_err(|error| with_suggestion(&error, &stop))?;
        report::print_estimate(&request, &estimate)?;
        return Ok(CommandStatus::Success);
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
    let built = import::build(&request, &tree, outputs, &monitor);
    let warnings = monitor.warnings();
    let steps = monitor.finish();
    let report = built.map_err(|error| match error.kind() {
        ErrorKind::Rejected(why) if !stop.is_requested() => {
            anyhow!("{why}; {image} was not created")
        }
        _ => with_suggestion(&error, &stop),
    })?;
    write_lists(&request, &tree, &report, places.as_ref(), &container_config)?;
    let (options, took) = (&request.options, began.elapsed());
    BuildSummary { request: &request, options, report: &report, warnings, steps, took }.print()?;
    Ok(CommandStatus::Success)
}

/// Writes the texts beside the image, when that is complete.
fn write_lists(
    request: &BuildRequest,
    tree: &Tree,
    report: &BuildReport,
    places: Option<&Tree>,
    container_config: &[u8],
) -> anyhow::Result<()> {
    if let Some(path) = &request.android.block_list_file {
        let offset = request.options.output_mode.offset();
        block_list::write(path, &request.image, offset, &android::mount_point(&request.android))?;
    }
    if let Some(map) = &request.block_map {
        block_map::write(&map.path, request, places)?;
    }
    if let Some(path) = &request.vmdk {
        vmdk::write_descriptor(path, request, report, tree)?;
    }
    if let Some(path) = &request.container_config {
        let mut output = TextFile::create_beside(path, &*request.image, request.existing)?;
        let written = output.write_all(container_config);
        written.context("cannot write the configuration of the container image")?;
        output.publish()?;
    }
    Ok(())
}

/// Opens the places of the image and its blob. They are held from here on: what other processes do
/// to their names no longer matters.
fn open_outputs(request: &BuildRequest) -> anyhow::Result<BuildOutputs> {
    let open = |path: &Path| {
        OutputTarget::open(path, request.existing).map_err(|error| match error.kind() {
            ErrorKind::Exists => anyhow!("{error}; --force replaces it"),
            ErrorKind::InvalidOptions(_) => usage_error(error),
            _ => anyhow!("{error}"),
        })
    };
    let image = open(&request.image)?;
    let open_beside = |path: &Path, what: &str| {
        if *path == request.image || image.is_file(path) {
            let name = escape(path.as_os_str().as_bytes());
            bail!("{name}: the image and its {what} cannot be the same file");
        }
        open(path)
    };
    let blob = request.options.blob.as_ref().map(|blob| open_beside(blob.path(), "blob"));
    let chunk_index = match &request.options.chunk_index {
        Some(ChunkIndexOutput::NewFile(path)) => Some(open_beside(path, "chunk index")),
        Some(ChunkIndexOutput::Embedded) | None => None,
    };
    let (blob, chunk_index) = (blob.transpose()?, chunk_index.transpose()?);
    Ok(BuildOutputs { image, blob, chunk_index })
}

/// Empties files that are written in place: if anything fails from here on, they hold no image.
/// They stay as they are if a source is missing or is one of them.
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
            if target.is_file(source) {
                let what =
                    "the image would replace its source or refer to itself; use another name";
                let error = ferrofs_builder::Error::new(ErrorKind::InvalidOptions(what.to_owned()));
                return Err(error.at(target.path()));
            }
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
