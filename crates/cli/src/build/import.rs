//! Calls the library: reads the sources into a tree, and builds the image from the tree.

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use ferrofs_builder::import::adjust::{Adjustments, OverlayPolicy, XattrFilter};
use ferrofs_builder::import::sidecar::{self, SidecarMismatch};
use ferrofs_builder::import::{
    Compression, StoredHoles, TarContentMode, TarSource, from_directory, from_tar_layers,
};
use ferrofs_builder::tree::Tree;
use ferrofs_builder::{
    BuildOptions, BuildOutputs, BuildReport, Error, ErrorKind, NoopObserver, OutputMode,
};
use ferrofs_workers::CancelToken;

use super::android;
use super::incremental;
use super::monitor::BuildMonitor;
use super::overlay::{self, ContentLimit, LayeredTree};
use super::request::{BuildRequest, LayerData, LayerOptions, SourceKind};
use crate::container;
use crate::output;
use crate::resources::Resources;

/// The tree of the sources of a request.
#[derive(Debug)]
pub(super) struct ImportedTree {
    pub(super) tree: Tree,
    /// Where the devices of the tree can be read; `None` if they cannot be read, such as an archive
    /// that came through a pipe.
    pub(super) devices: Option<Vec<PathBuf>>,
    /// The configuration of a container image, as it is; empty for other sources.
    pub(super) container_config: Vec<u8>,
}

/// Reads the sources, and sets the options that depend on them.
///
/// # Errors
/// As the library, with the path; and if a file of Android's build system is malformed.
pub(super) fn import(
    request: &mut BuildRequest,
    resources: &Resources,
    monitor: &BuildMonitor<'_>,
) -> Result<ImportedTree, Error> {
    let base = incremental::open_base(request, resources, monitor.cancel_token())?;
    request.tar.stored_holes = StoredHoles::of(&request.options, request.tar.contents);
    // The importer leaves out xattrs of entries before it marks opaque directories.
    request.tar.xattrs = std::mem::take(&mut request.tar_adjustments.xattrs);
    // Owners of files are those of the lists before they are forced or shifted.
    let has_lists = request.android.fs_config_file.is_some() || request.sidecar.is_some();
    let late = has_lists.then(|| take_late(request));
    let overlay = request.directory.adjustments.overlay;
    if base.is_some() && overlay == OverlayPolicy::Strip {
        // The marks of the sources hide files of the image first.
        request.directory.adjustments.overlay = OverlayPolicy::Keep;
        request.tar_adjustments.overlay = OverlayPolicy::Keep;
    }
    let mut imported = import_sources(request, resources, monitor)?;
    let mut warnings = Vec::new();
    let refused = |why| Error::new(ErrorKind::InvalidOptions(why));
    if let Some(path) = &request.sidecar {
        let adjustments = &request.directory.adjustments;
        let tree = &mut imported.tree;
        let found = apply_sidecar(path, tree, &adjustments.xattrs).map_err(refused)?;
        // The sidecar may have brought marks that are to be left out.
        Adjustments::default().overlay(adjustments.overlay).apply(tree)?;
        if found != SidecarMismatch::default() {
            let (lines, paths) = (found.unused_lines, found.unnamed_paths);
            warnings.push(format!(
                "--sidecar: {lines} lines match no file of the source; {paths} files have no line"
            ));
        }
    }
    let unnamed = android::apply(&request.android, &mut imported.tree, monitor.cancel_token())?;
    if unnamed > 0 {
        warnings
            .push(format!("--fs-config-file: {unnamed} files have no line and keep their owners"));
    }
    if let Some(late) = late {
        late.apply(&mut imported.tree)?;
    }
    print_warnings(request, &warnings);
    if let Some(base) = base {
        imported.tree =
            base.lay_under(imported.tree, overlay, content_limit(request, TarContentMode::Copy))?;
    }
    Ok(imported)
}

/// Prints warnings, unless they are switched off.
pub(super) fn print_warnings(request: &BuildRequest, warnings: &[String]) {
    for warning in warnings.iter().filter(|_| request.output.print_warnings) {
        output::print_message(format_args!("warning: {warning}"));
    }
}

/// Gives every inode the metadata that a sidecar has for its path.
fn apply_sidecar(
    path: &Path,
    tree: &mut Tree,
    xattrs: &XattrFilter,
) -> Result<SidecarMismatch, String> {
    let name = output::escape(path.as_os_str().as_bytes());
    let file = fs::File::open(path).map_err(|error| format!("cannot read {name}: {error}"))?;
    sidecar::apply(&name, io::BufReader::new(file), tree, xattrs)
}

/// Takes the changes out of the request that come after those of the lists.
fn take_late(request: &mut BuildRequest) -> Adjustments {
    let mut late = Adjustments::default();
    for adjustments in [&mut request.directory.adjustments, &mut request.tar_adjustments] {
        let (owners, compact_time) = (adjustments.owners, adjustments.compact_time);
        adjustments.owners = Default::default();
        adjustments.compact_time = None;
        late = late.owners(owners).compact_time(compact_time).mtime(adjustments.mtime);
    }
    late
}

fn import_sources(
    request: &mut BuildRequest,
    resources: &Resources,
    monitor: &BuildMonitor<'_>,
) -> Result<ImportedTree, Error> {
    if let (SourceKind::Container, [source]) = (request.kind, request.sources.as_slice()) {
        let cancel = monitor.cancel_token();
        let imported = container::import(source, &request.tar, &request.connection, cancel)?;
        let (mut tree, container_config) = imported;
        request.tar_adjustments.apply(&mut tree)?;
        return Ok(ImportedTree { tree, devices: Some(Vec::new()), container_config });
    }
    if let SourceKind::DirectoryOrImages(layering) = request.kind {
        let is_directory = match request.sources.as_slice() {
            [source] => is_directory(source)?,
            _ => false,
        };
        let warnings = match is_directory {
            true => &request.source_warnings.of_directory,
            false => &request.source_warnings.of_images,
        };
        print_warnings(request, warnings);
        if !is_directory {
            return import_images(request, layering, resources, monitor.cancel_token());
        }
    }
    let tree = import_tree(request, monitor)?;
    Ok(ImportedTree { tree, devices: archives(request), container_config: Vec::new() })
}

