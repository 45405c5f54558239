//! Adds files to an image: the sources are laid over the files that it has. The result is a new
//! image, which replaces the present one by a rename when it is complete and compared with its
//! sources, so the present image stays as it is until then. Called by `build`.

use ferrofs_builder::output::OutputTarget;
use ferrofs_builder::{AlgorithmContext, Algorithms, Error, ErrorKind, Result};
use ferrofs_image::Image;
use ferrofs_workers::CancelToken;

use super::overlay::LayerImage;
use super::request::BuildRequest;
use crate::output;
use crate::resources::Resources;

/// Refuses what cannot be replaced as a whole.
///
/// # Errors
/// The image is a device.
pub(super) fn check(request: &BuildRequest, target: &OutputTarget) -> Result<()> {
    if request.incremental.is_none() {
        return Ok(());
    }
    if target.is_in_place() {
        let why = "--incremental needs a regular file, which the new image replaces".to_owned();
        return Err(Error::new(ErrorKind::InvalidOptions(why)).at(&request.image));
    }
    Ok(())
}

/// Opens the present image, over which the sources are laid. What describes the image stays as it is,
/// unless an option says otherwise.
///
/// # Errors
/// The present image cannot be read.
pub(super) fn open_base(
    request: &mut BuildRequest,
    resources: &Resources,
    cancel: &CancelToken,
) -> Result<Option<LayerImage>> {
    let Some(base) = request.incremental else { return Ok(None) };
    let layer = LayerImage::open_base(&request.image, resources, cancel)?;
    let options = &mut request.options;
    let sb = layer.image().superblock();
    if base.keeps_uuid {
        options.uuid = sb.uuid;
    }
    if base.keeps_label {
        options.label = sb.label;
    }
    if options.block_size != sb.block_size {
        let bytes = sb.block_size.bytes();
        if request.output.print_warnings {
            output::print_message(format_args!(
                "warning: the image has blocks of {bytes} bytes, and keeps them"
            ));
        }
        options.block_size = sb.block_size;
        options.pcluster_bytes = options.pcluster_bytes.max(bytes);
        options.extent_bytes_max = options.extent_bytes_max / bytes * bytes;
    }
    if base.keeps_algorithms && options.algorithms.is_none() {
        options.algorithms = algorithms_of(layer.image(), options.pcluster_bytes.into())?;
    }
    Ok(Some(layer))
}

/// The algorithms of an image, at their default levels.
fn algorithms_of(image: &Image, pcluster_bytes: u64) -> Result<Option<Algorithms>> {
    if !image.superblock().declares_compression() {
        return Ok(None);
    }
    let found = image.compression();
    let names = [
        (found.lz4_max_distance.is_some(), "lz4hc"),
        (found.lzma_dictionary_bytes.is_some(), "lzma"),
        (found.deflate_window_bits.is_some(), "deflate"),
        (found.zstd_window_log.is_some(), "zstd"),
    ];
    let names = names.iter().filter(|(is_there, _)| *is_there).map(|(_, name)| *name);
    let text = names.collect::<Vec<_>>().join(":");
    if text.is_empty() {
        return Ok(None);
    }
    let context = AlgorithmContext { pcluster_bytes, ..AlgorithmContext::default() };
    Algorithms::parse(&text, context).map(Some)
}
