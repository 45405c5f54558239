//! A build from a tree to an image: options checked, data written, metadata behind it, and the superblock
//! last of all.

use std::path::Path;

use crate::BlockSink;
use crate::data_map::DataMap;
use crate::image_file::ImageWriter;
use crate::metadata::MetadataWriter;
use crate::packed_file::PackedFile;
use crate::report::{BuildObserver, BuildPhase, BuildReport};
use crate::superblock::SuperblockArea;
use crate::tree::{Device, Tree};
use crate::{BlobOutput, BuildOptions, Error, ErrorKind, OutputMode, Result};

/// Builds an image of `tree` under the name `target`, which has what it had before until the image is whole.
///
/// # Errors
/// [`ErrorKind::InvalidOptions`] before anything is written; whatever the source or the host refuses, with its
/// path; what the format cannot hold; [`ErrorKind::Cancelled`] if `observer` said so. No error leaves anything
/// behind, but in a target that is written in place, which then holds no image. Where a blob is replaced, the
/// image that was there is removed first, as it would refer to what is not its own.
pub fn build(
    tree: &Tree,
    options: &BuildOptions,
    target: &Path,
    observer: &dyn BuildObserver,
) -> Result<BuildReport> {
    build_with(tree, options, Target { path: target, observer }, crate::write_data::write_data)
}

/// Where a build goes and who listens.
#[derive(Clone, Copy)]
struct Target<'a> {
    path: &'a Path,
    observer: &'a dyn BuildObserver,
}

/// Puts the contents of a tree's files into a sink, but for what is to lie in the packed inode.
///
/// The bytes are what the packed inode is to start with.
type WriteData = fn(
    &Tree,
    &BuildOptions,
    &[u8],
    &mut dyn BlockSink,
    &dyn BuildObserver,
) -> Result<(DataMap, PackedFile)>;

fn build_with(
    tree: &Tree,
    options: &BuildOptions,
    target: Target<'_>,
    write_data: WriteData,
) -> Result<BuildReport> {
    options.check()?;
    let Target { path, observer } = target;
    let mut metadata_writer = MetadataWriter::new(tree, options)?;
    let superblock_area = SuperblockArea::plan(&metadata_writer, options)?;
    metadata_writer.place_root(superblock_area.bytes())?;
    let block_size = options.block_size;
    let mut image =
        ImageWriter::create(path, options.output_mode, block_size, metadata_writer.head_bytes)?;
    let mut blob = create_blob(tree, options, &image)?;
    observer.phase(BuildPhase::Data);
    let sink = blob.as_mut().unwrap_or(&mut image);
    let (mut data, packed) = write_data(tree, options, superblock_area.packed(), sink, observer)?;
    observer.phase(BuildPhase::Metadata);
    let mut written = metadata_writer.write((&mut data, packed), &mut image, observer)?;
    let mut report = report(tree, options, &metadata_writer, &data);
    let unit = u64::from(options.image_alignment_blocks) * u64::from(block_size.bytes());
    image.write_zeros(image.bytes().next_multiple_of(unit) - image.bytes())?;
    report.bytes = image.bytes();
    report.blocks = block_size.count(report.bytes);
    report.blob_bytes = blob.as_ref().map_or(0, ImageWriter::bytes);
    let of_blob = blob.as_ref().map(|blob| Device { tag: [0; 64], bytes: blob.bytes() });
    let devices = of_blob.as_ref().map_or(tree.devices(), std::slice::from_ref);
    superblock_area.write(options, &mut written, (report.blocks, devices))?;
    if observer.should_stop() {
        return Err(Error::new(ErrorKind::Cancelled));
    }
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
    metadata_writer: &MetadataWriter<'_>,
    data: &DataMap,
) -> BuildReport {
    let order = &metadata_writer.inode_order.order;
    let mut report = BuildReport {
        block_bytes: options.block_size.bytes(),
        inodes: order.len() as u64,
        ..BuildReport::default()
    };
    let files = order.iter().filter_map(|id| {
        let content = tree.node(*id).content()?;
        Some((id.index(), content.bytes()))
    });
    report.add_data(data, (options.block_size, u16::from(options.blob.is_some())), files);
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
