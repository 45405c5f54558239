//! A build from a tree to an image: options checked, data written, metadata behind it, and the superblock
//! last of all.

use std::path::Path;

use ferrofs_workers::CancelToken;

use crate::BlockSink;
use crate::context::{BuildContext, BuildMemory};
use crate::data_map::DataMap;
use crate::image_file::ImageWriter;
use crate::metadata::MetadataWriter;
use crate::packed_file::PackedFile;
use crate::report::{BuildObserver, BuildPhase, BuildReport};
use crate::superblock::SuperblockArea;
use crate::tree::{Device, Tree};
use crate::{BlobOutput, BuildOptions, Error, ErrorKind, OutputMode, Result};

/// Builds an image of `tree` under the name `target`, which has what it had before until the image is whole.
/// `cancel` ends the build early: every thread reads it between two steps of work.
///
/// # Errors
/// [`ErrorKind::InvalidOptions`] before anything is written; whatever the source or the host refuses, with its
/// path, the first in the order of the files; what the format cannot hold; [`ErrorKind::Cancelled`] once `cancel` is
/// cancelled. No error leaves anything behind, but in a target that is written in place, which then holds no
/// image. Where a blob is replaced, the image that was there is removed first, as it would refer to what is not
/// its own.
pub fn build(
    tree: &Tree,
    options: &BuildOptions,
    target: &Path,
    observer: &dyn BuildObserver,
    cancel: &CancelToken,
) -> Result<BuildReport> {
    options.check()?;
    let memory = BuildMemory::new(options, tree)?;
    let context = BuildContext { options, memory: &memory, observer, cancel };
    build_with(tree, &context, target, crate::write_data::write_data)
}

/// Puts the contents of a tree's files into a sink, but for what is to lie in the packed inode.
///
/// The bytes are what the packed inode is to start with.
type WriteData =
    fn(&Tree, &BuildContext<'_>, &[u8], &mut dyn BlockSink) -> Result<(DataMap, PackedFile)>;

fn build_with(
    tree: &Tree,
    context: &BuildContext<'_>,
    target: &Path,
    write_data: WriteData,
) -> Result<BuildReport> {
    let BuildContext { options, observer, .. } = *context;
    let block_size = options.block_size;
    let mut metadata = MetadataWriter::new(tree, options)?;
    let front = SuperblockArea::plan(&metadata, options)?;
    metadata.place_root(front.bytes())?;
    let mut image =
        ImageWriter::create(target, options.output_mode, block_size, metadata.head_bytes)?;
    let mut blob = create_blob(tree, options, &image)?;
    observer.phase(BuildPhase::Data);
    let sink = blob.as_mut().unwrap_or(&mut image);
    let (mut data, packed) = write_data(tree, context, front.packed(), sink)?;
    observer.phase(BuildPhase::Metadata);
    let mut written = metadata.write(&mut data, packed, &mut image, context)?;
    let mut report = report(tree, options, &metadata, &data);
    let unit = u64::from(options.image_alignment_blocks) * u64::from(block_size.bytes());
    image.write_zeros(image.bytes().next_multiple_of(unit) - image.bytes())?;
    report.bytes = image.bytes();
    report.blocks = block_size.count(report.bytes);
    report.blob_bytes = blob.as_ref().map_or(0, ImageWriter::bytes);
    let of_blob = blob.as_ref().map(|blob| Device { tag: [0; 64], bytes: blob.bytes() });
    let devices = of_blob.as_ref().map_or(tree.devices(), std::slice::from_ref);
    front.write(options, &mut written, report.blocks, devices)?;
    context.check_cancelled()?;
    observer.phase(BuildPhase::Publish);
    image.publish(&written.head, blob, observer)?;
    Ok(report)
}

/// Opens the file for the chunks that are not to lie in the image.
fn create_blob(
    tree: &Tree,
    options: &BuildOptions,
    image: &ImageWriter,
) -> Result<Option<ImageWriter>> {
    let Some(blob) = &options.blob else { return Ok(None) };
    if !tree.devices().is_empty() {
        let what = "a blob for files that lie on other devices already";
        return Err(Error::new(ErrorKind::InvalidOptions(what.to_owned())));
    }
    let (path, output_mode) = match blob {
        BlobOutput::NewFile(path) => (path, OutputMode::NewFile { offset: 0 }),
        BlobOutput::InPlace(path) => (path, OutputMode::InPlace { offset: 0 }),
    };
    let file = ImageWriter::create(path, output_mode, options.block_size, 0)?;
    if let BlobOutput::InPlace(_) = blob {
        image.remove_previous()?;
    }
    Ok(Some(file))
}

fn report(
    tree: &Tree,
    options: &BuildOptions,
    metadata: &MetadataWriter<'_>,
    data: &DataMap,
) -> BuildReport {
    let order = &metadata.inode_order.order;
    let mut report = BuildReport {
        block_bytes: options.block_size.bytes(),
        inodes: order.len() as u64,
        ..BuildReport::default()
    };
    let files = order.iter().filter_map(|id| {
        let content = tree.node(*id).content()?;
        Some((id.index(), content.bytes()))
    });
    report.add_data(data, options.block_size, u16::from(options.blob.is_some()), files);
    report
}

#[cfg(test)]
mod device_tests;
#[cfg(test)]
mod option_tests;
#[cfg(test)]
mod special_tests;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
mod wide_tests;
