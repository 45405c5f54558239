//! A build from a tree to an image: options checked, data written, metadata behind it, and the superblock
//! last of all.

use std::path::Path;

use crate::data::DataMap;
use crate::fragments::PackedFile;
use crate::image_file::ImageFile;
use crate::metadata::Prepared;
use crate::output::BlockSink;
use crate::report::Report;
use crate::superblock::Front;
use crate::tree::{Device, Tree};
use crate::watch::{Phase, Watch};
use crate::{Blob, Error, ErrorKind, Options, Placement, Result};

/// Builds an image of `tree` under the name `target`, which has what it had before until the image is whole.
///
/// # Errors
/// [`ErrorKind::Options`] before anything is written; whatever the source or the host refuses, with its
/// path; what the format cannot hold; [`ErrorKind::Stopped`] if `watch` said so. No error leaves anything
/// behind, but in a target that is written in place, which then holds no image. Where a blob is replaced, the
/// image that was there is removed first, as it would refer to what is not its own.
pub fn build(tree: &Tree, options: &Options, target: &Path, watch: &dyn Watch) -> Result<Report> {
    build_with(tree, options, Target { path: target, watch }, crate::write_data::write_data)
}

/// Where a build goes and who listens.
#[derive(Clone, Copy)]
struct Target<'a> {
    path: &'a Path,
    watch: &'a dyn Watch,
}

/// Puts the contents of a tree's files into a sink, but for what is to lie in the packed inode.
///
/// The bytes are what the packed inode is to start with.
type WriteData =
    fn(&Tree, &Options, &[u8], &mut dyn BlockSink, &dyn Watch) -> Result<(DataMap, PackedFile)>;

fn build_with(
    tree: &Tree,
    options: &Options,
    target: Target<'_>,
    write_data: WriteData,
) -> Result<Report> {
    options.check()?;
    let Target { path, watch } = target;
    let mut prepared = Prepared::new(tree, options)?;
    let front = Front::plan(&prepared, options)?;
    prepared.settle_head(front.bytes())?;
    let block_size = options.block_size;
    let mut image = ImageFile::create(path, options.placement, block_size, prepared.head_bytes)?;
    let mut blob = create_blob(tree, options, &image)?;
    watch.phase(Phase::Data);
    let sink = blob.as_mut().unwrap_or(&mut image);
    let (mut data, packed) = write_data(tree, options, front.packed(), sink, watch)?;
    watch.phase(Phase::Metadata);
    let mut written = prepared.write((&mut data, packed), &mut image, watch)?;
    let mut report = report(tree, options, &prepared, &data);
    let unit = u64::from(options.image_alignment_blocks) * u64::from(block_size.bytes());
    image.write_zeros(image.bytes().next_multiple_of(unit) - image.bytes())?;
    report.bytes = image.bytes();
    report.blocks = block_size.count(report.bytes);
    report.blob_bytes = blob.as_ref().map_or(0, ImageFile::bytes);
    let of_blob = blob.as_ref().map(|blob| Device { tag: [0; 64], bytes: blob.bytes() });
    let devices = of_blob.as_ref().map_or(tree.devices(), std::slice::from_ref);
    front.write(options, &mut written, (report.blocks, devices))?;
    if watch.should_stop() {
        return Err(Error::new(ErrorKind::Stopped));
    }
    watch.phase(Phase::Publish);
    image.publish(&written.head, blob, watch)?;
    Ok(report)
}

/// Opens the file for the chunks that are not to lie in the image.
fn create_blob(tree: &Tree, options: &Options, image: &ImageFile) -> Result<Option<ImageFile>> {
    let Some(blob) = &options.blob else { return Ok(None) };
    if !tree.devices().is_empty() {
        let what = "a blob for files that lie on other devices already";
        return Err(Error::new(ErrorKind::Options(what.to_owned())));
    }
    let (path, placement) = match blob {
        Blob::NewFile(path) => (path, Placement::NewFile { offset: 0 }),
        Blob::InPlace(path) => (path, Placement::InPlace { offset: 0 }),
    };
    let file = ImageFile::create(path, placement, options.block_size, 0)?;
    if let Blob::InPlace(_) = blob {
        image.remove_former()?;
    }
    Ok(Some(file))
}

fn report(tree: &Tree, options: &Options, prepared: &Prepared<'_>, data: &DataMap) -> Report {
    let order = &prepared.inventory.order;
    let mut report = Report {
        block_bytes: options.block_size.bytes(),
        inodes: order.len() as u64,
        ..Report::default()
    };
    let files = order.iter().filter_map(|id| {
        let content = tree.node(*id).content()?;
        Some((id.index(), content.bytes()))
    });
    report.add_data(data, (options.block_size, u16::from(options.blob.is_some())), files);
    report
}

#[cfg(test)]
mod option_tests;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
mod wide_tests;
