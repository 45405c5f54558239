//! The places of all outputs of a build. They are opened before anything is read or written, and held
//! from then on: what other processes do to their names no longer matters. None of them is another
//! one, or a file that the build reads. Called by `build`.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use ferrofs_builder::output::{ExistingOutput, OutputTarget};
use ferrofs_builder::{BuildOutputs, ChunkIndexOutput, ErrorKind};

use super::archive_copy::CopyTarget;
use super::request::{BuildRequest, SourceKind};
use crate::container;
use crate::exit_status::usage_error;
use crate::output::escape;
use crate::text_file::{TextFile, check_apart};

/// All places.
#[derive(Debug)]
pub(super) struct OutputTargets {
    pub(super) image: BuildOutputs,
    pub(super) texts: TextTargets,
    pub(super) archive_copy: Option<CopyTarget>,
}

/// The places of the texts beside the image.
#[derive(Debug)]
pub(super) struct TextTargets {
    pub(super) block_list: Option<OutputTarget>,
    pub(super) block_map: Option<OutputTarget>,
    pub(super) vmdk: Option<OutputTarget>,
    pub(super) container_config: Option<OutputTarget>,
}

/// Opens the places; `hints` is a file that is read, too.
///
/// # Errors
/// A place cannot be used; two outputs have the same one, or it is that of an input.
pub(super) fn open(request: &BuildRequest, hints: Option<&Path>) -> anyhow::Result<OutputTargets> {
    let main = |path: &Path| OutputTarget::open(path, request.existing).map_err(refused);
    let chunk_index = match &request.options.chunk_index {
        Some(ChunkIndexOutput::NewFile(path)) => Some(path),
        Some(ChunkIndexOutput::Embedded) | None => None,
    };
    let blob = request.options.blob.as_ref().map(|blob| main(blob.path()));
    let outputs = BuildOutputs::new(main(&request.image)?)
        .blob(blob.transpose()?)
        .chunk_index(chunk_index.map(|path| main(path)).transpose()?);
    let text = |path: Option<&PathBuf>, existing| {
        path.map(|path| TextFile::target(path, existing).map_err(refused)).transpose()
    };
    // mkfs.erofs replaces texts, also where it rewrites an image in place.
    let existing = match request.existing {
        ExistingOutput::Refuse => ExistingOutput::Refuse,
        _ => ExistingOutput::Replace,
    };
    let texts = TextTargets {
        block_list: text(request.android.block_list_file.as_ref(), existing)?,
        block_map: text(request.block_map.as_ref().map(|map| &map.path), ExistingOutput::Replace)?,
        vmdk: text(request.vmdk.as_ref(), ExistingOutput::Replace)?,
        container_config: text(request.container_config.as_ref(), request.existing)?,
    };
    let copy = request.archive_copy.as_deref().map(CopyTarget::open).transpose()?;
    let targets = [
        ("the image", Some(&outputs.image)),
        ("the blob", outputs.blob.as_ref()),
        ("the chunk index", outputs.chunk_index.as_ref()),
        ("the list of blocks", texts.block_list.as_ref()),
        ("the map of blocks", texts.block_map.as_ref()),
        ("the descriptor", texts.vmdk.as_ref()),
        ("the configuration", texts.container_config.as_ref()),
        ("the copy of the archive", copy.as_ref().and_then(CopyTarget::output)),
    ];
    let targets = targets.iter().filter_map(|(what, target)| Some((*what, (*target)?)));
    let targets = targets.collect::<Vec<_>>();
    check_apart(&targets)?;
    check_inputs(&targets, &inputs(request, hints))?;
    Ok(OutputTargets { image: outputs, texts, archive_copy: copy })
}

/// The files that the build reads, those in directories left out.
fn inputs(request: &BuildRequest, hints: Option<&Path>) -> Vec<PathBuf> {
    let source = |source: &PathBuf| match source.as_path() {
        path if path == Path::new("-") => Some(PathBuf::from("/proc/self/fd/0")),
        path if request.kind == SourceKind::Container => container::archive_file(path),
        path => Some(path.to_owned()),
    };
    let android = &request.android;
    let lists = [&request.sidecar, &android.file_contexts, &android.fs_config_file];
    let lists = lists.into_iter().flatten().cloned();
    let sources = request.sources.iter().filter_map(source);
    sources.chain(lists).chain(hints.map(Path::to_owned)).collect()
}

/// Refuses outputs of which one would replace an input.
fn check_inputs(targets: &[(&str, &OutputTarget)], inputs: &[PathBuf]) -> anyhow::Result<()> {
    for (what, target) in targets {
        if inputs.iter().any(|input| target.is_file(input)) {
            let name = escape(target.path().as_os_str().as_bytes());
            return Err(usage_error(format_args!(
                "{name}: {what} would replace a file that the build reads; use another name"
            )));
        }
    }
    Ok(())
}

fn refused(error: ferrofs_builder::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::Exists => anyhow!("{error}; --force replaces it"),
        ErrorKind::InvalidOptions(_) => usage_error(error),
        _ => anyhow!("{error}"),
    }
}