/// The same limit as for archives, for the files of images.
fn content_limit(request: &BuildRequest, contents: TarContentMode) -> ContentLimit {
    ContentLimit { input: request.tar.input, holes: StoredHoles::of(&request.options, contents) }
}

fn import_images(
    request: &mut BuildRequest,
    layering: LayerOptions,
    resources: &Resources,
    cancel: &CancelToken,
) -> Result<ImportedTree, Error> {
    let contents = match layering.data {
        LayerData::Taken => TarContentMode::Copy,
        LayerData::Referred => TarContentMode::Index,
    };
    let limit = content_limit(request, contents);
    let images = overlay::join(&request.sources, layering, limit, resources, cancel)?;
    let LayeredTree { mut tree, block_size, devices } = images;
    request.directory.adjustments.apply(&mut tree)?;
    let options = &mut request.options;
    if layering.data == LayerData::Referred && options.block_size != block_size {
        let bytes = block_size.bytes();
        if layering.has_block_size && request.output.print_warnings {
            output::print_message(format_args!(
                "warning: -b has no effect: the images have blocks of {bytes} bytes; --clean=data copies the data"
            ));
        }
        options.block_size = block_size;
        options.pcluster_bytes = options.pcluster_bytes.max(bytes);
        options.extent_bytes_max = options.extent_bytes_max / bytes * bytes;
    }
    Ok(ImportedTree { tree, devices, container_config: Vec::new() })
}

fn import_tree(request: &BuildRequest, monitor: &BuildMonitor<'_>) -> Result<Tree, Error> {
    let is_directory = match (request.kind, request.sources.as_slice()) {
        (SourceKind::Directory | SourceKind::DirectoryOrImages(_), _) => true,
        (SourceKind::AsFound, [source]) => is_directory(source)?,
        _ => false,
    };
    if let (true, [source]) = (is_directory, request.sources.as_slice()) {
        return from_directory(source, &request.directory, monitor, monitor.cancel_token());
    }
    let sources = request.sources.iter().map(|source| tar_source(source));
    let mut tree = from_tar_layers(
        sources.collect::<Result<_, _>>()?,
        &request.tar,
        monitor,
        monitor.cancel_token(),
    )?;
    request.tar_adjustments.apply(&mut tree)?;
    Ok(tree)
}

/// Where the archives are that the tree refers to.
fn archives(request: &BuildRequest) -> Option<Vec<PathBuf>> {
    if request.tar.contents != TarContentMode::Index {
        return Some(Vec::new());
    }
    let place = |source: &PathBuf| match source.as_path() == Path::new("-") {
        true => PathBuf::from("/proc/self/fd/0"),
        false => source.clone(),
    };
    let places: Vec<_> = request.sources.iter().map(place).collect();
    let is_file = |path: &PathBuf| fs::metadata(path).is_ok_and(|found| found.is_file());
    let is_plain = matches!(request.tar.compression, None | Some(Compression::Plain));
    (is_plain && places.iter().all(is_file)).then_some(places)
}

/// Builds the image into its place.
///
/// # Errors
/// As the library.
pub(super) fn build(
    request: &BuildRequest,
    tree: &Tree,
    outputs: BuildOutputs,
    monitor: &BuildMonitor<'_>,
) -> Result<BuildReport, Error> {
    let cancel = monitor.cancel_token();
    ferrofs_builder::build_into(tree, &request.options, outputs, monitor, cancel)
}

/// Builds into a file in memory, for an estimate. No other file is written.
///
/// # Errors
/// As the library, and if there is no such memory.
pub(super) fn build_in_memory(
    tree: &Tree,
    options: &BuildOptions,
    cancel: &CancelToken,
) -> Result<BuildReport, Error> {
    let failed = |source: io::Error| {
        Error::new(ErrorKind::Output { operation: "cannot create a file in memory", source })
    };
    let memory = ferrofs_remote::memory_file("ferrofs-sample").map_err(failed)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&memory)));
    // Neither the blob nor the file of a chunk index is written. The bytes of an image are reported without its index.
    let in_place = OutputMode::InPlace { offset: 0 };
    let options = options.clone().output_mode(in_place).blob(None).chunk_index(None);
    ferrofs_builder::build(tree, &options, &path, &NoopObserver, cancel)
}

/// Whether a source is a directory; `-` is standard input.
///
/// # Errors
/// It cannot be examined.
pub(super) fn is_directory(path: &Path) -> Result<bool, Error> {
    if path == Path::new("-") {
        return Ok(false);
    }
    let found = fs::metadata(path).map_err(|source| {
        Error::new(ErrorKind::Input { operation: "cannot examine the source", source }).at(path)
    })?;
    Ok(found.is_dir())
}

pub(super) fn tar_source(path: &Path) -> Result<TarSource, Error> {
    if path != Path::new("-") {
        return Ok(TarSource::Path(path.to_owned()));
    }
    let name = PathBuf::from("standard input");
    let file = io::stdin().as_fd().try_clone_to_owned().map_err(|source| {
        Error::new(ErrorKind::Input { operation: "cannot read", source }).at(&name)
    })?;
    Ok(TarSource::File { name, file: file.into() })
}
