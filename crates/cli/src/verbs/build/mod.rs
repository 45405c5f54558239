//! `ferrofs build`, and what mkfs.erofs is asked for: the library builds; here its options are made, its progress and its
//! errors told, and the image compared with its source before it gets its name.

mod algorithms;
mod build_request;
mod engine;
mod estimate;
mod layers;
mod mkfs_request;
mod report;
mod request;
mod verify;
mod watcher;

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow, bail};
use ferrofs_builder::tree::Tree;
use ferrofs_builder::{Blob, ErrorKind, Options, Placement};
use ferrofs_image::workers::memory::map_large_blocks;

use super::demo::interruption::Interruption;
use crate::arguments::BuildArguments;
use crate::name::escaped;
use crate::names::mkfs::MkfsArguments;
use crate::outcome::Outcome;
use crate::output::Output;
use crate::progress::{Progress, Work};
use crate::resources::Resources;
use crate::stderr;
use engine::{Existing, Imported};
use report::Built;
use request::{Request, Surroundings, Verify};
use verify::Verifier;
use watcher::Watcher;

/// Of a file of hints: more than anybody writes.
const HINTS_BYTES_MAX: u64 = 1 << 20;

/// Builds as the verb.
pub(crate) fn run(arguments: &BuildArguments) -> anyhow::Result<Outcome> {
    match build_request::request(arguments, &surroundings(arguments.compression.hints.as_deref())?)
    {
        Ok(request) => perform(request),
        Err(why) => {
            stderr::complain(why);
            Ok(Outcome::Misused)
        }
    }
}

/// Builds as mkfs.erofs.
pub(crate) fn run_mkfs(arguments: &MkfsArguments) -> anyhow::Result<Outcome> {
    if arguments.is_talkative() {
        let mut output = Output::new();
        writeln!(output, "mkfs.erofs (ferrofs) {}", env!("CARGO_PKG_VERSION"))?;
        output.flush()?;
    }
    let surroundings = surroundings(arguments.compress_hints.as_deref())?;
    let request = mkfs_request::request(arguments, &surroundings).map_err(|why| anyhow!(why))?;
    perform(request)
}

/// The clock, the environment, chance, and the file of hints.
fn surroundings(hints: Option<&Path>) -> anyhow::Result<Surroundings> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let mut random = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut random))
        .context("/dev/urandom")?;
    Ok(Surroundings {
        source_date_epoch: std::env::var_os("SOURCE_DATE_EPOCH"),
        now: now.map_or(0, |now| now.as_secs()),
        random,
        hints: hints.map(read_hints).transpose()?,
    })
}

/// Reads a file of hints.
fn read_hints(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    let read =
        File::open(path).and_then(|file| file.take(HINTS_BYTES_MAX + 1).read_to_end(&mut text));
    let name = escaped(path.as_os_str().as_bytes());
    read.with_context(|| format!("cannot read the hints {name}"))?;
    if text.len() as u64 > HINTS_BYTES_MAX {
        bail!("{name} has more than {HINTS_BYTES_MAX} bytes: too many for hints");
    }
    Ok(text)
}

fn perform(mut request: Request) -> anyhow::Result<Outcome> {
    // Before there are threads: buffers of a segment go from one to the next.
    map_large_blocks();
    let began = Instant::now();
    let image = escaped(request.image.as_os_str().as_bytes());
    if !request.is_rehearsal {
        prepare_target(&mut request, &image)?;
    }
    let resources = Resources::of_machine(&request.machine)?;
    request.options.jobs = Some(resources.threads);
    if request.machine.memory.is_some() {
        request.options.memory_bytes = resources.memory.budget().limit_bytes();
    }
    request.options.check().map_err(|error| anyhow!("{error}"))?;
    let interruption = Interruption::watch()?;
    let watcher = Watcher::new(&interruption, request.tell.notices);
    let imported = engine::import(&mut request, &resources, &watcher);
    let Imported { mut tree, devices } = imported.map_err(|error| told(&error, &interruption))?;
    if devices.iter().flatten().any(|device| engine::is_same_file(device, &request.image)) {
        bail!("{image}: it would refer to itself; give it another name");
    }
    if let Some(name) = &request.options.digest_xattr {
        ferrofs_builder::add_digests(&mut tree, name, &watcher)
            .map_err(|error| told(&error, &interruption))?;
    }
    if request.is_rehearsal {
        let estimate = estimate::estimate(&tree, &request.options);
        let estimate = estimate.map_err(|error| told(&error, &interruption))?;
        report::tell_estimate(&request, &estimate)?;
        return Ok(Outcome::Good);
    }
    if request.verify == Verify::Yes && devices.is_none() {
        request.verify = Verify::ButContents;
    }
    let verifier = Verifier {
        tree: &tree,
        offset: request.options.placement.offset(),
        devices: devices.as_deref(),
        resources: &resources,
    };
    let is_verified = request.verify != Verify::No;
    let progress = Progress::new(request.tell.progress, "build", || work(&tree, is_verified));
    let watcher = watcher.for_build(progress, is_verified.then_some(verifier));
    let built = engine::build(&request, &tree, &watcher);
    let warnings = watcher.warnings();
    let steps = watcher.finish();
    let report = built.map_err(|error| match error.kind() {
        ErrorKind::Rejected(why) if !interruption.is_wanted() => {
            anyhow!("{why}; {image} was not made")
        }
        _ => told(&error, &interruption),
    })?;
    let (options, took) = (&request.options, began.elapsed());
    Built { request: &request, options, report: &report, warnings, steps, took }.tell()?;
    Ok(Outcome::Good)
}

/// Looks at what has the image's name.
fn prepare_target(request: &mut Request, image: &str) -> anyhow::Result<()> {
    let existing = engine::existing(&request.image).map_err(|error| anyhow!("{image}: {error}"))?;
    if existing != Existing::Nothing && !request.replaces {
        bail!("{image}: exists already; --force replaces it");
    }
    if existing == Existing::BlockDevice {
        let offset = request.options.placement.offset();
        request.options =
            Options { placement: Placement::InPlace { offset }, ..request.options.clone() };
    }
    let Some(Blob::NewFile(path)) = &request.options.blob else { return Ok(()) };
    let name = escaped(path.as_os_str().as_bytes());
    let existing = engine::existing(path).map_err(|error| anyhow!("{name}: {error}"))?;
    if *path == request.image || engine::is_same_file(path, &request.image) {
        bail!("{name}: the image and its blob cannot be one file");
    }
    if existing != Existing::Nothing && !request.replaces {
        bail!("{name}: exists already; --force replaces it");
    }
    if existing == Existing::BlockDevice {
        request.options.blob = Some(Blob::InPlace(path.clone()));
    }
    Ok(())
}

/// All that is to be done.
fn work(tree: &Tree, is_verified: bool) -> Work {
    let bytes = estimate::content_bytes(tree);
    match is_verified {
        true => Work { entries: tree.len() as u64, bytes: bytes.saturating_mul(2) },
        false => Work { entries: 0, bytes },
    }
}

/// An error of the library, with what to do about it.
fn told(error: &ferrofs_builder::Error, interruption: &Interruption) -> anyhow::Error {
    if let Err(ended) = interruption.check() {
        return ended;
    }
    let advice = match error.kind() {
        ErrorKind::SourceChanged { .. } => "; build again when nobody writes there",
        _ => "",
    };
    anyhow!("{error}{advice}")
}
